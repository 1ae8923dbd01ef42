//! LiteLLM's own proxy as it is on PyPI; what it stores lies in a stand-in for its database (`tests/proxies/prisma`).

use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use slurm_serve::catalog::push::Entry;
use slurm_serve_recipe::CatalogFields;

use crate::proxy::{Keeper, Proxy, client, home, settings, until};
use crate::served::serve;

const MASTER: &str = "sk-master";
const SOON: Duration = Duration::from_secs(60);

struct Site {
    proxy: Proxy,
    folder: tempfile::TempDir,
}

async fn start() -> Site {
    let folder = tempfile::tempdir().unwrap();
    let program = home("litellm").join("bin/uvicorn");
    let config = folder.path().join("config.yaml");
    std::fs::write(
        &config,
        format!("model_list: []\ngeneral_settings:\n  master_key: {MASTER}\n"),
    )
    .unwrap();
    let mut key = std::fs::OpenOptions::new();
    let key = key
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(folder.path().join("key"));
    std::io::Write::write_all(&mut key.unwrap(), MASTER.as_bytes()).unwrap();
    let (database, here) = (folder.path().join("db.json"), folder.path().to_owned());
    let proxy = Proxy::start("/health/liveliness", move |port| {
        let mut command = Command::new(&program);
        command
            .args([
                "litellm.proxy.proxy_server:app",
                "--host",
                "127.0.0.1",
                "--port",
                &port.to_string(),
            ])
            .current_dir(&here)
            .env(
                "PYTHONPATH",
                concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/proxies"),
            )
            .env("PRISMA_STAND_IN", &database)
            .env("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
            .env("STORE_MODEL_IN_DB", "True")
            .env("LITELLM_SALT_KEY", "sk-salt")
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("CONFIG_FILE_PATH", &config);
        command
    })
    .await;
    Site { proxy, folder }
}

impl Site {
    fn keep(&self) -> Keeper {
        let (url, key) = (self.proxy.url(""), self.folder.path().join("key"));
        let key = key.display();
        Keeper::of(settings(&format!(
            "name = \"l\"\nkind = \"litellm\"\nurl = \"{url}\"\nkey_file = \"{key}\""
        )))
    }

    async fn rows(&self) -> Vec<Value> {
        let all = self.proxy.get("/v1/model/info", MASTER).await;
        all["data"].as_array().cloned().unwrap_or_default()
    }

    async fn post(&self, path: &str, body: Value) {
        let request = client()
            .post(self.proxy.url(path))
            .bearer_auth(MASTER)
            .json(&body);
        let answer = request.send().await.unwrap();
        assert!(
            answer.status().is_success(),
            "{path}: {}",
            answer.text().await.unwrap()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn litellm_is_kept() {
    let mut site = start().await;
    let (one, two) = (
        serve("tiny", "n1", 1, &[]).await,
        serve("tiny", "n2", 2, &[]).await,
    );
    let first = Entry {
        aliases: vec!["small".into()],
        fields: CatalogFields {
            access_groups: vec!["students".into()],
            input_cost_per_token: Some(0.001),
            output_cost_per_token: Some(0.002),
            max_input_tokens: Some(2048),
            ..CatalogFields::default()
        },
        ..one.entry.clone()
    };
    let keeper = site.keep();
    keeper.tell_of(&[&first, &two.entry], &["n1", "n2"]).await;

    // Replicas of one name, an alias, and whose each is.
    let rows = site.rows().await;
    let mut seen: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["model_name"].as_str().unwrap(),
                row["model_info"]["slurm_serve_job"].as_u64().unwrap(),
            )
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, [("small", 1), ("tiny", 1), ("tiny", 2)]);
    let of_first = rows
        .iter()
        .find(|row| row["model_info"]["slurm_serve_id"] == first.generation)
        .unwrap();
    let info = &of_first["model_info"];
    assert_eq!(
        (&info["slurm_serve_cluster"], &info["slurm_serve_node"]),
        (&json!("here"), &json!("n1"))
    );
    assert_eq!(
        (&info["slurm_serve_owner"], &info["mode"]),
        (&json!("ada"), &json!("chat"))
    );
    assert_eq!(
        (&info["access_groups"], &info["max_input_tokens"]),
        (&json!(["students"]), &json!(2048))
    );
    assert_eq!(of_first["litellm_params"]["input_cost_per_token"], 0.001);
    assert_eq!(site.proxy.chat("small", MASTER).await, (200, "job 1".into()));
    // A deployment can be asked for by its id.
    let id = info["id"].as_str().unwrap();
    assert_eq!(site.proxy.chat(id, MASTER).await, (200, "job 1".into()));

    // While nobody looks somebody puts a row in by hand, takes one of ours out, and changes another.
    drop(keeper);
    site.post("/model/new", json!({ "model_name": "theirs", "litellm_params": { "model": "openai/x", "api_base": "http://127.0.0.1:9/v1" }, "model_info": { "id": "theirs" } })).await;
    site.post("/model/delete", json!({ "id": id })).await;
    let second = rows
        .iter()
        .find(|row| row["model_info"]["slurm_serve_job"] == 2)
        .unwrap();
    let second = second["model_info"]["id"].as_str().unwrap().to_owned();
    site.post("/model/delete", json!({ "id": second })).await;
    let info = json!({ "id": second, "slurm_serve_id": two.entry.generation, "slurm_serve_cluster": "here", "slurm_serve_node": "n2", "slurm_serve_job": 2 });
    site.post("/model/new", json!({ "model_name": "tiny", "litellm_params": { "model": "openai/tiny", "api_base": "http://127.0.0.1:9/v1" }, "model_info": info })).await;
    let keeper = site.keep();
    keeper.tell_of(&[&first, &two.entry], &["n1", "n2"]).await;
    until("both to be put right", SOON, async || {
        let rows = site.rows().await;
        let right = rows
            .iter()
            .any(|row| row["litellm_params"]["api_base"] == format!("{}/v1", two.entry.url));
        right && rows.len() == 4
    })
    .await;

    // It is restarted, and has what it had; so does whoever keeps it.
    site.proxy.down();
    site.proxy.up().await;
    until("LiteLLM to have read its table", SOON, async || {
        site.rows().await.len() == 4
    })
    .await;
    drop(keeper);
    let keeper = site.keep();
    keeper.tell_of(&[&two.entry], &["n1", "n2"]).await;
    let rows = site.rows().await;
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!(site.proxy.chat("tiny", MASTER).await, (200, "job 2".into()));

    // Two who keep it make no row twice, and the last goodbye leaves the site's own.
    let other = site.keep();
    let entries = [&two.entry];
    tokio::join!(
        keeper.tell_of(&entries, &["n1", "n2"]),
        other.tell_of(&entries, &["n1", "n2"])
    );
    assert_eq!(site.rows().await.len(), 2);
    tokio::join!(
        keeper.tell_of(&[], &["n1", "n2"]),
        other.tell_of(&[], &["n1", "n2"])
    );
    let rows = site.rows().await;
    assert_eq!((rows.len(), rows[0]["model_name"].as_str()), (1, Some("theirs")));
    assert!(site.proxy.chat("tiny", MASTER).await.0 >= 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_key_than_litellms_is_said() {
    let site = start().await;
    std::fs::write(site.folder.path().join("key"), "sk-wrong").unwrap();
    let keeper = site.keep();
    let one = serve("tiny", "n1", 1, &[]).await;
    keeper.push.tell(vec![one.entry.clone()], ["n1".to_owned()]);
    keeper.trouble(&["GET /v1/model/info", "key_file"]).await;
    // It is read anew each time.
    std::fs::write(site.folder.path().join("key"), MASTER).unwrap();
    keeper.tell(&[&one.entry]).await;
}
