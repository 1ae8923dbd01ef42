//! `sserve url`.

use slurm_serve_proto::v1::ModelState;

use crate::fake::World;

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_told_only_when_it_is_asked_for() {
    let world = World::new().await;
    world.model(12, ModelState::Ready, |_| {});
    let url = world.run(&["url", "12"]).await;
    assert_eq!(url.succeeds(), "http://10.0.0.1:18100/v1\n");
    let env = world.run(&["url", "--env", "12"]).await;
    assert!(
        env.succeeds()
            .contains("export OPENAI_BASE_URL='http://10.0.0.1:18100/v1'\n"),
        "{env:?}"
    );
    assert!(
        env.stdout.contains("export OPENAI_API_KEY='sk-of-the-job'\n"),
        "{env:?}"
    );
    assert!(env.stderr.is_empty(), "{env:?}");
    let json = world.run(&["url", "--json", "12"]).await.json();
    assert_eq!(
        (&json["base_url"], json.get("key")),
        (&"http://10.0.0.1:18100/v1".into(), None)
    );
    assert_eq!(
        world.run(&["url", "--json", "--env", "12"]).await.json()["key"],
        "sk-of-the-job"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_address_says_why() {
    let world = World::new().await;
    world.model(12, ModelState::Launching, |model| model.base_url.clear());
    world
        .run(&["url", "12"])
        .await
        .fails(1, &["launching", "sserve wait 12"]);
    world.model(12, ModelState::Ended, |_| {});
    world
        .run(&["url", "12"])
        .await
        .fails(1, &["tiny (job 12 on n1) has ended"]);
    world.model(12, ModelState::Ready, |model| model.key.clear());
    world
        .run(&["url", "--env", "12"])
        .await
        .fails(1, &["no key for job 12", "alice"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_still_loads_is_told_with_a_warning() {
    let world = World::new().await;
    world.model(12, ModelState::Loading, |_| {});
    let url = world.run(&["url", "12"]).await;
    assert_eq!(url.succeeds(), "http://10.0.0.1:18100/v1\n");
    assert!(url.stderr.contains("does not answer yet"), "{url:?}");
}
