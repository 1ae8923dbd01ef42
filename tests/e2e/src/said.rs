//! Commands of a site's users that may well fail: what they said.

use anyhow::{Context, Result, ensure};

use crate::site::Site;

/// How a command ended and what it wrote.
#[derive(Debug)]
pub struct Said {
    /// Exit code; 128 and the signal's number if one killed it.
    pub code: i32,
    /// stdout.
    pub out: String,
    /// stderr.
    pub err: String,
}

impl Site {
    /// Runs a command as a user on the login node, with `input` to read and `env` on top of the clean environment.
    pub fn say(&self, user: &str, argv: &[&str], input: &str, env: &[(&str, &str)]) -> Result<Said> {
        use std::os::unix::process::ExitStatusExt;
        let mut command = self.lab.login().command(user, argv.iter().copied()).input(input);
        for (name, value) in env {
            command = command.env(name, value);
        }
        let output = command.output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let killed = output.status.signal().map(|signal| 128 + signal);
        Ok(Said {
            code: output.status.code().or(killed).context("no exit status")?,
            out: text(&output.stdout),
            err: text(&output.stderr),
        })
    }

    /// The jobs in Slurm's queue.
    pub fn queue(&self) -> Result<String> {
        let queue = self.lab.login().command("root", ["squeue", "-h", "-a"]).run()?;
        Ok(queue.trim().to_owned())
    }
}

impl Said {
    /// Our lines on stderr.
    pub fn ours(&self) -> Vec<&str> {
        self.err.lines().filter(|line| line.contains("serve: ")).collect()
    }

    /// That it failed, and with one line of ours, which holds all of `words`.
    pub fn one_line(&self, words: &[&str]) -> Result<()> {
        ensure!(self.code != 0, "it passed: {self:?}");
        let ours = self.ours();
        ensure!(
            ours.len() == 1,
            "{} lines of ours, not one: {}",
            ours.len(),
            self.err
        );
        has(ours[0], words)
    }
}

/// That a line holds all of `words`.
pub fn has(line: &str, words: &[&str]) -> Result<()> {
    let missing = words.iter().find(|word| !line.contains(**word));
    ensure!(missing.is_none(), "no {:?} in {line:?}", missing.unwrap_or(&""));
    Ok(())
}
