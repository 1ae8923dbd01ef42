//! An agent without an engine, for trying the plugin in a lab by hand:
//! `fake_agent SOCKET ready|fail SECONDS`, or `fake_agent SOCKET silent|hangup`. Prints what the plugin says to it.
//!
//! Once `SOCKET.ending` exists it answers that the job is being ended.
//!
//! `docs/plugin.md` has the cases that it was made for.

#[path = "../tests/agent/mod.rs"]
mod agent;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agent::Books;
use slurm_serve_proto::v1::ModelState;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [socket, "silent"] => {
            let _listener = listen(Path::new(socket));
            std::thread::park();
        }
        [socket, "hangup"] => {
            for stream in listen(Path::new(socket)).incoming() {
                println!("hung up on a caller");
                drop(stream);
            }
        }
        [socket, how @ ("ready" | "fail"), seconds] => {
            let seconds = seconds.parse().expect("SECONDS is a number");
            serve(Path::new(socket), *how == "ready", Duration::from_secs(seconds));
        }
        _ => {
            eprintln!("usage: fake_agent SOCKET ready|fail SECONDS | fake_agent SOCKET silent|hangup");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn listen(socket: &Path) -> UnixListener {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).expect("the socket can be bound");
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666)).expect("the socket is ours");
    listener
}

/// Every launch loads for `loading`, then is ready or has failed.
fn serve(socket: &Path, well: bool, loading: Duration) -> ! {
    let books = Books::new(&["HF_*"]);
    books.state(ModelState::Requested, "");
    let _agent = agent::serve(socket, books.clone());
    let (mut printed, mut launched, mut since) = ([0; 6], 0, Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let lines = books.heard(|heard| {
            let lists: [Vec<String>; 6] = [
                heard
                    .started
                    .iter()
                    .map(|said| format!("JobStarted {said:?}"))
                    .collect(),
                heard
                    .opened
                    .iter()
                    .map(|said| format!("OpenModel {said:?}"))
                    .collect(),
                heard
                    .launched
                    .iter()
                    .map(|said| format!("LaunchModel {said:?}"))
                    .collect(),
                heard
                    .ending
                    .iter()
                    .map(|said| format!("JobEnding {said:?}"))
                    .collect(),
                heard
                    .ended
                    .iter()
                    .map(|said| format!("JobEnded {said:?}"))
                    .collect(),
                Vec::new(),
            ];
            lists
        });
        for (list, printed) in lines.iter().zip(&mut printed) {
            list[*printed..].iter().for_each(|line| println!("{line}"));
            *printed = list.len();
        }
        if socket.with_extension("sock.ending").exists() {
            books.tell(|told| told.job_ending = true);
        }
        if lines[2].len() > launched {
            (launched, since) = (lines[2].len(), Instant::now());
        }
        if launched == 0 {
            continue;
        }
        match since.elapsed() {
            age if age < loading => books.state(ModelState::Loading, &format!("{} s of work", age.as_secs())),
            _ if well => books.state(ModelState::Ready, ""),
            _ => books.failed(
                "no weights at /scratch/w",
                "check `source` in the recipe",
                "/home/alice/serve.log",
            ),
        }
    }
}
