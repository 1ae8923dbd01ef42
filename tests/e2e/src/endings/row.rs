//! One scenario: what is done, and what must come of it.

use std::time::Duration;

use anyhow::Result;

use super::scene::Scene;

/// What becomes of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It serves on, and never leaves the catalog.
    Stays,
    /// It ends, because somebody asked for it by this cause.
    Ends(&'static str),
    /// It fails by this cause.
    Fails(&'static str),
    /// It leaves the catalog, and is there again once what was broken is mended.
    Returns,
    /// It is over by this cause, and another launch takes its place.
    Anew(&'static str),
    /// It is lost by this cause, and started again for the same job, at the same address.
    Again(&'static str),
    /// It leaves the catalog, and nobody knows of it any more.
    Forgotten,
}

/// What becomes of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobFate {
    /// It goes on, and its script's own exit code is the job's in the end.
    GoesOn,
    /// It is over, and Slurm's state and exit code begin like this: `CANCELLED`, `FAILED 7:0`.
    Is(&'static str),
    /// It runs once more.
    RunsAgain,
}

/// What must hold of the requests, or how soon the model must be out of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// No request is lost: each is answered, or told in order that the model ends.
    NoneLost,
    /// Out of the catalog within this, and from then on no request is lost.
    Gone(Duration),
    /// The same with the site's lease: a node that is lost without a word.
    Lease,
    /// No bound is named; how long it took is shown all the same.
    Shown,
}

/// Scenarios of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// Its heading.
    pub title: &'static str,
    /// A sentence or two on what they have in common.
    pub text: &'static str,
    /// In the order of the page.
    pub rows: &'static [Row],
}

/// One scenario. Made by [`Row::new`], and shaped by the methods after it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// What the table calls it, and filters go by. Unique.
    pub name: &'static str,
    /// What is done, one sentence without its full stop.
    pub done: &'static str,
    /// What must become of the model.
    pub fate: Fate,
    /// What must become of the job.
    pub job: JobFate,
    /// What must hold meanwhile.
    pub bound: Bound,
    /// Does it; [`Scene::strike`] marks the moment from which the bound counts.
    pub act: fn(&Scene) -> Result<()>,
    /// Puts right what was broken, and whatever else is to be seen once the model's fate is.
    pub mend: Option<fn(&Scene) -> Result<()>>,
    /// Options of sbatch beyond the node and the model.
    pub arguments: &'static [&'static str],
    /// The job's script.
    pub script: &'static str,
    /// The recipe.
    pub model: &'static str,
    /// Words that `sserve status` must have of what happened.
    pub says: &'static [&'static str],
    /// Words that the server's log must have in its end.
    pub log: &'static [&'static str],
    /// Whether it stands for the rest: in `make test`, and in CI on all releases.
    pub core: bool,
    /// Whether the soak may play it: short, and of no harm to others on the node.
    pub soak: bool,
    /// Why it can't be as it should yet.
    pub pending: Option<&'static str>,
}

/// Waits until the test says so, and ends with a code that nobody else would think of.
pub const WAITING: &str = "until [ -e go-$SLURM_JOB_ID ]; do sleep 0.1; done; exit 3";

/// What Slurm makes of it.
pub const WAITING_ENDED: &str = "FAILED 3:0";

impl Row {
    /// A scenario with one job of alice's on the first node, whose script waits for the test.
    pub const fn new(
        name: &'static str,
        done: &'static str,
        fate: Fate,
        job: JobFate,
        bound: Bound,
        act: fn(&Scene) -> Result<()>,
    ) -> Self {
        Self {
            name,
            done,
            fate,
            job,
            bound,
            act,
            mend: None,
            arguments: &[],
            script: WAITING,
            model: "busy",
            says: &[],
            log: &[],
            core: false,
            soak: false,
            pending: None,
        }
    }

    /// See [`Row::mend`].
    pub const fn mend(mut self, mend: fn(&Scene) -> Result<()>) -> Self {
        self.mend = Some(mend);
        self
    }

    /// See [`Row::arguments`].
    pub const fn arguments(mut self, arguments: &'static [&'static str]) -> Self {
        self.arguments = arguments;
        self
    }

    /// See [`Row::script`].
    pub const fn script(mut self, script: &'static str) -> Self {
        self.script = script;
        self
    }

    /// See [`Row::model`].
    pub const fn model(mut self, model: &'static str) -> Self {
        self.model = model;
        self
    }

    /// See [`Row::says`].
    pub const fn says(mut self, words: &'static [&'static str]) -> Self {
        self.says = words;
        self
    }

    /// See [`Row::log`].
    pub const fn log(mut self, log: &'static [&'static str]) -> Self {
        self.log = log;
        self
    }

    /// See [`Row::core`].
    pub const fn core(mut self) -> Self {
        self.core = true;
        self
    }

    /// See [`Row::soak`].
    pub const fn soak(mut self) -> Self {
        self.soak = true;
        self
    }

    /// See [`Row::pending`].
    pub const fn pending(mut self, why: &'static str) -> Self {
        self.pending = Some(why);
        self
    }

    /// What is expected, in words.
    pub fn expected(&self) -> String {
        let model = match self.fate {
            Fate::Stays => "serves on".to_owned(),
            Fate::Ends(cause) => format!("ended: {cause}"),
            Fate::Fails(cause) => format!("failed: {cause}"),
            Fate::Returns => "out, and back".to_owned(),
            Fate::Anew(cause) => format!("{cause}; a new one"),
            Fate::Again(cause) => format!("{cause}; started again"),
            Fate::Forgotten => "gone".to_owned(),
        };
        let job = match self.job {
            JobFate::GoesOn => "job goes on",
            JobFate::Is(state) => state,
            JobFate::RunsAgain => "job runs again",
        };
        format!("{model} · {job}")
    }
}

impl Bound {
    /// In words; `lease` is the site's.
    pub fn text(&self, lease: Duration) -> String {
        match self {
            Self::NoneLost => "0 lost".to_owned(),
            Self::Gone(within) => format!("≤ {} s", within.as_secs_f64()),
            Self::Lease => format!("≤ {} s", lease.as_secs_f64()),
            Self::Shown => "–".to_owned(),
        }
    }
}
