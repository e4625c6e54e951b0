//! The bytes of a shard, composed when they are read.
//!
//! All shards of a dataset except the last consist of the same thousand records, which differ in
//! their label and in which of the few images they use. So the frames of a thousand records define
//! a dataset of any size, and its manifest contains the checksums of one shard.

use std::ops::Range;
use std::sync::Arc;

use forebay_shard::checksum::{Crc32c, crc32c, mask};
use forebay_shard::example::{IMAGE_ENCODED, IMAGE_LABEL, IMAGE_SEEK_POINTS};
use forebay_shard::{ExampleBuilder, IndexBuilder, RecordMeta, Result};

use crate::pictures::Picture;

/// Number of classes, and of records per shard: a full shard has one record of each class.
pub(crate) const CLASSES: u64 = 1000;
/// The first label, as in TensorFlow.
pub(crate) const LABEL_BASE: i64 = 1;

/// The records of a shard.
pub(crate) struct Body {
    pictures: Arc<Vec<Picture>>,
    frames: Vec<Frame>,
    /// Length of the file.
    len: u64,
    crc32c: u32,
    index: Vec<u8>,
}

/// One record: its bytes are `before`, the image and `after`.
struct Frame {
    start: u64,
    picture: usize,
    /// Bytes of the frame and of the Example before the image.
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Body {
    /// Creates the content of a shard with `records` records.
    pub(crate) fn new(pictures: &Arc<Vec<Picture>>, records: u64) -> Result<Self> {
        let mut frames = Vec::new();
        let mut sum = Crc32c::default();
        let mut index = IndexBuilder::new();
        for record in 0..records {
            // Neither labels nor images are in order, and each label occurs with several images.
            let label = (record * 389 + 7) % CLASSES;
            let number = (record * 13 + record / 32) as usize % pictures.len();
            let frame = Frame::new(sum.len(), &pictures[number], number, label);
            for piece in [&frame.before[..], &pictures[number].jpeg, &frame.after] {
                sum.update(piece);
            }
            let len = sum.len() - frame.start - forebay_shard::OVERHEAD_BYTES as u64;
            let meta = RecordMeta::new(label as i64 + LABEL_BASE, b"");
            index.push(len, &meta)?;
            frames.push(frame);
        }
        Ok(Body {
            pictures: Arc::clone(pictures),
            frames,
            len: sum.len(),
            crc32c: sum.value(),
            index: index.to_fbi(sum.value()),
        })
    }

    pub(crate) fn records(&self) -> u64 {
        self.frames.len() as u64
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn crc32c(&self) -> u32 {
        self.crc32c
    }

    /// Returns the shard's sidecar index.
    pub(crate) fn index(&self) -> &[u8] {
        &self.index
    }

    /// Returns the records that overlap a byte range.
    pub(crate) fn records_in(&self, bytes: &Range<u64>) -> Range<u64> {
        let first = self
            .frames
            .partition_point(|frame| frame.start <= bytes.start);
        let end = self.frames.partition_point(|frame| frame.start < bytes.end);
        (first.saturating_sub(1) as u64)..end as u64
    }

    /// Returns the file offset of the middle of a record's image.
    pub(crate) fn middle_of(&self, record: u64) -> u64 {
        let frame = &self.frames[record as usize];
        let picture = self.pictures[frame.picture].jpeg.len() as u64;
        frame.start + frame.before.len() as u64 + picture / 2
    }

    /// Fills `buf` with the bytes from `offset` on, all of which are within the file.
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) {
        let wanted = offset..offset + buf.len() as u64;
        for record in self.records_in(&wanted) {
            let frame = &self.frames[record as usize];
            let mut start = frame.start;
            for piece in [
                &frame.before[..],
                &self.pictures[frame.picture].jpeg,
                &frame.after,
            ] {
                let end = start + piece.len() as u64;
                let (from, to) = (start.max(wanted.start), end.min(wanted.end));
                if from < to {
                    let into = (from - wanted.start) as usize..(to - wanted.start) as usize;
                    buf[into]
                        .copy_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
                }
                start = end;
            }
        }
    }
}

impl Frame {
    fn new(start: u64, picture: &Picture, number: usize, label: u64) -> Self {
        let mut example = ExampleBuilder::new();
        let name = format!("picture_{number:04}.JPEG");
        example
            .add_int64("image/height", picture.height.into())
            .add_int64("image/width", picture.width.into())
            .add_int64("image/channels", 3)
            .add_bytes("image/colorspace", b"RGB")
            .add_bytes("image/format", b"JPEG")
            .add_bytes("image/filename", name.as_bytes())
            .add_int64(IMAGE_LABEL, label as i64 + LABEL_BASE);
        if let Some(points) = &picture.seek_points {
            example.add_bytes(IMAGE_SEEK_POINTS, points);
        }
        let (mut head, mut after) = (Vec::new(), Vec::new());
        example.encode_around(IMAGE_ENCODED, picture.jpeg.len(), &mut head, &mut after);
        let mut sum = Crc32c::default();
        for piece in [&head[..], &picture.jpeg, &after] {
            sum.update(piece);
        }
        // As specified in FORMAT.md: length, its masked checksum, payload, its masked checksum.
        let len = sum.len().to_le_bytes();
        let mut before = Vec::with_capacity(12 + head.len());
        before.extend_from_slice(&len);
        before.extend_from_slice(&mask(crc32c(&len)).to_le_bytes());
        before.append(&mut head);
        after.extend_from_slice(&mask(sum.value()).to_le_bytes());
        Frame {
            start,
            picture: number,
            before,
            after,
        }
    }
}

/// Returns the name of a class, by its number from 0.
pub(crate) fn class_name(class: u64) -> String {
    format!("class_{class:03}")
}
