//! What has to be done so that a catalog agrees with the world: a pure function.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::Row;

/// One row that a catalog holds and that carries our marks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// The catalog's own id, by which it is removed.
    pub at: String,
    /// Ours: see [`Row::id`].
    pub id: String,
    /// ClusterName of whoever entered it.
    pub cluster: String,
    /// NodeName of its model.
    pub node: String,
    /// Of its model.
    pub job_id: u32,
    /// `http://HOST:PORT`.
    pub url: String,
    /// The name that clients use.
    pub name: String,
    /// It takes no requests any more, and will go by itself.
    pub leaving: bool,
}

impl Held {
    /// The generation that it was entered for.
    pub fn generation(&self) -> &str {
        self.id
            .split_once('~')
            .map_or(self.id.as_str(), |(generation, _)| generation)
    }
}

/// What may be removed: rows of this cluster, of these nodes. Nothing is known of any other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// ClusterName.
    pub cluster: String,
    /// NodeNames whose models are all known.
    pub nodes: BTreeSet<String>,
}

/// What is to be done; nothing: the catalog agrees.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// First.
    pub remove: Vec<Held>,
    /// Then. None whose place is still taken by one that has to go.
    pub add: Vec<Row>,
}

impl Plan {
    /// The catalog agrees.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }

    /// From what should be there and what is.
    pub fn make(wanted: &BTreeMap<String, Row>, held: &[Held], scope: &Scope) -> Self {
        let mut plan = Self::default();
        let mut right = BTreeSet::new();
        for one in held.iter().filter(|one| !one.leaving) {
            match wanted.get(&one.id) {
                // The same twice: the first stays.
                Some(row) if agrees(row, one) && right.insert(one.id.as_str()) => {}
                Some(_) => plan.remove.push(one.clone()),
                None if scope.cluster == one.cluster && scope.nodes.contains(&one.node) => {
                    plan.remove.push(one.clone());
                }
                None => {}
            }
        }
        let missing = wanted.values().filter(|row| !right.contains(row.id.as_str()));
        plan.add = missing.cloned().collect();
        plan
    }
}

fn agrees(row: &Row, held: &Held) -> bool {
    held.url == row.entry.url && held.name == row.name
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::entry::Entry;
    use super::*;

    fn row(node: u8, number: u8) -> Row {
        let generation = format!("{number}.0.1-{node}");
        Row::of(&Arc::new(Entry {
            name: format!("m{number}"),
            owner: "ada".into(),
            cluster: "c".into(),
            node: format!("n{node}"),
            job_id: number.into(),
            task: "chat".into(),
            url: format!("http://n{node}:{number}"),
            key: "k".into(),
            generation,
            ..Entry::default()
        }))
    }

    fn held(row: &Row) -> Held {
        Held {
            at: format!("at-{}", row.id),
            id: row.id.clone(),
            cluster: "c".into(),
            node: row.entry.node.clone(),
            job_id: row.entry.job_id,
            url: row.entry.url.clone(),
            name: row.name.clone(),
            leaving: false,
        }
    }

    fn scope(nodes: &[u8]) -> Scope {
        Scope {
            cluster: "c".into(),
            nodes: nodes.iter().map(|node| format!("n{node}")).collect(),
        }
    }

    fn wanted(rows: &[Row]) -> BTreeMap<String, Row> {
        rows.iter().map(|row| (row.id.clone(), row.clone())).collect()
    }

    #[test]
    fn of_nodes_that_are_not_known_nothing_is_removed() {
        let stranger = held(&row(2, 1));
        let plan = Plan::make(&wanted(&[]), std::slice::from_ref(&stranger), &scope(&[1]));
        assert!(plan.is_empty());
        let other_cluster = Held {
            cluster: "d".into(),
            ..held(&row(1, 1))
        };
        assert!(Plan::make(&wanted(&[]), &[other_cluster], &scope(&[1])).is_empty());
        assert_eq!(
            Plan::make(&wanted(&[]), std::slice::from_ref(&stranger), &scope(&[2])).remove,
            [stranger]
        );
    }

    #[test]
    fn what_was_changed_behind_our_back_is_entered_again() {
        let row = row(1, 1);
        let wrong = Held {
            url: "http://elsewhere:1".into(),
            ..held(&row)
        };
        let plan = Plan::make(
            &wanted(std::slice::from_ref(&row)),
            std::slice::from_ref(&wrong),
            &scope(&[1]),
        );
        assert_eq!((plan.remove, plan.add), (vec![wrong], vec![row]));
    }

    #[test]
    fn one_that_is_leaving_is_gone() {
        let row = row(1, 1);
        let leaving = Held {
            leaving: true,
            ..held(&row)
        };
        assert!(Plan::make(&wanted(&[]), std::slice::from_ref(&leaving), &scope(&[1])).is_empty());
        let plan = Plan::make(&wanted(std::slice::from_ref(&row)), &[leaving], &scope(&[1]));
        assert_eq!(plan.add, [row]);
    }

    proptest! {
        /// Whatever is there: doing what the plan says leaves exactly what is wanted, once each, and all that is others'.
        #[test]
        fn a_plan_that_is_done_leaves_nothing_to_do(
            want in prop::collection::btree_set((0u8..3, 0u8..6), 0..12),
            there in prop::collection::vec((0u8..4, 0u8..6, any::<bool>(), any::<bool>()), 0..20),
            known in prop::collection::btree_set(0u8..4, 0..4),
        ) {
            let mut known = known;
            known.extend(want.iter().map(|(node, _)| *node));
            let scope = scope(&known.iter().copied().collect::<Vec<_>>());
            let want = wanted(&want.iter().map(|(node, number)| row(*node, *number)).collect::<Vec<_>>());
            let mut there: Vec<Held> = there.iter().enumerate().map(|(n, (node, number, moved, leaving))| Held {
                at: n.to_string(),
                url: if *moved { "http://x:1".into() } else { row(*node, *number).entry.url.clone() },
                leaving: *leaving,
                ..held(&row(*node, *number))
            }).collect();
            let others: Vec<Held> = there.iter().filter(|one| !scope.nodes.contains(&one.node)).cloned().collect();
            let plan = Plan::make(&want, &there, &scope);
            there.retain(|one| !plan.remove.contains(one));
            there.extend(plan.add.iter().map(held));
            prop_assert!(Plan::make(&want, &there, &scope).is_empty());
            for other in others {
                prop_assert!(there.contains(&other));
            }
            let ours: Vec<&str> = there.iter().filter(|one| !one.leaving && scope.nodes.contains(&one.node)).map(|one| one.id.as_str()).collect();
            prop_assert_eq!(ours.len(), want.len());
        }
    }
}
