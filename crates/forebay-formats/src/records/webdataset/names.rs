//! Splits the name of a tar member into the sample's name and the extension, and tells what an extension stands for.

use super::super::{PICKLED, RecordInput};
use crate::archive::tar::TarReader;
use crate::archive::{Archive, ArchiveKind, FileVersion, Stream, read_head};
use crate::error::{Error, Result};
use crate::key_path::base;
use forebay_image::Format;

/// The member with the label as a decimal number.
pub(super) const LABEL_EXTENSION: &str = "cls";
/// The member with all features that have no member of their own.
pub(super) const JSON_EXTENSION: &str = "json";
/// Another extension of pickled objects, which WebDataset uses.
const PYD: &str = "pyd";

/// The dot at which the name of a member is split into the sample's name and the column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// As readers of WebDataset split names.
    FirstDot,
    /// For samples with dots in their names.
    LastDot,
}

impl Cut {
    /// Decides by the first tar. Names are split at the last dot if the options name the image by a single extension, and no
    /// member has exactly this extension after its first dot.
    pub(super) fn decide(archive: &Archive, input: &RecordInput) -> Result<Self> {
        let Some(chosen) = &input.features.image_feature else {
            return Ok(Self::FirstDot);
        };
        if !is_image_extension(chosen) {
            return Ok(Self::FirstDot);
        }
        let (version, file) = FileVersion::open(archive)?;
        let head = read_head(&file, &version.path)?;
        let Some(kind) = ArchiveKind::of_tar(&head, file.len()) else {
            return Ok(Self::FirstDot);
        };
        let stream = Stream::new(file, kind);
        let mut stream = stream.map_err(|error| Error::io(&version.path, "read", error))?;
        let mut reader = TarReader::new(0, None);
        let mut cut = Self::FirstDot;
        // Damage is reported when the samples are listed.
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

/// Returns whether a member is in a directory such as `__notes__`, which readers of WebDataset skip.
pub(super) fn is_meta(name: &[u8]) -> bool {
    let first = name.split(|byte| *byte == b'/').next().unwrap_or_default();
    first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__")
}

/// Returns the sample's name and the extension of a member. Returns `None` for files that readers of WebDataset ignore: files
/// without an extension, hidden files, and files in a directory such as `__notes__`.
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

/// Returns whether a whole extension is that of an image.
pub(super) fn is_image_extension(extension: &str) -> bool {
    Format::from_extension(extension.as_bytes()).is_some()
}

/// Returns the part of an extension after its last dot.
pub(super) fn last(extension: &str) -> &str {
    extension.rsplit('.').next().unwrap_or_default()
}

pub(super) fn is_npy(extension: &str) -> bool {
    last(extension) == "npy"
}

/// Returns whether an extension is that of pickled objects, which execute code when Python loads them.
pub(super) fn is_refused(extension: &str) -> bool {
    let last = last(extension);
    let mut pickled = PICKLED.iter();
    last == PYD || pickled.any(|ending| ending.strip_prefix('.') == Some(last))
}

/// Returns whether an extension is common for members of samples.
pub(super) fn is_known(extension: &[u8]) -> bool {
    let extension = String::from_utf8_lossy(extension).to_lowercase();
    is_image_extension(&extension)
        || [LABEL_EXTENSION, JSON_EXTENSION, "npy", "txt"].contains(&extension.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_as_by_webdataset() {
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
