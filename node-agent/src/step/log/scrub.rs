//! Takes secrets out of what is written: the job's key and the user's tokens, should an engine print them.

/// Below this a "secret" would only make holes in ordinary text.
const SHORTEST: usize = 8;

/// Written in place of a secret.
const REMOVED: &[u8] = b"[removed]";

/// Tokens of Hugging Face begin so, whoever they belong to.
const HUB_TOKEN: &[u8] = b"hf_";
const HUB_TOKEN_SHORTEST: usize = 20;

/// Knows the secrets. No `Debug` on purpose.
#[derive(Default)]
pub struct Scrub {
    secrets: Vec<Vec<u8>>,
}

impl Scrub {
    /// Knows `key`, and of `env` the values whose names say that they are secret.
    pub fn new<'a>(key: &str, env: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let told = env
            .into_iter()
            .filter(|(name, _)| is_secret_name(name))
            .map(|(_, value)| value);
        let mut secrets: Vec<Vec<u8>> = std::iter::once(key)
            .chain(told.map(String::as_str))
            .map(str::trim)
            .filter(|secret| secret.len() >= SHORTEST)
            .map(|secret| secret.as_bytes().to_vec())
            .collect();
        // The longest first: one may be part of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self { secrets }
    }

    /// `line` without them.
    pub fn scrub(&self, line: Vec<u8>) -> Vec<u8> {
        let mut line = line;
        for secret in &self.secrets {
            let mut from = 0;
            while let Some(at) = find(&line, secret, from) {
                line.splice(at..at + secret.len(), REMOVED.iter().copied());
                from = at + REMOVED.len();
            }
        }
        let mut from = 0;
        while let Some(at) = find(&line, HUB_TOKEN, from) {
            let tail = &line[at + HUB_TOKEN.len()..];
            let length = HUB_TOKEN.len() + tail.iter().take_while(|c| c.is_ascii_alphanumeric()).count();
            if length >= HUB_TOKEN_SHORTEST {
                line.splice(at..at + length, REMOVED.iter().copied());
                from = at + REMOVED.len();
            } else {
                from = at + HUB_TOKEN.len();
            }
        }
        line
    }

    /// As [`Scrub::scrub`], for our own text.
    pub fn text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.scrub(text.as_bytes().to_vec())).into_owned()
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL"]
        .iter()
        .any(|word| name.contains(word))
}

/// Where `what` begins in `line`, at `from` or later.
fn find(line: &[u8], what: &[u8], from: usize) -> Option<usize> {
    let first = *what.first()?;
    let mut from = from;
    while let Some(at) = line[from..].iter().position(|c| *c == first) {
        let at = from + at;
        if line[at..].starts_with(what) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_tokens_are_taken_out_and_the_rest_stays() {
        let token = ("HF_TOKEN".to_owned(), "secret-of-ada".to_owned());
        let path = ("HF_HOME".to_owned(), "/scratch/ada/hub".to_owned());
        let scrub = Scrub::new("sk-0123456789", [(&token.0, &token.1), (&path.0, &path.1)]);
        let line =
            "key=sk-0123456789 secret-of-ada /scratch/ada/hub hf_abcdefghijklmnopqrstuvwx hf_transfer é";
        assert_eq!(
            scrub.text(line),
            "key=[removed] [removed] /scratch/ada/hub [removed] hf_transfer é"
        );
    }

    #[test]
    fn short_words_make_no_holes() {
        let word = ("API_KEY".to_owned(), "no".to_owned());
        assert_eq!(Scrub::new("", [(&word.0, &word.1)]).text("no news"), "no news");
    }
}
