//! A bit reader for entropy-coded data, which removes byte stuffing one window at a time.
//!
//! In a JPEG's entropy-coded data the byte `ff` is followed by a stuffed `00`, or begins a marker.
//! [`Stream`] removes the stuffing into a window that is longer than any batch of blocks. So the
//! hot loop, which owns a [`Bits`], neither looks for `ff` nor checks for the end of data: the
//! window is a ring, into which positions are masked, and the end is checked once after each batch.

/// Mask for positions in the window.
const MASK: usize = (1 << 15) - 1;
/// Bytes read per refill.
const WORD: usize = 8;
/// Bytes copied per step if there is no stuffing to remove.
const RUN: usize = 32;
/// A ring of unstuffed bytes. Its first bytes are repeated after its last one, so that no read or
/// copy wraps around.
pub(crate) type Window = [u8; MASK + 1 + RUN];

/// Upper bound of a block's length in bytes, for any input: 64 symbols of at most 16 + 15 bits are
/// 248 bytes.
pub(crate) const BLOCK_BYTES: usize = 256;
/// Number of blocks that may be read before the window is refilled: they take less than half a
/// window.
pub(crate) const MAX_BLOCKS: usize = 60;
/// Number of bytes that are unstuffed beyond the needs of the next batch.
const AHEAD: usize = 4096;
const _: () = assert!(MAX_BLOCKS * BLOCK_BYTES + 2 * WORD + AHEAD + 2 * RUN <= MASK);

/// Bits per lookup in a Huffman table.
pub(crate) const LOOKUP_BITS: u32 = 11;

/// A position in a window, with the next bits at the top of a register.
///
/// The lowest byte of `state` is the number of valid bits in `next`, at most 63. The other bytes
/// belong to the code that reads symbols: it subtracts a table entry, whose lowest byte is a length
/// and whose second byte updates its own counter.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bits {
    next: u64,
    pub(crate) state: u32,
    at: usize,
}

impl Bits {
    /// Makes at least 56 bits valid.
    #[inline(always)]
    pub(crate) fn refill(&mut self, window: &Window) {
        let at = self.at & MASK;
        let mut word = [0; WORD];
        word.copy_from_slice(&window[at..at + WORD]);
        self.next |= u64::from_be_bytes(word) >> (self.state & 63);
        self.at += (!self.state >> 3 & 7) as usize;
        self.state |= 56;
    }

    /// Consumes the number of bits in the low six bits of `entry`, at most the number of valid
    /// bits. Subtracts the whole `entry` from `state`.
    #[inline(always)]
    pub(crate) fn consume(&mut self, entry: u32) {
        self.next <<= entry & 63;
        self.state = self.state.wrapping_sub(entry);
    }

    /// Returns the number of valid bits.
    #[inline(always)]
    pub(crate) fn valid(&self) -> u32 {
        self.state & 63
    }

    /// Returns the next bits, the first one in the highest bit.
    #[inline(always)]
    pub(crate) fn peek(&self) -> u64 {
        self.next
    }

    /// Returns the next [`LOOKUP_BITS`] bits.
    #[inline(always)]
    pub(crate) fn index(&self) -> usize {
        (self.next >> (64 - LOOKUP_BITS)) as usize
    }

    /// Returns the number of bits consumed since the start of the window.
    fn consumed(&self) -> usize {
        self.at * 8 - (self.state & 63) as usize
    }
}

/// Reads entropy-coded data up to the next marker.
#[derive(Debug)]
pub(crate) struct Stream {
    window: Box<Window>,
    /// Number of bytes put into the window.
    filled: usize,
    /// Offset in the source of the first byte that is not in the window.
    next: usize,
    /// Offset in the source before which reading stops.
    limit: usize,
    /// Whether a marker or the limit was reached, so that no more bytes follow.
    ended: bool,
    /// The decoding position.
    pub(crate) bits: Bits,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            window: Box::new([0; MASK + 1 + RUN]),
            filled: 0,
            next: 0,
            limit: 0,
            ended: true,
            bits: Bits::default(),
        }
    }
}

impl Stream {
    /// Starts at byte `at` of `source`, skipping its first `bit` bits; reads nothing at or after
    /// `limit`.
    pub(crate) fn open(&mut self, source: &[u8], at: usize, bit: u32, limit: usize) {
        self.filled = 0;
        self.next = at;
        self.limit = limit.min(source.len());
        self.ended = false;
        self.bits = Bits::default();
        self.reserve(source, 1);
        self.bits.refill(&self.window);
        self.bits.consume(bit & 7);
    }

    /// Ensures that the next `blocks` blocks are in the window, unless the data end before.
    pub(crate) fn reserve(&mut self, source: &[u8], blocks: usize) {
        debug_assert!(blocks <= MAX_BLOCKS);
        let need = blocks * BLOCK_BYTES + 2 * WORD;
        // Only at the end of the data are more bytes requested than exist.
        if !self.ended && self.filled - self.bits.at < need {
            self.unstuff(source, self.bits.at + need + AHEAD);
        }
    }

    /// Returns the window for a batch of blocks, and the decoding position in it.
    #[inline(always)]
    pub(crate) fn split(&mut self) -> (&Window, &mut Bits) {
        (&self.window, &mut self.bits)
    }

    /// Returns whether more bits were consumed than exist; if so, the decoded blocks are invalid.
    pub(crate) fn overrun(&self) -> bool {
        self.bits.consumed() > self.filled * 8
    }

    /// Returns the number of bits consumed since `open`, including the bits skipped there.
    pub(crate) fn position(&self) -> usize {
        self.bits.consumed()
    }

    /// Returns whether fewer than eight bits are left before the next marker; such bits can only be
    /// padding.
    pub(crate) fn finished(&self) -> bool {
        self.padding().is_some()
    }

    /// Returns the bits before the next marker if they are fewer than eight, with ones above them.
    pub(crate) fn padding(&self) -> Option<u8> {
        let left = (self.filled * 8).checked_sub(self.bits.consumed())?;
        if !self.ended || left >= 8 {
            return None;
        }
        let last = self.window[self.filled.checked_sub(1)? & MASK];
        Some(last | (0xff << left) as u8)
    }

    /// Returns the offset in the source of the first byte that is not in the window; no marker precedes it.
    pub(crate) fn unread(&self) -> usize {
        self.next
    }

    /// Fills the window until it has received `until` bytes in total, or to the end of the data.
    fn unstuff(&mut self, source: &[u8], until: usize) {
        debug_assert!(until - self.bits.at <= MASK + 1 - 2 * RUN);
        let source = &source[..self.limit];
        let (mut from, mut to) = (self.next, self.filled);
        while to < until && !self.ended {
            let place = to & MASK;
            // A whole run is copied; the next step overwrites the bytes after an `ff`.
            let rest = source.get(from..).unwrap_or_default();
            let (clean, copied) = if let Some(run) = rest.first_chunk() {
                self.window[place..place + RUN].copy_from_slice(run);
                (before_ff_in_run(run), RUN)
            } else if let Some(word) = rest.first_chunk() {
                self.window[place..place + WORD].copy_from_slice(word);
                (before_ff(*word), WORD)
            } else {
                (0, 0)
            };
            from += clean;
            to += clean;
            if clean < copied || copied == 0 {
                let byte = &mut self.window[place + clean];
                match (source.get(from), source.get(from + 1)) {
                    (Some(0xff), Some(0)) => {
                        *byte = 0xff;
                        from += 2;
                        to += 1;
                    }
                    (Some(0xff) | None, _) => self.ended = true,
                    (Some(&plain), _) => {
                        *byte = plain;
                        from += 1;
                        to += 1;
                    }
                }
            }
            if to & MASK < place {
                self.window.copy_within(MASK + 1.., 0);
            }
        }
        self.window.copy_within(..RUN, MASK + 1);
        self.next = from;
        self.filled = to;
    }
}

/// Returns the number of bytes in a word before its first `ff`.
fn before_ff(word: [u8; WORD]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let inverted = !u64::from_le_bytes(word);
    // Only the lowest set bit is exact, and only that bit is used.
    let zeros = inverted.wrapping_sub(ONES) & !inverted & HIGH;
    (zeros.trailing_zeros() / 8) as usize
}

/// Returns the number of bytes in a run before its first `ff`.
fn before_ff_in_run(run: &[u8; RUN]) -> usize {
    // Usually there is no `ff` for hundreds of bytes; the compiler vectorizes this search.
    let any = run
        .iter()
        .fold(false, |found, &byte| found | (byte == 0xff));
    if !any {
        return RUN;
    }
    // Examining all words avoids an unpredictable branch.
    let (words, _) = run.as_chunks::<WORD>();
    let places = words.iter().enumerate().map(|(i, word)| {
        let clean = before_ff(*word);
        if clean < WORD { i * WORD + clean } else { RUN }
    });
    places.min().unwrap_or(RUN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(stream: &mut Stream, source: &[u8], bytes: usize) -> Vec<u8> {
        (0..bytes)
            .map(|_| {
                stream.reserve(source, 1);
                let (window, bits) = stream.split();
                bits.refill(window);
                let byte = (bits.peek() >> 56) as u8;
                bits.consume(8);
                byte
            })
            .collect()
    }

    #[test]
    fn stuffing_is_removed_at_every_position() {
        for place in 0..40 {
            let mut source = vec![7; 40];
            source.splice(place..place, [0xff, 0x00, 0xff, 0x00]);
            source.extend([0xff, 0xd9, 1, 2, 3]);
            let mut stream = Stream::default();
            stream.open(&source, 0, 0, usize::MAX);
            let mut expected = vec![7; 40];
            expected.splice(place..place, [0xff, 0xff]);
            assert_eq!(read_all(&mut stream, &source, 42), expected);
            assert!(!stream.overrun());
            assert!(stream.finished());
            assert_eq!(stream.unread(), 44);
            read_all(&mut stream, &source, 1);
            assert!(stream.overrun());
        }
    }

    #[test]
    fn a_window_slides_over_long_data() {
        let source: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let mut stream = Stream::default();
        stream.open(&source, 0, 0, usize::MAX);
        assert_eq!(read_all(&mut stream, &source, source.len()), source);
        assert_eq!(stream.position(), source.len() * 8);
        assert!(!stream.overrun());
    }

    #[test]
    fn reading_stops_at_the_limit_and_at_the_end() {
        let source = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0xff];
        for limit in 0..=source.len() {
            let mut stream = Stream::default();
            stream.open(&source, 0, 3, limit);
            assert_eq!(stream.position(), 3);
            assert_eq!(stream.overrun(), limit == 0);
            stream.reserve(&source, MAX_BLOCKS);
            assert_eq!(stream.filled, limit.min(11));
            assert!(stream.ended);
        }
    }
}
