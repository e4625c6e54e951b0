//! Keys as text: encodes arbitrary bytes for display and JSON.

use std::fmt;

/// Encodes a key for display and JSON: bytes that are not UTF-8 become `\xNN`, a backslash becomes
/// `\\`.
///
/// ```
/// use forebay_shard::manifest::{escape_key, unescape_key};
///
/// assert_eq!(escape_key(b"n01/a\xff.JPEG").to_string(), r"n01/a\xff.JPEG");
/// assert_eq!(unescape_key(r"n01/a\xff.JPEG"), Some(b"n01/a\xff.JPEG".to_vec()));
/// ```
pub fn escape_key(key: &[u8]) -> impl fmt::Display + '_ {
    struct Escaped<'a>(&'a [u8]);
    impl fmt::Display for Escaped<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for chunk in self.0.utf8_chunks() {
                for c in chunk.valid().chars() {
                    match c {
                        '\\' => f.write_str("\\\\")?,
                        c if c.is_ascii_control() => write!(f, "\\x{:02x}", c as u32)?,
                        c => fmt::Write::write_char(f, c)?,
                    }
                }
                for byte in chunk.invalid() {
                    write!(f, "\\x{byte:02x}")?;
                }
            }
            Ok(())
        }
    }
    Escaped(key)
}

/// Decodes a key that was encoded by [`escape_key`]; `None` for any other text.
pub fn unescape_key(text: &str) -> Option<Vec<u8>> {
    let mut key = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            key.push(byte);
        } else if let Some(after) = rest.strip_prefix(b"\\") {
            key.push(b'\\');
            rest = after;
        } else {
            let (digits, after) = rest.strip_prefix(b"x")?.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            key.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after;
        }
    }
    Some(key)
}
