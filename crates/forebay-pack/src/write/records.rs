//! The output file of a conversion: a shard, or a file in another tool's format.

use super::output::{Output, open_shard};
use crate::error::{Error, Result};
use crate::options::PackOptions;
use forebay_formats::records::{RecordWriter, SinkError, SourceRecord};
use forebay_formats::{Action, Finding, Reason};
use forebay_shard::checksum::Crc32c;
use forebay_shard::mapped::{self, Extent, SourceIdentity};
use forebay_shard::{RecordMeta, SampleDigest, ShardSummary, ShardWriter};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file to which records are written.
pub(crate) enum RecordFileWriter {
    /// A shard.
    Shard(Box<ShardWriter<Output>>),
    /// A mapped shard.
    Mapped(Box<mapped::Writer<Output>>),
    /// A file of another tool's format.
    Other(Box<OtherFile>),
}

/// A file of another tool's format.
pub(crate) struct OtherFile {
    path: PathBuf,
    name: String,
    writer: Box<dyn RecordWriter>,
    output: Summed,
    samples: SampleDigest,
    record_bytes: u64,
    findings: Vec<Finding>,
}

/// A file that is completely written.
pub(crate) struct WrittenFile {
    pub(super) output: Output,
    pub(super) summary: ShardSummary,
    /// Findings about records whose keys were changed.
    pub(super) findings: Vec<Finding>,
    /// Entry of the file in the index of its format.
    pub(super) entry: Option<serde_json::Value>,
}

/// Computes the checksum of the output.
struct Summed {
    output: Output,
    sum: Crc32c,
}

impl Write for Summed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.output.write(buf)?;
        self.sum.update(buf.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl RecordFileWriter {
    /// Creates a shard.
    pub(crate) fn shard(path: &Path, options: &PackOptions) -> Result<Self> {
        Ok(Self::Shard(Box::new(open_shard(path, options)?)))
    }

    /// Creates a mapped shard of the records in a file.
    pub(crate) fn mapped(
        path: &Path,
        source: SourceIdentity,
        options: &PackOptions,
    ) -> Result<Self> {
        let output = Output::create(path, options)?;
        let writer = mapped::Writer::new(output, path, source)?;
        Ok(Self::Mapped(Box::new(writer)))
    }

    /// Creates a file with the path `name` below the destination.
    pub(crate) fn other(
        path: &Path,
        name: &str,
        writer: Box<dyn RecordWriter>,
        options: &PackOptions,
    ) -> Result<Self> {
        Ok(Self::Other(Box::new(OtherFile {
            path: path.to_path_buf(),
            name: name.to_owned(),
            writer,
            output: Summed {
                output: Output::create(path, options)?,
                sum: Crc32c::default(),
            },
            samples: SampleDigest::default(),
            record_bytes: 0,
            findings: Vec::new(),
        })))
    }

    /// Writes a record; a mapped shard needs the extents of its bytes. The inner error means that the format cannot hold the
    /// record.
    pub(crate) fn append(
        &mut self,
        record: &SourceRecord<'_>,
        extents: &[Extent],
    ) -> Result<Result<(), String>> {
        let meta = RecordMeta {
            label: record.label,
            key: record.key,
        };
        match self {
            Self::Shard(writer) => drop(writer.append(record.bytes, &meta)?),
            Self::Mapped(writer) => writer.append(record.bytes, &meta, extents)?,
            Self::Other(file) => match file.writer.append(record, &mut file.output) {
                Ok(appended) => {
                    file.samples.push(record.label, record.key);
                    file.record_bytes += record.bytes.len() as u64;
                    if let Some(new) = appended.new_key {
                        let what = format!("{} has {new:?} instead", file.name);
                        let (kept, changed) = (Action::Kept, Reason::KeyChanged);
                        let found = Finding::new(kept, changed, record.key, what);
                        file.findings.push(found);
                    }
                }
                Err(SinkError::Record(what)) => return Ok(Err(what)),
                Err(SinkError::Io(error)) => return Err(Error::io(&file.path, "write", error)),
            },
        }
        Ok(Ok(()))
    }

    /// Writes the end of the file.
    pub(crate) fn finish(self) -> Result<WrittenFile> {
        let shard = |(output, summary)| WrittenFile {
            output,
            summary,
            findings: Vec::new(),
            entry: None,
        };
        let mut file = match self {
            Self::Shard(writer) => return Ok(shard(writer.finish()?)),
            Self::Mapped(writer) => return Ok(shard(writer.finish()?)),
            Self::Other(file) => *file,
        };
        let finished = file.writer.finish(&file.name, &mut file.output);
        let entry = finished.map_err(|error| match error {
            SinkError::Record(what) => Error::destination(&file.path, what),
            SinkError::Io(error) => Error::io(&file.path, "write", error),
        })?;
        let flushed = file.output.flush();
        flushed.map_err(|error| Error::io(&file.path, "write", error))?;
        let Summed { output, sum } = file.output;
        Ok(WrittenFile {
            output,
            summary: ShardSummary::without_index(sum, file.samples, file.record_bytes),
            findings: file.findings,
            entry: Some(entry).filter(|entry| !entry.is_null()),
        })
    }
}
