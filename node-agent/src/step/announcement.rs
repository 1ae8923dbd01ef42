//! What srun's environment says to a new runner: where the agent is, which launch this is, and the nonce that proves it.

#![allow(unsafe_code)]
// `take` runs before there is a second thread.
#![allow(clippy::disallowed_methods)]

/// Read once, and gone from the environment afterwards.
#[derive(Clone)]
pub struct Announcement {
    /// The agent's Unix socket.
    pub socket: String,
    /// Which launch this is.
    pub generation: String,
    /// Good for one `RunnerHello`.
    pub nonce: String,
    /// SLURM_JOB_ID.
    pub job_id: u32,
}

const SOCKET: &str = "SLURM_SERVE_SOCKET";
const GENERATION: &str = "SLURM_SERVE_GENERATION";
const NONCE: &str = "SLURM_SERVE_NONCE";

impl Announcement {
    /// Takes it out of the environment. Must be called while the process has one thread. The error is one line.
    pub fn take() -> Result<Self, String> {
        let read = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let taken = (read(SOCKET), read(GENERATION), read(NONCE));
        for name in [SOCKET, GENERATION, NONCE] {
            // SAFETY: the caller has no other thread that could read the environment meanwhile.
            unsafe { std::env::remove_var(name) };
        }
        let (Some(socket), Some(generation), Some(nonce)) = taken else {
            return Err(format!(
                "{SOCKET}, {GENERATION} or {NONCE} is missing: the agent starts this program, people use sbatch --serve-model"
            ));
        };
        let job_id = read("SLURM_JOB_ID").and_then(|id| id.parse().ok());
        let job_id = job_id.ok_or("SLURM_JOB_ID is missing: this is no step of a job")?;
        Ok(Self {
            socket,
            generation,
            nonce,
            job_id,
        })
    }
}
