//! [`TextTable`]: aligned columns.

use std::fmt;

use crate::control_characters::to_single_line;

/// Rows with a heading. Columns are as wide as their widest cell, and two blanks apart.
#[derive(Debug)]
pub(crate) struct TextTable<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> TextTable<N> {
    pub(crate) fn new(columns: [&'static str; N]) -> Self {
        Self { rows: vec![columns.map(str::to_owned)] }
    }

    /// Adds a row. Control characters are replaced.
    pub(crate) fn add_row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| to_single_line(&cell)));
    }
}

impl<const N: usize> fmt::Display for TextTable<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        for row in &self.rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            writeln!(formatter, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        if self.rows.len() == 1 {
            writeln!(formatter, "(none)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::TextTable;

    #[test]
    fn columns_are_aligned_and_control_characters_replaced() {
        let mut table = TextTable::new(["LOCK", "HELD"]);
        assert_eq!(table.to_string(), "LOCK  HELD\n(none)\n");
        table.add_row(["order:7".to_owned(), "8.2s".to_owned()]);
        table.add_row(["a\u{1b}[2J".to_owned(), "1s".to_owned()]);
        assert_eq!(table.to_string(), "LOCK     HELD\norder:7  8.2s\na\u{fffd}[2J    1s\n");
    }
}
