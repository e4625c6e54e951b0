//! One shard: its records in the order of the plan, then its publication.

use super::read::ReadAhead;
use super::record::Recorder;
use crate::census::finding;
use crate::destination::{Destination, INDEX_DIR, Journal, ShardLine, Sidecar};
use crate::error::{Error, Result};
use crate::input::join;
use crate::observer::Observer;
use crate::options::{Format, OnBadImage, PackOptions};
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use crate::report::{Action, Finding, Reason, SeekPointCount};
use forebay_shard::checksum::crc32c;
use forebay_shard::{Codec, RecordMeta, ShardSummary, ShardWriter, indexed, tfrecord};
use forebay_store::{AtomicFile, Durability};
use std::io::{self, IoSlice, Write};
use std::path::Path;
use std::time::Instant;

/// So many files in a row that the system does not give: the source itself is gone, and leaving out the rest of it
/// one by one would lose it all. Shuffled or not, single bad files do not come in such rows.
const LOST_IN_A_ROW: u32 = 100;

/// Progress is told and a stop is looked for after this many bytes or files.
const STEP_BYTES: u64 = 4 << 20;
const STEP_FILES: u64 = 64;

/// A shard that is written whole, under its temporary name.
pub(super) struct WrittenShard {
    name: String,
    output: Output,
    summary: ShardSummary,
    image_bytes: u64,
    seek_points: SeekPointCount,
    findings: Vec<Finding>,
    index_text: bool,
}

/// Writes the records of a shard. None if it was stopped.
pub(super) fn write(
    prepared: &Prepared,
    destination: &Destination,
    planned: &PlannedShard,
    recorder: &mut Recorder<'_>,
    observer: &dyn Observer,
    stopped: &dyn Fn() -> bool,
) -> Result<Option<WrittenShard>> {
    let options = &prepared.options;
    let path = destination.path(&planned.name);
    let census = &prepared.census.splits()[planned.split];
    let split = &prepared.plan.splits()[planned.split];
    let mut writer = open(&path, options)?;
    let mut findings = Vec::new();
    let (mut image_bytes, mut files, mut bytes) = (0, 0, 0);
    let mut seek_points = SeekPointCount::default();
    let mut lost_in_a_row = 0;
    let mut ahead = ReadAhead::default();
    let mut to_open = split.entries(census, planned.positions.clone());
    for entry in split.entries(census, planned.positions.clone()) {
        let mut payload = writer.begin();
        let begin = Instant::now();
        let file = ahead.take(|| {
            to_open
                .next()
                .map(|entry| recorder.open(planned.split, &entry))
        });
        let put = recorder.put(file, &entry, &mut payload);
        ahead.took(begin);
        let (put, said) = match put {
            Ok(put) => (
                Some((put.label, put.seek_point_bytes)),
                put.remark.map(|remark| (Action::Kept, remark)),
            ),
            Err(refusal) => (None, Some((Action::Skipped, refusal))),
        };
        if let Some((action, (reason, detail))) = said {
            let found = finding(action, reason, &join(census.dir(), &recorder.key), detail);
            observer.finding(&found);
            if action == Action::Skipped && options.on_bad_image == OnBadImage::Fail {
                return Err(Error::BadImage(Box::new(found)));
            }
            let lost = matches!(found.reason, Reason::Vanished | Reason::Unreadable);
            lost_in_a_row = if lost { lost_in_a_row + 1 } else { 0 };
            if lost_in_a_row == LOST_IN_A_ROW {
                let what = format!(
                    "{LOST_IN_A_ROW} files in a row could not be read, the last one was {found}"
                );
                return Err(Error::source(prepared.census.src(), what));
            }
            findings.push(found);
        } else {
            lost_in_a_row = 0;
        }
        // A record that was begun and not committed is dropped when the next one begins.
        if let Some((label, seek_point_bytes)) = put {
            seek_points.add(seek_point_bytes);
            writer.commit(&RecordMeta {
                label: Some(label),
                key: &recorder.key,
            })?;
            image_bytes += entry.size;
        }
        files += 1;
        bytes += entry.size;
        if files >= STEP_FILES || bytes >= STEP_BYTES {
            observer.advanced(files, bytes);
            (files, bytes) = (0, 0);
            if stopped() {
                return Ok(None);
            }
        }
    }
    observer.advanced(files, bytes);
    let (output, summary) = writer.finish()?;
    let index_text = options.index_text;
    Ok(Some(WrittenShard {
        name: planned.name.clone(),
        output,
        summary,
        image_bytes,
        seek_points,
        findings,
        index_text,
    }))
}

impl WrittenShard {
    /// Sidecars, then the shard, then the journal's line; each durable before the next.
    pub(super) fn publish(
        self,
        destination: &Destination,
        journal: &mut Journal,
        durability: Durability,
    ) -> Result<ShardLine> {
        let mut sidecars = Vec::new();
        if self.output.with_sidecars {
            let binary = self.summary.to_fbi().map(|bytes| ("fbi", bytes));
            let text = self
                .summary
                .to_idx()
                .filter(|_| self.index_text)
                .map(|text| ("idx", text.into_bytes()));
            for (extension, bytes) in binary.into_iter().chain(text) {
                let name = format!("{}.{extension}", self.name);
                let path = destination.path(INDEX_DIR).join(&name);
                write_file(&path, &bytes, durability)?;
                sidecars.push(Sidecar {
                    name,
                    bytes: bytes.len() as u64,
                    crc32c: crc32c(&bytes),
                });
            }
        }
        let line = ShardLine {
            name: self.name,
            records: self.summary.records,
            bytes: self.summary.bytes,
            crc32c: self.summary.crc32c,
            blake3: self
                .output
                .hasher
                .map(|hasher| hasher.finalize().to_hex().to_string()),
            image_bytes: self.image_bytes,
            seek_points: self.seek_points,
            sidecars,
            findings: self.findings,
        };
        self.output.file.commit(durability)?;
        journal.append(&line)?;
        Ok(line)
    }
}

/// Publishes a small file.
pub(crate) fn write_file(path: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes)
        .map_err(|error| Error::io(path, "write", error))?;
    Ok(file.commit(durability)?)
}

fn open(path: &Path, options: &PackOptions) -> Result<ShardWriter<Output>> {
    let mut file = AtomicFile::create(path)?;
    if options.durability == Durability::Synced {
        file = file.with_early_writeback();
    }
    let output = Output {
        file,
        rest: Vec::new(),
        hasher: options.blake3.then(blake3::Hasher::new),
        with_sidecars: options.format == Format::TfRecord,
    };
    Ok(match options.format {
        Format::TfRecord => tfrecord::WriterBuilder::new()
            .from_writer(output, path)
            .into(),
        Format::Indexed => indexed::WriterBuilder::new()
            .from_writer(output, path)?
            .into(),
        Format::IndexedZstd(level) => indexed::WriterBuilder::new()
            .codec(Codec::Zstd)
            .level(level)
            .from_writer(output, path)?
            .into(),
    })
}

/// Writes to the file end at multiples of this many bytes. Page caches take aligned writes in large pieces, which
/// saves a tenth of all the CPU time of a pack against writes that end anywhere.
const ALIGN_BYTES: usize = 64 << 10;

/// The file, written in aligned pieces, and hashed on its way if that was asked for.
#[derive(Debug)]
struct Output {
    file: AtomicFile,
    /// What did not fill a piece yet.
    rest: Vec<u8>,
    hasher: Option<blake3::Hasher>,
    with_sidecars: bool,
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(buf);
        }
        let total = self.rest.len() + buf.len();
        if total < ALIGN_BYTES {
            self.rest.extend_from_slice(buf);
        } else {
            // Less than a piece rests, so at least as much of the new bytes goes out as stays.
            let (whole, tail) = buf.split_at(buf.len() - total % ALIGN_BYTES);
            write_both(&mut self.file, &self.rest, whole)?;
            self.rest.clear();
            self.rest.extend_from_slice(tail);
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.rest)?;
        self.rest.clear();
        Ok(())
    }
}

/// Writes two slices as one.
fn write_both(file: &mut AtomicFile, first: &[u8], second: &[u8]) -> io::Result<()> {
    let mut written = 0;
    while written < first.len() {
        let slices = [IoSlice::new(&first[written..]), IoSlice::new(second)];
        match file.write_vectored(&slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    file.write_all(second.get(written - first.len()..).unwrap_or_default())
}
