//! The gateway in front of the product's own guard, with a small engine behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use slurm_serve::step::guard::{Door, Guard};
use slurm_serve_proto::v1::ModelState::{Draining, Ready};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::fake_agent::{FakeAgent, model};
use crate::harness::{Gateway, LONG, in_time, until};

/// An engine that streams until its client is gone, on a Unix socket, and the guard in front of it.
struct Served {
    guard: Guard,
    url: String,
    _folder: tempfile::TempDir,
}

async fn serve(generation: &str, routes: Router) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("engine.sock");
    let engine = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move { axum::serve(engine, routes).await.unwrap() });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let guard = Guard::open(
        listener,
        &socket,
        &format!("key-{generation}"),
        "tiny",
        generation,
        Vec::new(),
    )
    .unwrap();
    guard.set(Door::Open);
    let url = format!("http://{}/v1", guard.address());
    Served {
        guard,
        url,
        _folder: folder,
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_engines_work() {
    let (feeds, mut streams) = mpsc::unbounded_channel();
    let routes = Router::new().fallback(move || {
        let (feed, events) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
        feeds.send(feed).unwrap();
        async {
            let body = Body::from_stream(ReceiverStream::new(events));
            ([("content-type", "text/event-stream")], body).into_response()
        }
    });
    let served = serve("a", routes).await;
    let agent = FakeAgent::start("n1", LONG, vec![model("tiny", "a", Ready, &served.url)]);
    let gateway = Gateway::start(&[&agent]).await;
    let asking = tokio::spawn(gateway.chat("tiny").send());
    let feed = in_time("the engine being asked", streams.recv()).await.unwrap();
    let answer = in_time("the head", asking).await.unwrap().unwrap();
    let mut events = answer.bytes_stream();
    feed.send(Ok(Bytes::from_static(b"data: 0\n\n"))).await.unwrap();
    in_time("an event", events.next()).await.unwrap().unwrap();
    assert_eq!(served.guard.counts().in_flight(), 1);
    drop(events);
    in_time("the engine's notice", feed.closed()).await;
    until("nothing being in flight", async || {
        served.guard.counts().in_flight() == 0
    })
    .await;
}

/// A node agent that is away takes nothing out of routing that still answers; what ends meanwhile goes at once.
#[tokio::test]
async fn while_an_agent_is_silent_its_guards_are_asked() {
    let lease = Duration::from_millis(800);
    let (stays, ends) = (
        serve("a", Router::new().fallback(|| async { "stays" })).await,
        serve("b", Router::new().fallback(|| async { "ends" })).await,
    );
    let models = || {
        vec![
            model("tiny", "a", Ready, &stays.url),
            model("small", "b", Ready, &ends.url),
            // Somebody else has this one's port by now.
            model("stolen", "c", Ready, &stays.url),
        ]
    };
    let mut agent = FakeAgent::start("n1", lease, models());
    let gateway = Gateway::start(&[&agent]).await;
    agent.kill();
    gateway.until_agent("n1", "silent").await;
    gateway.until_names(&["small", "tiny"]).await;
    // Far longer than the lease: the model is asked for the whole time, so that a gap would be seen.
    let until = std::time::Instant::now() + 4 * lease;
    while std::time::Instant::now() < until {
        assert_eq!(gateway.ask("tiny").await.0, 200);
    }
    ends.guard.set(Door::Draining);
    gateway.until_names(&["tiny"]).await;
    // A guard that is gone is silent, and silence ends with the lease.
    stays.guard.close(Duration::from_secs(1)).await;
    gateway.until_names(&[]).await;
    agent.restart(vec![]);
    gateway.until_agent("n1", "ok").await;
}

/// The end of a model under load, as the runner does it: out of the catalog and acknowledged, then no new requests, then what is
/// in flight, then the end. Not one request fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_come_and_go_under_load_and_not_one_request_fails() {
    let worked = Arc::new(AtomicUsize::new(0));
    let routes = || {
        let worked = worked.clone();
        Router::new().fallback(move || {
            worked.fetch_add(1, Ordering::Relaxed);
            async {
                // Work that takes a moment, so that something is always in flight.
                tokio::time::sleep(Duration::from_millis(3)).await;
                "done"
            }
        })
    };
    let stays = serve("a", routes()).await;
    let lasting = FakeAgent::start("n1", LONG, vec![model("tiny", "a", Ready, &stays.url)]);
    let changing = FakeAgent::start("n2", LONG, vec![]);
    let gateway = Gateway::start(&[&lasting, &changing]).await;
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (chat, over) = (gateway.chat("tiny"), over.clone());
            tokio::spawn(async move {
                let mut asked = 0;
                while !over.load(Ordering::Relaxed) {
                    let answer = chat.try_clone().unwrap().send().await.unwrap();
                    let status = answer.status();
                    assert_eq!(
                        (status.as_u16(), answer.text().await.unwrap()),
                        (200, "done".to_owned())
                    );
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    for number in 0..10 {
        let generation = format!("b{number}");
        let Served { guard, url, _folder } = serve(&generation, routes()).await;
        changing
            .acknowledged(changing.say(vec![model("tiny", &generation, Ready, &url)], &[]))
            .await;
        let counts = guard.counts();
        until("requests to the new one", async || counts.requests() > 20).await;
        changing
            .acknowledged(changing.say(vec![model("tiny", &generation, Draining, &url)], &[]))
            .await;
        guard.set(Door::Draining);
        until("what is in flight", async || counts.in_flight() == 0).await;
        guard.close(Duration::from_secs(5)).await;
        changing.acknowledged(changing.say(vec![], &[&generation])).await;
    }
    over.store(true, Ordering::Relaxed);
    let mut asked = 0;
    for client in clients {
        asked += in_time("a client's end", client).await.unwrap();
    }
    assert_eq!(worked.load(Ordering::Relaxed), asked, "each was worked on once");
}
