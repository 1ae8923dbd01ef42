//! `sserve list`: what is served, everybody's.

use slurm_serve::listing::{AgentState, ListedAgent, ListedModel, Listing, PATH};

use crate::agent::Trouble;
use crate::failure::{Exit, Failure};
use crate::find::Agents;
use crate::out;
use crate::table::{self, Column};
use crate::words;

/// What is served on this cluster, everybody's
///
/// One row for each replica, with its owner (who could read what is sent to it), and one for each agent that does not answer:
/// what it serves is not known. BUSY is the number of requests in flight.
///
/// Asks the gateway that the config names (client.gateway); without one, every agent of Slurm's nodes; without Slurm, the agent
/// of this node. Who may: anyone; over the network, whoever has the role `read` there.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also what ended or failed lately (asks the agents, as long as they keep it: agent.keep_ended).
    #[arg(short, long)]
    all: bool,
    /// Ask the agents even if a gateway is configured.
    #[arg(long)]
    agents: bool,
}

/// Runs the verb.
pub async fn run(args: Args, agents: &Agents, json: bool) -> Result<(), Failure> {
    let gateway = &agents.config().client.gateway;
    let mut listing = match gateway.is_empty() || args.agents || args.all {
        true => from_agents(agents, args.all).await?,
        false => from_gateway(gateway, agents).await?,
    };
    if !args.all {
        // A gateway also tells of what failed lately.
        listing.models.retain(|model| !words::is_over(model));
    }
    if json {
        out::json(&listing)?;
    } else if listing.models.is_empty() && listing.agents.iter().all(|a| a.state == AgentState::Ok) {
        let asked = words::count(listing.agents.len(), "agent");
        out::line(format!("nothing is served (asked {asked})"))?;
    } else {
        print_table(&listing)?;
    }
    let nobody = !listing.agents.is_empty() && listing.agents.iter().all(|a| a.state == AgentState::Silent);
    match nobody {
        true => Err(Failure::new(
            Exit::Unreachable,
            "no agent answers; what is served is not known",
        )),
        false => Ok(()),
    }
}

/// What the gateway at `base` knows.
async fn from_gateway(base: &str, agents: &Agents) -> Result<Listing, Failure> {
    let url = format!("{}{PATH}", base.trim_end_matches('/'));
    let unreachable = |why: String| {
        Failure::new(
            Exit::Unreachable,
            format!("gateway {url}: {why}; `sserve list --agents` asks the agents instead"),
        )
    };
    let client = slurm_serve::http_client::builder()
        .timeout(agents.config().client.timeout)
        .build()
        .map_err(|e| unreachable(deepest(&e)))?;
    let answer = client
        .get(&url)
        .send()
        .await
        .map_err(|e| unreachable(deepest(&e)))?;
    if !answer.status().is_success() {
        return Err(unreachable(format!("answered {}", answer.status())));
    }
    answer
        .json()
        .await
        .map_err(|e| unreachable(format!("no listing: {}", deepest(&e))))
}

/// What every agent says, with a row for each that does not.
pub async fn from_agents(agents: &Agents, include_ended: bool) -> Result<Listing, Failure> {
    let asked = agents.all().await?;
    let answers = Agents::ask(
        &asked,
        move |agent| async move { agent.models(include_ended).await },
    )
    .await;
    let mut listing = Listing::default();
    for (agent, answer) in asked.iter().zip(answers) {
        match answer {
            Ok(answer) => {
                listing
                    .models
                    .extend(answer.models.into_iter().map(ListedModel::from));
                listing.agents.push(ListedAgent {
                    node: answer.node,
                    ..ListedAgent::default()
                });
            }
            Err(trouble) => listing.agents.push(ListedAgent {
                node: agent.node().to_owned(),
                state: AgentState::Silent,
                error: Some(match trouble {
                    Trouble::Refused(why) | Trouble::Silent(why) => why,
                    Trouble::NotFound => "it knows no catalog".into(),
                }),
            }),
        }
    }
    listing
        .models
        .sort_by(|a, b| (&a.name, &a.node, a.job_id).cmp(&(&b.name, &b.node, b.job_id)));
    Ok(listing)
}

/// The listing as a table on stdout.
pub fn print_table(listing: &Listing) -> Result<(), Failure> {
    out::lines(table::render(&HEAD, &rows(listing), table::terminal_columns()))
}

const HEAD: [Column; 8] = [
    Column::text("MODEL", 16),
    Column::whole("STATE"),
    Column::whole("SINCE"),
    Column::text("OWNER", 6),
    Column::number("JOB"),
    Column::text("NODE", 6),
    Column::number("BUSY"),
    Column::text("NOTE", 8),
];

fn rows(listing: &Listing) -> Vec<Vec<String>> {
    let models = listing.models.iter().map(|model| {
        let busy = match model.state.as_str() {
            "ready" | "unresponsive" | "retiring" | "draining" => model.in_flight.to_string(),
            _ => String::new(),
        };
        vec![
            model.name.clone(),
            model.state.clone(),
            words::since(model.state_since_ms),
            model.owner.clone(),
            model.job_id.to_string(),
            model.node.clone(),
            busy,
            note(model),
        ]
    });
    let silent = listing
        .agents
        .iter()
        .filter(|agent| agent.state == AgentState::Silent);
    let silent = silent.map(|agent| {
        let cells = ["?", "silent", "", "", "", agent.node.as_str(), ""];
        let mut row: Vec<String> = cells.map(str::to_owned).to_vec();
        row.push(agent.error.clone().unwrap_or_default());
        row
    });
    models.chain(silent).collect()
}

/// What a row says beyond its columns.
fn note(model: &ListedModel) -> String {
    if let Some(ending) = &model.ending {
        return match ending.text.is_empty() {
            true => ending.cause.replace('_', " "),
            false => ending.text.clone(),
        };
    }
    match model.state.as_str() {
        "requested" | "launching" | "loading" | "unresponsive" | "restarting"
            if !model.progress.is_empty() =>
        {
            model.progress.clone()
        }
        "retiring" => format!(
            "its job ends in {}",
            words::span(model.expires_ms - words::now_ms())
        ),
        _ if !model.published => "not published".into(),
        _ => String::new(),
    }
}

/// reqwest hides the cause in the chain of sources.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_and_silent_agents_are_rows() {
        let model = ListedModel {
            name: "tiny".into(),
            state: "ready".into(),
            owner: "alice".into(),
            job_id: 12,
            node: "n1".into(),
            in_flight: 3,
            published: true,
            ..ListedModel::default()
        };
        let loading = ListedModel {
            state: "loading".into(),
            progress: "shards 1/4".into(),
            job_id: 13,
            ..model.clone()
        };
        let silent = ListedAgent {
            node: "n2".into(),
            state: AgentState::Silent,
            error: Some("agent of n2: Connection refused".into()),
        };
        let listing = Listing {
            models: vec![model, loading],
            agents: vec![silent],
        };
        assert_eq!(
            table::render(&HEAD, &rows(&listing), 100),
            [
                "MODEL  STATE    OWNER  JOB  NODE  BUSY  NOTE",
                "tiny   ready    alice   12  n1       3",
                "tiny   loading  alice   13  n1          shards 1/4",
                "?      silent               n2          agent of n2: Connection refused",
            ]
        );
    }
}
