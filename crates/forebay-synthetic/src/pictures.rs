//! Images with the sizes of ImageNet's: noise at several scales, partly smooth, as baseline JPEGs.
//!
//! The cost of decoding a JPEG depends on its pixels and, about equally, on its bytes. Both follow
//! ImageNet: one image is generated for each of equally spaced quantiles of the distribution of
//! file sizes, with a contrast that gives a file of about this size. Only additions and
//! multiplications are used, so images have the same bytes on every machine.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_batch::splitmix::{GOLDEN, mix};
use forebay_image::{RgbImage, SeekDensity, SeekPointBuilder, encode_jpeg};
use forebay_shard::{Error, Result};

/// File sizes of ImageNet's training images, in bytes: every twentieth quantile, from the smallest
/// to the largest.
const SIZES: [u32; 21] = [
    2_200, 11_300, 23_400, 31_100, 40_200, 57_000, 71_200, 82_900, 91_200, 98_600, 105_600,
    113_800, 121_800, 131_200, 139_700, 148_000, 158_300, 171_700, 184_600, 209_600, 611_700,
];
/// Widths and heights of images, by maximum file size: half of ImageNet's images are 500 by 375
/// pixels, and small files have fewer pixels.
const SHAPES: [(u32, (u32, u32)); 5] = [
    (5_000, (110, 84)),
    (20_000, (220, 165)),
    (60_000, (400, 300)),
    (240_000, (500, 375)),
    (u32::MAX, (960, 720)),
];
/// Quality of the JPEG encoder.
const QUALITY: u8 = 96;
/// Number of bisection steps for the contrast.
const TRIES: usize = 6;
/// Square root of the maximum contrast: noise from black to white.
const MOST_CONTRAST: f32 = 3.0;

/// A JPEG and its seek points.
pub(crate) struct Picture {
    pub(crate) jpeg: Vec<u8>,
    pub(crate) seek_points: Option<Vec<u8>>,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// Generates `count` different images in ascending order of their file sizes, with one thread per core.
pub(crate) fn draw(count: u64, seed: u64, seek_points: bool) -> Result<Vec<Picture>> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicU64::new(0);
    let draw = || {
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        let numbers = numbers.take_while(|number| *number < count);
        let drawn = numbers.map(|number| Ok((number, one(number, count, seed, seek_points)?)));
        drawn.collect::<Result<Vec<(u64, Picture)>>>()
    };
    let drawn: Result<Vec<_>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(draw)).collect();
        let mut pictures = draw()?;
        for other in others {
            let drawn = other.join();
            pictures.extend(drawn.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(pictures)
    });
    let mut pictures = drawn?;
    pictures.sort_by_key(|(number, _)| *number);
    Ok(pictures.into_iter().map(|(_, picture)| picture).collect())
}

fn one(number: u64, count: u64, seed: u64, seek_points: bool) -> Result<Picture> {
    let wanted = size_at((number as f64 + 0.5) / count as f64);
    let (mut width, mut height) = SHAPES
        .iter()
        .find(|(most, _)| wanted <= f64::from(*most))
        .map_or((500, 375), |(_, shape)| *shape);
    let mut random = Random::new(seed ^ number.wrapping_mul(GOLDEN));
    // A quarter of the images are in portrait format; a third of the others are wider.
    match random.next() % 12 {
        0..3 => (width, height) = (height, width),
        3..6 => height = height * 8 / 9,
        _ => {}
    }
    let scene = Scene::new(width, height, &mut random);
    let invalid = |error: forebay_image::ImageError| Error::Invalid {
        problem: format!("drawing a picture: {error}"),
    };
    // Bytes grow with contrast, so a bisection converges. It searches for the square root, because
    // small files differ by little contrast.
    let (mut low, mut high) = (0.0f32, MOST_CONTRAST);
    let mut best: Option<Vec<u8>> = None;
    for _ in 0..TRIES {
        let root = (low + high) / 2.0;
        let jpeg = encode_jpeg(&scene.picture(root * root), QUALITY, false).map_err(invalid)?;
        if (jpeg.len() as f64) < wanted {
            low = root;
        } else {
            high = root;
        }
        let off = |jpeg: &[u8]| (jpeg.len() as f64 - wanted).abs();
        if best.as_deref().is_none_or(|best| off(&jpeg) < off(best)) {
            best = Some(jpeg);
        }
    }
    let jpeg = best.unwrap_or_default();
    let points = seek_points
        .then(|| SeekPointBuilder::default().build(&jpeg, SeekDensity::Auto))
        .flatten();
    Ok(Picture {
        jpeg,
        seek_points: points,
        width,
        height,
    })
}

/// Returns the file size at a quantile, 0 to 1.
fn size_at(part: f64) -> f64 {
    let at = part * (SIZES.len() - 1) as f64;
    let (low, within) = (at as usize, at.fract());
    let size = |i: usize| f64::from(SIZES[i.min(SIZES.len() - 1)]);
    size(low) * (1.0 - within) + size(low + 1) * within
}

/// The content of an image, apart from its contrast.
struct Scene {
    width: u32,
    height: u32,
    /// Coarse structure, which does not depend on the contrast. One number per pixel and channel.
    ground: Vec<f32>,
    /// Fine structure, equal in all channels, like brightness. One number per pixel.
    detail: Vec<f32>,
}

impl Scene {
    fn new(width: u32, height: u32, random: &mut Random) -> Self {
        let pixels = width as usize * height as usize;
        let mut ground = vec![0.0; pixels * 3];
        let mut plane = vec![0.0; pixels];
        for channel in 0..3 {
            plane.fill(0.0);
            for (cell, amount) in [(128, 60.0), (64, 24.0), (32, 10.0)] {
                add_noise(&mut plane, width, cell, amount, random);
            }
            for (value, from) in ground[channel..].iter_mut().step_by(3).zip(&plane) {
                *value = 128.0 + from;
            }
        }
        let mut detail = vec![0.0; pixels];
        for (cell, amount) in [(16, 26.0), (8, 22.0), (4, 20.0), (2, 18.0), (1, 14.0)] {
            add_noise(&mut detail, width, cell, amount, random);
        }
        // Some parts of a photograph are smooth like sky, others detailed like leaves.
        plane.fill(0.0);
        add_noise(&mut plane, width, 96, 1.0, random);
        for (value, mask) in detail.iter_mut().zip(&plane) {
            *value *= (0.5 + 1.2 * mask).clamp(0.1, 1.0);
        }
        Scene {
            width,
            height,
            ground,
            detail,
        }
    }

    fn picture(&self, contrast: f32) -> RgbImage {
        let mut data = Vec::with_capacity(self.ground.len());
        for (ground, detail) in self.ground.chunks_exact(3).zip(&self.detail) {
            // The cast saturates at black and white.
            data.extend(ground.iter().map(|value| (value + contrast * detail) as u8));
        }
        RgbImage {
            width: self.width,
            height: self.height,
            data,
        }
    }
}

/// Adds noise between -`amount` and `amount`: random values `cell` pixels apart, interpolated
/// linearly.
fn add_noise(plane: &mut [f32], width: u32, cell: usize, amount: f32, random: &mut Random) {
    let width = width as usize;
    let columns = width / cell + 2;
    let row_of_values = |random: &mut Random| -> Vec<f32> {
        (0..columns).map(|_| random.unit() * amount).collect()
    };
    let mut above = row_of_values(random);
    let mut below = row_of_values(random);
    for (y, row) in plane.chunks_exact_mut(width).enumerate() {
        if y > 0 && y % cell == 0 {
            above = std::mem::replace(&mut below, row_of_values(random));
        }
        let down = (y % cell) as f32 / cell as f32;
        for (x, cells) in row.chunks_mut(cell).enumerate() {
            let left = above[x] + (below[x] - above[x]) * down;
            let right = above[x + 1] + (below[x + 1] - above[x + 1]) * down;
            let step = (right - left) / cell as f32;
            let mut value = left;
            for pixel in cells {
                *pixel += value;
                value += step;
            }
        }
    }
}

/// A pseudorandom sequence (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number from -1 to 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Returns true with this probability.
    pub(crate) fn happens(&mut self, part: f64) -> bool {
        ((self.next() >> 11) as f64) < part * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use forebay_image::{Decoder, Limits, probe};

    use super::*;

    #[test]
    fn sizes_follow_imagenet() {
        let pictures = draw(5, 0, true).unwrap();
        for (number, picture) in pictures.iter().enumerate() {
            let wanted = size_at((number as f64 + 0.5) / 5.0);
            let found = picture.jpeg.len() as f64;
            assert!(
                (found / wanted - 1.0).abs() < 0.2,
                "{number}: {found} of {wanted}"
            );
            let seen = probe(&picture.jpeg, &Limits::default()).unwrap();
            assert!(!seen.progressive);
            assert_eq!((seen.width, seen.height), (picture.width, picture.height));
            assert!(picture.seek_points.is_some(), "{number}");
        }
        let image = Decoder::new(Limits::default())
            .decode(&pictures[2].jpeg)
            .unwrap();
        let mean = image.data.iter().map(|&v| f64::from(v)).sum::<f64>() / image.data.len() as f64;
        assert!(
            (90.0..170.0).contains(&mean),
            "neither black nor white: {mean}"
        );
        // The mean size of ImageNet's images is 110 KB.
        let mean: f64 = (0..1000)
            .map(|i| size_at((f64::from(i) + 0.5) / 1000.0))
            .sum::<f64>()
            / 1000.0;
        assert!((100e3..125e3).contains(&mean), "{mean}");
    }

    #[test]
    fn pictures_are_a_function_of_number_and_seed() {
        let sum = |pictures: &[Picture]| {
            let sums = pictures
                .iter()
                .map(|p| forebay_shard::checksum::crc32c(&p.jpeg));
            sums.collect::<Vec<u32>>()
        };
        let first = sum(&draw(3, 0, false).unwrap());
        assert_eq!(sum(&draw(3, 0, true).unwrap()), first);
        assert_ne!(sum(&draw(3, 1, false).unwrap()), first);
        // The same bytes on every machine and in every release: a changed image changes
        // fingerprints.
        assert_eq!(first, GOLDEN);
    }

    /// Checksums of the first three images.
    const GOLDEN: [u32; 3] = [3_555_682_128, 2_495_409_577, 1_607_602_120];

    #[test]
    fn events_have_the_given_probability() {
        let mut random = Random::new(3);
        let count = (0..10_000).filter(|_| random.happens(0.1)).count();
        assert!((900..1100).contains(&count), "{count}");
        assert!((0..1000).all(|_| !random.happens(0.0)));
        assert!((0..1000).all(|_| random.happens(1.0)));
    }
}
