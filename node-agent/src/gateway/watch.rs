//! One task for each node: keeps a stream to its agent and enters what it hears into the registry.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use slurm_serve_proto::v1::{Model, ModelDelta, ModelSnapshot, ModelState};

use super::Gateway;
use super::registry::{Leaving, Now, Snapshot};
use super::renew;
use super::replica::Announced;
use crate::catalog::watcher::{Audience, Settled, follow};
use crate::client::AgentChannel;

/// The first pause before connecting again; doubled with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause: a restarted agent is found again within it.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a request that was given a replica may take to leave, before the agent is told all the same that it is out of
/// routing. It then meets a guard that refuses it, and is tried elsewhere.
const SETTLE: Duration = Duration::from_millis(100);

/// munge answers in a millisecond; one that hangs must not hold up what the agent says next.
const OPEN_KEY: Duration = Duration::from_secs(3);

/// Whom to watch.
pub struct Agent {
    /// Slurm's NodeName.
    pub node: String,
    /// For people.
    pub address: String,
    /// How it is asked.
    pub channel: AgentChannel,
}

/// Watches an agent until dropped.
pub async fn watch(gateway: Arc<Gateway>, agent: Agent, patience: Duration) {
    let Agent {
        node,
        address,
        channel,
    } = agent;
    let (silent, silence) = tokio::sync::watch::channel(false);
    let listener = Listener {
        gateway: gateway.clone(),
        node: node.clone(),
        channel,
        life: Mutex::default(),
        silent,
    };
    tokio::join!(
        listener.listen(&address, patience),
        renew::while_silent(&gateway, &node, silence)
    );
}

struct Listener {
    gateway: Arc<Gateway>,
    node: String,
    channel: AgentChannel,
    /// Names the life of the agent that was heard last.
    life: Mutex<String>,
    /// Whether the stream is broken.
    silent: tokio::sync::watch::Sender<bool>,
}

impl Listener {
    /// Follows the agent, again and again.
    async fn listen(&self, address: &str, patience: Duration) {
        let mut pause = FIRST_PAUSE;
        let mut told = None;
        loop {
            let broken = follow(self.channel.clone(), patience, self).await;
            // Said once, not with every attempt.
            if broken.served || told.as_ref() != Some(&broken.why) {
                tracing::warn!("agent of {} ({address}): {}", self.node, broken.why);
                told = Some(broken.why.clone());
            }
            let now = Now::read();
            self.gateway
                .registry
                .write()
                .broken(&self.node, broken.why, broken.heard, now);
            self.silent.send_replace(true);
            self.gateway.changed.notify_one();
            if broken.served {
                pause = FIRST_PAUSE;
            }
            // Not all gateways of a site at once.
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..=1.0))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Audience for Listener {
    fn opened(&self) {
        self.gateway.registry.write().opened(&self.node, Now::read());
        self.gateway.changed.notify_one();
    }

    async fn snapshot(&self, snapshot: ModelSnapshot) -> Settled {
        let mut models = Vec::with_capacity(snapshot.models.len());
        let mut munge_works = true;
        for model in snapshot.models {
            let bearer = match munge_works && is_ready(&model) {
                true => self.open(&model).await,
                false => Ok(None),
            };
            // Its next one would fail in the same way, and each may take its time.
            munge_works &= bearer.is_ok();
            models.push(Announced {
                model,
                bearer: bearer.unwrap_or_default(),
            });
        }
        let before = std::mem::replace(
            &mut *self.life.lock().unwrap_or_else(PoisonError::into_inner),
            snapshot.agent_instance.clone(),
        );
        let again = if before.is_empty() || before == snapshot.agent_instance {
            ""
        } else {
            " after its restart"
        };
        tracing::info!("agent of {}: watching{again}, {} models", self.node, models.len());
        let snapshot = Snapshot {
            lease: Duration::from_millis(snapshot.lease_ms.into()),
            models,
        };
        let leaving = self
            .gateway
            .registry
            .write()
            .snapshot(&self.node, snapshot, Now::read());
        self.silent.send_replace(false);
        self.gateway.changed.notify_one();
        self.settle(leaving)
    }

    async fn delta(&self, delta: ModelDelta) -> Settled {
        let (ready, others): (Vec<_>, Vec<_>) = delta.upserted.into_iter().partition(is_ready);
        // First what must receive nothing more, then what needs its key opened.
        let others = others
            .into_iter()
            .map(|model| Announced { model, bearer: None })
            .collect();
        let mut leaving =
            self.gateway
                .registry
                .write()
                .delta(&self.node, others, &delta.removed, Now::read());
        if !leaving.is_empty() {
            // A goodbye waits for no key.
            self.gateway
                .catalogs
                .tell(&self.gateway.registry.read(), Now::read());
        }
        let mut upserted = Vec::with_capacity(ready.len());
        for model in ready {
            let known = self.gateway.registry.read().bearer(&self.node, &model.generation);
            let bearer = match known {
                Some(known) => Some(known),
                None => self.open(&model).await.unwrap_or_default(),
            };
            upserted.push(Announced { model, bearer });
        }
        let mut registry = self.gateway.registry.write();
        leaving.extend(registry.delta(&self.node, upserted, &[], Now::read()));
        drop(registry);
        self.gateway.changed.notify_one();
        self.settle(leaving)
    }
}

impl Listener {
    /// The header with the model's key. `Err` when keys cannot be opened here at all, which is said in the log.
    async fn open(&self, model: &Model) -> Result<Option<HeaderValue>, ()> {
        let opening = self.channel.open_key(model.key.clone());
        let problem = match tokio::time::timeout(OPEN_KEY, opening).await {
            Ok(Ok(key)) if key.is_empty() => {
                tracing::warn!(
                    "{} (job {} on {}): no key came with it; this gateway's user needs the role `proxy`",
                    model.name,
                    model.job_id,
                    self.node
                );
                return Ok(None);
            }
            Ok(Ok(key)) => match HeaderValue::try_from(format!("Bearer {key}")) {
                Ok(mut value) => {
                    value.set_sensitive(true);
                    return Ok(Some(value));
                }
                Err(_) => "its key cannot stand in a header".to_owned(),
            },
            Ok(Err(e)) => e.to_string(),
            Err(_) => format!("munge did not answer within {} s", OPEN_KEY.as_secs()),
        };
        tracing::error!(
            "{} (job {} on {}) cannot be used: {problem}",
            model.name,
            model.job_id,
            self.node
        );
        Err(())
    }
}

impl Listener {
    /// Done when no request is on its way any more to what has left routing, here or from another catalog.
    fn settle(&self, leaving: Leaving) -> Settled {
        let gateway = self.gateway.clone();
        let told = gateway.catalogs.tell(&gateway.registry.read(), Now::read());
        Box::pin(async move {
            tokio::join!(settle(leaving), gateway.catalogs.settled(told));
        })
    }
}

fn is_ready(model: &Model) -> bool {
    model.state == i32::from(ModelState::Ready)
}

async fn settle(leaving: Leaving) {
    let all = async {
        for load in leaving {
            load.settled().await;
        }
    };
    if tokio::time::timeout(SETTLE, all).await.is_err() {
        tracing::debug!(
            "a request to an ending model did not leave within {} ms",
            SETTLE.as_millis()
        );
    }
}
