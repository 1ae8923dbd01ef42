//! All of it together: who acts when, and what the messages between them are.

use std::collections::VecDeque;

use slurm_serve_proto::v1::{Cause, ModelState, RunnerPhase};

use super::super::{Event, Facts, Kept, RunEvent};
use super::agent::{Agent, Out};
use super::runner::Runner;

/// Facts on their way; a newer one takes the place of the last that waits.
const ON_THE_WAY: usize = 2;

/// How often what may go wrong does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Faults {
    /// The agent is killed; it comes back.
    pub agent_kills: u8,
    /// The runner is killed.
    pub runner_kills: u8,
    /// The engine dies.
    pub engine_losses: u8,
    /// The stream between runner and agent breaks.
    pub broken_lines: u8,
    /// Slurm does not start the step, for a passing reason.
    pub refused_steps: u8,
    /// The engine stops to answer, and answers again.
    pub silences: u8,
    /// A gateway that does not let go in time.
    pub settles: u8,
    /// A runner that is not heard of for a while.
    pub quiets: u8,
}

impl Faults {
    /// All goes well.
    pub const NONE: Self = Self {
        agent_kills: 0,
        runner_kills: 0,
        engine_losses: 0,
        broken_lines: 0,
        refused_steps: 0,
        silences: 0,
        settles: 0,
        quiets: 0,
    };
}

/// How far the job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Job {
    Running,
    /// Slurm has signalled its steps.
    Ending,
    Over,
}

/// The stream between runner and agent. Both ends may be told by what is in it after it broke.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Line {
    to_agent: VecDeque<Facts>,
    to_runner: VecDeque<Out>,
    broken: bool,
}

/// srun, while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Srun {
    run: u32,
    /// Its runner is there, or was.
    started: bool,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    agent: Option<Agent>,
    /// On disk; none once it is over.
    kept: Option<Kept>,
    job: Job,
    /// The agent has heard of the job's end.
    end_told: bool,
    client: Option<Srun>,
    /// The agent has seen this run's runner; on disk as well.
    known: bool,
    /// It is to be killed, and what it started with it.
    killing: bool,
    runner: Option<Runner>,
    line: Option<Line>,
    /// The attempt that the gateway sends requests to.
    routed: Option<u32>,
    /// Somebody was killed, or waited no longer: nothing is promised of requests.
    forced: bool,
    /// The agent will not live to carry out what it decides next.
    dying: bool,
    /// The agent was killed before.
    away: bool,
    left: Faults,
    /// A law that did not hold.
    pub broken: Option<&'static str>,
    /// The gateway has let go of what answers, and only because the agent was away.
    pub was_dropped_by_restart: bool,
    max_attempts: u32,
}

/// What may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Act {
    // By itself, sooner or later.
    SrunStartsRunner,
    SrunEnds,
    RunnerAttaches,
    RunnerHears,
    AgentHears,
    AgentSeesBreak,
    AgentSeesDeath,
    AgentSeesSrunEnd,
    RunnerIsSignalled,
    RunnerSaysItLives,
    EngineReady,
    RunnerProceeds,
    RunnerExits,
    RunnerWaitsNoLonger,
    GatewayLooks,
    GatewayAsksGuard,
    Released,
    LaunchDeadline,
    RunnerDeadline,
    Retry,
    Restart,
    AgentStarts,
    KillWaitIsOver,
    Epilog,
    // By fate.
    UserStops,
    JobEnds,
    JobEndsUnheard,
    EndNears(bool),
    SrunRefused,
    EngineLost,
    EngineSilent(bool),
    RunnerKilled,
    LineBreaks,
    AgentKilled,
    AgentDiesActing,
    RunnerQuiet,
    SettleTimeout,
}

impl World {
    /// A model was just asked for.
    pub fn new(max_attempts: u32, left: Faults) -> Self {
        let mut world = Self {
            agent: Some(Agent::new(max_attempts)),
            kept: None,
            job: Job::Running,
            end_told: false,
            client: None,
            known: false,
            killing: false,
            runner: None,
            line: None,
            routed: None,
            forced: false,
            dying: false,
            away: false,
            left,
            broken: None,
            was_dropped_by_restart: false,
            max_attempts,
        };
        world.event(Event::Start);
        world
    }

    /// From now on, so many more faults.
    pub fn may_go_wrong(&mut self, left: Faults) {
        self.left = left;
    }

    /// What goes on by itself.
    pub fn by_itself(&self, acts: &mut Vec<Act>) {
        let mut may = |act, when: bool| {
            if when {
                acts.push(act);
            }
        };
        let agent = self.agent.as_ref();
        let runner = self.runner.as_ref();
        let life = agent.map(|agent| &agent.life);
        let is_open = life.is_some_and(|life| !life.is_final());
        let connected = self.is_connected();

        let (is_new, has_ended) = self.client.map_or((false, false), |srun| {
            (
                !srun.started,
                runner.is_none() && (srun.started || self.killing || self.job != Job::Running),
            )
        });
        may(
            Act::SrunStartsRunner,
            is_new && !self.killing && self.job == Job::Running,
        );
        may(Act::SrunEnds, has_ended);
        may(
            Act::RunnerAttaches,
            agent.is_some() && runner.is_some() && self.line.is_none(),
        );
        may(
            Act::RunnerIsSignalled,
            runner.is_some_and(|runner| runner.ending.is_none()) && (self.killing || self.job == Job::Ending),
        );
        if let Some(line) = &self.line {
            may(
                Act::RunnerHears,
                connected && runner.is_some() && !line.to_runner.is_empty(),
            );
            may(Act::AgentHears, agent.is_some() && !line.to_agent.is_empty());
            may(
                Act::AgentSeesBreak,
                agent.is_some() && line.to_agent.is_empty() && (line.broken || runner.is_none()),
            );
        }
        let is_alone = is_open && self.line.is_none() && runner.is_none();
        may(Act::AgentSeesDeath, is_alone && self.known);
        may(
            Act::AgentSeesSrunEnd,
            is_alone
                && !self.known
                && self.client.is_none()
                && agent.is_some_and(|agent| agent.launch_deadline && !agent.retry),
        );
        may(
            Act::RunnerSaysItLives,
            connected
                && runner.is_some()
                && life.is_some_and(|life| life.frozen)
                && self.line.as_ref().is_some_and(|line| line.to_agent.is_empty()),
        );
        if let Some(runner) = runner {
            may(Act::EngineReady, runner.phase == RunnerPhase::Loading);
            may(Act::RunnerProceeds, runner.clone().proceed());
            may(
                Act::RunnerExits,
                runner.phase == RunnerPhase::Done
                    && (!connected || self.line.as_ref().is_some_and(|line| line.to_agent.is_empty())),
            );
            may(
                Act::RunnerWaitsNoLonger,
                runner.phase == RunnerPhase::Leaving && !runner.released && !connected,
            );
        }
        match agent {
            Some(agent) => {
                may(Act::GatewayLooks, self.routed != self.listed());
                may(
                    Act::Released,
                    agent.leaving && self.routed != Some(agent.life.attempt),
                );
                may(Act::LaunchDeadline, agent.launch_deadline);
                may(Act::RunnerDeadline, agent.runner_deadline);
                may(Act::Retry, agent.retry);
                may(
                    Act::Restart,
                    agent.restart && runner.is_none() && self.client.is_none(),
                );
            }
            None => {
                may(Act::AgentStarts, true);
                may(Act::GatewayAsksGuard, self.routed.is_some());
            }
        }
        may(
            Act::KillWaitIsOver,
            runner.is_some() && (self.killing || self.job == Job::Ending),
        );
        may(
            Act::Epilog,
            self.job != Job::Running && !self.end_told && runner.is_none() && self.client.is_none(),
        );
    }

    /// What somebody does, or what goes wrong.
    pub fn by_fate(&self, acts: &mut Vec<Act>) {
        let mut may = |act, when: bool| {
            if when {
                acts.push(act);
            }
        };
        let left = &self.left;
        let runner = self.runner.as_ref();
        let lives =
            runner.is_some_and(|runner| matches!(runner.phase, RunnerPhase::Loading | RunnerPhase::Ready));
        may(Act::UserStops, self.agent.is_some());
        may(Act::JobEnds, self.job == Job::Running && self.agent.is_some());
        may(Act::JobEndsUnheard, self.job == Job::Running);
        if let Some(agent) = &self.agent {
            may(Act::EndNears(!agent.life.late), true);
        }
        may(
            Act::SrunRefused,
            self.client.is_some_and(|srun| !srun.started) && left.refused_steps > 0,
        );
        may(Act::EngineLost, lives && left.engine_losses > 0);
        if let Some(runner) = runner.filter(|runner| runner.phase == RunnerPhase::Ready) {
            may(
                Act::EngineSilent(!runner.silent),
                runner.silent || left.silences > 0,
            );
        }
        may(Act::RunnerKilled, runner.is_some() && left.runner_kills > 0);
        may(Act::LineBreaks, self.is_connected() && left.broken_lines > 0);
        may(
            Act::AgentKilled,
            self.agent.is_some() && !self.dying && left.agent_kills > 0,
        );
        may(
            Act::AgentDiesActing,
            self.agent.is_some() && !self.dying && left.agent_kills > 0,
        );
        may(Act::RunnerQuiet, self.is_connected() && left.quiets > 0);
        may(
            Act::SettleTimeout,
            left.settles > 0 && self.agent.as_ref().is_some_and(|agent| agent.leaving),
        );
    }

    /// Lets it happen.
    pub fn take(&mut self, act: Act) {
        match act {
            Act::SrunStartsRunner => {
                if let Some(srun) = &mut self.client {
                    srun.started = true;
                    self.runner = Some(Runner::new(srun.run));
                }
            }
            Act::SrunEnds => (self.client, self.killing) = (None, false),
            Act::RunnerAttaches => self.attach(),
            Act::RunnerHears => self.runner_hears(),
            Act::AgentHears => {
                let facts = self.line.as_mut().and_then(|line| line.to_agent.pop_front());
                if let Some(facts) = facts {
                    self.run_event(RunEvent::Facts(Box::new(facts)));
                }
            }
            Act::AgentSeesBreak => {
                self.line = None;
                let what = if self.runner.is_some() {
                    RunEvent::Detached
                } else {
                    RunEvent::RunnerDied
                };
                self.run_event(what);
            }
            Act::AgentSeesDeath => self.run_event(RunEvent::RunnerDied),
            Act::AgentSeesSrunEnd => self.run_event(RunEvent::StepRefused {
                text: "killed".into(),
                passing: false,
            }),
            Act::RunnerIsSignalled => self.runner_is_asked(Cause::JobEnded),
            Act::RunnerSaysItLives => self.runner_does(|_| {}),
            Act::EngineReady => self.runner_does(Runner::ready),
            Act::RunnerProceeds => self.runner_does(|runner| {
                runner.proceed();
            }),
            Act::RunnerExits => self.runner_goes(),
            Act::RunnerWaitsNoLonger => {
                self.forced = true;
                self.runner_does(|runner| runner.released = true);
            }
            Act::GatewayLooks => self.routed = self.listed(),
            Act::GatewayAsksGuard => {
                let answers = self.runner.as_ref().is_some_and(|runner| {
                    Some(runner.attempt) == self.routed
                        && runner.phase == RunnerPhase::Ready
                        && !runner.silent
                });
                if !answers {
                    self.routed = None;
                }
            }
            Act::Released | Act::SettleTimeout => {
                if act == Act::SettleTimeout {
                    self.left.settles -= 1;
                    self.forced = true;
                }
                if let Some(agent) = &mut self.agent {
                    agent.leaving = false;
                }
                self.event(Event::Released);
            }
            Act::LaunchDeadline => {
                self.timer(|agent| agent.launch_deadline = false);
                self.run_event(RunEvent::LaunchDeadline);
            }
            Act::RunnerDeadline => {
                self.timer(|agent| agent.runner_deadline = false);
                self.run_event(RunEvent::RunnerDeadline);
            }
            Act::Retry => {
                self.timer(|agent| agent.retry = false);
                self.srun();
            }
            Act::Restart => {
                self.timer(|agent| agent.restart = false);
                let event = if self.job == Job::Running {
                    Event::Restart
                } else {
                    Event::JobEnded
                };
                self.event(event);
            }
            Act::AgentStarts => self.agent_starts(),
            Act::KillWaitIsOver => {
                self.forced = true;
                self.runner_goes();
            }
            Act::Epilog => {
                (self.job, self.end_told) = (Job::Over, true);
                self.event(Event::JobEnded);
            }
            Act::UserStops => self.event(Event::Stop(Cause::Stopped)),
            Act::JobEnds => {
                self.job = Job::Ending;
                self.event(Event::Stop(Cause::JobEnded));
            }
            Act::JobEndsUnheard => self.job = Job::Ending,
            Act::EndNears(near) => self.event(Event::EndNear(near)),
            Act::SrunRefused => {
                self.left.refused_steps -= 1;
                (self.client, self.killing) = (None, false);
                self.run_event(RunEvent::StepRefused {
                    text: "busy".into(),
                    passing: true,
                });
            }
            Act::EngineLost => {
                self.left.engine_losses -= 1;
                let most = self.max_attempts;
                self.runner_does(|runner| runner.lose_engine(most));
            }
            Act::EngineSilent(silent) => {
                if silent {
                    self.left.silences -= 1;
                }
                self.runner_does(|runner| runner.silent = silent);
            }
            Act::RunnerKilled => {
                self.left.runner_kills -= 1;
                self.forced = true;
                self.runner_goes();
            }
            Act::LineBreaks => {
                self.left.broken_lines -= 1;
                if let Some(line) = &mut self.line {
                    line.broken = true;
                    line.to_runner.clear();
                }
            }
            Act::AgentKilled => {
                self.left.agent_kills -= 1;
                self.agent_dies();
            }
            Act::AgentDiesActing => {
                self.left.agent_kills -= 1;
                self.dying = true;
            }
            Act::RunnerQuiet => {
                self.left.quiets -= 1;
                self.run_event(RunEvent::Quiet);
            }
        }
    }
}

/// What happens inside.
impl World {
    fn event(&mut self, event: Event) {
        let Some(agent) = &mut self.agent else { return };
        let (out, law) = agent.step(event);
        self.broken = self.broken.or(law);
        let is_final = agent.life.is_final();
        if !is_final {
            self.kept = Some(agent.life.kept());
        }
        if self.dying {
            return self.agent_dies();
        }
        if is_final {
            // Close: forgotten, and the line dropped.
            (self.kept, self.line) = (None, None);
        }
        for out in out {
            self.carry_out(out);
        }
    }

    fn run_event(&mut self, event: RunEvent) {
        if let Some(agent) = &self.agent {
            self.event(Event::Of(agent.life.run, event));
        }
    }

    fn carry_out(&mut self, out: Out) {
        match out {
            Out::Srun => self.srun(),
            Out::Kill => self.killing = self.client.is_some(),
            Out::Renew => (self.line, self.known) = (None, false),
            Out::Order(_) | Out::Stop(_) | Out::Released => {
                if let Some(line) = self.line.as_mut().filter(|line| !line.broken) {
                    line.to_runner.push_back(out);
                }
            }
        }
    }

    fn srun(&mut self) {
        self.client = self.agent.as_ref().map(|agent| Srun {
            run: agent.life.run,
            started: false,
        });
    }

    fn timer(&mut self, over: fn(&mut Agent)) {
        if let Some(agent) = &mut self.agent {
            over(agent);
        }
    }

    fn attach(&mut self) {
        let (Some(agent), Some(runner)) = (&mut self.agent, &self.runner) else {
            return;
        };
        let life = &agent.life;
        if life.is_final() || life.run != runner.run || life.is_without_run() {
            return self.runner_is_asked(Cause::JobEnded);
        }
        (agent.launch_deadline, agent.runner_deadline) = (false, false);
        let facts = runner.facts();
        (self.line, self.known) = (Some(Line::default()), true);
        self.run_event(RunEvent::Facts(Box::new(facts)));
        self.run_event(RunEvent::Attached);
    }

    fn runner_hears(&mut self) {
        let said = self.line.as_mut().and_then(|line| line.to_runner.pop_front());
        match said {
            Some(Out::Order(attempt)) => self.runner_does(|runner| runner.order(attempt)),
            Some(Out::Stop(cause)) => self.runner_is_asked(cause),
            Some(Out::Released) => self.runner_does(|runner| {
                runner.released |= runner.phase == RunnerPhase::Leaving;
            }),
            _ => {}
        }
    }

    fn runner_is_asked(&mut self, cause: Cause) {
        let Some(runner) = &mut self.runner else { return };
        let before = runner.clone();
        if !runner.asked(cause) {
            return self.runner_goes();
        }
        if *runner != before {
            self.tell();
        }
    }

    fn runner_does(&mut self, what: impl FnOnce(&mut Runner)) {
        if let Some(runner) = &mut self.runner {
            what(runner);
            self.tell();
        }
    }

    /// The newest facts, whole.
    fn tell(&mut self) {
        let (Some(line), Some(runner)) = (&mut self.line, &self.runner) else {
            return;
        };
        if line.broken {
            return;
        }
        if line.to_agent.len() == ON_THE_WAY {
            line.to_agent.pop_back();
        }
        line.to_agent.push_back(runner.facts());
    }

    fn runner_goes(&mut self) {
        self.runner = None;
        if let Some(line) = &mut self.line {
            line.to_runner.clear();
        }
    }

    fn agent_dies(&mut self) {
        (self.away, self.dying) = (true, false);
        (self.agent, self.line) = (None, None);
    }

    fn agent_starts(&mut self) {
        let agent = match self.kept {
            Some(kept) => Agent::recovered(kept),
            None => Agent::without(),
        };
        self.agent = Some(agent);
        let answers = self.runner.as_ref().is_some_and(|runner| {
            runner.phase == RunnerPhase::Ready && !runner.silent && self.routed == Some(runner.attempt)
        });
        // One that was given up, or is ending, may well go.
        let wanted = self.kept.is_some_and(|kept| {
            !kept.restarting && kept.asked == 0 && kept.ending == 0 && Some(kept.attempt) == self.routed
        });
        self.was_dropped_by_restart |= answers && wanted && self.listed() != self.routed;
    }
}

/// What is seen.
impl World {
    fn is_connected(&self) -> bool {
        self.agent.is_some() && self.line.as_ref().is_some_and(|line| !line.broken)
    }

    /// The attempt that the agent's catalog offers.
    fn listed(&self) -> Option<u32> {
        let life = &self.agent.as_ref()?.life;
        (life.state == ModelState::Ready).then_some(life.attempt)
    }

    /// The catalog offers it.
    pub fn is_listed(&self) -> bool {
        self.listed().is_some()
    }

    /// The gateway sends requests to the runner that there is.
    pub fn is_routed(&self) -> bool {
        let attempt = self.runner.as_ref().map(|runner| runner.attempt);
        self.routed.is_some() && self.routed == attempt
    }

    /// Its guard refuses requests because somebody asked for its end.
    pub fn refuses_in_order(&self) -> bool {
        self.runner.as_ref().is_some_and(Runner::refuses_in_order)
    }

    /// Nothing is on its way between those who are there.
    pub fn all_is_heard(&self) -> bool {
        let heard = |line: &Line| line.to_agent.is_empty() && line.to_runner.is_empty();
        self.is_connected()
            && self.runner.is_some()
            && self.line.as_ref().is_some_and(heard)
            && self.routed == self.listed()
            && self.agent.as_ref().is_some_and(|agent| !agent.life.frozen)
    }

    /// It answers, and is meant to.
    pub fn should_be_listed(&self) -> bool {
        let wanted = |agent: &Agent| agent.life.asked.is_none() && !agent.life.late;
        let ready = |runner: &Runner| runner.phase == RunnerPhase::Ready && !runner.silent;
        self.agent.as_ref().is_some_and(wanted) && self.runner.as_ref().is_some_and(ready)
    }

    /// Nobody has anything left to do: it serves, or it is over and nothing is left of it.
    pub fn is_at_rest(&self) -> bool {
        let Some(agent) = &self.agent else { return false };
        if agent.life.is_final() {
            return self.runner.is_none()
                && self.client.is_none()
                && self.line.is_none()
                && self.routed.is_none()
                && self.kept.is_none();
        }
        let serves = |runner: &Runner| runner.phase == RunnerPhase::Ready;
        self.job == Job::Running && self.is_connected() && self.runner.as_ref().is_some_and(serves)
    }

    /// Nothing is promised of requests any more.
    pub fn is_forced(&self) -> bool {
        self.forced
    }

    /// The model is over, and so is everything of it.
    pub fn is_over(&self) -> bool {
        self.agent
            .as_ref()
            .is_some_and(|agent| agent.life.is_final() && agent.life.ever_ready)
            && self.is_at_rest()
    }

    /// The run that the agent is at.
    pub fn run(&self) -> u32 {
        self.agent.as_ref().map_or(0, |agent| agent.life.run)
    }

    /// The attempt that the agent is at.
    pub fn attempt(&self) -> u32 {
        self.agent.as_ref().map_or(0, |agent| agent.life.attempt)
    }

    /// The agent was killed at some time.
    pub fn agent_was_away(&self) -> bool {
        self.away
    }

    /// The agent is not there now.
    pub fn is_agent_away(&self) -> bool {
        self.agent.is_none()
    }

    /// Slurm has nothing of the job left.
    pub fn is_job_over(&self) -> bool {
        self.job == Job::Over
    }
}
