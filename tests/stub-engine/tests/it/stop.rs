//! Getting ready, draining, dying, and what stays.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::stub::{Stub, alive, children, until};

#[test]
fn is_bound_at_once_and_answers_only_when_ready() {
    let dir = tempfile::tempdir().unwrap();
    let gate = dir.path().join("go");
    let stub = Stub::start("", &[("STUB_LOAD_UNTIL", gate.to_str().unwrap())]);
    until("the last stage of loading", || {
        stub.log().contains("Capturing CUDA graphs (decode, FULL): 100%")
    });
    assert!(stub.socket().exists());
    assert_eq!(
        UnixStream::connect(stub.socket()).unwrap_err().kind(),
        std::io::ErrorKind::ConnectionRefused
    );
    std::fs::write(gate, "").unwrap();
    until("a connection", || UnixStream::connect(stub.socket()).is_ok());
    assert_eq!(stub.get("/health").status, 200);
    assert!(stub.log().contains("Application startup complete."));
}

#[test]
fn drains_for_the_shutdown_timeout() {
    let mut stub = Stub::ready("--shutdown-timeout 30", &[("STUB_TOKEN_MS", "10")]);
    let mut stream = stub.streaming(60);
    stub.signal(Signal::SIGTERM);
    until("new connections to be refused", || {
        UnixStream::connect(stub.socket()).is_err()
    });
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"59 \"") && rest.contains("\"length\""), "{rest}");
    assert!(rest.ends_with("data: [DONE]\n\n"));
    assert_eq!(stub.ended().code(), Some(0));
    assert!(stub.socket().exists(), "vLLM leaves its socket's file");
}

#[test]
fn aborts_without_a_shutdown_timeout() {
    let mut stub = Stub::ready("", &[("STUB_TOKEN_MS", "100000")]);
    let mut stream = stub.streaming(60);
    stub.signal(Signal::SIGTERM);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("\"abort\"") && rest.ends_with("data: [DONE]\n\n"),
        "{rest}"
    );
    assert_eq!(stub.ended().code(), Some(0));
}

#[test]
fn a_drain_that_takes_too_long_is_aborted() {
    let mut stub = Stub::ready("--shutdown-timeout 1", &[("STUB_TOKEN_MS", "100000")]);
    let mut stream = stub.streaming(60);
    stub.signal(Signal::SIGTERM);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"abort\""), "{rest}");
    assert_eq!(stub.ended().code(), Some(0));
}

#[test]
fn freezes_on_term_until_the_client_goes() {
    let mut stub = Stub::ready("", &[("STUB_TOKEN_MS", "1"), ("STUB_HANG_ON_TERM", "1")]);
    let stream = stub.streaming(100_000);
    stub.signal(Signal::SIGTERM);
    until("the shut-down to begin", || {
        stub.log().contains("shutdown triggered")
    });
    stub.signal(Signal::SIGTERM);
    assert!(stub.child.try_wait().unwrap().is_none());
    drop(stream);
    assert_eq!(stub.ended().code(), Some(0));
}

#[test]
fn a_deaf_one_needs_a_kill() {
    let mut stub = Stub::ready("", &[("STUB_IGNORE_TERM", "1")]);
    stub.signal(Signal::SIGTERM);
    assert_eq!(stub.get("/health").status, 200);
    stub.signal(Signal::SIGKILL);
    assert_eq!(stub.ended().signal(), Some(9));
}

#[test]
fn hangs_but_still_takes_orders() {
    let mut stub = Stub::ready("", &[("STUB_HANG", "all")]);
    let silent = stub.open("GET", "/health", "", "");
    until("the request to arrive", || {
        stub.get("/_stub/requests").body.contains("\"open\"")
    });
    assert_eq!(stub.post("/_stub/set", &json!({ "hang": "none" })).status, 200);
    assert_eq!(crate::stub::Answer::read(silent).status, 200);
    assert_eq!(stub.post("/_stub/exit", &json!({ "code": 0 })).status, 202);
    assert_eq!(stub.ended().code(), Some(0));
}

#[test]
fn ends_as_scripted_after_ready() {
    let script = [("STUB_EXIT_AFTER_READY_MS", "0"), ("STUB_CHILD", "1")];
    let mut stub = Stub::start("", &script);
    assert_eq!(stub.ended().code(), Some(0));
    assert!(stub.log().contains("Application startup complete."));
    let script = [("STUB_EXIT_AFTER_READY_MS", "0"), ("STUB_EXIT_CODE", "SIGILL")];
    assert_eq!(
        Stub::start("", &script).ended().signal(),
        Some(Signal::SIGILL as i32)
    );
}

#[test]
fn an_engine_process_outlives_a_kill_of_its_parent() {
    let mut stub = Stub::ready("", &[("STUB_CHILD", "1")]);
    let engine = children(stub.pid())[0];
    until("its name", || {
        std::fs::read_to_string(format!("/proc/{engine}/comm"))
            .unwrap()
            .starts_with("VLLM::")
    });
    let pid = Pid::from_raw(engine.try_into().unwrap());
    assert_eq!(
        nix::unistd::getsid(Some(pid)),
        nix::unistd::getsid(Some(stub.pid()))
    );
    stub.signal(Signal::SIGKILL);
    stub.ended();
    assert!(alive(engine));
    kill(pid, Signal::SIGKILL).unwrap();
    until("the orphan's end", || !alive(engine));
}

#[test]
fn a_dead_engine_process_ends_the_server_with_0() {
    let script = [
        ("STUB_CHILD", "1"),
        ("STUB_ENGINE_DEATH_MS", "300"),
        ("STUB_TOKEN_MS", "100000"),
    ];
    let mut stub = Stub::ready("", &script);
    let mut stream = stub.streaming(60);
    let engine = children(stub.pid())[0];
    kill(Pid::from_raw(engine.try_into().unwrap()), Signal::SIGKILL).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("EngineCore encountered an issue"), "{rest}");
    assert_eq!(stub.get("/health").status, 503);
    assert_eq!(stub.ended().code(), Some(0));
}

/// The shared memory that a process has mapped.
fn mapped(pid: u32) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let paths = maps
        .lines()
        .filter_map(|l| l.find("/dev/shm/").map(|at| PathBuf::from(&l[at..])));
    paths.collect()
}

#[test]
fn leaves_behind_what_vllm_leaves_behind() {
    let script = [("STUB_LEAVE_BEHIND", "1"), ("STUB_CHILD", "1")];
    let dist = |stub: &Stub| {
        let names = std::fs::read_dir(stub.dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name());
        names
            .filter(|n| n.to_string_lossy().starts_with("vllm_dist_"))
            .count()
    };
    let mut clean = Stub::ready("", &script);
    let segments = mapped(clean.child.id());
    assert_eq!(segments.len(), 2, "{segments:?}");
    clean.signal(Signal::SIGTERM);
    assert_eq!(clean.ended().code(), Some(0));
    assert_eq!(dist(&clean), 1);
    assert!(segments.iter().all(|s| !s.exists()));

    let mut killed = Stub::ready("", &script);
    let engine = children(killed.pid())[0];
    until("the engine process to map them", || mapped(engine).len() == 2);
    let segments = mapped(engine);
    killed.signal(Signal::SIGKILL);
    killed.ended();
    kill(Pid::from_raw(engine.try_into().unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(dist(&killed), 1);
    for segment in segments {
        std::fs::remove_file(&segment).unwrap_or_else(|e| panic!("{}: {e}", segment.display()));
    }
}
