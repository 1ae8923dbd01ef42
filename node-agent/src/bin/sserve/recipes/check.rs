//! `sserve recipes check NAME`: would it run on this node? The runner's own checks, and what there is more time for here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use slurm_serve::step::checks;
use slurm_serve_recipe::{Recipe, version_at_least};

use super::Recipes;
use crate::failure::Failure;
use crate::out;
use crate::table::{self, Column};

/// Whether a recipe would run on this node: engine, weights, GPUs
///
/// Run it where the model would run (`srun --gres=gpu:1 sserve recipes check NAME`): a login node has neither. Starts the engine's
/// program once with --version, which may take some seconds. Exit code 1 if a check failed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name or alias
    name: String,
}

/// How long `vllm --version` may take: it imports all of PyTorch, perhaps from a cold network file system.
const VERSION_TIMEOUT: Duration = Duration::from_secs(120);
/// How long `nvidia-smi` may take.
const SMI_TIMEOUT: Duration = Duration::from_secs(20);

/// What came out of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Verdict {
    Pass,
    /// May well run; the text says what to look at.
    Warn,
    Fail,
    /// Could not be found out here.
    Skip,
}

#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    text: String,
}

/// Runs the verb.
pub async fn run(args: Args, recipes: &Recipes, json: bool) -> Result<(), Failure> {
    let named = recipes.get(&args.name)?;
    let recipe = named.recipe;
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let mut findings = vec![finding(
        "recipe",
        Verdict::Pass,
        format!("{} holds", named.file.display()),
    )];
    findings.extend(engine(recipe, &environment).await);
    findings.push(weights(recipe, &environment));
    findings.push(gpus(recipe, &environment, Path::new("/dev")));
    if recipe.gpus > 0 && recipe.gpu_memory_gib.is_some() {
        findings.push(gpu_memory(recipe).await);
    }
    if json {
        out::json(&findings)?;
    } else {
        let rows: Vec<_> = findings.iter().map(cells).collect();
        // The texts are the answer: they are not cut.
        out::lines(table::render(&HEAD, &rows, usize::MAX))?;
    }
    let failed = findings.iter().filter(|f| f.verdict == Verdict::Fail).count();
    match failed {
        0 => Ok(()),
        n => Err(Failure::failed(format!(
            "{} would not run on this node: {n} of {} checks failed",
            recipe.name,
            findings.len()
        ))),
    }
}

const HEAD: [Column; 3] = [
    Column::whole("CHECK"),
    Column::whole("VERDICT"),
    Column::whole("WHAT"),
];

fn cells(finding: &Finding) -> Vec<String> {
    let verdict = match finding.verdict {
        Verdict::Pass => "PASS",
        Verdict::Warn => "WARN",
        Verdict::Fail => "FAIL",
        Verdict::Skip => "SKIP",
    };
    vec![finding.check.into(), verdict.into(), finding.text.clone()]
}

fn finding(check: &'static str, verdict: Verdict, text: impl Into<String>) -> Finding {
    Finding {
        check,
        verdict,
        text: text.into(),
    }
}

/// What is wrong, and what to do about it.
fn said(text: &str, hint: &str) -> String {
    match hint.is_empty() {
        true => text.to_owned(),
        false => format!("{text}; {hint}"),
    }
}

/// The program is there, starts, and is new enough.
async fn engine(recipe: &Recipe, environment: &BTreeMap<String, String>) -> Vec<Finding> {
    let path = environment.get("PATH").map_or("", String::as_str);
    let program = match checks::program(recipe, path) {
        Ok(program) => program,
        Err(failure) => {
            return vec![finding(
                "engine",
                Verdict::Fail,
                said(&failure.text, &failure.hint),
            )];
        }
    };
    let mut command = match (&recipe.engine.module, &program) {
        (Some(module), program) => {
            let program = program.clone().unwrap_or_else(|| recipe.engine_program());
            let mut command = tokio::process::Command::new("/bin/bash");
            command
                .args(["-lc", "module load \"$0\" && exec \"$@\"", module])
                .arg(program);
            command
        }
        (None, Some(program)) => tokio::process::Command::new(program),
        (None, None) => return vec![finding("engine", Verdict::Fail, "no program is named")],
    };
    command.arg("--version").envs(&recipe.env);
    let shown = match (&recipe.engine.module, &program) {
        (Some(module), _) => format!("{} of module {module}", recipe.engine_program().display()),
        (None, Some(program)) => program.display().to_string(),
        (None, None) => String::new(),
    };
    let said = match output(command, VERSION_TIMEOUT).await {
        Ok(said) => said,
        Err(why) => {
            return vec![finding(
                "engine",
                Verdict::Fail,
                format!("{shown} --version: {why}"),
            )];
        }
    };
    let installed = program.as_deref().and_then(checks::installed_version);
    let version = installed.or_else(|| version_in(&said));
    let starts = match &version {
        Some(version) => format!("{shown} starts; version {version}"),
        None => format!("{shown} starts"),
    };
    let mut findings = vec![finding("engine", Verdict::Pass, starts)];
    if let Some(wanted) = &recipe.min_engine_version {
        findings.push(match version {
            None => finding("version", Verdict::Skip, format!("{shown} does not tell its version; {wanted} or newer is needed")),
            Some(have) if version_at_least(&have, wanted) => {
                finding("version", Verdict::Pass, format!("{have}; {wanted} or newer is needed"))
            }
            Some(have) => finding(
                "version",
                Verdict::Fail,
                format!("{have}, but {wanted} or newer is needed; name another engine in the recipe (engine.venv, engine.module)"),
            ),
        });
    }
    findings
}

/// The last word that looks like a version, of what a program printed about itself.
fn version_in(text: &str) -> Option<String> {
    let mut words = text
        .split_whitespace()
        .rev()
        .map(|word| word.trim_start_matches('v'));
    let version = words.find(|word| {
        let (first, _) = word.split_once('.').unwrap_or((word, ""));
        word.contains('.') && !first.is_empty() && first.bytes().all(|b| b.is_ascii_digit())
    });
    version.map(str::to_owned)
}

/// The weights are there: all the files of a folder, or, for a hub's id, a copy in the hub's cache.
fn weights(recipe: &Recipe, environment: &BTreeMap<String, String>) -> Finding {
    let source = &recipe.source;
    if recipe.source_is_path() {
        if let Err(failure) = checks::weights(source) {
            return finding("weights", Verdict::Fail, said(&failure.text, &failure.hint));
        }
        return folder_of_weights(Path::new(source));
    }
    let told = |name: &str| {
        let own = recipe.env.get(name);
        own.or_else(|| environment.get(name).filter(|_| recipe.wants_env(name)))
            .filter(|value| !value.is_empty())
    };
    let cache = match (told("HF_HUB_CACHE"), told("HF_HOME"), environment.get("HOME")) {
        (Some(cache), ..) => PathBuf::from(cache),
        (None, Some(home), _) => Path::new(home).join("hub"),
        (None, None, Some(home)) => Path::new(home).join(".cache/huggingface/hub"),
        (None, None, None) => PathBuf::from("/nonexistent"),
    };
    let snapshots = cache.join(format!("models--{}/snapshots", source.replace('/', "--")));
    let copies = std::fs::read_dir(&snapshots).into_iter().flatten().flatten();
    let copy = copies
        .map(|entry| entry.path())
        .find(|copy| copy.join("config.json").exists());
    let offline = told("HF_HUB_OFFLINE").is_some_and(|value| value != "0");
    match (copy, offline) {
        (Some(copy), _) => folder_of_weights(&copy),
        (None, true) => finding(
            "weights",
            Verdict::Fail,
            format!(
                "{source} is not in {}, and HF_HUB_OFFLINE forbids to fetch it",
                cache.display()
            ),
        ),
        (None, false) => finding(
            "weights",
            Verdict::Warn,
            format!(
                "{source} is not in {}: the engine will fetch it from the hub, if the node reaches that",
                cache.display()
            ),
        ),
    }
}

/// A folder as the hub lays it out: each file that the index names must be there.
fn folder_of_weights(folder: &Path) -> Finding {
    let shown = folder.display();
    if !folder.is_dir() {
        return finding("weights", Verdict::Pass, format!("{shown} can be read"));
    }
    if !folder.join("config.json").exists() {
        return finding(
            "weights",
            Verdict::Warn,
            format!("{shown} has no config.json; is it the folder of one model?"),
        );
    }
    let index = std::fs::read_to_string(folder.join("model.safetensors.index.json")).ok();
    let index: Option<serde_json::Value> = index.and_then(|text| serde_json::from_str(&text).ok());
    let named: std::collections::BTreeSet<String> = index
        .as_ref()
        .and_then(|index| index.get("weight_map")?.as_object())
        .into_iter()
        .flat_map(|map| map.values().filter_map(|file| file.as_str().map(str::to_owned)))
        .collect();
    let missing: Vec<&String> = named.iter().filter(|file| !folder.join(file).exists()).collect();
    match missing.first() {
        None => finding("weights", Verdict::Pass, format!("{shown}: all there")),
        Some(first) => finding(
            "weights",
            Verdict::Fail,
            format!(
                "{shown}: {} of {} files are missing ({first} …); fetch it anew",
                missing.len(),
                named.len()
            ),
        ),
    }
}

/// Inside a job its GPUs count, as for the runner; else the node's.
fn gpus(recipe: &Recipe, environment: &BTreeMap<String, String>, dev: &Path) -> Finding {
    let wanted = recipe.gpus;
    if wanted == 0 {
        return finding("gpus", Verdict::Pass, "none needed");
    }
    let job = environment.get("SLURM_JOB_GPUS").map_or("", String::as_str);
    if environment.contains_key("SLURM_JOB_ID") {
        return match checks::enough_gpus(wanted, job, environment) {
            Ok(()) => finding(
                "gpus",
                Verdict::Pass,
                format!("{wanted} needed, and this job has them here"),
            ),
            Err(failure) => finding("gpus", Verdict::Fail, said(&failure.text, &failure.hint)),
        };
    }
    let devices = std::fs::read_dir(dev).into_iter().flatten().flatten();
    let have = devices
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            name.strip_prefix("nvidia")
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
        .count();
    match u32::try_from(have).unwrap_or(u32::MAX) >= wanted {
        true => finding(
            "gpus",
            Verdict::Pass,
            format!("{wanted} needed, {have} on this node (whether they are free, Slurm knows)"),
        ),
        false => finding(
            "gpus",
            Verdict::Fail,
            format!("{wanted} needed, {have} on this node; check on a node that has them"),
        ),
    }
}

/// As `nvidia-smi` sees the cards.
async fn gpu_memory(recipe: &Recipe) -> Finding {
    let wanted = recipe.gpu_memory_gib.unwrap_or_default();
    let mut command = tokio::process::Command::new("nvidia-smi");
    command.args([
        "--query-gpu=memory.total,memory.free",
        "--format=csv,noheader,nounits",
    ]);
    match output(command, SMI_TIMEOUT).await {
        Ok(text) => judge_memory(wanted, recipe.gpus, &text),
        Err(why) => finding(
            "memory",
            Verdict::Skip,
            format!("{wanted} GiB needed on each GPU; nvidia-smi: {why}"),
        ),
    }
}

/// `text`: a line `TOTAL, FREE` for each card, in MiB.
fn judge_memory(wanted: f64, gpus: u32, text: &str) -> Finding {
    let cards: Vec<(f64, f64)> = text
        .lines()
        .filter_map(|line| {
            let (total, free) = line.split_once(',')?;
            Some((
                total.trim().parse::<f64>().ok()? / 1024.0,
                free.trim().parse::<f64>().ok()? / 1024.0,
            ))
        })
        .collect();
    let gpus = usize::try_from(gpus).unwrap_or(usize::MAX);
    let count = |enough: fn(&(f64, f64)) -> f64| cards.iter().filter(|card| enough(card) >= wanted).count();
    let (large, free) = (count(|card| card.0), count(|card| card.1));
    if cards.is_empty() {
        finding(
            "memory",
            Verdict::Skip,
            format!("{wanted} GiB needed on each GPU; nvidia-smi shows none"),
        )
    } else if large < gpus {
        let most = cards.iter().map(|card| card.0).fold(0.0, f64::max);
        finding(
            "memory",
            Verdict::Fail,
            format!("{wanted} GiB needed on each GPU; the largest here has {most:.1}"),
        )
    } else if free < gpus {
        let most = cards.iter().map(|card| card.1).fold(0.0, f64::max);
        finding(
            "memory",
            Verdict::Warn,
            format!("{wanted} GiB needed on each GPU; now at most {most:.1} are free: somebody is on it"),
        )
    } else {
        finding(
            "memory",
            Verdict::Pass,
            format!("{wanted} GiB needed on each GPU, and free"),
        )
    }
}

/// A program's stdout, if it ends well and in time.
async fn output(mut command: tokio::process::Command, limit: Duration) -> Result<String, String> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(limit, command.output()).await;
    let output = output
        .map_err(|_| format!("no answer within {limit:?}"))?
        .map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it says nothing");
    Err(format!("{}: {}", output.status, last.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(text: &str) -> Recipe {
        Recipe::parse_one(text).unwrap()
    }

    fn no_environment() -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    #[test]
    fn a_missing_shard_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(folder_of_weights(folder.path()).verdict, Verdict::Warn);
        write("config.json", "{}");
        write(
            "model.safetensors.index.json",
            r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}}"#,
        );
        write("1.safetensors", "");
        let missing = folder_of_weights(folder.path());
        assert_eq!(missing.verdict, Verdict::Fail);
        assert!(
            missing.text.contains("1 of 2") && missing.text.contains("2.safetensors"),
            "{missing:?}"
        );
        write("2.safetensors", "");
        assert_eq!(folder_of_weights(folder.path()).verdict, Verdict::Pass);
    }

    #[test]
    fn a_hubs_id_is_looked_for_in_the_cache_that_the_engine_will_use() {
        let home = tempfile::tempdir().unwrap();
        let text = format!(
            "name = 'm'\nsource = 'org/m'\n[env]\nHF_HOME = '{}'\nHF_HUB_OFFLINE = '1'",
            home.path().display()
        );
        let offline = recipe(&text);
        let missing = weights(&offline, &no_environment());
        assert_eq!(missing.verdict, Verdict::Fail, "{missing:?}");
        let online = recipe("name = 'm'\nsource = 'org/m'");
        assert_eq!(weights(&online, &no_environment()).verdict, Verdict::Warn);
        let copy = home.path().join("hub/models--org--m/snapshots/abc");
        std::fs::create_dir_all(&copy).unwrap();
        std::fs::write(copy.join("config.json"), "{}").unwrap();
        assert_eq!(weights(&offline, &no_environment()).verdict, Verdict::Pass);
        // A variable of this shell counts only if the recipe passes it on.
        let environment = BTreeMap::from([("HF_HOME".to_owned(), home.path().display().to_string())]);
        assert_eq!(weights(&online, &environment).verdict, Verdict::Warn);
        let passing = recipe("name = 'm'\nsource = 'org/m'\npass_env = ['HF_HOME']");
        assert_eq!(weights(&passing, &environment).verdict, Verdict::Pass);
    }

    #[test]
    fn gpus_are_the_jobs_inside_one_and_the_nodes_outside() {
        let two = recipe("name = 'm'\nsource = 'org/m'\ngpus = 2");
        let dev = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidia1", "nvidiactl", "null"] {
            std::fs::write(dev.path().join(name), "").unwrap();
        }
        assert_eq!(gpus(&two, &no_environment(), dev.path()).verdict, Verdict::Pass);
        let job = |list: &str| {
            let pairs = [("SLURM_JOB_ID", "12"), ("SLURM_JOB_GPUS", list)];
            pairs
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        };
        assert_eq!(gpus(&two, &job("0"), dev.path()).verdict, Verdict::Fail);
        assert_eq!(gpus(&two, &job("0,3"), dev.path()).verdict, Verdict::Pass);
        let none = recipe("name = 'm'\nsource = 'org/m'\ngpus = 0");
        assert_eq!(gpus(&none, &job(""), dev.path()).verdict, Verdict::Pass);
    }

    #[test]
    fn memory_is_judged_by_the_cards_that_are_large_enough() {
        assert_eq!(judge_memory(88.0, 1, "97871, 97000\n").verdict, Verdict::Pass);
        assert_eq!(judge_memory(88.0, 1, "97871, 1200\n").verdict, Verdict::Warn);
        assert_eq!(judge_memory(88.0, 1, "81559, 81000\n").verdict, Verdict::Fail);
        assert_eq!(
            judge_memory(88.0, 2, "97871, 97000\n81559, 81000\n").verdict,
            Verdict::Fail
        );
        assert_eq!(judge_memory(88.0, 1, "").verdict, Verdict::Skip);
    }

    #[test]
    fn versions_are_picked_out_of_what_programs_say() {
        assert_eq!(version_in("0.32.0+cpu\n").as_deref(), Some("0.32.0+cpu"));
        assert_eq!(
            version_in("INFO loading.\nvLLM v0.11.1").as_deref(),
            Some("0.11.1")
        );
        assert_eq!(version_in("none here."), None);
    }
}
