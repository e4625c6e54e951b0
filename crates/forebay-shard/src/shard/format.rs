//! Detection of the format of a file and of its sidecars.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::frame::HEAD_BYTES;
use crate::index::FileKind;
use crate::storage::{self, LocalFiles, Storage};

/// The formats of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardFormat {
    /// TensorFlow's TFRecord.
    TfRecord,
    /// The indexed shard `.fbs`.
    Indexed,
    /// The mapped shard `.fbm`, whose records stay in a file of another format.
    Mapped,
}

impl ShardFormat {
    /// Returns its name: "tfrecord", "indexed", "mapped".
    pub fn name(self) -> &'static str {
        match self {
            Self::TfRecord => "tfrecord",
            Self::Indexed => "indexed",
            Self::Mapped => "mapped",
        }
    }

    /// Returns the extension of a shard's file name.
    pub fn extension(self) -> &'static str {
        match self {
            Self::TfRecord => "",
            Self::Indexed => ".fbs",
            Self::Mapped => ".fbm",
        }
    }

    /// Detects the format of a file by its first bytes: at least 8, unless the file is shorter.
    pub fn detect(start: &[u8]) -> Self {
        if start.starts_with(&FileKind::Shard.magic()) {
            Self::Indexed
        } else if start.starts_with(&FileKind::Map.magic()) {
            Self::Mapped
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
            "mapped" => Ok(Self::Mapped),
            _ => Err(Error::invalid(format!(
                "no shard format {name:?}: there are tfrecord, indexed and mapped"
            ))),
        }
    }
}

/// Returns the sidecar of a TFRecord file: `index/NAME.fbi`, or else `index/NAME.idx`, in the
/// file's directory.
pub fn find_sidecar(path: &Path) -> Option<PathBuf> {
    find_sidecar_in(path, &|sidecar| {
        storage::exists(&LocalFiles::new(1), sidecar)
    })
}

/// As [`find_sidecar`], among files for which `is_there` returns true.
pub(crate) fn find_sidecar_in(path: &Path, is_there: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let name = path.file_name()?;
    ["fbi", "idx"].into_iter().find_map(|extension| {
        let mut name = name.to_owned();
        name.push(".");
        name.push(extension);
        let sidecar = path.parent()?.join("index").join(name);
        is_there(&sidecar).then_some(sidecar)
    })
}

/// Detects the format of a file by its first bytes.
pub(crate) fn detect_format(storage: &dyn Storage, path: &Path) -> Result<ShardFormat> {
    let file = storage::open(storage, path)?;
    let mut start = vec![0; file.len().min(HEAD_BYTES as u64) as usize];
    storage::read_exact_at(&*file, path, &mut start, 0)?;
    Ok(ShardFormat::detect(&start))
}
