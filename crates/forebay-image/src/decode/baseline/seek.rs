//! Seek points: where each row of MCUs begins in the entropy-coded data, so that a region is reached without
//! decoding what lies above it and left of its neighbours. They are kept beside the JPEG, whose bytes stay as
//! they are.
//!
//! # Bytes
//! All numbers are little-endian; a *varint* has seven bits a byte, lowest first, the high bit set in all but
//! the last; signed ones are zigzag-coded (0, -1, 1, -2, ... are 0, 1, 2, 3, ...).
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | components, 1 or 3 |
//! | 2 | 2 | width in pixels |
//! | 4 | 2 | height in pixels |
//! | 6 | 2 | rows of MCUs |
//! | 8 | 4 | length of the JPEG in bytes |
//! | 12 | 4 | CRC-32C of the JPEG |
//! | 16 | ... | for each row of MCUs but the first: varint: bits since the previous row's point (the first row's is the start of the entropy-coded data; stuffed bytes count); then for each component a signed varint: its DC predictor less that of the previous row's point (0 for the first row) |
//! | end - 4 | 4 | CRC-32C of all bytes before |
//!
//! # Never wrong pixels
//! Points are used only if their own checksum is right, every field is in its bounds, and the length and
//! CRC-32C of the JPEG at hand are those they were made from. So points that are damaged, cut short, of another
//! image or of an older version of this one are ignored, and the image is decoded from its start: slower, with
//! the same pixels. CRC-32C finds every change of up to 32 neighbouring bits, and any other with a probability
//! of 1 - 2^-32. Points that were forged on purpose, checksums included, can lead to wrong pixels, as a forged
//! JPEG can; they cannot lead to more than that.

use super::entropy::Predictors;
use super::header::Header;
use super::scan::{Cursor, Layout, Scan};
use super::simd::Level;

const VERSION: u8 = 1;
/// Bytes before the first point.
const HEAD: usize = 16;
/// Bytes of the checksum at the end.
const CHECKSUM: usize = 4;

/// The start of a row of MCUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    /// Offset in the JPEG, in bits.
    pub(super) bits: u64,
    /// DC predictors.
    pub(super) predictors: Predictors,
}

/// The points of one image, one for each row of MCUs.
#[derive(Debug, Default)]
pub(super) struct Points(Vec<Point>);

impl Points {
    /// The points of the rows, if they belong to this JPEG, whose header is `header`.
    pub(super) fn read(&mut self, points: &[u8], jpeg: &[u8], header: &Header) -> Option<&[Point]> {
        self.0.clear();
        let (body, checksum) = points.split_last_chunk::<CHECKSUM>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let (head, mut rest) = body.split_first_chunk::<HEAD>()?;
        if *head != self::head(jpeg, header)? {
            return None;
        }
        let (_, rows) = header.mcus();
        let mut point = first(header);
        self.0.push(point);
        for _ in 1..rows {
            let step = varint(&mut rest)?;
            point.bits = point.bits.checked_add(step).filter(|_| step > 0)?;
            for predictor in &mut point.predictors[..header.components] {
                let step = i32::try_from(signed(varint(&mut rest)?)).ok()?;
                *predictor = predictor.checked_add(step)?;
            }
            self.0.push(point);
        }
        let inside = point.bits / 8 < jpeg.len() as u64;
        (inside && rest.is_empty()).then_some(&self.0[..])
    }
}

fn first(header: &Header) -> Point {
    Point {
        bits: header.scan as u64 * 8,
        predictors: Predictors::default(),
    }
}

fn head(jpeg: &[u8], header: &Header) -> Option<[u8; HEAD]> {
    let mut head = [0; HEAD];
    let (_, rows) = header.mcus();
    head[0] = VERSION;
    head[1] = header.components as u8;
    head[2..4].copy_from_slice(&u16::try_from(header.width).ok()?.to_le_bytes());
    head[4..6].copy_from_slice(&u16::try_from(header.height).ok()?.to_le_bytes());
    head[6..8].copy_from_slice(&u16::try_from(rows).ok()?.to_le_bytes());
    head[8..12].copy_from_slice(&u32::try_from(jpeg.len()).ok()?.to_le_bytes());
    head[12..16].copy_from_slice(&crc32c::crc32c(jpeg).to_le_bytes());
    Some(head)
}

/// Makes the seek points of a JPEG: where in its bytes each row of blocks begins, for
/// [`Decoder::decode_region_into`](crate::Decoder::decode_region_into). A few bytes a row; the JPEG stays as it is,
/// and must stay so: points of other bytes are ignored.
///
/// `None` if they would be of no use: the file is not a baseline JPEG that Forebay's own decoder reads, is damaged,
/// has restart markers (which serve the same end), or has a single row of blocks.
pub fn build_seek_points(jpeg: &[u8]) -> Option<Vec<u8>> {
    let mut header = Header::default();
    header.read(jpeg).ok()?;
    let (columns, rows) = header.mcus();
    if header.restart_interval > 0 || rows < 2 {
        return None;
    }
    header.make_strides();
    let mut layout = Layout::default();
    layout.set(&header);
    let mut scratch = vec![0; layout.coefficients()];
    let scan = Scan {
        bytes: jpeg,
        start: header.scan,
        restart_interval: 0,
        tables: header.tables(),
        layout: &layout,
        level: Level::detect(),
    };
    let mut cursor = Cursor::default();
    cursor.rewind(&scan);
    let mut out = head(jpeg, &header)?.to_vec();
    let mut last = first(&header);
    let mut place = Place {
        unstuffed: 0,
        offset: header.scan,
    };
    for row in 1..=rows {
        // To the end of the last row too: points are made of whole images only.
        cursor.skip_to(&scan, row * columns, &mut scratch).ok()?;
        if row == rows {
            break;
        }
        let position = cursor.position();
        place.advance(jpeg, position / 8)?;
        let point = Point {
            bits: place.offset as u64 * 8 + position as u64 % 8,
            predictors: cursor.predictors(),
        };
        put_varint(&mut out, point.bits - last.bits);
        let pairs = point.predictors.iter().zip(&last.predictors);
        for (new, old) in pairs.take(header.components) {
            put_varint(&mut out, unsigned(i64::from(*new) - i64::from(*old)));
        }
        last = point;
    }
    let checksum = crc32c::crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    Some(out)
}

/// Bytes after the next row's point that a row may read: the byte that the two share, which may be stuffed.
pub(super) const SHARED: usize = 2;

/// The same place in the entropy-coded data without its stuffing and in the file.
struct Place {
    unstuffed: usize,
    offset: usize,
}

impl Place {
    fn advance(&mut self, jpeg: &[u8], unstuffed: usize) -> Option<()> {
        while self.unstuffed < unstuffed {
            let bytes = jpeg.get(self.offset..self.offset + (unstuffed - self.unstuffed))?;
            match bytes.iter().position(|&byte| byte == 0xff) {
                None => {
                    self.offset += bytes.len();
                    self.unstuffed += bytes.len();
                }
                Some(clean) => {
                    self.offset += clean + 2;
                    self.unstuffed += clean + 1;
                }
            }
        }
        Some(())
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A varint of at most five bytes: 35 bits, which is more than any field has.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn unsigned(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn signed(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
