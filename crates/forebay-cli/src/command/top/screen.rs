//! A terminal that is written over again and again, and left as it was found.

use std::borrow::Cow;
use std::io::{self, Write};

use ::console::Term;

use crate::paint::safe;

/// Rows of a terminal that does not report its size.
const ROWS: u16 = 24;

/// The terminal's other screen, until dropped.
pub(super) struct Screen {
    terminal: Term,
}

impl Screen {
    pub(super) fn open() -> Screen {
        let screen = Screen {
            terminal: Term::stdout(),
        };
        // The other screen, without cursor.
        screen.write("\x1b[?1049h\x1b[?25l\x1b[2J");
        screen
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = self.terminal.size_checked();
        let (rows, columns) = size.unwrap_or((ROWS, super::COLUMNS as u16));
        (columns.max(1).into(), rows.max(1).into())
    }

    /// Shows the lines, as far as there is room.
    pub(super) fn draw(&mut self, mut lines: Vec<String>, rows: usize) {
        if lines.len() > rows {
            let more = lines.len() - rows + 1;
            lines.truncate(rows - 1);
            lines.push(format!("... {more} more lines"));
        }
        let lines: Vec<Cow<'_, str>> = lines.iter().map(|line| safe(line)).collect();
        // In one go, from the top, and never a cleared screen in between.
        self.write(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")));
    }

    fn write(&self, text: &str) {
        let mut out = io::stdout().lock();
        // A terminal that is gone takes its reader along.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.write("\x1b[?25h\x1b[?1049l");
    }
}
