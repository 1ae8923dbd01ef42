//! What holds the srun client, the user's process outside his job: a scope of systemd's, else a cgroup, else resource limits alone.
//!
//! The client is reached by its owner (ptrace(2)), who could make it a program of his own beside all of Slurm's limits: with the node's memory, tasks,
//! processors, GPUs. In a scope or cgroup that program, and what it starts, gets next to nothing, and all of it is ended with the client.
//!
//! ```text
//! begin ──► client starts inside ──► client gone (or `grace` over) ──► whatever is left is killed ──► removed
//! ```

mod cgroup;
mod scope;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::User;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use self::cgroup::Cgroups;
use self::scope::Scopes;
use super::process::Known;
use crate::config::SrunBox;

/// Bytes of memory: an srun takes about 20 MiB.
const MEMORY: u64 = 256 << 20;
/// Processes and threads: an srun has about 10.
const TASKS: u32 = 64;
/// Of one processor.
const CPU_PERCENT: u32 = 100;

/// How clients are held on this node.
#[derive(Debug)]
pub struct Confine(Kind);

#[derive(Debug)]
enum Kind {
    Scope(Scopes),
    Cgroup(Cgroups),
    Limits,
}

/// What holds one client; kept on disk with its launch, because the client outlives the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// The name of the scope.
    Scope(String),
    /// One folder in each hierarchy.
    Cgroup(Vec<PathBuf>),
}

/// For one client that is about to start.
#[derive(Debug)]
pub struct Place {
    /// To be kept, and ended with [`Held::end`].
    pub held: Option<Held>,
    /// What runs the client as the user, if that is not ours to do.
    runner: Option<Command>,
    doors: Vec<File>,
}

impl Confine {
    /// What works here. With `Auto` the reason why it is less than could be comes along, else it is the error.
    pub async fn choose(wish: SrunBox, node: &str) -> Result<(Self, Option<String>), String> {
        let mut short = Vec::new();
        if matches!(wish, SrunBox::Auto | SrunBox::Scope) {
            match Scopes::open().await {
                Ok(scopes) => return Ok((Self(Kind::Scope(scopes)), None)),
                Err(why) => short.push(format!("scope: {why}")),
            }
        }
        // Below a systemd that manages the cgroups nobody else makes any at the top.
        let is_ours = wish == SrunBox::Cgroup || (wish == SrunBox::Auto && !scope::is_booted());
        if is_ours {
            match Cgroups::open(cgroup::TOP.as_ref(), node) {
                Ok(cgroups) => return Ok((Self(Kind::Cgroup(cgroups)), None)),
                Err(why) => short.push(format!("cgroup: {why}")),
            }
        }
        match wish {
            SrunBox::Limits => Ok((Self::limits(), None)),
            SrunBox::Auto => Ok((Self::limits(), Some(short.join("; ")))),
            SrunBox::Scope | SrunBox::Cgroup => Err(short.join("; ")),
        }
    }

    /// Resource limits alone.
    pub fn limits() -> Self {
        Self(Kind::Limits)
    }

    /// In a word or two, for logs and `sserve doctor`.
    pub fn shown(&self) -> String {
        match &self.0 {
            Kind::Scope(_) => "a scope of systemd's".into(),
            Kind::Cgroup(cgroups) => format!("a cgroup ({})", cgroups.shown()),
            Kind::Limits => "resource limits alone".into(),
        }
    }

    /// Makes a place for a client of `user`'s.
    pub fn begin(&self, generation: &str, user: &User) -> Result<Place, String> {
        // A step is tried again under the same generation, maybe before the place of the former try is gone.
        let name = format!("{generation}-{:08x}", rand::random::<u32>());
        match &self.0 {
            Kind::Scope(scopes) => {
                let unit = scope::unit(&name);
                Ok(Place {
                    runner: Some(scopes.runner(&unit, user)),
                    held: Some(Held::Scope(unit)),
                    doors: Vec::new(),
                })
            }
            Kind::Cgroup(cgroups) => {
                let (folders, doors) = cgroups.make(&name)?;
                Ok(Place {
                    held: Some(Held::Cgroup(folders)),
                    runner: None,
                    doors,
                })
            }
            Kind::Limits => Ok(Place {
                held: None,
                runner: None,
                doors: Vec::new(),
            }),
        }
    }

    /// Ends what an agent left that died before it had written down what it made. `known` are those of launches that are known.
    pub fn sweep<'a>(&self, known: impl Iterator<Item = &'a Held>) {
        if let Kind::Cgroup(cgroups) = &self.0 {
            let known: Vec<&PathBuf> = known
                .filter_map(|held| match held {
                    Held::Cgroup(folders) => Some(folders),
                    Held::Scope(_) => None,
                })
                .flatten()
                .collect();
            let left = cgroups.strangers(&known);
            if !left.is_empty() {
                tokio::task::spawn_blocking(move || cgroup::end(&left));
            }
        }
    }
}

impl Place {
    /// The command for `program`, and whether it becomes the user by itself.
    pub fn command(&mut self, program: &OsStr) -> (Command, bool) {
        match self.runner.take() {
            Some(mut command) => {
                command.arg(program);
                (command, true)
            }
            None => (Command::new(program), false),
        }
    }

    /// What the child calls between fork and exec, while it still is root. System calls only.
    pub fn take_doors(&mut self) -> Doors {
        Doors(std::mem::take(&mut self.doors))
    }
}

/// Open `cgroup.procs` of where a child belongs.
#[derive(Debug)]
pub struct Doors(Vec<File>);

impl Doors {
    /// The calling process goes in ("0" is the writer itself, cgroups(7)).
    pub fn enter(&self) -> std::io::Result<()> {
        self.0.iter().try_for_each(|mut door| door.write_all(b"0"))
    }
}

impl Held {
    /// Waits for the client's own end for at most `grace`, then ends whatever is left, and removes the place.
    pub async fn end(self, client: Option<Known>, grace: Duration) {
        if let Some(client) = client {
            // Past it everything in the place is killed, the client too.
            let _ = client.gone(grace).await;
        }
        match self {
            Self::Scope(unit) => scope::end(&unit).await,
            Self::Cgroup(folders) => {
                let _ = tokio::task::spawn_blocking(move || cgroup::end(&folders)).await;
            }
        }
    }
}
