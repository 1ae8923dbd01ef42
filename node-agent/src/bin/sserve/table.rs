//! Tables that fit the terminal: a column is as wide as what stands in it, and where that is too much the columns that may be
//! shortened give way, the widest first. Identifiers and numbers are never shortened.

use std::io::IsTerminal as _;

use crate::text::{plain, shorten, width};

/// Between two columns.
const GAP: usize = 2;

/// One column's heading and how it behaves.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    head: &'static str,
    right: bool,
    /// The least width it may be shortened to; `None`: never shortened.
    least: Option<usize>,
}

impl Column {
    /// Always shown whole.
    pub const fn whole(head: &'static str) -> Self {
        Self {
            head,
            right: false,
            least: None,
        }
    }

    /// A number: shown whole, aligned to the right.
    pub const fn number(head: &'static str) -> Self {
        Self {
            head,
            right: true,
            least: None,
        }
    }

    /// Text that may be shortened to `least` columns.
    pub const fn text(head: &'static str, least: usize) -> Self {
        Self {
            head,
            right: false,
            least: Some(least),
        }
    }
}

/// The table as lines, each at most `columns` wide if the columns that may not be shortened allow it. Cells are made plain.
/// Columns in which no row has anything are left out.
pub fn render(head: &[Column], rows: &[Vec<String>], columns: usize) -> Vec<String> {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| plain(cell)).collect())
        .collect();
    let used: Vec<usize> = (0..head.len())
        .filter(|i| rows.iter().any(|row| !row[*i].is_empty()))
        .collect();
    let mut widths: Vec<usize> = used
        .iter()
        .map(|i| {
            let cells = rows.iter().map(|row| width(&row[*i])).max().unwrap_or(0);
            cells.max(width(head[*i].head))
        })
        .collect();
    let gaps = GAP * used.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > columns {
        let may = (0..used.len()).filter(|n| head[used[*n]].least.is_some_and(|least| widths[*n] > least));
        // Of equally wide ones the rightmost gives way: what tells rows apart stands on the left.
        let Some(widest) = may.max_by_key(|n| (widths[*n], *n)) else {
            break;
        };
        widths[widest] -= 1;
    }
    let line = |cells: Vec<&str>| {
        let mut line = String::new();
        for (n, cell) in cells.iter().enumerate() {
            let cell = shorten(cell, widths[n]);
            let fill = " ".repeat(widths[n] - width(&cell));
            let cell = match head[used[n]].right {
                true => fill + &cell,
                false => cell + &fill,
            };
            line.push_str(&cell);
            line.push_str(&" ".repeat(GAP));
        }
        line.trim_end().to_owned()
    };
    let mut lines = vec![line(used.iter().map(|i| head[*i].head).collect())];
    lines.extend(
        rows.iter()
            .map(|row| line(used.iter().map(|i| row[*i].as_str()).collect())),
    );
    lines
}

/// How many columns there are to write into: `COLUMNS` if it says so, else the terminal's width, else 80.
pub fn terminal_columns() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let found = || match std::io::stdout().is_terminal() {
        true => terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)),
        false => None,
    };
    said.or_else(found).unwrap_or(80).max(20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [Column; 4] = [
        Column::text("MODEL", 8),
        Column::whole("STATE"),
        Column::number("JOB"),
        Column::text("NOTE", 6),
    ];

    fn row(cells: [&str; 4]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn columns_line_up_and_numbers_stand_right() {
        let rows = [
            row(["tiny", "ready", "7", "x"]),
            row(["alice/longer", "loading", "1234", ""]),
        ];
        assert_eq!(
            render(&HEAD, &rows, 80),
            [
                "MODEL         STATE     JOB  NOTE",
                "tiny          ready       7  x",
                "alice/longer  loading  1234",
            ]
        );
    }

    #[test]
    fn the_rightmost_long_column_gives_way_and_ids_never() {
        let note = "downloading shards from far away, and more of it";
        let rows = [row(["alice/a-very-long-model-name", "loading", "1234567", note])];
        for columns in [80, 60, 50, 40] {
            let lines = render(&HEAD, &rows, columns);
            assert!(lines.iter().all(|line| width(line) <= columns), "{lines:#?}");
            assert!(
                lines[1].contains("1234567") && lines[1].contains("loading") && lines[1].contains('…'),
                "{lines:#?}"
            );
        }
        // Narrower than what may not be shortened: whole ids rather than lines that fit.
        assert!(render(&HEAD, &rows, 20)[1].contains("1234567"));
    }

    #[test]
    fn an_empty_column_is_left_out_and_escapes_are_gone() {
        let lines = render(&HEAD, &[row(["\u{1b}[31mtiny", "ready", "7", ""])], 80);
        assert_eq!(lines, ["MODEL  STATE  JOB", "tiny   ready    7"]);
    }
}
