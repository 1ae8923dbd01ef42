use std::time::Duration;

use super::super::testing::{Clock, announced, ready, registry, snapshot};
use super::*;

fn refusal(registry: &Registry, name: &str, now: Now) -> Refusal {
    pick(registry, name, &[], now).expect_err("no replica is to be chosen")
}

#[test]
fn requests_go_where_the_fewest_are_in_flight() {
    let clock = Clock::start();
    let registry = registry(
        vec![ready("tiny", "a"), ready("tiny", "b"), ready("tiny", "c")],
        clock.secs(0),
    );
    let flights: Vec<_> = (0..30)
        .map(|_| pick(&registry, "tiny", &[], clock.secs(0)).unwrap())
        .collect();
    for replica in registry.replicas() {
        assert_eq!(replica.load.in_flight(), 10);
    }
    drop(flights);
    assert!(registry.replicas().all(|replica| replica.load.in_flight() == 0));
}

#[test]
fn equals_are_chosen_at_random() {
    let clock = Clock::start();
    let registry = registry(vec![ready("tiny", "a"), ready("tiny", "b")], clock.secs(0));
    let mut chosen = std::collections::BTreeSet::new();
    // Never both within 200 tries: once in 2^199.
    for _ in 0..200 {
        let flight = pick(&registry, "tiny", &[], clock.secs(0)).unwrap();
        chosen.insert(flight.replica.model.generation.clone());
    }
    assert_eq!(chosen.len(), 2);
}

#[test]
fn what_was_tried_is_not_tried_again_and_what_was_unreachable_comes_last() {
    let clock = Clock::start();
    let registry = registry(vec![ready("tiny", "a"), ready("tiny", "b")], clock.secs(0));
    let first = pick(&registry, "tiny", &["a".into()], clock.secs(0)).unwrap();
    assert_eq!(first.replica.model.generation, "b");
    let both = ["a".into(), "b".into()];
    assert_eq!(
        pick(&registry, "tiny", &both, clock.secs(0)).unwrap_err(),
        Refusal::Exhausted
    );
    let a = registry.replicas().next().unwrap();
    a.load.failed(clock.secs(0).unix_ms);
    for _ in 0..20 {
        assert_eq!(
            pick(&registry, "tiny", &[], clock.secs(1))
                .unwrap()
                .replica
                .model
                .generation,
            "b"
        );
    }
    assert!(!a.load.is_open(clock.secs(2).unix_ms));
}

#[test]
fn a_name_of_the_sites_is_never_answered_by_a_users_model() {
    let clock = Clock::start();
    // A user with a name like a hub's organisation, whose model stands under what is an alias of the site's.
    let mut site = announced("gpt-oss-120b", "a", ModelState::Loading);
    site.model.aliases = vec!["openai/gpt-oss-120b".into()];
    let mut users = ready("openai/gpt-oss-120b", "b");
    users.model.owner = "openai".into();
    let registry = registry(vec![site, users], clock.secs(0));
    let refused = refusal(&registry, "openai/gpt-oss-120b", clock.secs(40));
    assert_eq!(
        refused,
        Refusal::Loading {
            doing: "loading",
            seconds: 40
        }
    );
}

#[test]
fn aliases_reach_the_model() {
    let clock = Clock::start();
    let mut model = ready("gpt-oss-120b", "a");
    model.model.aliases = vec!["gpt".into()];
    let registry = registry(vec![model], clock.secs(0));
    assert!(pick(&registry, "gpt", &[], clock.secs(0)).is_ok());
}

#[test]
fn one_that_loads_is_not_said_to_have_failed() {
    let clock = Clock::start();
    let registry = registry(
        vec![
            announced("tiny", "a", ModelState::Failed),
            announced("tiny", "b", ModelState::Launching),
        ],
        clock.secs(0),
    );
    assert_eq!(
        refusal(&registry, "tiny", clock.secs(3)),
        Refusal::Loading {
            doing: "being launched",
            seconds: 3
        }
    );
}

#[test]
fn a_failure_is_told_with_its_text_even_when_the_agent_has_forgotten_it() {
    let clock = Clock::start();
    let mut registry = registry(vec![announced("tiny", "a", ModelState::Failed)], clock.secs(0));
    for forgotten in [false, true] {
        if forgotten {
            registry.delta("n1", vec![], &["a".into()], clock.secs(1));
        }
        let Refusal::Failed { text, job, node } = refusal(&registry, "tiny", clock.secs(2)) else {
            panic!("it failed");
        };
        assert_eq!(
            (text.as_str(), job, node.as_str()),
            ("GPU 0 has 3 GiB free, 80 are needed", 7, "n1")
        );
    }
}

#[test]
fn the_nearest_name_comes_first_and_silent_nodes_are_named() {
    let clock = Clock::start();
    let mut registry = registry(
        vec![
            ready("a-model", "a"),
            ready("gpt-oss-120b", "b"),
            announced("z", "c", ModelState::Ended),
        ],
        clock.secs(0),
    );
    registry.add_node("n2", clock.secs(0));
    let Refusal::NoSuchModel { names, more, silent } = refusal(&registry, "gpt-oss-12b", clock.secs(0))
    else {
        panic!("it is not known");
    };
    assert_eq!(
        (names, more, silent),
        (
            vec!["gpt-oss-120b".to_owned(), "a-model".into()],
            0,
            vec!["n2".to_owned()]
        )
    );
}

#[test]
fn without_any_agent_that_is_what_is_said() {
    let clock = Clock::start();
    let mut registry = Registry::default();
    registry.add_node("n1", clock.secs(0));
    assert_eq!(
        refusal(&registry, "tiny", clock.secs(0)),
        Refusal::NoAgents {
            agents: 1,
            why: String::new()
        }
    );
    registry.broken("n1", "refused".into(), clock.secs(0).instant, clock.secs(0));
    assert_eq!(
        refusal(&registry, "tiny", clock.secs(0)),
        Refusal::NoAgents {
            agents: 1,
            why: "n1: refused".into()
        }
    );
}

#[test]
fn within_the_lease_requests_still_go_there() {
    let clock = Clock::start();
    let mut registry = registry(vec![ready("tiny", "a")], clock.secs(0));
    registry.broken("n1", "reset".into(), clock.secs(0).instant, clock.secs(0));
    assert!(pick(&registry, "tiny", &[], clock.secs(9)).is_ok());
    registry.expire(clock.at(Duration::from_millis(10_001)));
    assert!(matches!(
        refusal(&registry, "tiny", clock.secs(11)),
        Refusal::NoAgents { .. }
    ));
    registry.snapshot("n1", snapshot(vec![ready("tiny", "a")]), clock.secs(12));
    assert!(pick(&registry, "tiny", &[], clock.secs(12)).is_ok());
}

#[test]
fn what_is_not_published_is_not_there() {
    let clock = Clock::start();
    let mut model = ready("tiny", "a");
    model.model.published = false;
    let registry = registry(vec![model], clock.secs(0));
    let refused = refusal(&registry, "tiny", clock.secs(0));
    assert!(
        matches!(&refused, Refusal::NoSuchModel { names, .. } if names.is_empty()),
        "{refused:?}"
    );
}

#[test]
fn a_ready_model_without_its_key_says_what_is_missing() {
    let clock = Clock::start();
    let mut model = ready("tiny", "a");
    model.bearer = None;
    let registry = registry(vec![model], clock.secs(0));
    assert!(
        matches!(refusal(&registry, "tiny", clock.secs(0)), Refusal::Unusable(why) if why.contains("role `proxy`"))
    );
}

#[test]
fn only_what_is_ready_is_chosen_and_every_other_state_is_told_for_what_it_is() {
    let clock = Clock::start();
    let of = |state: ModelState| {
        let mut only = announced("tiny", "a", state);
        only.bearer = ready("tiny", "a").bearer;
        let registry = registry(vec![only], clock.secs(0));
        refusal(&registry, "tiny", clock.secs(7))
    };
    assert_eq!(of(ModelState::Unresponsive), Refusal::NotAnswering { seconds: 7 });
    assert_eq!(of(ModelState::Retiring), Refusal::Ending);
    let doing = "being started again";
    assert_eq!(of(ModelState::Restarting), Refusal::Loading { doing, seconds: 7 });
    // A state of a newer agent's.
    let mut newer = ready("tiny", "a");
    newer.model.state = 1000;
    let registry = registry(vec![newer], clock.secs(0));
    assert!(matches!(
        refusal(&registry, "tiny", clock.secs(7)),
        Refusal::NoSuchModel { .. }
    ));
}
