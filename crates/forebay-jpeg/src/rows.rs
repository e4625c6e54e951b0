//! The interface between producers and consumers of rows of pixels.
//!
//! A decoder produces the rows of a region from top to bottom, and the receiver provides the
//! destination and layout of each row. So rows can go directly into a resize, which consumes them
//! while they are in the cache; the whole region is never in memory.

/// Destination of a row.
#[derive(Debug)]
pub enum Room<'a> {
    /// Interleaved, three bytes per pixel.
    Pixels(&'a mut [u8]),
    /// Separate planes for red, green and blue.
    Planes([&'a mut [u8]; 3]),
}

/// Receives the rows of a region one after the other.
pub trait Rows {
    /// The destination of the next row, exactly as wide as the region; `None` if that row is not
    /// wanted.
    fn room(&mut self) -> Option<Room<'_>>;

    /// Called when the next row is in the destination from [`Rows::room`], or was not wanted.
    fn done(&mut self);
}

/// Writes rows of pixels into memory, without gaps.
pub struct Memory<'a> {
    rest: &'a mut [u8],
    /// Bytes per row.
    row: usize,
}

impl<'a> Memory<'a> {
    /// Creates a receiver of rows with `width` pixels.
    pub fn new(out: &'a mut [u8], width: usize) -> Self {
        Self {
            rest: out,
            row: width * 3,
        }
    }
}

impl Rows for Memory<'_> {
    fn room(&mut self) -> Option<Room<'_>> {
        Some(Room::Pixels(self.rest.get_mut(..self.row)?))
    }

    fn done(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        self.rest = rest.get_mut(self.row..).unwrap_or_default();
    }
}
