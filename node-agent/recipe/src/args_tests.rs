//! Spellings of arguments: what is split, refused and let through.

use crate::args::{MAX_ARGS, MAX_ARGS_BYTES, check_args, split};
use crate::flags::{Arity, OWNED, all_known, arity};

fn words(text: &str) -> Vec<String> {
    split(text).expect("splits")
}

fn refused(text: &str) -> String {
    match check_args(&words(text)) {
        Ok(()) => panic!("{text:?} was let through"),
        Err(e) => {
            let line = e.to_string();
            assert!(!line.contains('\n') && line.len() < 300, "{line}");
            line
        }
    }
}

#[track_caller]
fn fine(text: &str) {
    if let Err(e) = check_args(&words(text)) {
        panic!("{text:?} was refused: {e}");
    }
}

#[test]
fn splitting_knows_quotes_and_nothing_else_of_a_shell() {
    for (text, want) in [
        ("", vec![]),
        ("  a\t b ", vec!["a", "b"]),
        ("'a b' \"c d\" e\\ f", vec!["a b", "c d", "e f"]),
        ("a''b \"\" ''", vec!["ab", "", ""]),
        (r#""a\"b\\c\d$e""#, vec![r#"a"b\c\d$e"#]),
        (
            "$HOME `id` $(id) ;rm * ~ #x",
            vec!["$HOME", "`id`", "$(id)", ";rm", "*", "~", "#x"],
        ),
        (
            r#"--x '{"method":"mtp","n":1}'"#,
            vec!["--x", r#"{"method":"mtp","n":1}"#],
        ),
        ("a \\\n b", vec!["a", "b"]),
    ] {
        assert_eq!(words(text), want, "{text:?}");
    }
    for open in ["'a", "\"a", "a\\", "\"a\\"] {
        assert!(split(open).is_err(), "{open:?}");
    }
}

#[test]
fn flags_of_ours_are_refused_in_every_spelling() {
    for text in [
        "--host 0.0.0.0",
        "--host=0.0.0.0",
        "--HOST x",
        "--ho x",
        "--port 1",
        "--po 1",
        "--po=1",
        "--uds /x",
        "--ud /x",
        "--served-model-name x",
        "--served_model_name x",
        "--served_model-name=x",
        "--served-model x",
        "--s x",
        "--api-key x",
        "--api_key=x",
        "--api-k x",
        "--api_k.x y",
        "--api-key.x=y",
        "--root_path /",
        "--ssl-keyfile x",
        "--ssl_something_new x",
        "--ssl",
        "--enable-ssl-refresh",
        "--enable-ssl",
        "--no-enable-ssl-refresh",
        "--middleware x",
        "--mid=x",
        "--config f.yaml",
        "--conf f.yaml",
        "--conf=f.yaml",
        "--shutdown-timeout 1",
        "--shut 1",
        "--headless",
        "--headl",
        "--nnodes 2",
        "--nn=2",
        "-n 2",
        "-n2",
        "-n=2",
        "-n.x=2",
        "-r 1",
        "-r1",
        "--lora-modules a=/b",
        "--lora_m a=/b",
        "--model x",
        "--mode x",
        "--grpc",
        "--grpc-port 5",
        "--omni",
        "--hf-token x",
        "--hf_tok=x",
        "--help",
        "--help=all",
        "--h",
        "-h",
        "-hx",
        "-v",
        "--version",
        "-dpa 1.2.3.4",
        "-dpn=1",
        "-d 4",
        "--data-parallel-rank 1",
        "--max-model-len 5 --port 1",
        "--dtype float32 --po=1 --enforce-eager",
    ] {
        refused(text);
    }
    assert_eq!(refused("--host=x"), "--host is set by slurm-serve; leave it out");
    assert!(refused("--po 1").starts_with("\"--po\" is taken for --port, which is set by slurm-serve"));
}

#[test]
fn every_beginning_of_a_flag_of_ours_is_refused_unless_it_is_a_flag_itself() {
    for owned in OWNED {
        for end in 3..=owned.flag.len() {
            let flag = &owned.flag[..end];
            let known = all_known().any(|k| k == flag);
            assert_eq!(check_args(&[format!("{flag}=1")]).is_err(), !known, "{flag}");
        }
    }
}

#[test]
fn every_flag_of_the_engine_that_is_not_ours_passes() {
    for flag in all_known() {
        let args = match arity(flag) {
            Arity::None => vec![flag.to_owned()],
            _ => vec![flag.to_owned(), "1".to_owned()],
        };
        assert_eq!(check_args(&args), Ok(()), "{flag}");
        let underscored = format!("--{}", flag.trim_start_matches('-').replace('-', "_"));
        if flag.starts_with("--") {
            assert_eq!(check_args(&[format!("{underscored}=1")]), Ok(()), "{underscored}");
        }
    }
}

#[test]
fn what_people_write_passes() {
    fine("--max-model-len 131072 --gpu_memory_utilization=0.92 --enforce-eager");
    fine("-tp 2 -O3 -O 2 -O=1 -cc.level=3 -q awq -ac.backend=FLASH_ATTN");
    fine("--enable-auto-tool-choice --tool-call-parser openai --no-enable-prefix-caching");
    fine(r#"--speculative-config '{"method":"mtp","num_speculative_tokens":1}'"#);
    fine(
        "--speculative-config.method mtp --compilation-config.pass_config.x=true --limit-mm-per-prompt.image 2",
    );
    fine("--hf-overrides.rope_scaling.factor -1 --kv-cache-memory-bytes -5 --seed -1");
    fine("--cudagraph-capture-sizes 1 2 4 8 --collect-detailed-traces all");
    fine(
        "--headers-of-a-later-release x --models-later y --some-new-switch --config-format hf --model-impl auto",
    );
    fine("--model-loader-extra-config.x y --api-server-count 2 --root-paths x --portable");
    fine("--enable-lora --max-loras 2 --revision=main --chat-template '{{ a }} b'");
    fine("--max-model-len=");
    fine("");
}

#[test]
fn what_would_become_the_model_is_refused() {
    for text in [
        "other/model",
        "/path --enforce-eager",
        "@args",
        "-",
        "''",
        "--enforce-eager other/model",
        "--max-model-len 5 other/model",
        "--max-model-len=5 other/model",
        "--cudagraph-capture-sizes=1 2",
        "--newer a b",
        "--compilation-config.x a b",
        "--enable-prefix-caching True",
        "--",
        "--enforce-eager -- --port 1",
        "-1",
    ] {
        refused(text);
    }
    assert!(refused("other/model").contains("the model comes from the recipe"));
    assert!(refused("--enforce-eager x").contains("--enforce-eager takes no value"));
}

#[test]
fn a_flag_cannot_swallow_the_one_behind_it() {
    for text in [
        "--max-model-len",
        "--max-model-len --enforce-eager",
        "--compilation-config.x",
        "--compilation-config.x --enforce-eager",
        "-cc.x",
        "--cudagraph-capture-sizes",
    ] {
        assert!(refused(text).contains("needs a value behind it"), "{text}");
    }
}

#[test]
fn a_flag_and_its_value_in_one_argument_is_told_apart() {
    assert!(refused("'--max-model-len 5'").contains("make it two"));
    assert!(refused("'--port 5'").contains("make it two"));
}

#[test]
fn too_much_is_refused() {
    assert!(check_args(&vec!["-q=x".to_owned(); MAX_ARGS + 1]).is_err());
    assert!(check_args(&["x".repeat(MAX_ARGS_BYTES + 1)]).is_err());
    for c in ['\0', '\n', '\u{1b}', '\u{2028}'] {
        assert!(
            check_args(&["--dtype".into(), format!("a{c}b")]).is_err(),
            "{c:?}"
        );
    }
}
