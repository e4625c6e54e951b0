//! Text that others wrote, made safe for a terminal.
//!
//! Messages of a peer, keys of records, names of classes and files can hold anything: sequences that a terminal obeys, newlines that
//! forge lines of a log, characters that turn the direction of what follows. Such text goes through [`printable`] where it enters a
//! message, and messages go through [`printable_lines`] where they are shown.

use std::borrow::Cow;

/// Text with every character escaped that a terminal or a reader could take for something else: control characters, line
/// separators, marks that change the direction of text.
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

/// The same for a text of several lines.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe(c) && c != '\n')
}

/// As [`printable`], with what is beyond `most` characters cut off.
#[must_use]
pub fn printable_start(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => printable(text),
        Some((end, _)) => Cow::Owned(format!("{}…", printable(&text[..end]))),
    }
}

/// Whether a character is more than what it looks like.
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
    fn nothing_that_a_terminal_obeys_is_left() {
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
