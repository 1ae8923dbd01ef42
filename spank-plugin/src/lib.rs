//! `spank_serve.so`: the SPANK plugin. It checks what was asked for and says things to the agent, no more.
//!
//! Slurm loads it into sbatch, srun and salloc, into slurmd, into every slurmstepd, and into the helpers that run prolog and
//! epilog. Each of those contexts has a file of its own:
//!
//! | file | where Slurm calls it | who runs it |
//! |---|---|---|
//! | [`submit`] | sbatch, salloc (context *allocator*), srun (context *local*): `init_post_opt` | the user, login node |
//! | [`task`] | slurmstepd's child, before the user's program: `task_init` | the user, compute node |
//! | [`task_exit`] | slurmstepd: `task_exit` of the batch or interactive step | root |
//! | [`job_script`] | `slurmstepd spank prolog|epilog`: `job_prolog`, `job_epilog` | root, each node of the job |
//!
//! `plugin.rs` is the one file that SPANK's symbols come from; it does nothing but hand over. What keeps Slurm safe from us is in
//! [`guard`] (no panic and no SIGPIPE leaves a hook) and in [`rpc`] (no call without a deadline, no thread, nothing kept
//! between hooks).
//!
//! The plugin is installed as `optional`: a stale one must never stop slurmd. So no hook ever returns an error; a job is failed by
//! one clear line and `_exit` of its own forked child, which leaves the node alone.

pub mod environment;
pub mod guard;
pub mod job_script;
pub mod options;
mod plugin;
pub mod progress;
pub mod rpc;
pub mod settings;
pub mod socket;
pub mod submit;
pub mod task;
pub mod task_exit;
pub mod user_recipes;
