//! The summary of a written shard.

use std::io::{self, Write};

use crate::checksum::Crc32c;
use crate::index::IndexBuilder;
use crate::samples::SampleDigest;

/// Summary of a written shard.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShardSummary {
    /// Number of records.
    pub records: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// CRC32C of the whole file.
    pub crc32c: u32,
    /// The index; for a TFRecord file it can be written as a sidecar ([`IndexBuilder::to_fbi`],
    /// [`IndexBuilder::to_idx`]). `None` for a file that is compressed as a whole.
    pub index: Option<IndexBuilder>,
    /// Digest of the records' labels and keys.
    pub samples: SampleDigest,
    /// Stored bytes of the records.
    pub record_bytes: u64,
}

impl ShardSummary {
    /// Returns the summary of a file of another format, with the checksum of its bytes and the
    /// digest of its records.
    pub fn without_index(sum: Crc32c, samples: SampleDigest, record_bytes: u64) -> Self {
        Self {
            records: samples.records(),
            bytes: sum.len(),
            crc32c: sum.value(),
            index: None,
            samples,
            record_bytes,
        }
    }

    /// Returns the sidecar `.fbi` of a TFRecord file.
    pub fn to_fbi(&self) -> Option<Vec<u8>> {
        self.index.as_ref().map(|index| index.to_fbi(self.crc32c))
    }

    /// Writes the sidecar `.fbi` without building it in memory. Returns the checksum of its bytes; `None`
    /// without an index.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_fbi(&self, out: &mut impl Write) -> io::Result<Option<Crc32c>> {
        let index = self.index.as_ref();
        index
            .map(|index| index.write_fbi(self.crc32c, out))
            .transpose()
    }

    /// Writes the text index `.idx` without building it in memory. Returns the checksum of its bytes.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_idx(&self, out: &mut impl Write) -> io::Result<Option<Crc32c>> {
        let index = self.index.as_ref();
        index.map(|index| index.write_idx(out)).transpose()
    }

    /// Returns the text index `.idx` of a TFRecord file.
    pub fn to_idx(&self) -> Option<String> {
        self.index.as_ref().map(IndexBuilder::to_idx)
    }
}
