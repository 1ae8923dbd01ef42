//! Start failures: vLLM's words and vLLM's codes.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::stub::{Stub, until};

#[test]
fn each_failure_has_its_line_and_its_code() {
    for (name, code, line) in [
        ("missing-weights", 1, "Repo id must be in the form"),
        ("offline", 1, "LocalEntryNotFoundError"),
        ("gated", 1, "GatedRepoError"),
        ("truncated-weights", 1, "Engine core initialization failed"),
        ("unrecognized-arg", 2, "unrecognized arguments"),
        ("max-len", 1, "is greater than the derived max_model_len"),
        ("port-in-use", 1, "[Errno 98] Address already in use"),
        ("engine-init", 1, "Engine core initialization failed"),
        ("gpu-memory", 1, "is less than desired GPU memory utilization"),
        ("oom", 1, "CUDA out of memory"),
        ("vocab", 1, "vocab file"),
        ("not-installed", 1, "No module named 'vllm'"),
    ] {
        let mut stub = Stub::start("", &[("STUB_FAIL", name), ("STUB_CHILD", "1")]);
        assert_eq!(stub.ended().code(), Some(code), "{name}: {}", stub.log());
        assert!(stub.log().contains(line), "{name}: {}", stub.log());
    }
}

#[test]
fn an_unknown_flag_is_refused_with_2() {
    let mut stub = Stub::start("--foo", &[]);
    assert_eq!(stub.ended().code(), Some(2));
    assert!(stub.log().contains("vllm: error: unrecognized arguments: --foo"));
}

#[test]
fn an_address_in_use_is_really_refused() {
    let first = Stub::ready("", &[]);
    let mut second = Stub::start(&format!("--uds {}", first.socket().display()), &[]);
    assert_eq!(second.ended().code(), Some(1));
    assert!(second.log().contains("[Errno 98] Address already in use"));
    assert_eq!(first.get("/health").status, 200);
}

#[test]
fn dies_at_the_scripted_stage() {
    let mut stub = Stub::start("", &[("STUB_DIE_AT", "weights"), ("STUB_EXIT_CODE", "SIGKILL")]);
    assert!(stub.ended().code().is_none());
    let log = stub.log();
    assert!(
        log.contains("Starting to load model") && !log.contains("Capturing"),
        "{log}"
    );
}

#[test]
fn a_stop_while_loading_is_no_success() {
    let mut stub = Stub::start(
        "",
        &[("STUB_LOAD_UNTIL", "/nonexistent/file"), ("STUB_CHILD", "1")],
    );
    until("loading to begin", || {
        stub.log().contains("Starting to load model")
    });
    stub.signal(Signal::SIGTERM);
    assert_eq!(stub.ended().code(), Some(1));
}

#[test]
fn a_wrong_script_says_so() {
    let mut stub = Stub::start("", &[("STUB_LAOD_MS", "1")]);
    assert_eq!(stub.ended().code(), Some(64));
    assert!(stub.log().contains("unknown variable STUB_LAOD_MS"));
}

#[test]
fn help_and_version_need_no_model() {
    let run = |word: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_stub-engine"))
            .arg(word)
            .output()
            .unwrap();
        assert!(out.status.success());
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(run("--version").trim(), "0.32.0+stub");
    let help = run("--help");
    assert!(help.contains("STUB_LOAD_MS") && help.contains("missing-weights"));
}
