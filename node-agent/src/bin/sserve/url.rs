//! `sserve url [JOB]`: where a job's model answers.

use serde::Serialize;
use slurm_serve::listing::ListedModel;

use crate::failure::Failure;
use crate::find::{Agents, Found};
use crate::job_ref::{JobRef, named_or_surrounding};
use crate::out;
use crate::text::shell_word;
use crate::words;

/// Where a job's model answers
///
/// Prints `http://HOST:PORT/v1`. With --env, lines for a POSIX shell that point OpenAI clients at it:
///
///     eval "$(sserve url --env 123)"
///
/// Those hold the job's key: whoever has it can use the model. Only the job's owner, root and admins are told.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The job: 123, or 123_4 for a task of an array. Inside a job: that one.
    job: Option<JobRef>,
    /// Print `export` lines for OPENAI_BASE_URL, OPENAI_API_KEY, SERVE_MODEL, SERVE_MODEL_URL, SERVE_MODEL_KEY and no_proxy, the key among them.
    #[arg(long)]
    env: bool,
}

#[derive(Debug, Serialize)]
struct Endpoint<'a> {
    job_id: u32,
    name: &'a str,
    state: &'a str,
    base_url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

/// Runs the verb.
pub async fn run(args: Args, agents: &Agents, json: bool) -> Result<(), Failure> {
    let job = named_or_surrounding(args.job, "url")?;
    let Found {
        agent, model: told, ..
    } = agents.find(&job).await?;
    let model = ListedModel::from(told.clone());
    if words::is_over(&model) {
        return Err(Failure::failed(words::ending(&model)));
    }
    if model.base_url.is_empty() {
        return Err(Failure::failed(format!(
            "{}; `sserve wait {job}` waits for it",
            words::progress(&model)
        )));
    }
    let key = match args.env {
        true => Some(agent.key(&told).await?),
        false => None,
    };
    if key.as_ref().is_some_and(String::is_empty) {
        return Err(Failure::failed(format!(
            "the agent of {} gives you no key for job {job}: that is the owner's ({})",
            model.node, model.owner
        )));
    }
    if !matches!(model.state.as_str(), "ready" | "retiring") {
        let when = match model.state.as_str() {
            "requested" | "launching" | "loading" => "yet",
            _ => "now",
        };
        out::note(format!(
            "{}: it does not answer {when}; `sserve wait {job}`",
            words::progress(&model)
        ));
    }
    match (json, key) {
        (true, key) => out::json(&Endpoint {
            job_id: model.job_id,
            name: &model.name,
            state: &model.state,
            base_url: &model.base_url,
            key: key.as_deref(),
        }),
        (false, Some(key)) => out::lines(exports(&model, &key)),
        (false, None) => out::line(&model.base_url),
    }
}

/// What a shell may run without a second thought: every value is one quoted word.
fn exports(model: &ListedModel, key: &str) -> Vec<String> {
    let values = [
        ("OPENAI_BASE_URL", model.base_url.as_str()),
        ("OPENAI_API_KEY", key),
        ("SERVE_MODEL", &model.name),
        ("SERVE_MODEL_URL", &model.base_url),
        ("SERVE_MODEL_KEY", key),
    ];
    let mut lines: Vec<String> = values
        .iter()
        .map(|(name, value)| format!("export {name}={}", shell_word(value)))
        .collect();
    if let Some(host) = host(&model.base_url) {
        let host = shell_word(host);
        // Programs read one or the other: the one that is missing must not hide what the other says.
        lines.push("no_proxy=\"${no_proxy:-${NO_PROXY:-}}\"".into());
        lines.push("NO_PROXY=\"${NO_PROXY:-$no_proxy}\"".into());
        for name in ["no_proxy", "NO_PROXY"] {
            lines.push(format!("export {name}=\"${{{name}:+${name},}}\"{host}"));
        }
    }
    lines
}

fn host(base_url: &str) -> Option<&str> {
    let authority = base_url.split_once("://")?.1.split('/').next()?;
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    Some(host.trim_start_matches('[').trim_end_matches(']')).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_that_evaluates_the_lines_gets_the_values_and_runs_nothing() {
        let model = ListedModel {
            name: "alice/it's $(touch /nonexistent/x)".into(),
            base_url: "http://10.0.0.1:18100/v1".into(),
            ..ListedModel::default()
        };
        let script = exports(&model, "sk-`id`").join("\n");
        let shell = std::process::Command::new("sh")
            .env("no_proxy", "a.example")
            .env_remove("NO_PROXY")
            .args(["-c", &format!("{script}\nprintf '%s\\n' \"$OPENAI_BASE_URL\" \"$OPENAI_API_KEY\" \"$SERVE_MODEL\" \"$no_proxy\" \"$NO_PROXY\"")])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&shell.stdout).lines().collect::<Vec<_>>(),
            [
                "http://10.0.0.1:18100/v1",
                "sk-`id`",
                "alice/it's $(touch /nonexistent/x)",
                "a.example,10.0.0.1",
                "a.example,10.0.0.1",
            ]
        );
        assert!(shell.stderr.is_empty());
    }

    #[test]
    fn hosts_are_found_in_urls() {
        assert_eq!(host("http://n1:18100/v1"), Some("n1"));
        assert_eq!(host("http://[fd00::1]:18100/v1"), Some("fd00::1"));
        assert_eq!(host("nonsense"), None);
    }
}
