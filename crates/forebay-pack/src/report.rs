//! Findings about single files, and the summary of a run.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Outcome of a file with a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Action {
    /// It is no image and was never meant to be one; it is not in the data set.
    Ignored,
    /// It should be an image but cannot be packed; it is not in the data set.
    Skipped,
    /// As skipped, and a copy of it is in the quarantine directory.
    Quarantined,
    /// It is in the data set, byte for byte, with a remark.
    Kept,
    /// Its picture is in the dataset, transcoded to JPEG because it was odd.
    Converted,
    /// Its picture is in the data set, made smaller as it was asked for.
    Resized,
}

impl Action {
    /// Whether a file that should have been packed is not in the data set.
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
    /// Outside of every class or split directory.
    Outside,
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
    /// Boxes that cannot be read.
    BadAnnotation,
    /// The file of labels has no line for it.
    Unlisted,
    /// The file of labels has a line for it, but it is not there.
    NotThere,
    /// A file that may hold labels, which no option named.
    UnusedLabels,
}

impl Reason {
    /// Whether an image that the census passed over for it counts as a bad image.
    pub(crate) fn is_bad_image(self) -> bool {
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

    /// The reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Hidden => "hidden",
            Self::Outside => "outside of the class directories",
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
            Self::BadAnnotation => "its boxes cannot be read",
            Self::Unlisted => "not in the file of labels",
            Self::NotThere => "in the file of labels, but not there",
            Self::UnusedLabels => "may hold labels, and is not used",
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
}

impl Finding {
    pub(crate) fn new(
        action: Action,
        reason: Reason,
        path: &[u8],
        detail: impl Into<String>,
    ) -> Self {
        Self {
            action,
            reason,
            path: escape(path),
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason.text())?;
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        Ok(())
    }
}

/// A path as reports write it: control characters and bytes that are not UTF-8 as `\xNN`, `\` doubled.
pub fn escape(path: &[u8]) -> String {
    forebay_shard::manifest::escape_key(path).to_string()
}

/// The seek points that were stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SeekPointCount {
    /// Images that have them.
    pub images: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl SeekPointCount {
    /// Counts an image, whose seek points take so many bytes if it has any.
    pub(crate) fn add(&mut self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.images += 1;
            self.bytes += bytes;
        }
    }
}

/// Outcome of progressive JPEGs that were to become baseline ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProgressiveCount {
    /// They are baseline now, and their originals can be restored.
    pub changed: u64,
    /// Left alone, because their originals could not be.
    pub left: u64,
}

impl ProgressiveCount {
    /// Counts an image; none is one that this is not about.
    pub(crate) fn add(&mut self, is_baseline_now: Option<bool>) {
        match is_baseline_now {
            Some(true) => self.changed += 1,
            Some(false) => self.left += 1,
            None => {}
        }
    }
}

impl std::iter::Sum for ProgressiveCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |a, b| Self {
            changed: a.changed.saturating_add(b.changed),
            left: a.left.saturating_add(b.left),
        })
    }
}

impl std::iter::Sum for SeekPointCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |a, b| Self {
            images: a.images.saturating_add(b.images),
            bytes: a.bytes.saturating_add(b.bytes),
        })
    }
}

/// Summary of one split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitSummary {
    /// The split's name.
    pub name: String,
    /// Records in it.
    pub records: u64,
    /// Its shards.
    pub shards: u64,
    /// Bytes of its shards.
    pub bytes: u64,
}

/// Progress of uploads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uploaded {
    /// Files that this run uploaded.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes handed in so far.
    pub submitted_bytes: u64,
    /// Why nothing moves, while that is so.
    pub trouble: Option<String>,
}

/// Summary of a pack.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Summary {
    /// Root of the dataset.
    pub root: PathBuf,
    /// The data set's fingerprint, as the manifest has it.
    pub fingerprint: String,
    /// The splits in the order of the manifest.
    pub splits: Vec<SplitSummary>,
    /// Image bytes in all records.
    pub image_bytes: u64,
    /// Seek points in all records.
    pub seek_points: SeekPointCount,
    /// Outcome of progressive JPEGs that were to become baseline ones.
    pub progressive: ProgressiveCount,
    /// Classes that labels refer to.
    pub classes: u64,
    /// Shards that an earlier, interrupted run had finished.
    pub resumed_shards: u64,
    /// Image bytes that this run read and wrote: the base of its MB/s.
    pub packed_bytes: u64,
    /// Files that this run read and wrote.
    pub packed_files: u64,
    /// The data set was there already, packed with the same arguments from the same source: nothing was done.
    pub already_complete: bool,
    /// How many files met which fate, in a fixed order.
    pub findings: Vec<((Action, Reason), u64)>,
    /// Uploads of this run, where the destination is written through a staging area.
    pub uploaded: Option<Uploaded>,
    /// The first files that were skipped or quarantined, up to [`Summary::EXAMPLES`].
    pub skipped_examples: Vec<Finding>,
    /// All findings, one JSON object a line; none if there was nothing to say.
    pub report: Option<PathBuf>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Time for the census and the plan.
    pub census_time: Duration,
    /// Time from the plan to the last shard.
    pub write_time: Duration,
}

impl Summary {
    /// How many skipped files a summary lists by name.
    pub const EXAMPLES: usize = 10;

    /// Records of all splits.
    pub fn records(&self) -> u64 {
        self.splits.iter().map(|s| s.records).sum()
    }

    /// Bytes of all shards.
    pub fn shard_bytes(&self) -> u64 {
        self.splits.iter().map(|s| s.bytes).sum()
    }

    /// Files that should have been packed and could not be, those in quarantine included.
    pub fn skipped(&self) -> u64 {
        self.findings
            .iter()
            .filter(|((action, _), _)| action.leaves_out())
            .map(|(_, n)| n)
            .sum()
    }
}
