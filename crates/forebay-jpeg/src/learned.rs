//! The seek points that a decode uses.

/// The seek points that a decode uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SeekPoints<'a> {
    /// The image is read from its start.
    #[default]
    None,
    /// The result of a [`SeekPointBuilder`](crate::SeekPointBuilder). Points that do not belong to
    /// the image are ignored.
    Stored(&'a [u8]),
}

impl<'a> From<Option<&'a [u8]>> for SeekPoints<'a> {
    fn from(stored: Option<&'a [u8]>) -> Self {
        stored.map_or(Self::None, Self::Stored)
    }
}
