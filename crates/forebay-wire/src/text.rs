//! Escaping of untrusted text for terminals.
//!
//! Messages of a peer, keys of records, names of classes and files can hold anything: terminal
//! control sequences, newlines that forge log lines, characters that change the text direction.
//! Such text goes through [`printable`] when it becomes part of a message, and messages go through
//! [`printable_lines`] when they are shown.

use std::borrow::Cow;

/// Escapes every character that could mislead a terminal or a reader: control characters, line
/// separators, and marks that change the text direction.
///
/// ```
/// use forebay_wire::text::printable;
///
/// assert_eq!(printable("n\x1b[2Ja\nme"), "n\\u{1b}[2Ja\\nme");
/// assert_eq!(printable("größe.jpg"), "größe.jpg");
/// ```
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, is_unsafe)
}

/// As [`printable`], but keeps line breaks.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe(c) && c != '\n')
}

/// As [`printable`], truncated to `most` characters.
#[must_use]
pub fn printable_start(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => printable(text),
        Some((end, _)) => Cow::Owned(format!("{}…", printable(&text[..end]))),
    }
}

/// Returns whether a character must be escaped.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

fn escape(text: &str, escapes: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&escapes) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match escapes(c) {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_sequences_are_escaped() {
        let hostile = "a\x1b]0;title\x07\x1b[2J\u{9b}31m\u{202e}gpj.\u{2028}b\r\n\u{7f}\0é";
        for safe in [
            printable(hostile),
            printable_lines(hostile),
            printable_start(hostile, 1000),
        ] {
            assert!(!safe.chars().any(|c| is_unsafe(c) && c != '\n'), "{safe:?}");
            assert!(safe.contains("gpj.") && safe.ends_with('é'), "{safe:?}");
        }
        assert!(!printable(hostile).contains('\n'));
        assert_eq!(printable_lines("a\nb\tc"), "a\nb\\tc");
        assert!(matches!(printable("größe — 名前"), Cow::Borrowed(_)));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(printable_start("ééé", 3), "ééé");
        assert_eq!(printable_start("éé\nxyz", 3), "éé\\n…");
    }
}
