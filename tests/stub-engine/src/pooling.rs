//! Answers without generation: embeddings, rerank, tokenize. The numbers depend on the text alone.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::ask::{self, characters};
use crate::engine::Engine;
use crate::reply::{self, Body};

/// Dimensions of an embedding.
const DIMENSIONS: u64 = 8;

/// An answer or the refusal, both ready to send.
type Answer = Result<Response<Body>, Box<Response<Body>>>;

/// `/v1/embeddings`.
pub fn embeddings(engine: &Engine, body: &[u8]) -> Answer {
    let request = ask::object(body)?;
    let model = ask::model(engine, &request)?;
    let inputs = match &request["input"] {
        Value::Null => return Err(missing("input")),
        Value::Array(items) if items.first().is_some_and(|i| !i.is_number()) => items.clone(),
        one => vec![one.clone()],
    };
    let row = |(i, input)| json!({ "index": i, "object": "embedding", "embedding": vector(&Value::to_string(input)) });
    let data: Vec<_> = inputs.iter().enumerate().map(row).collect();
    let tokens = inputs.iter().map(tokens).sum::<u64>();
    Ok(reply::json(
        StatusCode::OK,
        &json!({ "id": "embd-0", "object": "list", "created": engine.created, "model": model, "data": data,
                 "usage": { "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0 } }),
    ))
}

/// `/v1/rerank`: a document scores the part of the query's words that it holds.
pub fn rerank(engine: &Engine, body: &[u8]) -> Answer {
    let request = ask::object(body)?;
    let model = ask::model(engine, &request)?;
    let query = request["query"].as_str().ok_or_else(|| missing("query"))?;
    let documents = request["documents"]
        .as_array()
        .ok_or_else(|| missing("documents"))?;
    let words: Vec<_> = query.split_whitespace().collect();
    let score = |text: &str| {
        let hits = words.iter().filter(|w| text.contains(*w)).count();
        hits as f64 / words.len().max(1) as f64
    };
    let mut results: Vec<_> = documents
        .iter()
        .map(|d| d.as_str().or_else(|| d["text"].as_str()).unwrap_or_default())
        .enumerate()
        .map(|(i, text)| (i, text, score(text)))
        .collect();
    results.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
    results.truncate(
        request["top_n"]
            .as_u64()
            .filter(|n| *n > 0)
            .map_or(usize::MAX, |n| n as usize),
    );
    let results: Vec<_> = results
        .into_iter()
        .map(|(i, text, score)| json!({ "index": i, "document": { "text": text }, "relevance_score": score }))
        .collect();
    let tokens = tokens(&request["query"]) + tokens(&request["documents"]);
    Ok(reply::json(
        StatusCode::OK,
        &json!({ "id": "rerank-0", "model": model, "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
                 "results": results }),
    ))
}

/// `/tokenize`: a token is a word of up to four bytes, its number the sum of them.
pub fn tokenize(engine: &Engine, body: &[u8]) -> Answer {
    let request = ask::object(body)?;
    ask::model(engine, &request)?;
    let text = match (&request["prompt"], &request["messages"]) {
        (Value::String(text), _) => text.clone(),
        (_, Value::Array(messages)) => messages
            .iter()
            .filter_map(|m| m["content"].as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        _ => return Err(missing("prompt")),
    };
    let ids: Vec<u32> = text
        .as_bytes()
        .chunks(4)
        .map(|c| c.iter().map(|b| u32::from(*b)).sum())
        .collect();
    Ok(reply::json(
        StatusCode::OK,
        &json!({ "count": ids.len(), "max_model_len": engine.options.max_model_len, "tokens": ids,
                 "token_strs": null }),
    ))
}

fn missing(field: &str) -> Box<Response<Body>> {
    Box::new(reply::error(
        StatusCode::BAD_REQUEST,
        &format!("Field required: {field}"),
        Some(field),
    ))
}

fn tokens(value: &Value) -> u64 {
    characters(value).div_ceil(4).max(1)
}

fn vector(text: &str) -> Vec<f64> {
    let sum: u64 = text.bytes().map(u64::from).sum();
    (1..=DIMENSIONS).map(|k| (sum * k % 97) as f64 / 97.0).collect()
}
