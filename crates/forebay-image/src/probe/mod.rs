//! Reading headers: what an image is, how large it is, without decoding it and without trusting it.
//!
//! [`probe`] works on any prefix of a file. It allocates nothing, reads each header byte once and says how
//! many bytes it needs when the prefix ends too early, so that a packer can probe from the first few KiB.

pub(crate) mod jpeg;
mod png;
pub(crate) mod webp;

use crate::error::{ImageError, Result};
use crate::limits::Limits;
use std::fmt;

/// Container format, told by content and never by a file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// JPEG (ITU T.81): baseline, extended, progressive.
    Jpeg,
    /// PNG.
    Png,
    /// WebP, lossy or lossless; animations are refused.
    WebP,
}

impl Format {
    /// The name as TensorFlow writes it into `image/format`: `JPEG`, `PNG`; and `WEBP`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WEBP",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the file stores colour. Decoding always gives RGB; see [`crate::Decoder`] for how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Color {
    /// One channel of brightness.
    Grey,
    /// Grey with alpha (PNG).
    GreyAlpha,
    /// Red, green, blue, as they are.
    Rgb,
    /// RGB with alpha (PNG, WebP).
    Rgba,
    /// Indices into a colour table (PNG).
    Palette,
    /// Brightness and two colour differences (nearly every JPEG, lossy WebP).
    YCbCr,
    /// Four inks (JPEG).
    Cmyk,
    /// CMYK whose first three channels are stored as YCbCr (JPEG).
    Ycck,
}

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// Container format.
    pub format: Format,
    /// Columns, in pixels.
    pub width: u32,
    /// Rows, in pixels.
    pub height: u32,
    /// Channels stored (a palette counts as one).
    pub channels: u8,
    /// Bits of each channel.
    pub bits: u8,
    /// How colour is stored.
    pub color: Color,
    /// Progressive JPEG or interlaced PNG.
    pub progressive: bool,
    /// Offset just past what was read: the first scan (JPEG) the first chunk after IHDR (PNG), or
    /// the size in the first chunk (WebP).
    pub header_bytes: u64,
}

/// Tells the format by its first bytes, or `None`.
///
/// ```
/// use forebay_image::{Format, sniff};
/// assert_eq!(sniff(b"\xff\xd8\xff\xe0"), Some(Format::Jpeg));
/// assert_eq!(sniff(b"GIF89a"), None);
/// ```
pub fn sniff(bytes: &[u8]) -> Option<Format> {
    if bytes.starts_with(&jpeg::MAGIC) {
        Some(Format::Jpeg)
    } else if bytes.starts_with(&png::MAGIC) {
        Some(Format::Png)
    } else if webp::is_webp(bytes) {
        Some(Format::WebP)
    } else {
        None
    }
}

/// Reads the header of an image from the whole file or any prefix of it.
///
/// # Errors
/// [`ImageError::Incomplete`] if the bytes end before the header does (it says how many are needed),
/// [`ImageError::UnknownFormat`], [`ImageError::OverLimit`], [`ImageError::Corrupt`] and
/// [`ImageError::Unsupported`] as their names say.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<Probe> {
    let probe = match sniff(bytes) {
        Some(Format::Jpeg) => jpeg::probe(bytes)?,
        Some(Format::Png) => png::probe(bytes)?,
        Some(Format::WebP) => webp::probe(bytes)?,
        None => return Err(unknown(bytes)),
    };
    limits.check(probe.width, probe.height, decoded_bytes_per_pixel(&probe))?;
    Ok(probe)
}

/// Bytes after the end of the image (some ImageNet files have them; decoders ignore them), or `None` if
/// the image does not end within `bytes`. Walks markers and chunks only; decodes nothing.
pub fn trailing_bytes(bytes: &[u8]) -> Option<u64> {
    let end = match sniff(bytes)? {
        Format::Jpeg => jpeg::end(bytes)?,
        Format::Png => png::end(bytes)?,
        Format::WebP => webp::end(bytes)?,
    };
    Some((bytes.len() - end) as u64)
}

/// How a file ends, as far as can be told without decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// With the image.
    Whole,
    /// So many bytes after the image.
    Trailing(u64),
    /// Before the image does: the rest is missing, or so damaged that its end cannot be found.
    Cut,
}

/// Tells how a whole file ends. `probe` is what [`probe`](probe()) said about these bytes.
///
/// A JPEG or PNG whose last bytes end an image is taken for whole after a look at them: of several pictures in one file
/// (MPO) the last one counts. Else a JPEG's end-of-image marker is looked for, a PNG's chunks are followed to the last one, and
/// of a WebP the length in its first bytes counts. Damage
/// before the end that leaves the end in place is found by decoding only.
pub fn ending(bytes: &[u8], probe: &Probe) -> Ending {
    let end: &[u8] = match probe.format {
        Format::Jpeg => &[0xff, jpeg::EOI],
        Format::Png => &png::IEND,
        Format::WebP => &[],
    };
    let header = usize::try_from(probe.header_bytes).unwrap_or(usize::MAX);
    let rest = bytes.get(header..).unwrap_or_default();
    if !end.is_empty() && rest.ends_with(end) {
        return Ending::Whole;
    }
    // Scans cannot hold the marker, and without one the slower walk would find none either.
    if probe.format == Format::Jpeg && memchr::memmem::find(rest, end).is_none() {
        return Ending::Cut;
    }
    match trailing_bytes(bytes) {
        Some(0) => Ending::Whole,
        Some(bytes) => Ending::Trailing(bytes),
        None => Ending::Cut,
    }
}

/// The TIFF structure of a file's EXIF data, if it has any.
pub(crate) fn exif(bytes: &[u8], format: Format) -> Option<&[u8]> {
    match format {
        Format::Jpeg => jpeg::exif(bytes),
        Format::Png => png::find(bytes, b"eXIf"),
        // Some writers keep JPEG's prefix.
        Format::WebP => webp::find(bytes, b"EXIF")
            .map(|data| data.strip_prefix(&jpeg::EXIF[..]).unwrap_or(data)),
    }
}

fn unknown(bytes: &[u8]) -> ImageError {
    // A prefix too short to tell: say what the format that it may be would need.
    let may_be = |magic: &[u8]| bytes.len() < magic.len() && magic.starts_with(bytes);
    let riff = bytes.len() < 12 && bytes.starts_with(&webp::RIFF);
    let format = if may_be(&jpeg::MAGIC) {
        Some((Format::Jpeg, 24))
    } else if may_be(&png::MAGIC) {
        Some((Format::Png, 24))
    } else if riff || may_be(&webp::RIFF) {
        Some((Format::WebP, 20))
    } else {
        None
    };
    if let Some((format, needed)) = format {
        return ImageError::Incomplete {
            format,
            needed,
            found: bytes.len() as u64,
        };
    }
    let start: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
    ImageError::UnknownFormat {
        start: start.join(" "),
    }
}

/// RGB output plus what the decoder holds beside it.
fn decoded_bytes_per_pixel(probe: &Probe) -> u64 {
    let channels = u64::from(probe.channels);
    match probe.format {
        // Planes; and for progressive files 16-bit coefficients of every channel.
        Format::Jpeg if probe.progressive => 3 + channels * 3,
        Format::Jpeg => 3 + channels,
        Format::Png => 3 + channels.max(3) * u64::from(probe.bits.max(8) / 8),
        // Planes at half chroma; or four channels twice and what transforms keep; or any of it with alpha.
        Format::WebP if probe.color == Color::YCbCr => 3 + 3,
        Format::WebP => 3 + 13,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RgbImage, encode_jpeg, encode_png};

    #[test]
    fn endings_are_told_without_decoding() {
        let data = (0..30 * 20 * 3).map(|n| (n % 251) as u8).collect();
        let image = RgbImage {
            width: 30,
            height: 20,
            data,
        };
        let jpeg = encode_jpeg(&image, 90, false).unwrap();
        let png = encode_png(&image.data, 30, 20);
        for whole in [jpeg, png] {
            let probe = probe(&whole, &Limits::default()).unwrap();
            let of = |bytes: &[u8]| ending(bytes, &probe);
            assert_eq!(of(&whole), Ending::Whole);
            for tail in [b"\0".as_slice(), b"\r\n", b"\xff", b"\xff\xd8 a second one"] {
                let long = [whole.as_slice(), tail].concat();
                assert_eq!(of(&long), Ending::Trailing(tail.len() as u64), "{tail:?}");
            }
            for len in probe.header_bytes as usize..whole.len() {
                assert_eq!(of(&whole[..len]), Ending::Cut, "{len} bytes");
            }
            assert_eq!(of(b""), Ending::Cut);
        }
    }
}
