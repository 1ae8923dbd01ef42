use std::time::Duration;

use super::super::testing::{Clock, START_MS, announced, ready, registry, snapshot};
use super::*;

fn generations(registry: &Registry) -> Vec<String> {
    registry
        .replicas()
        .map(|replica| replica.model.generation.clone())
        .collect()
}

#[test]
fn a_late_goodbye_of_one_generation_leaves_the_next_alone() {
    let clock = Clock::start();
    let mut registry = registry(vec![ready("tiny", "7.0.1-a")], clock.secs(0));
    registry.delta("n1", vec![ready("tiny", "7.1.1-b")], &[], clock.secs(1));
    registry.delta("n1", vec![], &["7.0.1-a".into()], clock.secs(2));
    assert_eq!(generations(&registry), ["7.1.1-b"]);
}

#[test]
fn a_snapshot_replaces_what_was_known_and_keeps_what_is_under_way() {
    let clock = Clock::start();
    let mut registry = registry(vec![ready("tiny", "a"), ready("big", "b")], clock.secs(0));
    let before = registry
        .replicas()
        .find(|r| r.model.generation == "a")
        .unwrap()
        .load
        .clone();
    let leaving = registry.snapshot("n1", snapshot(vec![ready("tiny", "a")]), clock.secs(1));
    assert_eq!(generations(&registry), ["a"]);
    assert_eq!(leaving.len(), 1, "the one that vanished has left routing");
    assert!(Arc::ptr_eq(&before, &registry.replicas().next().unwrap().load));
}

#[test]
fn a_broken_stream_starts_the_lease_and_its_end_takes_the_models() {
    let clock = Clock::start();
    let mut registry = registry(vec![ready("tiny", "a")], clock.secs(0));
    registry.broken("n1", "reset".into(), clock.secs(5).instant, clock.secs(6));
    // Further attempts that fail do not prolong it.
    registry.broken("n1", "refused".into(), clock.secs(8).instant, clock.secs(8));
    let (ended, next) = registry.expire(clock.secs(9));
    assert!(ended.is_empty());
    assert_eq!(next, Some(Duration::from_secs(6)));
    assert_eq!(generations(&registry).len(), 1);
    let (ended, next) = registry.expire(clock.secs(15));
    assert_eq!((ended, next), (vec!["n1".to_owned()], None));
    assert!(generations(&registry).is_empty());
    assert_eq!(
        registry.nodes().next().unwrap().1.link,
        Link::Silent("refused".into())
    );
}

#[test]
fn a_guard_that_answers_renews_the_lease_of_its_model_alone() {
    let clock = Clock::start();
    let mut registry = registry(vec![ready("tiny", "a"), ready("big", "b")], clock.secs(0));
    assert!(
        registry.to_ask("n1", clock.secs(1)).is_none(),
        "the agent speaks for them"
    );
    registry.renew("n1", "a", clock.secs(1).instant);
    registry.broken("n1", "reset".into(), clock.secs(5).instant, clock.secs(5));
    assert_eq!(registry.to_ask("n1", clock.secs(6)).unwrap().1.len(), 2);
    registry.renew("n1", "a", clock.secs(7).instant);
    registry.renew("n1", "never-heard-of", clock.secs(7).instant);
    assert_eq!(registry.expire(clock.secs(14)).1, Some(Duration::from_secs(1)));
    assert_eq!(
        registry.expire(clock.secs(15)),
        (vec!["n1".into()], Some(Duration::from_secs(2)))
    );
    assert_eq!(generations(&registry), ["a"]);
    registry.renew("n1", "a", clock.secs(16).instant);
    registry.expire(clock.secs(25));
    assert_eq!(generations(&registry), ["a"]);
    registry.disown("n1", "a");
    assert_eq!(registry.expire(clock.secs(25)), (vec![], None));
    assert!(
        registry.to_ask("n1", clock.secs(25)).is_none(),
        "nothing is left to be renewed"
    );
}

#[test]
fn an_agent_that_comes_back_within_the_lease_ends_it() {
    let clock = Clock::start();
    let mut registry = registry(vec![ready("tiny", "a")], clock.secs(0));
    registry.broken("n1", "reset".into(), clock.secs(5).instant, clock.secs(5));
    registry.snapshot("n1", snapshot(vec![ready("tiny", "a")]), clock.secs(9));
    let (ended, next) = registry.expire(clock.secs(100));
    assert_eq!((ended, next), (vec![], None));
    assert_eq!(generations(&registry), ["a"]);
}

#[test]
fn an_agent_that_has_answered_and_not_spoken_yet_prolongs_the_lease_once() {
    let clock = Clock::start();
    let mut registry = registry(vec![ready("tiny", "a")], clock.secs(0));
    registry.broken("n1", "reset".into(), clock.secs(5).instant, clock.secs(5));
    registry.opened("n1", clock.secs(6));
    assert_eq!(registry.expire(clock.secs(15)).1, Some(Duration::from_secs(1)));
    registry.broken("n1", "reset".into(), clock.secs(15).instant, clock.secs(15));
    registry.opened("n1", clock.secs(15));
    assert_eq!(registry.expire(clock.secs(16)).0, ["n1"]);
}

#[test]
fn a_model_past_the_end_of_its_job_is_gone() {
    let clock = Clock::start();
    let mut model = ready("tiny", "a");
    model.model.expires_ms = START_MS + 30_000;
    let mut registry = registry(vec![model, ready("big", "b")], clock.secs(0));
    assert_eq!(registry.expire(clock.secs(10)).1, Some(Duration::from_secs(20)));
    let tiny = registry.replicas().next().unwrap().clone();
    assert!(tiny.takes_requests(clock.secs(29).unix_ms) && !tiny.takes_requests(clock.secs(30).unix_ms));
    registry.expire(clock.secs(30));
    assert_eq!(generations(&registry), ["b"]);
}

#[test]
fn a_failure_is_still_told_after_its_job_should_have_ended() {
    let clock = Clock::start();
    let mut failed = announced("tiny", "a", ModelState::Failed);
    failed.model.expires_ms = START_MS + 30_000;
    let mut registry = registry(vec![failed], clock.secs(0));
    assert_eq!(registry.expire(clock.secs(60)).1, None);
    assert_eq!(generations(&registry), ["a"]);
}

#[test]
fn what_takes_no_requests_any_more_is_said_to_have_left() {
    let clock = Clock::start();
    for state in [ModelState::Draining, ModelState::Ended, ModelState::Failed] {
        let mut registry = registry(vec![ready("tiny", "a")], clock.secs(0));
        let load = registry.replicas().next().unwrap().load.clone();
        let leaving = registry.delta("n1", vec![announced("tiny", "a", state)], &[], clock.secs(1));
        assert!(leaving.iter().any(|left| Arc::ptr_eq(left, &load)), "{state:?}");
    }
}

#[test]
fn a_failure_outlives_its_removal_until_the_name_is_taken_again() {
    let clock = Clock::start();
    let failed = || announced("tiny", "a", ModelState::Failed);
    let mut registry = registry(vec![failed()], clock.secs(0));
    registry.delta("n1", vec![], &["a".into()], clock.secs(1));
    assert_eq!(registry.failures().count(), 1);
    registry.expire(clock.secs(599));
    assert_eq!(registry.failures().count(), 1);
    registry.delta(
        "n1",
        vec![announced("tiny", "b", ModelState::Requested)],
        &[],
        clock.secs(2),
    );
    assert_eq!(registry.failures().count(), 0);
    registry.delta("n1", vec![failed()], &["b".into()], clock.secs(3));
    registry.snapshot("n1", snapshot(vec![]), clock.secs(4));
    assert_eq!(registry.failures().count(), 1, "a snapshot without it, too");
    registry.expire(clock.secs(601));
    assert_eq!(registry.failures().count(), 0);
}

#[test]
fn a_node_that_is_none_any_more_takes_its_models_along() {
    let clock = Clock::start();
    let mut registry = registry(vec![ready("tiny", "a")], clock.secs(0));
    registry.remove_node("n1");
    assert!(generations(&registry).is_empty());
    // What its watcher still had to say changes nothing.
    registry.delta("n1", vec![ready("tiny", "a")], &[], clock.secs(1));
    registry.broken("n1", "x".into(), clock.secs(1).instant, clock.secs(1));
    assert!(generations(&registry).is_empty() && registry.nodes().next().is_none());
}
