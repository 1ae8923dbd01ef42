//! A peer that closes while we write, with SIGPIPE at its default as in Slurm's helpers: the hook must come back.
//!
//! A program of its own: the signal's disposition belongs to the whole process.
#![allow(unsafe_code)]

use std::os::unix::net::UnixListener;

use slurm_serve_proto::v1::{JobStartedRequest, ServeOptions};
use spank_serve::job_script;
use spank_serve::rpc::{Agent, CallError};

#[test]
fn a_peer_that_hangs_up_does_not_kill_the_process() {
    // SAFETY: SIG_DFL is a valid disposition; no test of this program counts on another.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
        }
    });
    let agent = Agent::at(&socket);
    for _ in 0..200 {
        let request = JobStartedRequest {
            options: Some(ServeOptions {
                model: "tiny".into(),
                // Larger than a socket's buffer, so that it is still being written when the peer goes.
                args: "x".repeat(1 << 20),
                ..ServeOptions::default()
            }),
            ..JobStartedRequest::default()
        };
        assert!(matches!(
            job_script::started(&agent, request),
            Err(CallError::NoAnswer(_))
        ));
    }
}

#[test]
fn nobody_there_and_nobody_answering_both_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let agent = Agent::at(&socket);
    let started = || job_script::started(&agent, JobStartedRequest::default());
    assert!(matches!(started(), Err(CallError::NoAnswer(_))));
    let _silent = UnixListener::bind(&socket).unwrap();
    assert_eq!(
        started(),
        Err(CallError::NoAnswer("no answer within 0.2 s".into()))
    );
}
