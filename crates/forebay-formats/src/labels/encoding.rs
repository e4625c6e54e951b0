//! Text files in the encodings in which spreadsheets write them: UTF-8 and UTF-16, with a byte order mark.

use std::borrow::Cow;
use std::io::{self, Cursor, Read};

/// The byte order mark of UTF-8.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
/// Number of bytes that are decoded in one step.
const PIECE_BYTES: usize = 8 << 10;

/// Returns the decoder for the byte order that a UTF-16 byte order mark declares.
fn utf16_order(head: &[u8]) -> Option<fn([u8; 2]) -> u16> {
    match head {
        [0xff, 0xfe, ..] => Some(u16::from_le_bytes),
        [0xfe, 0xff, ..] => Some(u16::from_be_bytes),
        _ => None,
    }
}

/// Returns a text as UTF-8 without a byte order mark. Bytes that cannot be decoded stay as they are.
pub(crate) fn to_utf8(bytes: &[u8]) -> Cow<'_, [u8]> {
    let Some(order) = utf16_order(bytes) else {
        return Cow::Borrowed(bytes.strip_prefix(UTF8_MARK).unwrap_or(bytes));
    };
    let units = bytes.chunks_exact(2).skip(1);
    let units = units.map(|pair| order([pair[0], pair[1]]));
    let text: String = char::decode_utf16(units)
        .map(|found| found.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect();
    Cow::Owned(text.into_bytes())
}

/// A reader that returns a text as UTF-8 without a byte order mark.
pub(super) struct Utf8<R> {
    input: io::Chain<Cursor<Vec<u8>>, R>,
    utf16: Option<Utf16>,
}

/// The state of a UTF-16 decoder.
struct Utf16 {
    order: fn([u8; 2]) -> u16,
    /// The first byte of a code unit whose second byte has not been read yet.
    half: Option<u8>,
    /// The first code unit of a surrogate pair.
    high: Option<u16>,
    /// Decoded text; the first `taken` bytes of it were returned.
    text: Vec<u8>,
    taken: usize,
}

impl<R: Read> Utf8<R> {
    pub(super) fn new(mut input: R) -> io::Result<Self> {
        let mut head = Vec::new();
        (&mut input)
            .take(UTF8_MARK.len() as u64)
            .read_to_end(&mut head)?;
        let order = utf16_order(&head);
        let mark = match order {
            Some(_) => 2,
            None if head == UTF8_MARK => UTF8_MARK.len(),
            None => 0,
        };
        head.drain(..mark);
        let utf16 = order.map(|order| Utf16 {
            order,
            half: None,
            high: None,
            text: Vec::new(),
            taken: 0,
        });
        let input = Cursor::new(head).chain(input);
        Ok(Self { input, utf16 })
    }
}

impl<R: Read> Read for Utf8<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some(utf16) = &mut self.utf16 else {
            return self.input.read(out);
        };
        if out.is_empty() {
            return Ok(0);
        }
        while utf16.taken == utf16.text.len() {
            let mut piece = [0; PIECE_BYTES];
            let read = match self.input.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if read == 0 {
                utf16.finish()?;
                return Ok(0);
            }
            utf16.decode(piece.get(..read).unwrap_or_default())?;
        }
        let left = utf16.text.get(utf16.taken..).unwrap_or_default();
        let count = left.len().min(out.len());
        if let (Some(out), Some(left)) = (out.get_mut(..count), left.get(..count)) {
            out.copy_from_slice(left);
        }
        utf16.taken += count;
        Ok(count)
    }
}

impl Utf16 {
    fn decode(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut text = String::new();
        for byte in bytes {
            let Some(first) = self.half.take() else {
                self.half = Some(*byte);
                continue;
            };
            let unit = (self.order)([first, *byte]);
            let pair = match self.high.take() {
                None if (0xd800..0xdc00).contains(&unit) => {
                    self.high = Some(unit);
                    continue;
                }
                None => [unit, 0],
                Some(high) => [high, unit],
            };
            let decoded = char::decode_utf16(pair).next();
            let decoded = decoded.and_then(Result::ok).filter(|found| {
                // A surrogate pair must use both units; a low surrogate alone is not a character.
                (pair[1] == 0) == (found.len_utf16() == 1)
            });
            text.push(decoded.ok_or_else(damaged)?);
        }
        (self.text, self.taken) = (text.into_bytes(), 0);
        Ok(())
    }

    fn finish(&self) -> io::Result<()> {
        match (self.half, self.high) {
            (None, None) => Ok(()),
            _ => Err(damaged()),
        }
    }
}

fn damaged() -> io::Error {
    let what = "it begins as UTF-16 and is none: save it as UTF-8";
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        // Returns one byte per call, so that every code unit and surrogate pair is split.
        struct OneByOne<'a>(&'a [u8]);
        impl Read for OneByOne<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                let count = out.len().min(1);
                self.0.read(&mut out[..count])
            }
        }
        Utf8::new(OneByOne(bytes))?.read_to_end(&mut text)?;
        Ok(text)
    }

    fn utf16(text: &str, order: fn(u16) -> [u8; 2]) -> Vec<u8> {
        let units = std::iter::once(0xfeff).chain(text.encode_utf16());
        units.flat_map(order).collect()
    }

    #[test]
    fn every_encoding_gives_the_same_text() {
        let text = "path,label\nüber/😀.jpg,c\0\n";
        let marked = [UTF8_MARK, text.as_bytes()].concat();
        for bytes in [
            text.as_bytes().to_vec(),
            marked,
            utf16(text, u16::to_le_bytes),
            utf16(text, u16::to_be_bytes),
        ] {
            assert_eq!(read(&bytes).unwrap(), text.as_bytes());
            assert_eq!(*to_utf8(&bytes), *text.as_bytes());
        }
        for short in [&b""[..], b"a", b"ab", b"\xef\xbb", b"\xff"] {
            assert_eq!(read(short).unwrap(), short);
        }
    }

    #[test]
    fn damaged_utf16_is_an_error() {
        for units in [
            &[0xd800u16, 0x61][..],
            &[0xdc00],
            &[0xd800],
            &[0xd800, 0xd800],
        ] {
            let bytes: Vec<u8> = std::iter::once(&0xfeff)
                .chain(units)
                .flat_map(|unit| unit.to_le_bytes())
                .collect();
            assert!(read(&bytes).is_err(), "{units:x?}");
        }
        assert!(read(b"\xff\xfea").is_err());
    }
}
