//! Blocks of coefficients out of bits.
//!
//! Three loops: [`decode`] reads one stream, [`decode_two`] reads two in turns, so that the latencies of one are
//! hidden behind the other's, [`walk`] reads nothing but lengths. The first two are generic in whether coefficients are kept: blocks outside the wanted
//! region are read, because only their bits say where the next block begins, but nothing is stored.
//! The loops are inlined into wrappers in [`simd`](super::simd) that allow the compiler newer instructions.

use super::bits::{Bits, Window};
use super::huffman::{END_OF_BLOCK, NOT_HERE, Table};
use super::strides::{STRIDE_BITS, Strides};
use std::cell::Cell;

/// Coefficients of two blocks side by side (row 0 of the first, row 0 of the second, row 1 of the first, ...),
/// then a place to which loops write what belongs nowhere.
pub(super) const PAIR: usize = 144;
/// From the first block of a pair to the second.
pub(super) const SECOND: usize = 8;
/// A block's view of the coefficients: any byte is an index into it. Views overlap, hence the cells.
const VIEW: usize = 256;
/// Room needed after the last pair, so that its second block has a whole view.
pub(super) const TAIL: usize = VIEW;
/// Where an index over 63 puts a coefficient: past the pair's 128.
const NOWHERE: u8 = 128;

/// Row-major place of the coefficients in the order of the file.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Place in a pair by coefficient index.
static PLACE: [u8; 256] = {
    let mut place = [NOWHERE; 256];
    let mut i = 0;
    while i < 64 {
        place[i] = (ZIGZAG[i] / 8) * 16 + ZIGZAG[i] % 8;
        i += 1;
    }
    place
};

/// Components at most: three, rounded up so that masking replaces bound checks.
const COMPONENTS: usize = 4;

/// DC predictors by component.
pub(super) type Predictors = [i32; COMPONENTS];

/// The tables of a scan, by component.
#[derive(Clone, Copy)]
pub(super) struct Tables<'a> {
    pub(super) dc: [&'a Table; COMPONENTS],
    pub(super) ac: [&'a Table; COMPONENTS],
    pub(super) strides: Option<[&'a Strides; COMPONENTS]>,
}

/// A block of an MCU: its component and where its coefficients go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) component: u8,
    pub(super) offset: u32,
}

/// Where one stream is: its window, bits and predictors.
pub(super) struct Reader<'a> {
    pub(super) window: &'a Window,
    pub(super) bits: &'a mut Bits,
    pub(super) predictors: &'a mut Predictors,
}

/// One block being read: a copy of the reader's state that the compiler can hold in registers.
struct Block<'a> {
    window: &'a Window,
    bits: Bits,
    /// Index of the last coefficient read; over 63 when the block is over.
    index: u8,
    table: &'a Table,
    out: &'a [Cell<i16>; VIEW],
}

impl<'a> Block<'a> {
    /// Reads the DC coefficient; `false` if its code is none.
    #[inline(always)]
    fn start<const KEEP: bool>(
        &mut self,
        tables: &Tables<'a>,
        slot: Slot,
        predictors: &mut Predictors,
    ) -> bool {
        let component = usize::from(slot.component) % COMPONENTS;
        self.bits.refill(self.window);
        let table = tables.dc[component];
        let entry = table.entry(&self.bits);
        let mut difference = entry.value(self.bits.peek());
        self.bits.consume(entry.length());
        let mut sound = true;
        if entry.is_slow() {
            if let Some(symbol) = table.slow(self.bits.peek()) {
                self.bits.consume(symbol.length);
                difference = symbol.value;
            } else {
                sound = false;
            }
            self.bits.refill(self.window);
        }
        let predictor = &mut predictors[component];
        *predictor = predictor.wrapping_add(difference);
        if KEEP {
            self.out[0].set(*predictor as i16);
        }
        self.index = 0;
        self.table = tables.ac[component];
        sound
    }

    /// Reads a symbol; `true` if [`Block::settle`] must say what that means.
    #[inline(always)]
    fn symbol<const KEEP: bool>(&mut self) -> bool {
        let entry = self.table.entry(&self.bits);
        self.index = self.index.wrapping_add(entry.advance());
        if KEEP {
            let value = entry.value(self.bits.peek());
            self.out[usize::from(PLACE[usize::from(self.index)])].set(value as i16);
        }
        self.bits.consume(entry.length());
        self.index >= 63
    }

    /// Walks over symbols; `true` if the block is over (`index` is then over 62), or if nothing was done because
    /// it may be over in the midst of them.
    #[inline(always)]
    fn stride(&mut self, strides: &Strides) -> bool {
        let stride = strides[(self.bits.peek() >> (64 - STRIDE_BITS)) as usize];
        let index = self.index.wrapping_add(stride.advance());
        if index >= 63 {
            let over = index == 63 || (END_OF_BLOCK..=END_OF_BLOCK + 62).contains(&index);
            if over {
                self.index = index;
                self.bits.consume(stride.length());
            }
            return true;
        }
        self.index = index;
        self.bits.consume(stride.length());
        false
    }

    /// Reads a symbol that is not in the lookup, if that is why `index` is where it is. `true` if the block
    /// is over. Afterwards as many bits are valid as after a refill.
    #[inline(always)]
    fn settle<const KEEP: bool>(&mut self) -> bool {
        if self.index >= NOT_HERE {
            self.index -= NOT_HERE;
            self.bits.refill(self.window);
            // Without a code the index stays over 63 and short of an end: `is_sound` tells.
            let Some(symbol) = self.table.slow(self.bits.peek()) else {
                self.index = 64;
                return true;
            };
            self.bits.consume(symbol.length);
            self.bits.refill(self.window);
            self.index += symbol.advance;
            if KEEP {
                self.out[usize::from(PLACE[usize::from(self.index)])].set(symbol.value as i16);
            }
        }
        self.index >= 63
    }

    /// Whether the block ended with its last coefficient or an end of block: runs that reach past the last
    /// coefficient end between the two.
    #[inline(always)]
    fn is_sound(&self) -> bool {
        self.index == 63 || self.index >= END_OF_BLOCK
    }
}

#[inline(always)]
fn view(coefficients: &[Cell<i16>], offset: u32) -> &[Cell<i16>; VIEW] {
    let offset = offset as usize;
    coefficients[offset..offset + VIEW]
        .first_chunk()
        .expect("a slice of VIEW coefficients")
}

/// Reads a block per slot. `false` if the bits are no legal blocks; what was stored is then arbitrary.
#[inline(always)]
pub(super) fn decode<const KEEP: bool>(
    reader: Reader<'_>,
    tables: &Tables<'_>,
    slots: &[Slot],
    coefficients: &mut [i16],
) -> bool {
    let coefficients = Cell::from_mut(coefficients).as_slice_of_cells();
    let mut bits = *reader.bits;
    let mut predictors = *reader.predictors;
    let mut sound = true;
    for &slot in slots {
        let mut block = Block {
            window: reader.window,
            bits,
            index: 0,
            table: tables.ac[0],
            out: view(coefficients, slot.offset),
        };
        sound &= block.start::<KEEP>(tables, slot, &mut predictors);
        // A DC and two AC symbols, then three AC symbols for each refill.
        let mut settle = block.symbol::<KEEP>() || block.symbol::<KEEP>();
        loop {
            if settle && block.settle::<KEEP>() {
                break;
            }
            block.bits.refill(block.window);
            settle = block.symbol::<KEEP>() || block.symbol::<KEEP>() || block.symbol::<KEEP>();
        }
        sound &= block.is_sound();
        bits = block.bits;
    }
    *reader.bits = bits;
    *reader.predictors = predictors;
    sound
}

/// Walks over a block per slot with strides; see [`decode`]. `coefficients` are not written to.
#[inline(always)]
pub(super) fn walk(
    reader: Reader<'_>,
    tables: &Tables<'_>,
    strides: &[&Strides; COMPONENTS],
    slots: &[Slot],
    coefficients: &mut [i16],
) -> bool {
    let coefficients = Cell::from_mut(coefficients).as_slice_of_cells();
    let mut predictors = *reader.predictors;
    let mut sound = true;
    let mut block = Block {
        window: reader.window,
        bits: *reader.bits,
        index: 0,
        table: tables.ac[0],
        out: view(coefficients, 0),
    };
    for &slot in slots {
        let strides = strides[usize::from(slot.component) % COMPONENTS];
        sound &= block.start::<false>(tables, slot, &mut predictors);
        loop {
            block.bits.refill(block.window);
            if block.stride(strides) || block.stride(strides) || block.stride(strides) {
                // The block is over, or something is so near its end that symbols must be taken one by one.
                if block.index >= 63 {
                    break;
                }
                block.bits.refill(block.window);
                if block.symbol::<false>() && block.settle::<false>() {
                    break;
                }
            }
        }
        sound &= block.is_sound();
    }
    *reader.bits = block.bits;
    *reader.predictors = predictors;
    sound
}

/// Reads a block per slot from each of two streams, which may be anywhere; see [`decode`].
#[inline(always)]
pub(super) fn decode_two<const KEEP: bool>(
    first: Reader<'_>,
    second: Reader<'_>,
    tables: &Tables<'_>,
    slots: &[Slot],
    coefficients: [&mut [i16]; 2],
) -> bool {
    let [to_first, to_second] =
        coefficients.map(|coefficients| Cell::from_mut(coefficients).as_slice_of_cells());
    let (mut slots_a, mut slots_b) = (slots.iter(), slots.iter());
    let (Some(&slot_a), Some(&slot_b)) = (slots_a.next(), slots_b.next()) else {
        return true;
    };
    let (mut predictors_a, mut predictors_b) = (*first.predictors, *second.predictors);
    let mut a = Block {
        window: first.window,
        bits: *first.bits,
        index: 0,
        table: tables.ac[0],
        out: view(to_first, slot_a.offset),
    };
    let mut b = Block {
        window: second.window,
        bits: *second.bits,
        index: 0,
        table: tables.ac[0],
        out: view(to_second, slot_b.offset),
    };
    let mut sound = a.start::<KEEP>(tables, slot_a, &mut predictors_a);
    sound &= b.start::<KEEP>(tables, slot_b, &mut predictors_b);
    // A symbol of one stream; the next block is begun where one ends.
    macro_rules! step {
        ($block:ident, $slots:ident, $to:ident, $predictors:ident, $done:lifetime) => {
            if $block.symbol::<KEEP>() && $block.settle::<KEEP>() {
                sound &= $block.is_sound();
                let Some(&slot) = $slots.next() else {
                    break $done;
                };
                $block.out = view($to, slot.offset);
                sound &= $block.start::<KEEP>(tables, slot, &mut $predictors);
            }
        };
    }
    let mut unfinished_b = true;
    let mut unfinished_a = true;
    'both: {
        'a: {
            'b: {
                loop {
                    a.bits.refill(a.window);
                    b.bits.refill(b.window);
                    step!(a, slots_a, to_first, predictors_a, 'a);
                    step!(b, slots_b, to_second, predictors_b, 'b);
                    step!(a, slots_a, to_first, predictors_a, 'a);
                    step!(b, slots_b, to_second, predictors_b, 'b);
                    step!(a, slots_a, to_first, predictors_a, 'a);
                    step!(b, slots_b, to_second, predictors_b, 'b);
                }
            }
            unfinished_b = false;
            break 'both;
        }
        unfinished_a = false;
    }
    // The other goes on alone.
    if unfinished_a {
        'end: loop {
            a.bits.refill(a.window);
            step!(a, slots_a, to_first, predictors_a, 'end);
            step!(a, slots_a, to_first, predictors_a, 'end);
            step!(a, slots_a, to_first, predictors_a, 'end);
        }
    }
    if unfinished_b {
        'end: loop {
            b.bits.refill(b.window);
            step!(b, slots_b, to_second, predictors_b, 'end);
            step!(b, slots_b, to_second, predictors_b, 'end);
            step!(b, slots_b, to_second, predictors_b, 'end);
        }
    }
    *first.bits = a.bits;
    *second.bits = b.bits;
    *first.predictors = predictors_a;
    *second.predictors = predictors_b;
    sound
}
