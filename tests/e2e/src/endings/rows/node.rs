//! A node freezes, is cut off, or is lost, while controller, gateway and clients live on elsewhere.

use crate::endings::row::{Bound, Fate, Group, JobFate, Row};

pub const GROUP: Group = Group {
    title: "The node is lost without a word",
    text: "What a silent node said is believed for the lease, 10 s unless configured.",
    rows: &[
        Row::new(
            "the node is cut off",
            "Its cable is pulled, and plugged in again",
            Fate::Returns,
            JobFate::GoesOn,
            Bound::Lease,
            |scene| {
                scene.strike();
                scene.node.cut()
            },
        )
        .mend(|scene| scene.node.restore())
        .core(),
        Row::new(
            "the node is frozen",
            "Every process on it stops, and goes on",
            Fate::Returns,
            JobFate::GoesOn,
            Bound::Lease,
            |scene| {
                scene.strike();
                scene.node.freeze()
            },
        )
        .mend(|scene| scene.node.thaw()),
    ],
};
