//! What a waiting job shows in its stderr, and what it says when the waiting is over.

use std::time::{Duration, Instant};

use slurm_serve_proto::v1::{Cause, Ending, Model, ModelState};

/// The least time between two lines that only show progress within one state.
const BETWEEN_LINES: Duration = Duration::from_secs(5);
/// A line that says nothing new still says that somebody is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);
/// What of a foreign text goes into one line.
const LONGEST: usize = 400;

/// Decides which lines a waiting job shows: each change of state at once, the engine's progress at most every five seconds.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    shown: Option<Shown>,
}

#[derive(Debug)]
struct Shown {
    at: Instant,
    state: ModelState,
    text: String,
}

impl Progress {
    /// The waiting began at `started`.
    pub fn since(started: Instant) -> Self {
        Self { started, shown: None }
    }

    /// The line to show now, if any.
    pub fn line(&mut self, model: &Model, now: Instant) -> Option<String> {
        let state = model.state();
        let text = one_line(&model.progress);
        let due = self.shown.as_ref().is_none_or(|shown| {
            let age = now.duration_since(shown.at);
            state != shown.state || age >= BETWEEN_LINES && text != shown.text || age >= SIGN_OF_LIFE
        });
        if !due {
            return None;
        }
        let seconds = now.duration_since(self.started).as_secs();
        let mut line = format!(
            "serve: {}: {}, {seconds} s",
            one_line(&model.name),
            state_word(state)
        );
        if !text.is_empty() {
            line = format!("{line}: {text}");
        }
        self.shown = Some(Shown { at: now, state, text });
        Some(line)
    }

    /// Whether there was anything to wait for.
    pub fn has_shown(&self) -> bool {
        self.shown.is_some()
    }

    /// The last line of a wait that ended well.
    pub fn ready(&self, model: &Model, now: Instant) -> String {
        let name = one_line(&model.name);
        let seconds = now.duration_since(self.started).as_secs();
        let place = &model.base_url;
        match model.state() {
            ModelState::Ready | ModelState::Retiring => {
                format!("serve: {name}: ready after {seconds} s at {place}")
            }
            state => format!(
                "serve: {name}: {}; it will be at {place} once ready",
                state_word(state)
            ),
        }
    }
}

/// A state as people read it.
pub fn state_word(state: ModelState) -> &'static str {
    match state {
        ModelState::Unspecified => "in a state this plugin does not know",
        ModelState::Requested => "requested",
        ModelState::Launching => "launching",
        ModelState::Loading => "loading",
        ModelState::Ready => "ready",
        ModelState::Draining => "draining",
        ModelState::Ended => "ended",
        ModelState::Failed => "failed",
        ModelState::Unresponsive => "not answering",
        ModelState::Retiring => "ready, and its job's end is near",
        ModelState::Restarting => "being started again",
    }
}

/// How it ends. One that fails drains for a moment too, and what matters is that it failed.
fn end_word(model: &Model) -> &'static str {
    let asked = |cause| {
        use Cause::*;
        matches!(
            cause,
            JobEnded | Cancelled | TimeLimit | Preempted | Requeued | Stopped
        )
    };
    match (model.state(), &model.ending) {
        (ModelState::Draining, Some(ending)) if !asked(ending.cause()) => state_word(ModelState::Failed),
        (state, _) => state_word(state),
    }
}

/// What to say of a model that is over before the job could use it: what happened, what to do, where the log is.
pub fn ending_lines(model: &Model) -> Vec<String> {
    let nothing = Ending::default();
    let ending = model.ending.as_ref().unwrap_or(&nothing);
    let what = match one_line(&ending.text) {
        text if text.is_empty() => "the agent gave no reason".to_owned(),
        text => text,
    };
    let mut lines = vec![format!(
        "serve: {}: {}: {what}",
        one_line(&model.name),
        end_word(model)
    )];
    if !ending.hint.is_empty() {
        lines.push(format!("serve: what to do: {}", one_line(&ending.hint)));
    }
    let log = [&ending.log_path, &model.log_path]
        .into_iter()
        .find(|path| !path.is_empty());
    if let Some(log) = log {
        lines.push(format!(
            "serve: its log: {} on {}",
            one_line(log),
            one_line(&model.node)
        ));
    }
    lines
}

/// Foreign text as one printable line of bounded length.
pub fn one_line(text: &str) -> String {
    let clean = text.split(char::is_control).filter(|part| !part.is_empty());
    let line = clean.collect::<Vec<_>>().join(" ");
    let line = line.trim();
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(state: ModelState, progress: &str) -> Model {
        Model {
            name: "m".into(),
            state: state.into(),
            progress: progress.into(),
            base_url: "http://n1:18100/v1".into(),
            ..Model::default()
        }
    }

    #[test]
    fn a_new_state_is_shown_at_once_and_new_text_every_five_seconds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = Progress::since(start);
        let mut line = |state, text, seconds| progress.line(&model(state, text), at(seconds));
        assert_eq!(
            line(ModelState::Launching, "", 0).unwrap(),
            "serve: m: launching, 0 s"
        );
        assert_eq!(line(ModelState::Launching, "", 4), None);
        assert_eq!(
            line(ModelState::Loading, "shards 1/4", 5).unwrap(),
            "serve: m: loading, 5 s: shards 1/4"
        );
        assert_eq!(line(ModelState::Loading, "shards 2/4", 7), None);
        assert_eq!(
            line(ModelState::Loading, "shards 3/4", 10).unwrap(),
            "serve: m: loading, 10 s: shards 3/4"
        );
        assert_eq!(line(ModelState::Loading, "shards 3/4", 60), None);
        assert!(line(ModelState::Loading, "shards 3/4", 70).is_some());
        assert_eq!(
            progress.ready(&model(ModelState::Ready, ""), at(75)),
            "serve: m: ready after 75 s at http://n1:18100/v1"
        );
    }

    #[test]
    fn an_end_says_what_happened_what_to_do_and_where_the_log_is() {
        let mut failed = model(ModelState::Failed, "");
        failed.node = "n1".into();
        assert_eq!(
            ending_lines(&failed),
            ["serve: m: failed: the agent gave no reason"]
        );
        failed.ending = Some(Ending {
            text: "no weights at /w".into(),
            hint: "ask for\nthem".into(),
            log_path: "/home/u/serve-7.log".into(),
            ..Ending::default()
        });
        assert_eq!(
            ending_lines(&failed),
            [
                "serve: m: failed: no weights at /w",
                "serve: what to do: ask for them",
                "serve: its log: /home/u/serve-7.log on n1",
            ]
        );
    }

    #[test]
    fn one_that_fails_has_failed_while_it_still_drains() {
        let mut draining = model(ModelState::Draining, "");
        let ending = |cause: Cause| Ending {
            cause: cause.into(),
            text: "why".into(),
            ..Ending::default()
        };
        draining.ending = Some(ending(Cause::EngineDied));
        assert_eq!(ending_lines(&draining), ["serve: m: failed: why"]);
        draining.ending = Some(ending(Cause::Stopped));
        assert_eq!(ending_lines(&draining), ["serve: m: draining: why"]);
    }

    #[test]
    fn foreign_text_stays_one_bounded_line() {
        assert_eq!(one_line("a\r\n\u{1b}[31mb\0c"), "a [31mb c");
        assert_eq!(one_line(&"ä".repeat(1000)).chars().count(), LONGEST + 1);
    }
}
