//! While an agent is silent, its models' guards are asked themselves: a node agent that is down, or being replaced, for however
//! long takes no model out of routing that still answers.
//!
//! A guard that says its generation and that it is ready renews the lease. One that says it is another's, or ending, ends it at
//! once, and so does a refused connection: the node is there and the guard is not. Silence does neither: the lease runs on and out. None of
//! it outlasts the end of the job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::header::AUTHORIZATION;
use http_body_util::{BodyExt, Limited};
use tokio::sync::watch;

use super::Gateway;
use super::registry::Now;
use super::replica::Replica;
use super::upstream::Sent;
use crate::guard_status::{GuardStatus, PATH};

/// A guard is asked this often within a lease: two answers may be lost.
const ASKED_A_LEASE: u32 = 4;

/// No more often than this, however short the lease.
const SHORTEST: Duration = Duration::from_millis(100);

/// A longer answer is none of a guard's.
const LONGEST_ANSWER: usize = 64 * 1024;

/// What came of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// It is there, and ready.
    Ready,
    /// It is another one, or on its way out.
    Gone,
    /// Nothing that could be understood.
    Nothing,
}

/// Asks the guards of `node` for as long as `silent` is true; never returns.
pub async fn while_silent(gateway: &Gateway, node: &str, mut silent: watch::Receiver<bool>) {
    loop {
        if silent.wait_for(|silent| *silent).await.is_err() {
            return std::future::pending().await;
        }
        let asked = gateway.registry.read().to_ask(node, Now::read());
        let Some((lease, replicas)) = asked else {
            // Nothing is believed any more that could be renewed, until the stream has been up again.
            let _ = silent.wait_for(|silent| !*silent).await;
            continue;
        };
        let pause = (lease / ASKED_A_LEASE).max(SHORTEST);
        let next = tokio::time::sleep(pause);
        let mut asking: FuturesUnordered<_> = replicas
            .into_iter()
            .map(|replica| ask(gateway, node, replica, pause))
            .collect();
        while asking.next().await.is_some() {}
        tokio::select! {
            () = next => {}
            _ = silent.wait_for(|silent| !*silent) => {}
        }
    }
}

/// Asks one guard and enters what it said.
async fn ask(gateway: &Gateway, node: &str, replica: Arc<Replica>, within: Duration) {
    let asked = Instant::now();
    let said = tokio::time::timeout(within, question(gateway, &replica)).await;
    let (generation, model) = (&replica.model.generation, &replica.model);
    match said.unwrap_or(Said::Nothing) {
        Said::Ready => gateway.registry.write().renew(node, generation, asked),
        Said::Gone => {
            tracing::info!(
                "{} (job {} on {node}): its agent is silent, and its guard says that it is ending or gone",
                model.name,
                model.job_id
            );
            gateway.registry.write().disown(node, generation);
        }
        Said::Nothing => tracing::debug!(
            "{} (job {} on {node}): its guard is silent too",
            model.name,
            model.job_id
        ),
    }
    gateway.changed.notify_one();
}

async fn question(gateway: &Gateway, replica: &Replica) -> Said {
    let (Some(guard), Some(bearer)) = (&replica.guard, &replica.bearer) else {
        return Said::Nothing;
    };
    let request = http::Request::get(format!("http://{guard}{PATH}"))
        .header(AUTHORIZATION, bearer)
        .body(Sent::new(Bytes::new(), None));
    let Ok(request) = request else {
        return Said::Nothing;
    };
    let answer = match gateway.upstream.request(request).await {
        Ok(answer) => answer,
        // The node lives and nobody listens there: no guard.
        Err(error) if is_refused(&error) => return Said::Gone,
        Err(_) => return Said::Nothing,
    };
    if !answer.status().is_success() {
        // 401: somebody else's guard. Anything else: no guard at all.
        return if answer.status() == http::StatusCode::UNAUTHORIZED {
            Said::Gone
        } else {
            Said::Nothing
        };
    }
    let Ok(body) = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await else {
        return Said::Nothing;
    };
    match serde_json::from_slice::<GuardStatus>(&body.to_bytes()) {
        Ok(status) => verdict(&status, &replica.model.generation),
        Err(_) => Said::Nothing,
    }
}

fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

fn verdict(status: &GuardStatus, generation: &str) -> Said {
    if status.generation == generation && status.state == GuardStatus::READY {
        Said::Ready
    } else {
        Said::Gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(generation: &str, state: &str) -> Said {
        let json = format!(
            r#"{{"model": "tiny", "generation": "{generation}", "state": "{state}", "in_flight": 3, "of a newer guard": 1}}"#
        );
        verdict(&serde_json::from_str(&json).unwrap(), "7.0.1-a")
    }

    #[test]
    fn the_same_launch_that_is_ready_is_believed_and_nothing_else() {
        assert_eq!(said("7.0.1-a", "ready"), Said::Ready);
        for (generation, state) in [
            ("7.0.2-b", "ready"),
            ("7.0.1-a", "draining"),
            ("7.0.1-a", "ended"),
            ("", ""),
        ] {
            assert_eq!(said(generation, state), Said::Gone, "{generation} {state}");
        }
    }
}
