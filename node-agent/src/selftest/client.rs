//! `slurm-serve selftest-client`: asks the model of the job that it runs in, as any client would, by the environment.

use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Facts, TOKEN};

/// Beyond the time that the answer takes by itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the client takes.
#[derive(Debug, clap::Args)]
pub struct ClientArgs {
    /// Tokens to ask for: tenths of a second until the answer comes.
    #[arg(long, default_value_t = 1)]
    tokens: u32,
}

/// What a client in the job has learnt.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// What the client itself sees.
    pub own: Facts,
    /// What the engine said that it sees.
    pub engine: Facts,
}

/// Asks, and prints an [`Answer`] as one line of JSON.
pub async fn run(args: ClientArgs) -> anyhow::Result<()> {
    let variable = |name: &str| {
        std::env::var(name).with_context(|| format!("{name} is not set: is this a job with a model?"))
    };
    let (url, key, model) = (
        variable("SERVE_MODEL_URL")?,
        variable("SERVE_MODEL_KEY")?,
        variable("SERVE_MODEL")?,
    );
    let engine = ask(&url, &key, &model, args.tokens).await?;
    let answer = Answer {
        own: Facts::here(),
        engine,
    };
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}

/// Asks the selftest's engine behind `url` (`http://HOST:PORT/v1`) for so many tokens; what it sees of its surroundings.
pub async fn ask(url: &str, key: &str, model: &str, tokens: u32) -> anyhow::Result<Facts> {
    let client = crate::http_client::builder()
        .timeout(TOKEN * tokens + PATIENCE)
        .build()?;
    let asked = client
        .post(format!("{url}/chat/completions"))
        .bearer_auth(key)
        .json(&json!({"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "Where are you?"}]}))
        .send()
        .await;
    let answer = asked.with_context(|| format!("{url} can't be asked"))?;
    let status = answer.status();
    let text = answer
        .text()
        .await
        .with_context(|| format!("{url} broke off its answer"))?;
    if !status.is_success() {
        bail!(
            "{url} answered {status}: {}",
            text.chars().take(200).collect::<String>()
        );
    }
    let value: Value = serde_json::from_str(&text).with_context(|| format!("{url} answered no JSON"))?;
    let content = value["choices"][0]["message"]["content"]
        .as_str()
        .unwrap_or_default();
    serde_json::from_str(content).context("the answer is not of the selftest's engine")
}
