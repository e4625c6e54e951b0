//! Findings about single files of a source.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Outcome of a file with a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Action {
    /// The file is not meant to be an image; it is not in the dataset.
    Ignored,
    /// The file should be an image but cannot be packed; it is not in the dataset.
    Skipped,
    /// The file is skipped, and copied to the quarantine directory.
    Quarantined,
    /// The file is in the dataset, byte for byte, with a remark.
    Kept,
    /// The image is in the dataset, transcoded to JPEG because its encoding is not a standard one.
    Converted,
    /// The image is in the dataset, scaled down to the requested size.
    Resized,
}

impl Action {
    /// Whether a file that should have been packed is not in the dataset.
    pub fn leaves_out(self) -> bool {
        matches!(self, Self::Skipped | Self::Quarantined)
    }
}

/// Why a file cannot be read: the reason, and details.
pub type Refusal = (Reason, String);

/// Reason of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    /// The name starts with a dot.
    Hidden,
    /// A file or directory that an operating system or another program creates for its own use.
    System,
    /// A file outside of every class or split directory.
    Outside,
    /// A file in a split that the options do not select.
    NotSelected,
    /// A socket, a device or a pipe.
    SpecialFile,
    /// The content is not that of an image.
    NotAnImage,
    /// An image in a format that is not packed.
    OtherFormat,
    /// The system refused to read it.
    Unreadable,
    /// The store did not return the object, after all retries.
    NotFetched,
    /// The file was listed and then removed.
    Vanished,
    /// The size of the file changed after it was listed.
    SizeChanged,
    /// The file is empty.
    Empty,
    /// The image's header is damaged, cut short or beyond the limits.
    BadHeader,
    /// The file has more bytes than a record may have.
    TooLarge,
    /// A symbolic link to nothing.
    DanglingLink,
    /// A symbolic link to a directory that contains the link.
    LinkLoop,
    /// The format of the content differs from the format that the name claims.
    NameMismatch,
    /// The image is CMYK, not RGB.
    Cmyk,
    /// Bytes after the end of the image.
    TrailingBytes,
    /// The end of the image is missing: the file was truncated. If it is packed anyway, its pixels are complete.
    NoEnd,
    /// The header is valid, but the pixels cannot be decoded.
    BadData,
    /// A kind of image that the decoders do not support.
    Unsupported,
    /// The image is larger than the requested size.
    LargerThanAsked,
    /// A progressive JPEG should be transcoded to baseline, but its original bytes could not be restored from the result.
    Progressive,
    /// A link in an archive.
    Link,
    /// A member name in an archive that would lead outside of the directory it is extracted to.
    UnsafeName,
    /// Boxes that cannot be read, or that do not fit their image.
    BadAnnotation,
    /// The boxes were made for another size of the image; one factor scales both sides.
    ScaledBoxes,
    /// The file of labels has no line for this image.
    Unlisted,
    /// The file of labels has a line for an image that does not exist.
    NotThere,
    /// A file that may hold labels, but that no option names.
    UnusedLabels,
    /// A file of records that the index beside it does not name.
    NotIndexed,
    /// Bytes after the end of an archive that are not another archive.
    BehindEnd,
    /// Names in a list match names of files only after Unicode normalization.
    OtherForm,
    /// A file in an archive of samples that is not part of any sample.
    NoSample,
    /// A record or sample that cannot be read.
    BadRecord,
    /// The format cannot hold the key of the record; the record was written with another key.
    KeyChanged,
}

impl Reason {
    /// Returns whether an image that was left out of the listing for this reason counts as a bad image.
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

    /// Returns whether a user should look into the finding although no file was left out: the command exits with status 3.
    pub fn is_problem(self) -> bool {
        matches!(self, Self::NotThere | Self::NotIndexed | Self::BehindEnd)
    }

    /// Returns the reason in words.
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

/// A remark about one file of the source; one line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Outcome of the file.
    pub action: Action,
    /// Reason of the finding.
    pub reason: Reason,
    /// The path relative to the source. Bytes that are not UTF-8 are written `\xNN`, and `\` is doubled.
    pub path: String,
    /// Details, such as the system's message or the sizes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The number of files that the finding is about: 1, or all files of a directory that has a single finding.
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

    /// Sets the number of files below the path that the finding is about.
    pub(crate) fn of_files(self, files: u64) -> Self {
        Self {
            files: u32::try_from(files).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// Returns a finding if `names` names of a list match file names only after Unicode normalization; `None` if `names` is 0.
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

/// Number of names that an error shows.
const NAMES_SHOWN: usize = 12;

/// Joins names for an error: shows the first ones and counts the rest.
pub(crate) fn few(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_SHOWN).map(AsRef::as_ref).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Escapes a path for reports: control characters and bytes that are not UTF-8 become `\xNN`, `\` is doubled.
pub fn escape(path: &[u8]) -> String {
    forebay_shard::manifest::escape_key(path).to_string()
}
