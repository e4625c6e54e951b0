//! Boxes and masks drawn over an image, for viewing.

use crate::geometry::{Mask, MaskIds};

/// Width of a frame, in pixels.
const FRAME: usize = 2;

/// Returns the color of a class or an instance: distinct for small numbers, the same in every image.
fn color(id: i64) -> [u8; 3] {
    const HUES: [[u8; 3]; 12] = [
        [255, 69, 58],
        [48, 209, 88],
        [10, 132, 255],
        [255, 214, 10],
        [191, 90, 242],
        [100, 210, 255],
        [255, 159, 10],
        [255, 100, 160],
        [172, 235, 60],
        [94, 92, 230],
        [0, 199, 190],
        [205, 150, 100],
    ];
    HUES[id.rem_euclid(HUES.len() as i64) as usize]
}

/// Draws the frames of boxes, which are in pixels of the image, in the colors of their labels.
/// `image` holds rows of `width` RGB pixels.
pub fn draw_boxes(image: &mut [u8], width: u32, boxes: &[[f32; 4]], labels: &[i64]) {
    let width = width as usize;
    let (pixels, _) = image.as_chunks_mut::<3>();
    let height = pixels.len().checked_div(width).unwrap_or(0);
    for (corners, &label) in boxes.iter().zip(labels) {
        let [x0, y0, x1, y1] = corners.map(|at| at.round().max(0.0) as usize);
        let (x1, y1) = (x1.min(width), y1.min(height));
        for y in y0..y1 {
            let edge = y < y0 + FRAME || y + FRAME >= y1;
            for x in x0..x1 {
                if edge || x < x0 + FRAME || x + FRAME >= x1 {
                    pixels[y * width + x] = color(label);
                }
            }
        }
    }
}

/// Tints the pixels of an image with the colors of a mask of the same size; pixels with number 0 are unchanged.
pub fn tint(image: &mut [u8], mask: &Mask) {
    let (pixels, _) = image.as_chunks_mut::<3>();
    let blend = |pixel: &mut [u8; 3], id: i64| {
        if id != 0 {
            for (v, tint) in pixel.iter_mut().zip(color(id)) {
                *v = u8::midpoint(*v, tint);
            }
        }
    };
    match &mask.ids {
        MaskIds::Uint8(ids) => {
            let pairs = pixels.iter_mut().zip(ids);
            pairs.for_each(|(pixel, &id)| blend(pixel, id.into()));
        }
        MaskIds::Int32(ids) => {
            let pairs = pixels.iter_mut().zip(ids);
            pairs.for_each(|(pixel, &id)| blend(pixel, id.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_clipped_and_boxes_are_not_filled() {
        let mut image = vec![0; 20 * 10 * 3];
        let boxes = [
            [2.0, 1.0, 12.0, 9.0],
            [-5.0, 3.0, 400.0, 1e9],
            [30.0, 30.0, 40.0, 40.0],
        ];
        draw_boxes(&mut image, 20, &boxes, &[0, 1, -1]);
        let at = |x: usize, y: usize| &image[(y * 20 + x) * 3..][..3];
        assert_eq!(at(2, 1), color(0));
        assert_eq!(at(11, 2), color(0));
        assert_eq!(at(0, 9), color(1));
        assert_eq!(at(19, 3), color(1));
        assert_eq!(at(5, 6), [0; 3]);
        assert_ne!(color(0), color(1));
        draw_boxes(&mut [], 20, &boxes, &[0, 1, -1]);
    }

    #[test]
    fn a_mask_tints_all_but_number_0() {
        let mut image = vec![100; 3 * 3];
        let mask = Mask {
            width: 3,
            height: 1,
            ids: MaskIds::Int32(vec![0, 1, -7]),
        };
        tint(&mut image, &mask);
        assert_eq!(image[..3], [100; 3]);
        assert_eq!(image[3..6], color(1).map(|v| u8::midpoint(100, v)));
        assert_eq!(image[6..], color(5).map(|v| u8::midpoint(100, v)));
    }
}
