//! What the driver says of GPUs: read by a process of its own, kept here with its age.
//!
//! ```text
//!   Running ──no frame for hang_after──▶ hung ──frame──▶ Running
//!      │                                  └──for too long──▶ killed; waited for until it is gone
//!      ├──exit──▶ waits (1 s … 1 min) ──▶ Running
//!      └──quiesce──▶ ended, gone ──resume, or after a while──▶ Running
//! ```
//!
//! There is never a second process while the first one is not gone: a call that hangs in the kernel keeps it there, and others would hang too.

mod calls;
mod child;
mod fields;
mod known;
mod mig;
mod read;
mod xids;

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use slurm_serve_proto::v1;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

pub use self::child::{ChildArgs, main};
pub use self::known::Gpus;

use self::child::{ABSENT, CHANGED};
use self::known::Known;
use crate::config;

/// Frames are some KiB; thousands of processes on a card make more.
const LONGEST_FRAME: usize = 16 << 20;
/// Between the end of one process and the start of the next.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A process that hung for so many times `hang_after` is killed: a lock in the library may be cured by that, a wait in the kernel is not.
const PATIENCE: u32 = 6;
/// How long a killed process may take to be gone before somebody who waits for it is told that it is not.
const GONE: Duration = Duration::from_secs(10);
/// Quiesce ends by itself after this, unless it says otherwise.
const QUIET: Duration = Duration::from_secs(600);

/// A wish, and where its answer goes.
enum Wish {
    Quiesce(Duration, oneshot::Sender<bool>),
    Resume,
    Xid(String, u32),
}

/// The process and what it said last.
#[derive(Debug)]
pub struct Keeper {
    latest: watch::Receiver<Arc<Gpus>>,
    wishes: mpsc::Sender<Wish>,
}

impl Keeper {
    /// Starts it. `program` is this program's file.
    pub fn start(program: std::path::PathBuf, config: &config::Telemetry) -> Self {
        let (told, latest) = watch::channel(Arc::new(Gpus::none()));
        let (wishes, heard) = mpsc::channel(8);
        let keeping = Keeping {
            program,
            interval: config.interval,
            hang_after: config.hang_after,
            library: config.nvml_library.clone(),
            told,
            wishes: heard,
            known: Known::default(),
        };
        tokio::spawn(keeping.run());
        Self { latest, wishes }
    }

    /// What was read last, and each new reading.
    pub fn latest(&self) -> watch::Receiver<Arc<Gpus>> {
        self.latest.clone()
    }

    /// Ends the process, and with it each handle; it begins again after `time`. False: it does not end.
    pub async fn quiesce(&self, time: Option<Duration>) -> bool {
        let (answer, answered) = oneshot::channel();
        let wish = Wish::Quiesce(time.unwrap_or(QUIET), answer);
        self.wishes.send(wish).await.is_ok() && answered.await.unwrap_or(false)
    }

    /// An Xid of that GPU of which the kernel's log told, and the driver's events did not.
    pub async fn xid(&self, uuid: &str, xid: u32) {
        let _ = self.wishes.send(Wish::Xid(uuid.to_owned(), xid)).await;
    }

    /// Begins again.
    pub async fn resume(&self) {
        let _ = self.wishes.send(Wish::Resume).await;
    }
}

struct Keeping {
    program: std::path::PathBuf,
    interval: Duration,
    hang_after: Duration,
    library: std::path::PathBuf,
    told: watch::Sender<Arc<Gpus>>,
    wishes: mpsc::Receiver<Wish>,
    known: Known,
}

/// Why a process is not listened to any more.
enum Over {
    /// It ended, with this exit code.
    Ended(Option<i32>),
    /// It is to end.
    Quiesce(Duration, oneshot::Sender<bool>),
    /// It hangs.
    Hung,
    /// Nobody wants its frames any more.
    Dropped,
}

impl Keeping {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let started = Instant::now();
            let over = match self.spawn() {
                Ok((mut child, frames)) => {
                    let over = self.listen(&mut child, frames).await;
                    match over {
                        Over::Dropped => return,
                        Over::Ended(_) => over,
                        over => {
                            let gone = self.end(&mut child).await;
                            if let Over::Quiesce(time, answer) = over {
                                self.tell_driver(v1::DriverState::Quiesced, "let go of, by request");
                                let _ = answer.send(gone);
                                self.quiet(time).await;
                                pause = FIRST_PAUSE;
                                continue;
                            }
                            over
                        }
                    }
                }
                Err(e) => {
                    let text = format!("{}: {e}", self.program.display());
                    self.tell_driver(v1::DriverState::Failed, &text);
                    Over::Ended(None)
                }
            };
            if started.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            let wait = match over {
                Over::Ended(Some(code)) if code == i32::from(ABSENT) => LONGEST_PAUSE,
                Over::Ended(Some(code)) if code == i32::from(CHANGED) => FIRST_PAUSE,
                Over::Ended(code) => {
                    if code.is_none_or(|code| code != i32::from(child::FAILED)) {
                        let how = code.map_or("by a signal".into(), |code| format!("with exit code {code}"));
                        let text =
                            format!("the process that reads the driver ended {how}; it is started again");
                        self.tell_driver(v1::DriverState::Failed, &text);
                    }
                    pause
                }
                _ => pause,
            };
            pause = (pause * 2).min(LONGEST_PAUSE);
            if !self.wait(wait).await {
                return;
            }
        }
    }

    fn spawn(&self) -> std::io::Result<(Child, Frames)> {
        let mut command = Command::new(&self.program);
        command
            .arg("gpus")
            .arg(format!("--interval-ms={}", self.interval.as_millis()))
            .arg(format!("--hang-after-ms={}", self.hang_after.as_millis()));
        if !self.library.as_os_str().is_empty() {
            command.arg("--library").arg(&self.library);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let Some(stdout) = child.stdout.take() else {
            return Err(std::io::Error::other("no pipe"));
        };
        let codec = LengthDelimitedCodec::builder()
            .max_frame_length(LONGEST_FRAME)
            .new_codec();
        Ok((child, FramedRead::new(stdout, codec)))
    }

    /// Takes frames until something else is to be done.
    async fn listen(&mut self, child: &mut Child, mut frames: Frames) -> Over {
        // Its watchdog speaks first, and names the call.
        let silence = self.hang_after + self.interval + 2 * child::LOOK;
        let mut fresh = Instant::now();
        loop {
            tokio::select! {
                wish = self.wishes.recv() => match wish {
                    None => return Over::Dropped,
                    Some(Wish::Resume) => {}
                    Some(Wish::Xid(uuid, xid)) => self.known.xid(&uuid, xid),
                    Some(Wish::Quiesce(time, answer)) => return Over::Quiesce(time, answer),
                },
                frame = tokio::time::timeout(silence, frames.next()) => match frame {
                    Ok(Some(Ok(bytes))) => match prost::Message::decode(bytes) {
                        Ok(frame) => {
                            if self.known.take(frame) {
                                fresh = Instant::now();
                            }
                            self.tell();
                        }
                        Err(e) => tracing::warn!("a frame of the process that reads the driver is broken: {e}"),
                    },
                    Ok(_) => return Over::Ended(child.wait().await.ok().and_then(|status| status.code())),
                    // Not even its watchdog speaks: it is stopped, or the node is.
                    Err(_) => self.tell_driver(
                        v1::DriverState::Hung,
                        "the process that reads the driver says nothing",
                    ),
                },
            }
            if fresh.elapsed() > self.hang_after * PATIENCE {
                return Over::Hung;
            }
        }
    }

    /// Kills it and waits for it, saying so if that takes long. While it is there nothing else can be done but say so.
    async fn end(&mut self, child: &mut Child) -> bool {
        let _ = child.start_kill();
        if tokio::time::timeout(GONE, child.wait()).await.is_ok() {
            return true;
        }
        let pid = child.id().unwrap_or_default();
        let text =
            format!("process {pid} hangs inside the driver and can't be ended; the node needs a reboot");
        tracing::error!("{text}");
        self.tell_driver(v1::DriverState::Hung, &text);
        false
    }

    /// Waits for Resume, or so long.
    async fn quiet(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            match tokio::time::timeout_at(until, self.wishes.recv()).await {
                Err(_) | Ok(None | Some(Wish::Resume)) => return,
                Ok(Some(Wish::Xid(uuid, xid))) => self.known.xid(&uuid, xid),
                Ok(Some(Wish::Quiesce(_, answer))) => {
                    let _ = answer.send(true);
                }
            }
        }
    }

    /// Between two processes. False: nobody wants it any more.
    async fn wait(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            match tokio::time::timeout_at(until, self.wishes.recv()).await {
                Err(_) | Ok(Some(Wish::Resume)) => return true,
                Ok(None) => return false,
                Ok(Some(Wish::Xid(uuid, xid))) => self.known.xid(&uuid, xid),
                Ok(Some(Wish::Quiesce(time, answer))) => {
                    self.tell_driver(v1::DriverState::Quiesced, "let go of, by request");
                    let _ = answer.send(true);
                    self.quiet(time).await;
                    return true;
                }
            }
        }
    }

    fn tell_driver(&mut self, state: v1::DriverState, text: &str) {
        if self.known.driver(state, text) && state != v1::DriverState::Quiesced {
            tracing::warn!("GPUs: {text}");
        }
        self.tell();
    }

    fn tell(&self) {
        self.told.send_replace(Arc::new(self.known.gpus()));
    }
}

type Frames = FramedRead<ChildStdout, LengthDelimitedCodec>;
