//! `sserve wait`.

use slurm_serve_proto::v1::{Cause, Ending, ModelState};

use crate::fake::{World, assert_plain};

#[tokio::test(flavor = "multi_thread")]
async fn until_it_is_ready_telling_what_happens() {
    let world = World::new().await;
    world.model(12, ModelState::Launching, |_| {});
    let mut wait = world.start(&["wait", "12"]);
    wait.until_it_says("launching").await;
    world.model(12, ModelState::Loading, |model| {
        model.progress = "\u{1b}[32mshards 1/4".into()
    });
    wait.until_it_says("loading: shards 1/4").await;
    world.model(12, ModelState::Ready, |_| {});
    let end = wait.end().await;
    assert_eq!(
        end.succeeds(),
        "tiny (job 12 on n1) is ready at http://10.0.0.1:18100/v1\n"
    );
    assert_plain(&end.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_ends_it_with_the_cause() {
    let world = World::new().await;
    world.model(12, ModelState::Loading, |_| {});
    let mut wait = world.start(&["wait", "12", "--json"]);
    wait.until_it_says("loading").await;
    world.model(12, ModelState::Failed, |model| {
        model.ending = Some(Ending {
            cause: Cause::WeightsMissing.into(),
            text: "no weights at /w".into(),
            hint: "check the recipe's source".into(),
            ..Ending::default()
        });
    });
    let end = wait.end().await;
    end.fails(
        1,
        &[
            "tiny (job 12 on n1) failed: no weights at /w",
            "check the recipe's source",
            "log: n1:/home/alice/serve-12.log",
        ],
    );
    assert_eq!(end.json()["ending"]["cause"], "weights_missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn its_timeout_has_an_exit_code_of_its_own() {
    let world = World::new().await;
    world.model(12, ModelState::Loading, |_| {});
    let end = world.run(&["wait", "--timeout", "300ms", "12"]).await;
    end.fails(124, &["job 12: not ready within 300ms", "sserve status 12"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_job_is_waited_for() {
    let world = World::new().await;
    world.job("12", "12|PENDING||Priority");
    let mut wait = world.start(&["wait", "12"]);
    wait.until_it_says("job 12 is pending (Priority)").await;
    world.job("12", "12|RUNNING|n1|None");
    wait.until_it_says("has just started").await;
    world.model(12, ModelState::Ready, |_| {});
    wait.end().await.succeeds();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ends_while_it_is_pending_ends_the_wait() {
    let world = World::new().await;
    world.job("12", "12|PENDING||Priority");
    let mut wait = world.start(&["wait", "12"]);
    wait.until_it_says("pending").await;
    world.job("12", "12|CANCELLED||None");
    wait.end().await.fails(3, &["job 12 serves nothing"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_restart_is_survived() {
    let mut world = World::new().await;
    world.model(12, ModelState::Loading, |_| {});
    let mut wait = world.start(&["wait", "12"]);
    wait.until_it_says("loading").await;
    world.kill_agent().await;
    wait.until_it_says("asking again").await;
    world.model(12, ModelState::Ready, |_| {});
    world.start_agent().await;
    wait.end().await.succeeds();
}
