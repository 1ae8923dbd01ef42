//! Slurm's own commands as typed calls. Each ends within `slurm_command_timeout`; none is called from a prolog or epilog.
//!
//! Only fields that no user can write text into are parsed out of a line (`squeue -o` with `|` between them); the one that a user can,
//! StdOut, is asked for alone. The formats used are the same from 22.05 to 26.05.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config;
use crate::slurm_conf::SlurmConf;

/// Why Slurm could not be asked: one line.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// The program does not run.
    #[error("{0} cannot be run ({1}); set agent.slurm_bin_dir or PATH")]
    Run(String, String),
    /// It answered nothing in time.
    #[error("{0} did not answer within {1:?}; is slurmctld up?")]
    Timeout(String, Duration),
    /// It said no.
    #[error("{0}: {1}")]
    Failed(String, String),
}

/// A job as slurmctld knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmJob {
    /// Owner.
    pub uid: u32,
    /// In Slurm's words: RUNNING, COMPLETING, CANCELLED, …
    pub state: String,
    /// Where the batch script runs, and so the first node.
    pub batch_host: String,
    /// All nodes, as Slurm writes it; of the first component of a heterogeneous job those of all components, its own first.
    pub node_list: String,
    /// Milliseconds since the epoch; 0 = no limit.
    pub end_ms: i64,
    /// Working directory.
    pub work_dir: String,
    /// Which component of a heterogeneous job it is.
    pub component: Option<u32>,
}

impl SlurmJob {
    /// Does it have its nodes? A suspended one has.
    pub fn is_running(&self) -> bool {
        matches!(self.state.as_str(), "RUNNING" | "SUSPENDED")
    }
}

/// Where slurmctld has put a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPlace {
    /// Its number, also where it was asked for as `123_4` or `123+1`.
    pub job_id: u32,
    /// In Slurm's words: PENDING, RUNNING, COMPLETING, …
    pub state: String,
    /// All its nodes, as Slurm writes it; empty while it has none.
    pub node_list: String,
    /// Why it is pending, in Slurm's words: Resources, Priority, …
    pub reason: String,
}

/// A node as Slurm knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmNode {
    /// NodeName.
    pub name: String,
    /// NodeAddr.
    pub address: String,
}

/// The commands of one Slurm.
#[derive(Debug, Clone)]
pub struct Slurm {
    bin_dir: PathBuf,
    timeout: Duration,
    /// What lists of hosts came to: the same text always means the same names.
    host_lists: Arc<Mutex<HashMap<String, Vec<String>>>>,
}

/// Lists of hosts that are remembered; all are forgotten when there are more.
const HOST_LISTS: usize = 256;

impl Slurm {
    /// As the configuration says.
    pub fn new(config: &config::Agent) -> Self {
        Self {
            bin_dir: config.slurm_bin_dir.clone(),
            timeout: config.slurm_command_timeout,
            host_lists: Arc::default(),
        }
    }

    /// The full path of one of Slurm's commands, or its bare name to be searched in PATH.
    pub fn program(&self, name: &str) -> PathBuf {
        if self.bin_dir.as_os_str().is_empty() {
            name.into()
        } else {
            self.bin_dir.join(name)
        }
    }

    /// What slurmctld knows of a job; `None` if it knows none of that number.
    pub async fn job(&self, job_id: u32) -> Result<Option<SlurmJob>, SlurmError> {
        let id = job_id.to_string();
        let answer = self
            .run(
                "squeue",
                &[
                    "-h",
                    "-a",
                    "-t",
                    "all",
                    "-j",
                    &id,
                    "-o",
                    "%A|%i|%U|%T|%B|%N|%e|%Z",
                ],
            )
            .await;
        match answer {
            Ok(text) => Ok(parse_job(&text, job_id)),
            Err(SlurmError::Failed(_, why)) if why.contains("Invalid job id") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where a job is: `job` is its number, `123_4` (a task of an array) or `123+1` (a component); `None` if slurmctld knows no
    /// such job (it forgets an ended one after MinJobAge).
    pub async fn place(&self, job: &str) -> Result<Option<JobPlace>, SlurmError> {
        let args = ["-h", "-a", "-t", "all", "-j", job, "-o", "%A|%T|%N|%r"];
        match self.run("squeue", &args).await {
            Ok(text) => Ok(parse_place(&text, job)),
            Err(SlurmError::Failed(_, why)) if why.contains("Invalid job id") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has the job a step, be it its batch script? The one that Slurm itself makes on each node (`extern`) is none.
    pub async fn has_step(&self, job_id: u32) -> Result<bool, SlurmError> {
        let args = ["-h", "-a", "-s", "-j", &job_id.to_string(), "-o", "%i"];
        match self.run("squeue", &args).await {
            Ok(text) => Ok(names_a_step(&text)),
            Err(SlurmError::Failed(_, why)) if why.contains("Invalid job id") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The folder of the job's standard output; `None` where it is not a plain path.
    pub async fn stdout_dir(&self, job_id: u32) -> Result<Option<PathBuf>, SlurmError> {
        let id = job_id.to_string();
        let text = self
            .run(
                "squeue",
                &["-h", "-a", "-t", "all", "-j", &id, "-O", "STDOUT:4096"],
            )
            .await?;
        let path = PathBuf::from(text.trim_end_matches('\n').trim_end());
        let parent = path
            .parent()
            .filter(|dir| dir.is_absolute() && !dir.to_string_lossy().contains('%'));
        Ok(parent.map(PathBuf::from))
    }

    /// What slurmctld runs with.
    pub async fn conf(&self) -> Result<SlurmConf, SlurmError> {
        Ok(SlurmConf::new(self.run("scontrol", &["show", "config"]).await?))
    }

    /// slurm.conf's KillWait.
    pub async fn kill_wait(&self) -> Result<Duration, SlurmError> {
        let kill_wait = self.conf().await?.kill_wait();
        kill_wait.ok_or_else(|| SlurmError::Failed("scontrol show config".into(), "no KillWait in it".into()))
    }

    /// One node as `scontrol -o show node` prints it; an error if there is none of that name.
    pub async fn node_record(&self, node: &str) -> Result<String, SlurmError> {
        self.run("scontrol", &["-o", "show", "node", node]).await
    }

    /// One job as `scontrol -o show job` prints it; an error once slurmctld has forgotten it (MinJobAge).
    pub async fn job_record(&self, job_id: u32) -> Result<String, SlurmError> {
        self.run("scontrol", &["-o", "show", "job", &job_id.to_string()])
            .await
    }

    /// The id, `12.0`, of the running step of a job that has this name.
    pub async fn step_named(&self, job_id: u32, name: &str) -> Result<Option<String>, SlurmError> {
        let id = job_id.to_string();
        let text = self
            .run("squeue", &["-h", "-s", "-j", &id, "-o", "%i %j"])
            .await?;
        let mut steps = text.lines().filter_map(|line| line.trim().split_once(' '));
        Ok(steps
            .find(|(_, it)| it.trim() == name)
            .map(|(id, _)| id.to_owned()))
    }

    /// Lets a job's time limit pass in a moment. Operators of Slurm alone may.
    pub async fn end_soon(&self, job_id: u32) -> Result<(), SlurmError> {
        let id = format!("JobId={job_id}");
        self.run("scontrol", &["update", &id, "EndTime=now+1"])
            .await
            .map(|_| ())
    }

    /// All nodes.
    pub async fn nodes(&self) -> Result<Vec<SlurmNode>, SlurmError> {
        Ok(parse_nodes(
            &self.run("sinfo", &["-h", "-a", "-N", "-o", "%N %o"]).await?,
        ))
    }

    /// NodeAddr and state (`idle`, `down*`, …) of every node, by name.
    pub async fn node_states(&self) -> Result<BTreeMap<String, (String, String)>, SlurmError> {
        let text = self.run("sinfo", &["-h", "-a", "-N", "-o", "%N %o %t"]).await?;
        let node = |line: &str| {
            let mut words = line.split_whitespace().map(str::to_owned);
            Some((words.next()?, (words.next()?, words.next()?)))
        };
        Ok(text.lines().filter_map(node).collect())
    }

    /// Is the job over, or on other nodes than this one? Answers only by what slurmctld says in so many words: an answer without any is an error.
    pub async fn is_off_node(&self, job_id: u32, node: &str) -> Result<bool, SlurmError> {
        let id = job_id.to_string();
        let args = ["-h", "-a", "-t", "all", "-j", &id, "-o", "%A|%T|%N|%r"];
        let text = match self.run("squeue", &args).await {
            Ok(text) => text,
            Err(SlurmError::Failed(_, why)) if why.contains("Invalid job id") => return Ok(true),
            Err(error) => return Err(error),
        };
        let place = parse_place(&text, &id)
            .ok_or_else(|| SlurmError::Failed(format!("squeue -j {id}"), "it answered nothing".into()))?;
        if !matches!(
            place.state.as_str(),
            "RUNNING" | "SUSPENDED" | "COMPLETING" | "STOPPED" | "SIGNALING" | "STAGE_OUT" | "CONFIGURING"
        ) {
            return Ok(true);
        }
        Ok(!self
            .host_names(&place.node_list)
            .await?
            .iter()
            .any(|name| name == node))
    }

    /// The names in a list such as `gpu[01-02]`.
    pub async fn host_names(&self, list: &str) -> Result<Vec<String>, SlurmError> {
        if !list.contains('[') {
            return Ok(list
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect());
        }
        let known = || self.host_lists.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(names) = known().get(list) {
            return Ok(names.clone());
        }
        let text = self.run("scontrol", &["show", "hostnames", list]).await?;
        let names: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut known = known();
        if known.len() >= HOST_LISTS {
            known.clear();
        }
        known.insert(list.to_owned(), names.clone());
        Ok(names)
    }

    /// Ends a job.
    pub async fn cancel(&self, job_id: u32) -> Result<(), SlurmError> {
        self.run("scancel", &[&job_id.to_string()]).await.map(|_| ())
    }

    async fn run(&self, name: &str, args: &[&str]) -> Result<String, SlurmError> {
        let shown = format!("{name} {}", args.join(" "));
        let mut command = tokio::process::Command::new(self.program(name));
        command.args(args).stdin(Stdio::null()).kill_on_drop(true);
        // A site may colour or reformat these commands' output by environment.
        for (variable, _) in std::env::vars_os() {
            let text = variable.to_string_lossy();
            if text.starts_with("SQUEUE_") || text.starts_with("SINFO_") || text.starts_with("SCONTROL_") {
                command.env_remove(&variable);
            }
        }
        let output = tokio::time::timeout(self.timeout, command.output());
        let output = output
            .await
            .map_err(|_| SlurmError::Timeout(shown.clone(), self.timeout))?;
        let output = output.map_err(|e| SlurmError::Run(name.into(), e.to_string()))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            return Err(SlurmError::Failed(shown, why));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The number of an array stands for all of its tasks; the one that bears it as its own is meant.
fn parse_place(text: &str, job: &str) -> Option<JobPlace> {
    let wanted: Option<u32> = job.parse().ok();
    let mut places = text.lines().filter_map(|line| {
        let mut fields = line.trim().splitn(4, '|');
        Some(JobPlace {
            job_id: fields.next()?.parse().ok()?,
            state: fields.next()?.into(),
            node_list: fields.next()?.into(),
            reason: fields.next()?.into(),
        })
    });
    places.find(|place| wanted.is_none_or(|id| id == place.job_id))
}

fn names_a_step(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .any(|step| !step.is_empty() && !step.ends_with(".extern"))
}

/// The number of a heterogeneous job stands for all of its components, that of an array for all of its tasks; the one that bears it as
/// its own is meant.
fn parse_job(text: &str, job_id: u32) -> Option<SlurmJob> {
    let all: Vec<(u32, SlurmJob)> = text.lines().filter_map(parse_job_line).collect();
    let mut job = all.iter().find(|(id, _)| *id == job_id)?.1.clone();
    if job.component.is_some() {
        let others = all
            .iter()
            .filter(|(id, other)| *id != job_id && !other.node_list.is_empty());
        others.for_each(|(_, other)| job.node_list = format!("{},{}", job.node_list, other.node_list));
    }
    Some(job)
}

fn parse_job_line(line: &str) -> Option<(u32, SlurmJob)> {
    let mut fields = line.splitn(8, '|');
    let id = fields.next()?.trim().parse().ok()?;
    // `5+1`: the second component of job 5.
    let component = fields
        .next()?
        .split_once('+')
        .and_then(|(_, offset)| offset.parse().ok());
    let uid = fields.next()?.trim().parse().ok()?;
    let mut next = || fields.next().map(str::to_owned);
    let (state, batch_host, node_list) = (next()?, next()?, next()?);
    let end_ms = next().map_or(0, |text| parse_time(&text));
    let job = SlurmJob {
        uid,
        state,
        batch_host,
        node_list,
        end_ms,
        work_dir: next().unwrap_or_default(),
        component,
    };
    Some((id, job))
}

/// `2026-11-30T12:00:00` in local time, as squeue prints it; 0 for anything else (`N/A`, `NONE`, `UNLIMITED`).
fn parse_time(text: &str) -> i64 {
    let digits: Vec<i32> = text
        .split(['-', 'T', ':'])
        .filter_map(|part| part.trim().parse().ok())
        .collect();
    let &[year, month, day, hour, minute, second] = digits.as_slice() else {
        return 0;
    };
    local_seconds(year, month, day, hour, minute, second).map_or(0, |seconds| seconds * 1000)
}

fn local_seconds(year: i32, month: i32, day: i32, hour: i32, minute: i32, second: i32) -> Option<i64> {
    crate::clock::local_to_epoch(year, month, day, hour, minute, second)
}

fn parse_nodes(text: &str) -> Vec<SlurmNode> {
    let mut nodes: Vec<SlurmNode> = Vec::new();
    for line in text.lines() {
        // A node is listed once for each of its partitions.
        if let Some((name, address)) = line.trim().split_once(' ')
            && !nodes.iter().any(|node| node.name == name)
        {
            nodes.push(SlurmNode {
                name: name.into(),
                address: address.trim().into(),
            });
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_line_is_read() {
        let job = parse_job("7|7|2001|RUNNING|n1|n[1-2]|N/A|/home/alice/a|b\n", 7).unwrap();
        assert_eq!(
            (job.uid, job.state.as_str(), job.batch_host.as_str()),
            (2001, "RUNNING", "n1")
        );
        assert_eq!(
            (job.node_list.as_str(), job.end_ms, job.component),
            ("n[1-2]", 0, None)
        );
        assert_eq!(job.work_dir, "/home/alice/a|b");
        assert_eq!(parse_job("slurm_load_jobs error", 7), None);
    }

    #[test]
    fn components_and_tasks_are_told_apart() {
        let text = "6|5+1|2001|RUNNING|n2|n[2-3]|N/A|/\n5|5+0|2001|RUNNING|n1|n1|N/A|/\n";
        let first = parse_job(text, 5).unwrap();
        assert_eq!(
            (first.component, first.node_list.as_str()),
            (Some(0), "n1,n[2-3]")
        );
        let tasks = "11|10_1|2001|RUNNING|n1|n1|N/A|/\n10|10_2|2001|PENDING|||N/A|/\n";
        assert_eq!(parse_job(tasks, 10).unwrap().state, "PENDING");
        assert_eq!(parse_job(tasks, 11).unwrap().component, None);
    }

    #[test]
    fn the_place_of_a_job_is_read_and_arrays_are_told_apart() {
        let text = "11|RUNNING|n1|None\n10|RUNNING|n[2-3]|None\n";
        assert_eq!(parse_place(text, "10").unwrap().node_list, "n[2-3]");
        assert_eq!(parse_place(text, "10_1").unwrap().job_id, 11);
        let pending = parse_place("12|PENDING||Resources\n", "12").unwrap();
        assert_eq!(
            (pending.node_list.as_str(), pending.reason.as_str()),
            ("", "Resources")
        );
        assert_eq!(parse_place("", "12"), None);
    }

    #[test]
    fn an_allocation_without_a_step_is_told_from_one_that_has_some() {
        assert!(!names_a_step("") && !names_a_step("7.extern\n"));
        assert!(names_a_step("7.batch\n7.extern\n") && names_a_step("7.0\n"));
        assert!(names_a_step("7.interactive\n7.extern\n"));
    }

    #[test]
    fn times_are_local() {
        assert!(parse_time("2026-11-30T12:00:00") > 1_700_000_000_000);
        assert_eq!(parse_time("UNLIMITED"), 0);
    }

    #[test]
    fn nodes_are_listed_once() {
        let nodes = parse_nodes("n1 10.0.0.1\nn1 10.0.0.1\nn2 10.0.0.2\n");
        assert_eq!(
            nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(),
            ["n1", "n2"]
        );
    }
}
