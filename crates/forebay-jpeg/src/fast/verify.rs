//! Determines whether a fast image restores its JPEG, without restoring it.
//!
//! [`restore`](super::restore) writes the same scan as the JPEG's encoder if codes, choices and
//! padding leave no freedom:
//!
//! - Each symbol has one code, and only two symbols without a value occur: the end of a block, and a
//!   run of sixteen zeros. Then the coefficients up to the last nonzero one have exactly one sequence
//!   of symbols. After it an end of block has to follow (unless that coefficient is the 64th); the
//!   alternative, runs of zeros, would extend past the last coefficient. No block has such runs if the
//!   summed extent of all codes equals the summed indices of the last coefficients.
//! - There are no restart markers, and the last byte is filled with ones.
//! - DC coefficients are sums of differences of at most 15 bits and lie in 12 bits, so sums in 16 bits
//!   are exact.
//!
//! All other scans, which are rare, are verified by restoring them.

use super::File;
use super::read::{Reader, Tiles};
use super::restore::restore;
use super::tile::MAX_PARTS;
use crate::baseline::Baseline;
use crate::baseline::blocks::{Blocks, Frame, McuWindow, READ_BATCH, ScanEnd};
use crate::baseline::entropy::{PAIR, SECOND};
use crate::markers::{self, DHT, SOS};
use crate::writer::has_plain_tables;

/// Returns whether the Huffman tables and the coefficients alone determine the scan of a JPEG.
/// `last` is the sum of the indices of the last nonzero coefficients of all blocks.
pub(super) fn is_plain(head: &[u8], frame: &Frame, end: &ScanEnd, last: u64) -> bool {
    if frame.restart_interval > 0 || !end.has_plain_padding || end.reached != last {
        return false;
    }
    let mut at = 2;
    loop {
        let Ok(segment) = markers::segment(head, at) else {
            return false;
        };
        at = segment.end;
        match segment.marker {
            DHT if !has_plain_tables(segment.payload) => return false,
            SOS => return true,
            _ => {}
        }
    }
}

/// Reads fast images back. Reuses its memory from image to image.
#[derive(Debug, Default)]
pub(super) struct Verifier {
    pub(super) baseline: Baseline,
    pub(super) reader: Reader,
    /// The coefficients of a tile.
    room: Vec<i16>,
    restored: Vec<u8>,
}

impl Verifier {
    /// Returns whether a fast image contains these coefficients of a JPEG, and all its other bytes.
    pub(super) fn holds(
        &mut self,
        fast: &[u8],
        jpeg: &[u8],
        (frame, end): (&Frame, usize),
        coefficients: &[i16],
    ) -> bool {
        let Ok(file) = File::read(fast) else {
            return false;
        };
        let original = (jpeg.len(), crc32c::crc32c(jpeg));
        if file.jpeg != original || jpeg.get(..frame.scan) != Some(file.head) {
            return false;
        }
        if jpeg.get(end..) != Some(file.tail) || self.baseline.frame(file.head) != Ok(*frame) {
            return false;
        }
        let mut tiles = Tiles::new(&file, &mut self.reader);
        let (columns, rows) = frame.mcus;
        let window = McuWindow {
            columns: 0..columns,
            rows: 0..rows,
        };
        let Ok(batch) = tiles.start(frame, &window) else {
            return false;
        };
        let compared = Compared {
            frame,
            coefficients,
            batch,
        };
        let room = &mut self.room;
        room.clear();
        room.resize(frame.coefficients(batch), 0);
        window.rows.clone().all(|row| {
            let mut firsts = window.columns.clone().step_by(batch);
            firsts.all(|first| {
                let columns = first..(first + batch).min(frame.mcus.0);
                tiles.take(row, columns.clone(), room).is_ok()
                    && (columns.step_by(batch.min(READ_BATCH)))
                        .all(|column| compared.are_equal((row, first, column), room))
            })
        })
    }

    /// Returns whether a fast image restores these bytes.
    pub(super) fn restores(&mut self, fast: &[u8], jpeg: &[u8]) -> bool {
        let (baseline, reader) = (&mut self.baseline, &mut self.reader);
        restore(fast, baseline, reader, &mut self.restored).is_ok() && self.restored == jpeg
    }
}

/// Coefficients read from a JPEG, to compare with those of tiles.
struct Compared<'a> {
    frame: &'a Frame,
    coefficients: &'a [i16],
    /// Number of MCUs in a tile.
    batch: usize,
}

impl Compared<'_> {
    /// Returns whether a tile that begins with MCU `first` of a row has the coefficients of the
    /// JPEG. Compares the MCUs from `column` on that are in the same batch of both.
    fn are_equal(&self, (row, first, column): (usize, usize, usize), tile: &[i16]) -> bool {
        let frame = self.frame;
        let count = READ_BATCH.min(self.batch).min(frame.mcus.0 - column);
        let place = frame.room_of(row, column / READ_BATCH);
        let Some(read) = self.coefficients.get(place) else {
            return false;
        };
        let mut of_tile = frame.block_rows(self.batch);
        let mut of_read = frame.block_rows(READ_BATCH);
        for _ in 0..MAX_PARTS {
            let (Some((component, a)), Some((_, b))) = (of_tile.next(), of_read.next()) else {
                break;
            };
            let (h, _) = frame.factors[component];
            let a = tile.get(a + (column - first) * h / 2 * PAIR..);
            let b = read.get(b + column % READ_BATCH * h / 2 * PAIR..);
            if !have_equal_blocks(a, b, count * h) {
                return false;
            }
        }
        true
    }
}

/// The coefficients of a pair, without the slot behind them.
const COEFFICIENTS: usize = 128;

/// Returns whether the first `blocks` blocks of the pairs are equal; `false` if there are too few.
fn have_equal_blocks(a: Option<&[i16]>, b: Option<&[i16]>, blocks: usize) -> bool {
    let (Some(a), Some(b)) = (a, b) else {
        return false;
    };
    if a.len().min(b.len()) < blocks.div_ceil(2) * PAIR {
        return false;
    }
    let mut pairs = a.chunks(PAIR).zip(b.chunks(PAIR)).take(blocks.div_ceil(2));
    let whole = pairs.by_ref().take(blocks / 2);
    for (a, b) in whole {
        if a[..COEFFICIENTS] != b[..COEFFICIENTS] {
            return false;
        }
    }
    // The last pair may contain only one block: the first half of each row.
    pairs.all(|(a, b)| {
        let (a, b) = (&a[..COEFFICIENTS], &b[..COEFFICIENTS]);
        let mut rows = a.chunks(2 * SECOND).zip(b.chunks(2 * SECOND));
        rows.all(|(a, b)| a[..SECOND] == b[..SECOND])
    })
}

#[cfg(test)]
mod tests {
    use super::super::encode::FastEncoder;
    use super::*;
    use crate::fast::{FastCoding, restore_fast};
    use crate::limits::Limits;
    use crate::writer::{BitWriter, CodeTables};
    use libjpeg_turbo_rs::{Encoder, PixelFormat};

    /// Returns a gray JPEG of one block, up to its scan, with the standard Huffman tables.
    fn head() -> Vec<u8> {
        let encoder = Encoder::new(&[128; 8 * 8 * 3], 8, 8, PixelFormat::Rgb);
        let mut jpeg = encoder.grayscale_from_color(true).encode().unwrap();
        let scan = Baseline::default().frame(&jpeg).unwrap().scan;
        jpeg.truncate(scan);
        jpeg
    }

    fn tables(head: &[u8]) -> CodeTables {
        let mut tables = CodeTables::default();
        let mut at = 2;
        loop {
            let segment = markers::segment(head, at).unwrap();
            at = segment.end;
            match segment.marker {
                DHT => tables.read(segment.payload).unwrap(),
                SOS => return tables,
                _ => {}
            }
        }
    }

    /// Returns a JPEG whose block has a DC coefficient of 0 and these AC symbols with the bits of values.
    fn jpeg(head: &[u8], symbols: &[(u8, u32)]) -> Vec<u8> {
        let tables = tables(head);
        let mut out = head.to_vec();
        let mut writer = BitWriter::new(&mut out);
        writer.code(tables.dc[0].as_deref().unwrap(), 0).unwrap();
        for &(symbol, bits) in symbols {
            let codes = tables.ac[0].as_deref().unwrap();
            writer.code(codes, symbol.into()).unwrap();
            writer.put(bits, u32::from(symbol % 16));
        }
        writer.pad();
        out.extend_from_slice(&[0xff, 0xd9]);
        out
    }

    fn comes_back(jpeg: &[u8]) -> bool {
        let (mut encoder, limits) = (FastEncoder::default(), Limits::default());
        let fast = encoder.encode(jpeg, FastCoding::Raw, &limits);
        let restored = fast.map(|fast| restore_fast(&fast, &limits).unwrap());
        assert!(restored.as_deref().is_none_or(|restored| restored == jpeg));
        restored.is_some()
    }

    const ZEROS: (u8, u32) = (0xf0, 0);
    const END: (u8, u32) = (0, 0);

    #[test]
    fn runs_of_zeros_at_the_end_of_a_block_are_not_restored() {
        let head = head();
        let at = |run: u8| (run << 4 | 1, 1);
        for (symbols, expected) in [
            (&[END][..], true),
            (&[at(0), END], true),
            (&[at(0), ZEROS, END], false),
            (&[ZEROS, END], false),
            (&[ZEROS, ZEROS, at(14), END], true),
            // The last sixteen zeros have a run code instead of an end of block.
            (&[ZEROS, ZEROS, at(14), ZEROS], false),
            (&[ZEROS, ZEROS, ZEROS, at(14)], true),
        ] {
            assert_eq!(comes_back(&jpeg(&head, symbols)), expected, "{symbols:?}");
        }
    }

    #[test]
    fn a_symbol_with_two_codes_needs_its_last_code() {
        let plain = head();
        // The last symbol of the last AC table becomes equal to its first one, which then has two codes.
        let mut head = plain.clone();
        let last = head
            .windows(2)
            .rposition(|two| two == [0xf9, 0xfa])
            .unwrap();
        head[last + 1] = 0x01;
        let symbols = [(0x01, 1), END];
        let long = jpeg(&head, &symbols);
        let mut short = jpeg(&plain, &symbols);
        assert!(long.len() > short.len());
        assert!(comes_back(&short));
        short[..head.len()].copy_from_slice(&head);
        assert!(comes_back(&long));
        assert!(!comes_back(&short));
    }

    #[test]
    fn changed_coefficients_and_bytes_are_detected() {
        let pixels: Vec<u8> = (0..96 * 50 * 3).map(|i| (i * i / 7 % 251) as u8).collect();
        for quality in [60, 100] {
            let encoder = Encoder::new(&pixels, 96, 50, PixelFormat::Rgb).quality(quality);
            let jpeg = encoder.encode().unwrap();
            for coding in [FastCoding::Coded, FastCoding::Raw] {
                let mut encoder = FastEncoder::default();
                let fast = encoder.encode(&jpeg, coding, &Limits::default()).unwrap();
                let (frame, end) = frame_and_end(&jpeg, &fast);
                let FastEncoder {
                    verifier,
                    coefficients,
                    ..
                } = &mut encoder;
                assert!(verifier.holds(&fast, &jpeg, (&frame, end), coefficients));
                let mut odd = jpeg.clone();
                *odd.last_mut().unwrap() ^= 1;
                assert!(!verifier.holds(&fast, &odd, (&frame, end), coefficients));
                // A byte belongs to a coefficient, or to the padding after the last field of a block.
                let tiles = fast.len() - File::read(&fast).unwrap().tiles.len();
                for at in (tiles..fast.len()).step_by(7) {
                    let mut odd = fast.clone();
                    odd[at] ^= 0x55;
                    let holds = verifier.holds(&odd, &jpeg, (&frame, end), coefficients);
                    assert_eq!(holds, verifier.restores(&odd, &jpeg), "byte {at}");
                }
            }
        }
    }

    fn frame_and_end(jpeg: &[u8], fast: &[u8]) -> (Frame, usize) {
        let file = File::read(fast).unwrap();
        let frame = Baseline::default().frame(file.head).unwrap();
        (frame, jpeg.len() - file.tail.len())
    }
}
