//! The catalog can't be reached: the gateway is away, frozen, or behind a cut cable.

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use crate::endings::row::{Bound, Fate, Group, JobFate, Row};
use crate::endings::scene::Scene;

pub const GROUP: Group = Group {
    title: "The catalog cannot be reached",
    text: "A gateway holds no state: it knows everything again once it has heard the agents. No model waits for it, to start or to end, longer \
           than `settle_timeout`.",
    rows: &[
        Row::new(
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
        .core(),
        Row::new(
            "the gateway hangs",
            "SIGSTOP to the gateway for one and a half leases, then SIGCONT",
            Fate::Returns,
            JobFate::GoesOn,
            Bound::Shown,
            |scene| {
                scene.strike();
                scene.site.signal_gateway(Signal::SIGSTOP)?;
                scene.longer_than_the_lease()
            },
        )
        .mend(|scene| scene.site.signal_gateway(Signal::SIGCONT)),
        Row::new(
            "the gateway is away when a model comes",
            "The gateway is killed; another job's model becomes ready without it, and is found once the gateway is there",
            Fate::Returns,
            JobFate::GoesOn,
            Bound::Shown,
            |scene| {
                scene.strike();
                scene.site.stop_gateway()
            },
        )
        .mend(comes_without_gateway),
        Row::new(
            "the gateway is cut off",
            "The gateway's cable is pulled for one and a half leases, and plugged in again",
            Fate::Returns,
            JobFate::GoesOn,
            Bound::Lease,
            |scene| {
                scene.strike();
                scene.site.lab.login().cut()?;
                scene.longer_than_the_lease()
            },
        )
        .mend(|scene| scene.site.lab.login().restore()),
        Row::new(
            "the gateway is cut off when a model ends",
            "The gateway's cable is pulled and the job cancelled: it ends all the same; when the cable is in again nobody is sent there",
            Fate::Ends("cancelled"),
            JobFate::Is("CANCELLED"),
            Bound::Lease,
            |scene| {
                scene.strike();
                scene.site.lab.login().cut()?;
                scene.slurm(&["scancel", &scene.id()])?;
                scene.until("the job to end without a gateway", || {
                    Ok(scene.slurm(&["squeue", "-h", "-j", &scene.id()])?.trim().is_empty())
                })
            },
        )
        .mend(|scene| scene.site.lab.login().restore()),
    ],
};

fn comes_without_gateway(scene: &Scene) -> Result<()> {
    let arguments = ["-w", scene.site.node(2).name(), "--serve-model=stub"];
    let other = scene
        .site
        .sbatch("bob", &arguments, "echo model $SERVE_MODEL; sleep 300")?;
    other.wait_output("model stub")?;
    scene.site.start_gateway()?;
    scene.until("the other model at the gateway", || {
        Ok(scene.site.models()?.contains(&"stub".to_owned()))
    })?;
    let (status, body) = scene.site.ask("stub", "")?;
    ensure!(status == 200, "{status}: {body}");
    Ok(())
}
