//! Image formats. Each format has one file here, and one line in the table in `file_format.rs`.
//!
//! A format's file contains everything specific to it ([`ImageFormat`]): names, signature, header,
//! end of file, EXIF data, decoders. All other code looks up formats by content ([`sniff`],
//! [`probe`]) or by file extension ([`Format::from_extension`]).
//!
//! Headers are read without decoding and are not trusted. [`probe`] works on any prefix of a file:
//! it allocates nothing and reads each header byte once. If the prefix is too short, the error
//! contains the number of bytes needed, so that a packer can probe the first few KiB.

mod decoding;
mod jpeg;
mod png;
mod tiff;
mod webp;

pub(crate) use decoding::{Canvas, DecodeJob, Scratch};
pub(crate) use png::decode_ids as decode_png_ids;

use crate::error::{ImageError, Result};
pub use crate::file_format::Format;
use crate::file_format::formats;
use forebay_jpeg::internals::Rows;
use forebay_jpeg::{Encoding, Limits};
pub use jpeg::standard_image;
use std::fmt;

/// The definition of a format, in its file.
pub(crate) trait ImageFormat {
    /// Returns the name that TensorFlow writes into `image/format`, or would write.
    fn name(&self) -> &'static str;

    /// Returns file extensions in lower case, the most common one first.
    fn extensions(&self) -> &'static [&'static str];

    /// Tests whether a file begins like this format.
    fn sniff(&self, head: &[u8]) -> Sniff;

    /// Reads the header from the whole file or a prefix.
    fn probe(&self, bytes: &[u8]) -> Result<Probe>;

    /// Returns the total memory for decoding in bytes per pixel: RGB output, and the decoder's own buffers.
    fn decoded_bytes_per_pixel(&self, probe: &Probe) -> u64;

    /// Decodes the region of a job row by row. Returns `false`, possibly after some rows, if only
    /// [`decode`](Self::decode) supports this kind of file.
    fn stream(&self, _: &DecodeJob<'_>, _: &mut Scratch, _: &mut dyn Rows) -> Result<bool> {
        Ok(false)
    }

    /// Decodes the region of a job onto the canvas.
    fn decode(&self, job: &DecodeJob<'_>, scratch: &mut Scratch, canvas: &mut Canvas)
    -> Result<()>;

    /// Returns the offset after the image, or `None` if it does not end within `bytes`. Decodes nothing.
    fn end(&self, bytes: &[u8]) -> Option<usize>;

    /// Determines how a whole file ends; faster than [`end`](Self::end) if the last bytes suffice.
    fn ending(&self, bytes: &[u8], _: &Probe) -> Ending {
        Ending::at(self.end(bytes), bytes)
    }

    /// Returns the TIFF structure of the EXIF data, if any.
    fn exif<'a>(&self, _: &'a [u8]) -> Option<&'a [u8]> {
        None
    }

    /// Checks from markers and headers that the file is of a supported kind.
    fn check_structure(&self, _: &[u8], _: &Limits) -> Result<()> {
        Ok(())
    }

    /// Checks that the file can be decoded, as far as that is cheaper than decoding.
    fn check_codes(&self, _: &[u8], _: &Limits, _: &mut Scratch) -> Result<()> {
        Ok(())
    }

    /// Returns whether the decoders can decode at 1/2, 1/4 and 1/8 of the size.
    fn scales(&self) -> bool {
        false
    }
}

/// Result of examining the first bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sniff {
    Yes,
    No,
    /// Undecided, because the bytes end too early; the header needs at least this many.
    More(u64),
}

impl Sniff {
    /// Compares the start of a file with `magic`, with which all files of a format begin.
    pub(crate) fn magic(head: &[u8], magic: &[u8], needed: u64) -> Self {
        if head.starts_with(magic) {
            Self::Yes
        } else if magic.starts_with(head) {
            Self::More(needed)
        } else {
            Self::No
        }
    }
}

macro_rules! format_table {
    ($($(#[$doc:meta])* $format:ident => $imp:expr,)*) => {
        impl Format {
            pub(crate) fn imp(self) -> &'static dyn ImageFormat {
                match self {
                    $(Self::$format => &$imp,)*
                }
            }
        }
    };
}

formats!(format_table);

impl Format {
    /// Returns the name that TensorFlow writes into `image/format`: `JPEG`, `PNG`; others follow
    /// the same pattern, such as `WEBP`.
    pub fn name(self) -> &'static str {
        self.imp().name()
    }

    /// Returns the most common file extension.
    pub fn extension(self) -> &'static str {
        self.imp().extensions()[0]
    }

    /// Returns the format with a [name](Self::name), in any case.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|format| name.eq_ignore_ascii_case(format.name().as_bytes()))
    }

    /// Returns the format of a file extension, in any case: `jpg`, `PNG`.
    pub fn from_extension(extension: &[u8]) -> Option<Self> {
        let has = |name: &&str| extension.eq_ignore_ascii_case(name.as_bytes());
        let mut all = Self::ALL.iter().copied();
        all.find(|format| format.imp().extensions().iter().any(has))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Color model of the stored image. Decoding always gives RGB; see [`crate::Decoder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Color {
    /// One channel of brightness.
    Gray,
    /// Gray with alpha (PNG).
    GrayAlpha,
    /// Red, green, blue.
    Rgb,
    /// RGB with alpha (PNG, WebP).
    Rgba,
    /// Indices into a color table (PNG).
    Palette,
    /// Luma and two color differences (nearly every JPEG, lossy WebP).
    YCbCr,
    /// Four inks (JPEG).
    Cmyk,
    /// CMYK whose first three channels are stored as YCbCr (JPEG).
    Ycck,
}

/// The fields of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// Container format.
    pub format: Format,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Number of stored channels (a palette counts as one).
    pub channels: u8,
    /// Bits per channel.
    pub bits: u8,
    /// Color model.
    pub color: Color,
    /// Progressive JPEG or interlaced PNG.
    pub progressive: bool,
    /// Offset after the bytes that were read: up to the first scan (JPEG), the first chunk after
    /// IHDR (PNG), or the size in the first chunk (WebP).
    pub header_bytes: u64,
}

/// Detects the format from the first bytes.
///
/// ```
/// use forebay_image::{Format, sniff};
/// assert_eq!(sniff(b"\xff\xd8\xff\xe0"), Some(Format::Jpeg));
/// assert_eq!(sniff(b"GIF89a"), None);
/// ```
pub fn sniff(bytes: &[u8]) -> Option<Format> {
    let mut all = Format::ALL.iter().copied();
    all.find(|format| format.imp().sniff(bytes) == Sniff::Yes)
}

/// Reads the header of an image from the whole file or any prefix of it.
///
/// # Errors
/// [`ImageError::UnknownFormat`], and of [`DecodeError`](crate::DecodeError) `Incomplete` if the bytes
/// end before the header does (it says how many are needed), `OverLimit`, `Corrupt` and
/// `Unsupported`.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<Probe> {
    let format = sniff(bytes).ok_or_else(|| unknown(bytes))?.imp();
    let probe = format.probe(bytes)?;
    let bytes_per_pixel = format.decoded_bytes_per_pixel(&probe);
    limits.check(probe.width, probe.height, bytes_per_pixel)?;
    Ok(probe)
}

/// Returns the number of bytes after the end of the image (some ImageNet files have them; decoders
/// ignore them), or `None` if the image does not end within `bytes`. Walks markers and chunks only;
/// decodes nothing.
pub fn trailing_bytes(bytes: &[u8]) -> Option<u64> {
    let end = sniff(bytes)?.imp().end(bytes)?;
    Some((bytes.len() - end) as u64)
}

/// How a file ends, as far as is known without decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The file ends with the image.
    Whole,
    /// This many bytes follow the image.
    Trailing(u64),
    /// The file ends before the image: the rest is missing, or damage hides its end.
    Cut,
}

impl Ending {
    /// Returns the ending of a file whose image ends at offset `end`, if known.
    fn at(end: Option<usize>, bytes: &[u8]) -> Self {
        match end.map(|end| bytes.len() - end) {
            Some(0) => Self::Whole,
            Some(rest) => Self::Trailing(rest as u64),
            None => Self::Cut,
        }
    }
}

/// Determines how a whole file ends. `probe` is the result of [`probe`](probe()) for these bytes.
///
/// A JPEG or PNG whose last bytes end an image counts as whole; in a file with several images
/// (MPO), the last one counts. Otherwise this searches a JPEG for its end-of-image marker, follows
/// the chunks of a PNG to the last one, and uses the length in the first bytes of a WebP. Damage
/// that leaves the end in place is detected by decoding only.
pub fn ending(bytes: &[u8], probe: &Probe) -> Ending {
    probe.format.imp().ending(bytes, probe)
}

/// Returns whether a whole file ends with these bytes, which have to follow its header.
fn ends_with(bytes: &[u8], probe: &Probe, end: &[u8]) -> bool {
    let header = usize::try_from(probe.header_bytes).unwrap_or(usize::MAX);
    let rest = bytes.get(header..).unwrap_or_default();
    rest.ends_with(end)
}

/// Checks from the structure of an image that [`Decoder`](crate::Decoder) supports its kind,
/// without decoding or allocating for it. For a JPEG with several scans this checks the markers of
/// all scans, for other files the header.
///
/// # Errors
/// As [`Decoder::decode`](crate::Decoder::decode), except for damage to the image data.
pub fn check_structure(bytes: &[u8], limits: &Limits) -> Result<()> {
    let format = probe(bytes, limits)?.format;
    format.imp().check_structure(bytes, limits)
}

fn unknown(bytes: &[u8]) -> ImageError {
    // The prefix is too short for a decision: report how many bytes the possible format needs.
    for &format in Format::ALL {
        if let Sniff::More(needed) = format.imp().sniff(bytes) {
            return ImageError::incomplete(format, needed, bytes);
        }
    }
    let start: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
    ImageError::UnknownFormat {
        start: start.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RgbImage, encode_jpeg, encode_png};

    #[test]
    fn endings_are_determined_without_decoding() {
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
