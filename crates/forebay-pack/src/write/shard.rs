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
use crate::report::{FastCount, ProgressiveCount, SeekPointCount};
use forebay_formats::{Finding, Reason};
use forebay_shard::checksum::Crc32c;
use forebay_shard::{ShardSummary, ShardWriter, verify};
use forebay_store::{AtomicFile, Durability};
use std::io;

/// Number of consecutive files with read errors that ends the pack: the source itself is not available, and leaving out
/// the rest of it file by file would lose everything. Single bad files do not follow each other this often.
const LOST_IN_A_ROW: u32 = 100;

/// A shard under construction, under its temporary name.
#[derive(Debug)]
pub(super) struct OpenShard {
    name: String,
    writer: ShardWriter<Output>,
    image_bytes: u64,
    seek_points: SeekPointCount,
    progressive: ProgressiveCount,
    fast: FastCount,
    findings: Vec<Finding>,
    lost_in_a_row: u32,
    room: SpaceReservation,
}

/// Result of writing an index: the checksum of its bytes.
type Summed = io::Result<Option<Crc32c>>;

/// A shard that is completely written, under its temporary name.
pub(crate) struct WrittenShard {
    name: String,
    output: Output,
    summary: ShardSummary,
    image_bytes: u64,
    seek_points: SeekPointCount,
    progressive: ProgressiveCount,
    fast: FastCount,
    labels: Option<(i64, i64)>,
    findings: Vec<Finding>,
    damage: Vec<verify::VerifyFinding>,
    lost: Vec<verify::Lost>,
    lost_records: u64,
    ends_split: bool,
    with_sidecars: bool,
    index_text: bool,
    entry: Option<serde_json::Value>,
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
            name: planned.name.clone(),
            writer,
            image_bytes: 0,
            seek_points: SeekPointCount::default(),
            progressive: ProgressiveCount::default(),
            fast: FastCount::default(),
            findings: Vec::new(),
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
                self.findings.push(found);
            }
            self.lost_in_a_row = if lost { self.lost_in_a_row + 1 } else { 0 };
            self.image_bytes += file.image_bytes;
            self.seek_points.add(file.seek_point_bytes);
            self.progressive.add(file.is_baseline_now);
            self.fast.add(file.fast);
        }
        let frames = std::mem::take(&mut piece.frames);
        let spent = self.writer.append_frames(frames, piece.metas())?;
        observer.advanced(piece.files.len() as u64, piece.source_bytes);
        Ok(spent.map(|frames| piece.recycle(frames)))
    }

    /// Writes the end of the shard.
    pub(super) fn finish(self, options: &PackOptions) -> Result<WrittenShard> {
        let file = self.writer.finish()?;
        Ok(WrittenShard {
            findings: self.findings,
            progressive: self.progressive,
            fast: self.fast,
            room: self.room,
            ..WrittenShard::new(self.name, file, self.image_bytes, self.seek_points, options)
        })
    }
}

impl WrittenShard {
    /// Creates a written shard without findings.
    pub(crate) fn new(
        name: String,
        (output, summary): (Output, ShardSummary),
        image_bytes: u64,
        seek_points: SeekPointCount,
        options: &PackOptions,
    ) -> Self {
        Self {
            name,
            output,
            summary,
            image_bytes,
            seek_points,
            progressive: ProgressiveCount::default(),
            fast: FastCount::default(),
            labels: None,
            findings: Vec::new(),
            damage: Vec::new(),
            lost: Vec::new(),
            lost_records: 0,
            ends_split: false,
            with_sidecars: options.format == DatasetFormat::TfRecord,
            index_text: options.index_text,
            entry: None,
            room: SpaceReservation::default(),
        }
    }

    /// Creates a written file of a conversion.
    pub(crate) fn converted(
        name: String,
        file: WrittenFile,
        image_bytes: u64,
        seek_points: SeekPointCount,
        options: &PackOptions,
    ) -> Self {
        let (findings, entry) = (file.findings, file.entry);
        let file = (file.output, file.summary);
        Self {
            findings,
            entry,
            ..Self::new(name, file, image_bytes, seek_points, options)
        }
    }

    /// Adds findings about records that were left out.
    pub(crate) fn with_findings(mut self, findings: Vec<Finding>) -> Self {
        self.findings.extend(findings);
        self
    }

    /// Sets the reserved space, which is kept until the shard is uploaded.
    pub(crate) fn in_room(self, room: SpaceReservation) -> Self {
        Self { room, ..self }
    }

    /// Marks the shard as ended by the end of its split.
    pub(crate) fn ending_split(self) -> Self {
        Self {
            ends_split: true,
            ..self
        }
    }

    /// Sets the lowest and the highest label.
    pub(crate) fn with_labels(self, labels: Option<(i64, i64)>) -> Self {
        Self { labels, ..self }
    }

    /// Sets the counts of progressive JPEGs.
    pub(crate) fn with_progressive(self, progressive: ProgressiveCount) -> Self {
        Self {
            progressive,
            ..self
        }
    }

    /// Sets the counts of fast images.
    pub(crate) fn with_fast(self, fast: FastCount) -> Self {
        Self { fast, ..self }
    }

    /// Sets the damage of its source, and the records that were lost to it.
    pub(crate) fn with_losses(
        self,
        damage: Vec<verify::VerifyFinding>,
        lost: Vec<verify::Lost>,
        lost_records: u64,
    ) -> Self {
        Self {
            damage,
            lost,
            lost_records,
            ..self
        }
    }

    /// Publishes sidecars, then the shard, then the line of the journal; each is durable before the next. Then submits uploads.
    pub(crate) fn publish(
        mut self,
        destination: &dyn Destination,
        journal: &mut Journal,
        durability: Durability,
    ) -> Result<ShardLine> {
        let mut sidecars = Vec::new();
        if self.with_sidecars {
            let summary = &self.summary;
            let mut sidecar = |extension: &str, write: &dyn Fn(&mut AtomicFile) -> Summed| {
                let name = format!("{}.{extension}", self.name);
                let path = destination.dir().path(INDEX_DIR).join(&name);
                let mut file = AtomicFile::create(&path)?;
                let sum = write(&mut file).map_err(|error| Error::io(&path, "write", error))?;
                // Files of a pack are never compressed as a whole, so they have an index.
                if let Some(sum) = sum {
                    file.commit(durability)?;
                    sidecars.push(Sidecar {
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
            samples: self.summary.samples,
            record_bytes: self.summary.record_bytes,
            seek_points: self.seek_points,
            progressive: self.progressive,
            fast: self.fast,
            labels: self.labels,
            sidecars,
            findings: self.findings,
            ends_split: self.ends_split,
            damage: self.damage,
            lost: self.lost,
            lost_records: self.lost_records,
            entry: self.entry,
        };
        self.output.file.commit(durability)?;
        journal.append(&line)?;
        destination.put_shard(&line, self.room)?;
        Ok(line)
    }
}
