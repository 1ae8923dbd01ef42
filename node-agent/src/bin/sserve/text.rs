//! Text from elsewhere on a terminal. Names, progress lines, logs and error texts come from other users and from engines: none
//! of it may move the cursor, change colours, retitle the window or reorder what is read.

use unicode_width::UnicodeWidthChar;

/// `text` without anything that a terminal would obey: escape sequences go whole, other control characters and the invisible
/// Unicode ones (bidirectional overrides, zero-width characters) go one by one. A tab or line break becomes one blank.
pub fn plain(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => skip_escape(&mut rest),
            // The one-character form of ESC [.
            '\u{9b}' => skip_parameters(&mut rest),
            '\t' | '\n' | '\r' => kept.push(' '),
            _ if c.is_control() || invisible(c) => {}
            _ => kept.push(c),
        }
    }
    kept
}

/// Behind ESC: `[ … final` (colours, cursor), `] … BEL` or `ESC \` (titles, links, clipboard), or one more character.
fn skip_escape(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match rest.peek() {
        Some('[') => {
            rest.next();
            skip_parameters(rest);
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = rest.next() {
                if c == '\u{7}' || c == '\u{9c}' {
                    return;
                }
                if c == '\u{1b}' {
                    rest.next_if_eq(&'\\');
                    return;
                }
            }
        }
        Some(_) => {
            rest.next();
        }
        None => {}
    }
}

/// Parameters and the final character of a control sequence (ECMA-48, 5.4).
fn skip_parameters(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while rest.next_if(|c| ('\u{20}'..='\u{3f}').contains(c)).is_some() {}
    rest.next_if(|c| ('\u{40}'..='\u{7e}').contains(c));
}

fn invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// How many columns `text` takes.
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// `text` in at most `columns`, its end replaced by `…` where it does not fit.
pub fn shorten(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        let more = c.width().unwrap_or(0);
        if used + more + 1 > columns {
            break;
        }
        kept.push(c);
        used += more;
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// `text` as one word for a POSIX shell.
pub fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(plain("a\u{1b}[31;1mred\u{1b}[0m b"), "ared b");
        assert_eq!(
            plain("\u{1b}]0;title\u{7}x\u{1b}]8;;http://e\u{1b}\\link"),
            "xlink"
        );
        assert_eq!(plain("\u{9b}2Jx\u{7}y\rz\n"), "xy z ");
        assert_eq!(plain("user\u{202e}nimda"), "usernimda");
        assert_eq!(plain("50 %|█████| ünï"), "50 %|█████| ünï");
        assert_eq!(plain("cut\u{1b}"), "cut");
        assert_eq!(plain("cut\u{1b}]0;never ends"), "cut");
    }

    #[test]
    fn what_does_not_fit_is_marked() {
        assert_eq!(shorten("gpt-oss-120b", 12), "gpt-oss-120b");
        assert_eq!(shorten("gpt-oss-120b", 8), "gpt-oss…");
        assert_eq!(shorten("日本語", 5), "日本…");
        assert_eq!(shorten("abc", 1), "…");
        assert_eq!(shorten("abc", 0), "");
    }

    #[test]
    fn a_shell_reads_back_the_same_word() {
        assert_eq!(shell_word("a'b c"), r"'a'\''b c'");
    }

    proptest::proptest! {
        #[test]
        fn plain_text_has_no_control_characters_whatever_comes(text in "\\PC*|.*") {
            proptest::prop_assert!(!plain(&text).chars().any(|c| c.is_control()));
        }

        #[test]
        fn shortened_text_fits(text in ".{0,40}", columns in 0usize..50) {
            proptest::prop_assert!(width(&shorten(&plain(&text), columns)) <= columns);
        }
    }
}
