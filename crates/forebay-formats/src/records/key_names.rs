//! Encodes keys of records as names of samples in a tar file.

use std::fmt::Write;

/// Returns a key as a sample name: the last part has no dots, and no part is empty, `.` or `..`. Bytes that a name cannot have,
/// and `%` itself, are written as `%NN`, so different keys have different names.
pub(super) fn sample_name(key: &[u8]) -> String {
    let mut name = String::with_capacity(key.len());
    let count = key.split(|byte| *byte == b'/').count();
    let mut after_empty = false;
    for (number, part) in key.split(|byte| *byte == b'/').enumerate() {
        let is_last = number + 1 == count;
        if number > 0 {
            name.push_str(match part.is_empty() || after_empty {
                true => "%2F",
                false => "/",
            });
        }
        after_empty = part.is_empty();
        let is_relative = part == b"." || part == b"..";
        // Readers of WebDataset treat `__name__` directories as metadata and skip them.
        let is_meta = number == 0
            && !is_last
            && part.len() >= 4
            && part.starts_with(b"__")
            && part.ends_with(b"__");
        let text = String::from_utf8_lossy(part);
        let is_text = matches!(text, std::borrow::Cow::Borrowed(_));
        if is_text {
            for (at, c) in text.char_indices() {
                let is_escaped = c == '%'
                    || c.is_control()
                    || c == '.' && (is_last || is_relative)
                    || at == 0 && is_meta;
                push(&mut name, c, is_escaped);
            }
        } else {
            for byte in part {
                let is_escaped = !byte.is_ascii_graphic() || matches!(byte, b'%' | b'.');
                match is_escaped {
                    true => escape(&mut name, *byte),
                    false => name.push(char::from(*byte)),
                }
            }
        }
    }
    name
}

fn push(name: &mut String, c: char, is_escaped: bool) {
    if is_escaped {
        let mut bytes = [0; 4];
        c.encode_utf8(&mut bytes)
            .bytes()
            .for_each(|byte| escape(name, byte));
    } else {
        name.push(c);
    }
}

fn escape(name: &mut String, byte: u8) {
    // Writing to a String cannot fail.
    let _ = write!(name, "%{byte:02X}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_characters_invalid_in_sample_names_are_escaped() {
        for (key, name) in [
            ("n01440764/n01440764_10026", "n01440764/n01440764_10026"),
            ("v1.5/a b/ü", "v1.5/a b/ü"),
            ("a/b.c", "a/b%2Ec"),
            ("/abs//x/", "%2Fabs%2F%2Fx%2F"),
            ("../a/./b", "%2E%2E/a/%2E/b"),
            ("100%", "100%25"),
            ("a\nb\0", "a%0Ab%00"),
            ("__x__/b", "%5F_x__/b"),
            ("__x__", "__x__"),
            ("", ""),
        ] {
            assert_eq!(sample_name(key.as_bytes()), name);
        }
        assert_eq!(sample_name(b"\xff.a/b"), "%FF%2Ea/b");
    }
}
