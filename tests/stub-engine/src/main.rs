//! A stub that stands where `vllm serve` stands and speaks its HTTP surface, with scripted delays and faults.
//!
//! ```text
//! STUB_LOAD_MS=200 STUB_TOKEN_MS=5 stub-engine serve MODEL --uds DIR/v.sock --served-model-name NAME …
//! ```
//!
//! The command line is vLLM's: known flags are accepted (`flags.rs`), a few are obeyed (`args.rs`), an unknown one is
//! refused in argparse's words with code 2. What vLLM would do with time, memory and a GPU is scripted by `STUB_*`
//! variables; `stub-engine --help` prints them all from the one table in `script.rs`. Faults can also be set while it
//! runs, at `/_stub/…` on the same socket (`control.rs`).
//!
//! Where vLLM 0.32's behaviour was measured or read, the stub does the same: the address is bound first and answers
//! only when ready; SIGTERM with `--shutdown-timeout 0` ends streams with `abort` and `[DONE]`, with N lets them
//! finish for N seconds, and exits 0 (connections are let in meanwhile, a new request comes back aborted); the exit
//! code is 0 too when the engine process dies; `--api-key` guards `/v1` alone; the socket's file and `vllm_dist_*`
//! stay. Not measured: SIGTERM while loading (code 1 here). `/pause` and `/resume` need vLLM's development mode; here
//! they are always there, for tests of what a proxy lets through.
//!
//! `/v1/chat/completions` takes a body of any size in bounded memory: up to 4 MiB is parsed, a larger one is counted
//! and dropped. Every answer to a POST says in `x-stub-body-bytes` how many bytes arrived.

mod args;
mod ask;
mod child;
mod control;
mod engine;
mod failure;
mod flags;
mod generate;
mod listen;
mod load;
mod log;
mod metrics;
mod pooling;
mod reply;
mod requests;
mod route;
mod script;
mod serve;
mod shm;

use std::process::exit;

use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;

use script::{BAD_SCRIPT, Ending, Script};

/// What `/version` says.
const VERSION: &str = "0.32.0+stub";

fn main() {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some("serve") => serve(words.collect()),
        Some(child::VERB) => {
            if let Err(error) = child::run(words) {
                fail(1, format_args!("stub-engine: engine process: {error}"));
            }
        }
        Some("-v" | "--version") => println!("{VERSION}"),
        Some("-h" | "--help") => help(),
        other => {
            let shown = other.unwrap_or("");
            fail(
                2,
                format_args!(
                    "vllm: error: argument subparser: invalid choice: '{shown}' (choose from serve)"
                ),
            );
        }
    }
}

fn serve(words: Vec<String>) {
    if words.iter().any(|w| w == "--help" || w == "-h") {
        return help();
    }
    let script = Script::from_vars(std::env::vars_os().filter_map(|(k, v)| {
        // Others' variables may hold anything; ours are plain text.
        Some((k.into_string().ok()?, v.into_string().ok()?))
    }));
    let script = script.unwrap_or_else(|text| fail(BAD_SCRIPT, format_args!("stub-engine: {text}")));
    let options = args::parse(words).unwrap_or_else(|refused| fail(2, refused.0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ending = runtime.and_then(|runtime| runtime.block_on(serve::live(options, script)));
    match ending {
        Ok(Ending::Code(code)) => exit(i32::from(code)),
        Ok(Ending::Signal(signal)) => die_of(signal),
        Err(error) => fail(1, format_args!("stub-engine: {error}")),
    }
}

fn fail(code: i32, text: impl std::fmt::Display) -> ! {
    log::line(text);
    exit(code)
}

/// Dies of a signal for real, so that the parent's wait status says so.
#[allow(unsafe_code)]
fn die_of(fatal: Signal) -> ! {
    if fatal != Signal::SIGKILL {
        // SAFETY: the default action is no handler of ours, so nothing can run in a signal's context.
        let reset = unsafe { signal(fatal, SigHandler::SigDfl) };
        if let Err(error) = reset {
            fail(1, format_args!("stub-engine: can't reset {fatal}: {error}"));
        }
    }
    let sent = kill(Pid::this(), fatal);
    fail(1, format_args!("stub-engine: outlived {fatal} ({sent:?})"))
}

fn help() {
    println!("usage: stub-engine serve [model_tag] [vLLM's options]\n");
    println!("Stands where `vllm serve` stands; scripted by these variables:\n");
    for (name, meaning) in script::VARIABLES {
        println!("  {name:<26} {meaning}");
    }
    println!("\nSTUB_FAIL is one of: {}", failure::Failure::names());
    println!("\nWhile it runs: GET /_stub/state, GET /_stub/requests, POST /_stub/set, POST /_stub/exit");
}
