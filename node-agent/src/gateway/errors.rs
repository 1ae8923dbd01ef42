//! What clients are told when something does not work, in OpenAI's shape, so that every OpenAI client shows it.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};

use super::router::Refusal;

/// Seconds after which asking for a loading model again makes sense.
const RETRY_LOADING: u32 = 5;

/// `{"error": {"message", "type", "param", "code"}}` with its status.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`, for programs.
    pub code: &'static str,
    /// OpenAI's `param`: which part of the request it is about.
    pub param: Option<&'static str>,
    /// One line for people.
    pub message: String,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u32>,
}

impl ApiError {
    /// The request is wrong.
    pub fn invalid(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: "invalid_request_error",
            code,
            param: None,
            message: message.into(),
            retry_after: None,
        }
    }

    /// The request is right and cannot be answered now.
    pub fn unavailable(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind: "service_unavailable_error",
            ..Self::invalid(status, code, message)
        }
    }

    /// Says which part of the request it is about.
    pub fn about(self, param: &'static str) -> Self {
        Self {
            param: Some(param),
            ..self
        }
    }

    /// Says when to try again.
    pub fn retry_in(self, seconds: u32) -> Self {
        Self {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// The error as JSON, also used inside a stream that has begun already.
    pub fn to_json(&self) -> String {
        let error = serde_json::json!({
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        });
        serde_json::json!({ "error": error }).to_string()
    }

    /// Why there is no replica for `model`.
    pub fn refused(model: &str, refusal: Refusal) -> Self {
        let busy = StatusCode::SERVICE_UNAVAILABLE;
        let error = match refusal {
            Refusal::NoAgents { agents: 0, .. } => Self::unavailable(
                busy,
                "no_agents",
                "no agents reachable: no node is known yet; the gateway's log says why",
            )
            .retry_in(RETRY_LOADING),
            Refusal::NoAgents { why, .. } if why.is_empty() => Self::unavailable(
                busy,
                "no_agents",
                "no agent has answered yet; try again in a moment",
            )
            .retry_in(1),
            Refusal::NoAgents { agents, why } => Self::unavailable(
                busy,
                "no_agents",
                format!("no agents reachable ({agents} should be; {why})"),
            )
            .retry_in(RETRY_LOADING),
            Refusal::NoSuchModel { names, more, silent } => Self::invalid(
                StatusCode::NOT_FOUND,
                "model_not_found",
                no_such_model(model, &names, more, &silent),
            ),
            Refusal::Loading { doing, seconds } => Self::unavailable(
                busy,
                "model_loading",
                format!("{model} is {doing}, {seconds} s so far"),
            )
            .retry_in(RETRY_LOADING),
            Refusal::NotAnswering { seconds } => Self::unavailable(
                busy,
                "model_not_answering",
                format!("{model} is there, and has answered nothing for {seconds} s"),
            )
            .retry_in(RETRY_LOADING),
            Refusal::Ending => Self::unavailable(
                busy,
                "model_ending",
                format!("{model} is ending and takes no new requests"),
            )
            .retry_in(RETRY_LOADING),
            Refusal::Failed { text, job, node } => Self::unavailable(
                StatusCode::FAILED_DEPENDENCY,
                "model_failed",
                format!("{model} has failed (job {job} on {node}): {text}"),
            ),
            Refusal::Unusable(why) => Self::unavailable(
                busy,
                "model_unusable",
                format!("{model} is ready, but cannot be used from here: {why}"),
            ),
            Refusal::Exhausted => Self::unavailable(
                busy,
                "model_unreachable",
                format!("no replica of {model} takes the request just now"),
            )
            .retry_in(1),
        };
        error.about("model")
    }
}

fn no_such_model(model: &str, names: &[String], more: usize, silent: &[String]) -> String {
    let mut text = format!("no such model {model:?}; ");
    match names {
        [] => text += "no model is served now",
        names => {
            text += &format!("there are {}", names.join(", "));
            if more > 0 {
                text += &format!(" and {more} more");
            }
        }
    }
    if !silent.is_empty() {
        let shown = silent.len().min(5);
        let dots = if silent.len() > shown { ", …" } else { "" };
        text += &format!(
            " (not heard of {}: {}{dots})",
            if silent.len() == 1 {
                "one node"
            } else {
                "some nodes"
            },
            silent[..shown].join(", ")
        );
    }
    text
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(self.to_json().into());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_model_is_told_with_what_there_is() {
        let refusal = Refusal::NoSuchModel {
            names: vec!["gpt-oss-120b".into(), "ada/tiny".into()],
            more: 3,
            silent: vec!["n3".into()],
        };
        let error = ApiError::refused("gpt-oss-12b", refusal);
        assert_eq!(error.status, StatusCode::NOT_FOUND);
        assert_eq!(
            error.message,
            "no such model \"gpt-oss-12b\"; there are gpt-oss-120b, ada/tiny and 3 more (not heard of one node: n3)"
        );
        let json: serde_json::Value = serde_json::from_str(&error.to_json()).unwrap();
        assert_eq!(json["error"]["param"], "model");
        assert_eq!(json["error"]["code"], "model_not_found");
        assert_eq!(json["error"]["type"], "invalid_request_error");
    }

    #[test]
    fn loading_says_for_how_long_and_when_to_come_back() {
        let refusal = Refusal::Loading {
            doing: "loading",
            seconds: 40,
        };
        let error = ApiError::refused("gpt-oss-120b", refusal);
        assert_eq!(error.message, "gpt-oss-120b is loading, 40 s so far");
        let response = error.into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(response.headers().contains_key(RETRY_AFTER));
    }

    #[test]
    fn a_name_with_control_characters_stays_on_one_line() {
        let refusal = Refusal::NoSuchModel {
            names: vec![],
            more: 0,
            silent: vec![],
        };
        let error = ApiError::refused("a\nb\u{1b}[0m", refusal);
        assert!(!error.message.contains(['\n', '\u{1b}']), "{}", error.message);
    }
}
