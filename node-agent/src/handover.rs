//! A model's port changes hands. The agent makes the listening socket, the runner serves on it, and an agent that was restarted gets it back:
//! whoever of the two is left holds the port. The one exchange between them that is not gRPC, because descriptors travel over a plain Unix
//! socket alone (SCM_RIGHTS, unix(7)).
//!
//! ```text
//! runner ── `take JOB GENERATION SECRET\n` ──────────────▶ agent        `ok\n` + the listener  or  `no WHY\n`
//! runner ── `give JOB GENERATION SECRET\n` + the listener ▶ agent        `ok\n`                 or  `no WHY\n`
//! ```
//!
//! One connection, one request, one answer. The caller must be the process that is attached as the runner of this generation, and show the
//! secret from its `Welcome`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Both sides answer at once, or are not there.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// A longer line is none of ours.
const LONGEST: usize = 1024;

/// Where the agent that serves `socket` takes and gives ports.
pub fn beside(socket: &Path) -> PathBuf {
    socket.with_extension("ports")
}

/// What a runner wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// The listener of its model.
    Take,
    /// Its agent to hold the listener as well.
    Give,
}

/// Which launch it is about, and what proves it.
#[derive(Clone, PartialEq, Eq)]
pub struct Claim {
    /// Slurm's job id.
    pub job_id: u32,
    /// Of the runner.
    pub generation: String,
    /// From its `Welcome`.
    pub secret: String,
}

// Written by hand so that no log can ever hold a secret.
impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Claim({}, …)", self.generation)
    }
}

/// The runner's side: gets the listener of its model. The error is one line.
pub async fn take(socket: &Path, claim: &Claim) -> Result<TcpListener, String> {
    let (answer, listener) = exchange(socket, Wish::Take, claim, None).await?;
    match (answer.as_str(), listener) {
        ("ok", Some(listener)) => Ok(TcpListener::from(listener)),
        ("ok", None) => Err("the agent sent no listener; is its limit of open files reached?".into()),
        (no, _) => Err(refusal(no)),
    }
}

/// The runner's side: lets its agent hold the listener as well. The error is one line.
pub async fn give(socket: &Path, claim: &Claim, listener: &TcpListener) -> Result<(), String> {
    match exchange(socket, Wish::Give, claim, Some(listener.as_fd())).await? {
        (answer, _) if answer == "ok" => Ok(()),
        (no, _) => Err(refusal(&no)),
    }
}

fn refusal(answer: &str) -> String {
    answer.strip_prefix("no ").unwrap_or("not understood").to_owned()
}

async fn exchange(
    socket: &Path,
    wish: Wish,
    claim: &Claim,
    listener: Option<BorrowedFd<'_>>,
) -> Result<(String, Option<OwnedFd>), String> {
    let Claim {
        job_id,
        generation,
        secret,
    } = claim;
    let verb = match wish {
        Wish::Take => "take",
        Wish::Give => "give",
    };
    let exchanged = async {
        let stream = UnixStream::connect(socket).await?;
        send(
            &stream,
            &format!("{verb} {job_id} {generation} {secret}"),
            listener,
        )
        .await?;
        receive(&stream).await
    };
    let shown = socket.display();
    match tokio::time::timeout(PATIENCE, exchanged).await {
        Ok(answer) => answer.map_err(|e| format!("{shown}: {e}")),
        Err(_) => Err(format!("{shown}: no answer within {} s", PATIENCE.as_secs())),
    }
}

/// The agent's side: what a runner wants, and the descriptor that came with it.
pub async fn hear(stream: &UnixStream) -> io::Result<(Wish, Claim, Option<OwnedFd>)> {
    let (line, listener) = receive(stream).await?;
    let words: Vec<&str> = line.split(' ').collect();
    let wish = match words.first() {
        Some(&"take") => Some(Wish::Take),
        Some(&"give") => Some(Wish::Give),
        _ => None,
    };
    match (wish, words.as_slice()) {
        (Some(wish), [_, job_id, generation, secret]) => {
            let job_id = job_id.parse().map_err(|_| not_ours())?;
            let claim = Claim {
                job_id,
                generation: (*generation).to_owned(),
                secret: (*secret).to_owned(),
            };
            Ok((wish, claim, listener))
        }
        _ => Err(not_ours()),
    }
}

/// The agent's side: the answer, with the listener if there is one to be had.
pub async fn answer(stream: &UnixStream, answer: Result<Option<OwnedFd>, String>) -> io::Result<()> {
    match answer {
        Ok(listener) => send(stream, "ok", listener.as_ref().map(AsFd::as_fd)).await,
        Err(why) => send(stream, &format!("no {why}"), None).await,
    }
}

fn not_ours() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "not what a runner asks or an agent answers",
    )
}

async fn send(stream: &UnixStream, line: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let line = format!("{line}\n");
    let sent = stream
        .async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if let Some(descriptor) = &descriptor {
                control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor)));
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            Ok(sendmsg(
                stream,
                &[IoSlice::new(line.as_bytes())],
                &mut control,
                flags,
            )?)
        })
        .await?;
    // A line this short goes into an empty socket whole, or not at all.
    if sent == line.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// One line, and the descriptor that came with it. Descriptors beyond the first are closed by the kernel, for want of room.
async fn receive(stream: &UnixStream) -> io::Result<(String, Option<OwnedFd>)> {
    let (mut line, mut descriptor) = (Vec::new(), None);
    while line.last() != Some(&b'\n') {
        if line.len() > LONGEST {
            return Err(not_ours());
        }
        let mut bytes = [0; LONGEST];
        let read = stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
                let read = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?.bytes;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                        descriptor = descriptors.last();
                    }
                }
                Ok(read)
            })
            .await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(&bytes[..read]);
    }
    line.pop();
    let line = String::from_utf8(line).map_err(|_| not_ours())?;
    Ok((line, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim {
            job_id: 7,
            generation: "7.0.1-a".into(),
            secret: "s3cret".into(),
        }
    }

    #[tokio::test]
    async fn a_listener_goes_there_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = beside(&folder.path().join("agent.sock"));
        let agent = tokio::net::UnixListener::bind(&path).unwrap();
        let made = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = made.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (stream, _) = agent.accept().await.unwrap();
            let heard = hear(&stream).await.unwrap();
            assert_eq!((heard.0, heard.1, heard.2.is_none()), (Wish::Take, claim(), true));
            answer(&stream, Ok(Some(made.into()))).await.unwrap();
            let (stream, _) = agent.accept().await.unwrap();
            let (wish, _, given) = hear(&stream).await.unwrap();
            assert_eq!(wish, Wish::Give);
            answer(&stream, Ok(None)).await.unwrap();
            let (stream, _) = agent.accept().await.unwrap();
            hear(&stream).await.unwrap();
            answer(&stream, Err("not yours".into())).await.unwrap();
            TcpListener::from(given.unwrap()).local_addr().unwrap()
        });
        let taken = take(&path, &claim()).await.unwrap();
        assert_eq!(taken.local_addr().unwrap(), address);
        give(&path, &claim(), &taken).await.unwrap();
        assert_eq!(take(&path, &claim()).await.unwrap_err(), "not yours");
        assert_eq!(serving.await.unwrap(), address);
    }

    #[tokio::test]
    async fn rubbish_is_no_request_and_an_agent_that_is_not_there_is_said() {
        for rubbish in [
            "",
            "take",
            "take x y z",
            "sell 7 7.0.1-a s",
            "take 7 7.0.1-a s more",
        ] {
            let (here, there) = UnixStream::pair().unwrap();
            send(&here, rubbish, None).await.unwrap();
            assert!(hear(&there).await.is_err(), "{rubbish:?}");
        }
        let (here, there) = UnixStream::pair().unwrap();
        here.try_write(&[b'x'; 4 * LONGEST]).unwrap();
        assert!(hear(&there).await.is_err(), "no end of it");
        let why = take(Path::new("/nonexistent/agent.ports"), &claim())
            .await
            .unwrap_err();
        assert!(why.starts_with("/nonexistent/agent.ports: "), "{why}");
    }
}
