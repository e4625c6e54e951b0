//! Helpers for vector loops over rows: the start of each step, and the arrays that it loads and
//! stores.

/// Returns the start of each step over `from..to`; the last step is moved back to end at `to`.
pub(super) fn steps(from: usize, to: usize, step: usize) -> impl Iterator<Item = usize> {
    (from..to).step_by(step).map(move |at| at.min(to - step))
}

/// Returns the `N` bytes at `at`.
#[inline]
pub(super) fn part<const N: usize>(row: &[u8], at: usize) -> &[u8; N] {
    row[at..at + N].first_chunk().expect("a slice of N bytes")
}

/// Returns the `N` bytes at `at`.
#[inline]
pub(super) fn part_mut<const N: usize>(row: &mut [u8], at: usize) -> &mut [u8; N] {
    row[at..at + N]
        .first_chunk_mut()
        .expect("a slice of N bytes")
}
