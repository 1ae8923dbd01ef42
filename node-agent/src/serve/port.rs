//! A model's port, as its agent sees it.
//!
//! ```text
//!  made by the agent ── take ──▶ the runner serves; the agent holds a duplicate ── runner gone ──▶ the agent answers 503 ──▶ free
//!                                     ▲ give                                                       until the catalogs have let go
//!                     an agent of a later life ── runner gone before it gave ──▶ bound anew ──────────▲
//! ```
//!
//! So nobody else can take the port of a model that somebody still sends prompts and keys to. The socket is root's, whoever serves on it: no
//! user's can be bound beside it.

use std::fmt;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Uid;
use rustix::net::Shutdown;
use tokio_util::sync::CancellationToken;

use super::ports::{BACKLOG, Ports};
use crate::step::guard::Guard;

/// A runner that was killed lets go of its port a moment after it lets go of us.
const BIND_AGAIN: Duration = Duration::from_secs(2);
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// Connections answered at once on the port of a model that is gone; others wait for their turn.
const PLACES: usize = 64;
/// For answers that are being written when the port is let go of.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What whoever still asks is told.
#[derive(Clone)]
pub struct Notice {
    /// Of the job: without it nothing is told.
    pub key: String,
    /// Its public name.
    pub model: String,
    /// The launch.
    pub generation: String,
    /// Why it is gone.
    pub why: String,
}

/// A port, and what the agent holds of it.
pub struct Port {
    number: u16,
    listener: Option<TcpListener>,
    answering: Option<CancellationToken>,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({})", self.number)
    }
}

impl Port {
    /// One that the agent has just `made`, or one of a former life that its runner will give back.
    pub fn new(number: u16, made: Option<TcpListener>) -> Self {
        Self {
            number,
            listener: made,
            answering: None,
        }
    }

    /// For the runner, which serves from now on. The error is one line.
    pub fn for_runner(&mut self, ports: &Ports) -> Result<OwnedFd, String> {
        self.answer_no_more();
        let listener = self.hold(ports).and_then(TcpListener::try_clone);
        listener
            .map(OwnedFd::from)
            .map_err(|e| format!("port {}: {e}", self.number))
    }

    /// The listener; bound anew if it was a former agent's and its runner has not given it back.
    fn hold(&mut self, ports: &Ports) -> std::io::Result<&TcpListener> {
        match &mut self.listener {
            Some(listener) => Ok(listener),
            none => Ok(none.insert(ports.bind(self.number)?)),
        }
    }

    /// The runner gives a former agent's listener back. The error is one line.
    pub fn take_back(&mut self, given: OwnedFd) -> Result<(), String> {
        if self.listener.is_some() {
            return Ok(());
        }
        let owner = nix::sys::stat::fstat(&given).map_err(|e| e.to_string())?.st_uid;
        let listens = getsockopt(&given, sockopt::AcceptConn).is_ok_and(|listens| listens);
        let listener = TcpListener::from(given);
        let port = listener.local_addr().map(|address| address.port()).ok();
        // Made by an agent: a user can make no socket that is root's, and give none of his away.
        if !listens || port != Some(self.number) || owner != Uid::effective().as_raw() {
            return Err(format!(
                "this is not the listener of port {} that an agent made",
                self.number
            ));
        }
        self.listener = Some(listener);
        Ok(())
    }

    /// Nobody serves any more: whoever still asks is told so, until [`Port::let_go`] or the next runner.
    pub fn answer(&mut self, notice: Notice, ports: Arc<Ports>) {
        if self.answering.is_some() {
            return;
        }
        let (stop, number) = (CancellationToken::new(), self.number);
        let held = self.hold(&ports).and_then(|held| {
            // Should the runner have shut it, it listens again; else this changes nothing.
            rustix::net::listen(held, BACKLOG)?;
            held.try_clone()
        });
        let stopped = stop.clone();
        let answer = move || {
            let listener = held.or_else(|_| bind_again(&ports, number, &stopped));
            let answered = listener.and_then(|listener| answer(listener, &notice, &stopped));
            if let Err(e) = answered {
                tracing::error!(
                    generation = notice.generation,
                    port = number,
                    "the port of a model that is gone cannot be held ({e}); whoever has it now may get requests for it until the catalogs let go"
                );
            }
        };
        // A thread of its own: the runner's user has the same socket, and could make our accept block.
        match std::thread::Builder::new()
            .name(format!("port-{number}"))
            .spawn(answer)
        {
            Ok(_) => self.answering = Some(stop),
            Err(e) => tracing::error!(port = number, "no thread to answer on it: {e}"),
        }
    }

    fn answer_no_more(&mut self) {
        if let Some(stop) = self.answering.take() {
            stop.cancel();
        }
    }

    /// The port is free again, whoever else still has its socket: nobody listens on it from here on, not even a process that was given it
    /// and lives on.
    pub fn let_go(mut self) {
        self.answer_no_more();
        if let Some(listener) = &self.listener {
            let _ = rustix::net::shutdown(listener, Shutdown::Both);
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.answer_no_more();
    }
}

fn bind_again(ports: &Ports, port: u16, stopped: &CancellationToken) -> std::io::Result<TcpListener> {
    let until = Instant::now() + BIND_AGAIN;
    loop {
        match ports.bind(port) {
            Err(_) if Instant::now() < until && !stopped.is_cancelled() => std::thread::sleep(BIND_PAUSE),
            bound => return bound,
        }
    }
}

fn answer(listener: TcpListener, notice: &Notice, stopped: &CancellationToken) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let Notice {
            key,
            model,
            generation,
            why,
        } = notice;
        let guard = Guard::without_engine(listener, PLACES, key, model, generation, why)?;
        stopped.cancelled().await;
        guard.close(LAST_WORDS).await;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Agent, PortRange};
    use reqwest::StatusCode;

    /// Ports that no other test uses.
    fn ports(first: u16) -> Arc<Ports> {
        let config = Agent {
            ports: PortRange {
                first,
                last: first + 9,
            },
            bind_address: "127.0.0.1".into(),
            ..Default::default()
        };
        Arc::new(Ports::new(&config))
    }

    fn notice() -> Notice {
        Notice {
            key: "sk-test".into(),
            model: "tiny".into(),
            generation: "7.0.1-a".into(),
            why: "its runner was killed".into(),
        }
    }

    async fn ask(port: u16, key: &str) -> reqwest::Response {
        let request =
            crate::http_client::plain().post(format!("http://127.0.0.1:{port}/v1/chat/completions"));
        let answer = request
            .bearer_auth(key)
            .body("{}")
            .timeout(Duration::from_secs(20))
            .send();
        answer.await.expect("an answer")
    }

    async fn is_told_that_it_is_gone(port: u16) {
        let answer = ask(port, "sk-test").await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.headers().contains_key("retry-after"));
        assert_eq!(answer.headers()["connection"], "close");
        let text = answer.text().await.unwrap();
        assert!(text.contains("its runner was killed"), "{text}");
    }

    /// A listener is gone once its last holder is; the answering thread is one.
    async fn is_free(ports: &Ports, port: u16) {
        let end = Instant::now() + Duration::from_secs(20);
        while ports.bind(port).is_err() {
            assert!(Instant::now() < end, "port {port} is still taken");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn the_port_of_a_dead_runner_answers_and_nobody_takes_it_until_it_is_let_go_of() {
        let ports = ports(28120);
        let given = ports.take("a").unwrap();
        let (number, mut port) = (given.port, Port::new(given.port, Some(given.listener)));
        let runner = TcpListener::from(port.for_runner(&ports).unwrap());
        let waiting = tokio::spawn(is_told_that_it_is_gone(number));
        assert!(ports.bind(number).is_err());
        drop(runner);
        assert!(ports.bind(number).is_err());
        port.answer(notice(), ports.clone());
        waiting
            .await
            .expect("one that nobody had accepted yet is told as well");
        is_told_that_it_is_gone(number).await;
        assert_eq!(ask(number, "sk-other").await.status(), StatusCode::UNAUTHORIZED);
        port.let_go();
        is_free(&ports, number).await;
    }

    #[tokio::test]
    async fn a_runner_that_shuts_its_port_keeps_nobody_from_being_told() {
        let ports = ports(28130);
        let given = ports.take("a").unwrap();
        let (number, mut port) = (given.port, Port::new(given.port, Some(given.listener)));
        let runner = TcpListener::from(port.for_runner(&ports).unwrap());
        rustix::net::shutdown(&runner, Shutdown::Both).unwrap();
        port.answer(notice(), ports.clone());
        is_told_that_it_is_gone(number).await;
        port.let_go();
        // Still in the hands of that runner's user, and of no use to him.
        is_free(&ports, number).await;
        drop(runner);
    }

    #[tokio::test]
    async fn a_user_who_makes_our_accept_block_gains_nothing() {
        let ports = ports(28140);
        let given = ports.take("a").unwrap();
        let (number, mut port) = (given.port, Port::new(given.port, Some(given.listener)));
        let runner = TcpListener::from(port.for_runner(&ports).unwrap());
        port.answer(notice(), ports.clone());
        is_told_that_it_is_gone(number).await;
        // The flag is the open socket's, not the descriptor's: the thread that answers hangs in its next accept but one.
        runner.set_nonblocking(false).unwrap();
        let _connected = std::net::TcpStream::connect(("127.0.0.1", number)).unwrap();
        port.let_go();
        is_free(&ports, number).await;
    }

    #[tokio::test]
    async fn another_agent_gets_the_port_back_or_binds_it_anew() {
        let ports = ports(28150);
        let given = ports.take("a").unwrap();
        let (number, mut first) = (given.port, Port::new(given.port, Some(given.listener)));
        let runner = TcpListener::from(first.for_runner(&ports).unwrap());
        drop(first);
        let mut second = Port::new(number, None);
        let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = std::net::TcpStream::connect(stranger.local_addr().unwrap()).unwrap();
        let other = tempfile::tempfile().unwrap();
        for wrong in [stranger.into(), connected.into(), other.into()] {
            let why = second.take_back(wrong).unwrap_err();
            assert!(why.contains(&number.to_string()), "{why}");
        }
        second.take_back(runner.into()).unwrap();
        second.answer(notice(), ports.clone());
        is_told_that_it_is_gone(number).await;
        drop(second);
        is_free(&ports, number).await;

        let mut third = Port::new(number, None);
        third.answer(notice(), ports.clone());
        is_told_that_it_is_gone(number).await;
        // Another attempt of the same launch.
        drop(TcpListener::from(third.for_runner(&ports).unwrap()));
        third.let_go();
        is_free(&ports, number).await;
    }
}
