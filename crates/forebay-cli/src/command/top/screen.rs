//! Full-screen output that is redrawn in place. The previous contents of the terminal are restored at the end.

use std::borrow::Cow;
use std::io::{self, Write};

use ::console::Term;

use crate::paint::safe;

/// Rows of a terminal that does not report its size.
const ROWS: u16 = 24;

/// The alternate screen of the terminal. Dropping it restores the main screen and the cursor.
pub(super) struct Screen {
    terminal: Term,
}

impl Screen {
    pub(super) fn open() -> Screen {
        let screen = Screen {
            terminal: Term::stdout(),
        };
        // Switch to the alternate screen, hide the cursor, clear.
        screen.write("\x1b[?1049h\x1b[?25l\x1b[2J");
        screen
    }

    /// Returns the size of the terminal as columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = self.terminal.size_checked();
        let (rows, columns) = size.unwrap_or((ROWS, super::COLUMNS as u16));
        (columns.max(1).into(), rows.max(1).into())
    }

    /// Draws the lines. If they need more than `rows`, the last row has the number of the hidden lines.
    pub(super) fn draw(&mut self, mut lines: Vec<String>, rows: usize) {
        if lines.len() > rows {
            let more = lines.len() - rows + 1;
            lines.truncate(rows - 1);
            lines.push(format!("... {more} more lines"));
        }
        let lines: Vec<Cow<'_, str>> = lines.iter().map(|line| safe(line)).collect();
        // One write that overwrites the old lines in place: clearing the screen first would flicker.
        self.write(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")));
    }

    fn write(&self, text: &str) {
        let mut out = io::stdout().lock();
        // Errors are ignored: a closed terminal has no reader.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.write("\x1b[?25h\x1b[?1049l");
    }
}
