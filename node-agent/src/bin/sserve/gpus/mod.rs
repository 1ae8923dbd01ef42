//! `sserve gpus`: what each GPU does, and letting go of them.

mod view;

use std::time::Duration;

use clap::Subcommand;
use slurm_serve_proto::v1::NodeSample;

use self::view::Node;
use crate::agent::{Agent, Trouble, silent};
use crate::failure::{Exit, Failure};
use crate::find::Agents;
use crate::out;

/// What the GPUs of this cluster do
///
/// One row for each GPU, as the driver's library (NVML) tells it: UTIL is the share of the last second in which any kernel ran, POWER its draw and
/// its limit, MEMORY what is taken of it. A cell is empty where the card does not say. A node whose driver is unwell, or whose agent does not
/// answer, has a row of its own.
///
/// Asks every agent of Slurm's nodes; without Slurm, the agent of this node. Who may: anyone; over the network, whoever has the role `read` there.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// These nodes alone, as Slurm writes them ("gpu[01-04],gpu09").
    #[arg(long, value_name = "NODES", global = true)]
    nodes: Option<String>,
    #[command(subcommand)]
    order: Option<Order>,
}

#[derive(Debug, Subcommand)]
enum Order {
    /// For admins: let go of the driver, for a reset of a GPU or a change of MIG
    ///
    /// Once this has ended well, the agent has no handle open (`fuser /dev/nvidia*` shows who else has). Sampling begins again by itself after --for,
    /// or with `sserve gpus resume`. Of this node, if --nodes names none.
    Quiesce {
        /// For how long ("90s", "10m"; at most a day).
        #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, default_value = "10m")]
        time: Duration,
    },
    /// For admins: sample again
    ///
    /// Of this node, if --nodes names none.
    Resume,
}

/// Runs the verb.
pub async fn run(args: Args, agents: &Agents, json: bool) -> Result<(), Failure> {
    match args.order {
        None => {
            let asked = match args.nodes {
                None => agents.all().await?,
                Some(nodes) => agents.named(&nodes).await?,
            };
            show(&asked, json).await
        }
        Some(Order::Quiesce { time }) => {
            let seconds = u32::try_from(time.as_secs().max(1))
                .map_err(|_| Failure::usage("--for: at most a day".to_owned()))?;
            let said = format!("let go of for {}", humantime::format_duration(time));
            let agents = ordered(args.nodes.as_deref(), agents).await?;
            order(&agents, &said, move |agent| async move {
                agent.quiesce(seconds).await
            })
            .await
        }
        Some(Order::Resume) => {
            let agents = ordered(args.nodes.as_deref(), agents).await?;
            order(
                &agents,
                "sampled again",
                |agent| async move { agent.resume().await },
            )
            .await
        }
    }
}

async fn show(agents: &[Agent], json: bool) -> Result<(), Failure> {
    let answers = Agents::ask(agents, |agent| async move { agent.sample().await }).await;
    let nodes: Vec<Node> = agents
        .iter()
        .zip(answers)
        .map(|(agent, answer)| node(agent, answer))
        .collect();
    let nobody = nodes.iter().all(Node::is_silent);
    match json {
        true => out::json(&view::Gpus { nodes })?,
        false => out::lines(view::table(&nodes))?,
    }
    match nobody {
        true => Err(Failure::new(Exit::Unreachable, "no agent told of its GPUs")),
        false => Ok(()),
    }
}

fn node(agent: &Agent, answer: Result<NodeSample, Trouble>) -> Node {
    match answer {
        Ok(sample) => Node::of(&sample),
        Err(trouble) => Node::silent(agent.node(), words(trouble)),
    }
}

/// Gives the same order to all of them; an error if any did not take it.
async fn order<F>(agents: &[Agent], done: &str, order: impl Fn(Agent) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Trouble>> + Send + 'static,
{
    let mut failure = None;
    for (agent, answer) in agents.iter().zip(Agents::ask(agents, order).await) {
        match answer {
            Ok(()) => out::line(format!("{}: its GPUs are {done}", agent.node()))?,
            Err(trouble) => {
                let exit = match trouble {
                    Trouble::Silent(_) => Exit::Unreachable,
                    _ => Exit::Failed,
                };
                let line = format!("{}: {}", agent.node(), words(trouble));
                if let Some(Failure { line, .. }) = failure.replace(Failure::new(exit, line)) {
                    out::note(line);
                }
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

fn words(trouble: Trouble) -> String {
    match trouble {
        Trouble::NotFound => "its agent knows nothing of GPUs".into(),
        Trouble::Refused(why) => why,
        Trouble::Silent(why) => silent(&why),
    }
}

/// Those of `nodes`, this one if there are none named: nobody lets go of a whole cluster by a word forgotten.
async fn ordered(nodes: Option<&str>, agents: &Agents) -> Result<Vec<Agent>, Failure> {
    if let Some(nodes) = nodes {
        return agents.named(nodes).await;
    }
    let local = agents.local().ok_or_else(|| {
        Failure::new(
            Exit::Unreachable,
            format!(
                "no agent's socket at {}; --nodes names the nodes that are meant",
                agents.config().agent.socket.display()
            ),
        )
    })?;
    Ok(vec![local])
}
