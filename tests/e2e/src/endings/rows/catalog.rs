//! The catalog can't be reached: the gateway is away, frozen, or behind a cut cable.

use crate::endings::row::{Bound, Fate, Group, JobFate, Row};

pub const GROUP: Group = Group {
    title: "The catalog cannot be reached",
    text: "A gateway holds no state: it knows everything again once it has heard the agents.",
    rows: &[Row::new(
        "the gateway is restarted",
        "The gateway is killed and started again",
        Fate::Returns,
        JobFate::GoesOn,
        Bound::Shown,
        |scene| {
            scene.strike();
            scene.site.stop_gateway()
        },
    )
    .mend(|scene| scene.site.start_gateway())
    .core()],
};
