//! PNG: reads the header and the chunks here, decodes pixels with the `png` crate, normalized to
//! 8-bit RGB.
//!
//! Rows depend on the rows above them, so all data up to the region's last row is inflated; later
//! rows are not.

use super::decoding::{Canvas, DecodeJob, Scratch};
use super::{Color, Ending, Format, ImageFormat, Probe, Sniff, ends_with};
use crate::error::{ImageError, Result};
use crate::geometry::MaskIds;
use forebay_jpeg::Error as DecodeError;
use png::{ColorType, DecodingError, Limits, Reader, Transformations};
use std::io::{Cursor, ErrorKind};

/// PNG in the table of formats.
pub(super) struct Png;

impl ImageFormat for Png {
    fn name(&self) -> &'static str {
        "PNG"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["png"]
    }

    fn sniff(&self, head: &[u8]) -> Sniff {
        Sniff::magic(head, &MAGIC, 24)
    }

    fn probe(&self, bytes: &[u8]) -> Result<Probe> {
        probe(bytes)
    }

    fn decoded_bytes_per_pixel(&self, probe: &Probe) -> u64 {
        3 + u64::from(probe.channels.max(3)) * u64::from(probe.bits.max(8) / 8)
    }

    fn decode(&self, job: &DecodeJob<'_>, _: &mut Scratch, canvas: &mut Canvas) -> Result<()> {
        decode(job, canvas)
    }

    fn end(&self, bytes: &[u8]) -> Option<usize> {
        walk(bytes, |_, _| false)
    }

    fn ending(&self, bytes: &[u8], probe: &Probe) -> Ending {
        match ends_with(bytes, probe, &IEND) {
            true => Ending::Whole,
            false => Ending::at(self.end(bytes), bytes),
        }
    }

    fn exif<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        find(bytes, b"eXIf")
    }
}

/// The eight bytes every PNG begins with.
const MAGIC: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
/// The last chunk: length 0, type, no data, checksum.
const IEND: [u8; 12] = *b"\0\0\0\0IEND\xae\x42\x60\x82";
/// Signature, followed by length, type, 13 bytes and checksum of IHDR, which must be the first
/// chunk.
const HEADER_BYTES: usize = 8 + 4 + 4 + 13 + 4;

fn be32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .fold(0, |n, &b| (n << 8) | u32::from(b))
}

fn probe(bytes: &[u8]) -> Result<Probe> {
    let bad = |what: String| ImageError::corrupt(Format::Png, what);
    let Some(header) = bytes.get(8..HEADER_BYTES) else {
        return Err(ImageError::incomplete(
            Format::Png,
            HEADER_BYTES as u64,
            bytes,
        ));
    };
    if header[..8] != *b"\0\0\0\x0dIHDR" {
        return Err(bad("at byte 8: expected the chunk IHDR of 13 bytes".into()));
    }
    let (width, height) = (be32(&header[8..12]), be32(&header[12..16]));
    let (bits, kind, interlace) = (header[16], header[17], header[20]);
    if width == 0 || height == 0 || width > i32::MAX as u32 || height > i32::MAX as u32 {
        return Err(bad(format!("a size of {width}x{height} pixels")));
    }
    let (color, channels, depths): (_, _, &[u8]) = match kind {
        0 => (Color::Gray, 1, &[1, 2, 4, 8, 16]),
        2 => (Color::Rgb, 3, &[8, 16]),
        3 => (Color::Palette, 1, &[1, 2, 4, 8]),
        4 => (Color::GrayAlpha, 2, &[8, 16]),
        6 => (Color::Rgba, 4, &[8, 16]),
        _ => return Err(bad(format!("color type {kind}"))),
    };
    if !depths.contains(&bits) {
        return Err(bad(format!("{bits} bits a channel with color type {kind}")));
    }
    if interlace > 1 {
        return Err(bad(format!("interlace method {interlace}")));
    }
    Ok(Probe {
        format: Format::Png,
        width,
        height,
        channels,
        bits,
        color,
        progressive: interlace == 1,
        header_bytes: HEADER_BYTES as u64,
    })
}

/// Returns the payload of the first chunk with this name.
fn find<'a>(bytes: &'a [u8], name: &[u8; 4]) -> Option<&'a [u8]> {
    let mut found = None;
    walk(bytes, |chunk, payload| {
        if found.is_none() && chunk == name {
            found = Some(payload);
        }
        found.is_some()
    });
    found
}

/// Walks over the chunks to IEND, or to the chunk at which `stop` returns true. Returns the offset after that chunk.
fn walk<'a>(bytes: &'a [u8], mut stop: impl FnMut(&[u8], &'a [u8]) -> bool) -> Option<usize> {
    let mut at = MAGIC.len();
    loop {
        let head = bytes.get(at..at.checked_add(8)?)?;
        let next = at
            .checked_add(12)?
            .checked_add(usize::try_from(be32(head)).ok()?)?;
        let chunk = bytes.get(at..next)?;
        let (name, payload) = (&chunk[4..8], &chunk[8..chunk.len() - 4]);
        if stop(name, payload) || name == b"IEND" {
            return Some(next);
        }
        at = next;
    }
}

fn decode(job: &DecodeJob<'_>, canvas: &mut Canvas) -> Result<()> {
    let limit = job.limits.max_decoded_bytes;
    let wanted = Transformations::EXPAND | Transformations::STRIP_16;
    let mut reader = open(job.bytes, limit, wanted)?;
    // The `png` crate panics when it expands an incomplete palette entry.
    if reader
        .info()
        .palette
        .as_ref()
        .is_some_and(|palette| !palette.len().is_multiple_of(3))
    {
        return Err(ImageError::corrupt(
            Format::Png,
            "a palette that is not in whole entries of 3 bytes",
        ));
    }
    let (color, _) = reader.output_color_type();
    let channels = color.samples();
    let region = job.region;
    let (width, height) = (reader.info().width, reader.info().height);
    if (width, height) != (job.probe.width, job.probe.height) {
        return Err(ImageError::corrupt(Format::Png, "two different sizes"));
    }
    canvas.stride = region.width as usize * 3;
    canvas.start = 0;
    canvas.data.clear();
    canvas.data.reserve(canvas.stride * region.height as usize);
    let columns = region.x as usize * channels..(region.x + region.width) as usize * channels;
    let mut push = |row: &[u8]| -> Result<()> {
        let Some(row) = row.get(columns.clone()) else {
            return Err(ImageError::corrupt(Format::Png, "a row is too short"));
        };
        match color {
            ColorType::Grayscale => canvas.data.extend(row.iter().flat_map(|&v| [v; 3])),
            ColorType::GrayscaleAlpha => canvas
                .data
                .extend(row.chunks_exact(2).flat_map(|p| [p[0]; 3])),
            ColorType::Rgb => canvas.data.extend_from_slice(row),
            ColorType::Rgba => canvas
                .data
                .extend(row.chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]])),
            ColorType::Indexed => {
                return Err(ImageError::unsupported(Format::Png, "palette not expanded"));
            }
        }
        Ok(())
    };
    let rows = region.y..region.y + region.height;
    if reader.info().interlaced {
        // Each pass of an interlaced image has rows all over the image, so the whole image is decoded.
        let size = reader.output_buffer_size().ok_or(DecodeError::OverLimit {
            what: "bytes when decoded",
            found: u64::MAX,
            limit: job.limits.max_decoded_bytes,
        })?;
        let mut whole = vec![0; size];
        reader.next_frame(&mut whole).map_err(refuse)?;
        let line = width as usize * channels;
        for row in whole
            .chunks_exact(line)
            .take(rows.end as usize)
            .skip(rows.start as usize)
        {
            push(row)?;
        }
        return Ok(());
    }
    for y in 0..rows.end {
        let Some(row) = reader.next_row().map_err(refuse)? else {
            return Err(ImageError::truncated(
                Format::Png,
                format!("{y} rows of {height}"),
            ));
        };
        if y >= rows.start {
            push(row.data())?;
        }
    }
    Ok(())
}

fn open(bytes: &[u8], limit: u64, wanted: Transformations) -> Result<Reader<Cursor<&[u8]>>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: limit });
    // Text and profiles are not inflated: a small zTXt chunk can expand to gigabytes.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(wanted);
    decoder.read_info().map_err(refuse)
}

/// Decodes the numbers of a mask; see [`decode_mask`](crate::decode_mask).
pub(crate) fn decode_ids(
    bytes: &[u8],
    probe: &Probe,
    limits: &forebay_jpeg::Limits,
) -> Result<MaskIds> {
    if matches!(probe.color, Color::GrayAlpha | Color::Rgba)
        || (probe.bits, probe.channels) == (16, 3)
    {
        return Err(ImageError::unsupported(
            Format::Png,
            "a mask has gray levels, a palette or 8-bit RGB, without alpha",
        ));
    }
    // Memory for the image as stored and for the numbers.
    let stored = u64::from(probe.channels) * u64::from(probe.bits.div_ceil(8));
    limits.check(probe.width, probe.height, stored + size_of::<i32>() as u64)?;
    let mut reader = open(bytes, limits.max_decoded_bytes, Transformations::IDENTITY)?;
    let (width, height) = (reader.info().width, reader.info().height);
    if (width, height) != (probe.width, probe.height) {
        return Err(ImageError::corrupt(Format::Png, "two different sizes"));
    }
    let size = reader.output_buffer_size().ok_or(DecodeError::OverLimit {
        what: "bytes when decoded",
        found: u64::MAX,
        limit: limits.max_decoded_bytes,
    })?;
    let mut whole = vec![0; size];
    reader.next_frame(&mut whole).map_err(refuse)?;
    let pixels = width as usize * height as usize;
    let line = size / height as usize;
    let short = || ImageError::truncated(Format::Png, "rows of the mask are missing");
    let ids = match (probe.bits, probe.channels) {
        (8, 1) => MaskIds::Uint8(whole),
        (16, _) => {
            let (levels, _) = whole.as_chunks::<2>();
            MaskIds::Int32(
                levels
                    .iter()
                    .map(|&l| u16::from_be_bytes(l).into())
                    .collect(),
            )
        }
        (8, _) => {
            let (colors, _) = whole.as_chunks::<3>();
            let id = |&[r, g, b]: &[u8; 3]| i32::from_le_bytes([r, g, b, 0]);
            MaskIds::Int32(colors.iter().map(id).collect())
        }
        // 1, 2 or 4 bits a pixel, the first one in the high bits; rows begin at whole bytes.
        (bits, _) => {
            let per_byte = 8 / usize::from(bits);
            let mut ids = Vec::with_capacity(pixels);
            for row in whole.chunks_exact(line.max(1)) {
                let id = |x: usize| {
                    let shift = 8 - usize::from(bits) * (x % per_byte + 1);
                    (row[x / per_byte] >> shift) & ((1 << bits) - 1)
                };
                if row.len() * per_byte < width as usize {
                    return Err(short());
                }
                ids.extend((0..width as usize).map(id));
            }
            MaskIds::Uint8(ids)
        }
    };
    let found = match &ids {
        MaskIds::Uint8(ids) => ids.len(),
        MaskIds::Int32(ids) => ids.len(),
    };
    if found != pixels {
        return Err(short());
    }
    Ok(ids)
}

fn refuse(error: DecodingError) -> ImageError {
    match error {
        DecodingError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => {
            ImageError::truncated(Format::Png, "the file ends inside the image data")
        }
        DecodingError::LimitsExceeded => {
            ImageError::unsupported(Format::Png, "it needs more memory than the limit")
        }
        other => ImageError::corrupt(Format::Png, other.to_string()),
    }
}
