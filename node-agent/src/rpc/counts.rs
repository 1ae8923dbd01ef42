//! How often each method is called, for telemetry.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use slurm_serve_proto::v1;
use tonic::codegen::Service;

/// Services that are ours; a caller may name any other.
const OURS: [&str; 3] = ["/slurm_serve.v1.", "/grpc.health.v1.", "/grpc.reflection."];

/// Names that are counted apart; callers choose what comes behind a service's name.
const MOST: usize = 64;

/// Counts what goes through it, over all listeners.
#[derive(Debug, Clone, Default)]
pub struct Counts(Arc<Mutex<BTreeMap<String, Count>>>);

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    all: u64,
    errors: u64,
}

impl Counts {
    /// All of them, as they are told.
    pub fn told(&self) -> Vec<v1::RpcCalls> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |(method, count): (&String, &Count)| v1::RpcCalls {
            method: method.clone(),
            count: count.all,
            errors: count.errors,
        };
        all.iter().map(told).collect()
    }

    fn add(&self, path: &str, is_error: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = all.contains_key(path);
        let is_ours = OURS.iter().any(|ours| path.starts_with(ours)) && all.len() < MOST;
        let name = if is_known || is_ours { path } else { "other" };
        let count = all.entry(name.to_owned()).or_default();
        count.all += 1;
        count.errors += u64::from(is_error);
    }
}

impl<S> tower_layer::Layer<S> for Counts {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted {
            counts: self.clone(),
            inner,
        }
    }
}

/// The layer at work.
#[derive(Debug, Clone)]
pub struct Counted<S> {
    counts: Counts,
    inner: S,
}

impl<S, B, R> Service<http::Request<B>> for Counted<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let (counts, path) = (self.counts.clone(), request.uri().path().to_owned());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            // An answer without a body has its status here; one with a body has it behind that.
            let is_error = match &answer {
                Ok(answer) => answer
                    .headers()
                    .get("grpc-status")
                    .is_some_and(|status| status != "0"),
                Err(_) => true,
            };
            counts.add(&path, is_error);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callers_make_up_is_counted_as_one() {
        let counts = Counts::default();
        counts.add("/slurm_serve.v1.Jobs/ListJobs", false);
        for n in 0..1000 {
            counts.add(&format!("/slurm_serve.v1.Jobs/No{n}"), true);
            counts.add(&format!("/foreign/{n}"), true);
        }
        let told = counts.told();
        assert!(told.len() <= MOST + 1);
        assert_eq!(told.iter().map(|calls| calls.count).sum::<u64>(), 2001);
        assert_eq!(told.iter().map(|calls| calls.errors).sum::<u64>(), 2000);
    }
}
