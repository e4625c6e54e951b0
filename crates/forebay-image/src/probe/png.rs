//! PNG: the signature, IHDR, and a walk over chunk lengths.

use super::{Color, Format, Probe};
use crate::error::{ImageError, Result};

/// The eight bytes every PNG begins with.
pub(super) const MAGIC: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
/// The last chunk: length 0, type, no data, checksum.
pub(super) const IEND: [u8; 12] = *b"\0\0\0\0IEND\xae\x42\x60\x82";
/// Signature, then length, type, 13 bytes and checksum of IHDR, which must be the first chunk.
const HEADER_BYTES: usize = 8 + 4 + 4 + 13 + 4;

fn be32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .fold(0, |n, &b| (n << 8) | u32::from(b))
}

pub(super) fn probe(bytes: &[u8]) -> Result<Probe> {
    let bad = |what: String| ImageError::corrupt(Format::Png, what);
    let Some(header) = bytes.get(8..HEADER_BYTES) else {
        return Err(ImageError::Incomplete {
            format: Format::Png,
            needed: HEADER_BYTES as u64,
            found: bytes.len() as u64,
        });
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
        0 => (Color::Grey, 1, &[1, 2, 4, 8, 16]),
        2 => (Color::Rgb, 3, &[8, 16]),
        3 => (Color::Palette, 1, &[1, 2, 4, 8]),
        4 => (Color::GreyAlpha, 2, &[8, 16]),
        6 => (Color::Rgba, 4, &[8, 16]),
        _ => return Err(bad(format!("colour type {kind}"))),
    };
    if !depths.contains(&bits) {
        return Err(bad(format!(
            "{bits} bits a channel with colour type {kind}"
        )));
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

/// The payload of the first chunk of a name; chunks are walked by their lengths.
pub(super) fn find<'a>(bytes: &'a [u8], name: &[u8; 4]) -> Option<&'a [u8]> {
    let mut found = None;
    walk(bytes, |chunk, payload| {
        if found.is_none() && chunk == name {
            found = Some(payload);
        }
        found.is_some()
    });
    found
}

/// Offset just past IEND.
pub(super) fn end(bytes: &[u8]) -> Option<usize> {
    walk(bytes, |_, _| false)
}

/// Walks to IEND, or to the chunk at which `stop` says so; the offset just past it.
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
