//! Which format a file has, and what lies beside it.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::frame::HEAD_BYTES;
use crate::index::FileKind;
use crate::tfrecord::Compression;

/// The formats of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardFormat {
    /// TensorFlow's TFRecord.
    TfRecord,
    /// The indexed shard `.fbs`.
    Indexed,
}

impl ShardFormat {
    /// Its name: "tfrecord", "indexed".
    pub fn name(self) -> &'static str {
        match self {
            Self::TfRecord => "tfrecord",
            Self::Indexed => "indexed",
        }
    }

    /// What a shard's file name ends with.
    pub fn extension(self) -> &'static str {
        match self {
            Self::TfRecord => "",
            Self::Indexed => ".fbs",
        }
    }

    /// The format of a file, by its first bytes: 8 or more, if it has them.
    pub fn detect(start: &[u8]) -> Self {
        if start.starts_with(&FileKind::Shard.magic()) {
            Self::Indexed
        } else {
            Self::TfRecord
        }
    }
}

impl fmt::Display for ShardFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ShardFormat {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "tfrecord" => Ok(Self::TfRecord),
            "indexed" => Ok(Self::Indexed),
            _ => Err(Error::invalid(format!(
                "no shard format {name:?}: there are tfrecord and indexed"
            ))),
        }
    }
}

/// The sidecar of a TFRecord file: `index/NAME.fbi`, else `index/NAME.idx`,
/// in the file's directory.
pub fn find_sidecar(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?;
    ["fbi", "idx"].into_iter().find_map(|extension| {
        let mut name = name.to_owned();
        name.push(".");
        name.push(extension);
        let sidecar = path.parent()?.join("index").join(name);
        sidecar.is_file().then_some(sidecar)
    })
}

/// The format of a file by its first bytes.
pub(crate) fn detect_format(path: &Path) -> Result<ShardFormat> {
    let file = std::fs::File::open(path).map_err(|error| Error::io(path, "open", error))?;
    let mut start = Vec::new();
    let read = file.take(HEAD_BYTES as u64).read_to_end(&mut start);
    read.map_err(|error| Error::io(path, "read", error))?;
    Ok(ShardFormat::detect(&start))
}

/// Refuses compressed TFRecords where places of records are needed.
pub(crate) fn refuse_compressed(path: &Path, start: &[u8]) -> Result<()> {
    match Compression::detect(start) {
        Compression::None => Ok(()),
        compression => Err(Error::Unsupported {
            path: path.to_owned(),
            problem: format!(
                "is compressed as a whole ({compression}): its records can only be read in order"
            ),
        }),
    }
}
