//! Where Slurm has put jobs and nodes: three of its commands as typed calls, each with an end.
//!
//! Only fields that no user can write text into are asked for. The formats are the same from 22.05 to 26.05.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use slurm_serve::config;

/// Why Slurm could not be asked: one line.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// The program does not run.
    #[error(
        "{0} cannot be run ({1}); put Slurm's commands into PATH, or name their folder in the config (agent.slurm_bin_dir)"
    )]
    Run(&'static str, std::io::Error),
    /// It answered nothing in time.
    #[error("{0} did not answer within {1:?}; is slurmctld up?")]
    Timeout(&'static str, Duration),
    /// It said no.
    #[error("{0}: {1}")]
    Failed(&'static str, String),
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

/// The commands of one Slurm.
#[derive(Debug)]
pub struct Slurm {
    bin_dir: PathBuf,
    timeout: Duration,
}

impl Slurm {
    /// As the configuration says.
    pub fn new(config: &config::Agent) -> Self {
        Self {
            bin_dir: config.slurm_bin_dir.clone(),
            timeout: config.slurm_command_timeout,
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

    /// Name and address of every node.
    pub async fn nodes(&self) -> Result<Vec<(String, String)>, SlurmError> {
        Ok(parse_nodes(
            &self.run("sinfo", &["-h", "-a", "-N", "-o", "%N %o"]).await?,
        ))
    }

    /// The first name in a list such as `gpu[01-02]`.
    pub async fn first_host(&self, list: &str) -> Result<Option<String>, SlurmError> {
        let list = match list.contains('[') {
            true => self.run("scontrol", &["show", "hostnames", list]).await?,
            false => list.to_owned(),
        };
        let mut names = list
            .split([',', '\n'])
            .map(str::trim)
            .filter(|name| !name.is_empty());
        Ok(names.next().map(str::to_owned))
    }

    async fn run(&self, name: &'static str, args: &[&str]) -> Result<String, SlurmError> {
        let program = match self.bin_dir.as_os_str().is_empty() {
            true => name.into(),
            false => self.bin_dir.join(name),
        };
        let mut command = tokio::process::Command::new(program);
        command.args(args).stdin(Stdio::null()).kill_on_drop(true);
        // A user may have these commands filter or reformat by environment.
        for (variable, _) in std::env::vars_os() {
            let text = variable.to_string_lossy();
            if ["SQUEUE_", "SINFO_", "SCONTROL_"]
                .iter()
                .any(|prefix| text.starts_with(prefix))
            {
                command.env_remove(&variable);
            }
        }
        let output = tokio::time::timeout(self.timeout, command.output());
        let output = output
            .await
            .map_err(|_| SlurmError::Timeout(name, self.timeout))?;
        let output = output.map_err(|e| SlurmError::Run(name, e))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let why = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
                Err(SlurmError::Failed(name, why))
            }
        }
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

/// A node is listed once for each of its partitions.
fn parse_nodes(text: &str) -> Vec<(String, String)> {
    let pairs = text.lines().filter_map(|line| line.trim().split_once(' '));
    let mut nodes: Vec<_> = pairs
        .map(|(name, address)| (name.to_owned(), address.trim().to_owned()))
        .collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn nodes_are_listed_once() {
        let nodes = parse_nodes("n2 10.0.0.2\nn1 10.0.0.1\nn1 10.0.0.1\n");
        assert_eq!(
            nodes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["n1", "n2"]
        );
    }
}
