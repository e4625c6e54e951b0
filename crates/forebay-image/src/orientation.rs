//! EXIF orientation: the rotation and mirroring for displaying a stored image.
//!
//! The tag is read from the place where each format keeps EXIF (JPEG's APP1, PNG's `eXIf`, WebP's
//! `EXIF`), in the first directory of its TIFF structure. The parser reads a few fields at checked
//! offsets and allocates nothing. Damaged, missing or out-of-range values mean no rotation.

use crate::format::{Format, Probe};
use crate::geometry::SpatialStep;
use forebay_jpeg::Region;

/// The EXIF tag of the orientation, and the integer types of TIFF.
const ORIENTATION: u16 = 0x0112;
const SHORT: u16 = 3;
const LONG: u16 = 4;
/// Bytes of a directory entry.
const ENTRY: usize = 12;
/// Bytes per RGB pixel.
const PIXEL: usize = 3;
/// Rows that are rotated together, so that all of them use a column's cache lines.
const TILE: usize = 16;

/// The effect of EXIF's values 1 to 8: optionally exchange rows and columns, then reverse columns
/// or rows of the stored image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Orientation {
    swap: bool,
    mirror_x: bool,
    mirror_y: bool,
}

/// Returns the EXIF orientation of an image file, 2 to 8; `None` if the image is displayed as
/// stored.
pub fn orientation(bytes: &[u8], probe: &Probe) -> Option<u8> {
    let tag = probe.format.imp().exif(bytes).and_then(tag)?;
    u8::try_from(tag).ok().filter(|tag| (2..=8).contains(tag))
}

/// Adds an orientation, 1 to 8, to a JPEG without EXIF, as a minimal EXIF segment.
pub fn set_orientation(jpeg: &mut Vec<u8>, tag: u8) {
    // APP1 of 34 bytes; big-endian TIFF with one directory at 8: one entry, one SHORT; no further directory.
    let mut segment =
        *b"\xff\xe1\0\x22Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\0\0\0\0\0\0\0";
    segment[29] = tag;
    // After JFIF's segment, which has to be the first, or else after the start of the image.
    let jfif = jpeg.get(2..4) == Some(&[0xff, 0xe0]);
    let length = jpeg.get(4..6).filter(|_| jfif);
    let at = length.map_or(2, |bytes| {
        4 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
    });
    let at = at.min(jpeg.len());
    jpeg.splice(at..at, segment);
}

impl Orientation {
    /// Converts the tag's value; values other than 2 to 8 have no effect.
    fn from_tag(value: u32) -> Self {
        Self {
            swap: matches!(value, 5..=8),
            mirror_x: matches!(value, 2 | 3 | 7 | 8),
            mirror_y: matches!(value, 3 | 4 | 6 | 7),
        }
    }

    /// Reads the orientation of an image file.
    pub(crate) fn of(bytes: &[u8], format: Format) -> Self {
        let tag = format.imp().exif(bytes).and_then(tag);
        tag.map_or_else(Self::default, Self::from_tag)
    }

    /// Returns whether the image is displayed as stored.
    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Returns the steps from the stored image to the displayed one.
    pub(crate) fn steps(self) -> impl Iterator<Item = SpatialStep> {
        let steps = [
            self.mirror_x.then_some(SpatialStep::FlipHorizontal),
            self.mirror_y.then_some(SpatialStep::FlipVertical),
            self.swap.then_some(SpatialStep::Transpose),
        ];
        steps.into_iter().flatten()
    }

    /// Converts a stored size to the displayed one, or the reverse.
    pub(crate) fn size(self, width: u32, height: u32) -> (u32, u32) {
        if self.swap {
            (height, width)
        } else {
            (width, height)
        }
    }

    /// Returns whether the first column and the first row of the displayed image are at the far end
    /// of the stored image.
    pub(crate) fn mirrored(self) -> (bool, bool) {
        if self.swap {
            (self.mirror_y, self.mirror_x)
        } else {
            (self.mirror_x, self.mirror_y)
        }
    }

    /// Converts a region of the oriented image to the stored one, which has this size.
    pub(crate) fn stored(self, seen: Region, width: u32, height: u32) -> Region {
        let Region {
            x,
            y,
            width: w,
            height: h,
        } = seen;
        let ((x, w), (y, h)) = if self.swap {
            ((y, h), (x, w))
        } else {
            ((x, w), (y, h))
        };
        Region {
            x: if self.mirror_x { width - x - w } else { x },
            y: if self.mirror_y { height - y - h } else { y },
            width: w,
            height: h,
        }
    }

    /// Orients stored pixels, `width` by `height` of them in rows `stride` bytes apart, into rows
    /// without gaps.
    pub(crate) fn turn(
        self,
        stored: &[u8],
        stride: usize,
        (width, height): (usize, usize),
        out: &mut [u8],
    ) {
        let at_x = |x: usize| if self.mirror_x { width - 1 - x } else { x };
        let at_y = |y: usize| if self.mirror_y { height - 1 - y } else { y };
        if !self.swap {
            for (y, row) in out.chunks_exact_mut(width * PIXEL).take(height).enumerate() {
                let from = &stored[at_y(y) * stride..][..width * PIXEL];
                if !self.mirror_x {
                    row.copy_from_slice(from);
                    continue;
                }
                for (to, pixel) in row.chunks_exact_mut(PIXEL).zip(from.rchunks_exact(PIXEL)) {
                    to.copy_from_slice(pixel);
                }
            }
            return;
        }
        let row = height * PIXEL;
        for (tile, rows) in out[..width * row].chunks_mut(TILE * row).enumerate() {
            for x in 0..height {
                let line = &stored[at_y(x) * stride..][..width * PIXEL];
                for (i, to) in rows.chunks_exact_mut(row).enumerate() {
                    let from = at_x(tile * TILE + i) * PIXEL;
                    to[x * PIXEL..][..PIXEL].copy_from_slice(&line[from..from + PIXEL]);
                }
            }
        }
    }
}

/// Reads the orientation's value from a TIFF structure.
fn tag(tiff: &[u8]) -> Option<u32> {
    let big = match tiff.get(..2)? {
        b"II" => false,
        b"MM" => true,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if big {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        })
    };
    let long = |at: usize| -> Option<u32> {
        let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if big {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    };
    if short(2)? != 42 {
        return None;
    }
    let directory = usize::try_from(long(4)?).ok()?;
    let entries = usize::from(short(directory)?);
    for i in 0..entries {
        let entry = directory.checked_add(2 + i * ENTRY)?;
        if short(entry)? != ORIENTATION {
            continue;
        }
        return match short(entry + 2)? {
            SHORT => short(entry + 8).map(u32::from),
            LONG => long(entry + 8),
            _ => None,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_orientation_is_read_back() {
        let image = crate::RgbImage {
            width: 20,
            height: 10,
            data: (0..600u32).map(|n| n as u8).collect(),
        };
        let limits = crate::Limits::default();
        let plain = crate::encode_jpeg(&image, 90, false).unwrap();
        let pixels = crate::Decoder::default().decode(&plain).unwrap();
        let of = |bytes: &[u8]| orientation(bytes, &crate::probe(bytes, &limits).unwrap());
        assert_eq!(of(&plain), None);
        for tag in 1..=8 {
            let mut turned = plain.clone();
            set_orientation(&mut turned, tag);
            assert_eq!(of(&turned), Some(tag).filter(|tag| *tag > 1));
            let decoded = crate::Decoder::default().decode(&turned).unwrap();
            assert!(decoded == pixels, "pixels stay as they are stored");
            // Without a JFIF segment, the EXIF segment comes first.
            let mut bare = [&plain[..2], &plain[20..]].concat();
            set_orientation(&mut bare, tag);
            assert_eq!(of(&bare), Some(tag).filter(|tag| *tag > 1));
        }
    }

    /// Orients the image `1 2 3 / 4 5 6`, where each number is a pixel.
    fn turned(value: u32) -> Vec<u8> {
        let stored: Vec<u8> = (1..=6u8).flat_map(|v| [v; 3]).collect();
        let mut out = vec![0; stored.len()];
        Orientation::from_tag(value).turn(&stored, 9, (3, 2), &mut out);
        out.chunks(3).map(|pixel| pixel[0]).collect()
    }

    #[test]
    fn the_eight_orientations() {
        assert_eq!(turned(1), [1, 2, 3, 4, 5, 6]);
        assert_eq!(turned(2), [3, 2, 1, 6, 5, 4]);
        assert_eq!(turned(3), [6, 5, 4, 3, 2, 1]);
        assert_eq!(turned(4), [4, 5, 6, 1, 2, 3]);
        assert_eq!(turned(5), [1, 4, 2, 5, 3, 6]);
        assert_eq!(turned(6), [4, 1, 5, 2, 6, 3]);
        assert_eq!(turned(7), [6, 3, 5, 2, 4, 1]);
        assert_eq!(turned(8), [3, 6, 2, 5, 1, 4]);
        for none in [0, 9, 65_535] {
            assert!(Orientation::from_tag(none).is_none());
        }
    }

    #[test]
    fn orienting_a_region_equals_cutting_the_oriented_image() {
        let (width, height) = (23u32, 19u32);
        let stored: Vec<u8> = (0..width * height)
            .flat_map(|i| [i as u8, (i >> 8) as u8, 7])
            .collect();
        for value in 1..=8 {
            let orientation = Orientation::from_tag(value);
            let (w, h) = orientation.size(width, height);
            let mut whole = vec![0; stored.len()];
            let size = (width as usize, height as usize);
            orientation.turn(&stored, size.0 * 3, size, &mut whole);
            let seen = Region {
                x: 3,
                y: 5,
                width: 11,
                height: 9,
            };
            let part = orientation.stored(seen, width, height);
            let start = (part.y * width + part.x) as usize * 3;
            let mut out = vec![0; (seen.width * seen.height * 3) as usize];
            let size = (part.width as usize, part.height as usize);
            orientation.turn(&stored[start..], width as usize * 3, size, &mut out);
            for (y, row) in out.chunks(seen.width as usize * 3).enumerate() {
                let at = ((seen.y as usize + y) * w as usize + seen.x as usize) * 3;
                assert_eq!(row, &whole[at..at + row.len()], "{value}, row {y} of {h}");
            }
        }
    }

    #[test]
    fn damaged_directories_are_ignored() {
        let mut tiff = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0".to_vec();
        assert_eq!(tag(&tiff), Some(6));
        for length in 0..20 {
            assert_eq!(tag(&tiff[..length]), None, "{length}");
        }
        tiff[12] = 2; // type: text
        assert_eq!(tag(&tiff), None);
        tiff[4..8].fill(0xff);
        assert_eq!(tag(&tiff), None);
    }
}
