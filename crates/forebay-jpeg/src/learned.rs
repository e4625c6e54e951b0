//! The seek points that a decode uses, and those that decodes record, for later ones of the same JPEG.
//!
//! A crop without seek points reads all codes above it, so it passes the starts of rows anyway.
//! Recording them costs little, and later crops start at the last known row. The points are those of
//! [`SeekPointBuilder`](crate::SeekPointBuilder), but only the first ones: those down to the lowest
//! row so far. The decoder is their only source, so they need no checksum of their own: only one that
//! tells whether the JPEG is the same.

use std::cell::{Cell, OnceCell};

/// Number of bytes before the points: checksum, length of the JPEG, last row, and step.
const HEAD: usize = 11;

/// The seek points that a decode uses, and whether it records more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SeekPoints<'a> {
    /// The image is read from its start.
    #[default]
    None,
    /// The result of a [`SeekPointBuilder`](crate::SeekPointBuilder). Points that do not belong to
    /// the image are ignored.
    Stored(&'a [u8]),
    /// Points that earlier decodes recorded, if any; this one records more.
    Learning(&'a Learning<'a>),
}

impl<'a> From<Option<&'a [u8]>> for SeekPoints<'a> {
    fn from(stored: Option<&'a [u8]>) -> Self {
        stored.map_or(Self::None, Self::Stored)
    }
}

/// Seek points that decodes of one JPEG recorded: those of its first rows. [`Learning`] makes and
/// uses them. A program that saves them has to detect damage: wrong points lead to wrong pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedPoints(Box<[u8]>);

impl LearnedPoints {
    /// Takes what [`as_bytes`](Self::as_bytes) returned; `None` for bytes that cannot be points.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let is_sound = bytes.len() >= HEAD && bytes[10] > 0;
        is_sound.then(|| Self(bytes.into()))
    }

    /// Returns the points as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the size in bytes of the memory block that holds the points.
    pub fn memory_bytes(&self) -> usize {
        self.0.len()
    }

    /// Returns whether to keep these points in place of `old` ones: they reach a lower row, or belong
    /// to other bytes.
    pub fn replaces(&self, old: &Self) -> bool {
        self.0[..8] != old.0[..8] || self.last_row() > old.last_row()
    }

    /// Returns the last row of MCUs with a known start.
    pub(crate) fn last_row(&self) -> u16 {
        u16::from_le_bytes([self.0[8], self.0[9]])
    }

    /// Returns the number of rows from a point to the next.
    pub(crate) fn step(&self) -> u8 {
        self.0[10]
    }

    /// Returns the encoded points after the first one.
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.0[HEAD..]
    }
}

/// One decode of a JPEG that uses and records seek points. Pixels and errors equal those without it.
///
/// ```
/// use forebay_jpeg::{ImagePart, JpegDecoder, Learning, Region, SeekPoints};
/// # use libjpeg_turbo_rs::{Encoder, PixelFormat};
/// # let pixels: Vec<u8> = (0..300 * 400 * 3_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
/// # let jpeg = Encoder::new(&pixels, 300, 400, PixelFormat::Rgb).encode().unwrap();
///
/// let mut decoder = JpegDecoder::default();
/// let mut known = None;
/// for y in [350, 300, 200] {
///     let learning = Learning::new(known.as_ref(), None);
///     let part = ImagePart {
///         region: Some(Region { x: 8, y, width: 40, height: 20 }),
///         seek_points: SeekPoints::Learning(&learning),
///         ..ImagePart::default()
///     };
///     decoder.decode_part(&jpeg, &part)?;
///     assert_eq!(learning.has_used(), y < 350);
///     known = learning.into_learned().or(known);
/// }
/// # Ok::<(), forebay_jpeg::Error>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Learning<'a> {
    known: Option<&'a LearnedPoints>,
    checksum: Option<u32>,
    used: Cell<bool>,
    learned: OnceCell<LearnedPoints>,
}

impl<'a> Learning<'a> {
    /// Prepares one decode, with the points that earlier ones recorded. `checksum` is the CRC-32C of
    /// data that contain the JPEG, the same for each of its decodes; without it, that of the JPEG is
    /// computed. Points that were recorded for another checksum are ignored.
    pub fn new(known: Option<&'a LearnedPoints>, checksum: Option<u32>) -> Self {
        Self {
            known,
            checksum,
            used: Cell::new(false),
            learned: OnceCell::new(),
        }
    }

    /// Returns whether the known points belonged to the JPEG.
    pub fn has_used(&self) -> bool {
        self.used.get()
    }

    /// Returns the known points together with those that the decode recorded; `None` if it recorded
    /// none or failed.
    pub fn into_learned(self) -> Option<LearnedPoints> {
        self.learned.into_inner()
    }

    /// Returns the known points if they belong to the JPEG.
    pub(crate) fn known(&self, jpeg: &[u8]) -> Option<&'a LearnedPoints> {
        self.known.filter(|known| known.0[..8] == self.owner(jpeg))
    }

    pub(crate) fn set_used(&self, used: bool) {
        self.used.set(used);
    }

    /// Returns the start of points of this JPEG, before their code, for [`Learning::set_learned`].
    pub(crate) fn head(&self, jpeg: &[u8], last_row: u16, step: u8) -> Vec<u8> {
        let mut head = self.owner(jpeg).to_vec();
        head.extend(last_row.to_le_bytes());
        head.push(step);
        head
    }

    pub(crate) fn set_learned(&self, bytes: Vec<u8>) {
        let _ = self.learned.set(LearnedPoints(bytes.into_boxed_slice()));
    }

    /// Returns the checksum and the length by which points know their JPEG.
    fn owner(&self, jpeg: &[u8]) -> [u8; 8] {
        let checksum = self.checksum.unwrap_or_else(|| crc32c::crc32c(jpeg));
        let length = jpeg.len() as u32;
        (u64::from(checksum) | u64::from(length) << 32).to_le_bytes()
    }
}
