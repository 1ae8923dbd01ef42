//! The tokens of `access.token_file`: a line each, `TOKEN NAME ROLE[,ROLE]`, with `sha256:HEX` in place of a token that is not to stand there.

use std::path::Path;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use subtle::ConstantTimeEq;

use crate::private_file::read_private;
use crate::rpc::Roles;

const SETTING: &str = "access.token_file";

/// Shorter ones could be guessed.
const SHORTEST: usize = 20;

/// What of a token is kept.
pub(super) type Hash = [u8; SHA256_OUTPUT_LEN];

/// All of the file.
#[derive(Debug, Default)]
pub(super) struct Tokens(Vec<Token>);

/// One that lets in.
#[derive(Debug)]
pub(super) struct Token {
    hash: Hash,
    /// For the log.
    pub name: String,
    pub roles: Roles,
}

impl Tokens {
    /// Reads the file. Without one there is no token.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        if path.as_os_str().is_empty() {
            return Ok(Self::default());
        }
        Self::parse(&read_private(SETTING, path)?)
            .map_err(|why| format!("{SETTING} {}, {why}", path.display()))
    }

    /// The error does not show what may be a token.
    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens: Vec<Token> = Vec::new();
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let token = Token::parse(line).map_err(|why| format!("line {number}: {why}"))?;
            if let Some(same) = tokens.iter().find(|known| known.hash == token.hash) {
                return Err(format!("line {number}: the same token as {}'s", same.name));
            }
            tokens.push(token);
        }
        Ok(Self(tokens))
    }

    /// Whose this is. Looks at all of them, and takes as long for one that is nearly right as for any other.
    pub(super) fn find(&self, hash: &Hash) -> Option<&Token> {
        let same = |token: &&Token| bool::from(token.hash.ct_eq(hash));
        self.0.iter().fold(None, |found, token| match same(&token) {
            true => Some(token),
            false => found,
        })
    }
}

impl Token {
    fn parse(line: &str) -> Result<Self, String> {
        let mut words = line.split_ascii_whitespace();
        let (Some(token), Some(name), Some(roles), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("three words are meant, TOKEN NAME ROLE[,ROLE]".into());
        };
        let hash = match token.strip_prefix("sha256:") {
            Some(hex) => unhex(hex).ok_or("behind sha256: stand 64 hex digits")?,
            None if token.len() < SHORTEST => {
                return Err(format!(
                    "the token has less than {SHORTEST} characters; make one with: openssl rand -hex 32"
                ));
            }
            None => hash(token.as_bytes()),
        };
        Ok(Self {
            hash,
            name: name.into(),
            roles: parse_roles(roles)?,
        })
    }
}

fn parse_roles(text: &str) -> Result<Roles, String> {
    let named: Vec<&str> = text.split(',').collect();
    if let Some(other) = named
        .iter()
        .find(|role| !["read", "proxy", "admin"].contains(role))
    {
        return Err(format!(
            "there is no role {other:?}; there are read, proxy, admin"
        ));
    }
    Ok(Roles::graded(|role| named.contains(&role)))
}

/// What is kept of a token.
pub(super) fn hash(token: &[u8]) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(digest(&SHA256, token).as_ref());
    hash
}

fn unhex(text: &str) -> Option<Hash> {
    if !text.is_ascii() || text.len() != 2 * SHA256_OUTPUT_LEN {
        return None;
    }
    let mut hash = Hash::default();
    for (n, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef0123";
    /// Of `abc`, as FIPS 180-4 has it.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn tokens_are_found_in_clear_text_and_as_hashes_with_their_roles() {
        let text = format!("# ours\n\n{ONE} gateway proxy\nsha256:{ABC}  lists read,admin\n");
        let tokens = Tokens::parse(&text).unwrap();
        let one = tokens.find(&hash(ONE.as_bytes())).unwrap();
        assert_eq!((one.name.as_str(), one.roles), ("gateway", Roles::proxy()));
        assert_eq!(tokens.find(&hash(b"abc")).unwrap().roles, Roles::all());
        for wrong in ["", "abcd", "0123456789abcdef012", "0123456789abcdef01234", ABC] {
            assert!(tokens.find(&hash(wrong.as_bytes())).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_bad_line_is_named_and_no_token_shown() {
        for (line, why) in [
            (ONE.to_owned(), "three words"),
            (format!("{ONE} gateway"), "three words"),
            (format!("{ONE} gateway proxy more"), "three words"),
            (format!("{ONE} gateway boss"), "\"boss\""),
            (format!("{ONE} gateway proxy,"), "there is no role"),
            ("short1234 gateway proxy".into(), "less than 20"),
            ("sha256:12 gateway proxy".into(), "64 hex"),
            (format!("sha256:{} gateway proxy", "zé".repeat(22)), "64 hex"),
            (format!("{ONE} a read\n{ONE} b proxy"), "same token as a's"),
        ] {
            let error = Tokens::parse(&format!("# one\n{line}\n")).unwrap_err();
            assert!(error.contains("line ") && error.contains(why), "{line}: {error}");
            assert!(!error.contains(ONE) && !error.contains("short1234"), "{error}");
        }
    }

    #[test]
    fn a_file_without_tokens_lets_nobody_in() {
        let none = Tokens::parse("# all gone\n").unwrap();
        assert!(none.find(&hash(ONE.as_bytes())).is_none());
        assert!(!format!("{:?}", Tokens::parse(&format!("{ONE} a read")).unwrap()).contains(ONE));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_never_shown(text in "\\PC*", line in "[ -~\n#]{0,200}") {
            for text in [text, line] {
                if let Err(why) = Tokens::parse(&text) {
                    proptest::prop_assert!(why.lines().count() == 1 && why.starts_with("line "), "{why}");
                }
            }
        }
    }
}
