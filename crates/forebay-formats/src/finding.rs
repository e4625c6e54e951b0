//! Findings about single files of a source.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Outcome of a file with a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Action {
    /// It is no image and was never meant to be one; it is not in the dataset.
    Ignored,
    /// It should be an image but cannot be packed; it is not in the dataset.
    Skipped,
    /// As skipped, and a copy of it is in the quarantine directory.
    Quarantined,
    /// It is in the dataset, byte for byte, with a remark.
    Kept,
    /// Its picture is in the dataset, transcoded to JPEG because it was odd.
    Converted,
    /// Its picture is in the dataset, made smaller as it was asked for.
    Resized,
}

impl Action {
    /// Whether a file that should have been packed is not in the dataset.
    pub fn leaves_out(self) -> bool {
        matches!(self, Self::Skipped | Self::Quarantined)
    }
}

/// Why there is something to say about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    /// A name that starts with a dot.
    Hidden,
    /// A file or directory that a system or a program keeps for itself.
    System,
    /// Outside of every class or split directory.
    Outside,
    /// In a split that the options do not select.
    NotSelected,
    /// A socket, a device or a pipe.
    SpecialFile,
    /// The content is not that of an image.
    NotAnImage,
    /// An image in a format that is not packed.
    OtherFormat,
    /// The system refused to read it.
    Unreadable,
    /// The store that it is in did not give its bytes, however often it was asked.
    NotFetched,
    /// It was there in the census and is gone.
    Vanished,
    /// It had another size in the census.
    SizeChanged,
    /// It has no bytes.
    Empty,
    /// The image's header is damaged, cut short or beyond the limits.
    BadHeader,
    /// More bytes than a record may have.
    TooLarge,
    /// A symbolic link to nothing.
    DanglingLink,
    /// A symbolic link to a directory that it is in.
    LinkLoop,
    /// The content's format is another than the name says.
    NameMismatch,
    /// Four inks instead of RGB.
    Cmyk,
    /// Bytes after the end of the image.
    TrailingBytes,
    /// The end of the image is not there: the file was cut. If it is packed all the same, its pixels are all there.
    NoEnd,
    /// The header is in order, and the pixels cannot be decoded.
    BadData,
    /// An image of a kind that no decoder here reads.
    Unsupported,
    /// It is larger than the size that was asked for.
    LargerThanAsked,
    /// A progressive JPEG that was to become a baseline one, from which its bytes could not be restored.
    Progressive,
    /// A link in an archive.
    Link,
    /// A name in an archive that is no path below it.
    UnsafeName,
    /// Boxes that cannot be read, or that do not fit their image.
    BadAnnotation,
    /// Boxes of the image in another size: one factor scales both sides.
    ScaledBoxes,
    /// The file of labels has no line for it.
    Unlisted,
    /// The file of labels has a line for it, but it is not there.
    NotThere,
    /// A file that may hold labels, which no option named.
    UnusedLabels,
    /// A file of records that the index beside it does not name.
    NotIndexed,
    /// Bytes behind the end of an archive that are no further archive.
    BehindEnd,
    /// Names of a list are those of files in another Unicode form.
    OtherForm,
    /// A file in an archive of samples that belongs to none of them.
    NoSample,
    /// A record or sample that cannot be read.
    BadRecord,
    /// A record whose key the format cannot hold: it has another one.
    KeyChanged,
}

impl Reason {
    /// Whether an image that the census passed over for it counts as a bad image.
    pub fn is_bad_image(self) -> bool {
        matches!(
            self,
            Self::OtherFormat
                | Self::Unreadable
                | Self::DanglingLink
                | Self::LinkLoop
                | Self::Link
                | Self::UnsafeName
                | Self::TooLarge
        )
    }

    /// Whether a user should look at it although nothing was left out: the command exits with 3.
    pub fn is_problem(self) -> bool {
        matches!(self, Self::NotThere | Self::NotIndexed | Self::BehindEnd)
    }

    /// The reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Hidden => "hidden",
            Self::System => "of a system, not of the dataset",
            Self::Outside => "outside of the class directories",
            Self::NotSelected => "in a split that is not selected",
            Self::SpecialFile => "not a regular file",
            Self::NotAnImage => "not an image",
            Self::OtherFormat => "an image format that is not packed",
            Self::Unreadable => "cannot be read",
            Self::NotFetched => "could not be fetched",
            Self::Vanished => "vanished after the census",
            Self::SizeChanged => "changed its size after the census",
            Self::Empty => "empty",
            Self::BadHeader => "bad image header",
            Self::TooLarge => "too large",
            Self::DanglingLink => "a link to nothing",
            Self::LinkLoop => "a link to a directory that it is in",
            Self::NameMismatch => "the content is not what the name says",
            Self::Cmyk => "four inks, not RGB",
            Self::TrailingBytes => "bytes after the image",
            Self::NoEnd => "the end of the image is missing",
            Self::BadData => "image data that cannot be decoded",
            Self::Unsupported => "unsupported",
            Self::LargerThanAsked => "larger than asked for",
            Self::Progressive => "progressive, and cannot be restored from a baseline JPEG",
            Self::Link => "a link in an archive",
            Self::UnsafeName => "an unsafe name in an archive",
            Self::BadAnnotation => "its boxes cannot be used",
            Self::ScaledBoxes => "its boxes are of another size, and scaled",
            Self::Unlisted => "not in the file of labels",
            Self::NotThere => "listed, but not there",
            Self::UnusedLabels => "may hold labels, and is not used",
            Self::NotIndexed => "no index names it",
            Self::BehindEnd => "bytes behind the end of the archive are not read",
            Self::OtherForm => {
                "names in another Unicode form (NFC, NFD) than those of files or directories count as the same"
            }
            Self::NoSample => "part of no sample",
            Self::BadRecord => "a record that cannot be read",
            Self::KeyChanged => "a key that the format cannot hold",
        }
    }
}

/// Something to say about one file of the source; one line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Outcome of the file.
    pub action: Action,
    /// Why.
    pub reason: Reason,
    /// The path relative to the source. Bytes that are not UTF-8 are written `\xNN`, and `\` is doubled.
    pub path: String,
    /// Details, such as the system's message or the sizes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The files that it is about: 1, or all of a directory that is one finding.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub files: u32,
}

fn one() -> u32 {
    1
}

fn is_one(files: &u32) -> bool {
    *files == 1
}

impl Finding {
    /// Returns a finding about a path, which is escaped.
    pub fn new(action: Action, reason: Reason, path: &[u8], detail: impl Into<String>) -> Self {
        Self {
            action,
            reason,
            path: escape(path),
            detail: detail.into(),
            files: 1,
        }
    }

    /// Makes it the finding about this many files below its path.
    pub(crate) fn of_files(self, files: u64) -> Self {
        Self {
            files: u32::try_from(files).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// Returns the finding about a list with so many names in other Unicode forms than files have, if there are any.
    pub fn other_forms(list: &Path, names: u64) -> Option<Self> {
        let name = list.file_name().unwrap_or(list.as_os_str());
        let found = Self::new(Action::Kept, Reason::OtherForm, name.as_encoded_bytes(), "");
        (names > 0).then(|| found.of_files(names))
    }

    /// Returns the finding about an archive with bytes behind its end.
    pub(crate) fn behind_end(archive: &[u8], offset: u64) -> Self {
        let detail = format!("from offset {offset}: check the file, samples there are lost");
        Self::new(Action::Skipped, Reason::BehindEnd, archive, detail)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason.text())?;
        if self.files > 1 {
            write!(f, ", {} files", self.files)?;
        }
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        Ok(())
    }
}

/// Names that an error lists.
const NAMES_SHOWN: usize = 12;

/// Names for an error, which shows the first ones and counts the rest.
pub(crate) fn few(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_SHOWN).map(AsRef::as_ref).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A path as reports write it: control characters and bytes that are not UTF-8 as `\xNN`, `\` doubled.
pub fn escape(path: &[u8]) -> String {
    forebay_shard::manifest::escape_key(path).to_string()
}
