//! Tables for people: columns as wide as what stands in them.

/// One line for each of `lines`, indented.
pub fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in lines {
        let cells = line
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let out = cells.collect::<Vec<_>>().join("  ");
        text += &format!("  {}\n", out.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_begin_below_each_other() {
        let line = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        let text = columns(&[line("name", "value"), line("≤", "10 s"), line("longer", "")]);
        assert_eq!(text, "  name    value\n  ≤       10 s\n  longer\n");
    }
}
