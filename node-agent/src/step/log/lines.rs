//! Cuts what an engine prints into lines. A progress bar's carriage return ends one too.

/// A line longer than this is given out in pieces, cut after a blank where it has one, so that no secret is cut in two.
const LONGEST: usize = 64 * 1024;

/// What has come and is not a whole line yet.
#[derive(Default)]
pub struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Takes `bytes`, gives out the lines that they complete, each with its end.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|c| matches!(c, b'\n' | b'\r')) {
            self.partial.extend_from_slice(piece);
            if matches!(piece.last(), Some(b'\n' | b'\r')) {
                lines.push(std::mem::take(&mut self.partial));
            } else if self.partial.len() > LONGEST {
                let blank = self.partial.iter().rposition(u8::is_ascii_whitespace);
                let rest = self
                    .partial
                    .split_off(blank.map_or(self.partial.len(), |at| at + 1));
                lines.push(std::mem::replace(&mut self.partial, rest));
            }
        }
        lines
    }

    /// What is left when nothing more comes.
    pub fn rest(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.partial)).filter(|rest| !rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_arrive() {
        let mut lines = Lines::default();
        assert!(lines.push(b"load").is_empty());
        assert_eq!(
            lines.push(b"ing\n 50%\r100%\nre"),
            [&b"loading\n"[..], b" 50%\r", b"100%\n"]
        );
        assert_eq!(lines.rest().as_deref(), Some(&b"re"[..]));
        assert_eq!(lines.rest(), None);
    }

    #[test]
    fn an_endless_line_stays_bounded_and_loses_nothing() {
        let mut lines = Lines::default();
        let mut out = 0;
        for _ in 0..1000 {
            out += lines.push(&[b'x'; 1000]).iter().map(Vec::len).sum::<usize>();
            assert!(lines.partial.len() <= LONGEST + 1000);
        }
        let pieces = lines.push(&[&b"a "[..], &[b'y'; LONGEST]].concat());
        out += pieces.iter().map(Vec::len).sum::<usize>();
        assert!(pieces.iter().all(|piece| !piece.ends_with(b"y")));
        assert_eq!(
            out + lines.rest().map_or(0, |rest| rest.len()),
            1_000_002 + LONGEST
        );
    }
}
