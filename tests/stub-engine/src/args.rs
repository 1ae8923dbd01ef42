//! `vllm serve`'s command line: the few flags that the stub obeys, and refusals in argparse's words.

use std::path::PathBuf;

use crate::flags::{Known, Takes, look_up};

/// What the command line asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The positional argument: a path or a hub id.
    pub model: String,
    /// The ids in `/v1/models`: `--served-model-name`, else the model itself.
    pub served: Vec<String>,
    /// `--uds`; when set, host and port are ignored.
    pub uds: Option<PathBuf>,
    /// `--host`; unset means every interface, as in vLLM.
    pub host: Option<String>,
    /// `--port`, default 8000.
    pub port: u16,
    /// `--shutdown-timeout` in seconds; 0 aborts what is in flight.
    pub shutdown_timeout: u64,
    /// `--max-model-len` in tokens; `131072` unless given.
    pub max_model_len: u64,
    /// `--max-num-seqs`: requests that run at once, the rest wait.
    pub max_num_seqs: usize,
    /// `--api-key`, else `VLLM_API_KEY`; none means open.
    pub api_keys: Vec<String>,
    /// `--enable-server-load-tracking`: without it `/load` is always 0.
    pub load_tracking: bool,
    /// `--disable-uvicorn-access-log` was not given.
    pub access_log: bool,
    /// `--disable-access-log-for-endpoints`.
    pub unlogged: Vec<String>,
}

/// Why the command line was refused: the lines for stderr. The exit code is 2, as argparse's.
#[derive(Debug)]
pub struct Refused(pub String);

impl Refused {
    fn argument(flag: &str, what: impl std::fmt::Display) -> Self {
        Self(format!("{USAGE}\nvllm serve: error: argument --{flag}: {what}"))
    }
}

const USAGE: &str = "usage: vllm serve [model_tag] [options]";

/// Reads the words after `serve`.
pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, Refused> {
    let mut words = words.into_iter().peekable();
    let mut seen: Vec<(&'static str, Vec<String>)> = Vec::new();
    let (mut model, mut extras) = (None, Vec::new());
    while let Some(word) = words.next() {
        if !word.starts_with('-') || word == "-" {
            if model.is_none() {
                model = Some(word);
            } else {
                extras.push(word);
            }
            continue;
        }
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        match (look_up(name), inline) {
            (Known::Unknown, _) => extras.push(word),
            (Known::Ambiguous(fits), _) => {
                let fits: Vec<_> = fits.iter().map(|f| format!("--{f}")).collect();
                let text = format!("ambiguous option: {name} could match {}", fits.join(", "));
                return Err(Refused(format!("{USAGE}\nvllm serve: error: {text}")));
            }
            (Known::Flag(flag, Takes::Nothing), Some(value)) => {
                return Err(Refused::argument(
                    flag,
                    format_args!("ignored explicit argument '{value}'"),
                ));
            }
            (Known::Flag(flag, Takes::Nothing), None) => {
                let value = if name.starts_with("--no") { "no" } else { "yes" };
                seen.push((flag, vec![value.to_owned()]));
            }
            (Known::Flag(flag, Takes::One | Takes::Many), Some(value)) => seen.push((flag, vec![value])),
            (Known::Flag(flag, takes), None) => {
                let limit = if takes == Takes::One { 1 } else { usize::MAX };
                let mut values = Vec::new();
                while values.len() < limit {
                    match words.next_if(|w| !w.starts_with('-') || w == "-" || w.parse::<f64>().is_ok()) {
                        Some(value) => values.push(value),
                        None => break,
                    }
                }
                if values.is_empty() {
                    let wanted = if takes == Takes::One {
                        "one argument"
                    } else {
                        "at least one argument"
                    };
                    return Err(Refused::argument(flag, format_args!("expected {wanted}")));
                }
                seen.push((flag, values));
            }
        }
    }
    if !extras.is_empty() {
        let text = format!("unrecognized arguments: {}", extras.join(" "));
        return Err(Refused(format!(
            "usage: vllm [-h] [-v] {{chat,complete,serve,bench}} ...\nvllm: error: {text}"
        )));
    }
    settle(model, &seen)
}

/// The last occurrence of a flag counts.
fn settle(model: Option<String>, seen: &[(&'static str, Vec<String>)]) -> Result<Options, Refused> {
    let list = |flag| {
        seen.iter()
            .rev()
            .find(|(f, _)| *f == flag)
            .map(|(_, v)| v.as_slice())
    };
    let one = |flag| list(flag).and_then(|v| v.last()).map(String::as_str);
    let on = |flag| one(flag) == Some("yes");
    let int = |flag, default: u64| match one(flag) {
        None => Ok(default),
        Some(text) => text
            .parse::<u64>()
            .map_err(|_| Refused::argument(flag, format_args!("invalid int value: '{text}'"))),
    };
    let port = int("port", 8000)?;
    let model = one("model")
        .map(str::to_owned)
        .or(model)
        .unwrap_or_else(|| "Qwen/Qwen3-0.6B".to_owned());
    let max_model_len = match one("max-model-len") {
        None | Some("auto" | "-1") => 131_072,
        Some(text) => human_size(text).ok_or_else(|| {
            Refused::argument(
                "max-model-len",
                format_args!("invalid human_readable_int value: '{text}'"),
            )
        })?,
    };
    let env_key = || std::env::var("VLLM_API_KEY").ok().filter(|k| !k.is_empty());
    Ok(Options {
        served: list("served-model-name").map_or_else(|| vec![model.clone()], <[String]>::to_vec),
        model,
        uds: one("uds").map(PathBuf::from),
        host: one("host").map(str::to_owned),
        port: u16::try_from(port)
            .map_err(|_| Refused::argument("port", format_args!("invalid int value: '{port}'")))?,
        shutdown_timeout: int("shutdown-timeout", 0)?,
        max_model_len,
        max_num_seqs: usize::try_from(int("max-num-seqs", 256)?.max(1)).unwrap_or(256),
        api_keys: list("api-key").map_or_else(|| env_key().into_iter().collect(), <[String]>::to_vec),
        load_tracking: on("enable-server-load-tracking"),
        access_log: !on("disable-uvicorn-access-log"),
        unlogged: one("disable-access-log-for-endpoints")
            .map(|t| t.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
    })
}

/// vLLM's sizes: `32k` is 32 000, `32K` is 32 768.
fn human_size(text: &str) -> Option<u64> {
    let factor = match text.chars().last()? {
        'k' => 1000,
        'K' => 1 << 10,
        'm' => 1_000_000,
        'M' => 1 << 20,
        'g' => 1_000_000_000,
        'G' => 1 << 30,
        _ => return text.parse().ok(),
    };
    let number: f64 = text[..text.len() - 1].parse().ok()?;
    (number >= 0.0).then_some((number * f64::from(factor)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, Refused> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn reads_a_whole_command_line() {
        let o = parsed(
            "/weights --served-model-name a b --uds /run/x --port=9 --shutdown_timeout 7 --max-model-len 2K \
             --enforce-eager --gpu-memory-utilization 0.1 -tp 2 --compilation-config.level 3",
        )
        .unwrap();
        assert_eq!(
            (o.model.as_str(), o.served.as_slice()),
            ("/weights", &["a".to_owned(), "b".into()][..])
        );
        assert_eq!((o.port, o.shutdown_timeout, o.max_model_len), (9, 7, 2048));
        assert_eq!(o.uds, Some("/run/x".into()));
    }

    #[test]
    fn the_last_of_a_repeated_flag_counts() {
        assert_eq!(parsed("m --port 1 --port 2").unwrap().port, 2);
    }

    #[test]
    fn refuses_in_argparse_words() {
        let says = |line, text: &str| {
            let Refused(lines) = parsed(line).unwrap_err();
            assert!(lines.contains(text), "{lines}");
        };
        says("m --foo bar", "error: unrecognized arguments: --foo bar");
        says("m --port", "argument --port: expected one argument");
        says("m --port x", "argument --port: invalid int value: 'x'");
        says("m --enforce-eager=1", "ignored explicit argument '1'");
        says("m --max-num 1", "ambiguous option: --max-num could match");
    }
}
