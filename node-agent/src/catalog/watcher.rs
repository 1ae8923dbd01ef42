//! Following one agent's pull catalog: one `WatchModels` stream, from its opening to its break.
//!
//! What is heard is handed to an [`Audience`]. A revision is acknowledged once the audience has acted upon it and upon all
//! before it; acting and settling are apart, so that a change is acted upon at once while an earlier one still settles.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use slurm_serve_proto::v1::catalog_client::CatalogClient;
use slurm_serve_proto::v1::watch_models_response::Event;
use slurm_serve_proto::v1::{ModelDelta, ModelSnapshot, WatchModelsRequest, WatchModelsResponse};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;

use crate::client::{self, AgentChannel};

/// Revisions acted upon and not yet settled; more than that, and the stream waits.
const UNSETTLED: usize = 64;

/// Done once nothing will happen any more that a change was meant to stop.
pub type Settled = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Who acts upon what an agent says.
pub trait Audience: Sync {
    /// The agent has answered; its snapshot comes next.
    fn opened(&self);
    /// Everything there is on that node.
    fn snapshot(&self, snapshot: ModelSnapshot) -> impl Future<Output = Settled> + Send;
    /// What has changed.
    fn delta(&self, delta: ModelDelta) -> impl Future<Output = Settled> + Send;
}

/// Why a stream ended.
#[derive(Debug)]
pub struct Broken {
    /// One line.
    pub why: String,
    /// When the agent was heard last; when the attempt began, if never.
    pub heard: Instant,
    /// Whether a snapshot had come.
    pub served: bool,
}

/// Follows `channel` until it breaks. The agent has `patience` to answer, and again to send its snapshot.
pub async fn follow(channel: AgentChannel, patience: Duration, audience: &impl Audience) -> Broken {
    let mut broken = Broken {
        why: String::new(),
        heard: Instant::now(),
        served: false,
    };
    broken.why = match listen(channel, patience, audience, &mut broken).await {
        Ok(never) => match never {},
        Err(why) => why,
    };
    broken
}

async fn listen(
    channel: AgentChannel,
    patience: Duration,
    audience: &impl Audience,
    broken: &mut Broken,
) -> Result<std::convert::Infallible, String> {
    let (acked, acks) = watch::channel(0_u64);
    let acks = WatchStream::new(acks).map(|acked_revision| WatchModelsRequest { acked_revision });
    let mut client = CatalogClient::new(channel);
    let answer = tokio::time::timeout(patience, client.watch_models(acks)).await;
    let answer = answer.map_err(|_| format!("no answer within {} s", patience.as_secs()))?;
    let mut stream = answer.map_err(|status| said(&status))?.into_inner();
    broken.heard = Instant::now();
    audience.opened();

    let (settling, settled) = mpsc::channel(UNSETTLED);
    let _acknowledge = Abort(tokio::spawn(acknowledge(settled, acked)).abort_handle());
    let mut silence = patience;
    loop {
        let next = tokio::time::timeout(silence, stream.message()).await;
        let next = next.map_err(|_| format!("nothing heard for {:.1} s", silence.as_secs_f64()))?;
        let message = next
            .map_err(|status| said(&status))?
            .ok_or("the agent ended the stream")?;
        broken.heard = Instant::now();
        let WatchModelsResponse { revision, event } = message;
        let done: Settled = match event {
            Some(Event::Snapshot(snapshot)) => {
                broken.served = true;
                silence = patience_of(snapshot.lease_ms);
                audience.snapshot(snapshot).await
            }
            Some(Event::Delta(delta)) if broken.served => audience.delta(delta).await,
            Some(Event::Delta(_)) => return Err("a change came before the snapshot".to_owned()),
            Some(Event::Heartbeat(_)) => Box::pin(std::future::ready(())),
            None => return Err("an event of a kind that is not known; is the agent newer?".to_owned()),
        };
        settling
            .send((revision, done))
            .await
            .map_err(|_| "acknowledging ended early".to_owned())?;
    }
}

/// An agent says something several times within its lease; when three quarters of it were silent the stream is dead.
fn patience_of(lease_ms: u32) -> Duration {
    Duration::from_millis(u64::from(lease_ms)).mul_f64(0.75)
}

/// Acknowledges revisions in their order, each once it has settled.
async fn acknowledge(mut settled: mpsc::Receiver<(u64, Settled)>, acked: watch::Sender<u64>) {
    while let Some((revision, done)) = settled.recv().await {
        done.await;
        // A heartbeat repeats the revision that there is.
        acked.send_if_modified(|last| std::mem::replace(last, revision) != revision);
    }
}

/// Ends a task with the stream it belongs to.
struct Abort(tokio::task::AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a status says, and what to do about it.
fn said(status: &tonic::Status) -> String {
    let text = client::said(status);
    match status.code() {
        tonic::Code::PermissionDenied => {
            format!("{text} (this user needs the role `proxy` there: [access.proxy] in its config.toml)")
        }
        _ => text,
    }
}
