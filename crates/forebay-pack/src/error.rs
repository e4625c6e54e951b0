//! Errors of a pack or an export.

use crate::options::Part;
use forebay_formats::Finding;
use forebay_shard::some_of;
use std::io;
use std::path::{Path, PathBuf};

/// The result of the functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. [`hint`](Error::hint) gives advice, if there is any.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Options that contradict each other.
    #[error("{0}")]
    Options(String),
    /// An option that the source or the format rules out.
    #[error("{}: {why}", of_option(option, value))]
    Option {
        /// The field of the options.
        option: &'static str,
        /// The value, or the one of several values that is ruled out.
        value: Option<String>,
        /// The reason.
        why: String,
    },
    /// A format of another tool cannot hold fast images.
    #[error("fast images in {format}: no other tool can decode them; write indexed shards")]
    NoFastImages {
        /// The name of the format.
        format: &'static str,
    },
    /// Parts may not overwrite a dataset.
    #[error(
        "a part never replaces what other parts may be writing: overwrite while the plan is recorded, then write the parts"
    )]
    PartOverwrites,
    /// The source, its labels or its classes cannot be used.
    #[error(transparent)]
    Source(forebay_formats::Error),
    /// The destination cannot be used for this dataset: it holds something else, or lies inside the source.
    #[error("{}: {what}", path.display())]
    Destination {
        /// The destination.
        path: PathBuf,
        /// Description of the error.
        what: String,
    },
    /// The destination holds a complete dataset of other options or of another source.
    #[error("{}: {what}", path.display())]
    OtherDataset {
        /// The destination.
        path: PathBuf,
        /// The content of the destination.
        what: String,
    },
    /// The destination holds the unfinished dataset of a run with other arguments or of another source.
    #[error("{} holds an unfinished dataset that differs from this one: {}", path.display(), differences.join("; "))]
    DifferentPack {
        /// The destination.
        path: PathBuf,
        /// Differences, each as `name: then X, now Y`.
        differences: Vec<String>,
    },
    /// The parts of a pack differ in their arguments or in the content of the source.
    #[error("{}: {part} differs from the plan that the parts share: {}", path.display(), differences.join("; "))]
    DifferentPart {
        /// The destination.
        path: PathBuf,
        /// The part that differs, or another description.
        part: String,
        /// Differences, each as `name: then X, now Y`; X is the value in the plan, Y that of the part.
        differences: Vec<String>,
    },
    /// A pack cannot be finished: shards are missing or damaged.
    #[error("{}: {} of {total} shards are not there or not whole: {}", path.display(), missing.len(), some_of(missing))]
    Missing {
        /// The destination.
        path: PathBuf,
        /// Names of the missing or damaged shards.
        missing: Vec<String>,
        /// The parts that write them, if all parts were started with the same count.
        parts: Vec<Part>,
        /// Number of shards of the plan.
        total: u64,
    },
    /// Another pack is writing to the destination, or has not finished.
    #[error("{} is claimed by an unfinished dataset{} ({by})", path.display(), of_what(differences))]
    Claimed {
        /// The destination.
        path: PathBuf,
        /// Process and machine that claimed it.
        by: String,
        /// Differences from that pack; empty if it is the same pack with another staging area.
        differences: Vec<String>,
    },
    /// A file was removed or has another size than in the census, so the plan does not match the source any more.
    #[error("the source changed while it was packed: {0}")]
    SourceChanged(Box<Finding>),
    /// A store did not return the bytes of an image, despite retries. The image is not left out as damaged images are,
    /// because the dataset would then depend on the state of the store.
    #[error("the source failed while it was packed: {0}")]
    SourceFailed(Box<Finding>),
    /// The destination has too little free space.
    #[error("{} has {free_bytes} bytes free, and the shards need about {needed_bytes}", path.display())]
    NoSpace {
        /// The destination.
        path: PathBuf,
        /// Free space in bytes.
        free_bytes: u64,
        /// Space in bytes that the shards need.
        needed_bytes: u64,
    },
    /// The limit on open files is too low for even one worker.
    #[error(
        "the limit of {limit} open files is too low: at least {needed} are needed (ulimit -n {needed})"
    )]
    OpenFiles {
        /// The limit of open files of this process.
        limit: u64,
        /// Number of open files that a pack with one worker needs.
        needed: u64,
    },
    /// A bad image, with [`OnBad::Fail`](crate::OnBad::Fail).
    #[error("{0}")]
    BadImage(Box<Finding>),
    /// More images or records are bad than [`MaxBad`](crate::MaxBad) allows.
    #[error("more than {limit} bad samples, the last one is {last}")]
    TooManyBad {
        /// The maximum number of bad samples.
        limit: u64,
        /// The sample that exceeded the limit.
        last: String,
    },
    /// A record cannot be exported or converted: not an Example, no image, or a key that is not a safe path.
    #[error("{}: {}{what}", shard.display(), record.map_or(String::new(), |record| format!("record {record}: ")))]
    Export {
        /// The shard.
        shard: PathBuf,
        /// Number of the record in the shard; `None` if the error concerns the whole shard.
        record: Option<u64>,
        /// Description of the error.
        what: String,
    },
    /// A sample that does not match the schema of its writer.
    #[error(transparent)]
    Sample(Box<SampleError>),
    /// A resumed writer got other samples than the writer before.
    #[error("{}: the samples are not those of the earlier run: {what}", path.display())]
    DifferentSamples {
        /// The destination.
        path: PathBuf,
        /// Description of the difference.
        what: String,
    },
    /// The destination holds the unfinished dataset of an earlier writer.
    #[error("{} holds an unfinished dataset", path.display())]
    Unfinished {
        /// The destination.
        path: PathBuf,
    },
    /// The destination holds a dataset.
    #[error("{} holds a dataset", path.display())]
    Occupied {
        /// The destination.
        path: PathBuf,
    },
    /// The writer is already closed.
    #[error("the writer of {} is closed", path.display())]
    Closed {
        /// The destination.
        path: PathBuf,
    },
    /// The run was cancelled.
    #[error("interrupted {}", how_far(*finished, *total))]
    Interrupted {
        /// Number of finished shards, including those of earlier runs.
        finished: u64,
        /// Number of shards of the plan; 0 if there was no plan yet.
        total: u64,
    },
    /// The system refused an operation on a path.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// The path of the operation.
        path: PathBuf,
        /// The operation.
        op: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// An error of the destination's store or of its files.
    #[error(transparent)]
    Store(#[from] forebay_store::Error),
    /// An error of a shard, an index or a manifest.
    #[error(transparent)]
    Shard(#[from] forebay_shard::Error),
}

/// A sample that does not match the schema of its writer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "sample {number} of split {split:?}, key {key:?}{}: {problem}",
    of_column(column)
)]
#[non_exhaustive]
pub struct SampleError {
    /// The split.
    pub split: String,
    /// Number of the sample in its split, from 0.
    pub number: u64,
    /// Its key; bytes that are not UTF-8 are written `\xNN`, and `\` is doubled.
    pub key: String,
    /// The column; `None` if the error concerns the whole sample.
    pub column: Option<String>,
    /// Description of the error, with the expected and the found value.
    pub problem: String,
}

fn of_option(option: &str, value: &Option<String>) -> String {
    match value {
        Some(value) => format!("{option} {value:?}"),
        None => option.to_owned(),
    }
}

fn of_column(column: &Option<String>) -> String {
    let named = column.as_ref().map(|name| format!(", column {name:?}"));
    named.unwrap_or_default()
}

impl Error {
    pub(crate) fn io(
        path: impl AsRef<Path>,
        op: &'static str,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io {
            path: path.as_ref().to_path_buf(),
            op,
            source: source.into(),
        }
    }

    pub(crate) fn source(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::Source(forebay_formats::Error::source(path, what))
    }

    pub(crate) fn list(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::Source(forebay_formats::Error::list(path, what))
    }

    pub(crate) fn destination(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::Destination {
            path: path.as_ref().to_path_buf(),
            what: what.into(),
        }
    }

    /// Returns advice for the user, in one line.
    pub fn hint(&self) -> Option<String> {
        let io_kind = match self {
            Self::Io { source, .. } => Some(source.kind()),
            Self::Store(error) => error.io_kind(),
            Self::Shard(forebay_shard::Error::Io { source, .. }) => Some(source.kind()),
            _ => None,
        };
        match (self, io_kind) {
            (Self::Source(error), _) => error.hint(),
            (Self::OtherDataset { .. } | Self::Occupied { .. }, _) => {
                Some("choose another destination, or replace it with overwrite".into())
            }
            (Self::DifferentPack { .. }, _) => Some(
                "repeat the earlier arguments to continue it, choose another destination, or start over with overwrite"
                    .into(),
            ),
            (Self::Claimed { .. }, _) => Some(
                "let it finish, or run the same command again where it ran; if it is gone for good, overwrite takes over and starts again".into(),
            ),
            (Self::Store(forebay_store::Error::Undelivered { source, .. }), _) => {
                let kept = "what is packed is kept in the staging area: the same command continues from there";
                Some(source.hint().map_or(kept.into(), |hint| format!("{hint}; {kept}")))
            }
            (Self::DifferentPart { .. }, _) => Some(
                "give all parts the same arguments; if the source has changed, record the plan again, and then write all parts"
                    .into(),
            ),
            (Self::Missing { parts, .. }, _) => Some(match parts.as_slice() {
                [] => "write the parts again".into(),
                parts => {
                    let names = parts.iter().map(Part::to_string);
                    format!("write these parts again: {}", some_of(names))
                }
            }),
            (Self::SourceChanged(_), _) => Some(
                "nothing is published; the same command again packs the source as it is then (parts: after a new plan)"
                    .into(),
            ),
            (Self::SourceFailed(_), _) => {
                Some("once it can be reached again, the same command continues".into())
            }
            (Self::DifferentSamples { .. }, _) => Some(
                "write the same samples in the same order, or start over with overwrite".into(),
            ),
            (Self::Unfinished { .. }, _) => Some(
                "resume continues it with the same samples; overwrite replaces it".into(),
            ),
            (Self::NoSpace { .. }, _) => Some("free some space or choose another destination".into()),
            (Self::BadImage(_), _) => Some("the policies to skip and to quarantine leave such files out and list them".into()),
            (Self::TooManyBad { .. }, _) => Some("look at the source: this is no damage of single files; a higher limit allows more".into()),
            (Self::Interrupted { .. }, _) => Some("the same command again continues".into()),
            (_, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) => {
                Some("free some space and run the same command again: finished shards are kept".into())
            }
            (_, Some(io::ErrorKind::PermissionDenied)) => Some("check the owner and mode of that path".into()),
            (_, Some(io::ErrorKind::ReadOnlyFilesystem)) => Some("choose a destination that can be written to".into()),
            _ => None,
        }
    }
}

fn of_what(differences: &[String]) -> String {
    match differences {
        [] => " of the same data".into(),
        _ => format!(" that differs from this one: {}", differences.join("; ")),
    }
}

impl From<forebay_formats::Error> for Error {
    /// Converts errors that sources and destinations have in common to a single variant.
    fn from(error: forebay_formats::Error) -> Self {
        use forebay_formats::Error as Source;
        match error {
            Source::Interrupted => Self::Interrupted {
                finished: 0,
                total: 0,
            },
            Source::Io { path, op, source } => Self::Io { path, op, source },
            Source::Store(error) => Self::Store(error),
            Source::Shard(error) => Self::Shard(error),
            error => Self::Source(error),
        }
    }
}

fn how_far(finished: u64, total: u64) -> String {
    match total {
        0 => "in the census".into(),
        _ => format!("with {finished} of {total} shards finished"),
    }
}
