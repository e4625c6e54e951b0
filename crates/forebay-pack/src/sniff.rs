//! What a file is, by its first bytes, and what its name claims.

/// Bytes that [`identify`] wants to see.
pub(crate) const SNIFF_BYTES: usize = 16;

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Jpeg,
    Png,
    WebP,
    /// A known image format that is not packed.
    OtherImage(&'static str),
    Unknown,
}

/// Signatures of image formats that people keep beside those that are packed: (offset, bytes, name).
const OTHER_IMAGES: &[(usize, &[u8], &str)] = &[
    (0, b"GIF8", "GIF"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (4, b"ftypavif", "AVIF"),
    (4, b"ftyphei", "HEIF"),
    (4, b"ftypmif1", "HEIF"),
    (0, b"\0\0\0\x0cJXL ", "JPEG XL"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"),
];

pub(crate) fn identify(head: &[u8]) -> Content {
    if head.starts_with(b"\xff\xd8\xff") {
        return Content::Jpeg;
    }
    if head.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Content::Png;
    }
    if head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP") {
        return Content::WebP;
    }
    // Two letters are too little to go by: the four reserved bytes of the header are zero.
    if head.starts_with(b"BM") && head.get(6..10) == Some(&[0; 4]) {
        return Content::OtherImage("BMP");
    }
    let other = OTHER_IMAGES
        .iter()
        .find(|(at, bytes, _)| head.get(*at..).is_some_and(|h| h.starts_with(bytes)));
    other.map_or(Content::Unknown, |(_, _, name)| Content::OtherImage(name))
}

/// The format that a name's ending claims, if it is that of an image.
pub(crate) fn claimed(name: &[u8]) -> Option<Content> {
    let dot = name.iter().rposition(|b| *b == b'.')?;
    let other = match name.get(dot + 1..)?.to_ascii_lowercase().as_slice() {
        b"jpeg" | b"jpg" | b"jpe" | b"jfif" => return Some(Content::Jpeg),
        b"png" => return Some(Content::Png),
        b"webp" => return Some(Content::WebP),
        b"gif" => "GIF",
        b"tif" | b"tiff" => "TIFF",
        b"bmp" => "BMP",
        b"avif" => "AVIF",
        b"heic" | b"heif" => "HEIF",
        b"jxl" => "JPEG XL",
        b"jp2" => "JPEG 2000",
        _ => return None,
    };
    Some(Content::OtherImage(other))
}

/// Whether the name alone makes a file a candidate.
pub(crate) fn has_image_name(name: &[u8]) -> bool {
    !matches!(claimed(name), None | Some(Content::OtherImage(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_and_name_are_told_apart() {
        assert_eq!(identify(b"\xff\xd8\xff\xe0"), Content::Jpeg);
        assert_eq!(identify(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), Content::Png);
        assert_eq!(identify(b"RIFF\x10\0\0\0WEBPVP8 "), Content::WebP);
        assert_eq!(identify(b"RIFF\x10\0\0\0WAVEfmt "), Content::Unknown);
        assert_eq!(identify(b"GIF89a"), Content::OtherImage("GIF"));
        for head in [b"".as_slice(), b"\xff", b"\xff\xd8", b"hello", b"\x89PNG"] {
            assert_eq!(identify(head), Content::Unknown, "{head:?}");
        }
        assert_eq!(claimed(b"a.b.JPEG"), Some(Content::Jpeg));
        assert_eq!(claimed(b"\xff.Png"), Some(Content::Png));
        assert_eq!(claimed(b"a.webp"), Some(Content::WebP));
        assert_eq!(claimed(b"a.gif"), Some(Content::OtherImage("GIF")));
        for name in [b"jpeg".as_slice(), b"a.txt", b"a.gif", b"a.", b""] {
            assert!(!has_image_name(name), "{name:?}");
        }
    }
}
