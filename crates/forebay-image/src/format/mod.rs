//! Image formats. One file and one line of the table for each.
//!
//! The file of a format owns all that is particular to it ([`ImageFormat`]): names, signature, header, end, EXIF data, decoders. Everything
//! else asks the table: by content ([`sniff`], [`probe`]) or by a file's name ([`Format::from_extension`]).
//!
//! Headers are read without decoding and without trust. [`probe`] works on any prefix of a file: it allocates nothing, reads each header byte
//! once and says how many bytes it needs when the prefix ends too early, so that a packer can probe from the first few KiB.

mod decoding;
pub(crate) mod jpeg;
mod png;
mod tiff;
mod webp;

pub(crate) use decoding::{Canvas, DecodeJob, FormatDecoder, Outcome, Scratch};

use crate::error::{ImageError, Result};
use crate::limits::Limits;
use std::fmt;

/// The definition of a format, in its file.
pub(crate) trait ImageFormat {
    /// The name as TensorFlow writes it into `image/format`, or would.
    fn name(&self) -> &'static str;

    /// Endings of file names, in lower case, the usual one first.
    fn extensions(&self) -> &'static [&'static str];

    /// Tells whether a file begins with `head`.
    fn sniff(&self, head: &[u8]) -> Sniff;

    /// Reads the header from the whole file or a prefix.
    fn probe(&self, bytes: &[u8]) -> Result<Probe>;

    /// Bytes a pixel that decoding takes in all: RGB output, and what the decoder holds beside it.
    fn decoded_bytes_per_pixel(&self, probe: &Probe) -> u64;

    /// The decoders, by priority: each may decline. Only the first may stream.
    fn decoders(&self) -> &'static [FormatDecoder];

    /// Offset just past the image, or `None` if it does not end within `bytes`. Decodes nothing.
    fn end(&self, bytes: &[u8]) -> Option<usize>;

    /// How a whole file ends; faster than [`end`](Self::end) where the last bytes tell.
    fn ending(&self, bytes: &[u8], _: &Probe) -> Ending {
        Ending::at(self.end(bytes), bytes)
    }

    /// The TIFF structure of the EXIF data, if there is one.
    fn exif<'a>(&self, _: &'a [u8]) -> Option<&'a [u8]> {
        None
    }

    /// Checks that the file is of a kind that is decoded, as far as its structure tells.
    fn check_structure(&self, _: &[u8], _: &Limits) -> Result<()> {
        Ok(())
    }

    /// Checks that the file can be decoded, as far as that is cheaper than decoding.
    fn check_codes(&self, _: &[u8], _: &Limits, _: &mut Scratch) -> Result<()> {
        Ok(())
    }

    /// Whether the decoders can decode at 1/2, 1/4 and 1/8 of the size.
    fn scales(&self) -> bool {
        false
    }
}

/// The verdict of the first bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sniff {
    Yes,
    No,
    /// It may be, but the bytes end too early; so many are needed for the header.
    More(u64),
}

impl Sniff {
    /// For a format whose files all begin with `magic`.
    fn magic(head: &[u8], magic: &[u8], needed: u64) -> Self {
        if head.starts_with(magic) {
            Self::Yes
        } else if magic.starts_with(head) {
            Self::More(needed)
        } else {
            Self::No
        }
    }
}

/// Declares [`Format`].
macro_rules! table {
    ($($(#[$doc:meta])* $format:ident => $imp:expr,)*) => {
        /// Container format, told by content and never by a file's name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Format {
            $($(#[$doc])* $format,)*
        }

        impl Format {
            /// All formats, in the order in which signatures are compared.
            pub const ALL: &[Self] = &[$(Self::$format),*];

            pub(crate) fn imp(self) -> &'static dyn ImageFormat {
                match self {
                    $(Self::$format => &$imp,)*
                }
            }
        }
    };
}

table! {
    /// JPEG (ITU T.81): baseline, extended, progressive.
    Jpeg => jpeg::Jpeg,
    /// PNG.
    Png => png::Png,
    /// WebP, lossy or lossless; animations are refused.
    WebP => webp::WebP,
    /// TIFF, the first image of a file, with 8 or 16 bits a channel.
    Tiff => tiff::Tiff,
}

impl Format {
    /// The name as TensorFlow writes it into `image/format`: `JPEG`, `PNG`; others, as `WEBP`, in the same way.
    pub fn name(self) -> &'static str {
        self.imp().name()
    }

    /// The usual ending of file names.
    pub fn extension(self) -> &'static str {
        self.imp().extensions()[0]
    }

    /// The format of a [name](Self::name), in any case.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|format| name.eq_ignore_ascii_case(format.name().as_bytes()))
    }

    /// The format that an ending of a file name claims, in any case: `jpg`, `PNG`.
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

/// How the file stores color. Decoding always gives RGB; see [`crate::Decoder`] for how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Color {
    /// One channel of brightness.
    Gray,
    /// Gray with alpha (PNG).
    GrayAlpha,
    /// Red, green, blue, as they are.
    Rgb,
    /// RGB with alpha (PNG, WebP).
    Rgba,
    /// Indices into a color table (PNG).
    Palette,
    /// Brightness and two color differences (nearly every JPEG, lossy WebP).
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
    /// Columns, in pixels.
    pub width: u32,
    /// Rows, in pixels.
    pub height: u32,
    /// Channels stored (a palette counts as one).
    pub channels: u8,
    /// Bits of each channel.
    pub bits: u8,
    /// How color is stored.
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
    let mut all = Format::ALL.iter().copied();
    all.find(|format| format.imp().sniff(bytes) == Sniff::Yes)
}

/// Reads the header of an image from the whole file or any prefix of it.
///
/// # Errors
/// [`ImageError::Incomplete`] if the bytes end before the header does (it says how many are needed),
/// [`ImageError::UnknownFormat`], [`ImageError::OverLimit`], [`ImageError::Corrupt`] and
/// [`ImageError::Unsupported`] as their names say.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<Probe> {
    let format = sniff(bytes).ok_or_else(|| unknown(bytes))?.imp();
    let probe = format.probe(bytes)?;
    let bytes_per_pixel = format.decoded_bytes_per_pixel(&probe);
    limits.check(probe.width, probe.height, bytes_per_pixel)?;
    Ok(probe)
}

/// Bytes after the end of the image (some ImageNet files have them; decoders ignore them), or `None` if
/// the image does not end within `bytes`. Walks markers and chunks only; decodes nothing.
pub fn trailing_bytes(bytes: &[u8]) -> Option<u64> {
    let end = sniff(bytes)?.imp().end(bytes)?;
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

impl Ending {
    /// With an image that ends at an offset, if it does.
    fn at(end: Option<usize>, bytes: &[u8]) -> Self {
        match end.map(|end| bytes.len() - end) {
            Some(0) => Self::Whole,
            Some(rest) => Self::Trailing(rest as u64),
            None => Self::Cut,
        }
    }
}

/// Tells how a whole file ends. `probe` is what [`probe`](probe()) said about these bytes.
///
/// A JPEG or PNG whose last bytes end an image counts as whole: of several pictures in one file (MPO) the last one counts. Otherwise a JPEG's
/// end-of-image marker is looked for, a PNG's chunks are followed to the last one, and of a WebP the length in its first bytes counts. Damage
/// before the end that leaves the end in place is found by decoding only.
pub fn ending(bytes: &[u8], probe: &Probe) -> Ending {
    probe.format.imp().ending(bytes, probe)
}

/// Whether a whole file ends with these bytes, somewhere after its header.
fn ends_with(bytes: &[u8], probe: &Probe, end: &[u8]) -> bool {
    let header = usize::try_from(probe.header_bytes).unwrap_or(usize::MAX);
    let rest = bytes.get(header..).unwrap_or_default();
    rest.ends_with(end)
}

/// Checks that an image is of a kind that [`Decoder`](crate::Decoder) reads, by its structure alone: nothing is decoded and nothing allocated
/// for it. Of a JPEG with several scans the markers of all of them are checked, of other files the header.
///
/// # Errors
/// As [`Decoder::decode`](crate::Decoder::decode), except for damage to the image data.
pub fn check_structure(bytes: &[u8], limits: &Limits) -> Result<()> {
    let format = probe(bytes, limits)?.format;
    format.imp().check_structure(bytes, limits)
}

fn unknown(bytes: &[u8]) -> ImageError {
    // A prefix too short to tell: say what the format that it may be would need.
    for &format in Format::ALL {
        if let Sniff::More(needed) = format.imp().sniff(bytes) {
            return ImageError::Incomplete {
                format,
                needed,
                found: bytes.len() as u64,
            };
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
