//! From samples to pixels: chroma upsampling as libjpeg's "fancy" one does it, then colour.

use super::header::{Header, Window};
use super::region::{KERNELS, Planes};
use crate::decode::{Canvas, Region};

/// Rows on their way, kept from image to image.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    sums: Vec<u16>,
    chroma: [Vec<u8>; 2],
}

/// Writes the region's pixels to the canvas.
#[inline(always)]
pub(super) fn write(
    header: &Header,
    window: &Window,
    region: &Region,
    planes: &Planes,
    scratch: &mut Scratch,
    canvas: &mut Canvas,
) {
    let (width, height) = (region.width as usize, region.height as usize);
    let (mcu_width, mcu_height) = header.mcu();
    let x0 = region.x as usize - window.c0 * mcu_width;
    canvas.reset(width, height);
    let (stride, components) = (canvas.stride, header.components().len());
    // Chroma samples that exist: those past the edge of the image are the encoder's padding.
    let chroma_width =
        (header.width.div_ceil(mcu_width / 8) - window.c0 * 8).min((window.c1 - window.c0) * 8);
    let chroma_height = header.height.div_ceil(mcu_height / 8);
    for (y, out) in canvas
        .data
        .chunks_exact_mut(stride)
        .take(height)
        .enumerate()
    {
        let out = &mut out[..width * 3];
        let y = region.y as usize + y;
        let luma = &planes.row(0, y - window.r0 * mcu_height)[x0..x0 + width];
        if components == 1 {
            for (pixel, &v) in out.chunks_exact_mut(3).zip(luma) {
                pixel.fill(v);
            }
            continue;
        }
        let (cb, cr) = match (mcu_width, mcu_height) {
            (8, 8) => {
                let y = y - window.r0 * 8;
                (
                    &planes.row(1, y)[x0..x0 + width],
                    &planes.row(2, y)[x0..x0 + width],
                )
            }
            (_, mcu_height) => {
                // 4:2:0: a row of pixels is three parts the nearest row of samples and one part the next.
                let (near, far) = if mcu_height == 8 {
                    (y, y)
                } else {
                    let near = y / 2;
                    let far = if y.is_multiple_of(2) {
                        near.saturating_sub(1)
                    } else {
                        near + 1
                    };
                    (near, far.min(chroma_height - 1))
                };
                let top = window.r0 * 8;
                for (i, chroma) in scratch.chroma.iter_mut().enumerate() {
                    let near = &planes.row(i + 1, near - top)[..chroma_width];
                    if mcu_height == 8 {
                        double(near, &mut scratch.sums, chroma);
                    } else {
                        let far = &planes.row(i + 1, far - top)[..chroma_width];
                        double_both(near, far, &mut scratch.sums, chroma);
                    }
                }
                let [cb, cr] = &scratch.chroma;
                (&cb[x0..x0 + width], &cr[x0..x0 + width])
            }
        };
        KERNELS.ycbcr_to_rgb_row(luma, cb, cr, out, width);
    }
}

/// Puts sums between two copies of themselves at the edges, so that edges need no code of their own.
#[inline(always)]
fn framed(sums: &mut Vec<u16>, values: impl ExactSizeIterator<Item = u16>) {
    let count = values.len();
    sums.resize(count + 2, 0);
    for (sum, value) in sums[1..].iter_mut().zip(values) {
        *sum = value;
    }
    sums[0] = sums[1];
    sums[count + 1] = sums[count];
}

/// Twice as many samples: each is three parts its nearest and one part the next nearest.
#[inline(always)]
fn double(near: &[u8], sums: &mut Vec<u16>, out: &mut Vec<u8>) {
    framed(sums, near.iter().map(|&v| u16::from(v)));
    spread(sums, out, 2, (1, 2));
}

/// The same in both directions, rounded once.
#[inline(always)]
fn double_both(near: &[u8], far: &[u8], sums: &mut Vec<u16>, out: &mut Vec<u8>) {
    framed(
        sums,
        near.iter()
            .zip(far)
            .map(|(&n, &f)| 3 * u16::from(n) + u16::from(f)),
    );
    spread(sums, out, 4, (8, 7));
}

#[inline(always)]
fn spread(sums: &[u16], out: &mut Vec<u8>, shift: u32, (even, odd): (u16, u16)) {
    let count = sums.len() - 2;
    out.resize(2 * count, 0);
    let (left, middle, right) = (&sums[..count], &sums[1..=count], &sums[2..]);
    for (((pair, l), m), r) in out.chunks_exact_mut(2).zip(left).zip(middle).zip(right) {
        pair[0] = ((3 * m + l + even) >> shift) as u8;
        pair[1] = ((3 * m + r + odd) >> shift) as u8;
    }
}
