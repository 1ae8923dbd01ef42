//! Entries of models that are gone, and whose keeper is gone too: a node that was lost, an agent that never came back.
//!
//! Removed only if Slurm says so twice, a while apart, and nobody answers for it:
//!
//! ```text
//!   held ─▶ Slurm: job over, or node down ─▶ … PAUSE … ─▶ the same again, still held ─▶ neither agent nor guard answers ─▶ at most a fifth ─▶ removed
//! ```
//!
//! What Slurm can't say, or says nothing of, is no reason. Two who sweep at once remove the same, which is no harm: an entry is removed by the
//! catalog's own id, and one that is entered anew has another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::http::Trouble;
use super::plan::Held;
use super::{Foreign, Settings, World};

/// Of all entries, so many at most in a pass, unless it is forced: a Slurm that errs must not empty a catalog.
const SHARE: usize = 5;

/// What is known of the models' jobs and nodes.
#[tonic::async_trait]
pub trait Slurm: Send + Sync + std::fmt::Debug {
    /// Is the job over, or elsewhere, or the node down? An error, as is an answer without a word, is no reason for anything.
    async fn is_gone(&self, job_id: u32, node: &str) -> Result<bool, String>;

    /// Does the node's agent answer, or the guard at this address?
    async fn answers(&self, node: &str, url: &str) -> bool;
}

/// What becomes of one entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Judgement {
    /// It is removed.
    Remove,
    /// It stays, because.
    Stay(String),
}

/// Looks once: which entries of `cluster` Slurm says are gone.
pub async fn suspects(held: &[Held], cluster: &str, slurm: &dyn Slurm) -> Result<BTreeSet<String>, String> {
    let mut asked: BTreeMap<(u32, &str), bool> = BTreeMap::new();
    let mut suspects = BTreeSet::new();
    for one in held.iter().filter(|one| one.cluster == cluster && !one.leaving) {
        let place = (one.job_id, one.node.as_str());
        let gone = match asked.get(&place) {
            Some(gone) => *gone,
            None => slurm.is_gone(one.job_id, &one.node).await?,
        };
        asked.insert(place, gone);
        if gone {
            suspects.insert(one.at.clone());
        }
    }
    Ok(suspects)
}

/// Decides on every entry of `cluster`: `before` were suspects a while ago.
pub async fn judge(
    held: &[Held],
    before: &BTreeSet<String>,
    cluster: &str,
    slurm: &dyn Slurm,
    force: bool,
) -> Result<Vec<(Held, Judgement)>, String> {
    let ours: Vec<&Held> = held
        .iter()
        .filter(|one| one.cluster == cluster && !one.leaving)
        .collect();
    let now = suspects(held, cluster, slurm).await?;
    let most = match force {
        true => usize::MAX,
        false => ours.len().div_ceil(SHARE),
    };
    let (mut judged, mut removed) = (Vec::new(), 0);
    for one in ours {
        let judgement = if !now.contains(&one.at) {
            Judgement::Stay("its job is on its node".into())
        } else if !before.contains(&one.at) {
            Judgement::Stay("Slurm says for the first time that it is gone".into())
        } else if slurm.answers(&one.node, &one.url).await {
            Judgement::Stay("its agent or its guard answers, and will see to it".into())
        } else if removed >= most {
            Judgement::Stay(format!(
                "more than a fifth of {} entries would go; --force removes them",
                held.len()
            ))
        } else {
            removed += 1;
            Judgement::Remove
        };
        judged.push((one.clone(), judgement));
    }
    Ok(judged)
}

/// The whole of it, `pause` between the two looks. What was decided, and with `remove` also done.
pub async fn look_twice(
    foreign: &dyn Foreign,
    cluster: &str,
    slurm: &dyn Slurm,
    pause: Duration,
    force: bool,
    remove: bool,
) -> Result<Vec<(Held, Judgement)>, Trouble> {
    let own = Trouble::Own;
    let before = suspects(&foreign.held().await?, cluster, slurm)
        .await
        .map_err(own)?;
    if before.is_empty() {
        let held = foreign.held().await?;
        return judge(&held, &before, cluster, slurm, force).await.map_err(own);
    }
    tokio::time::sleep(pause).await;
    let judged = judge(&foreign.held().await?, &before, cluster, slurm, force)
        .await
        .map_err(own)?;
    if remove {
        for (held, judgement) in &judged {
            if *judgement == Judgement::Remove {
                tracing::warn!(
                    "{} ({}) of job {} on {} is swept: it is gone, and nobody answers for it",
                    held.name,
                    held.id,
                    held.job_id,
                    held.node
                );
                foreign.remove(held).await?;
            }
        }
        foreign.flush().await?;
    }
    Ok(judged)
}

/// Sweeps one catalog now and then.
#[derive(Debug)]
pub struct Sweeper {
    /// Of the catalog.
    pub settings: Settings,
    /// The catalog.
    pub foreign: Arc<dyn Foreign>,
    /// Who is asked.
    pub slurm: Arc<dyn Slurm>,
}

impl Sweeper {
    /// Until dropped. Every keeper of a catalog does so, not all at once.
    pub async fn sweep(self, mut world: watch::Receiver<Arc<World>>) {
        let every = self.settings.sweep_every;
        if every.is_zero() {
            return;
        }
        loop {
            tokio::time::sleep(every.mul_f64(rand::random_range(0.5..=1.5))).await;
            let known = world.wait_for(|world| world.cluster.is_some()).await;
            let Some(cluster) = known.ok().and_then(|world| world.cluster.clone()) else {
                return;
            };
            let (foreign, slurm, pause) = (&*self.foreign, &*self.slurm, self.settings.sweep_pause);
            if let Err(trouble) = look_twice(foreign, &cluster, slurm, pause, false, true).await {
                tracing::warn!("catalog {}: not swept: {trouble}", self.settings.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs that are gone, and nodes that answer.
    #[derive(Debug)]
    struct Known {
        gone: Vec<u32>,
        answering: Vec<&'static str>,
        silent: bool,
    }

    #[tonic::async_trait]
    impl Slurm for Known {
        async fn is_gone(&self, job_id: u32, _node: &str) -> Result<bool, String> {
            match self.silent {
                true => Err("squeue answered nothing".into()),
                false => Ok(self.gone.contains(&job_id)),
            }
        }

        async fn answers(&self, node: &str, _url: &str) -> bool {
            self.answering.contains(&node)
        }
    }

    fn held(job_id: u32, node: &str) -> Held {
        Held {
            at: format!("at-{job_id}"),
            id: format!("{job_id}.0.1-a"),
            cluster: "c".into(),
            node: node.into(),
            job_id,
            ..Held::default()
        }
    }

    fn all(jobs: u32) -> Vec<Held> {
        (1..=jobs).map(|job| held(job, &format!("n{job}"))).collect()
    }

    async fn removed(held: &[Held], before: &[u32], slurm: &Known, force: bool) -> Vec<u32> {
        let before = before.iter().map(|job| format!("at-{job}")).collect();
        let judged = judge(held, &before, "c", slurm, force).await.unwrap();
        let removed = judged.into_iter().filter(|(_, it)| *it == Judgement::Remove);
        removed.map(|(held, _)| held.job_id).collect()
    }

    fn gone(jobs: &[u32]) -> Known {
        Known {
            gone: jobs.to_vec(),
            answering: vec![],
            silent: false,
        }
    }

    #[tokio::test]
    async fn only_what_is_gone_twice_is_removed() {
        assert_eq!(removed(&all(10), &[1], &gone(&[1, 2]), false).await, [1]);
        assert!(removed(&all(10), &[1], &gone(&[2]), false).await.is_empty());
    }

    #[tokio::test]
    async fn what_somebody_answers_for_stays() {
        let slurm = Known {
            answering: vec!["n1"],
            ..gone(&[1])
        };
        assert!(removed(&all(10), &[1], &slurm, true).await.is_empty());
    }

    #[tokio::test]
    async fn at_most_a_fifth_goes_unless_forced() {
        let jobs: Vec<u32> = (1..=10).collect();
        assert_eq!(removed(&all(10), &jobs, &gone(&jobs), false).await.len(), 2);
        assert_eq!(removed(&all(10), &jobs, &gone(&jobs), true).await.len(), 10);
        assert_eq!(removed(&all(1), &[1], &gone(&[1]), false).await, [1]);
    }

    #[tokio::test]
    async fn a_slurm_that_does_not_know_removes_nothing() {
        let slurm = Known {
            silent: true,
            ..gone(&[1])
        };
        assert!(
            judge(&all(3), &BTreeSet::from(["at-1".into()]), "c", &slurm, true)
                .await
                .is_err()
        );
        assert!(suspects(&all(3), "c", &slurm).await.is_err());
    }

    #[tokio::test]
    async fn other_clusters_are_nobodys_business() {
        let stranger = Held {
            cluster: "d".into(),
            ..held(1, "n1")
        };
        assert!(removed(&[stranger], &[1], &gone(&[1]), true).await.is_empty());
    }
}
