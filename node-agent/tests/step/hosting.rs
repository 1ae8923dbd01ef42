//! What an engine is given to live in, and what is told of it.

use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;

use crate::runner::{KEY, Run, Wish, stub_engine, until};

/// An engine that does something before it becomes the stub.
fn engine_that(does: &str) -> (tempfile::TempDir, Wish) {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("engine");
    let text = format!("#!/bin/sh\n{does}\nexec {} \"$@\"\n", stub_engine().display());
    std::fs::write(&script, text).expect("written");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let wish = Wish {
        engine: format!("command = [{script:?}, \"serve\"]"),
        ..Wish::default()
    };
    (folder, wish)
}

#[tokio::test]
async fn secrets_do_not_reach_the_log_nor_the_agent() {
    let (_folder, mut wish) = engine_that(&format!("echo token=$HF_TOKEN key={KEY} done"));
    wish.order
        .env
        .insert("HF_TOKEN".into(), "the-token-of-ada".into());
    let run = Run::ready(wish).await;
    let told = run
        .agent()
        .until("the line", |told| {
            told.lines.iter().any(|line| line.starts_with("token="))
        })
        .await;
    assert!(
        told.lines
            .contains(&"token=[removed] key=[removed] done".to_owned()),
        "{:?}",
        told.lines
    );
    let log = run.log();
    assert!(
        log.contains("key=[removed]") && !log.contains(KEY) && !log.contains("the-token"),
        "{log}"
    );
}

#[tokio::test]
async fn a_process_that_runs_off_into_a_session_of_its_own_does_not_stay() {
    let (folder, wish) = engine_that("setsid sleep 1000 & echo $! > \"$0.pid\"");
    let mut run = Run::ready(wish).await;
    let pid_file = folder.path().join("engine.pid");
    let pid: u32 = std::fs::read_to_string(pid_file)
        .expect("written")
        .trim()
        .parse()
        .expect("a pid");
    let lives = || std::path::Path::new(&format!("/proc/{pid}")).exists();
    assert!(lives());
    run.signal(Signal::SIGTERM);
    assert!(run.gone().await.success());
    assert!(!lives());
}

#[tokio::test]
async fn an_environment_module_is_loaded_and_nothing_stands_between() {
    let home = tempfile::tempdir().expect("a folder");
    let profile = "module() { echo \"module $1 $2\"; export LOADED=$2; }\n";
    std::fs::write(home.path().join(".bash_profile"), profile).expect("written");
    let mut wish = Wish::default();
    wish.engine.push_str("\nmodule = \"vllm/0.32\"");
    wish.environment.push(("HOME", home.path().display().to_string()));
    let run = Run::ready(wish).await;
    let engine = run.engine_pid();
    let program = std::fs::read_link(format!("/proc/{engine}/exe")).expect("a program");
    assert_eq!(
        program.file_name(),
        stub_engine().file_name(),
        "the first process is the engine, not the shell"
    );
    let environment = std::fs::read(format!("/proc/{engine}/environ")).expect("environ");
    assert!(String::from_utf8_lossy(&environment).contains("LOADED=vllm/0.32"));
    until("the module's own line", || async {
        run.log().contains("module load vllm/0.32")
    })
    .await;
}

#[tokio::test]
async fn a_log_that_cannot_be_where_it_belongs_is_elsewhere_and_that_is_said() {
    let mut wish = Wish::default();
    wish.order.log_dirs = vec!["/proc/nowhere".into()];
    let run = Run::ready(wish).await;
    let facts = run.told.borrow().last();
    assert!(facts.log_note.contains("/proc/nowhere"), "{}", facts.log_note);
    let log = std::fs::read_to_string(&facts.log_path).expect("a log all the same");
    assert!(log.contains("slurm-serve: ada/tiny as:"), "{log}");
}

#[tokio::test]
async fn progress_is_told_while_it_loads() {
    let gate = tempfile::tempdir().expect("a folder");
    let gate = gate.path().join("go");
    let run = Run::start(Wish::stub(&[
        ("STUB_LOAD_UNTIL", gate.to_str().expect("a path")),
        ("STUB_LOAD_MS", "50"),
    ]));
    let told = run
        .agent()
        .until("progress", |told| !told.last().progress.is_empty())
        .await;
    assert!(!told.last().progress.contains("INFO"), "{}", told.last().progress);
    std::fs::write(&gate, "").expect("opened");
    run.agent()
        .until_phase(slurm_serve_proto::v1::RunnerPhase::Ready)
        .await;
}
