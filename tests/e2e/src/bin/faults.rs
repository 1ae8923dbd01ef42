//! `make test-faults` and `make soak`: the scenarios of docs/endings.md on a lab.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use serve_e2e::endings::{self, Measured, Row, Run, Verdict};
use serve_e2e::{Options, Site};

/// Plays the scenarios of docs/endings.md on a lab and prints what came of each. $SLURM chooses the release.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Only scenarios with one of these in their names.
    filters: Vec<String>,
    /// Only print the names.
    #[arg(long)]
    list: bool,
    /// Play also what is known not to be as it should.
    #[arg(long)]
    pending: bool,
    /// Keep what was measured for docs/endings.md; only with all scenarios.
    #[arg(long, conflicts_with = "filters")]
    record: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Plays scenarios at random, beside two models that nothing of it may touch.
    Soak {
        /// For how long.
        #[arg(long, default_value_t = 20)]
        minutes: u64,
        /// Plays the same again; a random one if not given.
        #[arg(long)]
        seed: Option<u64>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.verb {
        Some(Verb::Soak { minutes, seed }) => soak(minutes, seed),
        None => table(&cli),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("faults: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// With the product's own waits, and a partition whose jobs preempt others.
fn options() -> Options {
    let settings = [
        ("PreemptType", "preempt/partition_prio"),
        ("PreemptMode", "REQUEUE"),
    ];
    Options {
        short_waits: false,
        settings: settings
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        lines: vec!["PartitionName=urgent Nodes=ALL PriorityTier=10 State=UP".into()],
        ..Options::default()
    }
}

fn table(cli: &Cli) -> Result<bool> {
    let wanted =
        |row: &&Row| cli.filters.is_empty() || cli.filters.iter().any(|filter| row.name.contains(filter));
    let rows: Vec<&Row> = endings::all().filter(wanted).collect();
    ensure!(
        !rows.is_empty(),
        "no scenario is called so; --list shows their names"
    );
    if cli.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(true);
    }
    let options = options();
    let site = Site::up(&options)?;
    println!("== {} scenarios on Slurm {}", rows.len(), options.release);
    let mut all = Vec::new();
    for row in rows {
        let start = Instant::now();
        let one = match row.pending {
            Some(why) if !cli.pending => Measured {
                verdict: Verdict::Pending(why.to_owned()),
                ..Measured::of(row, site.lease)
            },
            _ => endings::play(&site, row),
        };
        let word = match &one.verdict {
            Verdict::Met => "ok",
            Verdict::Failed(_) => "FAILED",
            Verdict::Pending(_) => "pending",
        };
        println!(
            "   {:5.1} s  {word:7}  {}",
            start.elapsed().as_secs_f64(),
            row.name
        );
        std::io::stdout().flush()?;
        all.push(one);
    }
    println!("\n== Slurm {}\n{}", options.release, endings::table(&all));
    let met = all.iter().all(|one| !matches!(one.verdict, Verdict::Failed(_)));
    let run = Run {
        day: day(),
        slurm: site.slurm_version()?,
        measured: all,
    };
    site.down()?;
    let path = target()?.join(format!("{}.json", options.release));
    std::fs::write(&path, serde_json::to_string_pretty(&run)? + "\n")
        .with_context(|| format!("can't write {}", path.display()))?;
    println!("== written to {}", path.display());
    if cli.record {
        endings::keep(options.release, run)?;
        println!("== recorded, and docs/endings.md made anew");
    }
    Ok(met)
}

fn soak(minutes: u64, seed: Option<u64>) -> Result<bool> {
    let seed = seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let options = options();
    let site = Site::up(&options)?;
    println!(
        "== {minutes} minutes of scenarios at random on Slurm {}, seed {seed}",
        options.release
    );
    let start = Instant::now();
    let summary = endings::soak::soak(&site, Duration::from_secs(60 * minutes), seed, &mut |line| {
        println!("   {:6.0} s  {line}", start.elapsed().as_secs_f64());
        let _ = std::io::stdout().flush();
    })?;
    site.checked(|_| Ok(()))?;
    site.down()?;
    println!("\n== Slurm {}\n{}", options.release, summary.text(seed));
    Ok(summary.violations.is_empty())
}

/// The folder for results, beside the one that this program was built into.
fn target() -> Result<PathBuf> {
    let own = std::env::current_exe().context("can't find the running program")?;
    let target = own
        .ancestors()
        .nth(2)
        .context("the running program lies in no target folder")?;
    let folder = target.join("faults");
    std::fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    Ok(folder)
}

/// Today, `YYYY-MM-DD`, by the machine's clock (UTC).
fn day() -> String {
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    now.split('T').next().unwrap_or_default().to_owned()
}
