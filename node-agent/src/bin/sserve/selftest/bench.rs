//! Jobs of one user on one node: submitted, followed, ended; and the same user's folder and recipe for them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::{Uid, User, geteuid};
use slurm_serve::selftest::{Answer, NAME, RECIPE, ask};
use slurm_serve::slurm::Slurm;
use slurm_serve_proto::v1::{Model, ModelState};
use tokio::io::AsyncWriteExt as _;

use crate::doctor::gpus_by_slurm;
use crate::find::Agents;
use crate::job_ref::JobRef;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// One of Slurm's commands, one file.
const COMMAND: Duration = Duration::from_secs(30);
/// A model of the selftest is ready within this once its job runs; what Slurm does at a job's end takes no longer, beyond KillWait.
pub const SOON: Duration = Duration::from_secs(60);

/// What was asked for on the command line.
#[derive(Debug)]
pub struct Plan {
    pub node: Option<String>,
    pub user: Option<String>,
    pub gpus: Option<u32>,
    pub restart_agent: Option<String>,
    pub patience: Duration,
    pub sbatch: Vec<String>,
}

/// All that a row needs.
#[derive(Debug)]
pub struct Bench {
    /// Slurm's name of the node.
    pub node: String,
    /// Whether that is this host.
    pub is_here: bool,
    pub is_root: bool,
    /// Of each job.
    pub gpus: u32,
    pub plan: Plan,
    pub slurm: Slurm,
    /// The node's state before the first row.
    pub state_before: String,
    /// What the job of the first row has learnt.
    pub answer: Mutex<Option<Answer>>,
    pub agents: Agents,
    user: User,
    /// Of the user, for output files.
    folder: PathBuf,
    /// Whether the recipe was there already.
    recipe_stays: bool,
    jobs: Mutex<Vec<u32>>,
}

/// A job whose model is ready.
#[derive(Debug)]
pub struct Serving {
    pub id: u32,
    pub model: Model,
    /// Of the job, for its model.
    pub key: String,
}

impl Bench {
    /// Finds out where and as whom, and puts the recipe in place.
    pub async fn set_up(agents: Agents, plan: Plan) -> Result<Self> {
        let is_root = geteuid().is_root();
        let user = whose(plan.user.as_deref(), is_root)?;
        let slurm = Slurm::new(&agents.config().agent);
        let here = agents.config().agent.own_node();
        let node = plan.node.clone().unwrap_or_else(|| here.clone());
        let record = slurm.node_record(&node).await;
        let record = record.with_context(|| format!("{node}: name one of Slurm's nodes with --node"))?;
        let gpus = gpus_by_slurm(field(&record, "Gres").unwrap_or_default()).min(1);
        let mut bench = Self {
            is_here: node == here,
            node,
            is_root,
            gpus: plan.gpus.unwrap_or(gpus),
            slurm,
            state_before: field(&record, "State").unwrap_or_default().to_owned(),
            answer: Mutex::default(),
            agents,
            folder: user.dir.join(format!("sserve-selftest-{}", std::process::id())),
            user,
            plan,
            recipe_stays: false,
            jobs: Mutex::default(),
        };
        bench.put_recipe().await?;
        bench
            .as_user(&["mkdir", "-p"], &[bench.folder.clone().into()], "")
            .await?;
        Ok(bench)
    }

    /// By the user's own hand: root may have no business in his home (NFS).
    async fn put_recipe(&mut self) -> Result<()> {
        let file = self.recipe();
        let there = self.as_user(&["cat"], &[file.clone().into()], "").await.ok();
        self.recipe_stays = there.as_deref() == Some(RECIPE);
        ensure!(
            there.is_none() || self.recipe_stays,
            "{} is a recipe of {}'s own, or of another version; move it away first",
            file.display(),
            self.user.name
        );
        let script = "mkdir -p \"$(dirname \"$0\")\" && cat > \"$0\"";
        self.as_user(&["sh", "-c", script], &[file.into()], RECIPE)
            .await
            .map(drop)
    }

    fn recipe(&self) -> PathBuf {
        self.user
            .dir
            .join(format!(".config/slurm-serve/models.d/{NAME}.toml"))
    }

    /// Ends the jobs and removes what was made. What does not work is said, and is no reason to stop.
    pub async fn clean_up(&self) {
        self.cancel_all().await;
        let mut rm: Vec<OsString> = vec![self.folder.clone().into()];
        if !self.recipe_stays {
            rm.push(self.recipe().into());
        }
        if let Err(error) = self.as_user(&["rm", "-rf"], &rm, "").await {
            crate::out::note(format!("{error:#}"));
        }
    }

    /// Runs a command as the jobs' user; its stdout.
    pub async fn as_user(&self, argv: &[&str], more: &[OsString], input: &str) -> Result<String> {
        let mut all: Vec<OsString> = Vec::new();
        if self.is_root && !self.user.uid.is_root() {
            all.extend(["setpriv", "--reuid", &self.user.name].map(OsString::from));
            all.extend(["--regid", &self.user.gid.to_string(), "--init-groups", "--"].map(OsString::from));
        }
        all.extend(argv.iter().map(OsString::from));
        all.extend_from_slice(more);
        let title = argv.join(" ");
        let mut command = tokio::process::Command::new(&all[0]);
        command.args(&all[1..]).kill_on_drop(true);
        if self.is_root {
            command
                .env("HOME", &self.user.dir)
                .env("USER", &self.user.name)
                .env("LOGNAME", &self.user.name)
                .env("SHELL", &self.user.shell);
        }
        // Options of sbatch may come by the environment, and a job's own would make this a part of it.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("SBATCH_") || text.starts_with("SLURM_") && text != "SLURM_CONF" {
                command.env_remove(&name);
            }
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .current_dir("/");
        let mut child = command
            .spawn()
            .with_context(|| format!("{title} as {}", self.user.name))?;
        let done = async {
            if let Some(mut stdin) = child.stdin.take() {
                // A command that does not read ends by itself.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(COMMAND, done).await;
        let output = output.with_context(|| format!("{title}: no end within {} s", COMMAND.as_secs()))??;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            bail!("{title} (as {}): {said}", self.user.name);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Submits a job with the selftest's model to the node.
    pub async fn submit(&self, script: &str, more: &[&str]) -> Result<u32> {
        let gres = format!("--gres=gpu:{}", self.gpus);
        let (node, model) = (
            format!("--nodelist={}", self.node),
            format!("--serve-model={NAME}"),
        );
        let output = format!("--output={}/%j.out", self.folder.display());
        let mut argv = vec![
            "sbatch",
            "--parsable",
            "--nodes=1",
            "--ntasks=1",
            "--job-name=sserve-selftest",
        ];
        argv.extend([node.as_str(), model.as_str(), output.as_str(), "--time=5"]);
        if self.gpus > 0 {
            argv.push(&gres);
        }
        argv.extend(self.plan.sbatch.iter().map(String::as_str));
        argv.extend(more);
        let said = self
            .as_user(&argv, &[], &format!("#!/bin/sh\n{script}\n"))
            .await?;
        let id = said.trim().split(';').next().unwrap_or_default();
        let id = id.parse().with_context(|| format!("sbatch said {said:?}"))?;
        self.jobs().push(id);
        Ok(id)
    }

    /// A job that sleeps, once its model is ready.
    pub async fn serving(&self, more: &[&str]) -> Result<Serving> {
        let id = self.submit("sleep 600", more).await?;
        self.started(id).await?;
        let found = until("its model to be ready", SOON, async || {
            let found = self.find(id).await.ok();
            match found.as_ref().map(|found| found.model.state()) {
                Some(ModelState::Ready) => Ok(found),
                Some(ModelState::Failed | ModelState::Ended) => bail!("{}", self.how_it_ended(id).await),
                _ => Ok(None),
            }
        })
        .await
        .with_context(|| format!("job {id}"))?;
        let key = found.agent.key(&found.model).await?;
        Ok(Serving {
            id,
            model: found.model,
            key,
        })
    }

    /// Waits until a job has its turn.
    pub async fn started(&self, id: u32) -> Result<()> {
        let what = format!("job {id} to have its turn (--patience)");
        until(&what, self.plan.patience, async || {
            Ok((!matches!(self.state(id).await?.as_str(), "PENDING" | "CONFIGURING")).then_some(()))
        })
        .await
    }

    /// Slurm's word on a job.
    pub async fn state(&self, id: u32) -> Result<String> {
        let job = self.slurm.job(id).await?;
        Ok(job
            .with_context(|| format!("Slurm knows no job {id} any more (MinJobAge)"))?
            .state)
    }

    /// Waits until a job is over; its state.
    pub async fn ended(&self, id: u32, limit: Duration) -> Result<String> {
        until(&format!("the end of job {id}"), limit, async || {
            let state = self.state(id).await?;
            let over = !matches!(
                state.as_str(),
                "PENDING" | "CONFIGURING" | "RUNNING" | "COMPLETING" | "SUSPENDED"
            );
            Ok(over.then_some(state))
        })
        .await
    }

    /// The model of a job, and the agent that has it.
    pub async fn find(&self, id: u32) -> Result<crate::find::Found> {
        Ok(self.agents.find(&JobRef::Raw(id)).await?)
    }

    /// Waits until the job's model is over; the model.
    pub async fn model_over(&self, id: u32, limit: Duration) -> Result<Model> {
        until(&format!("the end of the model of job {id}"), limit, async || {
            let model = self.find(id).await?.model;
            let over = matches!(model.state(), ModelState::Ended | ModelState::Failed);
            Ok(over.then_some(model))
        })
        .await
    }

    /// The agent's word on it, for an error.
    pub async fn how_it_ended(&self, id: u32) -> String {
        match self.find(id).await {
            Ok(found) => crate::words::ending(&found.model.into()),
            Err(error) => format!("{error:#}"),
        }
    }

    /// What a job has written.
    pub async fn output(&self, id: u32) -> Result<String> {
        let file = self.folder.join(format!("{id}.out"));
        self.as_user(&["cat"], &[file.into()], "").await
    }

    /// scancel as its user; `what` is a job or a step.
    pub async fn scancel(&self, what: &str) -> Result<()> {
        self.as_user(&["scancel", what], &[], "").await.map(drop)
    }

    /// Ends what still runs.
    pub async fn cancel_all(&self) {
        let ids = self.ids();
        for id in ids {
            // One that is over is no error worth a word.
            let _ = self.scancel(&id.to_string()).await;
        }
    }

    /// All jobs so far.
    pub fn ids(&self) -> Vec<u32> {
        self.jobs().clone()
    }

    /// The uid of the jobs.
    pub fn uid(&self) -> Uid {
        self.user.uid
    }

    fn jobs(&self) -> MutexGuard<'_, Vec<u32>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Serving {
    /// One short question; what the engine sees.
    pub async fn ask(&self, tokens: u32) -> Result<slurm_serve::selftest::Facts> {
        ask(&self.model.base_url, &self.key, &self.model.name, tokens).await
    }
}

/// Looks again and again, until there is something or the time is over.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if Instant::now() > end {
            bail!("{} s were not enough for {what}", limit.as_secs());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A field of a record that `scontrol -o` prints.
pub fn field<'a>(record: &'a str, name: &str) -> Option<&'a str> {
    let prefix = format!("{name}=");
    record
        .split_whitespace()
        .find_map(|word| word.strip_prefix(&prefix))
}

fn whose(named: Option<&str>, is_root: bool) -> Result<User> {
    let own = geteuid();
    let found = match named {
        Some(name) if is_root => {
            User::from_name(name)?.with_context(|| format!("there is no user {name} here"))?
        }
        None if is_root => bail!("say whose the jobs are to be: --user NAME; root's own are no users' jobs"),
        Some(name) => {
            let user = User::from_name(name)?.filter(|user| user.uid == own);
            user.with_context(|| format!("only root may submit jobs as {name}"))?
        }
        None => User::from_uid(own)?.with_context(|| format!("there is no user of uid {own} here"))?,
    };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_says_whose_the_jobs_are_and_root_must() {
        assert!(whose(None, true).is_err());
        assert_eq!(whose(Some("root"), true).unwrap().uid, Uid::from_raw(0));
        assert!(whose(Some("no-such-user"), true).is_err());
        if geteuid().is_root() {
            assert!(whose(Some("daemon"), false).is_err());
        }
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let record = "NodeName=n1 OS=Linux State=IDLE+DRAIN NextState=X Gres=gpu:2";
        assert_eq!(field(record, "State"), Some("IDLE+DRAIN"));
        assert_eq!(field(record, "Reason"), None);
    }
}
