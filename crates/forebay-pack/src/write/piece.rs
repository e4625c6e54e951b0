//! A piece: records of the next few files of a shard, to be written in order.

use crate::report::FastCount;
use forebay_formats::Finding;
use forebay_shard::{Frames, RecordMeta};

/// Number of bytes of reused memory to keep.
const KEEP_BYTES: usize = 1 << 20;

/// Records in the order of the plan, with the findings about their files.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) frames: Frames,
    /// One entry per file, whether packed or not.
    pub(super) files: Vec<PieceFile>,
    /// Keys of the records, concatenated.
    pub(super) keys: Vec<u8>,
    /// Size of the files in bytes, as in the census.
    pub(super) source_bytes: u64,
}

/// Outcome of packing a file.
#[derive(Debug)]
pub(super) struct PieceFile {
    /// Label of its record and end of the record's key in `keys`, if it has a record.
    pub(super) record: Option<(i64, usize)>,
    /// Size of the image in the record, in bytes.
    pub(super) image_bytes: u64,
    /// Size of its seek points in bytes, if it has any.
    pub(super) seek_point_bytes: Option<u64>,
    /// Whether its progressive JPEG was transcoded to baseline; `None` if this was not requested or it is not progressive.
    pub(super) is_baseline_now: Option<bool>,
    /// Counts its fast image, if it has one.
    pub(super) fast: FastCount,
    pub(super) findings: Vec<Finding>,
}

impl Piece {
    /// Returns the index entries of the records.
    pub(super) fn metas(&self) -> impl Iterator<Item = RecordMeta<'_>> {
        let records = self.files.iter().filter_map(|file| file.record);
        records.scan(0, |from, (label, end)| {
            let key = self.keys.get(*from..end).unwrap_or_default();
            *from = end;
            Some(RecordMeta::new(label, key))
        })
    }

    /// Returns an empty piece that reuses the memory of this one and of `frames`.
    pub(super) fn recycle(mut self, mut frames: Frames) -> Self {
        frames.clear(KEEP_BYTES);
        self.files.clear();
        self.keys.clear();
        Self {
            frames,
            source_bytes: 0,
            ..self
        }
    }
}
