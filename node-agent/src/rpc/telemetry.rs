//! `Telemetry`: what GPUs do, and letting go of them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use slurm_serve_proto::v1::telemetry_server::Telemetry;
use slurm_serve_proto::v1::*;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{Caller, Rooms};
use crate::telemetry::Watching;

/// A watcher that does not take a sample for this long is dropped.
const SLOW: Duration = Duration::from_secs(5);

/// Nobody lets go of the driver for longer by one call.
const LONGEST_QUIET: u32 = 24 * 3600;

#[tonic::async_trait]
impl Telemetry for Rooms {
    type SampleTelemetryStream = Pin<Box<dyn Stream<Item = Result<NodeSample, Status>> + Send>>;

    async fn sample_telemetry(
        &self,
        request: Request<SampleTelemetryRequest>,
    ) -> Result<Response<Self::SampleTelemetryStream>, Status> {
        if !Caller::of(&request)?.roles.read {
            return Err(Status::permission_denied(
                "role `read` is needed ([access.read] in the agent's configuration)",
            ));
        }
        let watching = self.sampled()?.watch();
        let watching =
            watching.ok_or_else(|| Status::resource_exhausted("too many watchers (agent.max_watchers)"))?;
        let interval = Duration::from_millis(request.get_ref().interval_ms.into());
        let (to_client, stream) = mpsc::channel(1);
        tokio::spawn(tell(watching, interval, to_client));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn quiesce(&self, request: Request<QuiesceRequest>) -> Result<Response<QuiesceResponse>, Status> {
        must_be_admin(Caller::of(&request)?)?;
        let seconds = request.get_ref().for_s;
        if seconds > LONGEST_QUIET {
            return Err(Status::invalid_argument(format!(
                "for_s: {seconds}, at most {LONGEST_QUIET}"
            )));
        }
        let time = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        match self.sampled()?.quiesce(time).await {
            true => Ok(Response::new(QuiesceResponse {})),
            false => Err(Status::deadline_exceeded(
                "a call into the driver does not come back; the node needs a reboot",
            )),
        }
    }

    async fn resume(&self, request: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        must_be_admin(Caller::of(&request)?)?;
        self.sampled()?.resume().await;
        Ok(Response::new(ResumeResponse {}))
    }
}

impl Rooms {
    fn sampled(&self) -> Result<&Arc<crate::telemetry::Telemetry>, Status> {
        let off = || Status::failed_precondition("telemetry is turned off here ([telemetry] enabled)");
        self.telemetry.as_ref().ok_or_else(off)
    }
}

fn must_be_admin(caller: Caller) -> Result<(), Status> {
    match caller.roles.admin {
        true => Ok(()),
        false => Err(Status::permission_denied(
            "role `admin` is needed ([access.admin] in the agent's configuration)",
        )),
    }
}

/// Always the newest: one that a slow watcher misses is not kept for it.
async fn tell(
    mut watching: Watching,
    interval: Duration,
    to_client: mpsc::Sender<Result<NodeSample, Status>>,
) {
    let mut next = Instant::now();
    loop {
        let sample = watching.samples.borrow_and_update().clone();
        if sample.sequence > 0 {
            next = Instant::now() + interval;
            let sent = tokio::time::timeout(SLOW, to_client.send(Ok((*sample).clone()))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
        tokio::select! {
            () = to_client.closed() => return,
            changed = watching.samples.changed() => if changed.is_err() { return },
        }
        tokio::select! {
            () = to_client.closed() => return,
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Semaphore, watch};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watcher_gets_the_newest_not_sooner_than_it_wants() {
        let (told, samples) = watch::channel(Arc::new(NodeSample::default()));
        let place = Arc::new(Semaphore::new(1));
        let watching = Watching::new(samples, place.clone().try_acquire_owned().unwrap());
        let (to_client, mut stream) = mpsc::channel(1);
        tokio::spawn(tell(watching, Duration::from_secs(10), to_client));
        let began = Instant::now();
        let tell = |sequence| {
            told.send_replace(Arc::new(NodeSample {
                sequence,
                ..NodeSample::default()
            }));
        };
        tell(1);
        assert_eq!(stream.recv().await.unwrap().unwrap().sequence, 1);
        tell(2);
        tokio::time::sleep(Duration::from_secs(3)).await;
        tell(3);
        assert_eq!(stream.recv().await.unwrap().unwrap().sequence, 3);
        assert_eq!(began.elapsed(), Duration::from_secs(10));
        // Who goes makes room at once, not with the next sample.
        drop(stream);
        let _room = place.acquire().await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_secs(10));
    }
}
