//! Staying with one model until it is where somebody wants it, across restarts of its agent.

use std::ops::ControlFlow;
use std::time::Duration;

use slurm_serve_proto::v1::Model;
use tokio::time::Instant;

use crate::agent::{Trouble, silent};
use crate::failure::{Exit, Failure};
use crate::find::Found;
use crate::out;

/// How long one question stays open at the agent.
const ONE_QUESTION: Duration = Duration::from_secs(10);
/// Between two questions to an agent that does not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// How long an agent may be away before the follower gives up. Models run on without their agent.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// It does not answer. `None`: for ever, where something else ends the waiting (the job itself).
    pub silent: Option<Duration>,
    /// It answers, but knows the model no more: after a restart, until the runners are back.
    pub forgotten: Duration,
}

/// Calls `seen` with the model, whether the job is being ended, at once and whenever something changed, until it breaks.
pub async fn follow<T>(
    found: &Found,
    patience: Patience,
    mut seen: impl FnMut(&Model, bool) -> ControlFlow<T>,
) -> Result<T, Failure> {
    if let ControlFlow::Break(end) = seen(&found.model, false) {
        return Ok(end);
    }
    let mut revision = 0;
    let mut away: Option<Instant> = None;
    loop {
        let answer = found
            .agent
            .await_model(found.job_id, revision, ONE_QUESTION)
            .await;
        let trouble = match answer {
            Ok(answer) => {
                if away.take().is_some() {
                    out::note(format!("the agent of {} answers again", found.agent.node()));
                }
                revision = answer.revision;
                if let Some(model) = &answer.model
                    && let ControlFlow::Break(end) = seen(model, answer.job_ending)
                {
                    return Ok(end);
                }
                continue;
            }
            Err(Trouble::Refused(why)) => {
                return Err(found.agent.failure(Trouble::Refused(why), found.job_id));
            }
            Err(trouble) => trouble,
        };
        // What it told in a former life counts for nothing.
        revision = 0;
        let since = *away.get_or_insert_with(|| {
            out::note(match &trouble {
                Trouble::Silent(why) => format!("{why}; the model runs on without it; asking again"),
                _ => format!(
                    "the agent of {} does not know job {} (any more); asking again",
                    found.agent.node(),
                    found.job_id
                ),
            });
            Instant::now()
        });
        let limit = match &trouble {
            Trouble::Silent(_) => patience.silent,
            _ => Some(patience.forgotten),
        };
        if limit.is_some_and(|limit| since.elapsed() >= limit) {
            return Err(match trouble {
                Trouble::Silent(why) => Failure::new(
                    Exit::Unreachable,
                    format!("{} (asked for {:?})", silent(&why), since.elapsed()),
                ),
                _ => Failure::failed(format!(
                    "the agent of {} has lost the model of job {}: it was restarted, and the model's runner did not come back",
                    found.agent.node(),
                    found.job_id
                )),
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Decides which lines somebody who waits is shown: each new state at once, the engine's progress at most every few seconds.
#[derive(Debug, Default)]
pub struct Told {
    state: String,
    progress: String,
    at: Option<Instant>,
}

impl Told {
    const BETWEEN: Duration = Duration::from_secs(5);

    /// Whether a model in `state` with `progress` is news now.
    pub fn is_news(&mut self, state: &str, progress: &str, now: Instant) -> bool {
        let due = self.at.is_none_or(|at| now.duration_since(at) >= Self::BETWEEN);
        let news = self.state != state || due && self.progress != progress;
        if news {
            *self = Self {
                state: state.into(),
                progress: progress.into(),
                at: Some(now),
            };
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_at_once_and_progress_now_and_then() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut told = Told::default();
        assert!(told.is_news("launching", "", at(0)));
        assert!(!told.is_news("launching", "", at(60)));
        assert!(told.is_news("loading", "1/4", at(61)));
        assert!(!told.is_news("loading", "2/4", at(62)));
        assert!(told.is_news("loading", "3/4", at(66)));
        assert!(!told.is_news("loading", "3/4", at(90)));
        assert!(told.is_news("ready", "3/4", at(90)));
    }
}
