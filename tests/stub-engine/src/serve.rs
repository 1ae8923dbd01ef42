//! The life of the process: bind, load, listen, serve, and every way to end.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::process::Child;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::Options;
use crate::engine::{Engine, Phase};
use crate::failure::Failure;
use crate::listen::{Bound, Listener};
use crate::log::{self, Who};
use crate::script::{Ending, Hang, Script};
use crate::shm::Segments;
use crate::{child, load, route};

/// From aborting what is in flight to the exit at the latest; vLLM took up to 2 s.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// How long the freeze of `STUB_HANG_ON_TERM` lasts at most.
const FREEZE_LIMIT: Duration = Duration::from_secs(600);

/// Lives from start to end; how to end is the answer. Errors are the stub's own, not scripted.
pub async fn live(options: Options, script: Script) -> io::Result<Ending> {
    let mut stop = Stop::new(script.ignore_term)?;
    if let Some(failure) = script.fail.filter(|f| f.stage().is_none()) {
        failure.tell(&options);
        return Ok(Ending::Code(failure.code()));
    }
    let bound = match Bound::new(&options) {
        Ok(bound) => bound,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Failure::PortInUse.tell(&options);
            return Ok(Ending::Code(Failure::PortInUse.code()));
        }
        Err(error) => return Err(error),
    };
    let mut remains = Remains::make(&script)?;
    let ending = tokio::select! {
        biased;
        () = stop.asked() => {
            log::line("KeyboardInterrupt: terminated");
            Err(Ending::Code(1))
        }
        loaded = load::load(&options, &script) => loaded,
    };
    let ending = match ending {
        Ok(()) => serve(bound, options, script, &mut stop, &mut remains).await?,
        Err(ending) => ending,
    };
    if let Ending::Code(_) = ending {
        remains.tidy().await;
    }
    Ok(ending)
}

/// SIGTERM and SIGINT.
struct Stop {
    term: Signal,
    int: Signal,
    deaf: bool,
}

impl Stop {
    fn new(deaf: bool) -> io::Result<Self> {
        let on = |kind| signal(kind);
        Ok(Self {
            term: on(SignalKind::terminate())?,
            int: on(SignalKind::interrupt())?,
            deaf,
        })
    }

    /// Returns once a signal asks to stop; never, if deaf.
    async fn asked(&mut self) {
        loop {
            tokio::select! { _ = self.term.recv() => {}, _ = self.int.recv() => {} }
            if !self.deaf {
                return;
            }
        }
    }
}

/// What outlives the process unless it is tidied up.
struct Remains {
    child: Option<Child>,
    segments: Option<Segments>,
}

impl Remains {
    fn make(script: &Script) -> io::Result<Self> {
        let segments = script.leave_behind.map(Segments::make).transpose()?;
        let paths = segments.as_ref().map(Segments::paths);
        let child = script
            .child
            .then(|| child::start(paths.as_ref().map_or(&[], |p| &p[..])))
            .transpose()?;
        Ok(Self { child, segments })
    }

    /// Returns once the engine process is gone; never, if there is none.
    async fn engine_gone(&mut self) {
        match &mut self.child {
            // Either it has ended or it can't be watched; both mean that it is of no use any more.
            Some(child) => drop(child.wait().await),
            None => std::future::pending().await,
        }
        self.child = None;
    }

    async fn tidy(self) {
        if let Some(mut child) = self.child
            && let Err(error) = child.kill().await
        {
            log::line(format_args!("stub-engine: can't end the engine process: {error}"));
        }
        if let Some(segments) = self.segments {
            segments.remove();
        }
    }
}

async fn serve(
    bound: Bound,
    options: Options,
    script: Script,
    stop: &mut Stop,
    remains: &mut Remains,
) -> io::Result<Ending> {
    let (engine, mut ordered) = Engine::new(options, script);
    let address = bound.address.clone();
    let listener = bound.listen()?;
    log::uvicorn("Application startup complete.");
    log::uvicorn(format_args!("Uvicorn running on {address}"));
    schedule(&engine);
    let connections = GracefulShutdown::new();
    tokio::select! {
        never = accept(&engine, &listener, &connections) => match never {},
        Some(ending) = ordered.recv() => return Ok(ending),
        never = watch_engine(&engine, remains) => match never {},
        () = stop.asked() => {}
    }
    tokio::select! {
        () = shut_down(&engine, listener, connections) => Ok(Ending::Code(0)),
        Some(ending) = ordered.recv() => Ok(ending),
        never = watch_engine(&engine, remains) => match never {},
    }
}

/// Lets connections in, for as long as it is polled.
async fn accept(engine: &Arc<Engine>, listener: &Listener, connections: &GracefulShutdown) -> Infallible {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => connect(engine, connections, stream, peer),
            Err(error) => {
                // Out of descriptors, most likely: a pause keeps this from spinning.
                log::line(format_args!("stub-engine: can't accept: {error}"));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Notes the engine process's death and starts the clock to the exit that follows it.
async fn watch_engine(engine: &Engine, remains: &mut Remains) -> Infallible {
    remains.engine_gone().await;
    let text = "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.";
    log::error(Who::Api, "core_client.py:600", text);
    engine.phase.send_replace(Phase::Dead);
    engine.end_after(engine.script.engine_death, Ending::Code(0));
    std::future::pending().await
}

fn connect(
    engine: &Arc<Engine>,
    connections: &GracefulShutdown,
    stream: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    peer: String,
) {
    let engine = Arc::clone(engine);
    let peer: Arc<str> = peer.into();
    let answer = service_fn(move |request| route::handle(Arc::clone(&engine), Arc::clone(&peer), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(stream, answer);
    let connection = connections.watch(connection);
    // A broken connection is the client's affair; its requests have been dropped with it.
    tokio::spawn(async move { drop(connection.await) });
}

/// Starts the clocks that begin at ready.
fn schedule(engine: &Arc<Engine>) {
    if let Some((after, ending)) = engine.script.exit_after_ready {
        engine.end_after(after, ending);
    }
    if let Some((after, hang)) = engine.script.hang_after_ready {
        let engine = Arc::clone(engine);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            engine.live.send_modify(|live| live.hang = hang);
        });
    }
}

/// SIGTERM's path, in vLLM's order: the engine ends first, with what is in flight finished for as long as
/// `--shutdown-timeout` says and aborted then, while connections are still let in; the HTTP server ends after it.
async fn shut_down(engine: &Arc<Engine>, listener: Listener, connections: GracefulShutdown) {
    let wait = Duration::from_secs(engine.options.shutdown_timeout);
    if engine.script.hang_on_term && wait.is_zero() {
        engine.live.send_modify(|live| live.hang = Hang::All);
        log::info(
            Who::Api,
            "launcher.py:240",
            "[shutdown] API server: shutdown triggered",
        );
        drop(listener);
        // Whether the clients went or the limit passed, the end is the same.
        let _ = tokio::time::timeout(FREEZE_LIMIT, connections.shutdown()).await;
        return;
    }
    enter(
        engine,
        if wait.is_zero() {
            Phase::Aborting
        } else {
            Phase::Draining
        },
    );
    log::info(
        Who::Api,
        "launcher.py:240",
        "[shutdown] API server: shutdown triggered",
    );
    tokio::select! {
        never = accept(engine, &listener, &connections) => match never {},
        () = engine.idle() => {}
        () = tokio::time::sleep(if wait.is_zero() { ABORT_LIMIT } else { wait }) => {}
    }
    enter(engine, Phase::Aborting);
    log::info(
        Who::Api,
        "launcher.py:262",
        "[shutdown] API server: engine client stopped",
    );
    drop(listener);
    if tokio::time::timeout(ABORT_LIMIT, connections.shutdown())
        .await
        .is_err()
    {
        log::line("stub-engine: clients still connected after the abort; leaving");
    }
}

/// Moves to `next`, except that a dead engine stays dead.
fn enter(engine: &Engine, next: Phase) {
    engine.phase.send_if_modified(|phase| {
        let alive = *phase != Phase::Dead;
        if alive {
            *phase = next;
        }
        alive
    });
}
