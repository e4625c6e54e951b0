//! Color conversion of JFIF with libjpeg's fixed-point arithmetic, bit for bit.

/// Fractional bits of the fixed-point numbers.
const BITS: u32 = 16;
const HALF: i32 = 1 << (BITS - 1);
/// The factors of JFIF 1.02 times 2^16: 1.402, 1.772, 0.71414, 0.34414.
const RED_CR: i32 = 91_881;
const BLUE_CB: i32 = 116_130;
const GREEN_CR: i32 = 46_802;
const GREEN_CB: i32 = 22_554;

/// Converts a pixel.
#[inline(always)]
fn rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let red = y + ((RED_CR * cr + HALF) >> BITS);
    let green = y + ((-GREEN_CB * cb - GREEN_CR * cr + HALF) >> BITS);
    let blue = y + ((BLUE_CB * cb + HALF) >> BITS);
    [red, green, blue].map(|value| value.clamp(0, 255) as u8)
}

/// Converts a row of YCbCr to RGB.
pub(crate) fn ycc(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    let chroma = cb.iter().zip(cr);
    for ((pixel, &y), (&cb, &cr)) in out.chunks_exact_mut(3).zip(y).zip(chroma) {
        pixel.copy_from_slice(&rgb(y, cb, cr));
    }
}

/// Converts a row of YCbCr to separate rows of red, green and blue.
pub(crate) fn ycc_planes(y: &[u8], cb: &[u8], cr: &[u8], out: [&mut [u8]; 3]) {
    let [red, green, blue] = out;
    let out = red.iter_mut().zip(green).zip(blue);
    let stored = y.iter().zip(cb).zip(cr);
    for (((red, green), blue), ((&y, &cb), &cr)) in out.zip(stored) {
        [*red, *green, *blue] = rgb(y, cb, cr);
    }
}

/// Interleaves three rows without conversion: RGB, or the same row three times for gray.
pub(crate) fn interleave(rows: [&[u8]; 3], out: &mut [u8]) {
    let [r, g, b] = rows;
    let rest = g.iter().zip(b);
    for ((pixel, &r), (&g, &b)) in out.chunks_exact_mut(3).zip(r).zip(rest) {
        pixel.copy_from_slice(&[r, g, b]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_equal_the_definition_of_jfif() {
        let mut out = [0; 12];
        ycc(
            &[128, 255, 76, 29],
            &[128, 128, 85, 255],
            &[128, 128, 255, 107],
            &mut out,
        );
        assert_eq!(out, [128, 128, 128, 255, 255, 255, 254, 0, 0, 0, 0, 254]);
        let [mut red, mut green, mut blue] = [[0; 2]; 3];
        let out = [&mut red[..], &mut green, &mut blue];
        ycc_planes(&[255, 76], &[128, 85], &[128, 255], out);
        assert_eq!([red, green, blue], [[255, 254], [255, 0], [255, 0]]);
    }
}
