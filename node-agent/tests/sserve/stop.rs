//! `sserve stop`.

use slurm_serve_proto::v1::{Cause, Ending, ModelState};

use crate::fake::World;

#[tokio::test(flavor = "multi_thread")]
async fn the_order_is_given_and_may_be_waited_for() {
    let world = World::new().await;
    world.model(12, ModelState::Ready, |_| {});
    let stop = world.run(&["stop", "12"]).await;
    assert!(stop.succeeds().contains("stopping"), "{stop:?}");
    assert_eq!(world.known(|known| known.stopped.clone()), [12]);

    world.model(12, ModelState::Draining, |_| {});
    let stop = world.start(&["stop", "--wait", "12"]);
    world.model(12, ModelState::Ended, |model| {
        model.ending = Some(Ending {
            cause: Cause::Stopped.into(),
            text: "stopped by alice".into(),
            ..Ending::default()
        });
    });
    let stop = stop.end().await;
    assert_eq!(stop.code, 0, "{stop:?}");
    assert!(stop.stdout.contains("ended"), "{stop:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_the_end_has_an_end() {
    let world = World::new().await;
    world.model(12, ModelState::Draining, |_| {});
    let stop = world.run(&["stop", "--wait", "--timeout", "300ms", "12"]).await;
    stop.fails(124, &["not gone after 300ms", "scancel 12"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_twice_is_no_error_and_stopping_nothing_is() {
    let world = World::new().await;
    world.model(12, ModelState::Ended, |_| {});
    let again = world.run(&["stop", "12"]).await;
    assert!(again.succeeds().contains("already ended"), "{again:?}");
    world.run(&["stop", "13"]).await.fails(3, &["job 13"]);
}
