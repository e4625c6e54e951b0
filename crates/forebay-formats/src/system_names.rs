//! Names that are not part of a dataset: hidden files, and files that operating systems and programs create.

use crate::finding::Reason;

/// Files and directories that operating systems, file managers and storage devices create in any directory.
const SYSTEM_NAMES: [&str; 13] = [
    "__MACOSX",
    ".DS_Store",
    "Thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "$RECYCLE.BIN",
    "System Volume Information",
    "lost+found",
    "@eaDir",
    "#recycle",
    "@Recycle",
    "#snapshot",
    ".ipynb_checkpoints",
];

/// Prefix of the files in which macOS stores attributes of other files.
const APPLE_DOUBLE: &[u8] = b"._";

/// Returns why a name is ignored; `None` for names that may be part of a dataset.
pub(crate) fn left_aside(name: &[u8]) -> Option<Reason> {
    let is_system = |known: &&str| name.eq_ignore_ascii_case(known.as_bytes());
    if name.starts_with(APPLE_DOUBLE) || SYSTEM_NAMES.iter().any(is_system) {
        return Some(Reason::System);
    }
    name.starts_with(b".").then_some(Reason::Hidden)
}

/// Returns the path up to its first ignored part after offset `from`, and the reason.
pub(crate) fn part_left_aside(path: &[u8], from: usize) -> Option<(&[u8], Reason)> {
    let mut end = from;
    for part in path.get(from..)?.split(|byte| *byte == b'/') {
        end += part.len();
        if let Some(reason) = left_aside(part) {
            return Some((path.get(..end)?, reason));
        }
        end += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_hidden_and_other_names_are_distinguished() {
        for name in [
            "__MACOSX",
            "thumbs.DB",
            "._1.jpg",
            ".ds_store",
            "LOST+FOUND",
        ] {
            assert_eq!(left_aside(name.as_bytes()), Some(Reason::System), "{name}");
        }
        assert_eq!(left_aside(b".git"), Some(Reason::Hidden));
        for name in ["__macosx2", "Thumbs", "a._b", "_", ""] {
            assert_eq!(left_aside(name.as_bytes()), None, "{name}");
        }
        let part = |path: &'static str, from| part_left_aside(path.as_bytes(), from);
        let expected = (&b"a/@eaDir"[..], Reason::System);
        assert_eq!(part("a/@eaDir/b/.x", 0), Some(expected));
        assert_eq!(part("a/b/.x", 1), Some((&b"a/b/.x"[..], Reason::Hidden)));
        assert_eq!(part(".a/b", 2), None);
        assert_eq!(part("a/b", 0), None);
    }
}
