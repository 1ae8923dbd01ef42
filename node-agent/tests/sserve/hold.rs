//! `sserve hold`.

use slurm_serve_proto::v1::{Cause, Ending, ModelState};

use crate::fake::{Running, World};

async fn holding(world: &World) -> Running {
    world.model(12, ModelState::Ready, |_| {});
    let mut command = world.command(&["hold"]);
    command.env("SLURM_JOB_ID", "12");
    let mut hold = Running::start(command);
    hold.until_it_says("tiny (job 12 on n1) is ready").await;
    hold
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_was_asked_for_is_a_good_end() {
    let world = World::new().await;
    let hold = holding(&world).await;
    world.model(12, ModelState::Ended, |model| {
        model.ending = Some(Ending {
            cause: Cause::Stopped.into(),
            text: "stopped by its owner".into(),
            ..Ending::default()
        });
    });
    let end = hold.end().await;
    end.succeeds();
    assert!(end.stderr.contains("has ended: stopped by its owner"), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_a_bad_end() {
    let world = World::new().await;
    let hold = holding(&world).await;
    world.model(12, ModelState::Failed, |model| {
        model.ending = Some(Ending {
            cause: Cause::EngineDied.into(),
            text: "the engine exited with code 0".into(),
            ..Ending::default()
        });
    });
    hold.end()
        .await
        .fails(1, &["failed: the engine exited with code 0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_it_and_so_does_the_jobs_end() {
    let world = World::new().await;
    let hold = holding(&world).await;
    hold.terminate();
    hold.end().await.succeeds();
    let hold = holding(&world).await;
    world.change(|known| known.job_ending = true);
    let end = hold.end().await;
    end.succeeds();
    assert!(end.stderr.contains("the job is being ended"), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_restart_does_not_end_it() {
    let mut world = World::new().await;
    let mut hold = holding(&world).await;
    world.kill_agent().await;
    hold.until_it_says("the model runs on without it").await;
    // Until the runners are back it knows nothing.
    let model = world.known(|known| known.models[&12].clone());
    world.change(|known| known.models.clear());
    world.start_agent().await;
    world.change(|known| {
        known.models.insert(12, model);
    });
    hold.until_it_says("answers again").await;
    hold.terminate();
    hold.end().await.succeeds();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_a_model_has_nothing_to_hold() {
    let world = World::new().await;
    world.job("12", "12|RUNNING|n1|None");
    world
        .run(&["hold", "12"])
        .await
        .fails(3, &["job 12 serves nothing"]);
}
