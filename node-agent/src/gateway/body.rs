//! A request's body, held in memory until a replica has taken it: the model's name stands in it, and another replica may have
//! to be tried. Bounded for each request, in sum, and in the time that the client may be silent.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::errors::ApiError;

/// The longest body that is passed on.
pub const LIMIT: usize = 64 << 20;

/// What of each body is held in any case: whoever fills the budget with long ones keeps no usual request out.
const FREE: usize = 64 << 10;

/// All that is held at one time of bodies beyond that.
const BUDGET: usize = 512 << 20;

/// How long a client may pause while sending its body.
const PAUSE: Duration = Duration::from_secs(30);

/// What is reserved at once on a client's word that so much is to come.
const TRUSTED: usize = 1 << 20;

/// A body and its share of the budget.
#[derive(Debug)]
pub struct Held {
    /// The bytes, as they came.
    pub bytes: Bytes,
    _share: Option<OwnedSemaphorePermit>,
}

/// The memory all bodies share.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Semaphore>);

impl Default for Budget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET)))
    }
}

impl Budget {
    /// Reads a body to its end.
    pub async fn hold(&self, mut body: Body, announced: Option<usize>) -> Result<Held, ApiError> {
        if announced.is_some_and(|length| length > LIMIT) {
            return Err(too_long());
        }
        let mut share: Option<OwnedSemaphorePermit> = None;
        let mut bytes = Bytes::new();
        let mut grown = BytesMut::new();
        loop {
            let frame = tokio::time::timeout(PAUSE, body.frame()).await;
            let frame = match frame.map_err(|_| too_slow())? {
                None => break,
                Some(frame) => frame.map_err(|e| broken(&e))?,
            };
            let Ok(data) = frame.into_data() else { continue };
            let before = bytes.len() + grown.len();
            let after = before + data.len();
            if after > LIMIT {
                return Err(too_long());
            }
            let counted = after.saturating_sub(FREE) - before.saturating_sub(FREE);
            self.extend(&mut share, counted)?;
            if bytes.is_empty() && grown.is_empty() {
                bytes = data;
            } else {
                if grown.is_empty() {
                    grown.reserve(announced.unwrap_or(0).min(TRUSTED));
                    grown.extend_from_slice(&std::mem::take(&mut bytes));
                }
                grown.extend_from_slice(&data);
            }
        }
        let bytes = if grown.is_empty() { bytes } else { grown.freeze() };
        Ok(Held { bytes, _share: share })
    }

    fn extend(&self, share: &mut Option<OwnedSemaphorePermit>, by: usize) -> Result<(), ApiError> {
        let by = u32::try_from(by).map_err(|_| too_long())?;
        let more = self.0.clone().try_acquire_many_owned(by).map_err(|_| busy())?;
        match share {
            Some(share) => share.merge(more),
            None => *share = Some(more),
        }
        Ok(())
    }
}

fn too_long() -> ApiError {
    let text = format!(
        "the request is longer than the {} MiB that are passed on",
        LIMIT >> 20
    );
    ApiError::invalid(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", text)
}

fn too_slow() -> ApiError {
    let text = format!("nothing of the request's body came for {} s", PAUSE.as_secs());
    ApiError::invalid(StatusCode::REQUEST_TIMEOUT, "request_timeout", text)
}

fn broken(error: &axum::Error) -> ApiError {
    let text = format!("the request's body broke off: {error}");
    ApiError::invalid(StatusCode::BAD_REQUEST, "request_incomplete", text)
}

fn busy() -> ApiError {
    let text = "too many long requests are on their way; try again in a moment";
    ApiError::unavailable(StatusCode::SERVICE_UNAVAILABLE, "gateway_busy", text).retry_in(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pieces: Vec<Bytes>) -> Body {
        Body::from_stream(tokio_stream::iter(
            pieces.into_iter().map(Ok::<_, std::io::Error>),
        ))
    }

    #[tokio::test]
    async fn pieces_are_put_together_unchanged() {
        let body = pieces(vec![
            Bytes::from_static(b"{\"a\""),
            Bytes::from_static(b":"),
            Bytes::from_static(b"1}"),
        ]);
        let held = Budget::default().hold(body, None).await.unwrap();
        assert_eq!(&held.bytes[..], b"{\"a\":1}");
    }

    #[tokio::test]
    async fn what_is_too_long_is_refused_announced_or_not() {
        let budget = Budget::default();
        let announced = budget.hold(Body::empty(), Some(LIMIT + 1)).await.unwrap_err();
        assert_eq!(announced.status, StatusCode::PAYLOAD_TOO_LARGE);
        let piece = Bytes::from(vec![0; 8 << 20]);
        let body = pieces(vec![piece; 9]);
        assert_eq!(
            budget.hold(body, None).await.unwrap_err().status,
            StatusCode::PAYLOAD_TOO_LARGE
        );
    }

    #[tokio::test]
    async fn the_sum_is_bounded_and_given_back() {
        let budget = Budget(Arc::new(Semaphore::new(10)));
        let long = || Body::from(vec![b'x'; FREE + 8]);
        let first = budget.hold(long(), None).await.unwrap();
        let second = budget.hold(long(), None).await.unwrap_err();
        assert_eq!(second.code, "gateway_busy");
        assert!(budget.hold(Body::from("12345678"), None).await.is_ok());
        drop(first);
        assert!(budget.hold(long(), None).await.is_ok());
    }
}
