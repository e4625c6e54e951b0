//! Seek points: positions in the entropy-coded data at which rows of MCUs, or pieces of rows,
//! begin. With them a decoder reaches a region without decoding the rows above it and the pieces to
//! its left. They are stored beside the JPEG, whose bytes are unchanged. docs/format/seek-points.md
//! specifies their encoding.
//!
//! # Never wrong pixels
//! Points are used only if their own checksum matches, every field is in its bounds, and the length and CRC-32C of
//! the JPEG equal those from which they were built. Points that are damaged, truncated, or belong to another image
//! or an older version of this image are ignored, and the image is decoded from its start: slower, with the same
//! pixels. CRC-32C detects every change of up to 32 adjacent bits, and any other with a probability of 1 - 2^-32.
//! Deliberately forged points with valid checksums can lead to wrong pixels, as a forged JPEG can, but to no other
//! harm.

use super::entropy::Predictors;
use super::header::Header;
use super::scan::{Cursor, Layout, Point, Scan};
use super::simd::Level;
use super::walk::Starts;
use crate::varint::{put_varint, varint};

const VERSION: u8 = 1;
/// Number of bytes before the first point.
const HEAD: usize = 16;
/// Length of the checksum at the end, in bytes.
const CHECKSUM: usize = 4;
/// Number of stored bytes without the points.
pub(super) const STORED_OVERHEAD: usize = HEAD + CHECKSUM;
/// Maximum number of points per row.
const MAX_PIECES: u8 = 16;
/// Points per row at high density: a crop then skips a thirtieth of a row on average.
const FINE_PIECES: u8 = 8;
/// Rows between points at low densities.
pub(super) const COARSE_STEPS: [u8; 4] = [1, 2, 4, 8];
/// [`SeekDensity::Auto`]: maximum size of points, as a divisor of the image's size.
pub(super) const AUTO_PART: usize = 100;

/// Number of seek points per image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SeekDensity {
    /// One per row of MCUs, or per second, fourth or eighth row: the densest choice whose size is
    /// at most 1 % of the image's bytes; none if no choice is that small.
    #[default]
    Auto,
    /// One per row of MCUs, without a limit on their size.
    Rows,
    /// Eight per row of MCUs.
    Fine,
}

/// The MCUs that have points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    /// MCUs per row and per column.
    mcus: (usize, usize),
    /// Every `step`-th row has points.
    step: u8,
    /// Points per such row. More than 1 only if all rows have points.
    pieces: u8,
}

impl Default for Grid {
    fn default() -> Self {
        Self {
            mcus: (0, 0),
            step: 1,
            pieces: 1,
        }
    }
}

impl Grid {
    fn new(mcus: (usize, usize), step: u8, pieces: u8) -> Option<Self> {
        let sound = (1..=MAX_PIECES).contains(&pieces)
            && usize::from(pieces) <= mcus.0
            && step > 0
            && (step == 1 || pieces == 1);
        sound.then_some(Self { mcus, step, pieces })
    }

    fn rows(&self) -> usize {
        self.mcus.1.div_ceil(usize::from(self.step))
    }

    fn points(&self) -> usize {
        self.rows() * usize::from(self.pieces)
    }

    /// Returns the column at which a piece begins.
    fn column(&self, piece: usize) -> usize {
        piece * self.mcus.0 / usize::from(self.pieces)
    }

    /// Returns the index of a point's MCU.
    fn mcu(&self, point: usize) -> usize {
        let pieces = usize::from(self.pieces);
        point / pieces * usize::from(self.step) * self.mcus.0 + self.column(point % pieces)
    }
}

/// The points of one image: all of a grid, or the first of them.
#[derive(Debug, Default)]
pub(super) struct Points {
    grid: Grid,
    pub(super) points: Vec<Point>,
}

impl Points {
    /// Decodes points if they belong to `jpeg`, whose header is `header`.
    pub(super) fn read(&mut self, bytes: &[u8], jpeg: &[u8], header: &Header) -> Option<&Self> {
        self.points.clear();
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let (head, mut rest) = body.split_first_chunk::<HEAD>()?;
        self.grid = Grid::new(header.frame.mcus, head[6], head[7])?;
        if *head != self::head(jpeg, header, &self.grid)? {
            return None;
        }
        self.read_points(&mut rest, self.grid.points(), jpeg, header)?;
        rest.is_empty().then_some(self)
    }

    /// Decodes the first `count` points of a grid with one point in every `step`-th row. Nothing but
    /// their bounds is checked.
    pub(super) fn read_first(
        &mut self,
        mut bytes: &[u8],
        step: u8,
        count: usize,
        jpeg: &[u8],
        header: &Header,
    ) -> Option<()> {
        self.points.clear();
        self.grid = Grid::new(header.frame.mcus, step, 1)?;
        let count = Some(count).filter(|&count| count <= self.grid.points())?;
        self.read_points(&mut bytes, count, jpeg, header)
    }

    fn read_points(
        &mut self,
        rest: &mut &[u8],
        count: usize,
        jpeg: &[u8],
        header: &Header,
    ) -> Option<()> {
        let mut point = first(header);
        self.points.push(point);
        for _ in 1..count {
            let step = varint(rest)?;
            point.bits = point.bits.checked_add(step).filter(|_| step > 0)?;
            for predictor in &mut point.predictors[..header.frame.components] {
                let step = i32::try_from(signed(varint(rest)?)).ok()?;
                *predictor = predictor.checked_add(step)?;
            }
            self.points.push(point);
        }
        (point.bits / 8 < jpeg.len() as u64).then_some(())
    }

    /// Adds points that were recorded after the last one.
    pub(super) fn extend(&mut self, recorded: &[RowStart], jpeg: &[u8]) -> Option<()> {
        let mut place = Place {
            unstuffed: 0,
            offset: usize::try_from(self.points.last()?.bits / 8).ok()?,
        };
        for start in recorded {
            place.advance(jpeg, start.position / 8)?;
            self.points.push(Point {
                bits: place.offset as u64 * 8 + start.position as u64 % 8,
                predictors: start.predictors,
            });
        }
        Some(())
    }

    /// Encodes the points of every `step`-th row, a multiple of the grid's step.
    pub(super) fn encode(&self, step: u8, header: &Header, out: &mut Vec<u8>) -> Option<()> {
        let every = usize::from(step / self.grid.step);
        put_points(self.points.iter().step_by(every), header, out)
    }

    pub(super) fn step(&self) -> u8 {
        self.grid.step
    }

    /// Returns the last row that begins with a point.
    pub(super) fn last_row(&self) -> usize {
        let pieces = usize::from(self.grid.pieces);
        (self.points.len() / pieces).saturating_sub(1) * usize::from(self.grid.step)
    }

    /// Returns whether each row up to the last one with points has some.
    pub(super) fn in_each_row(&self) -> bool {
        self.grid.step == 1
    }

    /// Returns the column of the last point in a row at or before `column`, if each row has points.
    pub(super) fn column(&self, column: usize) -> usize {
        let pieces = 0..usize::from(self.grid.pieces);
        let columns = pieces.map(|piece| self.grid.column(piece));
        columns.take_while(|&at| at <= column).last().unwrap_or(0)
    }

    /// Returns the last point at or before a row and column, its MCU, and a limit: decoding the
    /// columns before `to` reads no byte at or after that offset.
    pub(super) fn before(&self, row: usize, column: usize, to: usize) -> (Point, usize, usize) {
        let (step, pieces) = (usize::from(self.grid.step), usize::from(self.grid.pieces));
        let row_start = (row / step * pieces).min(self.points.len() - pieces);
        // Pieces are few, so a binary search would not be faster.
        let mut at = row_start;
        while at + 1 < row_start + pieces && self.grid.column(at + 1 - row_start) <= column {
            at += 1;
        }
        let mut next = at + 1;
        while next < row_start + pieces && self.grid.column(next - row_start) < to {
            next += 1;
        }
        let limit = self.points.get(next).map_or(usize::MAX, |next| {
            usize::try_from(next.bits / 8).map_or(usize::MAX, |byte| byte + SHARED)
        });
        (self.points[at], self.grid.mcu(at), limit)
    }

    /// Returns whether a row begins with a point.
    pub(super) fn has(&self, row: usize) -> bool {
        row.is_multiple_of(usize::from(self.grid.step)) && row <= self.last_row()
    }
}

/// The start of a row, as a decoder met it that reads the scan in order.
#[derive(Debug)]
pub(super) struct RowStart {
    /// Number of bits after the byte at which the cursor was opened, without stuffing.
    pub(super) position: usize,
    pub(super) predictors: Predictors,
}

impl RowStart {
    pub(super) fn of(cursor: &Cursor) -> Self {
        Self {
            position: cursor.position(),
            predictors: cursor.predictors(),
        }
    }
}

fn first(header: &Header) -> Point {
    Point {
        bits: header.frame.scan as u64 * 8,
        predictors: Predictors::default(),
    }
}

fn head(jpeg: &[u8], header: &Header, grid: &Grid) -> Option<[u8; HEAD]> {
    let mut head = [0; HEAD];
    head[0] = VERSION;
    head[1] = header.frame.components as u8;
    head[2..4].copy_from_slice(&u16::try_from(header.frame.size.0).ok()?.to_le_bytes());
    head[4..6].copy_from_slice(&u16::try_from(header.frame.size.1).ok()?.to_le_bytes());
    head[6] = grid.step;
    head[7] = grid.pieces;
    head[8..12].copy_from_slice(&u32::try_from(jpeg.len()).ok()?.to_le_bytes());
    head[12..16].copy_from_slice(&crc32c::crc32c(jpeg).to_le_bytes());
    Some(head)
}

/// Builds the seek points of a single JPEG, one per row of MCUs; see [`SeekPointBuilder`].
pub fn build_seek_points(jpeg: &[u8]) -> Option<Vec<u8>> {
    SeekPointBuilder::default().build(jpeg, SeekDensity::Rows)
}

/// Builds the seek points of JPEGs: the positions at which rows of MCUs begin, for
/// [`ImagePart::seek_points`](crate::ImagePart::seek_points). They take a few bytes per
/// row. Do not change the JPEG afterwards: points that were built from other bytes are ignored. The
/// builder keeps tables from image to image.
///
/// ```
/// use forebay_jpeg::{ImagePart, JpegDecoder, Region, SeekDensity, SeekPointBuilder, SeekPoints};
/// # use libjpeg_turbo_rs::{Encoder, PixelFormat};
/// # let jpeg = Encoder::new(&[90; 80 * 90 * 3], 80, 90, PixelFormat::Rgb).encode().unwrap();
///
/// let mut builder = SeekPointBuilder::default();
/// let points = builder.build(&jpeg, SeekDensity::Rows).expect("an ordinary JPEG");
/// assert!(builder.is_right(&jpeg, &points));
///
/// let part = ImagePart {
///     region: Some(Region { x: 8, y: 70, width: 40, height: 20 }),
///     ..ImagePart::default()
/// };
/// let seeking = ImagePart { seek_points: SeekPoints::Stored(&points), ..part };
/// let mut decoder = JpegDecoder::default();
/// assert_eq!(decoder.decode_part(&jpeg, &seeking)?, decoder.decode_part(&jpeg, &part)?);
/// # Ok::<(), forebay_jpeg::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct SeekPointBuilder {
    header: Header,
    layout: Layout,
    cursor: Cursor,
    scratch: Vec<i16>,
    points: Vec<Point>,
    starts: Starts,
    has_read_all: bool,
}

impl SeekPointBuilder {
    /// Builds the points of a JPEG; a pure function of its bytes and `density`.
    ///
    /// Returns `None` if points would be useless: the file is not a baseline JPEG that Forebay's
    /// own decoder reads, is damaged, has restart markers (which serve the same purpose), or has a
    /// single row of blocks; or if they would take more space than `density` allows.
    pub fn build(&mut self, jpeg: &[u8], density: SeekDensity) -> Option<Vec<u8>> {
        self.has_read_all = false;
        self.header.read(jpeg).ok()?;
        let mcus = self.header.frame.mcus;
        if self.header.frame.restart_interval > 0 {
            return None;
        }
        let pieces = match density {
            SeekDensity::Fine => FINE_PIECES.min(u8::try_from(mcus.0).unwrap_or(FINE_PIECES)),
            SeekDensity::Auto | SeekDensity::Rows => 1,
        };
        let grid = Grid::new(mcus, 1, pieces)?;
        let allowed = match density {
            SeekDensity::Auto => jpeg.len() / AUTO_PART,
            SeekDensity::Rows | SeekDensity::Fine => usize::MAX,
        };
        // All codes are read even if no points result, to verify that the image is intact.
        self.walk(jpeg, &grid)?;
        if mcus.1 < 2 {
            return None;
        }
        let steps = match density {
            SeekDensity::Auto => &COARSE_STEPS[..],
            SeekDensity::Rows | SeekDensity::Fine => &COARSE_STEPS[..1],
        };
        // With fewer than two rows with points, the only point would be the start of the image.
        let useful = steps.iter().filter(|step| usize::from(**step) < mcus.1);
        for &step in useful {
            let out = self.encode(jpeg, &Grid::new(mcus, step, pieces)?)?;
            if out.len() <= allowed {
                return Some(out);
            }
        }
        None
    }

    /// Returns whether the last [`build`](Self::build) read the codes of all blocks and found no
    /// damage. If not, the file may still be intact, but of a kind without seek points; use
    /// [`JpegDecoder::check_codes`](crate::JpegDecoder::check_codes) to check it.
    pub fn has_read_all(&self) -> bool {
        self.has_read_all
    }

    /// Returns whether seek points belong to a JPEG and are all correct. Decoders check less: they
    /// rely on checksums.
    pub fn is_right(&mut self, jpeg: &[u8], points: &[u8]) -> bool {
        self.rebuild(jpeg, points).is_some_and(|own| own == points)
    }

    /// Builds the points again for the grid of existing ones.
    fn rebuild(&mut self, jpeg: &[u8], points: &[u8]) -> Option<Vec<u8>> {
        let &[_, _, _, _, _, _, step, pieces, ..] = points else {
            return None;
        };
        self.header.read(jpeg).ok()?;
        if self.header.frame.restart_interval > 0 {
            return None;
        }
        let mcus = self.header.frame.mcus;
        let grid = Grid::new(mcus, step, pieces)?;
        self.walk(jpeg, &Grid::new(mcus, 1, pieces)?)?;
        self.encode(jpeg, &grid)
    }

    /// Builds points of any valid grid, for tests of their reader.
    #[cfg(test)]
    pub(super) fn build_grid(&mut self, jpeg: &[u8], step: u8, pieces: u8) -> Option<Vec<u8>> {
        self.header.read(jpeg).ok()?;
        let mcus = self.header.frame.mcus;
        if self.header.frame.restart_interval > 0 {
            return None;
        }
        self.walk(jpeg, &Grid::new(mcus, 1, pieces)?)?;
        self.encode(jpeg, &Grid::new(mcus, step, pieces)?)
    }

    /// Finds all points of a grid.
    fn walk(&mut self, jpeg: &[u8], grid: &Grid) -> Option<()> {
        self.header.make_multi_symbols();
        if Starts::suit(jpeg, &self.header) {
            self.read_starts(jpeg, grid)?;
        } else {
            self.walk_in_order(jpeg, grid)?;
        }
        self.has_read_all = true;
        Some(())
    }

    /// Finds all points of a grid from the starts of all MCUs, which takes more memory but less time.
    fn read_starts(&mut self, jpeg: &[u8], grid: &Grid) -> Option<()> {
        let (points, starts) = (&mut self.points, &mut self.starts);
        points.clear();
        let found = starts.find(jpeg, &self.header, Level::detect());
        let mcus = (0..grid.points()).map(|point| grid.mcu(point));
        let put = |point| points.push(point);
        let found = found.and_then(|()| starts.points(mcus, self.header.frame.scan, put));
        starts.clear();
        found
    }

    /// Finds all points of a grid with little memory.
    fn walk_in_order(&mut self, jpeg: &[u8], grid: &Grid) -> Option<()> {
        let header = &self.header;
        let scan = Scan::new(jpeg, header, &mut self.layout, Level::detect());
        self.scratch.resize(scan.layout.coefficients(), 0);
        let cursor = &mut self.cursor;
        cursor.rewind(&scan);
        let mut place = Place {
            unstuffed: 0,
            offset: header.frame.scan,
        };
        self.points.clear();
        self.points.push(first(header));
        for point in 1..grid.points() {
            cursor
                .skip_to(&scan, grid.mcu(point), &mut self.scratch)
                .ok()?;
            let position = cursor.position();
            place.advance(jpeg, position / 8)?;
            self.points.push(Point {
                bits: place.offset as u64 * 8 + position as u64 % 8,
                predictors: cursor.predictors(),
            });
        }
        // Reads to the end, because points are only built for intact images.
        let end = grid.mcus.0 * grid.mcus.1;
        cursor.skip_to(&scan, end, &mut self.scratch).ok()
    }

    /// Encodes the points of the grid that was walked, or of a subset of its rows.
    fn encode(&self, jpeg: &[u8], grid: &Grid) -> Option<Vec<u8>> {
        let mut out = head(jpeg, &self.header, grid)?.to_vec();
        let (step, pieces) = (usize::from(grid.step), usize::from(grid.pieces));
        let rows = self.points.chunks(pieces).step_by(step);
        put_points(rows.flatten(), &self.header, &mut out)?;
        let checksum = crc32c::crc32c(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        Some(out)
    }
}

/// Encodes points after the first one, which is the start of the scan.
fn put_points<'a>(
    points: impl Iterator<Item = &'a Point>,
    header: &Header,
    out: &mut Vec<u8>,
) -> Option<()> {
    let mut last = first(header);
    for point in points.skip(1) {
        put_varint(out, point.bits.checked_sub(last.bits)?);
        let pairs = point.predictors.iter().zip(&last.predictors);
        for (new, old) in pairs.take(header.frame.components) {
            put_varint(out, unsigned(i64::from(*new) - i64::from(*old)));
        }
        last = *point;
    }
    Some(())
}

/// Number of bytes after the next row's point that a row may read: the byte that both rows share,
/// and its stuffing.
pub(super) const SHARED: usize = 2;

/// A position in the entropy-coded data, both without stuffing and in the file.
struct Place {
    unstuffed: usize,
    offset: usize,
}

impl Place {
    fn advance(&mut self, jpeg: &[u8], unstuffed: usize) -> Option<()> {
        let mut more = unstuffed - self.unstuffed;
        self.unstuffed = unstuffed;
        while more > 0 {
            let bytes = jpeg.get(self.offset..self.offset + more)?;
            self.offset += more;
            // Each `ff` is followed by a byte that was not counted.
            more = memchr::memchr_iter(0xff, bytes).count();
        }
        Some(())
    }
}

fn unsigned(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn signed(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Kind, Numbers, PLAIN, encode, kinds};
    use super::*;
    use libjpeg_turbo_rs::Subsampling;

    /// Returns the points of a JPEG without restart markers, found from both halves and found in order.
    fn both_ways(builder: &mut SeekPointBuilder, jpeg: &[u8]) -> [Option<Vec<Point>>; 2] {
        builder.header.read(jpeg).unwrap();
        builder.header.make_multi_symbols();
        let mcus = builder.header.frame.mcus;
        let grid = Grid::new(mcus, 1, mcus.0.min(8) as u8).unwrap();
        assert!(Starts::suit(jpeg, &builder.header));
        let found = builder.read_starts(jpeg, &grid);
        let found = found.map(|()| builder.points.clone());
        let in_order = builder.walk_in_order(jpeg, &grid);
        [found, in_order.map(|()| builder.points.clone())]
    }

    #[test]
    fn points_from_both_halves_equal_those_in_order() {
        let mut builder = SeekPointBuilder::default();
        let mut met = 0;
        for kind in kinds().into_iter().filter(|kind| kind.restart == 0) {
            for (width, height) in [(8, 8), (33, 50), (200, 120), (401, 300), (90, 900)] {
                let jpeg = encode(kind, width, height);
                let [found, in_order] = both_ways(&mut builder, &jpeg);
                assert!(found.is_some() && found == in_order, "{kind:?}");
                met += usize::from(builder.starts.has_met());
            }
        }
        assert!(met > 30, "{met}");
    }

    #[test]
    fn damaged_scans_have_equal_points_or_none_both_ways() {
        let mut builder = SeekPointBuilder::default();
        let mut numbers = Numbers(11);
        let (mut sound, mut met) = (0, 0);
        for sampling in [Subsampling::S420, Subsampling::S444] {
            let jpeg = encode(Kind { sampling, ..PLAIN }, 300, 200);
            builder.header.read(&jpeg).unwrap();
            let scan = builder.header.frame.scan;
            for round in 0..600 {
                let mut damaged = jpeg.clone();
                for _ in 0..=round % 3 {
                    let at = scan + numbers.below(jpeg.len() - scan);
                    match round % 4 {
                        0 => damaged[at] ^= 1 << numbers.below(8),
                        1 => damaged[at] = numbers.next() as u8,
                        2 => drop(damaged.remove(at.min(damaged.len() - 1))),
                        _ => damaged.insert(at.min(damaged.len()), numbers.next() as u8),
                    }
                }
                if round % 10 == 0 {
                    damaged.truncate(scan + numbers.below(damaged.len() - scan));
                }
                let [found, in_order] = both_ways(&mut builder, &damaged);
                assert_eq!(found, in_order, "round {round}");
                sound += usize::from(found.is_some());
                met += usize::from(builder.starts.has_met());
            }
            // Scans of zeros, of ones, and of random bits.
            for byte in [Some(0), Some(0xfe), None, None] {
                let mut damaged = jpeg.clone();
                for to in &mut damaged[scan..] {
                    *to = byte.unwrap_or_else(|| numbers.next() as u8 & 0xfe);
                }
                let [found, in_order] = both_ways(&mut builder, &damaged);
                assert_eq!(found, in_order, "{byte:?}");
            }
        }
        assert!(sound > 50 && met > 50, "{sound} {met}");
    }
}
