//! `sserve health`: one line, 0 or 1, and never longer than its time.

use std::time::{Duration, Instant};

use crate::fake::World;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_answers_is_healthy() {
    let world = World::new().await;
    let health = world.run(&["health"]).await;
    assert!(
        health.succeeds().starts_with("the agent answers (") && health.stdout.lines().count() == 1,
        "{health:?}"
    );
    assert_eq!(health.stderr, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_agent_it_says_where_and_what_to_do() {
    let mut world = World::new().await;
    world.kill_agent().await;
    for _ in 0..2 {
        let health = world.run(&["health"]).await;
        health.fails(1, &["agent.sock", "systemctl start slurm-serve-agent"]);
        assert_eq!(health.stderr.lines().count(), 1, "{health:?}");
        // The socket of a killed agent stays; after a reboot there is none.
        let _ = std::fs::remove_file(world.path("agent.sock"));
    }
    std::fs::write(world.path("config.toml"), "[agnet]\n").unwrap();
    world.run(&["health"]).await.fails(1, &["config.toml", "agnet"]);
}

/// Listens and answers nothing, like a stopped agent: `connect` succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_hung_agent_costs_no_more_than_the_time_given() {
    let world = World::without_agent();
    let _hung = std::os::unix::net::UnixListener::bind(world.path("agent.sock")).unwrap();
    let started = Instant::now();
    let health = world.run(&["health", "--timeout", "300ms"]).await;
    health.fails(1, &["has not answered within 300ms", "restart"]);
    assert!(started.elapsed() >= Duration::from_millis(300));
}

/// Opening a FIFO that nobody writes to waits for ever, as a dead file server would.
#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_be_read_in_time_are_left_behind() {
    let world = World::without_agent();
    let fifo = world.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let config = fifo.display().to_string();
    let health = world
        .run(&["health", "--timeout", "300ms", "--config", &config])
        .await;
    health.fails(1, &["within 300ms", "settings' file"]);
}
