//! The engine's answer on its way to the client: passed on frame by frame, counted as in flight until it is over.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::counts::Ticket;
use super::reply;

/// An answer being streamed.
pub struct Passed {
    upstream: Incoming,
    /// Its presence is what makes the request count.
    ticket: Ticket,
    /// Written in place of a break, where the format has room for it.
    farewell: Option<Bytes>,
    over: bool,
}

impl Passed {
    /// Passes `upstream`, the body that came with `headers`.
    pub fn new(upstream: Incoming, headers: &HeaderMap, ticket: Ticket, model: &str) -> Self {
        let events = headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let open_ended = !headers.contains_key(CONTENT_LENGTH);
        let farewell =
            (events && open_ended).then(|| reply::broken_event(&format!("the engine of {model} broke off")));
        Self {
            upstream,
            ticket,
            farewell,
            over: false,
        }
    }
}

impl Body for Passed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        match std::task::ready!(Pin::new(&mut self.upstream).poll_frame(cx)) {
            Some(Err(error)) => {
                self.over = true;
                let farewell = self.farewell.take().map(|event| Ok(Frame::data(event)));
                Poll::Ready(Some(farewell.unwrap_or(Err(error))))
            }
            frame => {
                self.ticket.piece();
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.upstream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.upstream.size_hint()
    }
}
