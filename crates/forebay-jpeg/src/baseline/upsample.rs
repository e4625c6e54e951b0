//! Chroma upsampling: libjpeg's smooth ("fancy") algorithm, bit for bit.
//!
//! Each output sample is a mean of the two (in one direction) or four (in both directions) nearest
//! input samples, weighted 3 to 1. Rounding alternates, which avoids a bias. In images with one or
//! two chroma columns, samples are repeated instead, as in libjpeg.

/// Returns the rounding term of the vertical mean in [`vertical`]: 1 for even rows, 2 for odd ones.
pub(crate) const fn vertical_bias(odd: bool) -> u16 {
    if odd { 2 } else { 1 }
}

/// Doubles the width. `out` has two samples for each of `row`.
pub(crate) fn horizontal(row: &[u8], out: &mut [u8]) {
    horizontal_in(row, 0..row.len(), out);
}

/// Computes the part of [`horizontal`] that depends on the samples `part` of `row`.
pub(crate) fn horizontal_in(row: &[u8], part: std::ops::Range<usize>, out: &mut [u8]) {
    let last = row.len() - 1;
    for i in part {
        let near = u16::from(row[i]) * 3;
        let left = u16::from(row[i.saturating_sub(1)]);
        let right = u16::from(row[(i + 1).min(last)]);
        // At the ends both samples are the same, so their mean equals them.
        out[2 * i] = ((near + left + 1) >> 2) as u8;
        out[2 * i + 1] = ((near + right + 2) >> 2) as u8;
    }
}

/// Doubles the width, and interpolates vertically between the nearest and the next nearest row.
pub(crate) fn both(near: &[u8], far: &[u8], out: &mut [u8]) {
    both_in(near, far, 0..near.len(), out);
}

/// Computes the part of [`both`] that depends on the samples `part` of the rows.
pub(crate) fn both_in(near: &[u8], far: &[u8], part: std::ops::Range<usize>, out: &mut [u8]) {
    let last = near.len() - 1;
    let column = |i: usize| u16::from(near[i]) * 3 + u16::from(far[i]);
    for i in part {
        let here = column(i) * 3;
        out[2 * i] = ((here + column(i.saturating_sub(1)) + 8) >> 4) as u8;
        out[2 * i + 1] = ((here + column((i + 1).min(last)) + 7) >> 4) as u8;
    }
}

/// Keeps the width, and interpolates vertically between the nearest and the next nearest row.
pub(crate) fn vertical(near: &[u8], far: &[u8], bias: u16, out: &mut [u8]) {
    for ((out, &near), &far) in out.iter_mut().zip(near).zip(far) {
        *out = ((u16::from(near) * 3 + u16::from(far) + bias) >> 2) as u8;
    }
}

/// Multiplies the width by `times`, repeating each sample.
pub(crate) fn repeat(row: &[u8], times: usize, out: &mut [u8]) {
    for (out, &sample) in out.chunks_exact_mut(times).zip(row) {
        out.fill(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_three_to_one() {
        let mut out = [0; 6];
        horizontal(&[0, 100, 200], &mut out);
        assert_eq!(out, [0, 25, 75, 125, 175, 200]);
        both(&[0, 100, 200], &[0, 100, 200], &mut out);
        assert_eq!(out, [0, 25, 75, 125, 175, 200]);
        vertical(&[0, 100, 5], &[100, 0, 6], vertical_bias(true), &mut out);
        assert_eq!(out[..3], [25, 75, 5]);
        repeat(&[1, 2], 3, &mut out);
        assert_eq!(out, [1, 1, 1, 2, 2, 2]);
    }
}
