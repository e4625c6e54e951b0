//! Control bytes of a tile: lengths of bitmaps, bitmaps, and widths of fields, either raw or in
//! Huffman codes of at most 10 bits.
//!
//! No tables are built per image: there are [`SETS`] sets of tables, and an image contains the
//! number of its set. A set has a table for each of [`CONTEXTS`] contexts. The codes are in four
//! streams, which are read in alternation to hide latencies.

use super::tile::{Control, MAX_BLOCKS, WINDOW, Window, word};
use std::sync::OnceLock;

/// Length of the longest code, in bits.
pub(super) const MAX_CODE: u32 = 10;
/// Number of sets of tables.
pub(super) const SETS: usize = 4;
/// First context of the lengths of bitmaps: luma, chroma.
const LENGTHS: usize = 0;
/// First context of the bytes of bitmaps: five of luma by position, five of chroma.
const BITMAPS: usize = LENGTHS + 2;
const BITMAP_PLACES: usize = 5;
/// First context of the widths: three of luma by position, three of chroma.
const WIDTHS: usize = BITMAPS + 2 * BITMAP_PLACES;
const WIDTH_PLACES: usize = 3;
/// Number of contexts of a set.
pub(super) const CONTEXTS: usize = WIDTHS + 2 * WIDTH_PLACES;
/// Number of contexts, rounded up to a power of two, so that masking replaces bound checks.
const CONTEXT_ROOM: usize = CONTEXTS.next_power_of_two();
/// Number of streams of codes.
const STREAMS: usize = 4;
/// Number of bytes at the start of coded control bytes, which hold the lengths of the first three streams.
const STREAM_LENGTHS: usize = 4;
/// Maximum number of symbols of a kind in a tile: eight per block.
const MAX_SYMBOLS: usize = 8 * MAX_BLOCKS;
/// Upper bound of the length of raw control bytes, and of the bytes that reading a stream accesses.
const MAX_CONTROL: usize = 2 * MAX_SYMBOLS + MAX_BLOCKS;

/// Lengths of codes, by set, context and byte: a normative part of the format.
static CODE_LENGTHS: &[u8; SETS * CONTEXTS * 256] = include_bytes!("tables.bin");

/// Codes by context and byte: the code above its length, which has [`LENGTH_BITS`] bits.
pub(super) type Codes = [[u16; 256]; CONTEXTS];
const LENGTH_BITS: u32 = 4;
const _: () = assert!(MAX_CODE < 1 << LENGTH_BITS && MAX_CODE + LENGTH_BITS <= u16::BITS);

/// By context and the next [`MAX_CODE`] bits: length of the code in the lower byte, its symbol in
/// the upper one.
pub(super) type Tables = [[u16; 1 << MAX_CODE]; CONTEXT_ROOM];

/// Returns the canonical codes of a set.
pub(super) fn codes(set: usize) -> &'static Codes {
    static ALL: [OnceLock<Box<Codes>>; SETS] = [const { OnceLock::new() }; SETS];
    ALL[set].get_or_init(|| {
        let mut codes = Box::new([[0; 256]; CONTEXTS]);
        let (lengths, _) = CODE_LENGTHS[set * CONTEXTS * 256..].as_chunks::<256>();
        for (codes, lengths) in codes.iter_mut().zip(lengths) {
            let mut next = 0u16;
            for length in 1..=MAX_CODE as u8 {
                for (code, _) in codes.iter_mut().zip(lengths).filter(|(_, l)| **l == length) {
                    *code = next << LENGTH_BITS | u16::from(length);
                    next += 1;
                }
                next <<= 1;
            }
        }
        codes
    })
}

/// Splits an entry of [`Codes`] into a code and its length in bits.
pub(super) fn parts(code: u16) -> (u16, u16) {
    (code >> LENGTH_BITS, code & ((1 << LENGTH_BITS) - 1))
}

/// Returns the lookup tables of a set.
pub(super) fn tables(set: usize) -> &'static Tables {
    static ALL: [OnceLock<Box<Tables>>; SETS] = [const { OnceLock::new() }; SETS];
    ALL[set].get_or_init(|| {
        let mut tables = Box::new([[1; 1 << MAX_CODE]; CONTEXT_ROOM]);
        for (table, codes) in tables.iter_mut().zip(codes(set)) {
            for (byte, (code, length)) in (0u16..).zip(codes.iter().map(|code| parts(*code))) {
                if length > 0 {
                    let free = MAX_CODE - u32::from(length);
                    let first = usize::from(code) << free;
                    table[first..first + (1 << free)].fill(byte << 8 | length);
                }
            }
        }
        tables
    })
}

/// The kinds of control bytes, in the order in which they are stored.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Length,
    Bitmap,
    Widths,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Length, Self::Bitmap, Self::Widths];
}

/// Returns the contexts of the control bytes of a block, by position.
pub(super) fn contexts(kind: Kind, is_luma: bool) -> [u16; 8] {
    let contexts = match kind {
        Kind::Length => LENGTH,
        Kind::Bitmap => BITMAP,
        Kind::Widths => WIDTH,
    };
    contexts[usize::from(!is_luma)]
}

const LENGTH: [[u16; 8]; 2] = contexts_by_place(LENGTHS, 1);
const BITMAP: [[u16; 8]; 2] = contexts_by_place(BITMAPS, BITMAP_PLACES);
const WIDTH: [[u16; 8]; 2] = contexts_by_place(WIDTHS, WIDTH_PLACES);

/// Buffers for decoded bytes and their contexts.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Contexts first; reading replaces them with the entries of their tables.
    entries: [u16; MAX_SYMBOLS + 8],
    bytes: [u8; MAX_SYMBOLS + 64],
}

impl Default for Buffer {
    fn default() -> Self {
        Self {
            entries: [0; MAX_SYMBOLS + 8],
            bytes: [0; MAX_SYMBOLS + 64],
        }
    }
}

/// Returns the lowest `count` bytes, 8 at most.
#[inline(always)]
fn low_bytes(value: u64, count: usize) -> u64 {
    const LOW: [u64; 9] = {
        let mut low = [u64::MAX; 9];
        let mut count = 0;
        while count < 8 {
            low[count] = (1 << (8 * count)) - 1;
            count += 1;
        }
        low
    };
    value & LOW[count.min(8)]
}

/// Returns the number of bytes that hold the widths of a block.
#[inline(always)]
fn width_bytes(mask: u64) -> usize {
    mask.count_ones().div_ceil(8) as usize
}

/// Reads raw control bytes. Returns the offset after them. The function arguments are
/// [`spread_masks`] and [`spread_widths`], or equivalents.
#[inline(always)]
pub(super) fn read_raw(
    window: &Window,
    at: usize,
    blocks: usize,
    [masks, widths]: Control<'_>,
    (spread_masks, spread_widths): (impl SpreadMasks, impl SpreadWidths),
) -> Option<usize> {
    if at + MAX_CONTROL + 8 > WINDOW {
        return None;
    }
    let mut lengths = [0; MAX_BLOCKS];
    for (two, byte) in lengths.as_chunks_mut::<2>().0.iter_mut().zip(&window[at..]) {
        *two = [byte & 15, byte >> 4].map(|length| length.min(8));
    }
    lengths[blocks..].fill(0);
    let mut from = at + blocks.div_ceil(2);
    from += spread_masks(&window[from..], &lengths, blocks, masks);
    from += spread_widths(&window[from..], masks, blocks, widths);
    Some(from)
}

/// A position in one of the streams.
#[derive(Clone, Copy, Default)]
pub(super) struct Stream {
    /// The next bits, the first one in the highest bit.
    next: u64,
    /// The sum of the entries that were read since the last refill; its lower byte is their number of bits.
    read: usize,
    /// Offset of the next bit at the last refill.
    bit: usize,
}

impl Stream {
    /// Offset of the next bit.
    #[inline(always)]
    fn bit(&self) -> usize {
        self.bit + (self.read & 255)
    }

    #[inline(always)]
    fn refill(&mut self, window: &Window) {
        self.bit = self.bit();
        self.read = 0;
        let at = (self.bit / 8).min(WINDOW - 8);
        self.next = word(window, at).swap_bytes() << (self.bit % 8);
    }

    /// Reads a code: replaces the context in `entry` by the code's entry in the table.
    #[inline(always)]
    fn read(&mut self, tables: &Tables, entry: &mut u16) {
        let table = &tables[usize::from(*entry) % CONTEXT_ROOM];
        *entry = table[(self.next >> (64 - MAX_CODE)) as usize];
        self.next <<= *entry & 63;
        self.read = self.read.wrapping_add((*entry).into());
    }
}

/// The positions of all streams.
pub(super) type Streams = [Stream; STREAMS];

/// Reads a code for each of `entries`, which contain contexts before the call and table entries after it.
#[inline(always)]
pub(super) fn read_entries(
    streams: &mut Streams,
    window: &Window,
    tables: &Tables,
    entries: &mut [u16],
) {
    /// Number of codes between refills: four of each stream.
    const RUN: usize = 4 * STREAMS;
    // A refill provides at least 57 bits, and the sum of code lengths fits into a byte.
    const { assert!(RUN as u32 / STREAMS as u32 * MAX_CODE <= 57) };
    let [mut a, mut b, mut c, mut d] = *streams;
    for entries in entries.chunks_mut(RUN) {
        a.refill(window);
        b.refill(window);
        c.refill(window);
        d.refill(window);
        let (fours, rest) = entries.as_chunks_mut::<STREAMS>();
        for entries in fours {
            a.read(tables, &mut entries[0]);
            b.read(tables, &mut entries[1]);
            c.read(tables, &mut entries[2]);
            d.read(tables, &mut entries[3]);
        }
        for (entry, stream) in rest.iter_mut().zip([&mut a, &mut b, &mut c]) {
            stream.read(tables, entry);
        }
    }
    *streams = [a, b, c, d];
}

/// Spreads bytes over integers: the first bytes become the first integer, and so on. `counts` are
/// the numbers of bytes per integer, 8 at most. Returns the number of bytes read.
#[inline(always)]
fn spread(bytes: &[u8], counts: impl Iterator<Item = usize>, out: &mut [u64]) -> usize {
    let mut from = 0;
    for (out, count) in out.iter_mut().zip(counts) {
        *out = low_bytes(word(bytes, from), count);
        from += count;
    }
    from
}

/// The type of [`spread_masks`]: bytes, number of bytes by block, number of blocks, output. At
/// least 64 bytes have to follow the last byte, and numbers after the last block have to be 0.
pub(super) trait SpreadMasks:
    Fn(&[u8], &[u8; MAX_BLOCKS], usize, &mut [u64; MAX_BLOCKS]) -> usize
{
}

impl<F: Fn(&[u8], &[u8; MAX_BLOCKS], usize, &mut [u64; MAX_BLOCKS]) -> usize> SpreadMasks for F {}

/// The type of [`spread_widths`]: the arguments are those of [`SpreadMasks`], with bitmaps instead of numbers.
pub(super) trait SpreadWidths:
    Fn(&[u8], &[u64; MAX_BLOCKS], usize, &mut [u64; MAX_BLOCKS]) -> usize
{
}

impl<F: Fn(&[u8], &[u64; MAX_BLOCKS], usize, &mut [u64; MAX_BLOCKS]) -> usize> SpreadWidths for F {}

/// Spreads the bytes of bitmaps over blocks. Returns the number of bytes.
#[inline(always)]
pub(super) fn spread_masks(
    bytes: &[u8],
    lengths: &[u8; MAX_BLOCKS],
    blocks: usize,
    masks: &mut [u64; MAX_BLOCKS],
) -> usize {
    let counts = lengths.iter().map(|&length| length.into());
    spread(bytes, counts, &mut masks[..blocks])
}

/// Spreads the bytes of widths over blocks. Returns the number of bytes.
#[inline(always)]
pub(super) fn spread_widths(
    bytes: &[u8],
    masks: &[u64; MAX_BLOCKS],
    blocks: usize,
    widths: &mut [u64; MAX_BLOCKS],
) -> usize {
    let counts = masks.iter().map(|&mask| width_bytes(mask));
    spread(bytes, counts, &mut widths[..blocks])
}

/// Returns the contexts of the bytes of a kind, by position: those of luma, then those of chroma.
const fn contexts_by_place(first: usize, places: usize) -> [[u16; 8]; 2] {
    let mut contexts = [[0; 8]; 2];
    let mut i = 0;
    while i < 16 {
        let place = if i % 8 < places { i % 8 } else { places - 1 };
        contexts[i / 8][i % 8] = (first + i / 8 * places + place) as u16;
        i += 1;
    }
    contexts
}

/// Reads coded control bytes of `blocks` blocks, the first `luma` of which are of the first component, into
/// bitmaps and widths. Returns the offset after them; `None` if a stream does not end where the next one begins.
/// The function arguments are functions of this module, or equivalents.
#[inline(always)]
pub(super) fn read(
    tables: &Tables,
    window: &Window,
    at: usize,
    (luma, blocks): (usize, usize),
    buffer: &mut Buffer,
    [masks, widths]: Control<'_>,
    (read_entries, spread_masks, spread_widths): (
        impl Fn(&mut Streams, &Window, &Tables, &mut [u16]),
        impl SpreadMasks,
        impl SpreadWidths,
    ),
) -> Option<usize> {
    let lengths = u32::from_le_bytes(*window.get(at..)?.first_chunk()?) as usize;
    let mut streams = Streams::default();
    let mut starts = [at + STREAM_LENGTHS; STREAMS];
    for i in 1..STREAMS {
        starts[i] = starts[i - 1] + (lengths >> (10 * (i - 1)) & 1023);
    }
    for (stream, start) in streams.iter_mut().zip(starts) {
        stream.bit = 8 * start;
    }
    if starts[STREAMS - 1] + MAX_CONTROL + 8 > WINDOW || lengths >> 30 != 0 {
        return None;
    }
    let Buffer { entries, bytes } = buffer;
    // A macro, because the compiler does not inline a closure with three calls, and so compiles it without the SIMD features.
    macro_rules! read {
        ($count:expr, $limit:expr, $out:expr) => {
            let entries = &mut entries[..$count];
            read_entries(&mut streams, window, tables, entries);
            for (byte, entry) in $out.iter_mut().zip(entries) {
                *byte = ((*entry >> 8) as u8).min($limit);
            }
        };
    }
    let contexts = |kind: &[[u16; 8]; 2], block: usize| kind[usize::from(block >= luma)];
    entries[..luma].fill(LENGTH[0][0]);
    entries[luma..blocks].fill(LENGTH[1][0]);
    let mut lengths = [0; MAX_BLOCKS];
    read!(blocks, 8, lengths);
    let mut count = 0;
    for (block, &length) in lengths[..blocks].iter().enumerate() {
        entries[count..count + 8].copy_from_slice(&contexts(&BITMAP, block));
        count += usize::from(length);
    }
    read!(count, 255, bytes);
    spread_masks(bytes, &lengths, blocks, masks);
    count = 0;
    for (block, &mask) in masks[..blocks].iter().enumerate() {
        entries[count..count + 8].copy_from_slice(&contexts(&WIDTH, block));
        count += width_bytes(mask);
    }
    read!(count, 255, bytes);
    spread_widths(bytes, masks, blocks, widths);
    let ends = streams.map(|stream| stream.bit().div_ceil(8));
    (ends[..STREAMS - 1] == starts[1..]).then_some(ends[STREAMS - 1])
}

/// Maximum length of a stream, with room for storing eight bytes at each of its positions.
const STREAM_ROOM: usize = (2 * MAX_SYMBOLS + MAX_BLOCKS) / STREAMS * MAX_CODE as usize / 8 + 16;

/// The write position of a stream.
#[derive(Clone, Copy, Default)]
struct StreamEnd {
    bits: u64,
    /// Number of bits that are not in the stream yet.
    count: u32,
    at: usize,
}

impl StreamEnd {
    #[inline(always)]
    fn put(&mut self, codes: &[u16], symbol: u16) {
        let (code, length) = parts(codes.get(usize::from(symbol)).copied().unwrap_or_default());
        self.bits = self.bits << length | u64::from(code);
        self.count += u32::from(length);
    }

    /// Stores the bits, 63 at most; the bits of an incomplete last byte are stored again by the next call.
    #[inline(always)]
    fn store(&mut self, stream: &mut [u8; STREAM_ROOM]) {
        let bytes = (self.bits << (63 - self.count) << 1).to_be_bytes();
        if let Some(to) = stream[self.at..].first_chunk_mut() {
            *to = bytes;
        }
        self.at += self.count as usize / 8;
        self.count %= 8;
    }
}

/// Writes coded control bytes. Reuses its memory from tile to tile.
#[derive(Debug)]
pub(super) struct Writer {
    streams: [[u8; STREAM_ROOM]; STREAMS],
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            streams: [[0; STREAM_ROOM]; STREAMS],
        }
    }
}

impl Writer {
    /// Appends the control bytes of a tile: the lengths of streams, then the streams. `kinds` holds
    /// the symbols of each kind: contexts and bytes.
    #[inline(always)]
    pub(super) fn write(&mut self, codes: &Codes, kinds: [&[u16]; 3], out: &mut Vec<u8>) {
        /// Symbols of a stream between stores: together with an incomplete byte, they fit into 63 bits.
        const RUN: usize = 4;
        const { assert!(RUN as u32 * MAX_CODE + 7 <= 63) };
        let codes = codes.as_flattened();
        let mut ends = [StreamEnd::default(); STREAMS];
        for symbols in kinds {
            let [mut a, mut b, mut c, mut d] = ends;
            let (runs, rest) = symbols.as_chunks::<{ RUN * STREAMS }>();
            let [to_a, to_b, to_c, to_d] = &mut self.streams;
            for run in runs {
                for i in 0..RUN {
                    a.put(codes, run[4 * i]);
                    b.put(codes, run[4 * i + 1]);
                    c.put(codes, run[4 * i + 2]);
                    d.put(codes, run[4 * i + 3]);
                }
                a.store(to_a);
                b.store(to_b);
                c.store(to_c);
                d.store(to_d);
            }
            ends = [a, b, c, d];
            for (i, &symbol) in rest.iter().enumerate() {
                ends[i % STREAMS].put(codes, symbol);
            }
            for (end, stream) in ends.iter_mut().zip(&mut self.streams) {
                end.store(stream);
            }
        }
        let lengths = ends.map(|end| end.at + usize::from(end.count > 0));
        let first = (0..STREAMS - 1).fold(0, |all, i| all | (lengths[i] as u32) << (10 * i));
        out.extend_from_slice(&first.to_le_bytes());
        for (stream, length) in self.streams.iter().zip(lengths) {
            out.extend_from_slice(&stream[..length]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_sequence_can_be_decoded() {
        for set in 0..SETS {
            for (context, table) in tables(set)[..CONTEXTS].iter().enumerate() {
                let lengths = &CODE_LENGTHS[(set * CONTEXTS + context) * 256..][..256];
                let coded: u32 = lengths.iter().filter(|l| **l > 0).map(|l| 1024 >> l).sum();
                assert_eq!(coded, 1024, "set {set}, context {context}");
                for (bits, entry) in (0u16..).zip(table) {
                    let (code, length) = parts(codes(set)[context][usize::from(entry >> 8)]);
                    assert_eq!(length, entry & 255);
                    assert_eq!(code, bits >> (MAX_CODE - u32::from(length)));
                }
            }
        }
    }
}
