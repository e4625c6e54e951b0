//! Plain tables: columns are as wide as their contents, and numbers are aligned to the right.

/// Returns the number of columns on a terminal, without escape sequences.
pub(crate) use ::console::measure_text_width as width;

use crate::paint::Paint;

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table that is printed once all its rows are known.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these columns. If all headers are empty, they are not printed.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            columns: columns
                .iter()
                .map(|(name, align)| ((*name).to_owned(), *align))
                .collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, one cell for each column.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Returns the lines, indented by two spaces and without trailing spaces.
    pub fn lines(&self, paint: Paint) -> Vec<String> {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let cells = self.rows.iter().map(|row| width(&row[i]));
                cells.max().unwrap_or(0).max(width(&self.columns[i].0))
            })
            .collect();
        let layout = |cells: Vec<&str>| {
            let mut line = String::from(" ");
            for ((cell, (_, align)), width_of_column) in
                cells.iter().zip(&self.columns).zip(&widths)
            {
                let pad = " ".repeat(width_of_column - width(cell));
                line.push(' ');
                match align {
                    Align::Left => {
                        line.push_str(cell);
                        line.push_str(&pad);
                    }
                    Align::Right => {
                        line.push_str(&pad);
                        line.push_str(cell);
                    }
                }
                line.push(' ');
            }
            line.trim_end().to_owned()
        };
        let mut lines = Vec::with_capacity(self.rows.len() + 1);
        if self.columns.iter().any(|(name, _)| !name.is_empty()) {
            let header = layout(self.columns.iter().map(|(name, _)| name.as_str()).collect());
            lines.push(paint.dim(header));
        }
        for row in &self.rows {
            lines.push(layout(row.iter().map(String::as_str).collect()));
        }
        lines
    }
}

/// Wraps text into lines of at most `columns` characters, without breaking words.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        if !line.is_empty() && width(line) + 1 + width(word) > columns {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("split", Align::Left), ("records", Align::Right)]);
        table.row(["train", "1,000"]);
        table.row(["val", "7"]);
        assert_eq!(
            table.lines(Paint::new(false)),
            ["  split  records", "  train    1,000", "  val          7"]
        );
    }

    #[test]
    fn words_wrap_whole() {
        assert_eq!(wrap("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrap("a longword b", 4), ["a", "longword", "b"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn escape_sequences_have_no_width() {
        assert_eq!(width("\x1b[1;31merror\x1b[0m: x"), 8);
    }

    #[test]
    fn headers_can_be_left_out() {
        let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
        table.row(["a", "b"]);
        assert_eq!(table.lines(Paint::new(false)), ["  a  b"]);
    }
}
