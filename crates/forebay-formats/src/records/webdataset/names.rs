//! Names of members in a tar: the sample and the column that a name says.

use super::super::RecordInput;
use super::columns::{is_image_extension, last};
use crate::archive::tar::TarReader;
use crate::archive::{Archive, FileVersion, Stream, VolumeKind, read_head};
use crate::error::{Error, Result};
use crate::key_path::base;

/// The dot at which the name of a member is cut into the sample's name and the column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// As readers of WebDataset cut it.
    FirstDot,
    /// For samples whose names have dots.
    LastDot,
}

impl Cut {
    /// Decides by the first tar: names are cut at the last dot if the options name an image by one extension, and no member
    /// has just this one behind its first dot.
    pub(super) fn decide(archive: &Archive, input: &RecordInput) -> Result<Self> {
        let Some(chosen) = &input.features.image_feature else {
            return Ok(Self::FirstDot);
        };
        if !is_image_extension(chosen) {
            return Ok(Self::FirstDot);
        }
        let (version, file) = FileVersion::open(archive)?;
        let head = read_head(&file, &version.path)?;
        let Some(kind) = VolumeKind::of_tar(&head, file.len()) else {
            return Ok(Self::FirstDot);
        };
        let stream = Stream::new(file, kind);
        let mut stream = stream.map_err(|error| Error::io(&version.path, "read", error))?;
        let mut reader = TarReader::new(0, None);
        let mut cut = Self::FirstDot;
        // The listing of the samples reports damage.
        while let Ok(Some(member)) = reader.next(&mut stream) {
            let Some((_, extension)) = take_apart(&member.name, Self::FirstDot) else {
                continue;
            };
            let extension = String::from_utf8_lossy(extension).to_lowercase();
            if extension == *chosen {
                return Ok(Self::FirstDot);
            }
            if last(&extension) == chosen {
                cut = Self::LastDot;
            }
        }
        Ok(cut)
    }
}

/// Whether a member is in a directory such as `__notes__`, which readers of WebDataset pass over.
pub(super) fn is_meta(name: &[u8]) -> bool {
    let first = name.split(|byte| *byte == b'/').next().unwrap_or_default();
    first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__")
}

/// The sample's name and the extension of a member; nothing for files that are no members of samples, as readers of
/// WebDataset have it: without an extension, hidden, or in a directory such as `__notes__`.
pub(super) fn take_apart(name: &[u8], cut: Cut) -> Option<(&[u8], &[u8])> {
    let last = base(name);
    let is_dot = |byte: &u8| *byte == b'.';
    let dot = match cut {
        Cut::FirstDot => last.iter().position(is_dot)?,
        Cut::LastDot => last.iter().rposition(is_dot)?,
    };
    let at = name.len() - last.len() + dot;
    let (sample, extension) = (name.get(..at)?, name.get(at + 1..)?);
    (dot > 0 && !is_meta(name) && !extension.is_empty()).then_some((sample, extension))
}

/// Whether an extension is one that members of samples have.
pub(super) fn is_known(extension: &[u8]) -> bool {
    let extension = String::from_utf8_lossy(extension).to_lowercase();
    is_image_extension(&extension) || ["cls", "json", "npy", "txt"].contains(&extension.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_as_by_webdataset() {
        for (name, expected) in [
            ("a/b.seg.png", Some(("a/b", "seg.png"))),
            ("v1.0/b.jpg", Some(("v1.0/b", "jpg"))),
            ("README", None),
            (".hidden.jpg", None),
            ("a/.jpg", None),
            ("__x__/b.jpg", None),
            ("b.", None),
        ] {
            let found = take_apart(name.as_bytes(), Cut::FirstDot);
            let expected = expected.map(|(a, b)| (a.as_bytes(), b.as_bytes()));
            assert_eq!(found, expected, "{name}");
        }
        let found = take_apart(b"v1.0/a.b.jpg", Cut::LastDot);
        assert_eq!(found, Some((&b"v1.0/a.b"[..], &b"jpg"[..])));
        assert_eq!(take_apart(b".hidden", Cut::LastDot), None);
    }
}
