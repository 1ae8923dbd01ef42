//! The engine's arguments as people give them: split like a shell would, and checked against the flags that are ours.
//!
//! vLLM reads its command line with Python's argparse in a shape of its own, and every shape must be seen through here:
//! underscores for dashes (`--api_key`), `=` (`--port=1`), beginnings of a flag (`--served-model`), keys of a JSON value
//! (`--api-key.x`), one-dash forms (`-n2`), `--no-…`. Nothing is lost by refusing the beginning of a flag of ours even where
//! argparse would call it ambiguous: that only ends the same way, twelve seconds later.

use crate::error::{OptionError, breaks_line, shown};
use crate::flags::{Arity, OWNED, OWNED_FAMILIES, Owned, arity};

/// The longest text behind `--serve-args`, in bytes.
pub(crate) const MAX_ARGS_BYTES: usize = 16 * 1024;

/// The most arguments.
pub(crate) const MAX_ARGS: usize = 512;

/// Splits a text into arguments by the quoting rules of a shell (`'…'`, `"…"`, `\`), and does nothing else that a shell
/// does: `$X`, `*`, `;` and `` ` `` stay what they are. No shell ever sees the result.
///
/// # Errors
/// A quote that is left open.
pub fn split(text: &str) -> Result<Vec<String>, OptionError> {
    // A `#` at the start of a word would begin a comment for shlex; here it is a character as any other.
    let mut words = Vec::new();
    let mut word = String::new();
    let mut begun = false;
    let mut chars = text.chars();
    let open =
        |quote: char| OptionError::new(format!("a {quote} is opened and never closed in {}", shown(text)));
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                begun = true;
                loop {
                    match chars.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err(open('\'')),
                    }
                }
            }
            '"' => {
                begun = true;
                loop {
                    match chars.next() {
                        Some('"') => break,
                        Some('\\') => match chars.next() {
                            Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                            Some('\n') => {}
                            Some(c) => word.extend(['\\', c]),
                            None => return Err(open('"')),
                        },
                        Some(c) => word.push(c),
                        None => return Err(open('"')),
                    }
                }
            }
            '\\' => match chars.next() {
                Some('\n') => {}
                Some(c) => {
                    begun = true;
                    word.push(c);
                }
                None => {
                    return Err(OptionError::new(format!(
                        "{} ends in a \\ with nothing behind it",
                        shown(text)
                    )));
                }
            },
            ' ' | '\t' | '\n' | '\r' => {
                if begun || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                    begun = false;
                }
            }
            c => {
                begun = true;
                word.push(c);
            }
        }
    }
    if begun {
        words.push(word);
    }
    Ok(words)
}

/// Whether these arguments may go to the engine: no flag of ours in any spelling, nothing that would be taken for the
/// model, no flag without its value. Used for `--serve-args` and for a recipe's `args` alike.
///
/// # Errors
/// One line that names the argument and says what to do.
pub fn check_args(args: &[String]) -> Result<(), OptionError> {
    if args.len() > MAX_ARGS {
        return Err(OptionError::new(format!(
            "{} arguments are more than {MAX_ARGS}",
            args.len()
        )));
    }
    if args.iter().map(String::len).sum::<usize>() > MAX_ARGS_BYTES {
        return Err(OptionError::new(format!(
            "the arguments are longer than {} KiB",
            MAX_ARGS_BYTES / 1024
        )));
    }
    let mut room = Room::default();
    for arg in args {
        if let Some(c) = arg.chars().find(|c| breaks_line(*c)) {
            return Err(OptionError::new(format!(
                "the argument {} holds the character {c:?}",
                shown(arg)
            )));
        }
        if is_flag(arg) {
            room.close()?;
            room = open_flag(arg)?;
        } else {
            room.take(arg)?;
        }
    }
    room.close()
}

/// The values that the flag before may still take.
#[derive(Default)]
struct Room {
    flag: String,
    values: usize,
    least: usize,
    most: usize,
}

impl Room {
    fn take(&mut self, value: &str) -> Result<(), OptionError> {
        self.values += 1;
        if self.values <= self.most {
            return Ok(());
        }
        Err(OptionError::new(if self.flag.is_empty() {
            format!(
                "{} is not a flag; the model comes from the recipe, and what follows begins with --",
                shown(value)
            )
        } else {
            format!(
                "{} belongs to no flag ({} takes {} before it)",
                shown(value),
                self.flag,
                match self.most {
                    0 => "no value",
                    _ => "the one value",
                }
            )
        }))
    }

    fn close(&self) -> Result<(), OptionError> {
        if self.values >= self.least {
            return Ok(());
        }
        Err(OptionError::new(format!("{} needs a value behind it", self.flag)))
    }
}

/// Whether argparse would take it for a flag: a dash in front, and neither a dash alone nor a negative number.
fn is_flag(arg: &str) -> bool {
    let Some(rest) = arg.strip_prefix('-') else {
        return false;
    };
    let number = rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') && rest.parse::<f64>().is_ok();
    !rest.is_empty() && !number
}

fn open_flag(arg: &str) -> Result<Room, OptionError> {
    if arg == "--" {
        return Err(OptionError::new(
            "-- would turn the flags behind it into names; leave it out",
        ));
    }
    let (head, value) = match arg.split_once('=') {
        Some((head, value)) => (head, Some(value)),
        None => (arg, None),
    };
    if let Some(c) = head.chars().find(|c| c.is_whitespace()) {
        return Err(OptionError::new(format!(
            "{} holds a flag and its value in one argument (there is a {c:?} in it); make it two",
            shown(arg)
        )));
    }
    let (name, key) = match head.split_once('.') {
        Some((name, key)) => (name, Some(key)),
        None => (head, None),
    };
    let name = match name.strip_prefix("--") {
        Some(rest) => format!("--{}", rest.replace('_', "-")),
        None => name.to_owned(),
    };
    if let Some(owned) = owner(&name) {
        return Err(refusal(&name, owned.flag, owned.why));
    }
    if let Some((family, why)) = OWNED_FAMILIES
        .iter()
        .find(|(family, _)| name.to_lowercase().starts_with(family))
    {
        return Err(refusal(&name, &format!("{family}*"), why));
    }
    let (least, most) = match (value, key, arity(&name)) {
        // `--flag=value` takes nothing more, whatever the flag.
        (Some(_), _, _) => (0, 0),
        // `--flag.key value`: vLLM takes the next argument unseen; it must not be one of ours.
        (None, Some(_), _) => (1, 1),
        (None, None, Arity::None) => (0, 0),
        (None, None, Arity::One) => (1, 1),
        (None, None, Arity::Many) => (1, usize::MAX),
        (None, None, Arity::Unknown) => (0, 1),
    };
    Ok(Room {
        flag: name,
        values: 0,
        least,
        most,
    })
}

/// The flag of ours that vLLM could read this as.
fn owner(name: &str) -> Option<&'static Owned> {
    // vLLM tells cases apart; a person who writes `--PORT` meant ours all the same.
    let lower = name.to_lowercase();
    if let Some(owned) = OWNED
        .iter()
        .find(|o| o.flag == lower || (!o.short.is_empty() && o.short == name))
    {
        return Some(owned);
    }
    if arity(name) != Arity::Unknown {
        return None;
    }
    if name.starts_with("--") {
        return OWNED.iter().find(|o| o.flag.starts_with(&lower));
    }
    OWNED.iter().filter(|o| !o.short.is_empty()).find(|o| {
        // `-n2` is `-n 2`; `-dp…` could be any of vLLM's longer short forms.
        let glued = o.short.len() == 2 && name.starts_with(o.short);
        glued || o.short.starts_with(name)
    })
}

fn refusal(name: &str, flag: &str, why: &str) -> OptionError {
    if name == flag {
        OptionError::new(format!("{flag} {why}; leave it out"))
    } else {
        OptionError::new(format!(
            "{} is taken for {flag}, which {why}; leave it out",
            shown(name)
        ))
    }
}
