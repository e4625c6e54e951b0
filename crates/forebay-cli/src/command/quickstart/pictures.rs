//! Generates the images that `forebay quickstart` packs by default: four classes of patterns, the same in each run.

use std::fs;
use std::path::Path;

use forebay_image::{RgbImage, encode_jpeg};

use crate::failure::{Failure, io_hint};
use crate::input::show;

const IMAGES_PER_CLASS: u32 = 12;
const QUALITY: u8 = 85;

/// Returns whether a position is on the pattern. Positions are relative to its center, in units of half the image height.
type Pattern = fn(x: f32, y: f32) -> bool;

const CLASSES: [(&str, Pattern); 4] = [
    ("checks", |x, y| {
        ((x * 3.0).floor() + (y * 3.0).floor()).rem_euclid(2.0) < 1.0
    }),
    ("disks", |x, y| x.hypot(y) < 0.7),
    ("rings", |x, y| (x.hypot(y) * 4.0).fract() < 0.5),
    ("stripes", |x, y| ((x + y) * 2.5).rem_euclid(1.0) < 0.5),
];

/// Writes `train/<class>/<number>.jpg` and `val/<class>/<number>.jpg` below `root`.
pub(super) fn write(root: &Path) -> Result<(), Failure> {
    let failed = |path: &Path, error: std::io::Error| {
        Failure::new(format!("cannot write {}: {error}", show(path))).maybe_hint(io_hint(&error))
    };
    for (class_number, (class, pattern)) in (0_u32..).zip(CLASSES) {
        for number in 0..IMAGES_PER_CLASS {
            let split = if number % 4 == 3 { "val" } else { "train" };
            let dir = root.join(split).join(class);
            fs::create_dir_all(&dir).map_err(|error| failed(&dir, error))?;
            let image = draw(pattern, class_number * IMAGES_PER_CLASS + number);
            let jpeg = encode_jpeg(&image, QUALITY, false)
                .map_err(|error| Failure::new(format!("cannot encode an image: {error}")))?;
            let path = dir.join(format!("{number:02}.jpg"));
            fs::write(&path, jpeg).map_err(|error| failed(&path, error))?;
        }
    }
    Ok(())
}

/// Draws an image of a pattern. `number` determines the size of the image, and the position and the colors of the pattern.
fn draw(pattern: Pattern, number: u32) -> RgbImage {
    // A value of a Weyl sequence in 0..1; consecutive numbers give evenly distributed values.
    let part = |salt: u32| {
        f64::from(number.wrapping_mul(0x9E37_79B9).wrapping_add(salt << 29) >> 8)
            / f64::from(1 << 24)
    };
    let (width, height) = (320 + number * 7 % 160, 280 + number * 11 % 120);
    let half = height as f32 / 2.0;
    let (left, top) = (part(1) as f32 * 0.6 - 0.3, part(2) as f32 * 0.6 - 0.3);
    let color = |salt: u32, light: f64| {
        [0.0, 1.0 / 3.0, 2.0 / 3.0].map(|phase| {
            let wave = (std::f64::consts::TAU * (part(salt) + phase)).cos();
            ((light + 0.25 * wave) * 255.0) as u8
        })
    };
    let (front, back) = (color(3, 0.7), color(5, 0.35));
    let mut data = Vec::with_capacity(width as usize * height as usize * 3);
    for row in 0..height {
        for column in 0..width {
            let x = (column as f32 - width as f32 / 2.0) / half - left;
            let y = row as f32 / half - 1.0 - top;
            data.extend(if pattern(x, y) { front } else { back });
        }
    }
    RgbImage {
        width,
        height,
        data,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn images_are_the_same_in_each_run() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for dir in &dirs {
            super::write(dir.path()).unwrap();
        }
        let read = |at: usize| std::fs::read(dirs[at].path().join("val/rings/03.jpg")).unwrap();
        assert_eq!(read(0), read(1));
    }
}
