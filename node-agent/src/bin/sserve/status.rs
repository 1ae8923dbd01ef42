//! `sserve status [JOB]`: one job's model in detail, or all of mine.

use slurm_serve::listing::{AgentState, ListedModel, Listing};

use crate::failure::Failure;
use crate::find::Agents;
use crate::job_ref::{JobRef, surrounding};
use crate::list;
use crate::out;
use crate::text::plain;
use crate::words;

/// One job's model in detail, or all of mine
///
/// For one job: its state and since when, the engine's progress while loading, the address, and for one
/// that ended the cause, what to do, and the log's last lines. Without JOB, and outside a job: all your models, those
/// that ended lately too.
///
/// Who may: the job's owner, root, and admins. The exit code says whether the model was found, not how it is (see `wait`).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job: 123, or 123_4 for a task of an array. Inside a job: that one.
    job: Option<JobRef>,
}

/// Runs the verb.
pub async fn run(args: Args, agents: &Agents, json: bool) -> Result<(), Failure> {
    match args.job.or_else(surrounding) {
        Some(job) => {
            let found = agents.find(&job).await?;
            let model = ListedModel::from(found.model);
            match json {
                true => out::json(&model),
                false => out::lines(detail(&model)),
            }
        }
        None => {
            let mut listing = list::from_agents(agents, true).await?;
            let me = nix::unistd::getuid().as_raw();
            listing.models.retain(|model| model.owner_uid == me);
            show_mine(&listing, json)
        }
    }
}

fn show_mine(listing: &Listing, json: bool) -> Result<(), Failure> {
    if json {
        return out::json(listing);
    }
    let silent = listing
        .agents
        .iter()
        .any(|agent| agent.state == AgentState::Silent);
    if listing.models.is_empty() && !silent {
        return out::line(
            "you serve no model now, and none that ended lately; `sserve list` shows everybody's",
        );
    }
    list::print_table(listing)
}

/// The lines of one model.
fn detail(model: &ListedModel) -> Vec<String> {
    let mut lines = vec![words::which(model)];
    let mut say = |what: &str, text: String| {
        if !text.is_empty() {
            lines.push(format!("  {what:<9} {text}"));
        }
    };
    let since = words::since(model.state_since_ms);
    let since = match (since.is_empty(), words::is_over(model)) {
        (true, _) => String::new(),
        (false, true) => format!(" {since} ago"),
        (false, false) => format!(" for {since}"),
    };
    say("state", format!("{}{since}", model.state));
    if !words::is_over(model) {
        say("progress", model.progress.clone());
    }
    if let Some(ending) = &model.ending {
        say("cause", ending.cause.replace('_', " "));
        say("", ending.text.clone());
        say("what now", ending.hint.clone());
        say("exit", ending.wait_status.map(exit_words).unwrap_or_default());
    }
    if model.attempt > 1 {
        say("attempt", format!("{} of {}", model.attempt, model.max_attempts));
        let failure = model.last_failure.clone().unwrap_or_default();
        let why = match failure.text.as_str() {
            "" => "why the one before failed is not known".into(),
            text => format!("the one before failed: {text}"),
        };
        say("", why);
        say("", failure.hint);
    }
    say("owner", model.owner.clone());
    say("recipe", model.recipe.clone());
    say("task", model.task.clone());
    let names = std::iter::once(&model.name).chain(&model.aliases);
    say(
        "published",
        match model.published {
            true => format!("as {}", names.cloned().collect::<Vec<_>>().join(", ")),
            false => "no, it is the job's alone".into(),
        },
    );
    say("url", model.base_url.clone());
    say("engine", model.engine_version.clone());
    if !model.base_url.is_empty() {
        say(
            "requests",
            format!(
                "{} in flight, {} since it was ready",
                model.in_flight, model.requests
            ),
        );
    }
    if model.expires_ms > 0 && !words::is_over(model) {
        let now = words::now_ms();
        let left = words::span(model.expires_ms - now);
        say("ends", format!("in {left}, with its job's time limit"));
        let retires = match model.retires_ms - now {
            _ if !model.published || model.retires_ms == 0 => String::new(),
            ms if ms > 0 => format!("others are sent here for another {}", words::span(ms)),
            _ => "nothing new is sent here from elsewhere; its own job goes on using it".into(),
        };
        say("", retires);
    }
    say("log", words::log_path(model).unwrap_or_default());
    if let Some(ending) = model.ending.as_ref().filter(|ending| !ending.log_tail.is_empty()) {
        lines.push("  the log's last lines:".into());
        lines.extend(
            ending
                .log_tail
                .iter()
                .map(|line| format!("    | {}", plain(line))),
        );
    }
    lines
}

/// A status of wait(2) in words.
fn exit_words(status: i32) -> String {
    match (libc::WIFEXITED(status), libc::WIFSIGNALED(status)) {
        (true, _) => format!("the engine exited with code {}", libc::WEXITSTATUS(status)),
        (_, true) => format!("the engine was killed by signal {}", libc::WTERMSIG(status)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use slurm_serve::listing::ListedEnding;

    use super::*;

    #[test]
    fn a_failed_model_is_explained() {
        let model = ListedModel {
            name: "alice/tiny".into(),
            job_id: 12,
            node: "n1".into(),
            state: "failed".into(),
            owner: "alice".into(),
            ending: Some(ListedEnding {
                cause: "gpu_memory".into(),
                text: "not enough memory".into(),
                hint: "ask for a whole GPU".into(),
                log_path: "/home/alice/serve-12.log".into(),
                log_tail: vec!["\u{1b}[31mboom\u{1b}[0m".into()],
                wait_status: Some(9),
            }),
            ..ListedModel::default()
        };
        let text = detail(&model).join("\n");
        for part in [
            "alice/tiny (job 12 on n1)",
            "state     failed",
            "cause     gpu memory",
            "not enough memory",
            "what now  ask for a whole GPU",
            "killed by signal 9",
            "log       n1:/home/alice/serve-12.log",
            "    | boom",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
}
