//! What every model's task needs of its surroundings.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::confine::Confine;
use super::ports::Ports;
use super::store::Store;
use crate::catalog::Hub;
use crate::config;
use crate::slurm::Slurm;

/// The agent's surroundings.
#[derive(Debug)]
pub struct World {
    /// `[agent]`.
    pub config: config::Agent,
    /// Slurm's commands.
    pub slurm: Slurm,
    /// Slurm's name of this node.
    pub node: String,
    /// What others reach this node by.
    pub address: String,
    /// This program's own file, which becomes the step's task.
    pub program: PathBuf,
    /// What holds the srun clients.
    pub confine: Confine,
    /// What this node announces.
    pub hub: Arc<Hub>,
    /// What survives the agent.
    pub store: Store,
    /// Who has which port.
    pub ports: Arc<Ports>,
    /// All of a model's ending must fit this: KillWait less 3 s.
    pub end_budget: Duration,
}
