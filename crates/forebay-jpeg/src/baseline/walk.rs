//! Finds the starts of all MCUs of a scan, decoding from its start and from its middle at once.
//!
//! A Huffman decoder that starts at any position soon synchronizes: from the start of some MCU on,
//! it reads the same codes as a decoder from the start. So one [`Lane`] walks over the first half
//! of a scan and another one over the second half, in alternation, so that each hides the latency
//! of the other. Then the first lane continues until it reaches an MCU start that the second lane
//! found too. All later starts of the second lane are right; its DC predictors differ by constants.

use super::bits::BLOCK_BYTES;
use super::entropy::Predictors;
use super::header::{Header, MCU_BLOCKS};
use super::lane::{Lane, Start, slots};
use super::scan::Point;
use super::simd::Level;

/// Maximum length of entropy-coded data and maximum number of MCUs, which limit the memory.
const MAX_BYTES: usize = 16 << 20;
const MAX_MCUS: usize = 1 << 18;
/// Length of entropy-coded data up to which a second lane gains nothing.
const SMALL: usize = 4 << 10;
/// Number of zeros after the data: an MCU that begins in the data ends before their end.
const PADDING: usize = (MCU_BLOCKS + 1) * BLOCK_BYTES;
/// Capacity in bytes of each buffer that is kept from image to image.
const KEPT: usize = 1 << 20;

/// The starts of all MCUs, and the end, of a scan. Reuses its memory from image to image.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// The entropy-coded data without stuffing, followed by zeros.
    bytes: Vec<u8>,
    first: Vec<Start>,
    second: Vec<Start>,
    /// The last MCU of the first lane, and its index in the second lane.
    meeting: Option<(usize, usize)>,
}

impl Starts {
    /// Returns whether [`Starts::find`] supports an image of this size.
    pub(super) fn suit(jpeg: &[u8], header: &Header) -> bool {
        let (across, down) = header.frame.mcus;
        jpeg.len() - header.frame.scan <= MAX_BYTES && across * down <= MAX_MCUS
    }

    /// Walks over a scan without restart markers, with the multi-symbols of its tables. Returns
    /// `None` if the scan is damaged.
    pub(super) fn find(&mut self, jpeg: &[u8], header: &Header, level: Level) -> Option<()> {
        unstuff(&jpeg[header.frame.scan..], &mut self.bytes);
        let (end, middle) = (8 * self.bytes.len(), self.bytes.len() / 2);
        self.bytes.resize(self.bytes.len() + PADDING, 0);
        let slots = slots(header)?;
        let mcus = header.frame.mcus.0 * header.frame.mcus.1;
        let starts = std::mem::take(&mut self.first);
        let mut first = Lane::new(&self.bytes, 0, (&slots, mcus), starts)?;
        self.meeting = None;
        if end / 8 < SMALL {
            first.until = end;
            level.walk(&mut first);
        } else {
            let starts = std::mem::take(&mut self.second);
            let mut second = Lane::new(&self.bytes, middle, (&slots, mcus), starts)?;
            (first.until, second.until) = (8 * middle, end);
            level.walk_two(&mut first, &mut second);
            self.meeting = meet(&mut first, &second.starts, (mcus, end), level);
            self.second = second.starts;
        }
        self.first = first.starts;
        let last = match self.meeting {
            Some((mcu, same)) => self.second.get(same + mcus - mcu),
            None => self.first.get(mcus),
        };
        let fits = last.is_some_and(|last| last.bits as usize <= end);
        (fits && self.first.iter().all(|start| start.is_sound)).then_some(())
    }

    /// Calls `put` with the starts of the given MCUs, which must be in ascending order.
    pub(super) fn points(
        &self,
        mcus: impl Iterator<Item = usize>,
        scan: usize,
        mut put: impl FnMut(Point),
    ) -> Option<()> {
        let (mut byte, mut stuffed) = (0, 0);
        for mcu in mcus {
            let (bits, predictors) = self.start(mcu)?;
            let passed = self.bytes.get(byte..bits / 8)?;
            stuffed += memchr::memchr_iter(0xff, passed).count();
            byte = bits / 8;
            let bits = (scan + stuffed) as u64 * 8 + bits as u64;
            put(Point { bits, predictors });
        }
        Some(())
    }

    fn start(&self, mcu: usize) -> Option<(usize, Predictors)> {
        let (start, offsets) = match self.meeting {
            Some((last, same)) if mcu > last => {
                let (right, other) = (self.first.get(last)?, self.second.get(same)?);
                let offset = |i: usize| right.predictors[i].wrapping_sub(other.predictors[i]);
                (
                    self.second.get(same + mcu - last)?,
                    std::array::from_fn(offset),
                )
            }
            _ => (self.first.get(mcu)?, Predictors::default()),
        };
        let predictor = |i: usize| start.predictors[i].wrapping_add(offsets[i]);
        Some((start.bits as usize, std::array::from_fn(predictor)))
    }

    /// Returns whether the starts of the second lane were used.
    #[cfg(test)]
    pub(super) fn has_met(&self) -> bool {
        self.meeting.is_some()
    }

    /// Clears all starts, and frees the memory of a large image.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        for starts in [&mut self.first, &mut self.second] {
            starts.clear();
            starts.shrink_to(KEPT / size_of::<Start>());
        }
    }
}

/// Moves the first lane to an MCU start that the second lane found too, if the second lane found
/// all later ones and no damage; otherwise to the end. Returns the index of the MCU in both lanes,
/// or `None` at the end.
fn meet(
    first: &mut Lane<'_>,
    second: &[Start],
    (mcus, end): (usize, usize),
    level: Level,
) -> Option<(usize, usize)> {
    let mut same = 0;
    loop {
        let mcu = first.starts.len() - 1;
        let last = first.starts[mcu];
        if mcu >= mcus || last.bits as usize >= end || !last.is_sound {
            return None;
        }
        while second.get(same).is_some_and(|start| start.bits < last.bits) {
            same += 1;
        }
        first.until = last.bits as usize + 1;
        if second.get(same).is_none_or(|start| start.bits == last.bits) {
            let rest = second.get(same + 1..=same + mcus - mcu);
            if rest.is_some_and(|rest| rest.iter().all(|start| start.is_sound)) {
                return Some((mcu, same));
            }
            first.until = end;
        }
        level.walk(first);
    }
}

/// Copies the data up to the next marker, without stuffing.
fn unstuff(mut rest: &[u8], out: &mut Vec<u8>) {
    out.clear();
    while let Some(at) = memchr::memchr(0xff, rest) {
        out.extend_from_slice(&rest[..at]);
        if rest.get(at + 1) != Some(&0) {
            return;
        }
        out.push(0xff);
        rest = &rest[at + 2..];
    }
    out.extend_from_slice(rest);
}
