//! Colours, or the lack of them.

/// Paints text for one stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
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

/// Text from a file name, a key or a record made safe for a terminal: control characters escaped.
pub(crate) fn printable(text: &str) -> String {
    if text.chars().any(char::is_control) {
        text.chars()
            .flat_map(|c| {
                let escaped: Vec<char> = if c.is_control() {
                    c.escape_default().collect()
                } else {
                    vec![c]
                };
                escaped
            })
            .collect()
    } else {
        text.to_owned()
    }
}

/// Bytes as text: valid UTF-8 as it is, anything else as `\xNN`, control characters escaped.
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
    fn escapes_what_a_terminal_would_obey() {
        assert_eq!(printable("a\x1b[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(printable("größe.jpg"), "größe.jpg");
        assert_eq!(printable_bytes(b"a\xff\n"), "a\\xff\\n");
    }
}
