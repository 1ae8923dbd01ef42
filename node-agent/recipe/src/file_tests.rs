//! Recipes as text: what is taken, and the line that each fault gives.

use std::path::Path;
use std::time::Duration;

use crate::recipe::{Publish, Recipe, Restart, Task};

fn parse(text: &str) -> Result<Vec<Recipe>, String> {
    Recipe::parse(text, Path::new("/r/tiny.toml")).map_err(|e| e.to_string())
}

#[track_caller]
fn fault(text: &str) -> String {
    let line = parse(text).expect_err("refused");
    assert!(!line.contains('\n') && line.len() < 400, "{line}");
    line
}

const FULL: &str = r#"
name = "big"
source = "org/Big-1.0"
description = "A big one"
task = "embedding"
args = ["--max-model-len", "4096"]   # a comment
pass_env = ["HF_HOME", "NCCL_*"]
gpus = 2
gpu_memory_gib = 70
min_engine_version = "0.17.1"
ready_timeout = "1h 30m"
drain_timeout = "20s"
restart = "never"
max_restarts = 7
restart_pause = "1s"
unresponsive_after = "1m"
aliases = ["large", "big-1"]
publish = ["ml", "staff"]

[engine]
command = ["vllm", "serve"]
module = "vllm/0.32"
venv = "/opt/vllm"

[env]
VLLM_LOGGING_LEVEL = "INFO"
"#;

#[test]
fn a_source_is_enough() {
    let recipe = parse("source = '/models/tiny'").expect("holds").remove(0);
    assert_eq!(
        (recipe.name.as_str(), recipe.task, recipe.gpus),
        ("tiny", Task::Chat, 1)
    );
    assert_eq!(recipe.engine.command, ["vllm", "serve"]);
    assert_eq!(recipe.ready_timeout, Duration::from_secs(1800));
    assert_eq!(recipe.drain_timeout, Duration::from_secs(15));
    assert_eq!((recipe.restart, recipe.max_attempts()), (Restart::OnFailure, 4));
    assert_eq!(recipe.unresponsive_after, Duration::from_secs(30));
    assert_eq!(recipe.publish, Publish::Everyone);
    assert_eq!(recipe.engine_program(), Path::new("vllm"));
}

#[test]
fn pauses_before_attempts_double_up_to_five_minutes() {
    let mut recipe = parse("source = '/models/tiny'").expect("holds").remove(0);
    let seconds = |recipe: &Recipe, attempts: &[u32]| -> Vec<u64> {
        attempts
            .iter()
            .map(|n| recipe.pause_before(*n).as_secs())
            .collect()
    };
    assert_eq!(
        seconds(&recipe, &[0, 1, 2, 3, 4, 8, 9, 70]),
        [0, 0, 5, 10, 20, 300, 300, 300]
    );
    recipe.restart_pause = Duration::from_secs(3600);
    assert_eq!(
        seconds(&recipe, &[2, 9]),
        [3600, 3600],
        "a longer wish is not cut"
    );
    recipe.restart = Restart::Never;
    assert_eq!(recipe.max_attempts(), 1);
}

#[test]
fn every_key_is_taken_and_survives_being_written() {
    let recipe = parse(FULL).expect("holds").remove(0);
    assert_eq!(recipe.gpu_memory_gib, Some(70.0));
    assert_eq!(recipe.ready_timeout, Duration::from_secs(5400));
    assert_eq!(recipe.publish, Publish::Groups(vec!["ml".into(), "staff".into()]));
    assert_eq!(recipe.engine_program(), Path::new("/opt/vllm/bin/vllm"));
    assert_eq!(
        Recipe::parse_one(&recipe.to_toml()).expect("reads what it wrote"),
        recipe
    );

    let least = parse("source = 'a/b'\npublish = 'nobody'")
        .expect("holds")
        .remove(0);
    assert_eq!(
        Recipe::parse_one(&least.to_toml()).expect("reads what it wrote"),
        least
    );
}

#[test]
fn arguments_may_be_one_text() {
    let text = "source = 'a/b'\nargs = '''--max-model-len 5\n  --chat-template 'a b' '''";
    assert_eq!(
        parse(text).expect("holds").remove(0).args,
        ["--max-model-len", "5", "--chat-template", "a b"]
    );
}

#[test]
fn a_file_may_hold_several() {
    let text = "[models.one]\nsource = 'a/b'\n\n[models.two]\nsource = 'a/c'\n[models.two.env]\nA = 'x'\n";
    let names: Vec<_> = parse(text).expect("holds").into_iter().map(|r| r.name).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(parse("[models]").expect("holds"), []);
    assert!(Recipe::parse_one(text).is_err());
}

#[test]
fn unknown_keys_name_their_line_and_the_nearest() {
    assert_eq!(
        fault("source = 'a/b'\n\ngpu_memory_gb = 5"),
        "/r/tiny.toml:3: unknown key \"gpu_memory_gb\"; did you mean gpu_memory_gib?"
    );
    assert_eq!(
        fault("sorce = 'a/b'"),
        "/r/tiny.toml:1: unknown key \"sorce\"; did you mean source?"
    );
    assert_eq!(
        fault("source = 'a/b'\n[engine]\ncomand = []"),
        "/r/tiny.toml:3: unknown key \"comand\"; did you mean command?"
    );
    assert_eq!(
        fault("[models.a]\nsource = 'a/b'\nalias = ['c']"),
        "/r/tiny.toml:3: unknown key \"alias\"; did you mean aliases?"
    );
    assert_eq!(
        fault("gpus = 1\n[models.a]\nsource = 'a/b'"),
        "/r/tiny.toml:1: gpus stands beside [models.NAME] tables; put it into one of them"
    );
    assert!(fault("source = 'a/b'\nzzz = 1").contains("unknown key \"zzz\"; there are name, source"));
}

#[test]
fn wrong_types_name_their_key() {
    for (text, want) in [
        (
            "source = 5",
            "/r/tiny.toml:1: source: invalid type: integer `5`, expected a string",
        ),
        (
            "source = 'a/b'\ngpus = 'two'",
            "/r/tiny.toml:2: gpus: invalid type: string \"two\", expected a whole number",
        ),
        (
            "source = 'a/b'\nargs = 5",
            "/r/tiny.toml:2: args: invalid type: integer `5`, expected a text or a list of texts",
        ),
        (
            "source = 'a/b'\n[env]\nA = 1",
            "/r/tiny.toml:3: A: invalid type: integer `1`, expected a string",
        ),
        (
            "source = 'a/b'\nready_timeout = 30",
            "/r/tiny.toml:2: ready_timeout: invalid type: integer `30`, expected a string; write \"30m\", \"90s\"",
        ),
    ] {
        assert_eq!(fault(text), want);
    }
}

#[test]
fn values_that_do_not_hold_say_what_would() {
    let with = |more: &str| format!("source = 'a/b'\n{more}");
    for (text, want) in [
        ("".to_owned(), ":1: tiny has no source"),
        (with("name = 'a b'"), ":2: the name \"a b\" holds ' '"),
        (with("name = '../x'"), ":2: the name"),
        (
            with("aliases = ['ok',\n 'a/b']"),
            ":3: aliases: the name \"a/b\" holds '/'",
        ),
        (with("aliases = ['tiny']"), "is the recipe's own name"),
        (with("aliases = ['a', 'a']"), "aliases names a twice"),
        (with("task = 'embed'"), "did you mean \"embedding\"?"),
        (with("gpus = -1"), ":2: gpus = -1 is not between 0 and 64"),
        (with("restart = 'on-failre'"), "did you mean \"on-failure\"?"),
        (
            with("restart = 'always'"),
            "restart = \"always\" is none of never, on-failure",
        ),
        (
            with("max_restarts = 101"),
            ":2: max_restarts = 101 is not between 0 and 100",
        ),
        (with("restart_pause = '2d'"), "is not between 0s and 1day"),
        (with("unresponsive_after = '1s'"), "is not between 2s and 1day"),
        (with("gpus = 4294967297"), "gpus = 4294967297 is not"),
        (with("gpu_memory_gib = nan"), "gpu_memory_gib = NaN is not"),
        (with("min_engine_version = 'new'"), "is no release"),
        (
            with("ready_timeout = 'soon'"),
            ":2: ready_timeout = \"soon\" is no duration",
        ),
        (with("ready_timeout = '0s'"), "is not between 1s and 1day"),
        (with("drain_timeout = '5000d'"), "is not between 0s and 1day"),
        (with("publish = 'all'"), "is neither \"everyone\" nor \"nobody\""),
        (with("publish = []"), "names no group"),
        (with("pass_env = ['*']"), "would pass on the whole environment"),
        (with("pass_env = ['SLURM_SERVE_NONCE']"), "belongs to slurm-serve"),
        (
            with("[env]\nSLURM_SERVE_X = '1'"),
            ":3: env: \"SLURM_SERVE_X\" belongs to slurm-serve",
        ),
        (
            with("[env]\nVLLM_API_KEY = 'k'"),
            "the guard in front of the engine",
        ),
        (with("[env]\n'A B' = '1'"), "is no name of a variable"),
        (with("[env]\nA = \"a\\u0000b\""), "holds a NUL"),
        (
            with("args = ['--port', '1']"),
            ":2: args: --port is set by slurm-serve; leave it out",
        ),
        (with("args = ['--max-model-len 5']"), "make it two"),
        (with("args = \"'open\""), ":2: args: a ' is opened"),
        (
            with("description = \"a\\nb\""),
            "description holds the character '\\n'",
        ),
        (with("[engine]\ncommand = []"), "engine.command is empty"),
        (
            with("[engine]\ncommand = ['bin/vllm']"),
            "neither a plain name nor an absolute path",
        ),
        (with("[engine]\nvenv = '~/v'"), "is no absolute path"),
        (with("[engine]\nmodule = 'a;b'"), "is no name of a module"),
        (
            with("[engine]\ncontainer = 'x.sqsh'"),
            ":3: engine.container is not supported yet",
        ),
        (
            "[models.'a b']\nsource = 'a/b'".to_owned(),
            ":1: the name \"a b\"",
        ),
        (
            "[models.a]\n\nname='b'\nsource = 'a/b'".to_owned(),
            ":3: name stands in [models.a]",
        ),
        (
            "[models.a]\ngpus = 1\n[models.b]\nsource = 'a/b'".to_owned(),
            ":1: a has no source",
        ),
    ] {
        let line = fault(&text);
        assert!(line.contains(want), "{text:?} gave {line}");
    }
}

#[test]
fn broken_toml_is_one_line() {
    assert!(fault("source = 'a/b'\ngpus = = 1").starts_with("/r/tiny.toml:2: "));
    assert!(fault("source = 'a/b'\nsource = 'a/c'").starts_with("/r/tiny.toml:2: "));
    assert!(fault("source = 'a/b").starts_with("/r/tiny.toml:1: "));
}

#[test]
fn sources_are_hub_ids_or_absolute_paths() {
    for fine in [
        "openai/gpt-oss-120b",
        "/models/x y",
        "Qwen/Qwen3.6-27B-FP8",
        "_o/n",
    ] {
        parse(&format!("source = {fine:?}")).expect(fine);
    }
    for bad in [
        "tiny",
        "./tiny",
        "../tiny",
        "~/tiny",
        "~me/tiny",
        "a/b/c",
        "a/",
        "/".repeat(5000).as_str(),
        "",
        "-a/b",
        "a/-b",
        "--port/1",
        "a b/c",
        "s3://a/b",
        ".a/b",
        "a/b\n",
    ] {
        assert!(parse(&format!("source = {bad:?}")).is_err(), "{bad:?}");
    }
}
