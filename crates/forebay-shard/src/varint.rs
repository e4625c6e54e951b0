//! Variable-length integers: seven bits per byte, the lowest first, as in protobuf.

/// Appends a number, in up to ten bytes.
///
/// ```
/// use forebay_shard::varint;
///
/// let mut bytes = Vec::new();
/// varint::put(300, &mut bytes);
/// assert_eq!(bytes, [0xac, 0x02]);
/// assert_eq!(varint::read(&mut &bytes[..]), Some(300));
/// ```
pub fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number from the front; `None` if the input ends within it, or it has more than 64 bits.
pub fn read(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, after) = rest.split_first()?;
        *rest = after;
        let bits = u64::from(first & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
