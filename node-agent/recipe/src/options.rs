//! What stood behind `--serve-…`: text that the user controls, wherever it is read.
//!
//! The plugin checks it at submit for a clear answer; the agent, as root, checks it again because anything may arrive.

use crate::args::{self, MAX_ARGS_BYTES};
use crate::error::{OptionError, breaks_line, nearest, shown};
use crate::file::check_source;
use crate::name::{MAX_NAME, check_name, is_source};

/// The longest `--serve-model`, in bytes.
const MAX_MODEL: usize = 512;

/// The options as they arrived. Empty means not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawOptions {
    /// `--serve-model`
    pub model: String,
    /// `--serve-args`
    pub args: String,
    /// `--serve-wait`
    pub wait: String,
    /// `--serve-publish`
    pub publish: String,
    /// `--serve-name`
    pub name: String,
    /// `--serve-env`
    pub env: String,
    /// `--serve-on-failure`
    pub on_failure: String,
}

/// The options, checked. Whether a recipe of that name exists is asked of [`crate::RecipeSet`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeOptions {
    /// Name or alias of a recipe.
    pub model: String,
    /// More arguments for the engine, split and checked.
    pub args: Vec<String>,
    /// What the job's first task waits for.
    pub wait: Wait,
    /// Whether it goes to the catalogs; `None`: as the recipe says.
    pub publish: Option<bool>,
    /// Published as `user/NAME`.
    pub name: Option<String>,
    /// Which variables the job gets.
    pub env: EnvMode,
    /// What becomes of the job when its server is lost for good.
    pub on_failure: OnFailure,
}

/// `--serve-wait`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wait {
    /// The job starts once the model is ready.
    #[default]
    Ready,
    /// The job starts at once.
    No,
}

/// `--serve-env`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EnvMode {
    /// `OPENAI_…` and `SERVE_…`
    #[default]
    OpenAi,
    /// `SERVE_…` alone.
    ServeOnly,
}

/// `--serve-on-failure`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The job goes on.
    #[default]
    Keep,
    /// The job is cancelled.
    Cancel,
}

/// Which option: an index that needs no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OptionKind {
    /// `--serve-model`
    Model,
    /// `--serve-args`
    Args,
    /// `--serve-wait`
    Wait,
    /// `--serve-publish`
    Publish,
    /// `--serve-name`
    Name,
    /// `--serve-env`
    Env,
    /// `--serve-on-failure`
    OnFailure,
}

/// An option as Slurm's commands show it in `--help`. All take an argument: those without one are broken in some releases.
#[derive(Debug, Clone, Copy)]
pub struct OptionText {
    /// Which one.
    pub kind: OptionKind,
    /// Without the dashes.
    pub name: &'static str,
    /// What its argument is called.
    pub arginfo: &'static str,
    /// One line.
    pub usage: &'static str,
}

/// Every option of the plugin, in the order of `--help`.
pub const OPTION_NAMES: [OptionText; 7] = [
    OptionText {
        kind: OptionKind::Model,
        name: "serve-model",
        arginfo: "NAME",
        usage: "serve this model inside the job; `sserve recipes list` names them",
    },
    OptionText {
        kind: OptionKind::Args,
        name: "serve-args",
        arginfo: "ARGS",
        usage: "more arguments for the engine, in one quoted text; the model is then published as user/NAME",
    },
    OptionText {
        kind: OptionKind::Wait,
        name: "serve-wait",
        arginfo: "ready|no",
        usage: "start the job once the model is ready (the default), or at once",
    },
    OptionText {
        kind: OptionKind::Publish,
        name: "serve-publish",
        arginfo: "yes|no",
        usage: "whether others find it (default: yes); no keeps it to this job",
    },
    OptionText {
        kind: OptionKind::Name,
        name: "serve-name",
        arginfo: "NAME",
        usage: "publish it as user/NAME",
    },
    OptionText {
        kind: OptionKind::Env,
        name: "serve-env",
        arginfo: "openai|serve-only",
        usage: "set OPENAI_* and SERVE_* in the job (the default), or SERVE_* alone",
    },
    OptionText {
        kind: OptionKind::OnFailure,
        name: "serve-on-failure",
        arginfo: "keep|cancel",
        usage: "what becomes of the job when its server is lost for good (default: keep)",
    },
];

// === impl RawOptions ===

impl RawOptions {
    /// The text behind one option.
    pub fn get(&self, kind: OptionKind) -> &str {
        match kind {
            OptionKind::Model => &self.model,
            OptionKind::Args => &self.args,
            OptionKind::Wait => &self.wait,
            OptionKind::Publish => &self.publish,
            OptionKind::Name => &self.name,
            OptionKind::Env => &self.env,
            OptionKind::OnFailure => &self.on_failure,
        }
    }

    /// Where one option's text goes.
    pub fn get_mut(&mut self, kind: OptionKind) -> &mut String {
        match kind {
            OptionKind::Model => &mut self.model,
            OptionKind::Args => &mut self.args,
            OptionKind::Wait => &mut self.wait,
            OptionKind::Publish => &mut self.publish,
            OptionKind::Name => &mut self.name,
            OptionKind::Env => &mut self.env,
            OptionKind::OnFailure => &mut self.on_failure,
        }
    }

    /// Whether no option was given at all.
    pub fn is_empty(&self) -> bool {
        OPTION_NAMES.iter().all(|option| self.get(option.kind).is_empty())
    }
}

// === impl ServeOptions ===

impl ServeOptions {
    /// Checks what arrived.
    ///
    /// # Errors
    /// The first fault, as one line that names the option.
    pub fn check(raw: &RawOptions) -> Result<ServeOptions, OptionError> {
        if raw.model.is_empty() {
            let given = OPTION_NAMES
                .iter()
                .find(|option| !raw.get(option.kind).is_empty());
            return Err(OptionError::new(match given {
                Some(option) => format!(
                    "--{} is given without --serve-model; name a model too",
                    option.name
                ),
                None => "--serve-model is empty; `sserve recipes list` shows the models".to_owned(),
            }));
        }
        bounded("serve-model", &raw.model, MAX_MODEL)?;
        match is_source(&raw.model) {
            true => check_source(&raw.model).map_err(|what| of("serve-model", &OptionError::new(what)))?,
            false => check_name(&raw.model).map_err(|e| of("serve-model", &e))?,
        }
        bounded("serve-args", &raw.args, MAX_ARGS_BYTES)?;
        let args = args::split(&raw.args).map_err(|e| of("serve-args", &e))?;
        args::check_args(&args).map_err(|e| of("serve-args", &e))?;
        let name = match raw.name.as_str() {
            "" => None,
            name => {
                bounded("serve-name", name, MAX_NAME)?;
                check_name(name).map_err(|e| of("serve-name", &e))?;
                Some(name.to_owned())
            }
        };
        Ok(ServeOptions {
            model: raw.model.clone(),
            args,
            wait: word(
                "serve-wait",
                &raw.wait,
                &[("ready", Wait::Ready), ("no", Wait::No)],
            )?
            .unwrap_or_default(),
            publish: word("serve-publish", &raw.publish, &[("yes", true), ("no", false)])?,
            name,
            env: word(
                "serve-env",
                &raw.env,
                &[("openai", EnvMode::OpenAi), ("serve-only", EnvMode::ServeOnly)],
            )?
            .unwrap_or_default(),
            on_failure: word(
                "serve-on-failure",
                &raw.on_failure,
                &[("keep", OnFailure::Keep), ("cancel", OnFailure::Cancel)],
            )?
            .unwrap_or_default(),
        })
    }
}

/// Refuses what is too long to be meant, and what would break a line.
fn bounded(option: &str, text: &str, most: usize) -> Result<(), OptionError> {
    if text.len() > most {
        return Err(OptionError::new(format!(
            "--{option} is {} bytes long; at most {most} are taken",
            text.len()
        )));
    }
    match text.chars().find(|c| breaks_line(*c)) {
        Some(c) => Err(OptionError::new(format!(
            "--{option} holds the character {c:?}, in {}",
            shown(text)
        ))),
        None => Ok(()),
    }
}

fn of(option: &str, error: &OptionError) -> OptionError {
    OptionError::new(format!("--{option}: {error}"))
}

/// One of a few words; `None` if not given.
fn word<T: Copy>(option: &str, text: &str, words: &[(&str, T)]) -> Result<Option<T>, OptionError> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Some((_, value)) = words.iter().find(|(w, _)| *w == text) {
        return Ok(Some(*value));
    }
    let all = words.iter().map(|(w, _)| *w).collect::<Vec<_>>().join(" or ");
    let meant = match nearest(text, words.iter().map(|(w, _)| *w), 1).first() {
        Some(near) => format!(" (did you mean {near}?)"),
        None => String::new(),
    };
    Err(OptionError::new(format!(
        "--{option}={} is neither {}{meant}",
        shown(text),
        all.replace(" or ", " nor ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(model: &str) -> RawOptions {
        RawOptions {
            model: model.into(),
            ..RawOptions::default()
        }
    }

    fn with(kind: OptionKind, text: &str) -> RawOptions {
        let mut raw = raw("tiny");
        *raw.get_mut(kind) = text.into();
        raw
    }

    #[test]
    fn what_is_not_given_has_its_default() {
        let options = ServeOptions::check(&raw("tiny")).expect("holds");
        assert_eq!(
            options,
            ServeOptions {
                model: "tiny".into(),
                args: vec![],
                wait: Wait::Ready,
                publish: None,
                name: None,
                env: EnvMode::OpenAi,
                on_failure: OnFailure::Keep,
            }
        );
    }

    #[test]
    fn what_is_given_is_taken() {
        let options = ServeOptions::check(&RawOptions {
            model: "Qwen3.6-27b".into(),
            args: "--max-model-len 5 --chat-template 'a b'".into(),
            wait: "no".into(),
            publish: "no".into(),
            name: "mine".into(),
            env: "serve-only".into(),
            on_failure: "cancel".into(),
        })
        .expect("holds");
        assert_eq!(options.args, ["--max-model-len", "5", "--chat-template", "a b"]);
        assert_eq!((options.wait, options.publish), (Wait::No, Some(false)));
        assert_eq!(
            (options.env, options.on_failure),
            (EnvMode::ServeOnly, OnFailure::Cancel)
        );
        assert_eq!(options.name.as_deref(), Some("mine"));
    }

    #[test]
    fn bad_text_is_one_short_line_that_names_the_option() {
        let long = "x".repeat(100_000);
        for option in OPTION_NAMES {
            for bad in [
                "a b",
                "\"",
                ";rm -rf /",
                "a\nb",
                "a\0b",
                "\u{1b}[2J",
                "../x",
                "ä",
                "--port 1",
                long.as_str(),
            ] {
                let line = match ServeOptions::check(&with(option.kind, bad)) {
                    Ok(_) => panic!("--{} took {bad:?}", option.name),
                    Err(e) => e.to_string(),
                };
                assert!(line.starts_with(&format!("--{}", option.name)), "{line}");
                assert!(line.len() < 300 && !line.chars().any(breaks_line), "{line:?}");
            }
        }
    }

    #[test]
    fn a_wrong_word_is_answered_with_the_right_ones() {
        let line = |kind, text| {
            ServeOptions::check(&with(kind, text))
                .expect_err("refused")
                .to_string()
        };
        assert_eq!(
            line(OptionKind::Wait, "redy"),
            "--serve-wait=\"redy\" is neither ready nor no (did you mean ready?)"
        );
        assert_eq!(
            line(OptionKind::Publish, "1"),
            "--serve-publish=\"1\" is neither yes nor no"
        );
        assert_eq!(
            line(OptionKind::Args, "--port=5"),
            "--serve-args: --port is set by slurm-serve; leave it out"
        );
    }

    #[test]
    fn options_without_a_model_say_so() {
        let lone = RawOptions {
            wait: "no".into(),
            ..RawOptions::default()
        };
        let line = ServeOptions::check(&lone).expect_err("refused").to_string();
        assert_eq!(
            line,
            "--serve-wait is given without --serve-model; name a model too"
        );
        assert!(ServeOptions::check(&RawOptions::default()).is_err());
        assert!(RawOptions::default().is_empty() && !lone.is_empty());
    }
}
