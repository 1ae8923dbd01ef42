//! `sserve doctor`: rows for a person, JSON for a script, and an exit code that says whether anything failed.

use serde_json::Value;

use crate::fake::World;

fn rows<'a>(report: &'a Value, check: &str) -> Vec<&'a Value> {
    let checks = report["checks"].as_array().expect("checks");
    checks.iter().filter(|row| row["check"] == check).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_has_a_verdict_and_what_is_wrong_says_what_to_do() {
    let world = World::new().await;
    world.slurm_conf(
        "KillWait = 5 sec\nPrologFlags = Alloc\nProctrackType = proctrack/linuxproc\nSlurmdPort = 18150\n",
    );
    std::fs::create_dir(world.path("models.d")).unwrap();
    std::fs::write(world.path("models.d/broken.toml"), "sorce = 'x'\n").unwrap();
    let report = world.run(&["doctor", "--json"]).await;
    report.fails(1, &["checks failed on n1"]);
    let report = report.json();
    assert_eq!(
        (&report["node"], &report["role"]),
        (&"n1".into(), &"compute".into())
    );
    for row in report["checks"].as_array().expect("checks") {
        let verdict = row["verdict"].as_str().expect("a verdict");
        assert!(["OK", "WARN", "FAIL", "SKIP"].contains(&verdict), "{row}");
        assert!(
            !row["seen"].as_str().expect("seen").contains('\n'),
            "one line: {row}"
        );
    }
    let one = |check: &str| rows(&report, check)[0].clone();
    assert_eq!(one("settings")["verdict"], "OK");
    let agent = rows(&report, "agent");
    assert!(
        agent
            .iter()
            .any(|row| row["verdict"] == "OK" && row["seen"].as_str().unwrap().contains("answers")),
        "{agent:?}"
    );
    assert_eq!(one("KillWait")["verdict"], "WARN");
    assert_eq!(one("PrologFlags")["verdict"], "OK");
    assert_eq!(one("ProctrackType")["verdict"], "WARN");
    assert_eq!(one("ports")["verdict"], "WARN");
    let recipe = one("recipes");
    assert_eq!(recipe["verdict"], "FAIL");
    assert!(
        recipe["seen"]
            .as_str()
            .unwrap()
            .contains("broken.toml:1: unknown key"),
        "{recipe}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn people_read_rows_and_a_summary() {
    let mut world = World::new().await;
    world.kill_agent().await;
    let report = world.run(&["doctor", "--quiet"]).await;
    report.fails(1, &["checks failed"]);
    let lines: Vec<&str> = report.stdout.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.starts_with("FAIL  agent "))
        .expect("the agent");
    assert!(lines[at].contains("nobody listens at"), "{report:?}");
    assert!(
        lines[at + 1].trim_start().starts_with("-> systemctl start"),
        "{report:?}"
    );
    assert!(!report.stdout.contains("\nOK "), "{report:?}");
    assert!(
        lines.last().unwrap().starts_with("n1, compute node: "),
        "{report:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_settings_and_a_silent_slurm_are_rows_too() {
    let world = World::new().await;
    std::fs::write(world.path("config.toml"), "[agent]\nsokcet = 1\n").unwrap();
    let report = world.run(&["doctor", "--json"]).await.json();
    let settings = rows(&report, "settings")[0];
    assert_eq!(settings["verdict"], "FAIL");
    assert!(
        settings["seen"].as_str().unwrap().contains("sokcet"),
        "{settings}"
    );
    assert!(
        settings["do"].as_str().unwrap().contains("correct it"),
        "{settings}"
    );
}
