//! vLLM's endpoints and refusals.

use serde_json::json;

use crate::stub::{Answer, Stub};

#[test]
fn answers_what_people_and_proxies_ask() {
    let stub = Stub::ready("--max-model-len 2048 --dtype float32 --enforce-eager", &[]);
    let health = stub.get("/health");
    assert_eq!((health.status, health.body.as_str()), (200, ""));
    assert_eq!(stub.get("/ping").status, 200);
    assert_eq!(stub.get("/version").json(), json!({ "version": "0.32.0+stub" }));
    assert_eq!(stub.get("/load").json(), json!({ "server_load": 0 }));
    let models = stub.get("/v1/models").json();
    let card = &models["data"][0];
    assert_eq!(
        (&card["id"], &card["root"], &card["max_model_len"]),
        (&json!("tiny"), &json!("/weights/tiny"), &json!(2048))
    );
    let metrics = stub.get("/metrics").body;
    assert!(
        metrics.contains("vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 0.0\n"),
        "{metrics}"
    );
}

#[test]
fn chats_and_completes() {
    let stub = Stub::ready("", &[("STUB_TOKENS", "5")]);
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let chat = stub
        .post(
            "/v1/chat/completions",
            &json!({ "model": "tiny", "messages": messages }),
        )
        .json();
    assert_eq!(chat["choices"][0]["message"]["content"], "0 1 2 3 4 ");
    assert_eq!(chat["choices"][0]["finish_reason"], "stop");
    let ask = json!({ "model": "tiny", "prompt": "hi", "max_tokens": 2 });
    let completion = stub.post("/v1/completions", &ask).json();
    assert_eq!(completion["choices"][0]["text"], "0 1 ");
    assert_eq!(completion["choices"][0]["finish_reason"], "length");
    assert_eq!(completion["usage"]["completion_tokens"], 2);
}

#[test]
fn embeds_reranks_and_tokenizes() {
    let stub = Stub::ready("", &[]);
    let embeddings = stub
        .post(
            "/v1/embeddings",
            &json!({ "model": "tiny", "input": ["a", "b", "a"] }),
        )
        .json();
    let data = embeddings["data"].as_array().unwrap();
    assert_eq!(data.len(), 3);
    assert_eq!(data[0]["embedding"], data[2]["embedding"]);
    assert_ne!(data[0]["embedding"], data[1]["embedding"]);
    let ask = json!({ "model": "tiny", "query": "red fox", "documents": ["a cow", "a red fox", "red"] });
    let ranked = stub.post("/v1/rerank", &ask).json();
    let order: Vec<_> = ranked["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["index"].as_u64().unwrap())
        .collect();
    assert_eq!(order, [1, 2, 0]);
    assert_eq!(
        stub.post("/tokenize", &json!({ "prompt": "12345678" })).json()["count"],
        2
    );
}

#[test]
fn refuses_as_vllm_does() {
    let stub = Stub::ready("--max-model-len 64", &[]);
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let unknown = stub.post(
        "/v1/chat/completions",
        &json!({ "model": "huge", "messages": messages }),
    );
    assert_eq!(unknown.status, 404);
    let error = &unknown.json()["error"];
    assert_eq!(error["message"], "The model `huge` does not exist.");
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("NotFoundError"), &json!(404))
    );
    let long = stub.post(
        "/v1/chat/completions",
        &json!({ "messages": messages, "max_tokens": 65 }),
    );
    assert_eq!(long.status, 400);
    assert!(
        long.body.contains("maximum context length is 64 tokens"),
        "{}",
        long.body
    );
    assert_eq!(stub.ask("POST", "/v1/chat/completions", "{").status, 400);
    assert_eq!(stub.get("/nowhere").status, 404);
    assert_eq!(stub.get("/v1/chat/completions").status, 405);
}

#[test]
fn the_key_guards_v1_alone() {
    let stub = Stub::ready("", &[("VLLM_API_KEY", "secret")]);
    assert_eq!(stub.get("/v1/models").status, 401);
    let keyed = stub.open("GET", "/v1/models", "Authorization: Bearer secret\r\n", "");
    assert_eq!(Answer::read(keyed).status, 200);
    for open in ["/health", "/metrics", "/version"] {
        assert_eq!(stub.get(open).status, 200, "{open}");
    }
    assert!(!stub.log().contains("secret"));
}

#[test]
fn a_test_sees_what_arrived() {
    let stub = Stub::ready("", &[]);
    Answer::read(stub.open("POST", "/tokenize?x=1", "X-Mine: 7\r\n", "{\"prompt\":\"a\"}"));
    let requests = stub.get("/_stub/requests").json();
    let seen = requests.as_array().unwrap().last().unwrap();
    assert_eq!(seen["path"], "/tokenize?x=1");
    assert_eq!(
        (&seen["body_bytes"], &seen["outcome"]),
        (&json!(14), &json!("done"))
    );
    assert!(
        seen["headers"]
            .as_array()
            .unwrap()
            .contains(&json!(["x-mine", "7"]))
    );
}

#[test]
fn faults_are_set_while_it_runs() {
    let stub = Stub::ready("", &[]);
    let set = |what| assert_eq!(stub.post("/_stub/set", &what).status, 200);
    set(json!({ "health": 503 }));
    assert_eq!(stub.get("/health").status, 503);
    set(json!({ "health": null, "request_status": 429, "model_id": "another" }));
    assert_eq!(stub.get("/health").status, 200);
    assert_eq!(stub.get("/v1/models").json()["data"][0]["id"], "another");
    assert_eq!(stub.post("/v1/chat/completions", &json!({})).status, 429);
    let typo = stub.post("/_stub/set", &json!({ "helth": 503 }));
    assert_eq!(typo.status, 400);
    assert!(typo.body.contains("helth"), "{}", typo.body);
}

#[test]
fn a_pause_stops_tokens_and_a_resume_lets_them_on() {
    let stub = Stub::ready("", &[]);
    assert_eq!(stub.post("/pause", &json!({})).status, 200);
    assert_eq!(stub.get("/is_paused").json()["is_paused"], true);
    let answer = stub.open(
        "POST",
        "/v1/completions",
        "",
        "{\"prompt\":\"a\",\"max_tokens\":1}",
    );
    crate::stub::until("the request inside", || stub.state("running") == 1);
    assert_eq!(stub.post("/resume", &json!({})).status, 200);
    assert_eq!(Answer::read(answer).json()["choices"][0]["text"], "0 ");
}
