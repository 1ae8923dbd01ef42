//! A transient scope of systemd's for each client, made by systemd-run(1), which becomes the client: same pid, same descriptors.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::unistd::User;
use tokio::process::Command;

use super::{CPU_PERCENT, MEMORY, TASKS};

/// There while systemd is the init (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";
/// How long systemd may take to make or to end a scope.
const LIMIT: Duration = Duration::from_secs(5);

/// Is systemd the init here?
pub fn is_booted() -> bool {
    Path::new(BOOTED).is_dir()
}

/// The name of the scope called `name`.
pub fn unit(name: &str) -> String {
    format!("slurm-serve-srun-{name}.scope")
}

/// systemd-run works here.
#[derive(Debug)]
pub struct Scopes;

impl Scopes {
    /// Makes a scope once, to know.
    pub async fn open() -> Result<Self, String> {
        if !is_booted() {
            return Err(format!("systemd does not run here (no {BOOTED})"));
        }
        let unit = unit(&format!("try-{:08x}", rand::random::<u32>()));
        let mut command = Command::new("systemd-run");
        command.args(arguments(&unit)).arg("true");
        let output = output(command).await?;
        match output.status.success() {
            true => Ok(Self),
            false => Err(format!(
                "systemd-run: {}",
                String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")
            )),
        }
    }

    /// systemd-run as the user, up to the program that follows. It passes the environment on, so nothing secret is in these words.
    pub fn runner(&self, unit: &str, user: &User) -> Command {
        let mut command = Command::new("systemd-run");
        command
            .args(arguments(unit))
            .arg(format!("--uid={}", user.uid))
            .arg(format!("--gid={}", user.gid))
            .arg("--");
        command
    }
}

fn arguments(unit: &str) -> Vec<String> {
    let property = |text: String| format!("--property={text}");
    vec![
        "--scope".into(),
        "--quiet".into(),
        // Also one that failed leaves nothing behind.
        "--collect".into(),
        format!("--unit={unit}"),
        "--description=srun of a model's step, slurm-serve".into(),
        property(format!("MemoryMax={MEMORY}")),
        property("MemorySwapMax=0".into()),
        property(format!("TasksMax={TASKS}")),
        property(format!("CPUQuota={CPU_PERCENT}%")),
        // No GPU, no disk: /dev/null and its like only.
        property("DevicePolicy=closed".into()),
        property("TimeoutStopSec=5s".into()),
    ]
}

/// Ends what is left in a scope. One that is gone, as usual, is no error.
pub async fn end(unit: &str) {
    let mut command = Command::new("systemctl");
    command.args(["--no-ask-password", "stop", unit]);
    match output(command).await {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            if !said.contains("not loaded") {
                tracing::warn!(unit, "systemctl stop: {}", said.trim());
            }
        }
        Err(why) => tracing::warn!(unit, "systemctl stop: {why}"),
    }
}

async fn output(mut command: Command) -> Result<std::process::Output, String> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(LIMIT, command.output()).await {
        Ok(output) => output.map_err(|e| e.to_string()),
        Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_run_is_told_limits_and_user_and_no_secret() {
        let user = User::from_uid(nix::unistd::getuid()).unwrap().unwrap();
        let command = Scopes.runner(&unit("7.0.1-ab-cd"), &user);
        let words: Vec<_> = command
            .as_std()
            .get_args()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        for wanted in [
            "--scope",
            "--collect",
            "--unit=slurm-serve-srun-7.0.1-ab-cd.scope",
            "--property=MemoryMax=268435456",
            "--property=TasksMax=64",
            "--property=CPUQuota=100%",
            "--property=DevicePolicy=closed",
            &format!("--uid={}", user.uid),
            &format!("--gid={}", user.gid),
        ] {
            assert!(words.iter().any(|word| word == wanted), "{wanted}: {words:?}");
        }
        assert_eq!(words.last().map(String::as_str), Some("--"));
    }
}
