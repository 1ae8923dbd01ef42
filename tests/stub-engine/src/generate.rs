//! Answers made of tokens: token `i` is the text `"i "`, so that a test sees at once what is missing or out of order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

use crate::ask::{Ask, Kind};
use crate::engine::{Engine, InEngine, Step};
use crate::reply::{self, Body, ENGINE_DEAD};
use crate::requests::Ticket;

/// Answers one request; `ticket` stays open until the last byte.
pub async fn answer(engine: Arc<Engine>, mut ticket: Ticket, ask: Ask) -> Response<Body> {
    let answer = Answer::new(&engine, ask);
    if answer.ask.stream {
        return answer.streamed(engine, ticket);
    }
    let response = answer.whole().await;
    ticket.done();
    response
}

/// One answer in the making.
struct Answer {
    ask: Ask,
    inside: InEngine,
    id: String,
    created: u64,
    stamp: bool,
}

impl Answer {
    fn new(engine: &Arc<Engine>, ask: Ask) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let prefix = if ask.kind == Kind::Chat {
            "chatcmpl"
        } else {
            "cmpl"
        };
        let id = format!(
            "{prefix}-{:08x}{:016x}",
            std::process::id(),
            LAST.fetch_add(1, Relaxed)
        );
        Self {
            inside: InEngine::queue(Arc::clone(engine), ask.prompt_tokens),
            ask,
            id,
            created: engine.created,
            stamp: engine.script.stamp,
        }
    }

    /// Not streamed: everything at the end.
    async fn whole(mut self) -> Response<Body> {
        let (mut text, mut made, mut finish) = (String::new(), 0, self.ask.finish);
        let mut step = self.inside.admit().await;
        while made < self.ask.tokens {
            match step {
                Step::Token => text.push_str(&token(made)),
                Step::Abort => break,
                Step::Dead => {
                    self.inside.finish("error");
                    return reply::error(StatusCode::INTERNAL_SERVER_ERROR, ENGINE_DEAD, None);
                }
            }
            made += 1;
            self.inside.made_token();
            if made < self.ask.tokens {
                step = self.inside.next().await;
            }
        }
        if made < self.ask.tokens {
            finish = "abort";
        }
        self.inside.finish(finish);
        let choice = match self.ask.kind {
            Kind::Chat => {
                json!({ "index": 0, "message": { "role": "assistant", "content": text, "tool_calls": [] },
                                  "logprobs": null, "finish_reason": finish, "stop_reason": null })
            }
            Kind::Completion => json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": finish,
                                        "stop_reason": null }),
        };
        let mut value = self.envelope("chat.completion", json!([choice]));
        value["usage"] = self.usage(made);
        reply::json(StatusCode::OK, &value)
    }

    fn streamed(self, engine: Arc<Engine>, ticket: Ticket) -> Response<Body> {
        let events = Events {
            answer: self,
            engine,
            ticket,
            at: At::First,
            made: 0,
        };
        let frames = stream::unfold(events, |mut events| async move {
            let event = events.next().await?;
            Some((event.map(Frame::data), events))
        });
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream; charset=utf-8"),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    fn envelope(&self, chat_object: &str, choices: Value) -> Value {
        let object = if self.ask.kind == Kind::Chat {
            chat_object
        } else {
            "text_completion"
        };
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.ask.model,
                "choices": choices })
    }

    fn usage(&self, made: u64) -> Value {
        let prompt = self.ask.prompt_tokens;
        json!({ "prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made })
    }

    /// One chunk of a stream.
    fn chunk(&self, delta: Delta, finish: Option<&str>) -> Bytes {
        let choice = match (self.ask.kind, delta) {
            (Kind::Chat, Delta::Role) => {
                json!({ "index": 0, "delta": { "role": "assistant", "content": "" }, "logprobs": null,
                        "finish_reason": finish })
            }
            (Kind::Chat, Delta::Text(text)) => {
                json!({ "index": 0, "delta": { "content": text }, "logprobs": null, "finish_reason": finish })
            }
            (Kind::Completion, Delta::Text(text)) => {
                json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": finish })
            }
            (Kind::Completion, Delta::Role) => unreachable!("a completion has no roles"),
        };
        let mut chunk = self.envelope("chat.completion.chunk", json!([choice]));
        if self.stamp {
            chunk["stub_ns"] = now_ns().into();
        }
        event(&chunk)
    }
}

enum Delta {
    Role,
    Text(String),
}

fn token(i: u64) -> String {
    format!("{i} ")
}

/// For a client on the same machine: how long a token took to it.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}

fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

/// Where a stream stands.
enum At {
    First,
    Tokens,
    Finish(&'static str),
    Usage,
    Done,
    End,
}

/// The events of one stream. Dropped early, by a client that went, it takes its request out of the engine.
struct Events {
    answer: Answer,
    engine: Arc<Engine>,
    ticket: Ticket,
    at: At,
    made: u64,
}

impl Events {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            match self.at {
                At::First => {
                    let step = self.answer.inside.admit().await;
                    if let Some(end) = self.ended(step) {
                        return Some(Ok(end));
                    }
                    self.at = if self.answer.ask.tokens == 0 {
                        At::Finish(self.answer.ask.finish)
                    } else {
                        At::Tokens
                    };
                    if self.answer.ask.kind == Kind::Chat {
                        return Some(Ok(self.answer.chunk(Delta::Role, None)));
                    }
                }
                At::Tokens => {
                    if self
                        .engine
                        .live
                        .borrow()
                        .break_after
                        .is_some_and(|n| self.made >= n)
                    {
                        self.at = At::End;
                        // hyper throws away what it has not written yet when a body fails; a pause makes it write.
                        tokio::task::yield_now().await;
                        return Some(Err(io::Error::other("cut by the script")));
                    }
                    let step = if self.made == 0 {
                        Step::Token
                    } else {
                        self.answer.inside.next().await
                    };
                    if let Some(end) = self.ended(step) {
                        return Some(Ok(end));
                    }
                    let text = Delta::Text(token(self.made));
                    self.made += 1;
                    self.answer.inside.made_token();
                    if self.made == self.answer.ask.tokens {
                        self.at = At::Finish(self.answer.ask.finish);
                    }
                    return Some(Ok(self.answer.chunk(text, None)));
                }
                At::Finish(reason) => {
                    self.answer.inside.finish(reason);
                    self.at = if self.answer.ask.include_usage {
                        At::Usage
                    } else {
                        At::Done
                    };
                    return Some(Ok(self.answer.chunk(Delta::Text(String::new()), Some(reason))));
                }
                At::Usage => {
                    self.at = At::Done;
                    let mut last = self.answer.envelope("chat.completion.chunk", json!([]));
                    last["usage"] = self.answer.usage(self.made);
                    return Some(Ok(event(&last)));
                }
                At::Done => {
                    self.at = At::End;
                    self.ticket.done();
                    return Some(Ok(Bytes::from_static(b"data: [DONE]\n\n")));
                }
                At::End => return None,
            }
        }
    }

    /// What a step that is no token puts into the stream, which then ends.
    fn ended(&mut self, step: Step) -> Option<Bytes> {
        match step {
            Step::Token => None,
            Step::Abort => {
                self.answer.inside.finish("abort");
                self.at = if self.answer.ask.include_usage {
                    At::Usage
                } else {
                    At::Done
                };
                Some(self.answer.chunk(Delta::Text(String::new()), Some("abort")))
            }
            Step::Dead => {
                self.answer.inside.finish("error");
                self.at = At::Done;
                Some(event(&reply::error_object(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    ENGINE_DEAD,
                    None,
                )))
            }
        }
    }
}
