//! Restores the JPEG of a fast image: encodes the scan again as nearly all encoders do, and
//! verifies the length and checksum of the result.

use super::file::File;
use super::read::{Reader, Tiles};
use super::scan_encoder::ScanEncoder;
use super::{damaged, header, refused};
use crate::baseline::Baseline;
use crate::baseline::blocks::{Blocks, McuWindow};
use crate::error::Result;
use crate::limits::Limits;
use crate::markers::{self, DHT, SOS};
use crate::writer::{BitWriter, CodeTables};

/// Restores the JPEG from which a fast image was encoded, byte for byte.
///
/// # Errors
/// [`Error`](crate::Error) if these bytes are not a fast image, or are damaged. A
/// successful result is the original: its length and CRC-32C are verified.
pub fn restore_fast(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>> {
    header(bytes)?.check(limits)?;
    let mut out = Vec::new();
    let (mut baseline, mut reader) = (Baseline::default(), Reader::default());
    restore(bytes, &mut baseline, &mut reader, &mut out)?;
    Ok(out)
}

/// [`restore_fast`] into a buffer, without checking limits.
pub(super) fn restore(
    bytes: &[u8],
    baseline: &mut Baseline,
    reader: &mut Reader,
    out: &mut Vec<u8>,
) -> Result<()> {
    let file = File::read(bytes)?;
    let frame = baseline.frame(file.head).map_err(refused)?;
    if frame.scan != file.head.len() {
        return Err(damaged("the head does not end with the header of a scan"));
    }
    let mut tables = CodeTables::default();
    let mut at = 2;
    loop {
        let segment = markers::segment(file.head, at)?;
        at = segment.end;
        match segment.marker {
            DHT => tables
                .read(segment.payload)
                .ok_or_else(|| damaged("a Huffman table"))?,
            SOS => break,
            _ => {}
        }
    }
    out.clear();
    out.extend_from_slice(file.head);
    let level = reader.level;
    let mut tiles = Tiles::new(&file, reader);
    let mut encoder = ScanEncoder::new(&frame, &tables, BitWriter::new(out))
        .ok_or_else(|| damaged("the scan uses a table that the head does not define"))?;
    let window = McuWindow {
        columns: 0..frame.mcus.0,
        rows: 0..frame.mcus.1,
    };
    let batch = tiles.start(&frame, &window).map_err(refused)?;
    let mut coefficients = vec![0; frame.coefficients(batch)];
    for row in window.rows {
        for first in window.columns.clone().step_by(batch) {
            let columns = first..(first + batch).min(frame.mcus.0);
            let taken = tiles.take(row, columns.clone(), &mut coefficients);
            taken.map_err(refused)?;
            let tile = tiles.last().ok_or_else(|| damaged("a tile"))?;
            let encoded = level.write_tile(&mut encoder, tile, &coefficients, batch, columns);
            encoded.ok_or_else(|| damaged("a coefficient has no code"))?;
            if encoder.writer.out.len() > file.jpeg.0 {
                return Err(damaged("the JPEG is longer than expected"));
            }
        }
    }
    encoder.writer.pad();
    out.extend_from_slice(file.tail);
    if (out.len(), crc32c::crc32c(out)) != file.jpeg {
        return Err(damaged("the checksum of the JPEG does not match"));
    }
    Ok(())
}
