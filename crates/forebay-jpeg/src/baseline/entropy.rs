//! Entropy decoding: from bits to blocks of coefficients.
//!
//! [`read`] decodes one stream; [`read_two`] alternates between two, so that each hides the latency
//! of the other. Blocks outside the wanted region are read too, because only their bits determine
//! where the next block begins, but their coefficients are not stored. For long runs of such
//! blocks, [`Walk`] looks only at the lengths of symbols. Wrappers in [`simd`](super::simd) inline
//! the loops and compile them for newer instructions.

use super::bits::{Bits, Window};
use super::huffman::{Entry, Lookup, Table};
use super::multi_symbol::{MULTI_SYMBOL_BITS, MultiSymbolTable, NO_MULTI_SYMBOLS};
use super::symbol::{END_OF_BLOCK, FAST_BITS};
use std::cell::Cell;
use std::ops::RangeInclusive;

/// Coefficients of two blocks side by side (row 0 of the first, row 0 of the second, row 1 of the
/// first, ...), followed by a slot for writes that are to be ignored.
pub(crate) const PAIR: usize = 144;
/// Offset from the first block of a pair to the second.
pub(crate) const SECOND: usize = 8;
/// Length of a block's view of the coefficients, which every `u8` can index. Views overlap, hence
/// the cells.
const VIEW: usize = 256;
/// Space needed after the last pair, so that its second block has a complete view.
pub(crate) const TAIL: usize = VIEW;
/// Slot for coefficients with an index over 63, after the pair's 128 coefficients.
const NOWHERE: u8 = 128;

/// Row-major positions of the coefficients, in zigzag order.
pub(crate) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Remainder of a block after its DC coefficient: 62 minus the index of the last coefficient read.
/// The byte is negative from the last coefficient on.
pub(super) const LEFT: u8 = 62;
/// Remainder after the last coefficient.
const ALL: i8 = -1;
/// Remainders after an end-of-block symbol at any index. Runs past the last coefficient leave a
/// larger value, and an end of block after them leaves a smaller one.
const ENDED: RangeInclusive<i8> = -(END_OF_BLOCK as i8)..=LEFT as i8 - END_OF_BLOCK as i8;

/// Remainder, as a part of the state, of a block with an invalid code.
pub(super) const ENDED_EARLY: u32 = 0xfe00;

/// Position in a pair, by the remainder after reading the coefficient.
static PLACE: [u8; 256] = {
    let mut place = [NOWHERE; 256];
    let mut i = 0u8;
    while i < 64 {
        let natural = ZIGZAG[i as usize];
        place[LEFT.wrapping_sub(i) as usize] = (natural / 8) * 16 + natural % 8;
        i += 1;
    }
    place
};

/// Maximum number of components: three, rounded up so that masking replaces bound checks.
const COMPONENTS: usize = 4;

/// DC predictors by component.
pub(super) type Predictors = [i32; COMPONENTS];

/// The tables of a scan, by component.
#[derive(Clone, Copy)]
pub(super) struct Tables<'a> {
    pub(super) dc: [&'a Table; COMPONENTS],
    pub(super) ac: [&'a Table; COMPONENTS],
    pub(super) multi_symbols: Option<[&'a MultiSymbolTable; COMPONENTS]>,
}

/// A block of an MCU: its component, and the position of its coefficients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) component: u8,
    pub(super) offset: u32,
}

/// State of one stream: window, bits and predictors.
pub(super) struct Reader<'a> {
    pub(super) window: &'a Window,
    pub(super) bits: &'a mut Bits,
    pub(super) predictors: &'a mut Predictors,
    /// Sum, over the stored blocks, of the index that their codes reach: the index of the last
    /// nonzero coefficient, unless codes represent trailing zeros.
    pub(super) reached: &'a mut u64,
}

/// A block in progress: only the state needed per symbol, so that the compiler can keep two of them
/// in registers. The second byte of `bits.state` is the remainder of the block (see [`LEFT`]), so
/// one subtraction updates both counts.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    window: &'a Window,
    bits: Bits,
    lookup: &'a Lookup,
    multi_symbols: &'a MultiSymbolTable,
    out: &'a [Cell<i16>; VIEW],
}

impl Block<'_> {
    /// Returns the remainder of the block.
    #[inline(always)]
    fn left(&self) -> u8 {
        (self.bits.state >> 8) as u8
    }

    /// Returns whether the block has ended, or the symbol is not in the lookup.
    #[inline(always)]
    fn stopped(&self) -> bool {
        (self.bits.state as i16) < 0
    }

    #[inline(always)]
    fn refill(&mut self) {
        self.bits.refill(self.window);
    }

    /// Reads a symbol. If [`Block::stopped`] is true afterwards, [`Side::next`] must handle it.
    #[inline(always)]
    fn symbol<const KEEP: bool>(&mut self) -> Entry {
        let entry = self.lookup[self.bits.index()];
        let bits = self.bits.peek();
        self.bits.consume(entry.step());
        if KEEP {
            let value = entry.value(bits);
            self.out[usize::from(PLACE[usize::from(self.left())])].set(value as i16);
        }
        entry
    }

    /// Skips several symbols. Returns `true` if the block has ended (it is then [`stopped`](Block::stopped)), or
    /// if nothing was skipped because the block may end among them.
    #[inline(always)]
    fn multi_symbol(&mut self) -> bool {
        let multi_symbol =
            self.multi_symbols[(self.bits.peek() >> (64 - MULTI_SYMBOL_BITS)) as usize];
        let state = self.bits.state.wrapping_sub(multi_symbol.step());
        if (state as i16) < 0 {
            if !multi_symbol.is_slow() && is_end((state >> 8) as i8) {
                self.bits.consume(multi_symbol.step());
            }
            return true;
        }
        self.bits.consume(multi_symbol.step());
        false
    }

    /// Returns the index that the codes of a validly ended block reach.
    #[inline(always)]
    fn reached(&self) -> u8 {
        let left = self.left();
        let left = if left as i8 == ALL {
            left
        } else {
            left.wrapping_add(END_OF_BLOCK)
        };
        LEFT.wrapping_sub(left)
    }

    /// Returns whether an ended block is valid: it ends with its last coefficient or an end of block.
    #[inline(always)]
    fn is_sound(&self) -> bool {
        is_end(self.left() as i8)
    }
}

/// Returns whether this remainder is that of a valid end of block.
#[inline(always)]
pub(super) fn is_end(left: i8) -> bool {
    left == ALL || ENDED.contains(&left)
}

/// One stream in progress: the state needed between blocks.
pub(super) struct Side<'a> {
    tables: Tables<'a>,
    /// The AC table of the current block.
    table: &'a Table,
    slots: std::slice::Iter<'a, Slot>,
    coefficients: &'a [Cell<i16>],
    predictors: Predictors,
    /// See [`Reader::reached`].
    reached: u64,
    /// Whether all blocks so far were valid.
    sound: bool,
}

impl<'a> Side<'a> {
    /// Starts the first block; `None` if there are no slots.
    #[inline(always)]
    fn open<W: Way>(
        reader: &Reader<'a>,
        tables: &Tables<'a>,
        slots: &'a [Slot],
        coefficients: &'a [Cell<i16>],
    ) -> Option<(Self, Block<'a>)> {
        let table = tables.ac[0];
        let mut block = Block {
            window: reader.window,
            bits: *reader.bits,
            lookup: table.lookup(),
            multi_symbols: &NO_MULTI_SYMBOLS,
            out: view(coefficients, 0),
        };
        let mut side = Self {
            tables: *tables,
            table,
            slots: slots.iter(),
            coefficients,
            predictors: *reader.predictors,
            reached: *reader.reached,
            sound: true,
        };
        let none = if W::KEEP {
            side.start::<true>(&mut block)
        } else {
            side.start::<false>(&mut block)
        };
        (!none).then_some((side, block))
    }

    /// Stores the decoding position in the reader. Returns whether all blocks were valid.
    #[inline(always)]
    fn close(self, block: &Block<'a>, reader: Reader<'_>) -> bool {
        *reader.bits = block.bits;
        *reader.predictors = self.predictors;
        *reader.reached = self.reached;
        self.sound
    }

    /// Starts the next block by reading its DC coefficient. Returns `true` if there is no next
    /// block. Afterwards as many bits are valid as after a refill and one symbol.
    #[inline(always)]
    fn start<const KEEP: bool>(&mut self, block: &mut Block<'a>) -> bool {
        let Some(slot) = self.slots.next() else {
            return true;
        };
        let component = usize::from(slot.component) % COMPONENTS;
        block.refill();
        let table = self.tables.dc[component];
        let entry = table.lookup()[block.bits.index()];
        let mut difference = entry.value(block.bits.peek());
        if entry.is_slow() {
            if let Some(symbol) = table.slow(block.bits.peek()) {
                block.bits.consume(symbol.length);
                difference = symbol.value;
            } else {
                self.sound = false;
            }
            block.refill();
        } else {
            block.bits.consume(entry.step());
        }
        let predictor = &mut self.predictors[component];
        *predictor = predictor.wrapping_add(difference);
        if KEEP {
            block.out = view(self.coefficients, slot.offset);
            block.out[0].set(*predictor as i16);
        }
        block.bits.state = block.bits.state & 0xff | u32::from(LEFT) << 8;
        self.table = self.tables.ac[component];
        block.lookup = self.table.lookup();
        if let Some(multi_symbols) = &self.tables.multi_symbols {
            block.multi_symbols = multi_symbols[component];
        }
        false
    }

    /// Handles a block that [`stopped`](Block::stopped) with `entry`: reads the symbol that is not
    /// in the lookup, or starts the next block. Returns `true` if there is no next block.
    #[inline(always)]
    fn next<const KEEP: bool>(&mut self, block: &mut Block<'a>, entry: Entry) -> bool {
        if entry.is_slow() {
            let left = block.left().wrapping_add((entry.step() >> 8) as u8);
            block.bits.state &= 0xff;
            block.refill();
            if let Some(symbol) = self.table.slow(block.bits.peek()) {
                block.bits.consume(symbol.length);
                let left = left.wrapping_sub(symbol.advance);
                block.bits.state |= u32::from(left) << 8;
                if KEEP {
                    block.out[usize::from(PLACE[usize::from(left)])].set(symbol.value as i16);
                }
                if !block.stopped() {
                    return false;
                }
            } else {
                block.bits.state |= ENDED_EARLY;
            }
        }
        self.sound &= block.is_sound();
        if KEEP {
            self.reached = self.reached.wrapping_add(u64::from(block.reached()));
        }
        self.start::<KEEP>(block)
    }

    /// Continues after a multi-symbol that did nothing or ended the block: skips one symbol, unless
    /// the block has ended, then starts the next block. Returns `true` if there is no next block.
    #[inline(always)]
    fn walk_on(&mut self, block: &mut Block<'a>) -> bool {
        if block.stopped() {
            self.sound &= block.is_sound();
            return self.start::<false>(block);
        }
        block.refill();
        let entry = block.symbol::<false>();
        block.stopped() && self.next::<false>(block, entry)
    }

    /// Processes all remaining blocks.
    #[inline(always)]
    fn finish<W: Way>(&mut self, block: &mut Block<'a>) {
        loop {
            let mut hot = *block;
            let stop = loop {
                hot.refill();
                let (stopped, stop) = W::step(&mut hot);
                if stopped {
                    break stop;
                }
                let (stopped, stop) = W::step(&mut hot);
                if stopped {
                    break stop;
                }
                let (stopped, stop) = W::step(&mut hot);
                if stopped {
                    break stop;
                }
            };
            *block = hot;
            if W::go_on(self, block, stop) {
                return;
            }
        }
    }
}

/// Number of steps per refill: a step takes at most [`FAST_BITS`] bits. The steps are unrolled by
/// hand, because the compiler generates slower code for a loop.
const STEPS: u32 = 3;
const _: () = assert!(STEPS * FAST_BITS <= 56);

/// How blocks are processed: read or skipped.
pub(super) trait Way {
    /// Whether coefficients are stored.
    const KEEP: bool;
    /// The part of a step's result that the next step does not need.
    type Stop: Copy;

    /// Performs a step. Returns whether [`Way::go_on`] has to be called.
    fn step(block: &mut Block<'_>) -> (bool, Self::Stop);

    /// Handles the cases that steps cannot. Returns `true` if there are no more blocks.
    fn go_on<'a>(side: &mut Side<'a>, block: &mut Block<'a>, stop: Self::Stop) -> bool;
}

/// Reads symbols, and stores coefficients if `KEEP`.
pub(super) struct Read<const KEEP: bool>;

impl<const KEEP: bool> Way for Read<KEEP> {
    const KEEP: bool = KEEP;
    type Stop = Entry;

    #[inline(always)]
    fn step(block: &mut Block<'_>) -> (bool, Entry) {
        let entry = block.symbol::<KEEP>();
        (block.stopped(), entry)
    }

    #[inline(always)]
    fn go_on<'a>(side: &mut Side<'a>, block: &mut Block<'a>, entry: Entry) -> bool {
        side.next::<KEEP>(block, entry)
    }
}

/// Skips blocks with the tables' multi-symbols, which must have been built.
pub(super) struct Walk;

impl Way for Walk {
    const KEEP: bool = false;
    type Stop = ();

    #[inline(always)]
    fn step(block: &mut Block<'_>) -> (bool, ()) {
        (block.multi_symbol(), ())
    }

    #[inline(always)]
    fn go_on<'a>(side: &mut Side<'a>, block: &mut Block<'a>, (): ()) -> bool {
        side.walk_on(block)
    }
}

#[inline(always)]
fn view(coefficients: &[Cell<i16>], offset: u32) -> &[Cell<i16>; VIEW] {
    let offset = offset as usize;
    coefficients[offset..offset + VIEW]
        .first_chunk()
        .expect("a slice of VIEW coefficients")
}

fn cells(coefficients: &mut [i16]) -> &[Cell<i16>] {
    Cell::from_mut(coefficients).as_slice_of_cells()
}

/// Processes a block per slot. Returns `false` if the bits are not valid blocks; the stored
/// coefficients are then undefined.
#[inline(always)]
pub(super) fn read<W: Way>(
    reader: Reader<'_>,
    tables: &Tables<'_>,
    slots: &[Slot],
    coefficients: &mut [i16],
) -> bool {
    let coefficients = cells(coefficients);
    let Some((mut side, mut block)) = Side::open::<W>(&reader, tables, slots, coefficients) else {
        return true;
    };
    side.finish::<W>(&mut block);
    side.close(&block, reader)
}

/// Processes a block per slot of each of two independent streams; see [`read`].
#[inline(always)]
pub(super) fn read_two<W: Way>(
    [first, second]: [Reader<'_>; 2],
    tables: &Tables<'_>,
    slots: &[Slot],
    coefficients: [&mut [i16]; 2],
) -> bool {
    let [to_first, to_second] = coefficients.map(cells);
    let (Some((mut side_a, mut block_a)), Some((mut side_b, mut block_b))) = (
        Side::open::<W>(&first, tables, slots, to_first),
        Side::open::<W>(&second, tables, slots, to_second),
    ) else {
        return true;
    };
    loop {
        let (mut a, mut b) = (block_a, block_b);
        // Leaves the loop when the block of this stream stops.
        macro_rules! step {
            ($block:ident is_first: $is_first:literal) => {
                let (stopped, stop) = W::step(&mut $block);
                if stopped {
                    break ($is_first, stop);
                }
            };
        }
        let (is_first, stop) = loop {
            a.refill();
            b.refill();
            step!(a is_first: true);
            step!(b is_first: false);
            step!(a is_first: true);
            step!(b is_first: false);
            step!(a is_first: true);
            step!(b is_first: false);
        };
        (block_a, block_b) = (a, b);
        // When one stream has no more blocks, the other one continues alone.
        if is_first {
            if W::go_on(&mut side_a, &mut block_a, stop) {
                side_b.finish::<W>(&mut block_b);
                break;
            }
        } else if W::go_on(&mut side_b, &mut block_b, stop) {
            side_a.finish::<W>(&mut block_a);
            break;
        }
    }
    side_a.close(&block_a, first) & side_b.close(&block_b, second)
}
