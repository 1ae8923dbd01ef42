//! `sserve plugin stamp|check`: the SPANK plugin as a file.

use std::path::PathBuf;

use anyhow::{Context, bail};
use slurm_serve::plugin_file::{
    self, Finding, HostPaths, Level, Report, SlurmVersion, host_paths, host_version, read_version,
};

use crate::failure::Failure;
use crate::out;

/// Stamp the SPANK plugin for a Slurm release, or see whether this host's Slurm would load it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Write a release's version number into the plugin: Slurm loads no other.
    Stamp {
        /// The plugin, spank_serve.so.
        file: PathBuf,
        /// The release, as 24.11.5; this host's, if left out. The last part does not matter to Slurm.
        #[arg(long, value_name = "VERSION")]
        slurm: Option<SlurmVersion>,
        /// Write a stamped copy here and leave FILE as it is.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Show what this host's Slurm would load, and why not. Exit code 1 if the plugin would not load.
    Check {
        /// Check for this release instead of this host's.
        #[arg(long, value_name = "VERSION")]
        slurm: Option<SlurmVersion>,
        /// Begin with this file instead of Slurm's plugstack.conf.
        #[arg(long, value_name = "FILE")]
        plugstack: Option<PathBuf>,
        /// Look here for plugins instead of in Slurm's PluginDir; may be given several times.
        #[arg(long, value_name = "DIR")]
        plugin_dir: Vec<PathBuf>,
    },
}

/// Runs the verb; `json`: the answer of `check` as JSON. An error is for main to print.
pub fn run(args: Args, json: bool) -> Result<(), Failure> {
    run_verb(args, json).map_err(|error| match error.downcast::<Failure>() {
        Ok(failure) => failure,
        Err(error) => Failure::failed(format!("{error:#}")),
    })
}

fn run_verb(args: Args, json: bool) -> anyhow::Result<()> {
    match args.verb {
        Verb::Stamp { file, slurm, output } => stamp(file, slurm, output),
        Verb::Check {
            slurm,
            plugstack,
            plugin_dir,
        } => {
            let paths = match plugstack {
                // Nothing is left to ask Slurm for.
                Some(plugstack) if !plugin_dir.is_empty() => HostPaths {
                    plugstack,
                    plugin_dirs: plugin_dir,
                    guessed: None,
                },
                given => {
                    let found = host_paths();
                    HostPaths {
                        plugstack: given.unwrap_or(found.plugstack),
                        plugin_dirs: if plugin_dir.is_empty() {
                            found.plugin_dirs
                        } else {
                            plugin_dir
                        },
                        guessed: found.guessed,
                    }
                }
            };
            check(json, slurm.or_else(host_version), &paths)
        }
    }
}

fn stamp(file: PathBuf, slurm: Option<SlurmVersion>, output: Option<PathBuf>) -> anyhow::Result<()> {
    let version = slurm
        .or_else(host_version)
        .context("no Slurm on this host tells its version: say it with --slurm 24.11.5")?;
    let output = output.unwrap_or_else(|| file.clone());
    let before = read_version(&file)?;
    plugin_file::stamp(&file, &output, version)?;
    out::line(format!(
        "{}: made for Slurm {version} (was {before})",
        output.display()
    ))?;
    Ok(())
}

fn check(json: bool, version: Option<SlurmVersion>, paths: &HostPaths) -> anyhow::Result<()> {
    let report = plugin_file::check(paths, version);
    if json {
        out::json(&report)?;
    } else {
        out::lines(as_text(&report))?;
    }
    if !report.loads {
        bail!("this host's Slurm would not load the plugin");
    }
    Ok(())
}

fn as_text(report: &Report) -> Vec<String> {
    let mut lines = vec![
        format!(
            "Slurm {}",
            report.slurm.as_deref().unwrap_or("of unknown version")
        ),
        format!("plugin stack: {}", report.plugstack.display()),
    ];
    lines.extend(report.findings.iter().map(|finding| finding_line("  ", finding)));
    for line in &report.stack {
        lines.push(format!(
            "{} {} {} ({})",
            if line.ours { "*" } else { "-" },
            if line.required { "required" } else { "optional" },
            line.plugin.display(),
            line.place
        ));
        lines.extend(line.findings.iter().map(|finding| finding_line("    ", finding)));
        if line.ours {
            lines.push(finding_line("    ", &line.agent()));
        }
    }
    if report.loads {
        lines.push("The plugin would be loaded.".into());
    }
    lines
}

fn finding_line(indent: &str, finding: &Finding) -> String {
    let word = match finding.level {
        Level::Ok => "ok  ",
        Level::Warn => "WARN",
        Level::Bad => "BAD ",
    };
    format!("{indent}{word} {}", finding.text)
}
