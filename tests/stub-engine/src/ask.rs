//! What a chat or completion request asks for, and vLLM's refusals.

use http::{Response, StatusCode};
use serde_json::Value;

use crate::engine::Engine;
use crate::reply::{self, Body};

/// Which of the two generation endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

/// One understood request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The endpoint.
    pub kind: Kind,
    /// The model as the client named it.
    pub model: String,
    /// Server-sent events wanted.
    pub stream: bool,
    /// A last chunk with the usage wanted.
    pub include_usage: bool,
    /// Tokens to make.
    pub tokens: u64,
    /// Why it ends after them.
    pub finish: &'static str,
    /// Length of the prompt: four bytes count as one token.
    pub prompt_tokens: u64,
}

impl Ask {
    /// The answer to a body that was too large to be understood: one token, not streamed.
    pub fn unread(kind: Kind, engine: &Engine) -> Self {
        let model = engine.ids().remove(0);
        Self {
            kind,
            model,
            stream: false,
            include_usage: false,
            tokens: 1,
            finish: "length",
            prompt_tokens: 1,
        }
    }

    /// Reads a body; the error is the answer. `max_tokens` is made in full, as by a model that never stops by itself.
    pub fn read(kind: Kind, engine: &Engine, body: &[u8]) -> Result<Self, Box<Response<Body>>> {
        let request = object(body)?;
        let model = model(engine, &request)?;
        let prompt = match kind {
            Kind::Chat => request["messages"]
                .as_array()
                .map(|messages| Value::Array(messages.clone())),
            Kind::Completion => Some(request["prompt"].clone()).filter(|p| !p.is_null()),
        };
        let field = if kind == Kind::Chat { "messages" } else { "prompt" };
        let prompt = prompt.ok_or_else(|| bad(&format!("Field required: {field}"), field))?;
        let prompt_tokens = characters(&prompt).div_ceil(4).max(1);
        let asked = request["max_completion_tokens"]
            .as_u64()
            .or_else(|| request["max_tokens"].as_u64());
        let room = engine.options.max_model_len.saturating_sub(prompt_tokens);
        let longest = engine.options.max_model_len;
        if room == 0 || asked.is_some_and(|n| n > room) {
            let text = format!(
                "This model's maximum context length is {longest} tokens. However, you requested {} output tokens and \
                 your prompt contains {prompt_tokens} input tokens.",
                asked.unwrap_or(1)
            );
            return Err(bad(&text, "max_tokens"));
        }
        if asked == Some(0) {
            return Err(bad("max_tokens must be at least 1, got 0.", "max_tokens"));
        }
        let natural = engine.live.borrow().tokens;
        Ok(Self {
            kind,
            model,
            stream: request["stream"].as_bool().unwrap_or(false),
            include_usage: request["stream_options"]["include_usage"]
                .as_bool()
                .unwrap_or(false),
            tokens: asked.unwrap_or(natural.min(room)),
            finish: if asked.is_some() { "length" } else { "stop" },
            prompt_tokens,
        })
    }
}

/// The body as a JSON object.
pub fn object(body: &[u8]) -> Result<Value, Box<Response<Body>>> {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) if value.is_object() => Ok(value),
        Ok(_) => Err(bad("Input should be a valid dictionary", "body")),
        Err(error) => Err(bad(&format!("JSON decode error: {error}"), "body")),
    }
}

/// The model named in a request, or the first one served.
pub fn model(engine: &Engine, request: &Value) -> Result<String, Box<Response<Body>>> {
    let ids = engine.ids();
    match request["model"].as_str() {
        None => Ok(ids[0].clone()),
        Some(name) if ids.iter().any(|id| id == name) => Ok(name.to_owned()),
        Some(name) => {
            let text = format!("The model `{name}` does not exist.");
            Err(Box::new(reply::error(
                StatusCode::NOT_FOUND,
                &text,
                Some("model"),
            )))
        }
    }
}

fn bad(text: &str, param: &str) -> Box<Response<Body>> {
    Box::new(reply::error(StatusCode::BAD_REQUEST, text, Some(param)))
}

/// Bytes of all text in a value.
pub fn characters(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(items) => items.iter().map(characters).sum(),
        Value::Object(fields) => fields.values().map(characters).sum(),
        Value::Number(_) => 4,
        Value::Null | Value::Bool(_) => 0,
    }
}
