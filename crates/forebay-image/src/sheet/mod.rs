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
/// Space above each line of a caption, in pixels.
const GAP: usize = 6;
/// Height of a caption's line, in pixels.
const LINE: usize = GAP + font::HEIGHT * DOT;
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
/// `images` holds NHWC samples of `side` by `side` pixels. A caption has one line or more: those
/// that do not fit are shortened in the middle, and characters beyond ASCII are escaped. Missing
/// captions are left blank.
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
    let lines = captions.iter().map(|caption| caption.lines().count());
    let caption_height = lines.max().unwrap_or(0) * LINE;
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
        let caption = captions.get(i).map_or("", String::as_str);
        for (line, text) in caption.lines().enumerate() {
            let y = y + side + GAP + line * LINE;
            write(&mut sheet, width, (x, y), side, text);
        }
    }
    encode_png(&sheet, width as u32, height as u32)
}

/// Draws text, shortened to a width of `room` pixels.
fn write(sheet: &mut [u8], width: usize, (x, y): (usize, usize), room: usize, text: &str) {
    for (i, c) in fitted(text, (room + 1) / ADVANCE).chars().enumerate() {
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

/// Returns a text in characters that the font has, shortened in the middle to at most `most` of them. The end of a key tells
/// more than its start, and gets more room.
fn fitted(text: &str, most: usize) -> String {
    let escape = |c: char| match c {
        ' '..='~' => c.to_string(),
        _ => c.escape_unicode().to_string(),
    };
    let shown: Vec<String> = text.chars().map(escape).collect();
    if shown.iter().map(String::len).sum::<usize>() <= most {
        return shown.concat();
    }
    let dots = most.min(2);
    let fit = |shown: &mut dyn Iterator<Item = &String>, mut room: usize| {
        let fits = |text: &&String| {
            text.len() <= room && {
                room -= text.len();
                true
            }
        };
        shown.take_while(fits).count()
    };
    let start = fit(&mut shown.iter(), (most - dots) * 2 / 5);
    let taken: usize = shown[..start].iter().map(String::len).sum();
    let end = fit(&mut shown.iter().rev(), most - dots - taken);
    let end = shown[shown.len() - end..].concat();
    format!("{}{:.<dots$}{end}", shown[..start].concat(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_do_not_fit_are_shortened_in_the_middle() {
        for (text, most, shown) in [
            ("cat/a.jpg", 9, "cat/a.jpg"),
            ("n01440764/n01440764_10026.JPEG", 20, "n014407.._10026.JPEG"),
            ("größe.jpg", 18, r"gr..\u{df}e.jpg"),
            ("größe.jpg", 12, "gr..e.jpg"),
            ("größe.jpg", 40, r"gr\u{f6}\u{df}e.jpg"),
            ("猫猫猫", 9, ".."),
            ("abc", 1, "."),
            ("abc", 0, ""),
        ] {
            assert_eq!(fitted(text, most), shown, "{text} {most}");
        }
    }

    #[test]
    fn sheets_contain_every_image_and_all_lines() {
        let mut images = vec![10; 3 * 32 * 32];
        images.extend(vec![250; 3 * 32 * 32]);
        images.extend(vec![120; 3 * 32 * 32]);
        let captions = [
            "a very long caption that is shortened".to_owned(),
            "\u{e9}\nx".to_owned(),
        ];
        let png = contact_sheet(&images, 32, 2, &captions);
        let image = crate::Decoder::new(crate::Limits::default())
            .decode(&png)
            .unwrap();
        assert_eq!(
            (image.width, image.height),
            (2 * 42 + 10, 2 * (32 + 10 + 2 * (6 + 16)) + 10)
        );
        let at = |x: usize, y: usize| image.data[3 * (y * image.width as usize + x)];
        assert_eq!((at(10, 10), at(52, 10), at(10, 96)), (10, 250, 120));
        assert_eq!((at(9, 9), at(93, 10)), (BACKGROUND, BACKGROUND));
        assert!(
            (0..image.height as usize).all(|y| at(42, y) == BACKGROUND),
            "nothing between the columns"
        );
    }
}
