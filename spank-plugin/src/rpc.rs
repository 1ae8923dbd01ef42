//! Calls to the agent from inside a hook: each with a hard deadline, on a runtime that is made and dropped within the call.
//!
//! slurmstepd has threads of its own and forks; a thread of ours there would break it. So: tokio's current-thread runtime,
//! nothing kept between calls, SIGPIPE held back (see [`crate::guard`]).

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::{guard, socket};

/// Why a call got no answer to go on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// Nobody there, hung up on us, or too slow: the agent may be restarting. Trying again makes sense.
    NoAnswer(String),
    /// The agent said no; the text is its line for the user.
    Refused(Code, String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(why) | Self::Refused(_, why) => f.write_str(why),
        }
    }
}

/// The agent of this node. Holds no connection.
#[derive(Debug, Clone)]
pub struct Agent {
    socket: PathBuf,
}

impl Agent {
    /// The agent that listens on `socket`.
    pub fn at(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// Where it listens, for messages.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Connects, lets `ask` make its one call, and hangs up; all within `deadline`.
    pub fn call<T, F>(&self, deadline: Duration, ask: impl FnOnce(Channel) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        guard::without_sigpipe(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .enable_time()
                .build()
                .map_err(|error| CallError::NoAnswer(format!("no epoll in this process: {error}")))?;
            runtime.block_on(async {
                // Not the endpoint's own timeouts: connecting to a hung agent *succeeds*, so one clock covers the whole.
                tokio::time::timeout(deadline, self.connect_and(ask))
                    .await
                    .unwrap_or_else(|_| {
                        Err(CallError::NoAnswer(format!(
                            "no answer within {} s",
                            deadline.as_secs_f32()
                        )))
                    })
            })
        })
    }

    async fn connect_and<T, F>(&self, ask: impl FnOnce(Channel) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let channel = Endpoint::try_from(format!("unix:{}", socket::way(&self.socket).display()))
            .map_err(|error| CallError::NoAnswer(deepest(&error)))?
            .connect()
            .await
            .map_err(|error| CallError::NoAnswer(deepest(&error)))?;
        ask(channel)
            .await
            .map(tonic::Response::into_inner)
            .map_err(classify)
    }
}

/// Which statuses are the agent's own word, and which only say that the call did not get through.
fn classify(status: Status) -> CallError {
    match status.code() {
        code @ (Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::NotFound
        | Code::AlreadyExists
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::Unimplemented) => CallError::Refused(code, status.message().to_owned()),
        _ => CallError::NoAnswer(match status.message() {
            // tonic's word for everything; the reason is below it.
            "" | "transport error" => deepest(&status),
            told => told.to_owned(),
        }),
    }
}

/// tonic says "transport error" and hides the reason in the chain of sources.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
