//! A position in the scan: decodes or skips MCUs, reads restart markers or jumps to them.

use super::Refusal;
use super::bits::{MAX_BLOCKS, Stream};
use super::entropy::{PAIR, Predictors, Reader, SECOND, Slot, TAIL, Tables};
use super::header::{Header, MCU_BLOCKS};
use super::simd::Level;
use crate::markers::next_marker;
use std::ops::Range;

/// MCUs per batch.
pub(super) const BATCH: usize = 8;
const _: () = assert!(BATCH * MCU_BLOCKS <= MAX_BLOCKS);

/// Positions of the blocks of a batch of MCUs: for each component, for each row of blocks, pairs of
/// neighbors.
#[derive(Debug, Default)]
pub(super) struct Layout {
    slots: Vec<Slot>,
    mcu_blocks: usize,
    pairs: usize,
}

impl Layout {
    fn set(&mut self, header: &Header) {
        self.slots.clear();
        for mcu in 0..BATCH {
            let mut base = 0;
            for component in 0..header.frame.components {
                let (h, v) = header.frame.factors[component];
                for row in 0..v {
                    for column in mcu * h..(mcu + 1) * h {
                        let pair = base + row * pairs_in_row(h, BATCH) + column / 2;
                        let offset = pair * PAIR + column % 2 * SECOND;
                        self.slots.push(Slot {
                            component: component as u8,
                            offset: offset as u32,
                        });
                    }
                }
                base += v * pairs_in_row(h, BATCH);
            }
            self.pairs = base;
        }
        self.mcu_blocks = self.slots.len() / BATCH;
    }

    /// Returns the number of coefficients for which a batch needs space.
    pub(super) fn coefficients(&self) -> usize {
        self.pairs * PAIR + TAIL
    }

    /// Returns the slots of the blocks of these MCUs of a batch.
    fn slots(&self, mcus: Range<usize>) -> &[Slot] {
        &self.slots[mcus.start * self.mcu_blocks..mcus.end * self.mcu_blocks]
    }
}

/// Returns the number of block pairs in a row of blocks of a batch with `batch` MCUs.
pub(super) const fn pairs_in_row(h: usize, batch: usize) -> usize {
    h * batch / 2
}

/// How the entropy-coded data of an image end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScanEnd {
    /// Offset of the marker after the data.
    pub(crate) marker: usize,
    /// Whether the last byte is filled with ones.
    pub(crate) has_plain_padding: bool,
    /// See [`Reader::reached`].
    pub(crate) reached: u64,
}

/// The constants of a scan.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) start: usize,
    pub(super) restart_interval: usize,
    pub(super) tables: Tables<'a>,
    pub(super) layout: &'a Layout,
    pub(super) level: Level,
}

impl<'a> Scan<'a> {
    /// Returns the scan after a header, and sets the layout of its batches.
    pub(super) fn new(
        bytes: &'a [u8],
        header: &'a Header,
        layout: &'a mut Layout,
        level: Level,
    ) -> Self {
        layout.set(header);
        Self {
            bytes,
            start: header.frame.scan,
            restart_interval: header.frame.restart_interval,
            tables: header.tables(),
            layout,
            level,
        }
    }
}

/// A seek point: the start of a row of MCUs or of a piece of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    /// Offset in the JPEG file, in bits.
    pub(super) bits: u64,
    /// DC predictors.
    pub(super) predictors: Predictors,
}

/// A position in the scan, at the start of an MCU.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    stream: Stream,
    predictors: Predictors,
    /// See [`Reader::reached`].
    reached: u64,
    /// Index of the next MCU.
    mcu: usize,
    /// Number of restart markers before the stream's position.
    markers: usize,
}

impl Cursor {
    /// Moves to the start of the scan.
    pub(super) fn rewind(&mut self, scan: &Scan<'_>) {
        self.stream.open(scan.bytes, scan.start, 0, usize::MAX);
        self.predictors = Predictors::default();
        self.reached = 0;
        self.mcu = 0;
        self.markers = 0;
    }

    /// Moves to `point`, the seek point of MCU `mcu`. Reads nothing at or after byte `limit`.
    pub(super) fn seek(&mut self, scan: &Scan<'_>, point: &Point, mcu: usize, limit: usize) {
        let bit = (point.bits % 8) as u32;
        let byte = usize::try_from(point.bits / 8).unwrap_or(usize::MAX);
        self.stream
            .open(scan.bytes, byte.min(scan.bytes.len()), bit, limit);
        self.predictors = point.predictors;
        self.mcu = mcu;
        self.markers = 0;
    }

    pub(super) fn mcu(&self) -> usize {
        self.mcu
    }

    pub(super) fn predictors(&self) -> Predictors {
        self.predictors
    }

    /// Returns the number of bits consumed since the last `rewind` or `seek`, without stuffing and restart markers.
    pub(super) fn position(&self) -> usize {
        self.stream.position()
    }

    /// Returns how many of `wanted` MCUs can be processed at once: at most a batch, and none after
    /// a restart marker.
    pub(super) fn batch(&self, scan: &Scan<'_>, wanted: usize) -> usize {
        let batch = wanted.min(BATCH);
        match scan.restart_interval {
            0 => batch,
            interval => batch.min(interval - self.mcu % interval),
        }
    }

    /// Skips to an MCU, jumping over whole restart intervals.
    pub(super) fn skip_to(
        &mut self,
        scan: &Scan<'_>,
        mcu: usize,
        scratch: &mut [i16],
    ) -> Result<(), Refusal> {
        if let Some(markers) = mcu.checked_div(scan.restart_interval)
            && markers > self.markers
        {
            self.jump(scan, markers)?;
        }
        while self.mcu < mcu {
            let count = self.batch(scan, mcu - self.mcu);
            self.next::<false>(scan, 0..count, scratch)?;
        }
        Ok(())
    }

    /// Decodes `count` MCUs, at most as many as [`Cursor::batch`] allows.
    pub(super) fn take(
        &mut self,
        scan: &Scan<'_>,
        count: usize,
        coefficients: &mut [i16],
    ) -> Result<(), Refusal> {
        self.next::<true>(scan, 0..count, coefficients)
    }

    /// As [`Cursor::take`], to the slots of these MCUs of a batch.
    pub(super) fn take_to(
        &mut self,
        scan: &Scan<'_>,
        places: Range<usize>,
        coefficients: &mut [i16],
    ) -> Result<(), Refusal> {
        self.next::<true>(scan, places, coefficients)
    }

    /// Returns the end of the data, after the last MCU; `None` if other bytes precede the next marker.
    pub(super) fn end(&mut self, scan: &Scan<'_>) -> Option<ScanEnd> {
        self.stream.reserve(scan.bytes, 1);
        let padding = self.stream.padding()?;
        Some(ScanEnd {
            marker: self.stream.unread(),
            has_plain_padding: padding == 0xff,
            reached: self.reached,
        })
    }

    fn next<const KEEP: bool>(
        &mut self,
        scan: &Scan<'_>,
        places: Range<usize>,
        coefficients: &mut [i16],
    ) -> Result<(), Refusal> {
        self.cross_marker(scan)?;
        let slots = scan.layout.slots(places.clone());
        self.stream.reserve(scan.bytes, slots.len());
        let level = scan.level;
        let sound = level.decode::<KEEP>(self.reader(), &scan.tables, slots, coefficients);
        self.mcu += places.len();
        self.check(sound)
    }

    /// Decodes (`KEEP`) or skips `count` MCUs of two cursors in alternation, in a scan without
    /// restart markers.
    pub(super) fn two<const KEEP: bool>(
        first: &mut Self,
        second: &mut Self,
        scan: &Scan<'_>,
        count: usize,
        coefficients: [&mut [i16]; 2],
    ) -> Result<(), Refusal> {
        let slots = scan.layout.slots(0..count);
        first.stream.reserve(scan.bytes, slots.len());
        second.stream.reserve(scan.bytes, slots.len());
        let readers = [first.reader(), second.reader()];
        let level = scan.level;
        let sound = level.decode_two::<KEEP>(readers, &scan.tables, slots, coefficients);
        first.mcu += count;
        second.mcu += count;
        first.check(sound)?;
        second.check(sound)
    }

    fn reader(&mut self) -> Reader<'_> {
        let (window, bits) = self.stream.split();
        Reader {
            window,
            bits,
            predictors: &mut self.predictors,
            reached: &mut self.reached,
        }
    }

    fn check(&self, sound: bool) -> Result<(), Refusal> {
        if self.stream.overrun() {
            return Err(Refusal::Damaged("the image data end early"));
        }
        if !sound {
            return Err(Refusal::Damaged("bits that are no Huffman code"));
        }
        Ok(())
    }

    /// Reads the restart marker if the interval ends here.
    fn cross_marker(&mut self, scan: &Scan<'_>) -> Result<(), Refusal> {
        let markers = match self.mcu.checked_div(scan.restart_interval) {
            Some(markers) if markers > self.markers => markers,
            _ => return Ok(()),
        };
        self.stream.reserve(scan.bytes, 1);
        if !self.stream.finished() {
            return Err(Refusal::Damaged("data left over before a restart marker"));
        }
        self.jump(scan, markers)
    }

    /// Moves to the first MCU after restart marker `markers`, counted from 1.
    fn jump(&mut self, scan: &Scan<'_>, markers: usize) -> Result<(), Refusal> {
        let mut at = self.stream.unread();
        for number in self.markers..markers {
            let code = 0xd0 + (number % 8) as u8;
            at = next_marker(scan.bytes, at)
                .filter(|&after| scan.bytes[after - 1] == code)
                .ok_or(Refusal::Damaged("a restart marker is missing"))?;
        }
        self.stream.open(scan.bytes, at, 0, usize::MAX);
        self.predictors = Predictors::default();
        self.markers = markers;
        self.mcu = markers * scan.restart_interval;
        Ok(())
    }
}
