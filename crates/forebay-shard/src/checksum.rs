//! CRC32C: TensorFlow's masked form, and combination of the checksums of consecutive pieces.
//!
//! A shard's whole-file checksum is nearly free: each payload is checksummed once, for its own frame,
//! and [`Crc32c::combine`] merges that checksum into the file's with polynomial arithmetic instead
//! of reading the bytes again.

/// The reflected CRC32C (Castagnoli) polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// TensorFlow's constant. It keeps the checksum of data that contain checksums from degenerating
/// (tensorflow/core/lib/hash/crc32c.h).
const MASK_DELTA: u32 = 0xa282_ead8;
/// Below this length in bytes, checksumming the bytes again is cheaper than combining.
const JOIN_FROM: usize = 2048;

/// Returns the CRC32C of `bytes`.
///
/// ```
/// assert_eq!(forebay_shard::checksum::crc32c(b"123456789"), 0xe306_9283);
/// ```
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// Converts a CRC32C to TensorFlow's masked form, as stored in TFRecord frames.
pub fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(MASK_DELTA)
}

/// Converts a masked CRC32C back.
pub fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(MASK_DELTA).rotate_left(15)
}

/// A running CRC32C over bytes, or over pieces whose checksums are known.
///
/// ```
/// use forebay_shard::checksum::{Crc32c, crc32c};
///
/// let mut sum = Crc32c::default();
/// sum.update(b"1234");
/// sum.combine(crc32c(b"56789"), 5);
/// assert_eq!((sum.value(), sum.len()), (crc32c(b"123456789"), 9));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Crc32c {
    value: u32,
    len: u64,
}

impl Crc32c {
    /// Returns the checksum of everything so far.
    pub fn value(self) -> u32 {
        self.value
    }

    /// Returns the number of bytes covered.
    pub fn len(self) -> u64 {
        self.len
    }

    /// Returns whether it covers nothing yet.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.value = ::crc32c::crc32c_append(self.value, bytes);
        self.len += bytes.len() as u64;
    }

    /// Adds the next `len` bytes, whose checksum is `crc`.
    pub fn combine(&mut self, crc: u32, len: u64) {
        self.value = combine(self.value, crc, len);
        self.len += len;
    }

    /// Adds the next bytes, whose checksum is `crc`, with the cheaper of `update` and `combine`.
    pub(crate) fn join_bytes(&mut self, crc: u32, bytes: &[u8]) {
        if bytes.len() < JOIN_FROM {
            self.update(bytes);
        } else {
            self.combine(crc, bytes.len() as u64);
        }
    }
}

/// Returns the CRC32C of two consecutive pieces, from the checksum of each and the length of the
/// second.
///
/// In GF(2)\[x\]: appending `len` bytes multiplies the first checksum by x^(8 len) modulo the
/// polynomial; the inversions before and after a CRC cancel out.
pub fn combine(first: u32, second: u32, second_len: u64) -> u32 {
    multiply(x_to_the_bytes(second_len), first) ^ second
}

/// `POWERS[k]` is x^(8 * 2^k) modulo the polynomial, reflected.
const POWERS: [u32; 64] = {
    let mut powers = [0; 64];
    // Reflected: the top bit is x^0, so x^8 is bit 23.
    powers[0] = 1 << 23;
    let mut k = 1;
    while k < 64 {
        powers[k] = multiply(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
};

/// Returns x^(8 len) modulo the polynomial.
fn x_to_the_bytes(mut len: u64) -> u32 {
    let mut product = 1 << 31;
    while len != 0 {
        let k = len.trailing_zeros();
        product = multiply(POWERS[k as usize], product);
        len &= len - 1;
    }
    product
}

/// Returns the product of two reflected polynomials modulo the CRC's polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit != 0 {
        bit -= 1;
        // All ones if `a` has the bit; avoids a branch.
        product ^= b & ((a >> bit) & 1).wrapping_neg();
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(unmask(mask(0xdead_beef)), 0xdead_beef);
    }

    #[test]
    fn combined_checksums_equal_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..70_000u32)
            .map(|i| (i.wrapping_mul(i) >> 3) as u8)
            .collect();
        for cut in [0, 1, 7, 8, 4095, 65_536, 69_999, 70_000] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(
                combine(crc32c(a), crc32c(b), b.len() as u64),
                crc32c(&bytes),
                "{cut}"
            );
            assert_eq!(
                ::crc32c::crc32c_combine(crc32c(a), crc32c(b), b.len()),
                crc32c(&bytes)
            );
        }
    }
}
