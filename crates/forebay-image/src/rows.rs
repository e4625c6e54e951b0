//! The seam between those who make rows of pixels and those who take them.
//!
//! A decoder makes the rows of a region from the top, and the receiver says where the next one goes and in which
//! form. So rows can go straight into a resize, which takes them up while they are in the cache, and a region is never
//! in memory as a whole.

/// Room for a row.
#[derive(Debug)]
pub(crate) enum Room<'a> {
    /// Three bytes a pixel.
    Pixels(&'a mut [u8]),
    /// A byte a pixel for red, green and blue each.
    Planes([&'a mut [u8]; 3]),
}

/// Takes the rows of a region one after the other.
pub(crate) trait Rows {
    /// Room for the next row, exactly as wide as the region; `None` if that row is not wanted.
    fn room(&mut self) -> Option<Room<'_>>;

    /// The next row is where [`Rows::room`] said, or was not wanted.
    fn done(&mut self);
}

/// Takes rows of pixels into memory, without gaps.
pub(crate) struct Memory<'a> {
    rest: &'a mut [u8],
    /// Bytes of a row.
    row: usize,
}

impl<'a> Memory<'a> {
    /// `width` pixels a row.
    pub(crate) fn new(out: &'a mut [u8], width: usize) -> Self {
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
