//! `sserve recipes`, and `sserve plugin` as far as it needs no Slurm.

use std::os::unix::fs::PermissionsExt as _;

use crate::fake::World;

const TINY: &str = "source = \"/nonexistent/tiny\"\ndescription = \"a tiny model\"\naliases = [\"t\"]\nmin_engine_version = \"0.18\"\ngpus = 0\nargs = [\"--max-model-len\", \"128\"]\n";

fn world() -> World {
    let world = World::without_agent();
    std::fs::create_dir_all(world.path("models.d")).unwrap();
    std::fs::create_dir_all(world.path("home/.config/slurm-serve/models.d")).unwrap();
    std::fs::write(world.path("models.d/tiny.toml"), TINY).unwrap();
    world
}

fn own(world: &World, name: &str, text: &str) {
    let folder = world.path("home/.config/slurm-serve/models.d");
    std::fs::write(folder.join(format!("{name}.toml")), text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admins_and_ones_own_are_listed_and_broken_ones_told() {
    let world = world();
    own(&world, "mine", "source = \"org/mine\"");
    own(&world, "tiny", "source = \"org/other\"");
    own(&world, "typo", "source = \"org/typo\"\ngpu = 1");
    let list = world.run(&["recipes", "list"]).await;
    let table = list.succeeds();
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("mine") && line.contains("own")),
        "{table}"
    );
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("tiny") && line.contains("admin")),
        "{table}"
    );
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("tiny") && line.contains("hidden")),
        "{table}"
    );
    assert!(
        list.stderr.contains("typo.toml:2") && list.stderr.contains("gpus"),
        "{list:?}"
    );
    let json = world.run(&["recipes", "list", "--json"]).await.json();
    assert_eq!(json["recipes"].as_array().map(Vec::len), Some(3));
    assert_eq!(json["recipes"][0]["recipe"]["name"], "tiny");
    assert_eq!(json["broken"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_recipes_is_said() {
    let world = World::without_agent();
    let list = world.run(&["recipes", "list"]).await;
    assert!(list.succeeds().contains("there are no recipes"), "{list:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn show_prints_a_recipe_that_can_be_kept_and_the_command() {
    let world = world();
    let show = world.run(&["recipes", "show", "t"]).await;
    let text = show.succeeds();
    assert!(text.contains("# published as: tiny\n"), "{text}");
    let command = "vllm serve /nonexistent/tiny --max-model-len 128 --served-model-name tiny t --uds SOCKET --shutdown-timeout 15";
    assert!(text.contains(command), "{text}");
    assert!(text.contains("VLLM_HOST_IP=127.0.0.1"), "{text}");
    // What was printed is a recipe.
    own(
        &world,
        "kept",
        &text
            .replace("name = \"tiny\"", "name = \"kept\"")
            .replace("[\"t\"]", "[]"),
    );
    let kept = world
        .run(&["recipes", "show", "kept", "--args", "--seed 'a b'"])
        .await;
    let text = kept.succeeds();
    assert!(
        text.contains("/kept\n") && text.contains("--max-model-len 128 --seed 'a b' --served-model-name"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_name_and_flags_that_are_ours_are_refused() {
    let world = world();
    world
        .run(&["recipes", "show", "tinny"])
        .await
        .fails(3, &["tinny", "did you mean tiny"]);
    world
        .run(&["recipes", "check", "zzz"])
        .await
        .fails(3, &["sserve recipes list"]);
    world
        .run(&["recipes", "show", "tiny", "--args=--port 80"])
        .await
        .fails(2, &["--port"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_says_what_would_fail_here() {
    let world = world();
    let text = format!(
        "source = {:?}\ngpus = 0\nmin_engine_version = \"0.18\"\n[engine]\nvenv = {:?}\n",
        world.path("weights"),
        world.path("venv")
    );
    std::fs::write(world.path("models.d/tiny.toml"), text).unwrap();
    let check = world.run(&["recipes", "check", "tiny"]).await;
    check.fails(1, &["tiny would not run on this node: 2 of 4"]);
    assert!(
        check
            .stdout
            .lines()
            .any(|line| line.starts_with("engine") && line.contains("FAIL")),
        "{check:?}"
    );
    assert!(
        check
            .stdout
            .lines()
            .any(|line| line.starts_with("weights") && line.contains("FAIL")),
        "{check:?}"
    );

    std::fs::create_dir_all(world.path("weights")).unwrap();
    std::fs::write(world.path("weights/config.json"), "{}").unwrap();
    std::fs::create_dir_all(world.path("venv/bin")).unwrap();
    let engine = |version: &str| {
        let program = world.path("venv/bin/vllm");
        std::fs::write(
            &program,
            format!("#!/bin/sh\ntest \"$1\" = --version && echo {version}\n"),
        )
        .unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    engine("0.17.1");
    let old = world.run(&["recipes", "check", "tiny", "--json"]).await;
    old.fails(1, &["1 of 5"]);
    assert_eq!(old.json()[2]["verdict"], "FAIL", "{old:?}");
    engine("0.32.0+cpu");
    let good = world.run(&["recipes", "check", "tiny"]).await;
    assert!(good.succeeds().contains("version 0.32.0+cpu"), "{good:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugins_check_needs_no_config() {
    let world = world();
    std::fs::write(world.path("config.toml"), "broken").unwrap();
    std::fs::write(world.path("plugstack.conf"), "").unwrap();
    let plugstack = world.path("plugstack.conf").display().to_string();
    let check = world
        .run(&[
            "plugin",
            "check",
            "--json",
            "--slurm",
            "24.11.5",
            "--plugstack",
            &plugstack,
        ])
        .await;
    check.fails(1, &["would not load the plugin"]);
    assert_eq!(check.json()["loads"], false, "{check:?}");
}
