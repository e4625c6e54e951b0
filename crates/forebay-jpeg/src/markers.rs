//! JPEG markers: a bounded walk over the segments before the first scan.

use super::encoding::Encoding;
use super::error::{Error, Result};

/// One marker segment: its payload without the two length bytes.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// Second byte of the marker.
    pub marker: u8,
    /// Payload; empty for markers without one.
    pub payload: &'a [u8],
    /// Offset just past the segment.
    pub end: usize,
}

/// A progressive frame.
pub const SOF2: u8 = 0xc2;
/// Huffman tables.
pub const DHT: u8 = 0xc4;
/// Quantization tables.
pub const DQT: u8 = 0xdb;
/// Markers of hierarchical files: DHP defines the size of the whole image, EXP expands the preceding image.
pub(crate) const DHP: u8 = 0xde;
pub(crate) const EXP: u8 = 0xdf;
/// Restart interval.
pub const DRI: u8 = 0xdd;
/// Start of scan.
pub const SOS: u8 = 0xda;
/// End of image.
pub const EOI: u8 = 0xd9;

/// Reads the segment whose marker is at `at`; skips fill bytes before the marker, as decoders do.
pub fn segment(bytes: &[u8], at: usize) -> Result<Segment<'_>> {
    let incomplete = |needed: usize| Error::Incomplete {
        format: Encoding::Jpeg.name(),
        needed: needed as u64,
        found: bytes.len() as u64,
    };
    let mut i = at;
    let first = *bytes.get(i).ok_or_else(|| incomplete(i + 4))?;
    if first != 0xff {
        return Err(Error::corrupt(
            Encoding::Jpeg,
            format!("at byte {at}: expected a marker (ff), found {first:02x}"),
        ));
    }
    while bytes.get(i) == Some(&0xff) {
        i += 1;
    }
    let marker = *bytes.get(i).ok_or_else(|| incomplete(i + 3))?;
    i += 1;
    if marker == 0x01 || (0xd0..=EOI).contains(&marker) {
        return Ok(Segment {
            marker,
            payload: &[],
            end: i,
        });
    }
    let Some(length) = bytes.get(i..i + 2) else {
        return Err(incomplete(i + 2));
    };
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    if length < 2 {
        return Err(Error::corrupt(
            Encoding::Jpeg,
            format!("at byte {i}: a segment length of {length}, at least 2 is possible"),
        ));
    }
    let end = i + length;
    let payload = bytes.get(i + 2..end).ok_or_else(|| incomplete(end))?;
    Ok(Segment {
        marker,
        payload,
        end,
    })
}

/// Returns whether a marker starts a frame (SOF0..SOF15 without DHT, JPG and DAC).
pub(crate) fn is_frame(marker: u8) -> bool {
    (0xc0..=0xcf).contains(&marker) && !matches!(marker, 0xc4 | 0xc8 | 0xcc)
}

/// Returns the color transform in Adobe's APP14 segment.
pub(crate) fn adobe_transform(segment: &Segment<'_>) -> Option<u8> {
    let is_adobe = segment.marker == 0xee && segment.payload.starts_with(b"Adobe");
    if is_adobe {
        segment.payload.get(11).copied()
    } else {
        None
    }
}

/// The first bytes of EXIF data in an APP1 segment.
pub const EXIF: [u8; 6] = *b"Exif\0\0";

/// Returns the EXIF data before the first scan.
pub(crate) fn exif(bytes: &[u8]) -> Option<&[u8]> {
    let mut at = 2;
    loop {
        let segment = segment(bytes, at).ok()?;
        match segment.marker {
            SOS | EOI => return None,
            0xe1 if segment.payload.starts_with(&EXIF) => {
                return Some(&segment.payload[EXIF.len()..]);
            }
            _ => at = segment.end,
        }
    }
}

/// Returns whether this is JFIF's APP0 segment.
pub(crate) fn is_jfif(segment: &Segment<'_>) -> bool {
    segment.marker == 0xe0 && segment.payload.len() >= 14 && segment.payload.starts_with(b"JFIF\0")
}

/// Color model of the stored image. Decoding always gives RGB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColorModel {
    /// One channel of brightness.
    Gray,
    /// Red, green, blue.
    Rgb,
    /// Luma and two color differences: nearly every JPEG.
    YCbCr,
    /// Four inks.
    Cmyk,
    /// CMYK whose first three channels are stored as YCbCr.
    Ycck,
}

impl ColorModel {
    /// Returns the number of stored channels.
    pub const fn channels(self) -> u8 {
        match self {
            Self::Gray => 1,
            Self::Rgb | Self::YCbCr => 3,
            Self::Cmyk | Self::Ycck => 4,
        }
    }
}

/// Determines the color model by libjpeg's rules: JFIF means YCbCr, then Adobe's flag decides, then the component ids.
pub(crate) fn color(ids: &[u8], jfif: bool, adobe: Option<u8>) -> Option<ColorModel> {
    match (ids.len(), adobe) {
        (1, _) => Some(ColorModel::Gray),
        (3, _) if jfif => Some(ColorModel::YCbCr),
        (3, Some(0)) => Some(ColorModel::Rgb),
        (3, Some(_)) => Some(ColorModel::YCbCr),
        (3, None) if ids == b"RGB" => Some(ColorModel::Rgb),
        (3, None) => Some(ColorModel::YCbCr),
        (4, None | Some(0)) => Some(ColorModel::Cmyk),
        (4, Some(_)) => Some(ColorModel::Ycck),
        _ => None,
    }
}

/// A frame header.
pub(crate) struct Frame<'a> {
    pub(crate) marker: u8,
    pub(crate) width: u16,
    pub(crate) height: u16,
    /// Id, sampling factors and slot of the quantization table of each component.
    pub(crate) descriptions: &'a [[u8; 3]],
}

/// Reads a frame header; refuses unsupported kinds of JPEG.
pub(crate) fn frame(marker: u8, payload: &[u8]) -> Result<Frame<'_>> {
    let bad = |what: String| Error::corrupt(Encoding::Jpeg, what);
    let unsupported = |what: &str| Err(Error::unsupported(Encoding::Jpeg, what));
    match marker {
        0xc0..=SOF2 => {}
        0xc3 | 0xcb => return unsupported("lossless coding"),
        0xc9 | 0xca => return unsupported("arithmetic coding"),
        _ => return unsupported("hierarchical coding"),
    }
    let &[bits, h1, h0, w1, w0, components, ref rest @ ..] = payload else {
        return Err(bad(format!(
            "frame header of {} bytes, at least 6 are needed",
            payload.len()
        )));
    };
    let components = usize::from(components);
    if rest.len() != components * 3 {
        return Err(bad(format!(
            "frame header of {} bytes for {components} components, expected {}",
            payload.len(),
            6 + components * 3
        )));
    }
    let (descriptions, _) = rest.as_chunks();
    if bits != 8 {
        return unsupported(&format!("{bits} bits a sample"));
    }
    if !matches!(components, 1 | 3 | 4) {
        return unsupported(&format!("{components} color components"));
    }
    let width = u16::from_be_bytes([w1, w0]);
    let height = u16::from_be_bytes([h1, h0]);
    if height == 0 {
        // Valid, but the number of lines follows after the first scan, in a DNL segment.
        return unsupported("height given after the first scan (DNL)");
    }
    if width == 0 {
        return Err(bad("a width of 0 pixels".into()));
    }
    Ok(Frame {
        marker,
        width,
        height,
        descriptions,
    })
}

/// Returns the offset after the next marker of entropy-coded data at or after `at`, restart markers
/// included; `ff00` is a data byte, and `ff` may be repeated before a marker's code.
pub(crate) fn next_marker(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr::memchr(0xff, bytes.get(at..)?)? + 1;
        match bytes.get(at)? {
            0 => at += 1,
            0xff => {}
            _ => return Some(at + 1),
        }
    }
}

/// Returns the offset of the marker after a scan's data; the length of the file if there is none.
pub(crate) fn marker_after(bytes: &[u8], mut at: usize) -> usize {
    loop {
        match next_marker(bytes, at) {
            Some(end) if (0xd0..=0xd7).contains(&bytes[end - 1]) => at = end,
            Some(end) => return end - 2,
            None => return bytes.len(),
        }
    }
}

/// A table in the payload of a DHT segment.
#[derive(Clone, Copy)]
pub(crate) struct HuffmanTable<'a> {
    /// Class (upper four bits) and number (lower four bits).
    pub(crate) target: u8,
    /// Numbers of codes by length.
    pub(crate) counts: &'a [u8; 16],
    pub(crate) symbols: &'a [u8],
}

impl<'a> HuffmanTable<'a> {
    /// Takes the next table from the payload. Returns `None` if it is cut short.
    pub(crate) fn take(payload: &mut &'a [u8]) -> Option<Self> {
        let (&target, rest) = payload.split_first()?;
        let (counts, rest) = rest.split_first_chunk::<16>()?;
        let total = counts.iter().map(|&n| usize::from(n)).sum();
        let (symbols, rest) = rest.split_at_checked(total)?;
        *payload = rest;
        Some(Self {
            target,
            counts,
            symbols,
        })
    }

    /// Returns the place of this table in those of DC and of AC coefficients.
    pub(crate) fn slot<'t, T>(&self, dc: &'t mut [T; 4], ac: &'t mut [T; 4]) -> Option<&'t mut T> {
        let tables = match self.target >> 4 {
            0 => dc,
            1 => ac,
            _ => return None,
        };
        tables.get_mut(usize::from(self.target & 15))
    }
}

/// Reads the payload of a DRI segment. Returns `None` if it is damaged.
pub(crate) fn restart_interval(payload: &[u8]) -> Option<usize> {
    let bytes = payload.try_into().ok()?;
    Some(usize::from(u16::from_be_bytes(bytes)))
}

/// Walks from the first segment over all scans to the end-of-image marker; calls `scan` for each scan.
fn walk(bytes: &[u8], mut scan: impl FnMut()) -> Option<usize> {
    let mut at = 2;
    loop {
        let segment = segment(bytes, at).ok()?;
        at = segment.end;
        match segment.marker {
            EOI => return Some(at),
            SOS => {
                scan();
                at = marker_after(bytes, at);
            }
            _ => {}
        }
    }
}

/// Returns the offset after the end-of-image marker.
pub(crate) fn end(bytes: &[u8]) -> Option<usize> {
    walk(bytes, || ())
}

/// Returns the number of scans in the file, as far as its markers can be walked.
pub fn scans(bytes: &[u8]) -> u32 {
    let mut scans = 0u32;
    let _ = walk(bytes, || scans = scans.saturating_add(1));
    scans
}
