//! Colors of the output, and escaping of text from others.

use std::borrow::Cow;

/// Paints text for one stream.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    on: bool,
}

macro_rules! colours {
    ($($name:ident = $code:literal),+ $(,)?) => {
        impl Paint {
            $(pub(crate) fn $name(self, text: impl AsRef<str>) -> String {
                self.wrap($code, text.as_ref())
            })+
        }
    };
}

colours! {
    bold = "1",
    dim = "2",
    red = "1;31",
    green = "32",
    yellow = "33",
    cyan = "36",
}

impl Paint {
    pub(crate) fn new(on: bool) -> Self {
        Self { on }
    }

    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Escapes text from a file name, a key, a record or a server for a terminal.
pub fn printable(text: &str) -> String {
    forebay_wire::text::printable(text).into_owned()
}

/// The codes that [`Paint`] uses.
const CODES: [&str; 7] = ["0", "1", "2", "1;31", "32", "33", "36"];

/// Makes a line safe for a terminal: of all escape sequences, only those of [`Paint`] stay, whatever text the line contains.
pub(crate) fn safe(line: &str) -> Cow<'_, str> {
    use forebay_wire::text::{is_unsafe, printable_lines};
    if !line.contains(|c| is_unsafe(c) && c != '\n') {
        return Cow::Borrowed(line);
    }
    let mut safe = String::with_capacity(line.len());
    let mut parts = line.split('\x1b');
    safe.push_str(&printable_lines(parts.next().unwrap_or_default()));
    for part in parts {
        let code = part.strip_prefix('[').and_then(|rest| rest.split_once('m'));
        match code.filter(|(code, _)| CODES.contains(code)) {
            Some((code, rest)) => {
                safe.push_str("\x1b[");
                safe.push_str(code);
                safe.push('m');
                safe.push_str(&printable_lines(rest));
            }
            None => {
                safe.push_str("\\u{1b}");
                safe.push_str(&printable_lines(part));
            }
        }
    }
    Cow::Owned(safe)
}

/// Converts bytes to text: valid UTF-8 as it is, anything else as `\xNN`, control characters escaped.
pub(crate) fn printable_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(&printable(chunk.valid()));
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_painted_when_off() {
        assert_eq!(Paint::new(false).red("x"), "x");
        assert_eq!(Paint::new(true).green("x"), "\x1b[32mx\x1b[0m");
    }

    #[test]
    fn lines_keep_their_colours_and_nothing_else() {
        let paint = Paint::new(true);
        let all = [
            paint.bold("a"),
            paint.dim("b"),
            paint.red("c"),
            paint.green("d"),
            paint.yellow("e"),
            paint.cyan("f"),
        ];
        for painted in all {
            assert_eq!(safe(&painted), painted);
        }
        let hostile = format!(
            "{} x\x1b]0;t\x07\x1b[2J\x1b[8mhidden\x1b\u{9b}1A\n",
            paint.red("error:")
        );
        assert_eq!(
            safe(&hostile),
            "\x1b[1;31merror:\x1b[0m x\\u{1b}]0;t\\u{7}\\u{1b}[2J\\u{1b}[8mhidden\\u{1b}\\u{9b}1A\n"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\x1b[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(printable("größe.jpg"), "größe.jpg");
        assert_eq!(printable_bytes(b"a\xff\n"), "a\\xff\\n");
    }
}
