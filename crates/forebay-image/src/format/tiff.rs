//! TIFF: the first image of a file, with 8 or 16 bits per channel, uncompressed or with lossless
//! compression. This file reads the header; the `tiff` crate decodes pixels.
//!
//! The directory of tags may be anywhere in the file, often at its end, so a prefix may be too
//! short to probe.

use super::decoding::{Canvas, DecodeJob, Scratch};
use super::{Color, Format, ImageFormat, Probe, Sniff};
use crate::error::{ImageError, Result};
use ::tiff::TiffError;
use ::tiff::decoder::{Decoder, Limits};
use std::io::{Cursor, ErrorKind};

/// TIFF in the table of formats.
pub(super) struct Tiff;

/// Byte order and version of little-endian and big-endian files.
const LITTLE: [u8; 4] = *b"II*\0";
const BIG: [u8; 4] = *b"MM\0*";
/// Signature, and the offset of the first directory.
const START: usize = 8;
/// Length of a directory entry: tag, type, count, and the value or its offset.
const ENTRY: usize = 12;

/// Numbers of tags.
mod tag {
    pub(super) const WIDTH: u16 = 256;
    pub(super) const HEIGHT: u16 = 257;
    pub(super) const BITS: u16 = 258;
    pub(super) const COMPRESSION: u16 = 259;
    pub(super) const PHOTOMETRIC: u16 = 262;
    pub(super) const STRIP_OFFSETS: u16 = 273;
    pub(super) const SAMPLES: u16 = 277;
    pub(super) const STRIP_BYTES: u16 = 279;
    pub(super) const PLANAR: u16 = 284;
    pub(super) const COLOR_MAP: u16 = 320;
    pub(super) const TILE_OFFSETS: u16 = 324;
    pub(super) const TILE_BYTES: u16 = 325;
    pub(super) const EXTRA_SAMPLES: u16 = 338;
    pub(super) const SAMPLE_FORMAT: u16 = 339;
}

/// Values of the photometric interpretation.
const WHITE_IS_ZERO: u32 = 0;
const BLACK_IS_ZERO: u32 = 1;
const RGB: u32 = 2;
const PALETTE: u32 = 3;

impl ImageFormat for Tiff {
    fn name(&self) -> &'static str {
        "TIFF"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["tif", "tiff"]
    }

    fn sniff(&self, head: &[u8]) -> Sniff {
        match Sniff::magic(head, &LITTLE, START as u64) {
            Sniff::No => Sniff::magic(head, &BIG, START as u64),
            other => other,
        }
    }

    fn probe(&self, bytes: &[u8]) -> Result<Probe> {
        probe(bytes)
    }

    fn decoded_bytes_per_pixel(&self, probe: &Probe) -> u64 {
        // The RGB output, the samples, and for a palette a copy of the file.
        3 + u64::from(probe.channels) * u64::from(probe.bits / 8) + 1
    }

    fn decode(&self, job: &DecodeJob<'_>, _: &mut Scratch, canvas: &mut Canvas) -> Result<()> {
        decode(job, canvas)
    }

    fn end(&self, bytes: &[u8]) -> Option<usize> {
        // The parts of a file may be in any order: a file that contains all parts counts as complete.
        let directory = Directory::read(bytes).ok()?;
        directory.holds_pixels().then_some(bytes.len())
    }

    fn exif<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        Some(bytes)
    }
}

fn bad(what: impl Into<String>) -> ImageError {
    ImageError::corrupt(Format::Tiff, what)
}

fn unsupported<T>(what: impl Into<String>) -> Result<T> {
    Err(ImageError::unsupported(Format::Tiff, what))
}

/// The first directory of a file.
struct Directory<'a> {
    bytes: &'a [u8],
    is_big: bool,
    entries: &'a [[u8; ENTRY]],
    /// Offset of the first entry.
    start: usize,
}

impl<'a> Directory<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self> {
        let part = |start: usize, length: usize| {
            let end = start.checked_add(length);
            let part = end.and_then(|end| bytes.get(start..end));
            let needed = (start as u64).saturating_add(length as u64);
            part.ok_or_else(|| ImageError::incomplete(Format::Tiff, needed, bytes))
        };
        let head = part(0, START)?;
        let mut directory = Self {
            bytes,
            is_big: head.starts_with(&BIG),
            entries: &[],
            start: 0,
        };
        let offset = directory.number(&head[4..]) as usize;
        let count = directory.number(part(offset, 2)?) as usize;
        directory.start = offset + 2;
        directory.entries = part(directory.start, count * ENTRY)?.as_chunks().0;
        Ok(directory)
    }

    /// Reads a number of up to four bytes in the file's byte order.
    fn number(&self, bytes: &[u8]) -> u32 {
        let push = |sum, &byte: &u8| sum << 8 | u32::from(byte);
        match self.is_big {
            true => bytes.iter().fold(0, push),
            false => bytes.iter().rev().fold(0, push),
        }
    }

    fn entry(&self, tag: u16) -> Option<&'a [u8; ENTRY]> {
        let has = |entry: &&[u8; ENTRY]| self.number(&entry[..2]) == u32::from(tag);
        self.entries.iter().find(has)
    }

    /// Returns the values of an integer tag; none if the tag is absent or of another type.
    fn values(&self, tag: u16) -> impl Iterator<Item = u32> {
        let entry = self.entry(tag);
        let size = match entry.map(|entry| self.number(&entry[2..4])) {
            Some(1) => 1,
            Some(3) => 2,
            Some(4) => 4,
            _ => 0,
        };
        let values = entry.filter(|_| size > 0).and_then(|entry| {
            let length = (self.number(&entry[4..8]) as usize).checked_mul(size)?;
            if length <= 4 {
                return entry.get(8..8 + length);
            }
            let start = self.number(&entry[8..]) as usize;
            self.bytes.get(start..start.checked_add(length)?)
        });
        let values = values.unwrap_or_default().chunks_exact(size.max(1));
        values.map(move |value| self.number(value))
    }

    /// Returns the first value of a tag.
    fn value(&self, tag: u16) -> Option<u32> {
        self.values(tag).next()
    }

    /// Returns whether all strips or tiles, and the palette if any, lie within the bytes.
    fn holds_pixels(&self) -> bool {
        if self.value(tag::PHOTOMETRIC) == Some(PALETTE) && self.palette().is_err() {
            return false;
        }
        let parts = [
            (tag::STRIP_OFFSETS, tag::STRIP_BYTES),
            (tag::TILE_OFFSETS, tag::TILE_BYTES),
        ];
        let mut any = false;
        for (offsets, lengths) in parts {
            for (offset, length) in self.values(offsets).zip(self.values(lengths)) {
                any = true;
                if u64::from(offset) + u64::from(length) > self.bytes.len() as u64 {
                    return false;
                }
            }
        }
        any
    }

    /// Returns the colors of a palette: the high bytes of its entries, as in Pillow.
    fn palette(&self) -> Result<Vec<[u8; 3]>> {
        let values: Vec<u8> = self
            .values(tag::COLOR_MAP)
            .map(|v| (v >> 8) as u8)
            .collect();
        if values.len() != 3 * 256 {
            return Err(bad(format!(
                "a palette of {} numbers, 768 are expected",
                values.len()
            )));
        }
        Ok((0..256)
            .map(|i| [values[i], values[256 + i], values[512 + i]])
            .collect())
    }
}

fn probe(bytes: &[u8]) -> Result<Probe> {
    let directory = Directory::read(bytes)?;
    let side = |tag, name: &str| match directory.value(tag) {
        None | Some(0) => Err(bad(format!("it has no {name}"))),
        Some(side) => Ok(side),
    };
    let (width, height) = (side(tag::WIDTH, "width")?, side(tag::HEIGHT, "height")?);
    let samples = directory.value(tag::SAMPLES).unwrap_or(1);
    let photometric = directory.value(tag::PHOTOMETRIC);
    let (color, colors) = match photometric {
        Some(WHITE_IS_ZERO | BLACK_IS_ZERO) => (Color::Gray, 1),
        Some(RGB) => (Color::Rgb, 3),
        Some(PALETTE) => (Color::Palette, 1),
        Some(other) => return unsupported(format!("photometric interpretation {other}")),
        None => return Err(bad("it has no photometric interpretation")),
    };
    let color = match (color, samples.checked_sub(colors)) {
        (color, Some(0)) => color,
        (Color::Rgb, Some(1)) if directory.value(tag::EXTRA_SAMPLES).is_some() => Color::Rgba,
        _ => return unsupported(format!("{samples} channels")),
    };
    let bits = match directory.value(tag::BITS).unwrap_or(1) {
        8 => 8,
        16 if color != Color::Palette => 16,
        other => return unsupported(format!("{other} bits a channel")),
    };
    if directory.values(tag::BITS).any(|other| other != bits) {
        return unsupported("channels of different sizes");
    }
    if directory
        .values(tag::SAMPLE_FORMAT)
        .any(|format| format != 1)
    {
        return unsupported("channels that are not unsigned numbers");
    }
    if directory.value(tag::PLANAR).unwrap_or(1) != 1 {
        return unsupported("a plane for each channel");
    }
    // Supported: none, LZW, Deflate (two numbers) and PackBits.
    match directory.value(tag::COMPRESSION).unwrap_or(1) {
        1 | 5 | 8 | 32_773 | 32_946 => {}
        other => return unsupported(format!("compression {other}")),
    }
    Ok(Probe {
        format: Format::Tiff,
        width,
        height,
        channels: samples as u8,
        bits: bits as u8,
        color,
        progressive: false,
        header_bytes: (directory.start + directory.entries.len() * ENTRY) as u64,
    })
}

fn decode(job: &DecodeJob<'_>, canvas: &mut Canvas) -> Result<()> {
    let directory = Directory::read(job.bytes)?;
    if !directory.holds_pixels() {
        return Err(ended());
    }
    let probe = job.probe;
    let palette = match probe.color {
        Color::Palette => Some(directory.palette()?),
        _ => None,
    };
    // The `tiff` crate does not decode palettes: it gets the image as a gray one, whose values are the indices.
    let shown = palette.is_some().then(|| directory.as_gray());
    let mut decoder = Decoder::new(Cursor::new(shown.as_deref().unwrap_or(job.bytes)))
        .map_err(refuse)?
        .with_limits(limits(job));
    if decoder.dimensions().map_err(refuse)? != (probe.width, probe.height) {
        return Err(bad("two different sizes"));
    }
    let channels = usize::from(probe.channels);
    let sample = usize::from(probe.bits / 8);
    let pixel = channels * sample;
    let stride = probe.width as usize * pixel;
    let mut samples = vec![0; stride * probe.height as usize];
    decoder.read_image_bytes(&mut samples).map_err(refuse)?;
    let region = job.region;
    canvas.reset(region.width as usize, region.height as usize);
    // Two-byte samples are in native byte order; `high` is the offset of the high byte.
    let high = if cfg!(target_endian = "little") {
        sample - 1
    } else {
        0
    };
    let lines = samples.chunks_exact(stride).skip(region.y as usize);
    for (row, line) in canvas
        .data
        .chunks_exact_mut(canvas.stride)
        .zip(lines)
        .take(region.height as usize)
    {
        let pixels = line.chunks_exact(pixel).skip(region.x as usize);
        for (to, from) in row.as_chunks_mut::<3>().0.iter_mut().zip(pixels) {
            *to = match (&palette, channels) {
                (Some(palette), _) => palette[usize::from(from[0])],
                (None, 1) => [from[high]; 3],
                (None, _) => [from[high], from[sample + high], from[2 * sample + high]],
            };
        }
    }
    Ok(())
}

impl Directory<'_> {
    /// Returns the file with its palette image declared as gray.
    fn as_gray(&self) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        let has = |entry: &[u8; ENTRY]| self.number(&entry[..2]) == u32::from(tag::PHOTOMETRIC);
        if let Some(at) = self.entries.iter().position(has) {
            let value = self.start + at * ENTRY + 8;
            bytes[value..value + 2].copy_from_slice(match self.is_big {
                true => &[0, BLACK_IS_ZERO as u8],
                false => &[BLACK_IS_ZERO as u8, 0],
            });
        }
        bytes
    }
}

fn ended() -> ImageError {
    ImageError::truncated(Format::Tiff, "the file ends inside the image data")
}

fn limits(job: &DecodeJob<'_>) -> Limits {
    let bytes = usize::try_from(job.limits.max_decoded_bytes).unwrap_or(usize::MAX);
    let mut limits = Limits::default();
    limits.decoding_buffer_size = bytes;
    limits.intermediate_buffer_size = bytes;
    limits
}

fn refuse(error: TiffError) -> ImageError {
    match error {
        TiffError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => ended(),
        TiffError::UnsupportedError(what) => {
            ImageError::unsupported(Format::Tiff, what.to_string())
        }
        TiffError::LimitsExceeded => {
            ImageError::unsupported(Format::Tiff, "it needs more memory than the limit")
        }
        other => bad(other.to_string()),
    }
}
