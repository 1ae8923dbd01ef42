//! Files that something else reads: a real Prometheus scrapes through the guard; of the others, which no package has, the documented form.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::proxy::{Keeper, Proxy, client, home, settings, until};
use crate::served::serve;

fn keep(format: &str, path: &Path) -> Keeper {
    let path = path.display();
    Keeper::of(settings(&format!(
        "name = \"f\"\nkind = \"file\"\nformat = \"{format}\"\npath = \"{path}\""
    )))
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[tokio::test]
async fn every_format_is_what_its_reader_documents() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (
        serve("tiny", "n1", 1, &[]).await,
        serve("ada/o\"dd: #name", "n1", 2, &[]).await,
    );
    let port =
        |served: &crate::served::Served| served.entry.authority().rsplit_once(':').unwrap().1.to_owned();
    for format in [
        "llm-d",
        "production-stack-json",
        "production-stack-yaml",
        "prometheus",
        "json",
    ] {
        let path = folder.path().join(format);
        let keeper = keep(format, &path);
        keeper.tell(&[&one.entry, &two.entry]).await;
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&one.entry.key), "a key in {format}");
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o644
        );
        match format {
            "llm-d" => {
                let endpoints = read(&path)["endpoints"].clone();
                let first = &endpoints[0];
                assert_eq!(
                    (&first["address"], &first["port"]),
                    (&json!("127.0.0.1"), &json!(port(&one)))
                );
                assert_eq!(first["labels"]["model"], "tiny");
                assert_eq!(endpoints.as_array().unwrap().len(), 2);
            }
            "production-stack-json" => {
                let all = read(&path);
                let count = |key: &str| all[key].as_str().unwrap().split(',').count();
                assert_eq!(
                    (
                        count("static_backends"),
                        count("static_models"),
                        count("static_model_types")
                    ),
                    (2, 2, 2)
                );
                assert_eq!(all["service_discovery"], "static");
            }
            "production-stack-yaml" => {
                // The parser that its router uses.
                let python = home("litellm").join("bin/python");
                let script = "import json,sys,yaml; print(json.dumps(yaml.safe_load(sys.stdin)))";
                let parsed = Command::new(python)
                    .args(["-c", script])
                    .stdin(std::fs::File::open(&path).unwrap())
                    .output()
                    .unwrap();
                let all: Value = serde_json::from_slice(&parsed.stdout).unwrap();
                assert_eq!(
                    all["static_models"]["ada/o\"dd: #name"]["static_backends"],
                    json!([two.entry.url])
                );
                assert_eq!(all["static_models"]["tiny"]["static_model_type"], "chat");
            }
            "prometheus" => assert_eq!(read(&path)[0]["targets"], json!([one.entry.authority()])),
            _ => assert_eq!(read(&path)["models"][0]["url"], one.entry.url),
        }
        keeper.tell(&[]).await;
        assert!(
            !std::fs::read_to_string(&path).unwrap().contains(&port(&one)),
            "{format}"
        );
    }
}

#[tokio::test]
async fn a_file_outlives_whoever_writes_it_and_is_put_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("targets.json");
    let (one, two) = (
        serve("tiny", "n1", 1, &[]).await,
        serve("tiny", "n2", 2, &[]).await,
    );
    let keeper = keep("prometheus", &path);
    keeper.tell_of(&[&one.entry, &two.entry], &["n1", "n2"]).await;
    // In its next life the writer knows of n1 alone at first, and lets the other be.
    let keeper = keeper.again();
    keeper.tell_of(&[], &["n1"]).await;
    assert_eq!(read(&path)[0]["labels"]["node"], "n2");
    assert_eq!(read(&path).as_array().unwrap().len(), 1);
    // Somebody writes into it.
    std::fs::write(&path, "[").unwrap();
    until("the file to be put right", Duration::from_secs(20), async || {
        std::fs::read_to_string(&path).unwrap().contains("\"n2\"")
    })
    .await;
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    assert_eq!(left, ["targets.json"], "nothing lies about");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_said_and_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("there/targets.json");
    let one = serve("tiny", "n1", 1, &[]).await;
    let keeper = keep("prometheus", &path);
    keeper.push.tell(vec![one.entry.clone()], ["n1".to_owned()]);
    keeper.trouble(&["targets.json", "No such file"]).await;
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    until("the file", Duration::from_secs(30), async || path.exists()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_scrapes_through_the_guard() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("targets.json");
    let one = serve("tiny", "n1", 1, &["127.0.0.1"]).await;
    let keeper = keep("prometheus", &path);
    keeper.tell(&[&one.entry]).await;
    let config = folder.path().join("prometheus.yml");
    let job = "scrape_configs:\n  - job_name: models\n    scrape_interval: 1s\n    file_sd_configs:\n      - files: [targets.json]\n        refresh_interval: 1s\n";
    std::fs::write(&config, job).unwrap();
    let home = home("prometheus");
    let checked = Command::new(home.join("promtool"))
        .arg("check")
        .arg("config")
        .arg(&config)
        .status()
        .unwrap();
    assert!(checked.success());
    let (data, file) = (folder.path().join("data"), config.clone());
    let prometheus = Proxy::start("/-/ready", move |port| {
        let mut command = Command::new(home.join("prometheus"));
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command
    })
    .await;
    let up = async || {
        let answer = client()
            .get(prometheus.url("/api/v1/query?query=up"))
            .send()
            .await
            .unwrap();
        answer.json::<Value>().await.unwrap()["data"]["result"].clone()
    };
    until("the model to be scraped", Duration::from_secs(60), async || {
        let result = up().await;
        result[0]["value"][1] == "1" && result[0]["metric"]["model"] == "tiny"
    })
    .await;
    keeper.tell(&[]).await;
    until("it to be scraped no more", Duration::from_secs(60), async || {
        up().await == json!([])
    })
    .await;
}
