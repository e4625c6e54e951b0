//! Lossless transcoding of progressive JPEGs to baseline ones, and restoration of the original
//! bytes.
//!
//! A progressive file holds the same coefficients as a baseline one, in several scans; decoding a
//! region of it requires all of them. [`progressive_to_baseline`] writes them in one scan, with new
//! Huffman codes, and stores a *recipe*: the markers and tables of the original. With it
//! [`restore_progressive`] encodes the scans again. Encoders have some freedom in how they encode a
//! scan. A file whose encoder made other choices than libjpeg is detected when the recipe is tried,
//! and left unchanged. docs/format/progressive-jpegs.md
//! specifies the bytes of the recipe.

mod scans;

use crate::decode::Decoder;
use crate::error::{ImageError, Result};
use crate::format::{Format, probe};
use crate::guard::catch_panic;
use forebay_jpeg::Limits;
use forebay_jpeg::internals::{self as jpeg, DHT, DQT, DRI, EOI, SOF2, SOS, put_varint, varint};
use libjpeg_turbo_rs::{JpegCoefficients, read_coefficients, write_coefficients_optimized};
use scans::Scans;

const VERSION: u8 = 1;
/// Length and checksum of the original, at the end of a recipe.
const CHECK: usize = 8;
/// Maximum length of an original in bytes: the maximum length of a record.
const MAX_BYTES: usize = 256 << 20;

const SOF0: u8 = 0xc0;

/// A baseline JPEG with its recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcoded {
    /// The baseline JPEG: the same coefficients, and all markers that do not concern their entropy coding.
    pub jpeg: Vec<u8>,
    /// The recipe from which [`restore_progressive`] restores the original.
    pub recipe: Vec<u8>,
}

/// Transcodes a progressive JPEG to a baseline one with the same pixels, from which the original
/// bytes can be restored; verifies both. Returns `None` for every other file, and if the bytes
/// cannot be restored; leave such files unchanged.
pub fn progressive_to_baseline(bytes: &[u8], limits: &Limits) -> Option<Transcoded> {
    let header = probe(bytes, limits).ok()?;
    if header.format != Format::Jpeg || !header.progressive || bytes.len() > MAX_BYTES {
        return None;
    }
    limits.check_scans(jpeg::scans(bytes)).ok()?;
    let skeleton = Skeleton::read(bytes)?;
    let mut coefficients = coefficients(bytes)?;
    coefficients.restart_interval = 0;
    let written = quietly(|| write_coefficients_optimized(&coefficients).ok())?;
    let jpeg = skeleton.baseline(bytes, &written)?;
    let recipe = skeleton.recipe(bytes, &jpeg);
    if restore_progressive(&jpeg, &recipe, limits).ok()? != bytes {
        return None;
    }
    let mut decoder = Decoder::new(*limits);
    let same = decoder.decode(bytes).ok()? == decoder.decode(&jpeg).ok()?;
    same.then_some(Transcoded { jpeg, recipe })
}

/// Restores the original file from the result of [`progressive_to_baseline`].
///
/// # Errors
/// [`ImageError`] if the recipe is damaged or does not belong to this JPEG. A successful result is
/// the original, byte for byte: the recipe holds its length and CRC-32C.
pub fn restore_progressive(jpeg: &[u8], recipe: &[u8], limits: &Limits) -> Result<Vec<u8>> {
    let wrong = |what: &str| ImageError::corrupt(Format::Jpeg, format!("the recipe {what}"));
    let cut = || wrong("is cut short");
    let (body, check) = recipe.split_last_chunk::<CHECK>().ok_or_else(cut)?;
    let [length, sum] = [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| check[at + i])));
    let length = length as usize;
    if length > MAX_BYTES {
        return Err(wrong("is of a file that is too long"));
    }
    let (&version, mut rest) = body.split_first().ok_or_else(cut)?;
    if version != VERSION {
        return Err(wrong("has another version"));
    }
    probe(jpeg, limits)?;
    let shared = varint(&mut rest).ok_or_else(cut)?;
    let count = varint(&mut rest).ok_or_else(cut)?;
    limits.check_scans(u32::try_from(count).unwrap_or(u32::MAX))?;
    let shared = usize::try_from(shared).ok().and_then(|n| jpeg.get(..n));
    let mut out = shared.ok_or_else(|| wrong("is of a longer JPEG"))?.to_vec();
    let coefficients =
        coefficients(jpeg).ok_or_else(|| wrong("is of a JPEG that cannot be read"))?;
    let mut scans = Scans::new(&coefficients);
    let mut at = 2;
    for part in 0..=count {
        let literal = varint(&mut rest).and_then(|n| usize::try_from(n).ok());
        let literal = literal
            .and_then(|n| rest.split_at_checked(n))
            .ok_or_else(cut)?;
        out.extend_from_slice(literal.0);
        rest = literal.1;
        if part == count {
            break;
        }
        while at < out.len() {
            let segment = jpeg::segment(&out, at)?;
            at = segment.end;
            scans
                .segment(segment.marker, segment.payload)
                .ok_or_else(|| wrong("has a damaged marker"))?;
        }
        scans
            .encode(&mut out, length)
            .ok_or_else(|| wrong("is not of this JPEG"))?;
        at = out.len();
    }
    if !rest.is_empty() || out.len() != length || crc32c::crc32c(&out) != sum {
        return Err(wrong("is not of this JPEG"));
    }
    Ok(out)
}

/// Calls a third-party decoder; `None` if it panics.
fn quietly<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_panic(work).ok().flatten()
}

fn coefficients(bytes: &[u8]) -> Option<JpegCoefficients> {
    quietly(|| read_coefficients(bytes).ok())
}

/// Byte ranges of the parts of a progressive file.
struct Skeleton {
    /// Segments before the first scan: marker, start, end.
    header: Vec<(u8, usize, usize)>,
    /// Entropy-coded data: start and end.
    data: Vec<(usize, usize)>,
}

impl Skeleton {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (mut header, mut data) = (Vec::new(), Vec::new());
        let mut at = 2;
        loop {
            let segment = jpeg::segment(bytes, at).ok()?;
            match segment.marker {
                EOI if data.is_empty() => return None,
                EOI => return Some(Self { header, data }),
                SOS => {
                    let end = end_of_data(bytes, segment.end)?;
                    data.push((segment.end, end));
                    at = end;
                    continue;
                }
                0xe0..=0xef | 0xfe | DHT | DRI => {}
                // The single scan of a baseline file is decoded with tables that precede it.
                DQT | SOF2 if data.is_empty() => {}
                _ => return None,
            }
            if data.is_empty() {
                header.push((segment.marker, at, segment.end));
            }
            at = segment.end;
        }
    }

    /// Returns the original's header with the scan of `written`, a baseline JPEG.
    fn baseline(&self, bytes: &[u8], written: &[u8]) -> Option<Vec<u8>> {
        let mut out = bytes[..2].to_vec();
        for &(marker, start, end) in &self.header {
            let from = out.len();
            match marker {
                DHT | DRI => continue,
                _ => out.extend_from_slice(&bytes[start..end]),
            }
            if marker == SOF2 {
                let at = out[from..].iter().position(|byte| *byte == SOF2)?;
                out[from + at] = SOF0;
            }
        }
        let mut at = 2;
        loop {
            let segment = jpeg::segment(written, at).ok()?;
            match segment.marker {
                SOS => {
                    out.extend_from_slice(&written[at..]);
                    return Some(out);
                }
                DHT => out.extend_from_slice(&written[at..segment.end]),
                EOI => return None,
                _ => {}
            }
            at = segment.end;
        }
    }

    fn recipe(&self, bytes: &[u8], jpeg: &[u8]) -> Vec<u8> {
        let first = self.data.first().map_or(0, |data| data.0);
        let pairs = bytes[..first].iter().zip(jpeg);
        let shared = pairs.take_while(|(a, b)| a == b).count();
        let mut out = vec![VERSION];
        put_varint(&mut out, shared as u64);
        put_varint(&mut out, self.data.len() as u64);
        let mut from = shared;
        for &(start, end) in self.data.iter().chain([&(bytes.len(), bytes.len())]) {
            put_varint(&mut out, (start - from) as u64);
            out.extend_from_slice(&bytes[from..start]);
            from = end;
        }
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
        out
    }
}

/// Returns the offset of the marker after entropy-coded data; restart markers belong to the data.
fn end_of_data(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += bytes.get(at..)?.iter().position(|&byte| byte == 0xff)?;
        match bytes.get(at + 1)? {
            0 | 0xd0..=0xd7 => at += 2,
            _ => return Some(at),
        }
    }
}

#[cfg(test)]
mod tests;
