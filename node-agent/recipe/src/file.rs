//! From TOML to checked recipes, with the line of every fault.
//!
//! Two layers: the `Raw…` structs are what may stand in a file, each value with its place; [`check`] turns one into a
//! [`Recipe`] or says what is wrong with it. Nothing but this makes recipes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, SeqAccess, Visitor};
use toml::Spanned;

use crate::args;
use crate::catalog::RawCatalog;
use crate::env::{check_env_name, check_pass_env};
use crate::error::{RecipeError, breaks_line, nearest, shown};
use crate::name::check_name;
use crate::place::{MAX_LIST, Place};
use crate::recipe::{Engine, Publish, Recipe, Restart, Task};
use crate::version::is_version;

const READY_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
const RESTART_PAUSE: Duration = Duration::from_secs(5);
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(30);
const MAX_RESTARTS: u32 = 3;
const MOST_RESTARTS: i64 = 100;
const MAX_GPUS: i64 = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    models: BTreeMap<Spanned<String>, Spanned<RawRecipe>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRecipe {
    name: Option<Spanned<String>>,
    source: Option<Spanned<String>>,
    description: Option<Spanned<String>>,
    task: Option<Spanned<String>>,
    args: Option<Spanned<Words>>,
    env: Option<BTreeMap<Spanned<String>, Spanned<String>>>,
    pass_env: Option<Vec<Spanned<String>>>,
    gpus: Option<Spanned<i64>>,
    gpu_memory_gib: Option<Spanned<Number>>,
    min_engine_version: Option<Spanned<String>>,
    ready_timeout: Option<Spanned<String>>,
    drain_timeout: Option<Spanned<String>>,
    restart: Option<Spanned<String>>,
    max_restarts: Option<Spanned<i64>>,
    restart_pause: Option<Spanned<String>>,
    unresponsive_after: Option<Spanned<String>>,
    aliases: Option<Vec<Spanned<String>>>,
    publish: Option<Spanned<Words>>,
    engine: Option<RawEngine>,
    catalog: Option<RawCatalog>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEngine {
    command: Option<Spanned<Words>>,
    module: Option<Spanned<String>>,
    venv: Option<Spanned<String>>,
    container: Option<Spanned<toml::Value>>,
}

/// One text or a list of them.
enum Words {
    One(String),
    List(Vec<String>),
}

/// `94` and `94.5` alike.
pub(crate) struct Number(pub(crate) f64);

/// The recipes of a text.
pub(crate) fn parse(text: &str, origin: &Path) -> Result<Vec<Recipe>, RecipeError> {
    Ok(parse_with_lines(text, origin)?
        .into_iter()
        .map(|(_, recipe)| recipe)
        .collect())
}

/// The recipes of a text, each with the line where it begins.
pub(crate) fn parse_with_lines(text: &str, origin: &Path) -> Result<Vec<(usize, Recipe)>, RecipeError> {
    let place = Place { text, origin };
    let table: toml::Table = toml::from_str(text).map_err(|e| place.syntax(&e))?;
    if !table.contains_key("models") {
        let raw: RawRecipe = toml::from_str(text).map_err(|e| place.syntax(&e))?;
        let stem = origin
            .file_stem()
            .map(|s| s.to_string_lossy().into_owned())
            .unwrap_or_default();
        let recipe = check(raw, stem, 0, &place)?;
        return Ok(vec![(1, recipe)]);
    }
    if let Some(key) = table.keys().find(|key| *key != "models") {
        let line = place.line_of_key(key);
        let what = format!("{key} stands beside [models.NAME] tables; put it into one of them");
        return Err(RecipeError::new(origin, line, what));
    }
    let file: RawFile = toml::from_str(text).map_err(|e| place.syntax(&e))?;
    let mut all = Vec::new();
    for (name, raw) in file.models {
        let at = name.span().start;
        if let Some(second) = &raw.get_ref().name {
            let what = format!(
                "name stands in [models.{}], which names it already; leave one out",
                name.get_ref()
            );
            return Err(place.fault(second.span().start, what));
        }
        all.push((
            place.line(at),
            check(raw.into_inner(), name.into_inner(), at, &place)?,
        ));
    }
    Ok(all)
}

/// Turns what stood in a file into a recipe. `at`: where it begins, for what is missing.
fn check(raw: RawRecipe, default_name: String, at: usize, place: &Place<'_>) -> Result<Recipe, RecipeError> {
    let (name, name_at) = match raw.name {
        Some(name) => (name.get_ref().clone(), name.span().start),
        None => (default_name, at),
    };
    check_name(&name).map_err(|e| place.fault(name_at, e.to_string()))?;

    let Some(source) = raw.source else {
        return Err(place.fault(
            at,
            format!("{name} has no source; write a hub id (org/name) or an absolute path"),
        ));
    };
    if source.get_ref() != Recipe::ANY {
        check_source(source.get_ref())
            .map_err(|what| place.fault(source.span().start, format!("source = {what}")))?;
    }

    let description = match raw.description {
        Some(text) => place.check(text, |t| one_line("description", t, 200))?,
        None => String::new(),
    };
    let task = match raw.task {
        Some(word) => chosen("task", word.get_ref(), Task::ALL, Task::as_str)
            .map_err(|what| place.fault(word.span().start, what))?,
        None => Task::default(),
    };

    let args = match raw.args {
        Some(words) => {
            let start = words.span().start;
            let list = match words.into_inner() {
                Words::List(list) => list,
                Words::One(text) => {
                    args::split(&text).map_err(|e| place.fault(start, format!("args: {e}")))?
                }
            };
            args::check_args(&list).map_err(|e| place.fault(start, format!("args: {e}")))?;
            list
        }
        None => Vec::new(),
    };

    let mut env = BTreeMap::new();
    for (key, value) in raw.env.unwrap_or_default() {
        check_env_name(key.get_ref())
            .map_err(|what| place.fault(key.span().start, format!("env: {} {what}", shown(key.get_ref()))))?;
        if value.get_ref().contains('\0') {
            return Err(place.fault(value.span().start, format!("env: {} holds a NUL", key.get_ref())));
        }
        env.insert(key.into_inner(), value.into_inner());
    }
    let pass_env = place.list("pass_env", raw.pass_env, |pattern| {
        check_pass_env(pattern).map_err(|what| format!("pass_env: {} {what}", shown(pattern)))
    })?;
    let aliases = place.list("aliases", raw.aliases, |alias| {
        if alias == name {
            return Err(format!("aliases: {alias} is the recipe's own name; leave it out"));
        }
        check_name(alias).map_err(|e| format!("aliases: {e}"))
    })?;

    let gpus = count("gpus", raw.gpus, 1, MAX_GPUS, place)?;
    let restart = match raw.restart {
        Some(word) => chosen("restart", word.get_ref(), Restart::ALL, Restart::as_str)
            .map_err(|what| place.fault(word.span().start, what))?,
        None => Restart::default(),
    };
    let gpu_memory_gib = match raw.gpu_memory_gib {
        Some(gib) => {
            let value = gib.get_ref().0;
            if !(value > 0.0 && value <= 4096.0) {
                let what = format!("gpu_memory_gib = {value} is not between 0 and 4096 GiB");
                return Err(place.fault(gib.span().start, what));
            }
            Some(value)
        }
        None => None,
    };
    let min_engine_version = match raw.min_engine_version {
        Some(version) => Some(place.check(version, |v| match is_version(v) {
            true => Ok(()),
            false => Err(format!(
                "min_engine_version = {} is no release; write \"0.17\" or \"0.17.1\"",
                shown(v)
            )),
        })?),
        None => None,
    };

    Ok(Recipe {
        source: source.into_inner(),
        description,
        task,
        args,
        pass_env,
        gpus,
        gpu_memory_gib,
        min_engine_version,
        ready_timeout: place.duration(
            "ready_timeout",
            raw.ready_timeout,
            READY_TIMEOUT,
            Duration::from_secs(1),
        )?,
        drain_timeout: place.duration("drain_timeout", raw.drain_timeout, DRAIN_TIMEOUT, Duration::ZERO)?,
        restart,
        max_restarts: count(
            "max_restarts",
            raw.max_restarts,
            MAX_RESTARTS,
            MOST_RESTARTS,
            place,
        )?,
        restart_pause: place.duration("restart_pause", raw.restart_pause, RESTART_PAUSE, Duration::ZERO)?,
        unresponsive_after: place.duration(
            "unresponsive_after",
            raw.unresponsive_after,
            UNRESPONSIVE_AFTER,
            Duration::from_secs(2),
        )?,
        publish: publish(raw.publish, place)?,
        engine: engine(raw.engine, place)?,
        catalog: raw
            .catalog
            .map(|raw| raw.check(place))
            .transpose()?
            .unwrap_or_default(),
        aliases,
        env,
        name,
    })
}

/// A whole number from 0 to `most`.
fn count(
    key: &str,
    raw: Option<Spanned<i64>>,
    default: u32,
    most: i64,
    place: &Place<'_>,
) -> Result<u32, RecipeError> {
    let Some(raw) = raw else {
        return Ok(default);
    };
    match u32::try_from(*raw.get_ref()) {
        Ok(count) if *raw.get_ref() <= most => Ok(count),
        _ => {
            let what = format!("{key} = {} is not between 0 and {most}", raw.get_ref());
            Err(place.fault(raw.span().start, what))
        }
    }
}

/// A hub id, or an absolute path. The error begins with what was given.
pub(crate) fn check_source(source: &str) -> Result<(), String> {
    one_line("it", source, 4096).map_err(|what| format!("{}: {what}", shown(source)))?;
    if source.starts_with('/') {
        return Ok(());
    }
    if source.starts_with('~') {
        let what = "begins with ~, which only a shell understands; write the absolute path";
        return Err(format!("{} {what}", shown(source)));
    }
    // https://huggingface.co/docs/hub/repositories: two parts of letters, digits, '-', '_', '.', at most 96 characters each.
    let part = |p: &str| {
        (1..=96).contains(&p.len())
            && p.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && p.chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    match source.split_once('/') {
        Some((org, name)) if part(org) && part(name) => Ok(()),
        _ => Err(format!(
            "{} is neither a hub id (org/name) nor an absolute path; a relative path would depend on the folder \
             of each job",
            shown(source)
        )),
    }
}

/// The one of `all` that is written so.
fn chosen<T: Copy, const N: usize>(
    key: &str,
    word: &str,
    all: [T; N],
    written: fn(T) -> &'static str,
) -> Result<T, String> {
    if let Some(chosen) = all.into_iter().find(|one| written(*one) == word) {
        return Ok(chosen);
    }
    let all = all.map(written);
    let meant = match nearest(word, all.into_iter(), 1).first() {
        Some(near) => format!("; did you mean {near:?}?"),
        None => String::new(),
    };
    Err(format!(
        "{key} = {} is none of {}{meant}",
        shown(word),
        all.join(", ")
    ))
}

fn publish(raw: Option<Spanned<Words>>, place: &Place<'_>) -> Result<Publish, RecipeError> {
    let Some(raw) = raw else {
        return Ok(Publish::Everyone);
    };
    let start = raw.span().start;
    match raw.into_inner() {
        Words::One(word) if word == "everyone" => Ok(Publish::Everyone),
        Words::One(word) if word == "nobody" => Ok(Publish::Nobody),
        Words::One(word) => {
            let what = "is neither \"everyone\" nor \"nobody\"; groups are written as a list";
            Err(place.fault(start, format!("publish = {} {what}", shown(&word))))
        }
        Words::List(groups) if groups.is_empty() => Err(place.fault(
            start,
            "publish = [] names no group; write \"nobody\" if that is meant",
        )),
        Words::List(groups) if groups.len() > MAX_LIST => {
            Err(place.fault(start, format!("publish names more than {MAX_LIST} groups")))
        }
        Words::List(groups) => {
            for group in &groups {
                one_line("publish", group, 64).map_err(|what| place.fault(start, what))?;
            }
            Ok(Publish::Groups(groups))
        }
    }
}

fn engine(raw: Option<RawEngine>, place: &Place<'_>) -> Result<Engine, RecipeError> {
    let mut engine = Engine::default();
    let Some(raw) = raw else { return Ok(engine) };
    if let Some(container) = raw.container {
        let what = "engine.container is not supported yet; use engine.venv or engine.module";
        return Err(place.fault(container.span().start, what));
    }
    if let Some(command) = raw.command {
        let start = command.span().start;
        let words = match command.into_inner() {
            Words::List(list) => list,
            Words::One(text) => {
                args::split(&text).map_err(|e| place.fault(start, format!("engine.command: {e}")))?
            }
        };
        match words.first() {
            None => {
                return Err(place.fault(
                    start,
                    "engine.command is empty; the default is [\"vllm\", \"serve\"]",
                ));
            }
            Some(program) if program.contains('/') && !program.starts_with('/') => {
                let what = "is neither a plain name nor an absolute path";
                return Err(place.fault(start, format!("engine.command: {} {what}", shown(program))));
            }
            Some(_) => {}
        }
        if words.len() > MAX_LIST {
            return Err(place.fault(start, format!("engine.command has more than {MAX_LIST} parts")));
        }
        for word in &words {
            one_line("engine.command", word, 4096).map_err(|what| place.fault(start, what))?;
        }
        engine.command = words;
    }
    if let Some(module) = raw.module {
        engine.module = Some(place.check(module, |m| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
            let fine = m.len() <= 128
                && m.starts_with(|c: char| c.is_ascii_alphanumeric())
                && m.chars().all(allowed);
            if fine {
                Ok(())
            } else {
                Err(format!("engine.module = {} is no name of a module", shown(m)))
            }
        })?);
    }
    if let Some(venv) = raw.venv {
        let path = place.check(venv, |v| {
            one_line("engine.venv", v, 4096)?;
            if v.starts_with('/') {
                Ok(())
            } else {
                Err(format!(
                    "engine.venv = {} is no absolute path; write it out",
                    shown(v)
                ))
            }
        })?;
        engine.venv = Some(PathBuf::from(path));
    }
    Ok(engine)
}

/// Refuses an empty text, a longer one than is meant, and what would break a line.
pub(crate) fn one_line(key: &str, text: &str, most: usize) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("{key} is empty; leave it out, or write it"));
    }
    if text.len() > most {
        return Err(format!(
            "{key} is {} bytes long; at most {most} are taken",
            text.len()
        ));
    }
    match text.chars().find(|c| breaks_line(*c)) {
        Some(c) => Err(format!("{key} holds the character {c:?}, in {}", shown(text))),
        None => Ok(()),
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: de::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextOrList;
        impl<'de> Visitor<'de> for TextOrList {
            type Value = Words;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Words, E> {
                Ok(Words::One(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Words, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element::<String>()? {
                    list.push(item);
                }
                Ok(Words::List(list))
            }
        }
        from.deserialize_any(TextOrList)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: de::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct AnyNumber;
        impl Visitor<'_> for AnyNumber {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Number, E> {
                Ok(Number(number as f64))
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Number, E> {
                Ok(Number(number))
            }
        }
        from.deserialize_any(AnyNumber)
    }
}
