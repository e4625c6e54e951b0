//! Joins, splits and validates paths of images: byte strings relative to a source.

/// No operating system accepts longer paths.
const PATH_MAX_BYTES: usize = 4096;

/// Returns the name with single slashes and without `.` and empty parts, or why it is refused.
pub(crate) fn normal(name: &[u8]) -> Result<Vec<u8>, &'static str> {
    if name.len() > PATH_MAX_BYTES {
        return Err("the name is longer than any path");
    }
    if name.first() == Some(&b'/') {
        return Err("the name is absolute");
    }
    if name.contains(&0) {
        return Err("the name has a NUL in it");
    }
    let mut normal = Vec::with_capacity(name.len());
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("the name leads out of its directory with \"..\""),
            part => {
                if !normal.is_empty() {
                    normal.push(b'/');
                }
                normal.extend_from_slice(part);
            }
        }
    }
    Ok(normal)
}

/// Returns whether a relative path has the form of listed ones, which stay below the directory that they are relative to.
pub fn is_below(path: &[u8]) -> bool {
    normal(path).is_ok_and(|normal| normal == path)
}

/// Returns the split that a usual directory name stands for.
pub(crate) fn split_name(dir: &[u8]) -> Option<&'static str> {
    match dir.to_ascii_lowercase().as_slice() {
        b"train" | b"training" => Some("train"),
        b"val" | b"valid" | b"validation" => Some("validation"),
        b"test" | b"testing" => Some("test"),
        _ => None,
    }
}

/// Returns whether files and directories can carry this split name on every operating system. No part of it between `-` may
/// look like the number of a shard: names such as `train-00000-of-00004` are parsed.
pub fn is_split_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_number = part.bytes().all(|byte| byte.is_ascii_digit());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        !part.is_empty() && part.chars().all(is_plain) && !(is_number && part.len() > 4)
    };
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.split('-').all(is_part)
        && name != "index"
        && name != "pack"
}

/// Joins a directory and a name; an empty directory is the top.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, b"/", name].concat()
    }
}

/// Returns the last part of a path.
pub fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Returns a name without its extension.
pub fn stem(name: &[u8]) -> &[u8] {
    match name.iter().rposition(|byte| *byte == b'.') {
        Some(dot) if dot > 0 => &name[..dot],
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalized_or_refused() {
        for (name, expected) in [
            ("a/b.jpg", "a/b.jpg"),
            ("./a//b.jpg", "a/b.jpg"),
            ("a/./b/", "a/b"),
            ("./", ""),
            ("a/..b", "a/..b"),
        ] {
            assert_eq!(normal(name.as_bytes()).unwrap(), expected.as_bytes());
        }
        for name in ["/a", "../a", "a/../b", "a/..", "a\0b", "\0"] {
            assert!(normal(name.as_bytes()).is_err(), "{name:?}");
        }
        assert!(normal(&[b'a'; 5000]).is_err());
        assert_eq!(base(b"a/b/c.d"), b"c.d");
        assert_eq!(stem(b"a.b.c"), b"a.b");
        assert_eq!((stem(b".hidden"), stem(b"x")), (&b".hidden"[..], &b"x"[..]));
    }
}
