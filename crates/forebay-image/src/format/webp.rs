//! WebP, lossy and lossless: a RIFF container, whose first chunk is an image (`VP8 `, `VP8L`) or an
//! extended header (`VP8X`).
//!
//! The `image-webp` crate decodes pixels, always of the whole image: in both encodings a pixel
//! depends on the pixels above it and to its left.

use super::decoding::{Canvas, DecodeJob, Scratch};
use super::{Color, Format, ImageFormat, Probe, Sniff};
use crate::error::{ImageError, Result};
use forebay_jpeg::internals::EXIF;
use image_webp::{DecodingError, WebPDecoder};
use std::io::{Cursor, ErrorKind};

/// WebP in the table of formats.
pub(super) struct WebP;

impl ImageFormat for WebP {
    fn name(&self) -> &'static str {
        "WEBP"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["webp"]
    }

    fn sniff(&self, head: &[u8]) -> Sniff {
        let whole = head.len() >= FIRST_CHUNK;
        match Sniff::magic(head, &RIFF, 20) {
            Sniff::Yes if !whole => Sniff::More(20),
            Sniff::Yes if head[8..FIRST_CHUNK] != WEBP => Sniff::No,
            other => other,
        }
    }

    fn probe(&self, bytes: &[u8]) -> Result<Probe> {
        probe(bytes)
    }

    fn decoded_bytes_per_pixel(&self, probe: &Probe) -> u64 {
        // RGB output, plus planes with chroma at half size (lossy), or four channels twice and
        // buffers of transforms (lossless, alpha).
        3 + if probe.color == Color::YCbCr { 3 } else { 13 }
    }

    fn decode(&self, job: &DecodeJob<'_>, _: &mut Scratch, canvas: &mut Canvas) -> Result<()> {
        decode(job, canvas)
    }

    fn end(&self, bytes: &[u8]) -> Option<usize> {
        end(bytes)
    }

    fn exif<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        // Some writers keep the prefix that EXIF data have in a JPEG.
        let data = find(bytes, b"EXIF")?;
        Some(data.strip_prefix(&EXIF[..]).unwrap_or(data))
    }
}

/// The first bytes of every RIFF file; `WEBP` follows after the length.
const RIFF: [u8; 4] = *b"RIFF";
const WEBP: [u8; 4] = *b"WEBP";
/// Offset of the first chunk, after `RIFF`, length, `WEBP`.
const FIRST_CHUNK: usize = 12;
/// Length of a chunk's header: name and payload length.
const CHUNK_HEAD: usize = 8;
/// Flags of `VP8X`.
const ANIMATION: u8 = 0x02;
const ALPHA: u8 = 0x10;

fn bad(what: impl Into<String>) -> ImageError {
    ImageError::corrupt(Format::WebP, what)
}

/// Reads a little-endian number of up to four bytes.
fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, &byte| sum << 8 | u32::from(byte))
}

/// A chunk, whose payload may be truncated at the end of the bytes.
struct Chunk<'a> {
    name: [u8; 4],
    payload: &'a [u8],
    whole: bool,
    /// Offset of the next chunk.
    end: usize,
}

fn chunk(bytes: &[u8], at: usize) -> Option<Chunk<'_>> {
    let head = bytes.get(at..at.checked_add(CHUNK_HEAD)?)?;
    let length = usize::try_from(number(&head[4..])).ok()?;
    let start = at + CHUNK_HEAD;
    let rest = &bytes[start..];
    Some(Chunk {
        name: [head[0], head[1], head[2], head[3]],
        payload: rest.get(..length).unwrap_or(rest),
        whole: rest.len() >= length,
        end: start.checked_add(length)?.checked_add(length % 2)?,
    })
}

/// Returns width and height from the first bytes of an image chunk; `None` if they are missing.
fn picture_size(chunk: &Chunk<'_>) -> Result<Option<(u32, u32)>> {
    match &chunk.name {
        b"VP8 " => {
            let Some(head) = chunk.payload.get(..10) else {
                return Ok(None);
            };
            if head[0] & 1 != 0 || head[3..6] != [0x9d, 0x01, 0x2a] {
                return Err(bad("the VP8 data begin with no key frame"));
            }
            let side = |at: usize| number(&head[at..at + 2]) & 0x3fff;
            Ok(Some((side(6), side(8))))
        }
        b"VP8L" => {
            let Some(head) = chunk.payload.get(..5) else {
                return Ok(None);
            };
            if head[0] != 0x2f || head[4] >> 5 != 0 {
                return Err(bad("the VP8L data have an unknown signature or version"));
            }
            let sides = number(&head[1..]);
            Ok(Some(((sides & 0x3fff) + 1, (sides >> 14 & 0x3fff) + 1)))
        }
        _ => Ok(None),
    }
}

fn probe(bytes: &[u8]) -> Result<Probe> {
    let incomplete = |needed: usize| ImageError::incomplete(Format::WebP, needed as u64, bytes);
    let start = FIRST_CHUNK + CHUNK_HEAD;
    let Some(chunk) = chunk(bytes, FIRST_CHUNK) else {
        return Err(incomplete(start));
    };
    let (color, needed) = match &chunk.name {
        b"VP8 " => (Color::YCbCr, 10),
        b"VP8L" => (Color::Rgb, 5),
        b"VP8X" => (Color::Rgb, 10),
        other => {
            let name = other.escape_ascii();
            return Err(bad(format!(
                "at byte 12: expected VP8, VP8L or VP8X, found {name}"
            )));
        }
    };
    if chunk.payload.len() < needed {
        return Err(if chunk.whole {
            bad("its first chunk is too short")
        } else {
            incomplete(start + needed)
        });
    }
    let payload = chunk.payload;
    let ((width, height), alpha) = if chunk.name == *b"VP8X" {
        if payload[0] & ANIMATION != 0 {
            return Err(ImageError::unsupported(Format::WebP, "an animation"));
        }
        let side = |at: usize| number(&payload[at..at + 3]) + 1;
        ((side(4), side(7)), payload[0] & ALPHA != 0)
    } else {
        let size = picture_size(&chunk)?.ok_or_else(|| incomplete(start + needed))?;
        (size, color == Color::Rgb && payload[4] & 0x10 != 0)
    };
    if width == 0 || height == 0 {
        return Err(bad(format!("a size of {width}x{height} pixels")));
    }
    Ok(Probe {
        format: Format::WebP,
        width,
        height,
        channels: if alpha { 4 } else { 3 },
        bits: 8,
        color: if alpha { Color::Rgba } else { color },
        progressive: false,
        header_bytes: (start + needed) as u64,
    })
}

/// Returns the offset after the file, from the length in its first bytes.
fn end(bytes: &[u8]) -> Option<usize> {
    let length = usize::try_from(number(bytes.get(4..8)?)).ok()?;
    let end = length.checked_add(8)?;
    (end <= bytes.len()).then_some(end)
}

/// Checks that every image in the file has the size in the file's header: limits are checked on the
/// header, but decoders allocate by the size of each image.
fn check_pictures(bytes: &[u8], width: u32, height: u32) -> Result<()> {
    let mut at = FIRST_CHUNK;
    while let Some(chunk) = chunk(bytes, at) {
        if let Some(size) = picture_size(&chunk)?
            && size != (width, height)
        {
            let (w, h) = size;
            return Err(bad(format!(
                "a picture of {w}x{h} pixels in a file of {width}x{height}"
            )));
        }
        at = chunk.end;
    }
    Ok(())
}

/// Returns the payload of the first chunk with this name, anywhere in the file.
fn find<'a>(bytes: &'a [u8], name: &[u8; 4]) -> Option<&'a [u8]> {
    let mut at = FIRST_CHUNK;
    loop {
        let chunk = chunk(bytes, at)?;
        if chunk.name == *name {
            return chunk.whole.then_some(chunk.payload);
        }
        at = chunk.end;
    }
}

fn decode(job: &DecodeJob<'_>, canvas: &mut Canvas) -> Result<()> {
    let Some(end) = end(job.bytes) else {
        return Err(ended());
    };
    let bytes = &job.bytes[..end];
    let (width, height) = (job.probe.width, job.probe.height);
    check_pictures(bytes, width, height)?;
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(refuse)?;
    decoder.set_memory_limit(usize::try_from(job.limits.max_decoded_bytes).unwrap_or(usize::MAX));
    if decoder.dimensions() != (width, height) {
        return Err(ImageError::corrupt(Format::WebP, "two different sizes"));
    }
    let pixels = width as usize * height as usize;
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let size = pixels * channels;
    if canvas.data.len() < size + Canvas::TAIL {
        canvas.data.resize(size + Canvas::TAIL, 0);
    }
    decoder
        .read_image(&mut canvas.data[..size])
        .map_err(refuse)?;
    if channels == 4 {
        // Drops alpha in place.
        for i in 1..pixels {
            canvas.data.copy_within(4 * i..4 * i + 3, 3 * i);
        }
    }
    let region = job.region;
    canvas.stride = width as usize * 3;
    canvas.start = (region.y as usize * width as usize + region.x as usize) * 3;
    Ok(())
}

fn ended() -> ImageError {
    ImageError::truncated(Format::WebP, "the file ends inside the image data")
}

fn refuse(error: DecodingError) -> ImageError {
    match error {
        DecodingError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => ended(),
        DecodingError::UnsupportedFeature(what) => ImageError::unsupported(Format::WebP, what),
        other => ImageError::corrupt(Format::WebP, other.to_string()),
    }
}
