//! Which job, and where it is.

use slurm_serve_proto::v1::ModelState;

use crate::fake::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_serves_nothing_is_not_found() {
    let world = World::new().await;
    // Slurm knows no such job; it runs here untagged; it is over.
    let unknown = world.run(&["status", "12"]).await;
    unknown.fails(3, &["job 12 serves nothing here, or it is not yours"]);
    world.job("12", "12|RUNNING|n1|None");
    world
        .run(&["status", "12"])
        .await
        .fails(3, &["job 12 serves nothing here"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_job_is_said_to_be_pending() {
    let world = World::new().await;
    world.job("12", "12|PENDING||Resources");
    world
        .run(&["url", "12"])
        .await
        .fails(3, &["job 12 is still pending (Resources)", "sserve wait 12"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_an_array_is_found_by_its_number() {
    let world = World::new().await;
    world.model(57, ModelState::Ready, |_| {});
    world.job("50_7", "57|RUNNING|n1|None");
    assert_eq!(
        world.run(&["url", "50_7"]).await.succeeds(),
        "http://10.0.0.1:18100/v1\n"
    );
    world.run(&["url", "50_8"]).await.fails(3, &["50_8", "sacct"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_should_know_and_does_not_answer_is_unreachable() {
    let mut world = World::new().await;
    world.kill_agent().await;
    world.job("12", "12|RUNNING|n1|None");
    let status = world.run(&["status", "12"]).await;
    status.fails(
        4,
        &["agent of this node", "is `slurm-serve agent` running there?"],
    );
    // On another node; and in a list of nodes.
    world.configure("[gateway]\nagents = [\"n2=127.0.0.1:1\", \"n1=127.0.0.1:1\"]");
    world.job("13", "13|RUNNING|n[2-3]|None");
    world.run(&["status", "13"]).await.fails(4, &["running there?"]);
    // Slurm has forgotten it, and not everybody could be asked.
    world.run(&["status", "14"]).await.fails(4, &["forgotten job 14"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_slurm_the_agent_here_decides() {
    let world = World::new().await;
    std::fs::remove_file(world.path("bin/squeue")).unwrap();
    world.model(12, ModelState::Ready, |_| {});
    world.run(&["status", "12"]).await.succeeds();
    world.run(&["status", "13"]).await.fails(3, &["job 13"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_job_is_a_usage_error() {
    let world = World::new().await;
    for bad in ["12x", "0", "12;rm"] {
        let refused = world.run(&["status", bad]).await;
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains("is no job"), "{refused:?}");
    }
    world
        .run(&["stop"])
        .await
        .fails(2, &["which job?", "sserve stop JOB"]);
}
