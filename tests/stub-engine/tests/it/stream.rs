//! Streams, disconnects, and bodies of any size.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::stub::{Answer, Stub, events, until};

#[test]
fn streams_every_token_in_order() {
    let stub = Stub::ready("", &[("STUB_TOKEN_MS", "1")]);
    let ask = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "hi" }], "stream": true,
                      "max_tokens": 20, "stream_options": { "include_usage": true } });
    let answer = stub.post("/v1/chat/completions", &ask);
    assert!(
        answer.head.contains("content-type: text/event-stream"),
        "{}",
        answer.head
    );
    let mut events = events(&answer.body);
    assert_eq!(events.pop().unwrap(), "[DONE]");
    let events: Vec<Value> = events.iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String = events
        .iter()
        .filter_map(|e| e["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, (0..20).map(|i| format!("{i} ")).collect::<String>());
    let (usage, last) = (&events[events.len() - 1], &events[events.len() - 2]);
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(
        (&usage["choices"], &usage["usage"]["completion_tokens"]),
        (&json!([]), &json!(20))
    );
}

#[test]
fn a_client_that_goes_is_not_running_any_more() {
    let stub = Stub::ready("", &[("STUB_TOKEN_MS", "10000")]);
    let running = |n: u32| {
        let line = format!("vllm:num_requests_running{{engine=\"0\",model_name=\"tiny\"}} {n}.0");
        move |metrics: String| metrics.contains(&line)
    };
    let stream = stub.streaming(100);
    let whole = stub.open(
        "POST",
        "/v1/completions",
        "",
        "{\"prompt\":\"a\",\"max_tokens\":9}",
    );
    until("two to run", || running(2)(stub.get("/metrics").body));
    drop((stream, whole));
    until("none to run", || running(0)(stub.get("/metrics").body));
    assert!(
        stub.get("/metrics")
            .body
            .contains("finished_reason=\"abort\"} 2.0")
    );
}

#[test]
fn more_than_max_num_seqs_wait() {
    let stub = Stub::ready("--max-num-seqs 1", &[("STUB_TOKEN_MS", "10000")]);
    let first = stub.streaming(100);
    let _second = stub.open(
        "POST",
        "/v1/completions",
        "",
        "{\"prompt\":\"a\",\"max_tokens\":1}",
    );
    until("one to wait", || stub.state("waiting") == 1);
    assert_eq!(stub.state("running"), 1);
    drop(first);
    until("the place to be given on", || stub.state("waiting") == 0);
}

#[test]
fn a_scripted_break_ends_a_stream_in_the_middle() {
    let stub = Stub::ready("", &[("STUB_BREAK_AFTER", "3")]);
    let mut stream = UnixStream::connect(stub.socket()).unwrap();
    let body = "{\"prompt\":\"a\",\"max_tokens\":9,\"stream\":true}";
    let length = body.len();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"2 \"") && !text.contains("\"3 \""), "{text}");
    assert!(!text.contains("[DONE]") && !text.ends_with("0\r\n\r\n"), "{text}");
}

#[test]
fn a_body_of_any_size_is_counted_in_bounded_memory() {
    const SIZE: usize = 256 << 20;
    let stub = Stub::ready("", &[]);
    let mut stream = UnixStream::connect(stub.socket()).unwrap();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {SIZE}\r\n\r\n"
    )
    .unwrap();
    let block = vec![b'x'; 1 << 20];
    for sent in 1..=SIZE / block.len() {
        stream.write_all(&block).unwrap();
        if sent == 8 {
            until("the first blocks to be read before the others are sent", || {
                stub.state("body_bytes") > 4 << 20
            });
        }
    }
    let answer = Answer::read(stream);
    assert_eq!(answer.status, 200);
    assert!(
        answer.head.contains(&format!("x-stub-body-bytes: {SIZE}")),
        "{}",
        answer.head
    );
    let status = std::fs::read_to_string(format!("/proc/{}/status", stub.pid())).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let peak: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 48 << 10, "peak of {peak} kB");
}

#[test]
fn a_held_body_is_not_read_until_lifted() {
    let stub = Stub::ready("", &[("STUB_HOLD_BODY", "1")]);
    let answer = stub.open("POST", "/tokenize", "", "{\"prompt\":\"a\"}");
    until("the request to arrive", || {
        stub.get("/_stub/requests").body.contains("/tokenize")
    });
    assert_eq!(stub.state("body_bytes"), 0);
    assert_eq!(
        stub.post("/_stub/set", &json!({ "hold_body": false })).status,
        200
    );
    assert_eq!(Answer::read(answer).status, 200);
}
