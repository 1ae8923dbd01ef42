//! What can be known before minutes of loading: GPUs, weights, the engine's program and version. Asked by the runner of its own job, and by
//! `sserve recipes check` of the node it runs on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use slurm_serve_proto::v1::Cause;
use slurm_serve_recipe::{Recipe, version_at_least};

use super::outcome::Failure;

/// Checks all of it; `gpus` are the job's on this node as the agent knows them.
pub fn before_loading(
    recipe: &Recipe,
    gpus: &str,
    environment: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    enough_gpus(recipe.gpus, gpus, environment)?;
    weights(&recipe.source)?;
    let path = environment.get("PATH").map_or("", String::as_str);
    if let Some(program) = program(recipe, path)? {
        version(recipe, &program)?;
    }
    Ok(())
}

/// As many GPUs as wanted? `job` is the list of those of the job on this node, as far as the agent knows it.
pub fn enough_gpus(wanted: u32, job: &str, environment: &BTreeMap<String, String>) -> Result<(), Failure> {
    let step = ["SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"].map(|name| environment.get(name));
    // The step's own list is the narrowest; what the agent knows and what CUDA is told come after it.
    let lists = [
        step[0].map(String::as_str),
        Some(job),
        step[1].map(String::as_str),
    ];
    let list = lists
        .into_iter()
        .flatten()
        .find(|list| !list.is_empty())
        .unwrap_or("");
    let have = count(list);
    if have >= wanted {
        return Ok(());
    }
    let has = match have {
        0 => "no GPU".to_owned(),
        1 => "1 GPU".to_owned(),
        n => format!("{n} GPUs"),
    };
    Err(Failure::new(
        Cause::TooFewGpus,
        format!("the recipe needs {wanted} and the job has {has} on this node"),
        &format!("submit with --gres=gpu:{wanted}"),
    ))
}

/// `0,1`, `0-3`, UUIDs; Slurm's word for none is `NoDevFiles`.
fn count(list: &str) -> u32 {
    let items = list
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty() && *item != "NoDevFiles");
    items
        .map(|item| {
            let range = item.split_once('-').and_then(|(first, last)| {
                let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
                last.checked_sub(first)?.checked_add(1)
            });
            range.unwrap_or(1)
        })
        .fold(0, u32::saturating_add)
}

/// A path must be there for this user; a hub's id is the engine's business.
pub fn weights(source: &str) -> Result<(), Failure> {
    let path = Path::new(source);
    if !path.is_absolute() {
        return Ok(());
    }
    let flags = if path.is_dir() {
        AccessFlags::R_OK | AccessFlags::X_OK
    } else {
        AccessFlags::R_OK
    };
    access(path, flags).map_err(|errno| {
        Failure::new(
            Cause::WeightsMissing,
            format!(
                "the weights {source} can't be read on this node: {}",
                errno.desc()
            ),
            "correct `source` in the recipe, or ask for read access to that folder",
        )
    })
}

/// The program as it will be found, or `None` where an environment module provides it.
pub fn program(recipe: &Recipe, search: &str) -> Result<Option<PathBuf>, Failure> {
    let program = recipe.engine_program();
    let runs = |path: &Path| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    let missing = |hint: &str| {
        Failure::new(
            Cause::EngineNotFound,
            format!(
                "the engine {} is not on this node, or may not be run",
                program.display()
            ),
            hint,
        )
    };
    if program.components().count() > 1 {
        return if runs(&program) {
            Ok(Some(program))
        } else {
            Err(missing("correct `engine.command` or `engine.venv` in the recipe"))
        };
    }
    if recipe.engine.module.is_some() {
        return Ok(None);
    }
    let mut folders = search.split(':').filter(|folder| !folder.is_empty());
    let found = folders.find_map(|folder| Some(Path::new(folder).join(&program)).filter(|path| runs(path)));
    found
        .map(Some)
        .ok_or_else(|| missing("name where it is in the recipe: engine.venv, engine.module or a full path"))
}

/// vLLM's version, from the folder that its package manager left beside it; where there is none the engine is asked once it runs.
fn version(recipe: &Recipe, program: &Path) -> Result<(), Failure> {
    let Some(wanted) = &recipe.min_engine_version else {
        return Ok(());
    };
    let Some(have) = installed_version(program) else {
        return Ok(());
    };
    if version_at_least(&have, wanted) {
        return Ok(());
    }
    Err(Failure::new(
        Cause::EngineTooOld,
        format!(
            "{} is version {have}; the recipe needs {wanted} or newer",
            program.display()
        ),
        "install a newer engine, or name another one in the recipe (engine.venv, engine.module)",
    ))
}

/// The version of the vLLM package that this program belongs to.
pub fn installed_version(program: &Path) -> Option<String> {
    let root = program.parent()?.parent()?;
    let pythons = std::fs::read_dir(root.join("lib")).ok()?.flatten();
    let packages = pythons
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python"))
        .filter_map(|entry| std::fs::read_dir(entry.path().join("site-packages")).ok())
        .flat_map(Iterator::flatten);
    packages
        .filter_map(|entry| entry.file_name().into_string().ok())
        .find_map(|name| Some(name.strip_prefix("vllm-")?.strip_suffix(".dist-info")?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_as_slurm_and_cuda_write_them() {
        for (list, number) in [
            ("", 0),
            ("0", 1),
            ("0,1", 2),
            ("0-3", 4),
            ("0-1,4", 3),
            ("NoDevFiles", 0),
            ("GPU-8d2f-1,GPU-77aa-2", 2),
        ] {
            assert_eq!(count(list), number, "{list}");
        }
    }

    #[test]
    fn too_few_gpus_are_said_with_the_remedy() {
        let none = BTreeMap::new();
        let step = BTreeMap::from([("SLURM_STEP_GPUS".to_owned(), "1".to_owned())]);
        assert!(enough_gpus(0, "", &none).is_ok());
        assert!(enough_gpus(2, "0,1", &none).is_ok());
        assert!(enough_gpus(1, "0,1", &step).is_ok());
        let failure = enough_gpus(2, "0,1", &step).expect_err("the step has one");
        assert_eq!(failure.cause, Cause::TooFewGpus);
        assert_eq!(failure.hint, "submit with --gres=gpu:2");
        assert!(failure.text.contains("1 GPU on"), "{}", failure.text);
    }

    #[test]
    fn weights_are_looked_for_only_where_the_source_is_a_path() {
        assert!(weights("openai/gpt-oss-120b").is_ok());
        let failure = weights("/nowhere/weights").expect_err("missing");
        assert_eq!(failure.cause, Cause::WeightsMissing);
        assert!(failure.text.contains("/nowhere/weights"), "{}", failure.text);
    }

    #[test]
    fn a_version_is_read_from_the_package_beside_the_program() {
        let venv = tempfile::tempdir().expect("a folder");
        let packages = venv.path().join("lib/python3.11/site-packages");
        std::fs::create_dir_all(packages.join("vllm-0.32.0+cpu.dist-info")).expect("made");
        let program = venv.path().join("bin/vllm");
        assert_eq!(installed_version(&program).as_deref(), Some("0.32.0+cpu"));
        assert_eq!(installed_version(Path::new("/usr/bin/true")), None);
    }
}
