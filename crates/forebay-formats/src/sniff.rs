//! Detects the type of a file from its first bytes and from its name. `forebay-image` knows the formats that are packed; the
//! table here has other image formats, which are reported by name and left out.

use forebay_image::Format;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Kind of a file of a source, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentKind {
    /// A directory.
    Directory,
    /// An image, by its name or its first bytes.
    Image,
    /// An image in a format that is not packed, by its first bytes.
    OtherImage(&'static str),
    /// Not an image, by its first bytes.
    NotAnImage,
    /// The name is not that of an image, and the bytes have not been read yet.
    Unlooked,
}

/// Number of bytes that [`kind`] needs.
pub(crate) const SNIFF_BYTES: usize = 16;

/// An image format that is not packed.
struct OtherFormat {
    name: &'static str,
    extensions: &'static [&'static str],
    /// Signatures with their offsets.
    magics: &'static [(usize, &'static [u8])],
}

const OTHER_FORMATS: &[OtherFormat] = &[
    OtherFormat {
        name: "GIF",
        extensions: &["gif"],
        magics: &[(0, b"GIF8")],
    },
    OtherFormat {
        name: "BMP",
        extensions: &["bmp"],
        // A signature of two bytes is ambiguous: see `is_bmp`.
        magics: &[],
    },
    OtherFormat {
        name: "AVIF",
        extensions: &["avif"],
        magics: &[(4, b"ftypavif")],
    },
    OtherFormat {
        name: "HEIF",
        extensions: &["heic", "heif"],
        magics: &[(4, b"ftyphei"), (4, b"ftypmif1")],
    },
    OtherFormat {
        name: "JPEG XL",
        extensions: &["jxl"],
        magics: &[(0, b"\0\0\0\x0cJXL "), (0, b"\xff\x0a")],
    },
    OtherFormat {
        name: "JPEG 2000",
        extensions: &["jp2"],
        magics: &[(0, b"\0\0\0\x0cjP  ")],
    },
];

impl OtherFormat {
    fn begins(&self, head: &[u8]) -> bool {
        let has = |(at, magic): &(usize, &[u8])| {
            head.get(*at..).is_some_and(|rest| rest.starts_with(magic))
        };
        self.magics.iter().any(has) || self.name == "BMP" && is_bmp(head)
    }
}

/// Returns whether the header begins with `BM` and its four reserved bytes are zero.
fn is_bmp(head: &[u8]) -> bool {
    head.starts_with(b"BM") && head.get(6..10) == Some(&[0; 4])
}

/// Returns the kind of a file by its first bytes.
pub fn kind(head: &[u8]) -> ContentKind {
    if forebay_image::sniff(head).is_some() {
        return ContentKind::Image;
    }
    let other = OTHER_FORMATS.iter().find(|other| other.begins(head));
    other.map_or(ContentKind::NotAnImage, |other| {
        ContentKind::OtherImage(other.name)
    })
}

/// Returns the kind of a file on disk by its first bytes.
pub(crate) fn kind_of_file(path: &Path) -> io::Result<ContentKind> {
    // Non-blocking, in case the file was replaced by a pipe.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let mut head = Vec::with_capacity(SNIFF_BYTES);
    file.take(SNIFF_BYTES as u64).read_to_end(&mut head)?;
    Ok(kind(&head))
}

/// Checks that the first bytes are those of an image format that loaders decode.
pub(crate) fn check_image(bytes: &[u8]) -> Result<(), String> {
    let read = Format::FILES;
    match kind(bytes) {
        ContentKind::Image => Ok(()),
        ContentKind::OtherImage(name) => Err(format!("it is a {name} image: {read} are read")),
        _ if bytes.is_empty() => Err("the image is empty".to_owned()),
        _ => Err(format!(
            "its {} bytes are no image: {read} are read",
            bytes.len()
        )),
    }
}

/// Returns the image format that the extension of a file's name claims.
pub fn claimed(name: &[u8]) -> Option<&'static str> {
    let extension = extension(name)?;
    let has = |other: &&str| extension.eq_ignore_ascii_case(other.as_bytes());
    let other = || {
        let mut all = OTHER_FORMATS.iter();
        all.find(|other| other.extensions.iter().any(has))
    };
    Format::from_extension(extension)
        .map(Format::name)
        .or_else(|| Some(other()?.name))
}

/// Returns whether a file is listed as an image by its name alone.
pub(crate) fn has_image_name(name: &[u8]) -> bool {
    extension(name).and_then(Format::from_extension).is_some()
}

fn extension(name: &[u8]) -> Option<&[u8]> {
    let dot = name.iter().rposition(|b| *b == b'.')?;
    name.get(dot + 1..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_by_content_and_format_by_name() {
        assert_eq!(kind(b"\xff\xd8\xff\xe0"), ContentKind::Image);
        assert_eq!(kind(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), ContentKind::Image);
        assert_eq!(kind(b"RIFF\x10\0\0\0WEBPVP8 "), ContentKind::Image);
        assert_eq!(kind(b"RIFF\x10\0\0\0WAVEfmt "), ContentKind::NotAnImage);
        assert_eq!(kind(b"II*\0\x08\0\0\0"), ContentKind::Image);
        assert_eq!(kind(b"GIF89a"), ContentKind::OtherImage("GIF"));
        assert_eq!(kind(b"BM1234\0\0\0\0"), ContentKind::OtherImage("BMP"));
        assert_eq!(kind(b"BM is a text"), ContentKind::NotAnImage);
        for head in [b"".as_slice(), b"\xff", b"\xff\xd8", b"hello", b"\x89PNG"] {
            assert_eq!(kind(head), ContentKind::NotAnImage, "{head:?}");
        }
        assert_eq!(check_image(b"\xff\xd8\xff\xe0"), Ok(()));
        for (bytes, said) in [
            (&b""[..], "empty"),
            (b"GIF89a", "GIF"),
            (b"hello", "its 5 bytes are no image"),
        ] {
            let refused = check_image(bytes).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
        assert_eq!(claimed(b"a.b.JPEG"), Some("JPEG"));
        assert_eq!(claimed(b"\xff.Png"), Some("PNG"));
        assert_eq!(claimed(b"a.webp"), Some("WEBP"));
        assert_eq!(claimed(b"a.tif"), Some("TIFF"));
        assert_eq!(claimed(b"a.gif"), Some("GIF"));
        for name in [b"jpeg".as_slice(), b"a.txt", b"a.gif", b"a.", b""] {
            assert!(!has_image_name(name), "{name:?}");
        }
    }
}
