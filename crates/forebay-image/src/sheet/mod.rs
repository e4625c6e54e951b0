//! Images for viewing: PNG files and contact sheets.

mod font;
mod overlay;

pub use overlay::{draw_boxes, tint};

use crate::encode::{PngCompression, SampleFormat, encode_png_samples};

/// Space around each image, in pixels.
const MARGIN: usize = 10;
/// Size of a caption's square dots, in pixels.
const DOT: usize = 2;
/// Distance between characters of a caption, in pixels: narrow, so that a name like
/// `n01440764_10026.JPEG` fits under 224 pixels.
const ADVANCE: usize = font::WIDTH * DOT + 1;
/// Space between an image and its caption, in pixels.
const GAP: usize = 6;
const BACKGROUND: u8 = 24;
const INK: u8 = 214;

/// Encodes an RGB image as PNG: `3 * width * height` bytes, row by row.
///
/// # Panics
/// If the length of `rgb` differs or the image is empty.
pub fn encode_png(rgb: &[u8], width: u32, height: u32) -> Vec<u8> {
    encode_png_samples(
        rgb,
        width,
        height,
        SampleFormat::Rgb8,
        PngCompression::Small,
    )
    .expect("three bytes a pixel, and a pixel or more")
}

/// Renders a PNG with square images in a grid of at most `columns`, each with a caption below it.
/// `images` holds NHWC samples of `side` by `side` pixels; captions that do not fit are cut,
/// missing captions are left blank.
///
/// # Panics
/// If `images` is not a whole, positive number of samples, or `columns` is 0.
pub fn contact_sheet(images: &[u8], side: u32, columns: usize, captions: &[String]) -> Vec<u8> {
    let side = side as usize;
    let sample = 3 * side * side;
    assert!(
        sample > 0 && !images.is_empty() && images.len().is_multiple_of(sample),
        "whole samples"
    );
    let count = images.len() / sample;
    let columns = columns.min(count);
    let caption_height = if captions.is_empty() {
        0
    } else {
        GAP + font::HEIGHT * DOT
    };
    let (cell_width, cell_height) = (side + MARGIN, side + caption_height + MARGIN);
    let width = columns * cell_width + MARGIN;
    let height = count.div_ceil(columns) * cell_height + MARGIN;
    let mut sheet = vec![BACKGROUND; 3 * width * height];
    for (i, image) in images.chunks_exact(sample).enumerate() {
        let (x, y) = (
            MARGIN + i % columns * cell_width,
            MARGIN + i / columns * cell_height,
        );
        for (row, line) in image.chunks_exact(3 * side).enumerate() {
            let at = 3 * ((y + row) * width + x);
            sheet[at..at + line.len()].copy_from_slice(line);
        }
        if let Some(caption) = captions.get(i) {
            write(&mut sheet, width, (x, y + side + GAP), side, caption);
        }
    }
    encode_png(&sheet, width as u32, height as u32)
}

/// Draws text, cut to a width of `room` pixels.
fn write(sheet: &mut [u8], width: usize, (x, y): (usize, usize), room: usize, text: &str) {
    let fitting = (room + 1) / ADVANCE;
    for (i, c) in text.chars().take(fitting).enumerate() {
        for row in 0..font::HEIGHT * DOT {
            for column in 0..font::WIDTH * DOT {
                if font::ink(c, column / DOT, row / DOT) {
                    let at = 3 * ((y + row) * width + x + i * ADVANCE + column);
                    sheet[at..at + 3].fill(INK);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sheets_contain_every_image_and_cut_captions() {
        let mut images = vec![10; 3 * 32 * 32];
        images.extend(vec![250; 3 * 32 * 32]);
        images.extend(vec![120; 3 * 32 * 32]);
        let captions = [
            "a very long caption that is cut".to_owned(),
            "\u{e9}".to_owned(),
        ];
        let png = contact_sheet(&images, 32, 2, &captions);
        let image = crate::Decoder::new(crate::Limits::default())
            .decode(&png)
            .unwrap();
        assert_eq!(
            (image.width, image.height),
            (2 * 42 + 10, 2 * (32 + 10 + 6 + 16) + 10)
        );
        let at = |x: usize, y: usize| image.data[3 * (y * image.width as usize + x)];
        assert_eq!((at(10, 10), at(52, 10), at(10, 74)), (10, 250, 120));
        assert_eq!((at(9, 9), at(93, 10)), (BACKGROUND, BACKGROUND));
        assert!(
            (0..image.height as usize).all(|y| at(42, y) == BACKGROUND),
            "nothing between the columns"
        );
    }
}
