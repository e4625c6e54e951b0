//! Tests of the decoder: against libjpeg-turbo-rs on files from its encoder, portable against SIMD
//! code, and on damaged files.

use std::thread;

use super::simd::Level;
use super::{Baseline, Refusal, SeekDensity, SeekPointBuilder, build_seek_points};
use crate::region::Region;
use crate::rows::Memory;
use libjpeg_turbo_rs::{ColorSpace, Encoder, PixelFormat, Subsampling};

/// A pseudorandom sequence (SplitMix64).
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Returns smooth colors with an edge and some noise, to get all kinds of blocks.
fn picture(width: usize, height: usize, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let edge = if (x + 2 * y) % 40 > 27 { 120 } else { 0 };
            let noise = if (x / 16 + y / 16) % 3 == 0 {
                numbers.below(60)
            } else {
                0
            };
            for slope in [3, 5, 7] {
                let color = slope * x + (8 - slope) * y + edge + noise;
                pixels.push((color % 256) as u8);
            }
        }
    }
    pixels
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) sampling: Subsampling,
    pub(super) quality: u8,
    pub(super) restart: u16,
    pub(super) optimised: bool,
    pub(super) space: Option<ColorSpace>,
}

pub(super) const PLAIN: Kind = Kind {
    sampling: Subsampling::S420,
    quality: 85,
    restart: 0,
    optimised: false,
    space: None,
};

pub(super) fn encode(kind: Kind, width: usize, height: usize) -> Vec<u8> {
    let pixels = picture(width, height, (width * height) as u64);
    let mut encoder = Encoder::new(&pixels, width, height, PixelFormat::Rgb)
        .quality(kind.quality)
        .subsampling(kind.sampling)
        .optimize_huffman(kind.optimised);
    if kind.restart > 0 {
        encoder = encoder.restart_blocks(kind.restart);
    }
    match kind.space {
        Some(ColorSpace::Grayscale) => encoder = encoder.grayscale_from_color(true),
        Some(space) => encoder = encoder.colorspace(space),
        None => {}
    }
    encoder.encode().unwrap()
}

/// Returns every kind of file that the decoder supports.
pub(super) fn kinds() -> Vec<Kind> {
    use Subsampling::*;
    let mut kinds = Vec::new();
    for sampling in [S444, S422, S420, S440, S411] {
        for quality in [5, 60, 85, 100] {
            let optimised = quality == 60;
            for restart in [0, 1, 3, 7] {
                kinds.push(Kind {
                    sampling,
                    quality,
                    restart,
                    optimised,
                    space: None,
                });
            }
        }
    }
    for space in [ColorSpace::Grayscale, ColorSpace::Rgb] {
        for restart in [0, 5] {
            kinds.push(Kind {
                sampling: S444,
                restart,
                space: Some(space),
                ..PLAIN
            });
        }
    }
    kinds
}

fn reference(jpeg: &[u8]) -> Vec<u8> {
    libjpeg_turbo_rs::decompress_to(jpeg, PixelFormat::Rgb)
        .unwrap()
        .data
}

fn cut(pixels: &[u8], width: usize, region: Region) -> Vec<u8> {
    let (x, row) = (region.x as usize, region.width as usize * 3);
    pixels
        .chunks_exact(width * 3)
        .skip(region.y as usize)
        .take(region.height as usize)
        .flat_map(|line| &line[x * 3..x * 3 + row])
        .copied()
        .collect()
}

pub(super) fn random_region(numbers: &mut Numbers, width: usize, height: usize) -> Region {
    let (x, y) = (numbers.below(width), numbers.below(height));
    Region {
        x: x as u32,
        y: y as u32,
        width: 1 + numbers.below(width - x) as u32,
        height: 1 + numbers.below(height - y) as u32,
    }
}

fn decode(
    decoder: &mut Baseline,
    jpeg: &[u8],
    points: Option<&[u8]>,
    (width, height): (usize, usize),
    region: Region,
) -> Result<Vec<u8>, Refusal> {
    let mut out = vec![0; region.width as usize * region.height as usize * 3];
    let size = (width as u32, height as u32);
    let mut rows = Memory::new(&mut out, region.width as usize);
    decoder.decode(jpeg, points.into(), size, 1, region, &mut rows)?;
    Ok(out)
}

/// Returns a decoder for every implementation.
fn levels() -> Vec<Baseline> {
    let both =
        |level| [true, false].map(|multi_symbols| Baseline::with_level(level, multi_symbols));
    Level::all().flat_map(both).collect()
}

#[test]
fn whole_images_and_regions_equal_libjpeg_turbo() {
    let kinds = kinds();
    thread::scope(|scope| {
        for (seed, half) in (1..).zip(kinds.chunks(kinds.len().div_ceil(2))) {
            scope.spawn(move || compare_with_libjpeg_turbo(half, seed));
        }
    });
}

fn compare_with_libjpeg_turbo(kinds: &[Kind], seed: u64) {
    let mut levels = levels();
    let mut numbers = Numbers(seed);
    for (turn, &kind) in kinds.iter().enumerate() {
        let mut sizes = vec![(250, 131), (8, 300), (300, 8), (97, 64), (64, 97)];
        let sides = 1..=18;
        sizes.extend(sides.map(|side| [(side, 33), (33, side), (side, side)][(turn + side) % 3]));
        for &(width, height) in &sizes {
            let jpeg = encode(kind, width, height);
            let expected = reference(&jpeg);
            let mut builder = SeekPointBuilder::default();
            let mut grids = vec![None];
            for (step, pieces) in [(1, 1), (1, 3), (2, 1), (5, 1)] {
                grids.extend(builder.build_grid(&jpeg, step, pieces).map(Some));
            }
            let whole = Region::whole(width as u32, height as u32);
            let mut regions = vec![whole];
            regions.extend((0..4).map(|_| random_region(&mut numbers, width, height)));
            for decoder in &mut levels {
                for &region in &regions {
                    for points in &grids {
                        let points = points.as_deref();
                        let out = decode(decoder, &jpeg, points, (width, height), region);
                        let what = (kind, width, height, region, points.map(|p| (p[6], p[7])));
                        let equal = out.unwrap() == cut(&expected, width, region);
                        assert!(equal, "{what:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_small_region_equals_the_whole() {
    for sampling in [Subsampling::S420, Subsampling::S422, Subsampling::S440] {
        let kind = Kind { sampling, ..PLAIN };
        let (width, height) = (39, 37);
        let jpeg = encode(kind, width, height);
        let mut builder = SeekPointBuilder::default();
        let mut grid = |step, pieces| builder.build_grid(&jpeg, step, pieces);
        let grids = [None, grid(1, 1), grid(1, 2), grid(2, 1), grid(3, 1)];
        assert!(grids[1..].iter().all(Option::is_some));
        let expected = reference(&jpeg);
        let mut decoder = Baseline::default();
        for y in 0..height as u32 {
            for x in 0..width as u32 {
                let region = Region {
                    x,
                    y,
                    width: 1 + (x * 7 + y) % (width as u32 - x),
                    height: 1 + (y * 5 + x) % (height as u32 - y),
                };
                for points in &grids {
                    let points = points.as_deref();
                    let out = decode(&mut decoder, &jpeg, points, (width, height), region);
                    assert_eq!(out.unwrap(), cut(&expected, width, region), "{region:?}");
                }
            }
        }
    }
}

#[test]
fn unsupported_kinds_are_declined() {
    let pixels = picture(40, 30, 0);
    let encoder = || Encoder::new(&pixels, 40, 30, PixelFormat::Rgb);
    let four = vec![90; 40 * 30 * 4];
    let files = [
        encoder().progressive(true).encode(),
        encoder().arithmetic(true).encode(),
        encoder().lossless(true).encode(),
        encoder()
            .sampling_factors(vec![(2, 2), (2, 1), (1, 1)])
            .encode(),
        encoder().subsampling(Subsampling::S410).encode(),
        Encoder::new(&four, 40, 30, PixelFormat::Cmyk).encode(),
    ];
    for file in files {
        let file = file.unwrap();
        let out = decode(
            &mut Baseline::default(),
            &file,
            None,
            (40, 30),
            Region::whole(40, 30),
        );
        assert!(matches!(out, Err(Refusal::Foreign(_))), "{out:?}");
        assert_eq!(build_seek_points(&file), None);
    }
}

#[test]
fn tables_of_an_earlier_file_are_not_used() {
    let jpeg = encode(PLAIN, 40, 30);
    let find = |marker: u8| {
        let is_it = |pair: &[u8]| pair == [0xff, marker];
        jpeg.windows(2).position(is_it).unwrap()
    };
    let mut decoder = Baseline::default();
    let whole = Region::whole(40, 30);
    for marker in [0xc4, 0xdb] {
        assert!(decode(&mut decoder, &jpeg, None, (40, 30), whole).is_ok());
        let at = find(marker);
        let length = usize::from(u16::from_be_bytes([jpeg[at + 2], jpeg[at + 3]]));
        let mut without = jpeg.clone();
        without.drain(at..at + 2 + length);
        let out = decode(&mut decoder, &without, None, (40, 30), whole);
        assert!(matches!(out, Err(Refusal::Foreign(_))), "{out:?}");
    }
}

#[test]
fn fill_bytes_and_trailing_bytes_are_ignored() {
    let kind = Kind {
        restart: 2,
        ..PLAIN
    };
    let (width, height) = (100, 50);
    let jpeg = encode(kind, width, height);
    let expected = reference(&jpeg);
    // Additional `ff` bytes before each marker, and bytes after the end.
    let mut filled = Vec::new();
    for (i, &byte) in jpeg.iter().enumerate() {
        let code = jpeg.get(i + 1).copied().unwrap_or(0);
        if byte == 0xff && (0xd0..=0xd7).contains(&code) || i > 4 && [byte, code] == [0xff, 0xdb] {
            filled.extend([0xff; 3]);
        }
        filled.push(byte);
    }
    filled.extend(b"trailing bytes");
    for mut decoder in levels() {
        for region in [
            Region::whole(100, 50),
            Region {
                x: 70,
                y: 40,
                width: 9,
                height: 9,
            },
        ] {
            let out = decode(&mut decoder, &filled, None, (width, height), region);
            assert_eq!(out.unwrap(), cut(&expected, width, region));
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    for restart in [0, 3] {
        let kind = Kind { restart, ..PLAIN };
        let jpeg = encode(kind, 60, 40);
        let mut decoder = Baseline::default();
        for length in 0..jpeg.len() {
            for region in [Region::whole(60, 40), Region::whole(1, 1)] {
                let out = decode(&mut decoder, &jpeg[..length], None, (60, 40), region);
                assert!(out.is_err(), "{length} of {} bytes", jpeg.len());
            }
        }
    }
}

#[test]
fn all_levels_transform_sparse_blocks_equally() {
    use super::entropy::{PAIR, SECOND};
    let mut numbers = Numbers(17);
    for _ in 0..3000 {
        let pairs = 1 + numbers.below(5);
        // Adjacent blocks often have the same empty columns; implementations have special cases for these.
        let most = [1 + numbers.below(8), 1 + numbers.below(8)];
        let bits = 1 + numbers.below(12);
        let mut coefficients = vec![0i16; pairs * PAIR];
        for block in 0..2 * pairs {
            let (rows, columns) = (1 + numbers.below(most[0]), 1 + numbers.below(most[1]));
            let block = &mut coefficients[block / 2 * PAIR + block % 2 * SECOND..];
            for _ in 0..numbers.below(20) {
                let place = numbers.below(rows) * 2 * SECOND + numbers.below(columns);
                block[place] = numbers.below(1 << bits) as i16 - (1 << (bits - 1));
            }
        }
        let large = 1 + numbers.below(255);
        let steps: [i16; 64] = std::array::from_fn(|_| 1 + numbers.below(large) as i16);
        let stride = 16 * pairs + 3;
        let mut planes = Level::all().map(|level| {
            let (mut from, mut plane) = (coefficients.clone(), vec![0; 8 * stride]);
            level.idct(8, &mut from, &steps, &mut plane, stride);
            assert!(from.iter().all(|&value| value == 0));
            plane
        });
        let first = planes.next().unwrap();
        assert!(planes.all(|plane| plane == first));
    }
}

#[test]
fn damage_never_panics_and_levels_agree_on_it() {
    let mut numbers = Numbers(7);
    let mut compared = 0;
    let mut levels = levels();
    for kind in [
        PLAIN,
        Kind {
            restart: 4,
            ..PLAIN
        },
        Kind {
            optimised: true,
            quality: 95,
            sampling: Subsampling::S444,
            ..PLAIN
        },
    ] {
        let jpeg = encode(kind, 90, 70);
        for _ in 0..3000 {
            let mut damaged = jpeg.clone();
            for _ in 0..=numbers.below(3) {
                let at = numbers.below(damaged.len());
                damaged[at] = numbers.next() as u8;
            }
            let region = random_region(&mut numbers, 90, 70);
            let mut all = levels
                .iter_mut()
                .map(|decoder| decode(decoder, &damaged, None, (90, 70), region));
            let one = all.next().expect("the portable level");
            assert!(all.all(|other| other == one));
            // The result must equal that of the general decoder on x86-64; other platforms differ
            // for coefficients that no encoder produces.
            let general = libjpeg_turbo_rs::decompress_to(&damaged, PixelFormat::Rgb);
            if let (Ok(pixels), Ok(general)) = (one, general) {
                compared += 1;
                if cfg!(not(target_arch = "x86_64")) {
                    continue;
                }
                assert_eq!(pixels, cut(&general.data, 90, region));
            }
        }
    }
    assert!(compared > 3000, "{compared} compared");
}

#[test]
fn damaged_seek_points_never_change_pixels() {
    let (width, height) = (70, 90);
    let jpeg = encode(PLAIN, width, height);
    let region = Region {
        x: 20,
        y: 55,
        width: 30,
        height: 20,
    };
    let expected = cut(&reference(&jpeg), width, region);
    let mut decoder = Baseline::default();
    let mut other = jpeg.clone();
    other.splice(2..2, [0xff, 0xfe, 0, 4, b'h', b'i']);
    let another = encode(PLAIN, 90, 70);
    let mut builder = SeekPointBuilder::default();
    for (step, pieces) in [(1, 1), (1, 3), (2, 1)] {
        let points = builder.build_grid(&jpeg, step, pieces).unwrap();
        let mut check = |points: &[u8], jpeg: &[u8]| {
            let out = decode(&mut decoder, jpeg, Some(points), (width, height), region);
            assert_eq!(out.unwrap(), expected);
        };
        check(&points, &jpeg);
        assert!(builder.is_right(&jpeg, &points));
        for at in 0..points.len() {
            let mut wrong = points.clone();
            wrong[at] ^= 1;
            assert!(!builder.is_right(&jpeg, &wrong) && !builder.is_right(&jpeg, &points[..at]));
            check(&points[..at], &jpeg);
            for flip in 1..=255 {
                let mut damaged = points.clone();
                damaged[at] ^= flip;
                check(&damaged, &jpeg);
            }
        }
        // Another file with the same pixels: points belong to the bytes, not to the pixels.
        check(&points, &other);
        check(&builder.build_grid(&other, step, pieces).unwrap(), &jpeg);
        check(&builder.build_grid(&another, step, pieces).unwrap(), &jpeg);
        // Stale points: a byte of the image data has changed. The pixels must equal those decoded
        // without points.
        for at in (jpeg.len() / 2..jpeg.len() - 2).step_by(97) {
            let mut changed = jpeg.clone();
            changed[at] ^= 1;
            let [with, without] = [Some(&points[..]), None]
                .map(|points| decode(&mut decoder, &changed, points, (width, height), region));
            assert_eq!(with, without);
        }
        // Any single wrong byte under a valid checksum: the pixels may be wrong, but the decoder
        // must not panic.
        for at in 0..points.len() - 4 {
            for change in [1, 2, 7, 15, 0x7f, 0x80, 0xff] {
                let mut forged = points.clone();
                forged[at] = forged[at].wrapping_add(change);
                let body = forged.len() - 4;
                let checksum = crc32c::crc32c(&forged[..body]);
                forged[body..].copy_from_slice(&checksum.to_le_bytes());
                let _ = decode(&mut decoder, &jpeg, Some(&forged), (width, height), region);
            }
        }
    }
}

#[test]
fn automatic_seek_points_are_at_most_one_percent() {
    let mut builder = SeekPointBuilder::default();
    let mut steps = std::collections::BTreeSet::new();
    for (width, height) in [
        (64, 900),
        (200, 400),
        (640, 480),
        (500, 375),
        (16, 16),
        (80, 40),
    ] {
        for quality in [5, 30, 60, 85, 98] {
            let jpeg = encode(Kind { quality, ..PLAIN }, width, height);
            let rows = builder.build(&jpeg, SeekDensity::Rows);
            assert_eq!(rows, build_seek_points(&jpeg));
            let auto = builder.build(&jpeg, SeekDensity::Auto);
            let Some(points) = &auto else {
                steps.insert(0);
                continue;
            };
            assert!(points.len() * 100 <= jpeg.len());
            let rows = rows.unwrap();
            // Points are never sparser than necessary.
            assert_eq!(rows.len() * 100 <= jpeg.len(), points[6] == 1);
            steps.insert(points[6]);
            let fine = builder.build(&jpeg, SeekDensity::Fine).unwrap();
            assert!(fine.len() > rows.len());
        }
    }
    assert!(
        steps.len() > 2 && steps.contains(&0) && steps.contains(&1),
        "{steps:?}"
    );
}

#[test]
fn seek_points_have_the_specified_bytes() {
    // 16x24 gray of one color: each block is a zero DC difference and an end of block.
    let pixels = [128; 16 * 24];
    let jpeg = Encoder::new(&pixels, 16, 24, PixelFormat::Grayscale)
        .encode()
        .unwrap();
    let points = build_seek_points(&jpeg).unwrap();
    let mut expected = vec![1, 1, 16, 0, 24, 0, 1, 1];
    expected.extend((jpeg.len() as u32).to_le_bytes());
    expected.extend(crc32c::crc32c(&jpeg).to_le_bytes());
    // Two blocks of 2 + 4 bits per row; the predictor stays 0.
    expected.extend([12, 0, 12, 0]);
    expected.extend(crc32c::crc32c(&expected).to_le_bytes());
    assert_eq!(points, expected);
}
