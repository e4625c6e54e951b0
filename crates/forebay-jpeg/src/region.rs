//! Rectangles of pixels, and decoded images.

use super::encoding::Encoding;
use super::error::{Error, Result};
use super::learned::SeekPoints;
use super::limits::Limits;

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Left column.
    pub x: u32,
    /// Top row.
    pub y: u32,
    /// Width in pixels, at least one.
    pub width: u32,
    /// Height in pixels, at least one.
    pub height: u32,
}

impl Region {
    /// Returns the region of a whole image.
    pub const fn whole(width: u32, height: u32) -> Self {
        Self {
            x: 0,
            y: 0,
            width,
            height,
        }
    }

    /// Checks that the region is not empty and lies inside an image.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn check(&self, image_width: u32, image_height: u32) -> Result<()> {
        let inside = |start: u32, length: u32, limit: u32| {
            length > 0 && start.checked_add(length).is_some_and(|end| end <= limit)
        };
        if inside(self.x, self.width, image_width) && inside(self.y, self.height, image_height) {
            return Ok(());
        }
        let Self {
            x,
            y,
            width,
            height,
        } = *self;
        Err(Error::Region {
            x,
            y,
            width,
            height,
            image_width,
            image_height,
        })
    }
}

/// An RGB image in memory: `height` rows of `width` pixels of three bytes, without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RgbImage {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// `3 * width * height` bytes.
    pub data: Vec<u8>,
}

/// A region to decode; it is inside the image, and the image is within the limits.
#[derive(Debug, Clone, Copy)]
pub struct RegionJob<'a> {
    /// The image.
    pub bytes: &'a [u8],
    /// Its encoding.
    pub encoding: Encoding,
    /// Its width and height.
    pub size: (u32, u32),
    /// Divisor of width and height: 1, 2, 4 or 8.
    pub scale: u32,
    /// The region, in the scaled image.
    pub region: Region,
    /// The limits.
    pub limits: &'a Limits,
    /// The image's seek points, not validated.
    pub seek_points: SeekPoints<'a>,
}
