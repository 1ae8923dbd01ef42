//! `Catalog`: what this node serves, for proxies and for lists.

use std::collections::HashSet;
use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use slurm_serve_proto::v1::catalog_server::Catalog;
use slurm_serve_proto::v1::watch_models_response::Event;
use slurm_serve_proto::v1::*;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::show::{is_visible, show};
use super::{Caller, Rooms, caller};
use crate::catalog::Watcher;

/// A watcher that does not take a message for this long is dropped: its queue must not grow.
const SLOW: Duration = Duration::from_secs(5);

#[tonic::async_trait]
impl Catalog for Rooms {
    async fn list_models(
        &self,
        request: Request<ListModelsRequest>,
    ) -> Result<Response<ListModelsResponse>, Status> {
        let caller = Caller::of(&request)?;
        if !caller.roles.read {
            return Err(Status::permission_denied(
                "role `read` is needed ([access.read] in the agent's configuration)",
            ));
        }
        self.models.recovered().await;
        let include_ended = request.get_ref().include_ended;
        let over = |model: &Model| matches!(model.state(), ModelState::Ended | ModelState::Failed);
        let mut models = Vec::new();
        for model in self.models.world().hub.models() {
            if is_visible(&model, caller) && (include_ended || !over(&model)) {
                models.push(show(model, caller).await?);
            }
        }
        Ok(Response::new(ListModelsResponse {
            node: self.models.world().node.clone(),
            models,
            agent_version: env!("CARGO_PKG_VERSION").into(),
        }))
    }

    type WatchModelsStream = Pin<Box<dyn Stream<Item = Result<WatchModelsResponse, Status>> + Send>>;

    async fn watch_models(
        &self,
        request: Request<Streaming<WatchModelsRequest>>,
    ) -> Result<Response<Self::WatchModelsStream>, Status> {
        let caller = Caller::of(&request)?;
        if !caller.roles.proxy {
            return Err(Status::permission_denied(
                "role `proxy` is needed ([access.proxy] in the agent's configuration)",
            ));
        }
        let watcher = self.models.world().hub.watch();
        let watcher =
            watcher.ok_or_else(|| Status::resource_exhausted("too many watchers (agent.max_watchers)"))?;
        let acknowledge = watcher.acknowledger();
        let mut acks = request.into_inner();
        let (to_client, stream) = mpsc::channel(16);
        let rooms = self.clone();
        tokio::spawn(async move {
            // The two halves end together: a client that is gone acknowledges nothing and is waited for by nobody.
            let hear = async move {
                while let Some(Ok(ack)) = acks.next().await {
                    acknowledge(ack.acked_revision);
                }
            };
            tokio::select! {
                () = hear => {}
                () = rooms.tell(watcher, caller, to_client) => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

type ToClient = mpsc::Sender<Result<WatchModelsResponse, Status>>;

impl Rooms {
    async fn tell(&self, mut watcher: Watcher, caller: Caller, to_client: ToClient) {
        self.models.recovered().await;
        let world = self.models.world();
        let snapshot = watcher.snapshot();
        // What the client knows of, so that it is told to forget nothing that it never saw.
        let mut known = HashSet::new();
        let models = published(snapshot.upserted, caller, &mut known).await;
        let snapshot_event = ModelSnapshot {
            node: world.node.clone(),
            agent_instance: self.instance.to_string(),
            lease_ms: u32::try_from(world.config.lease.as_millis()).unwrap_or(u32::MAX),
            models,
        };
        let mut message = Some(WatchModelsResponse {
            revision: snapshot.revision,
            event: Some(Event::Snapshot(snapshot_event)),
        });
        loop {
            if let Some(message) = message.take() {
                let sent = tokio::time::timeout(SLOW, to_client.send(Ok(message))).await;
                if !matches!(sent, Ok(Ok(()))) {
                    return;
                }
            }
            let next = tokio::time::timeout(world.config.heartbeat, watcher.next());
            message = Some(tokio::select! {
                () = to_client.closed() => return,
                next = next => match next {
                    Err(_) => WatchModelsResponse { revision: watcher.told(), event: Some(Event::Heartbeat(Heartbeat {})) },
                    Ok(changes) => {
                        let removed = changes.removed.into_iter().filter(|generation| known.remove(generation)).collect();
                        let upserted = published(changes.upserted, caller, &mut known).await;
                        WatchModelsResponse { revision: changes.revision, event: Some(Event::Delta(ModelDelta { upserted, removed })) }
                    }
                }
            });
        }
    }
}

async fn published(models: Vec<Model>, caller: Caller, known: &mut HashSet<String>) -> Vec<Model> {
    let mut shown = Vec::new();
    for mut model in models.into_iter().filter(|model| model.published) {
        // Requests go to what is ready. That one leaves must reach the watcher even where munge is down.
        if model.state() != ModelState::Ready {
            model.key.clear();
        }
        known.insert(model.generation.clone());
        match show(model, caller).await {
            Ok(model) => shown.push(model),
            // Without its key it is of no use to a proxy; the next change of it tries again.
            Err(status) => tracing::error!(
                "a model's key cannot be sealed for {}: {}",
                caller::shown(caller.uid),
                status.message()
            ),
        }
    }
    shown
}
