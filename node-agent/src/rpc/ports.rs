//! The socket by which a runner gets the listener of its model's port, and gives it back to an agent that was restarted (see `handover`).

use std::os::fd::OwnedFd;
use std::path::Path;

use futures_util::StreamExt;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::listen::bind_unix;
use super::runner::prove;
use super::{Caller, Rooms, places};
use crate::handover::{self, Claim, Wish};
use crate::serve::{Message, PortWish};

/// Serves the socket beside the agent's `socket`, a user's share of connections like on that one; ends only if it cannot be had.
pub async fn serve_ports(rooms: Rooms, socket: &Path) -> anyhow::Result<()> {
    let connections = places::of_users(bind_unix(&handover::beside(socket)).await?);
    connections
        .for_each(|connection| {
            let rooms = rooms.clone();
            if let Ok(placed) = connection {
                tokio::spawn(async move {
                    let served = rooms.hand_over(placed.stream());
                    if let Ok(Err(e)) = tokio::time::timeout(handover::PATIENCE, served).await {
                        tracing::debug!("a port did not change hands: {e}");
                    }
                });
            }
            std::future::ready(())
        })
        .await;
    Ok(())
}

impl Rooms {
    async fn hand_over(&self, stream: &UnixStream) -> std::io::Result<()> {
        let caller = Caller::on(stream)?;
        let (wish, claim, given) = handover::hear(stream).await?;
        let answer = match (wish, given) {
            (Wish::Take, _) => self.ask(caller, claim, None).await,
            (Wish::Give, Some(given)) => self.ask(caller, claim, Some(given)).await,
            (Wish::Give, None) => Err("no listener came with this".into()),
        };
        handover::answer(stream, answer).await
    }

    async fn ask(
        &self,
        caller: Caller,
        claim: Claim,
        given: Option<OwnedFd>,
    ) -> Result<Option<OwnedFd>, String> {
        let over = || format!("no launch {} is known here", claim.generation);
        let handle = self.models.by_generation(claim.job_id, &claim.generation);
        let handle = handle.ok_or_else(over)?;
        let process = prove(caller, &handle).map_err(|status| status.message().to_owned())?;
        let (reply, answer) = oneshot::channel();
        let wish = PortWish {
            secret: claim.secret.clone(),
            process,
            given,
            reply,
        };
        let sent = handle.messages.send(Message::Port(Box::new(wish))).await;
        match sent {
            Ok(()) => answer.await.unwrap_or_else(|_| Err(over())),
            Err(_) => Err(over()),
        }
    }
}
