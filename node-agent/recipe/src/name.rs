//! Under which name a model is known.
//!
//! Bare names are promises of the site: an admin's recipe, run unchanged, by somebody who may publish it. Whatever else
//! runs is `user/name`, so that nobody can put a server of their own behind a name that others trust with their prompts.

use crate::error::{OptionError, nearest, shown};
use crate::options::ServeOptions;
use crate::recipe::Recipe;

/// The longest name of a recipe, an alias or `--serve-name`.
pub(crate) const MAX_NAME: usize = 64;

/// The name that clients put into `"model"`.
///
/// `admin_recipe`: the recipe came from the admin's folder (a user's own one is never bare, whatever it is called).
/// `may_publish_bare`: [`crate::Publish::allows`] said so of this user.
pub fn public_name(
    recipe: &Recipe,
    admin_recipe: bool,
    options: &ServeOptions,
    user: &str,
    may_publish_bare: bool,
) -> String {
    match &options.name {
        Some(name) => format!("{}/{name}", published_user(user)),
        None if admin_recipe && may_publish_bare && options.args.is_empty() => recipe.name.clone(),
        None => format!("{}/{}", published_user(user), recipe.name),
    }
}

/// A user's name as it stands before the slash of a public name: letters, digits, `.`, `_`, `-` and `@` as they are, a directory
/// service's backslash as `+` (`DOM\user` is `DOM+user`), every other byte as `=` and two hexadecimal digits. No two names become one,
/// and none holds a slash.
pub fn published_user(user: &str) -> String {
    let mut published = String::new();
    for byte in user.bytes() {
        match byte {
            b'.' | b'_' | b'-' | b'@' => published.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => published.push(char::from(byte)),
            b'\\' => published.push('+'),
            _ => published += &format!("={byte:02X}"),
        }
    }
    published
}

/// Whether this may be the name of a recipe, an alias or a `--serve-name`: up to 64 of letters, digits, `.`, `_`, `-`, the
/// first one a letter or digit.
///
/// # Errors
/// One line that says what is wrong with it.
pub fn check_name(name: &str) -> Result<(), OptionError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() {
        return Err(OptionError::new("a name can't be empty"));
    }
    if name.len() > MAX_NAME {
        return Err(OptionError::new(format!(
            "the name {} is longer than {MAX_NAME} characters",
            shown(name)
        )));
    }
    if let Some(c) = name.chars().find(|c| !allowed(*c)) {
        return Err(OptionError::new(format!(
            "the name {} holds {c:?}; letters, digits, '.', '_' and '-' make a name",
            shown(name)
        )));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(OptionError::new(format!(
            "the name {} must begin with a letter or digit",
            shown(name)
        )));
    }
    Ok(())
}

/// The name of a model that has none but its path or hub id: the last part, with a dash for what can't stand in a name.
pub(crate) fn name_of(source: &str) -> String {
    let last = source
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
            c
        } else {
            '-'
        }
    };
    let name: String = last.chars().map(plain).take(MAX_NAME).collect();
    match name.trim_start_matches(['.', '_', '-']) {
        "" => "model".into(),
        name => name.to_owned(),
    }
}

/// Is this a path or a hub id, not the name of a recipe?
pub(crate) fn is_source(asked: &str) -> bool {
    asked.contains('/')
}

/// Names that look most like `word`, best first, at most three.
pub(crate) fn nearest_names<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    nearest(word, names, 3).into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RawOptions;

    fn recipe() -> Recipe {
        Recipe::parse_one("name = 'gpt-oss'\nsource = 'o/m'\naliases = ['oss']").expect("holds")
    }

    fn options(args: &str, name: &str) -> ServeOptions {
        let raw = RawOptions {
            model: "oss".into(),
            args: args.into(),
            name: name.into(),
            ..RawOptions::default()
        };
        ServeOptions::check(&raw).expect("holds")
    }

    #[test]
    fn bare_is_the_admins_recipe_unchanged_by_somebody_who_may() {
        let recipe = recipe();
        for (admin, args, name, may, want) in [
            (true, "", "", true, "gpt-oss"),
            (true, "", "", false, "ada/gpt-oss"),
            (true, "--seed 1", "", true, "ada/gpt-oss"),
            (true, "", "mine", true, "ada/mine"),
            (true, "", "gpt-oss", true, "ada/gpt-oss"),
            (false, "", "", true, "ada/gpt-oss"),
            (false, "", "", false, "ada/gpt-oss"),
        ] {
            let got = public_name(&recipe, admin, &options(args, name), "ada", may);
            assert_eq!(
                got, want,
                "admin {admin}, args {args:?}, name {name:?}, may {may}"
            );
        }
    }

    #[test]
    fn a_directorys_user_has_one_published_form_that_is_nobody_elses() {
        for (user, want) in [
            ("ada", "ada"),
            ("DOM\\ada", "DOM+ada"),
            ("ada@dom.example", "ada@dom.example"),
            ("DOM+ada", "DOM=2Bada"),
            ("DOM=2Bada", "DOM=3D2Bada"),
            ("ada/x", "ada=2Fx"),
            ("Ada B", "Ada=20B"),
            ("ä", "=C3=A4"),
        ] {
            assert_eq!(published_user(user), want);
            let name = public_name(&recipe(), true, &options("", "mine"), user, true);
            assert_eq!(name, format!("{want}/mine"));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_two_users_are_published_as_one(a in ".{0,12}", b in "[a+=\\\\@/2BF]{0,8}", c in "[a+=\\\\@/2BF]{0,8}") {
            for (one, other) in [(&a, &b), (&b, &c)] {
                proptest::prop_assert_eq!(one == other, published_user(one) == published_user(other));
                proptest::prop_assert!(!published_user(one).contains('/'));
            }
        }
    }

    #[test]
    fn a_source_has_a_name_that_holds() {
        for (source, want) in [
            ("/data/models/Llama-3.1-8B", "Llama-3.1-8B"),
            ("/data/my model/", "my-model"),
            ("org/name", "name"),
            ("/data/_x", "x"),
            ("/", "model"),
            ("/ä/ö", "model"),
        ] {
            let name = name_of(source);
            assert_eq!(name, want, "{source}");
            assert_eq!(check_name(&name), Ok(()), "{source}");
        }
        assert_eq!(check_name(&name_of(&format!("/{}", "x".repeat(200)))), Ok(()));
    }

    #[test]
    fn names_are_plain() {
        for fine in ["a", "Qwen3.6-27B", "x_1", "0", &"a".repeat(64)] {
            assert_eq!(check_name(fine), Ok(()), "{fine}");
        }
        for bad in [
            "",
            ".",
            "..",
            "-a",
            "_a",
            "a/b",
            "a b",
            "ä",
            "a\n",
            "a\0",
            "a:b",
            "a@b",
            &"a".repeat(65),
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
