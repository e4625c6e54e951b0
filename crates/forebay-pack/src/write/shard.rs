//! Writes one shard: its pieces in the order of the plan, then its publication.

use super::output::{Output, open_shard};
use super::piece::Piece;
use super::records::WrittenFile;
use crate::error::{Error, Result};
use crate::observer::Observer;
use crate::options::{DatasetFormat, OnBad, PackOptions};
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use crate::publish::destination::{
    Destination, INDEX_DIR, Journal, ShardLine, Sidecar, SpaceReservation,
};
use crate::publish::upload;
use forebay_formats::Reason;
use forebay_shard::checksum::Crc32c;
use forebay_shard::{ShardSummary, ShardWriter};
use forebay_store::{AtomicFile, Durability};
use std::io;

/// Number of consecutive files with read errors that ends the pack: the source itself is not available, and leaving out
/// the rest of it file by file would lose everything. Single bad files do not follow each other this often.
const LOST_IN_A_ROW: u32 = 100;

/// A shard under construction, under its temporary name.
#[derive(Debug)]
pub(super) struct OpenShard {
    line: ShardLine,
    writer: ShardWriter<Output>,
    lost_in_a_row: u32,
    room: SpaceReservation,
}

/// Result of writing an index: the checksum of its bytes.
type Summed = io::Result<Option<Crc32c>>;

/// A shard that is completely written, under its temporary name.
pub(crate) struct WrittenShard {
    /// Its line in the journal, without sidecars and hash.
    line: ShardLine,
    output: Output,
    summary: ShardSummary,
    with_sidecars: bool,
    index_text: bool,
    /// Reserved space, which is kept until the shard is uploaded.
    room: SpaceReservation,
}

impl OpenShard {
    /// Creates the file when there is space for it; `None` if `stopped` returns true before.
    pub(super) fn create(
        destination: &dyn Destination,
        prepared: &Prepared,
        planned: &PlannedShard,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Self>> {
        let bytes = upload::room_of_planned(planned, &prepared.options);
        let Some(room) = destination.reserve(bytes, stopped)? else {
            return Ok(None);
        };
        let path = destination.dir().path(&planned.name);
        let mut writer = open_shard(&path, &prepared.options)?;
        let census = &prepared.census.splits()[planned.split];
        let split = &prepared.plan.splits()[planned.split];
        let entries = split.entries(census, planned.positions.clone());
        let key_bytes = entries.map(|entry| (entry.dir.len() + 1 + entry.name.len()) as u64);
        writer.reserve(
            planned.positions.end - planned.positions.start,
            key_bytes.sum(),
        );
        Ok(Some(Self {
            line: ShardLine::new(&planned.name),
            writer,
            lost_in_a_row: 0,
            room,
        }))
    }

    /// Writes the next piece, and reports the findings about its files. Returns a piece whose memory can be
    /// reused, if there is one.
    pub(super) fn append(
        &mut self,
        mut piece: Piece,
        prepared: &Prepared,
        observer: &dyn Observer,
    ) -> Result<Option<Piece>> {
        for file in &mut piece.files {
            let mut lost = false;
            for found in file.findings.drain(..) {
                observer.finding(&found);
                // Without the file, the dataset would correspond to no state of the source.
                if matches!(found.reason, Reason::Vanished | Reason::SizeChanged) {
                    return Err(Error::SourceChanged(Box::new(found)));
                }
                if found.reason == Reason::NotFetched {
                    return Err(Error::SourceFailed(Box::new(found)));
                }
                if found.action.leaves_out() && prepared.options.on_bad == OnBad::Fail {
                    return Err(Error::BadImage(Box::new(found)));
                }
                if found.action.leaves_out() {
                    prepared.bad.add(1, &found)?;
                }
                lost |= found.reason == Reason::Unreadable;
                if lost && self.lost_in_a_row + 1 == LOST_IN_A_ROW {
                    let what = format!(
                        "{LOST_IN_A_ROW} files in a row could not be read, the last one was {found}"
                    );
                    return Err(Error::source(prepared.census.src(), what));
                }
                self.line.findings.push(found);
            }
            self.lost_in_a_row = if lost { self.lost_in_a_row + 1 } else { 0 };
            self.line.image_bytes += file.image_bytes;
            self.line.seek_points.add(file.seek_point_bytes);
            self.line.progressive.add(file.is_baseline_now);
            self.line.fast.add(file.fast);
        }
        let frames = std::mem::take(&mut piece.frames);
        let spent = self.writer.append_frames(frames, piece.metas())?;
        observer.advanced(piece.files.len() as u64, piece.source_bytes);
        Ok(spent.map(|frames| piece.recycle(frames)))
    }

    /// Writes the end of the shard.
    pub(super) fn finish(self, options: &PackOptions) -> Result<WrittenShard> {
        let file = self.writer.finish()?;
        Ok(WrittenShard::new(self.line, file, self.room, options))
    }
}

impl WrittenShard {
    /// Creates a written shard; the writer's summary completes its line.
    pub(crate) fn new(
        line: ShardLine,
        (output, summary): (Output, ShardSummary),
        room: SpaceReservation,
        options: &PackOptions,
    ) -> Self {
        Self {
            line: ShardLine {
                records: summary.records,
                bytes: summary.bytes,
                crc32c: summary.crc32c,
                samples: summary.samples,
                record_bytes: summary.record_bytes,
                ..line
            },
            output,
            summary,
            with_sidecars: options.format == DatasetFormat::TfRecord,
            index_text: options.index_text,
            room,
        }
    }

    /// Creates a written file of a conversion.
    pub(crate) fn converted(
        mut line: ShardLine,
        mut file: WrittenFile,
        room: SpaceReservation,
        options: &PackOptions,
    ) -> Self {
        file.findings.append(&mut line.findings);
        (line.findings, line.entry) = (file.findings, file.entry);
        Self::new(line, (file.output, file.summary), room, options)
    }

    /// Publishes sidecars, then the shard, then the line of the journal; each is durable before the next. Then submits uploads.
    pub(crate) fn publish(
        mut self,
        destination: &dyn Destination,
        journal: &mut Journal,
        durability: Durability,
    ) -> Result<ShardLine> {
        let line = &mut self.line;
        if self.with_sidecars {
            let summary = &self.summary;
            let mut sidecar = |extension: &str, write: &dyn Fn(&mut AtomicFile) -> Summed| {
                let name = format!("{}.{extension}", line.name);
                let path = destination.dir().path(INDEX_DIR).join(&name);
                let mut file = AtomicFile::create(&path)?;
                let sum = write(&mut file).map_err(|error| Error::io(&path, "write", error))?;
                // Files of a pack are never compressed as a whole, so they have an index.
                if let Some(sum) = sum {
                    file.commit(durability)?;
                    line.sidecars.push(Sidecar {
                        name,
                        bytes: sum.len(),
                        crc32c: sum.value(),
                    });
                }
                Ok::<_, Error>(())
            };
            sidecar("fbi", &|file| summary.write_fbi(file))?;
            if self.index_text {
                sidecar("idx", &|file| summary.write_idx(file))?;
            }
        }
        // The index of a million records takes tens of megabytes, and that of the next shard is already growing.
        self.summary.index = None;
        let hash = self.output.hasher.map(|hasher| hasher.finalize());
        line.blake3 = hash.map(|hash| hash.to_hex().to_string());
        self.output.file.commit(durability)?;
        journal.append(&self.line)?;
        destination.put_shard(&self.line, self.room)?;
        Ok(self.line)
    }
}
