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
        Row::new(
            "the node is slowed",
            "A token bucket of 512 kbit/s and 300 ms of queue on the node's cable, both ways (there is no netem here)",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| {
                scene.strike();
                scene.node.slow()?;
                scene.longer_than_the_lease()?;
                scene.until_answered(20)
            },
        )
        .mend(|scene| scene.node.restore()),
        Row::new(
            "the node loses its power",
            "Its cable is pulled and all of its processes die at once; it boots, with nothing left of what was in memory",
            Fate::Forgotten,
            JobFate::Is("NODE_FAIL"),
            Bound::Lease,
            |scene| {
                scene.strike();
                scene.node.power_cut()
            },
        )
        .arguments(&["--no-requeue"])
        .mend(|scene| {
            // slurmctld misses a batch job at a node's registration only once it is older than BatchStartTimeout and half of MessageTimeout.
            scene.longer_than_the_lease()?;
            scene.node.boot()?;
            scene.site.start_agent(scene.node)
        }),
    ],
};
