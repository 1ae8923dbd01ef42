//! `slurm-serve agent` itself, with TLS turned on in its file.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::pki::{Ca, write_private};
use crate::site::{PROXY, channel, in_time, list};
use slurm_serve::config::Client;
use slurm_serve_proto::v1::catalog_client::CatalogClient;

/// Starts it on a free port, with its files in `folder`.
fn start(folder: &Path, port: u16) -> Child {
    let at = |name: &str| format!("{:?}", folder.join(name));
    let config = format!(
        "[agent]\nsocket = {}\nlisten = \"\"\nnode_name = \"n1\"\nrun_dir = {}\nstate_dir = {}\nslurm_bin_dir = {}\nsrun_box = \"limits\"\n\
         [agent.tls]\nlisten = \"127.0.0.1:{port}\"\ncert = {}\nkey = {}\n[access]\ntoken_file = {}\n",
        at("agent.sock"),
        at("run"),
        at("state"),
        at("no-slurm"),
        at("server.pem"),
        at("server.key"),
        at("tokens"),
    );
    std::fs::write(folder.join("config.toml"), config).unwrap();
    Command::new(env!("CARGO_BIN_EXE_slurm-serve"))
        .arg("--config")
        .arg(folder.join("config.toml"))
        .arg("agent")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn an_agent_serves_tls_as_its_file_says_or_says_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let ca = Ca::new("a test's CA");
    ca.write(&at("ca.pem"));
    ca.sign(folder.path(), "server", &["localhost"], "n1");
    write_private(&at("tokens"), &format!("{PROXY} gateway proxy\n"));
    write_private(&at("token"), PROXY);
    let client = Client {
        ca_file: at("ca.pem"),
        token_file: at("token"),
        ..Client::default()
    };
    let port = free_port();
    let mut agent = start(folder.path(), port);
    in_time("the agent", async {
        let there = || CatalogClient::new(channel(&format!("https://localhost:{port}"), &client));
        while list(there()).await.is_err() {
            assert!(agent.try_wait().unwrap().is_none(), "it ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    agent.kill().await.unwrap();

    std::fs::write(at("server.pem"), "nothing").unwrap();
    let ended = in_time("its end", start(folder.path(), free_port()).wait_with_output());
    let ended = ended.await.unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    let last = said.lines().last().unwrap_or_default();
    assert!(!ended.status.success());
    assert!(
        last.contains("agent.tls.cert") && last.contains("no certificate in it"),
        "{said}"
    );
}
