//! A walk over the MCUs of a scan that reads only the lengths of symbols and the DC coefficients.

use super::bits::LOOKUP_BITS;
use super::entropy::{ENDED_EARLY, LEFT, Predictors, is_end};
use super::header::{Header, MCU_BLOCKS};
use super::huffman::Table;
use super::multi_symbol::{MULTI_SYMBOL_BITS, MultiSymbol, MultiSymbolTable};
use super::symbol::FAST_BITS;

/// The start of an MCU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// Offset in bits, without stuffing.
    pub(super) bits: u32,
    /// Whether the MCU before it is valid.
    pub(super) is_sound: bool,
    pub(super) predictors: Predictors,
}

/// A block of an MCU.
pub(super) struct Slot<'a> {
    component: usize,
    dc: &'a Table,
    ac: &'a Table,
    multi_symbols: &'a MultiSymbolTable,
}

/// Returns the blocks of an MCU; `None` without multi-symbols.
pub(super) fn slots(header: &Header) -> Option<Vec<Slot<'_>>> {
    let tables = header.tables();
    let multi_symbols = tables.multi_symbols?;
    let mut slots = Vec::with_capacity(MCU_BLOCKS);
    let all = tables.dc.into_iter().zip(tables.ac).zip(multi_symbols);
    for (component, ((dc, ac), multi_symbols)) in all.enumerate().take(header.frame.components) {
        let (h, v) = header.frame.factors[component];
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
    pub(super) starts: Vec<Start>,
    /// Whether the blocks of this MCU are valid so far.
    is_sound: bool,
    /// Total number of bytes.
    length: usize,
    /// The walk ends at the first MCU at or after this position, in bits,
    pub(super) until: usize,
    /// or after this number of MCUs.
    most: usize,
}

impl<'a> Lane<'a> {
    /// Starts at byte `at`, as if an MCU began there.
    pub(super) fn new(
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
