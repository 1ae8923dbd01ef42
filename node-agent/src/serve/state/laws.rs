//! What holds of every step of a life, whatever comes in whatever order. The tests beside this one hold [`Life::step`] to it: `random` with
//! long sequences of anything, `exhaustive` with every state that a small world can get to.

use super::*;

/// One step, as it was taken.
pub struct Step<'a> {
    pub before: &'a Life,
    pub event: &'a Event,
    pub after: &'a Life,
    pub actions: &'a [Action],
}

/// A law: its name and whether it holds.
pub type Law = (&'static str, fn(&Step) -> bool);

/// All of them.
pub const LAWS: &[Law] = &[
    ("what is over stays as it is", |step| {
        !step.before.is_final() || (step.before == step.after && step.actions.is_empty())
    }),
    (
        "it closes exactly when it is over, and lets go of its step then",
        |step| {
            let closes = count(step, |action| matches!(action, Action::Close { .. }));
            let becomes_final = !step.before.is_final() && step.after.is_final();
            closes == usize::from(becomes_final) && (closes == 0 || has(step, &Action::KillStep))
        },
    ),
    ("it has failed if and only if nobody asked for its end", |step| {
        let asked = step
            .after
            .ending
            .as_ref()
            .is_some_and(|ending| is_asked(ending.cause()));
        match step.after.state {
            ModelState::Failed => step.after.asked.is_none() && !asked && has_closed(step, true),
            ModelState::Ended => (step.after.asked.is_some() || asked) && has_closed(step, false),
            _ => true,
        }
    }),
    (
        "the catalog has it only while it answers, and nobody has asked for its end",
        |step| {
            let life = step.after;
            life.state != ModelState::Ready
                || (life.was_ready
                    && !life.silent
                    && !life.frozen
                    && !life.late
                    && life.asked.is_none()
                    && life.ending.is_none())
        },
    ),
    (
        "whoever is ready, heard, and far from the end is in the catalog",
        |step| {
            let life = step.after;
            let hidden = matches!(life.state, ModelState::Unresponsive | ModelState::Retiring);
            !hidden || life.silent || life.frozen || life.late
        },
    ),
    ("within an attempt it only goes forward", |step| {
        step.before.attempt != step.after.attempt || rank(step.before.state) <= rank(step.after.state)
    }),
    (
        "attempts are counted, bounded, and only made of what was ready",
        |step| {
            let (before, after) = (step.before.attempt, step.after.attempt);
            before <= after
                && after <= step.after.max_attempts
                && step.after.run <= after
                && (before == after || step.before.ever_ready || !from_the_runner_itself(step))
        },
    ),
    (
        "another attempt is told, with why the last one failed, and begins outside of the catalog",
        |step| {
            let another = step.before.attempt != step.after.attempt;
            has(step, &Action::NewAttempt) == another
                && (!another || (step.before.state != ModelState::Draining && step.before.asked.is_none()))
        },
    ),
    ("what is of another run changes nothing", |step| {
        let Event::Of(run, _) = step.event else {
            return true;
        };
        *run == step.before.run || (step.before == step.after && step.actions.is_empty())
    }),
    ("no step is started while there is another", |step| {
        !has(step, &Action::StartStep)
            || (step.before.steps == 0 && step.after.steps == 1 && !step.after.attached)
    }),
    (
        "a run is given up for another only with its step killed",
        |step| {
            step.before.run == step.after.run
                || (has(step, &Action::KillStep) && has(step, &Action::RestartLater))
        },
    ),
    (
        "requests are refused only by one that was told to drain, and after its catalogs let go",
        |step| {
            !has(step, &Action::SendReleased)
                || (*step.event == Event::Released && step.before.state == ModelState::Draining)
        },
    ),
    (
        "one that begins to drain while its runner is there asks for its release",
        |step| {
            let begins =
                step.before.state != ModelState::Draining && step.after.state == ModelState::Draining;
            !begins || !step.before.attached || has(step, &Action::AwaitRelease)
        },
    ),
    ("nothing outlives its job", |step| {
        *step.event != Event::JobEnded || step.after.is_final()
    }),
    (
        "the cause of an end that was asked for is what was asked for, unless it failed before it got there",
        |step| {
            let (Some(asked), Some(ending)) = (step.after.asked, &step.after.ending) else {
                return true;
            };
            !step.after.is_final() || ending.cause() == asked || !is_asked(ending.cause())
        },
    ),
];

/// The first law that this step breaks.
pub fn broken(step: &Step) -> Option<&'static str> {
    LAWS.iter().find(|(_, holds)| !holds(step)).map(|(name, _)| *name)
}

fn has(step: &Step, action: &Action) -> bool {
    step.actions.contains(action)
}

fn has_closed(step: &Step, failed: bool) -> bool {
    step.before.is_final() || has(step, &Action::Close { failed })
}

fn count(step: &Step, what: fn(&Action) -> bool) -> usize {
    step.actions.iter().filter(|action| what(action)).count()
}

/// A runner may count as it likes: what it says of its own attempts was never ours to see ready.
fn from_the_runner_itself(step: &Step) -> bool {
    !matches!(step.event, Event::Of(_, RunEvent::Facts(_)))
}

/// How far an attempt has come.
fn rank(state: ModelState) -> u8 {
    match state {
        ModelState::Unspecified | ModelState::Requested | ModelState::Restarting => 0,
        ModelState::Launching => 1,
        ModelState::Loading => 2,
        ModelState::Ready | ModelState::Unresponsive | ModelState::Retiring => 3,
        ModelState::Draining => 4,
        ModelState::Ended | ModelState::Failed => 5,
    }
}
