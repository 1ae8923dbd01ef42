//! Whatever a user writes is answered, never met with a panic: this code runs inside slurmstepd.

use std::path::Path;

use proptest::prelude::*;
use slurm_serve_recipe::{
    EngineCall, RawOptions, Recipe, ServeOptions, check_args, check_name, explain, meaningful_line, split,
    version_at_least,
};

/// Text made of what matters to the parsers, and of anything else.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[-=._a-z0-9 '\"\\\\\n\t+@]{0,12}",
        "\\PC{0,8}",
        any::<char>().prop_map(String::from),
        prop::sample::select(vec![
            "--",
            "--port",
            "--po",
            "-n2",
            "--a.b",
            "source = 'a/b'\n",
            "[models.x]\n",
            "[env]\n",
            "args = ",
            "gpus = ",
            "(A pid=1) ",
            "ERROR 12-01 00:00:00 [a.py:1] ",
            "Failed core proc(s): {'E': -",
            "version ",
            "\u{1b}[",
        ])
        .prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// As a person would quote it for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

proptest! {
    #[test]
    fn any_text_is_answered_in_one_line(text in text(), more in text(), status in any::<Option<i32>>()) {
        let answers = [
            check_name(&text).err().map(|e| e.to_string()),
            split(&text).err().map(|e| e.to_string()),
            split(&text).ok().and_then(|words| check_args(&words).err()).map(|e| e.to_string()),
            check_args(&[text.clone(), more.clone()]).err().map(|e| e.to_string()),
            Recipe::parse(&text, Path::new("x.toml")).err().map(|e| e.to_string()),
            ServeOptions::check(&RawOptions {
                model: "m".into(),
                args: text.clone(),
                name: more.clone(),
                wait: more.clone(),
                ..RawOptions::default()
            })
            .err()
            .map(|e| e.to_string()),
            meaningful_line(&text),
        ];
        for answer in answers.into_iter().flatten() {
            prop_assert!(!answer.is_empty() && !answer.chars().any(char::is_control), "{answer:?}");
        }
        let recipe = Recipe::parse_one("name = 'm'\nsource = 'a/b'\nmin_engine_version = '0.18'").expect("holds");
        let lines: Vec<String> = text.lines().chain(more.lines()).map(str::to_owned).collect();
        let found = explain(&lines, status, &recipe);
        prop_assert!(!found.text.chars().chain(found.hint.chars()).any(char::is_control), "{found:?}");
        version_at_least(&text, &more);
    }

    #[test]
    fn quoted_words_come_back(words in prop::collection::vec("\\PC{0,10}", 0..6)) {
        let line = words.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" ");
        prop_assert_eq!(split(&line).expect("splits"), words);
    }

    /// What passes the check never holds a flag of ours, as vLLM would normalise it, and ours stay last.
    #[test]
    fn what_passes_keeps_ours_last(words in prop::collection::vec("-{0,2}[a-z]{1,6}[-_]?[a-z]{0,8}(=[a-z0-9]{0,3})?", 0..6)) {
        if check_args(&words).is_err() {
            return Ok(());
        }
        for word in &words {
            let head = word.split(['=', '.']).next().unwrap_or_default().replace('_', "-");
            for ours in ["--host", "--port", "--uds", "--served-model-name", "--api-key", "--config", "--model"] {
                prop_assert!(!(head.len() > 2 && head.starts_with("--") && ours.starts_with(&head)), "{word}");
            }
        }
        let recipe = Recipe::parse_one("name = 'm'\nsource = 'a/b'").expect("holds");
        let names = ["m".to_owned()];
        let call = EngineCall {
            recipe: &recipe,
            extra_args: &words,
            served_names: &names,
            socket: Path::new("/s"),
            shutdown_timeout: std::time::Duration::from_secs(1),
        };
        let argv = call.argv();
        prop_assert_eq!(
            argv.get(argv.len() - 6..).unwrap_or_default().join(" "),
            "--served-model-name m --uds /s --shutdown-timeout 1"
        );
    }

    /// Whatever recipe is taken is written so that it reads back the same.
    #[test]
    fn recipes_survive_being_written(
        name in "[a-zA-Z0-9][a-zA-Z0-9._-]{0,20}",
        description in "[^\\p{C}\u{2028}\u{2029}]{1,30}",
        env in prop::collection::btree_map("[A-Z_]{1,6}", "[^\0]{0,12}", 0..4),
        gpus in 0u32..=64,
        gib in prop::option::of(0.001f64..4096.0),
        seconds in 1u64..86_400,
    ) {
        let env_table: toml::Table = env.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
        let mut table = toml::Table::new();
        table.insert("name".into(), name.into());
        table.insert("source".into(), "/w".into());
        table.insert("description".into(), description.into());
        table.insert("gpus".into(), i64::from(gpus).into());
        table.insert("ready_timeout".into(), format!("{seconds}s").into());
        table.extend(gib.map(|gib| ("gpu_memory_gib".to_owned(), gib.into())));
        table.insert("env".into(), env_table.into());
        let recipe = Recipe::parse_one(&table.to_string()).expect("holds");
        prop_assert_eq!(Recipe::parse_one(&recipe.to_toml()), Ok(recipe));
    }
}
