//! Slices of rows: the start of each step of a vector loop, and the arrays that it loads and
//! stores.

/// Start of each step over `from..to`, the last one moved back to end there.
pub(super) fn steps(from: usize, to: usize, step: usize) -> impl Iterator<Item = usize> {
    (from..to).step_by(step).map(move |at| at.min(to - step))
}

/// `N` bytes from `at`.
#[inline]
pub(super) fn part<const N: usize>(row: &[u8], at: usize) -> &[u8; N] {
    row[at..at + N].first_chunk().expect("a slice of N bytes")
}

/// `N` bytes from `at`.
#[inline]
pub(super) fn part_mut<const N: usize>(row: &mut [u8], at: usize) -> &mut [u8; N] {
    row[at..at + N]
        .first_chunk_mut()
        .expect("a slice of N bytes")
}
