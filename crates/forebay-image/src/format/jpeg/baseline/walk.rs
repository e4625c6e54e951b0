//! Finds the starts of all MCUs of a scan, decoding from its start and from its middle at once.
//!
//! A Huffman decoder that starts at any position soon synchronizes: from the start of some MCU on,
//! it reads the same codes as a decoder from the start. So one [`Lane`] walks over the first half
//! of a scan and another one over the second half, in alternation, so that each hides the latency
//! of the other. Then the first lane continues until it reaches an MCU start that the second lane
//! found too. All later starts of the second lane are right; its DC predictors differ by constants.

use super::bits::{BLOCK_BYTES, LOOKUP_BITS};
use super::entropy::{ENDED_EARLY, LEFT, Predictors, is_end};
use super::header::Header;
use super::huffman::Table;
use super::multi_symbol::{MULTI_SYMBOL_BITS, MultiSymbol, MultiSymbolTable};
use super::scan::MCU_BLOCKS;
use super::seek::Point;
use super::simd::Level;
use super::symbol::FAST_BITS;

/// Maximum length of entropy-coded data and maximum number of MCUs, which limit the memory.
const MAX_BYTES: usize = 16 << 20;
const MAX_MCUS: usize = 1 << 18;
/// Length of entropy-coded data up to which a second lane gains nothing.
const SMALL: usize = 4 << 10;
/// Number of zeros after the data: an MCU that begins in the data ends before their end.
const PADDING: usize = (MCU_BLOCKS + 1) * BLOCK_BYTES;
/// Capacity in bytes of each buffer that is kept from image to image.
const KEPT: usize = 1 << 20;

/// The start of an MCU.
#[derive(Debug, Clone, Copy)]
struct Start {
    /// Offset in bits, without stuffing.
    bits: u32,
    /// Whether the MCU before it is valid.
    is_sound: bool,
    predictors: Predictors,
}

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
        let (across, down) = header.mcus();
        jpeg.len() - header.scan <= MAX_BYTES && across * down <= MAX_MCUS
    }

    /// Walks over a scan without restart markers, with the multi-symbols of its tables. Returns
    /// `None` if the scan is damaged.
    pub(super) fn find(&mut self, jpeg: &[u8], header: &Header, level: Level) -> Option<()> {
        unstuff(&jpeg[header.scan..], &mut self.bytes);
        let (end, middle) = (8 * self.bytes.len(), self.bytes.len() / 2);
        self.bytes.resize(self.bytes.len() + PADDING, 0);
        let slots = slots(header)?;
        let mcus = header.mcus().0 * header.mcus().1;
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

/// A block of an MCU.
struct Slot<'a> {
    component: usize,
    dc: &'a Table,
    ac: &'a Table,
    multi_symbols: &'a MultiSymbolTable,
}

/// Returns the blocks of an MCU; `None` without multi-symbols.
fn slots(header: &Header) -> Option<Vec<Slot<'_>>> {
    let tables = header.tables();
    let multi_symbols = tables.multi_symbols?;
    let mut slots = Vec::with_capacity(MCU_BLOCKS);
    let all = tables.dc.into_iter().zip(tables.ac).zip(multi_symbols);
    for (component, ((dc, ac), multi_symbols)) in all.enumerate().take(header.components) {
        let (h, v) = header.factors(component);
        slots.extend((0..h * v).map(|_| Slot {
            component,
            dc,
            ac,
            multi_symbols,
        }));
    }
    Some(slots)
}

/// A block in progress: only the state needed per step, so that the compiler can keep two of them in
/// registers.
#[derive(Clone, Copy)]
struct Block<'a> {
    /// The bytes that have not been loaded.
    rest: &'a [u8],
    /// The next bits, the first one in the highest bit.
    next: u64,
    /// The lowest six bits hold the number of valid bits, the second byte the remainder of the
    /// block; see [`entropy`](super::entropy).
    state: u32,
    multi_symbols: &'a MultiSymbolTable,
}

impl Block<'_> {
    /// Makes at least 56 bits valid.
    #[inline(always)]
    fn refill(&mut self) {
        if let Some(word) = self.rest.first_chunk::<8>() {
            self.next |= u64::from_be_bytes(*word) >> (self.state & 63);
            self.rest = &self.rest[(!self.state >> 3 & 7) as usize..];
            self.state |= 56;
        }
    }

    /// Removes the number of bits in the lowest six bits of `step`.
    #[inline(always)]
    fn shift(&mut self, step: u32) {
        self.next <<= step & 63;
    }

    #[inline(always)]
    fn consume(&mut self, step: u32) {
        self.shift(step);
        self.state = self.state.wrapping_sub(step);
    }

    #[inline(always)]
    fn has_ended(&self) -> bool {
        (self.state as i16) < 0
    }

    /// Returns whether an ended block is valid.
    #[inline(always)]
    fn is_sound(&self) -> bool {
        is_end((self.state >> 8) as i8)
    }

    /// Skips several symbols; if the block may end among them, changes `state` only.
    #[inline(always)]
    fn step(&mut self) -> MultiSymbol {
        let multi_symbol = self.multi_symbols[(self.next >> (64 - MULTI_SYMBOL_BITS)) as usize];
        self.state = self.state.wrapping_sub(multi_symbol.step());
        if !self.has_ended() {
            self.shift(multi_symbol.step());
        }
        multi_symbol
    }
}

/// Number of steps per refill; see [`entropy`](super::entropy).
const STEPS: u32 = 3;
const _: () = assert!(STEPS * FAST_BITS <= 56);

/// A walk over MCUs.
pub(super) struct Lane<'a> {
    block: Block<'a>,
    /// The AC table of the current block.
    table: &'a Table,
    /// The blocks of an MCU, and the blocks of the current MCU that have not been started.
    slots: &'a [Slot<'a>],
    left: std::slice::Iter<'a, Slot<'a>>,
    predictors: Predictors,
    starts: Vec<Start>,
    /// Whether the blocks of this MCU are valid so far.
    is_sound: bool,
    /// Total number of bytes.
    length: usize,
    /// The walk ends at the first MCU at or after this position, in bits,
    until: usize,
    /// or after this number of MCUs.
    most: usize,
}

impl<'a> Lane<'a> {
    /// Starts at byte `at`, as if an MCU began there.
    fn new(
        bytes: &'a [u8],
        at: usize,
        (slots, most): (&'a [Slot<'a>], usize),
        mut starts: Vec<Start>,
    ) -> Option<Self> {
        starts.clear();
        let slot = slots.first()?;
        let block = Block {
            rest: bytes.get(at..)?,
            next: 0,
            state: 0,
            multi_symbols: slot.multi_symbols,
        };
        let mut lane = Self {
            block,
            table: slot.ac,
            slots,
            left: slots.iter(),
            predictors: Predictors::default(),
            starts,
            is_sound: true,
            length: bytes.len(),
            until: 0,
            most,
        };
        lane.add_start(&block);
        Some(lane)
    }

    /// Adds the start of an MCU. Returns `true` if the walk ends there.
    #[inline(always)]
    fn add_start(&mut self, block: &Block<'a>) -> bool {
        let loaded = self.length - block.rest.len();
        let bits = 8 * loaded - (block.state & 63) as usize;
        self.starts.push(Start {
            bits: bits as u32,
            is_sound: self.is_sound,
            predictors: self.predictors,
        });
        self.is_sound = true;
        self.left = self.slots.iter();
        bits >= self.until || self.starts.len() > self.most
    }

    /// Starts the next block of an MCU by reading its DC coefficient.
    #[inline(always)]
    fn start(&mut self, block: &mut Block<'a>) {
        let Some(slot) = self.left.next() else {
            return;
        };
        block.refill();
        let entry = slot.dc.lookup()[(block.next >> (64 - LOOKUP_BITS)) as usize];
        let mut difference = entry.value(block.next);
        if !entry.is_slow() {
            block.consume(entry.step());
        } else if let Some(symbol) = slot.dc.slow(block.next) {
            block.consume(symbol.length);
            difference = symbol.value;
        } else {
            block.consume(1);
            self.is_sound = false;
        }
        let predictor = &mut self.predictors[slot.component % 4];
        *predictor = predictor.wrapping_add(difference);
        block.state = block.state & 0xff | u32::from(LEFT) << 8;
        self.table = slot.ac;
        block.multi_symbols = slot.multi_symbols;
    }

    /// Continues after a step that ended the block or found no symbols; starts the next block if
    /// this one has ended. Returns `true` if the walk ends.
    #[inline(always)]
    fn go_on(&mut self, block: &mut Block<'a>, last: MultiSymbol) -> bool {
        if !last.is_slow() && block.is_sound() {
            block.shift(last.step());
        } else {
            block.state = block.state.wrapping_add(last.step());
            self.skip_symbol(block);
            if !block.has_ended() {
                return false;
            }
        }
        if self.left.len() == 0 && self.add_start(block) {
            self.block = *block;
            return true;
        }
        self.start(block);
        false
    }

    /// Skips one symbol.
    #[inline(always)]
    fn skip_symbol(&mut self, block: &mut Block<'a>) {
        block.refill();
        let entry = self.table.lookup()[(block.next >> (64 - LOOKUP_BITS)) as usize];
        if !entry.is_slow() {
            block.consume(entry.step());
        } else if let Some(symbol) = self.table.slow(block.next) {
            block.consume(symbol.length | u32::from(symbol.advance) << 8);
        } else {
            block.consume(1);
            block.state = block.state & 0xff | ENDED_EARLY;
        }
        self.is_sound &= !block.has_ended() || block.is_sound();
    }

    #[inline(always)]
    fn finish(&mut self, mut block: Block<'a>) {
        loop {
            // Leaves the loop when the block ends.
            macro_rules! step {
                () => {
                    let last = block.step();
                    if block.has_ended() {
                        break last;
                    }
                };
            }
            let last = loop {
                block.refill();
                step!();
                step!();
                step!();
            };
            if self.go_on(&mut block, last) {
                return;
            }
        }
    }
}

/// Continues a walk that is at the start of an MCU.
#[inline(always)]
pub(super) fn walk(lane: &mut Lane<'_>) {
    let mut block = lane.block;
    lane.start(&mut block);
    lane.finish(block);
}

/// Continues two walks in alternation.
#[inline(always)]
pub(super) fn walk_two(first: &mut Lane<'_>, second: &mut Lane<'_>) {
    let (mut a, mut b) = (first.block, second.block);
    first.start(&mut a);
    second.start(&mut b);
    loop {
        // Leaves the loop when the block of this lane ends.
        macro_rules! step {
            ($block:ident is_first: $is_first:literal) => {
                let last = $block.step();
                if $block.has_ended() {
                    break ($is_first, last);
                }
            };
        }
        let (is_first, last) = loop {
            a.refill();
            b.refill();
            step!(a is_first: true);
            step!(b is_first: false);
            step!(a is_first: true);
            step!(b is_first: false);
            step!(a is_first: true);
            step!(b is_first: false);
        };
        // When one walk ends, the other one continues alone.
        if is_first {
            if first.go_on(&mut a, last) {
                return second.finish(b);
            }
        } else if second.go_on(&mut b, last) {
            return first.finish(a);
        }
    }
}
