//! The commands of docs/install.md: blocks that begin with "```sh WHERE".

use anyhow::{Context, Result, bail};

/// One block.
#[derive(Debug, Clone)]
pub struct Block {
    /// Where it is to be run: `build`, `all`, `compute`, `login`, `user`, …
    pub place: String,
    /// The line of the page where it begins.
    pub line: usize,
    /// The commands, as they stand there.
    pub text: String,
}

/// All of them, in order.
pub fn blocks(page: &str) -> Result<Vec<Block>> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(page.lines()) {
        match (&mut open, line.strip_prefix("```")) {
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (Some(_), Some("")) => found.extend(open.take()),
            (Some(_), Some(_)) => bail!("line {number}: a block begins inside another"),
            (None, Some(head)) => {
                let place = head.strip_prefix("sh ").with_context(|| {
                    format!("line {number}: a block that does not say where it is to be run (```sh all)")
                })?;
                open = Some(Block {
                    place: place.trim().into(),
                    line: number,
                    text: String::new(),
                });
            }
            (None, None) => {}
        }
    }
    match open {
        Some(block) => bail!("line {}: a block without an end", block.line),
        None => Ok(found),
    }
}

#[test]
fn blocks_are_found_with_their_place() {
    let page = "text\n```sh all\na\n\nb\n```\nmore\n```sh user\nc\n```\n";
    let found = blocks(page).unwrap();
    let shown: Vec<_> = found
        .iter()
        .map(|b| (b.place.as_str(), b.line, b.text.as_str()))
        .collect();
    assert_eq!(shown, [("all", 2, "a\n\nb\n"), ("user", 8, "c\n")]);
    assert!(blocks("```\nx\n```\n").is_err());
    assert!(blocks("```sh all\nx\n").is_err());
}
