//! A home-grown proxy that is told by requests which the admin wrote down.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use http::StatusCode;
use serde_json::{Value, json};
use slurm_serve::catalog::push::{Kept, Push, Settings};
use tokio::net::TcpListener;

use crate::proxy::{Keeper, NoSlurm, settings, until};
use crate::served::serve;

/// What it was told, and what it answers.
#[derive(Clone, Default)]
struct Fake {
    heard: Arc<Mutex<Vec<(String, String, String)>>>,
    answers: Arc<Mutex<Vec<(u16, &'static str)>>>,
}

async fn hear(State(fake): State<Fake>, request: Request) -> (StatusCode, &'static str) {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let key = parts
        .headers
        .get("x-key")
        .map(|it| it.to_str().unwrap().to_owned())
        .unwrap_or_default();
    let what = format!("{} {}", parts.method, parts.uri);
    fake.heard
        .lock()
        .unwrap()
        .push((what, key, String::from_utf8_lossy(&body).into_owned()));
    let answer = fake
        .answers
        .lock()
        .unwrap()
        .pop()
        .unwrap_or((200, "{\"ok\": true}"));
    (StatusCode::from_u16(answer.0).unwrap(), answer.1)
}

impl Fake {
    async fn start() -> (Self, String) {
        let this = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().fallback(hear).with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        (this, url)
    }

    fn heard(&self) -> Vec<(String, String, String)> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }

    fn will_answer(&self, answers: &[(u16, &'static str)]) {
        *self.answers.lock().unwrap() = answers.iter().rev().copied().collect();
    }
}

fn written(url: &str, more: &str) -> Settings {
    settings(&format!(
        r#"
        name = "w"
        kind = "webhook"
        heartbeat_every = "300ms"
        {more}
        [register]
        url = "{url}/models"
        headers = {{ x-key = "{{{{ secret }}}}" }}
        body = '{{"name": {{{{ name|tojson }}}}, "url": {{{{ url|tojson }}}}, "key": {{{{ key|tojson }}}}, "job": {{{{ job_id }}}}}}'
        expect_status = [200, 201]
        expect_body = "ok"
        [deregister]
        method = "DELETE"
        url = "{url}/models/{{{{ id|urlencode }}}}"
        "#
    ))
}

#[tokio::test]
async fn it_is_told_as_the_admin_wrote_it() {
    let (fake, url) = Fake::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "s3same\n").unwrap();
    std::os::unix::fs::chown(&file, None, None).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let keeper = Keeper::of(written(&url, &format!("key_file = \"{}\"", file.display())));
    let one = serve("ada/\"tiny\"", "n1", 1, &[]).await;
    keeper.tell(&[&one.entry]).await;
    let heard = fake.heard();
    assert_eq!(
        (heard.len(), heard[0].0.as_str(), heard[0].1.as_str()),
        (1, "POST /models", "s3same")
    );
    let told: Value = serde_json::from_str(&heard[0].2).unwrap();
    assert_eq!(
        told,
        json!({ "name": one.entry.name, "url": one.entry.url, "key": one.entry.key, "job": 1 })
    );

    // The next life takes out what this one entered.
    let keeper = keeper.again();
    keeper.tell(&[]).await;
    assert_eq!(
        fake.heard()[0].0,
        format!("DELETE /models/{}", one.entry.generation)
    );
    keeper.tell(&[]).await;
    assert!(fake.heard().is_empty());
}

#[tokio::test]
async fn an_answer_that_is_not_expected_is_said_and_it_is_told_again() {
    let (fake, url) = Fake::start().await;
    let one = serve("tiny", "n1", 1, &[]).await;
    let keeper = Keeper::of(written(&url, ""));
    // Refused; then it must not be assumed that it was: taken out, and entered again.
    fake.will_answer(&[
        (503, "full"),
        (404, "unknown"),
        (200, "no"),
        (204, ""),
        (200, "ok"),
    ]);
    keeper.push.tell(vec![one.entry.clone()], ["n1".to_owned()]);
    keeper.trouble(&["register of tiny", "503", "full"]).await;
    keeper.trouble(&["expect_body"]).await;
    until("it to be entered", Duration::from_secs(30), async || {
        keeper.push.status()[0].agrees
    })
    .await;
    let heard: Vec<String> = fake
        .heard()
        .into_iter()
        .map(|(what, ..)| what.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(heard, ["POST", "DELETE", "POST", "DELETE", "POST"]);
}

#[tokio::test]
async fn a_heartbeat_that_is_refused_enters_it_again() {
    let (fake, url) = Fake::start().await;
    let more = format!("heartbeat = {{ method = \"PUT\", url = \"{url}/models/{{{{ id }}}}\" }}");
    let keeper = Keeper::of(written(&url, &more));
    let one = serve("tiny", "n1", 1, &[]).await;
    keeper.tell(&[&one.entry]).await;
    let beats = |fake: &Fake, verb: &str| {
        fake.heard
            .lock()
            .unwrap()
            .iter()
            .filter(|(what, ..)| what.starts_with(verb))
            .count()
    };
    until("heartbeats", Duration::from_secs(20), async || {
        beats(&fake, "PUT") >= 2
    })
    .await;
    assert_eq!(beats(&fake, "POST"), 1);
    fake.will_answer(&[(404, "who?")]);
    until("it to be entered again", Duration::from_secs(20), async || {
        beats(&fake, "POST") >= 2
    })
    .await;
}

#[tokio::test]
async fn a_template_that_names_what_there_is_not_is_found_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = written("http://127.0.0.1:9", "");
    settings.register.as_mut().unwrap().body = "{{ nmae }}".into();
    let error = Push::start(&[settings.clone()], Kept::Agent, folder.path(), Arc::new(NoSlurm)).unwrap_err();
    assert!(
        error.contains("catalog w: register.body") && error.contains("undefined"),
        "{error}"
    );
    settings.register.as_mut().unwrap().body = "{{ name".into();
    let error = Push::start(&[settings], Kept::Agent, folder.path(), Arc::new(NoSlurm)).unwrap_err();
    assert!(
        error.contains("register.body") && !error.contains('\n'),
        "{error}"
    );
}
