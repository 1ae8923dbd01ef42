//! Servers that do everything wrong: each is said in one line, holds nothing else up, and once it is right again everything has arrived.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::proxy::{Keeper, settings, until};
use crate::served::serve;

/// What the server does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Right,
    Error500,
    Html,
    Forgets,
    Empty,
}

/// A router such as sglang-router, in memory.
#[derive(Clone)]
struct Fake {
    mood: Arc<Mutex<Mood>>,
    workers: Arc<Mutex<Vec<Value>>>,
}

impl Fake {
    async fn start(mood: Mood) -> (Self, String) {
        let this = Self {
            mood: Arc::new(Mutex::new(mood)),
            workers: Arc::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().fallback(answer).with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        (this, url)
    }

    fn becomes(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn count(&self) -> usize {
        self.workers.lock().unwrap().len()
    }
}

async fn answer(State(fake): State<Fake>, request: Request) -> Response {
    let mood = *fake.mood.lock().unwrap();
    match mood {
        Mood::Error500 => return (StatusCode::INTERNAL_SERVER_ERROR, "the database is away").into_response(),
        Mood::Html => return axum::response::Html("<html>Sign in\n first</html>").into_response(),
        Mood::Empty => return StatusCode::OK.into_response(),
        Mood::Right | Mood::Forgets => {}
    }
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    match parts.method.as_str() {
        "POST" if mood == Mood::Forgets => axum::Json(json!({ "status": "accepted" })).into_response(),
        "POST" => {
            let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            let mut worker: Value = serde_json::from_slice(&body).unwrap();
            worker["id"] = format!("w{}", rand::random::<u32>()).into();
            worker["metadata"] = worker["labels"].take();
            worker.as_object_mut().unwrap().remove("labels");
            fake.workers.lock().unwrap().push(worker);
            axum::Json(json!({ "status": "accepted" })).into_response()
        }
        "DELETE" => {
            let id = path.trim_start_matches("/workers/").to_owned();
            fake.workers.lock().unwrap().retain(|worker| worker["id"] != id);
            axum::Json(json!({ "status": "accepted" })).into_response()
        }
        _ => axum::Json(json!({ "workers": *fake.workers.lock().unwrap() })).into_response(),
    }
}

fn keep(url: &str, more: &str) -> Keeper {
    Keeper::of(settings(&format!(
        "name = \"r\"\nkind = \"router\"\nsoftware = \"sglang-router\"\nurl = \"{url}\"\ntimeout = \"500ms\"\nagree_within = \"500ms\"\n{more}"
    )))
}

#[tokio::test]
async fn what_it_answers_wrongly_is_said_and_nothing_is_lost() {
    for (mood, words) in [
        (Mood::Error500, &["500", "the database is away"] as &[&str]),
        (Mood::Html, &["no JSON", "Sign in first"]),
        (Mood::Empty, &["no JSON"]),
        (Mood::Forgets, &["does not list", "tiny"]),
    ] {
        let (fake, url) = Fake::start(mood).await;
        let (one, two) = (
            serve("tiny", "n1", 1, &[]).await,
            serve("other", "n1", 2, &[]).await,
        );
        let keeper = keep(&url, "");
        let told = keeper
            .push
            .tell(vec![one.entry.clone(), two.entry.clone()], ["n1".to_owned()]);
        keeper.trouble(words).await;
        // Who waits for it waits for a bounded time.
        keeper.push.settled(told, Duration::from_millis(50)).await;
        fake.becomes(Mood::Right);
        until("all to have arrived", Duration::from_secs(60), async || {
            fake.count() == 2 && keeper.push.status()[0].agrees
        })
        .await;
        // A goodbye that it would not hear is said again.
        fake.becomes(if mood == Mood::Forgets {
            Mood::Error500
        } else {
            mood
        });
        keeper.push.tell(vec![two.entry.clone()], ["n1".to_owned()]);
        until("trouble", Duration::from_secs(60), async || {
            !keeper.push.status()[0].trouble.is_empty()
        })
        .await;
        fake.becomes(Mood::Right);
        until(
            "the goodbye to have arrived",
            Duration::from_secs(60),
            async || fake.count() == 1,
        )
        .await;
    }
}

/// Answers each connection with these bytes, then does `then`.
async fn raw(bytes: &'static [u8], closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(bytes).await;
                while !closes && stream.read(&mut request).await.is_ok_and(|n| n > 0) {}
                if !closes {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn one_that_never_answers_breaks_off_or_is_not_there_is_said() {
    let one = serve("tiny", "n1", 1, &[]).await;
    let silent = raw(b"", false).await;
    let half = raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"workers\": [",
        true,
    )
    .await;
    let rubbish = raw(b"SSH-2.0-OpenSSH_9.2\r\n", true).await;
    let nobody = format!("http://127.0.0.1:{}", crate::proxy::free_port());
    for (url, words) in [
        (&silent, &["no answer within 0.5 s"] as &[&str]),
        (&half, &["GET /workers"]),
        (&rubbish, &["GET /workers"]),
        (&nobody, &["GET /workers", "refused"]),
    ] {
        let keeper = keep(url, "");
        keeper.push.tell(vec![one.entry.clone()], ["n1".to_owned()]);
        keeper.trouble(words).await;
    }
}

#[tokio::test]
async fn an_https_address_that_speaks_http_and_a_wrong_name_are_said() {
    let one = serve("tiny", "n1", 1, &[]).await;
    let (_, plain) = Fake::start(Mood::Right).await;
    let keeper = keep(&plain.replace("http://", "https://"), "");
    keeper.push.tell(vec![one.entry.clone()], ["n1".to_owned()]);
    keeper.trouble(&["GET /workers"]).await;
}

#[tokio::test]
async fn one_that_is_slow_with_a_newcomer_hears_a_goodbye_at_once() {
    let (fake, url) = Fake::start(Mood::Right).await;
    let (one, two) = (
        serve("tiny", "n1", 1, &[]).await,
        serve("other", "n1", 2, &[]).await,
    );
    let keeper = keep(&url, "");
    let keeper = {
        keeper.tell(&[&one.entry]).await;
        keeper
    };
    // It takes the second and never lists it: a pass that goes on until `agree_within`.
    fake.becomes(Mood::Forgets);
    keeper
        .push
        .tell(vec![one.entry.clone(), two.entry.clone()], ["n1".to_owned()]);
    until("the pass to be under way", Duration::from_secs(20), async || {
        !keeper.push.status()[0].agrees
    })
    .await;
    keeper.push.tell(vec![two.entry.clone()], ["n1".to_owned()]);
    until(
        "the goodbye to have arrived",
        Duration::from_secs(20),
        async || fake.count() == 0,
    )
    .await;
}

#[test]
fn settings_that_do_not_go_together_are_said_in_one_line() {
    let check = |toml: &str| {
        let parsed: Result<slurm_serve::catalog::push::Settings, _> = toml::from_str(toml);
        parsed
            .map_err(|e| e.to_string())
            .and_then(|it| it.check())
            .unwrap_err()
    };
    for (toml, words) in [
        ("kind = \"litellm\"", &["name"] as &[&str]),
        (
            "name = \"a\"\nkind = \"litellm\"\nurl = \"http://x\"",
            &["catalogs.a", "key_file"],
        ),
        (
            "name = \"a\"\nkind = \"router\"\nurl = \"http://x\"",
            &["catalogs.a", "software"],
        ),
        (
            "name = \"a\"\nkind = \"file\"\npath = \"/x\"\nformat = \"json\"\nkept_by = \"agent\"",
            &["kept_by"],
        ),
        (
            "name = \"a\"\nkind = \"file\"\npath = \"x\"\nformat = \"json\"",
            &["absolute"],
        ),
        (
            "name = \"a\"\nkind = \"file\"\npath = \"/x\"\nformat = \"json\"\nurl = \"http://x\"",
            &["`url` is not for this kind"],
        ),
        ("name = \"a\"\nkind = \"webhook\"", &["register"]),
        ("name = \"a b\"\nkind = \"webhook\"", &["a b"]),
        ("name = \"a\"\nkind = \"consul\"", &["consul", "litellm"]),
        ("name = \"a\"\ncolour = 1", &["colour"]),
    ] {
        let line = check(toml);
        assert!(words.iter().all(|word| line.contains(word)), "{toml}: {line}");
    }
}
