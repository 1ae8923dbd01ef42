//! Too many, too often, too slow: whoever is beyond his share is told so, and the others are served on.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::Code;

use crate::site::{PROXY, READER, Site, in_time, model, snapshot, watch};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_watchers_are_served_as_far_as_there_is_room_and_the_rest_is_told() {
    const ROOM: usize = 64;
    const ASKING: usize = 10_000;
    let site = Site::start().await;
    let client = site.client(PROXY);
    // A connection carries 64 streams; what is open on it must not keep the others from being answered.
    let mut held = Vec::new();
    for _ in 0..ROOM {
        let (acks, mut stream) = watch(site.catalog(&client)).await.unwrap();
        snapshot(&mut stream).await;
        held.push((acks, stream));
    }
    let mut asking = JoinSet::new();
    for _ in 0..50 {
        let catalog = site.catalog(&client);
        asking.spawn(async move {
            let mut refused = 0;
            for _ in 0..ASKING / 50 {
                let status = watch(catalog.clone()).await.unwrap_err();
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                assert!(status.message().contains("agent.max_watchers"), "{status}");
                refused += 1;
            }
            refused
        });
    }
    let refused: usize = in_time("all answers", asking.join_all()).await.into_iter().sum();
    assert_eq!(refused, ASKING);
    // Those that were let in hear on, and a place that becomes free is given away.
    site.hub.set(model());
    for (_, stream) in &mut held {
        assert!(in_time("a change", stream.message()).await.unwrap().is_some());
    }
    held.pop();
    in_time("a place", async {
        while watch(site.catalog(&client)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// A client whose window is as small as HTTP/2 allows by default, and who never reads.
#[tokio::test]
async fn a_watcher_who_does_not_read_is_let_go_and_holds_up_nobody() {
    let site = Site::start().await;
    let (acks, stream) = watch(site.catalog(&site.client(PROXY))).await.unwrap();
    // More than the windows of a connection and the queue take: it is stuck from here on.
    let mut big = model();
    big.aliases = vec!["x".repeat(1000); 1000];
    let mut revision = 0;
    for _ in 0..64 {
        revision = site.hub.set(big.clone());
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // An ending model waits for its watchers; this one is not waited for any longer once it is let go.
    in_time("it to be let go", site.hub.released(revision)).await;
    drop((acks, stream));
}

#[tokio::test]
async fn one_address_holds_its_share_of_connections_and_no_more() {
    let site = Site::start().await;
    let open = async || TcpStream::connect(("127.0.0.1", site.tls_port)).await.unwrap();
    let mut all = Vec::new();
    for _ in 0..200 {
        all.push(open().await);
    }
    // Handshakes that are under way have a share of their own, 64; those beyond are closed at once.
    let is_closed = |stream: &TcpStream| match stream.try_read(&mut [0]) {
        Ok(read) => read == 0,
        Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
    };
    in_time("those beyond to be closed", async {
        while all.iter().filter(|stream| is_closed(stream)).count() < 200 - 64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    drop(all);
    let client = site.client(READER);
    in_time("room again", async {
        while site.list(&client).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Also once they are open, and whatever they have proven.
#[tokio::test]
async fn one_address_holds_so_many_open_connections_and_no_more() {
    let site = Site::start().await;
    let client = site.client(READER);
    // An eighth of the descriptors that there are, as the agent has it, and at most 512.
    let (descriptors, _) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let share = usize::try_from((descriptors / 8).clamp(16, 512)).unwrap();
    let mut open = Vec::new();
    for _ in 0..share {
        let catalog = site.catalog(&client);
        if crate::site::list(catalog.clone()).await.is_ok() {
            open.push(catalog);
        }
    }
    // The site's own first look may still have held one.
    assert!(open.len() + 1 >= share, "{} of {share}", open.len());
    assert!(site.list(&client).await.is_err());
    assert!(
        crate::site::list(open.pop().unwrap()).await.is_ok(),
        "what is open is served on"
    );
    in_time("room again", async {
        while site.list(&client).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn whoever_guesses_is_slowed_down_and_whoever_knows_is_not() {
    let site = Site::start().await;
    let wrong = site.client("wrong-token-0123456789");
    let mut guesses = JoinSet::new();
    for _ in 0..10 {
        // No more on one connection than it takes.
        let catalog = site.catalog(&wrong);
        for _ in 0..30 {
            let catalog = catalog.clone();
            guesses.spawn(async move { crate::site::list(catalog).await.unwrap_err().code() });
        }
    }
    let good = site.client(READER);
    for _ in 0..20 {
        assert!(site.list(&good).await.is_ok());
    }
    let codes = in_time("the answers", guesses.join_all()).await;
    let refused = |code| codes.iter().filter(|it| **it == code).count();
    assert_eq!(
        refused(Code::Unauthenticated) + refused(Code::ResourceExhausted),
        300
    );
}
