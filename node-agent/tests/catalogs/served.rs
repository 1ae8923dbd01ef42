//! A model as it is served: an engine that is none on a Unix socket, and the real guard in front of it.

use axum::Router;
use axum::routing::{get, post};
use serde_json::{Value, json};
use slurm_serve::catalog::push::Entry;
use slurm_serve::step::guard::{Door, Guard};
use slurm_serve_recipe::CatalogFields;
use tokio::net::{TcpListener, UnixListener};

/// Ends with the test.
pub struct Served {
    _guard: Guard,
    pub entry: Entry,
    _folder: tempfile::TempDir,
}

/// Serves `name` on this node's loopback, as `job` on `node`. Peers need no key.
pub async fn serve(name: &str, node: &str, job_id: u32, peers: &[&str]) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("engine.sock");
    let engine = UnixListener::bind(&socket).unwrap();
    let (listed, by) = (name.to_owned(), format!("job {job_id}"));
    let models = move || {
        let list = json!({ "object": "list", "data": [{ "id": listed, "object": "model", "created": 0, "owned_by": "test" }] });
        async { axum::Json(list) }
    };
    let chat = move |axum::Json(asked): axum::Json<Value>| {
        let message = json!({ "role": "assistant", "content": by });
        let answer = json!({
            "id": "1", "object": "chat.completion", "created": 1, "model": asked["model"],
            "choices": [{ "index": 0, "finish_reason": "stop", "message": message }],
            "usage": { "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 },
        });
        async { axum::Json(answer) }
    };
    let routes = Router::new()
        .route("/v1/models", get(models))
        .route("/health", get(async || ""))
        .route("/metrics", get(async || "vllm:num_requests_running 0\n"))
        .route("/v1/chat/completions", post(chat));
    tokio::spawn(async move { axum::serve(engine, routes).await.unwrap() });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let generation = format!("{job_id}.0.1-{:08x}", rand::random::<u32>());
    let key = format!("key-of-{generation}");
    let peers = peers.iter().map(|peer| peer.parse().unwrap()).collect();
    let guard = Guard::open(listener, &socket, &key, name, &generation, peers).unwrap();
    guard.set(Door::Open);
    let entry = Entry {
        name: name.into(),
        aliases: vec![],
        recipe: name.into(),
        owner: "ada".into(),
        cluster: "here".into(),
        node: node.into(),
        job_id,
        task: "chat".into(),
        url: format!("http://{}", guard.address()),
        expires_ms: 0,
        fields: CatalogFields::default(),
        generation,
        key,
    };
    Served {
        _guard: guard,
        entry,
        _folder: folder,
    }
}
