//! Round trips, all levels against the portable one, pixels against those of the JPEG, and damaged
//! files.

use super::encode::{FastCoding, FastEncoder};
use super::read::{Reader, Tiles};
use super::simd::Level;
use super::*;
use crate::baseline::blocks::{Blocks, Frame, McuWindow};
use crate::decoder::{DecodeScale, ImagePart, JpegDecoder};
use crate::limits::Limits;
use crate::region::Region;
use libjpeg_turbo_rs::{ColorSpace, Encoder, PixelFormat, Subsampling};
use proptest::prelude::*;

/// A pseudorandom sequence (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// The properties of a test JPEG.
#[derive(Debug, Clone, Copy)]
struct Kind {
    size: (usize, usize),
    /// `None` for a gray image.
    sampling: Option<Subsampling>,
    quality: u8,
    restart: u16,
    is_optimized: bool,
    is_rgb: bool,
    seed: u64,
}

const PLAIN: Kind = Kind {
    size: (200, 150),
    sampling: Some(Subsampling::S420),
    quality: 85,
    restart: 0,
    is_optimized: false,
    is_rgb: false,
    seed: 1,
};

impl Kind {
    /// Encodes a picture with gradients, edges, and noise whose amplitude varies over the image.
    fn jpeg(&self) -> Vec<u8> {
        let (width, height) = self.size;
        let mut numbers = Numbers(self.seed);
        let mut pixels = Vec::with_capacity(width * height * 3);
        for y in 0..height {
            for x in 0..width {
                let edge = if (x + 2 * y) % 40 > 27 { 120 } else { 0 };
                let amplitude = [1, 8, 60, 250][(x / 24 + y / 40 + self.seed as usize) % 4];
                for slope in [3, 5, 7] {
                    let color = slope * x + (8 - slope) * y + edge + numbers.below(amplitude);
                    pixels.push((color % 256) as u8);
                }
            }
        }
        let mut encoder = Encoder::new(&pixels, width, height, PixelFormat::Rgb)
            .quality(self.quality)
            .optimize_huffman(self.is_optimized);
        encoder = match self.sampling {
            Some(sampling) => encoder.subsampling(sampling),
            None => encoder.grayscale_from_color(true),
        };
        if self.restart > 0 {
            encoder = encoder.restart_blocks(self.restart);
        }
        if self.is_rgb {
            encoder = encoder.colorspace(ColorSpace::Rgb);
        }
        encoder.encode().unwrap()
    }
}

fn any_kind() -> impl Strategy<Value = Kind> {
    use Subsampling::*;
    let sampling = prop_oneof![
        Just(None),
        Just(Some(S444)),
        Just(Some(S422)),
        Just(Some(S420)),
        Just(Some(S440)),
        Just(Some(S411)),
    ];
    let restart = prop_oneof![3 => Just(0u16), 1 => 1u16..9];
    (
        (1usize..330, 1usize..90),
        sampling,
        1u8..=100,
        restart,
        any::<bool>(),
        any::<u64>(),
    )
        .prop_map(
            |(size, sampling, quality, restart, is_optimized, seed)| Kind {
                size,
                sampling,
                quality,
                restart,
                is_optimized,
                seed,
                ..PLAIN
            },
        )
}

/// Encodes a fast image; checks that all levels give the same bytes.
fn encode(jpeg: &[u8], coding: FastCoding) -> Vec<u8> {
    let made = Level::all().map(|level| {
        let mut encoder = FastEncoder::default();
        encoder.verifier.reader.level = level;
        encoder
            .encode_any(jpeg, coding)
            .expect("a JPEG that can be encoded")
    });
    let mut made: Vec<Vec<u8>> = made.collect();
    assert!(made.windows(2).all(|two| two[0] == two[1]), "{coding:?}");
    made.remove(0)
}

const CODINGS: [FastCoding; 2] = [FastCoding::Coded, FastCoding::Raw];

/// Returns the wanted coefficients of an image, tile by tile; `None` if the image is damaged.
fn coefficients(fast: &[u8], level: Level, columns: Option<(usize, usize)>) -> Option<Vec<i16>> {
    let file = File::read(fast).ok()?;
    let frame: Frame = Baseline::default().frame(file.head).ok()?;
    let (from, to) = columns.unwrap_or((0, frame.mcus.0));
    let window = McuWindow {
        columns: from..to,
        rows: 0..frame.mcus.1,
    };
    let mut reader = Reader::default();
    reader.level = level;
    let mut tiles = Tiles::new(&file, &mut reader);
    let batch = tiles.start(&frame, &window).ok()?;
    let mut all = Vec::new();
    for row in window.rows {
        let mut column = from;
        while column < to {
            let end = ((column / batch + 1) * batch).min(to);
            // Filled with a value that reading a tile has to overwrite.
            let mut room = vec![i16::MIN; frame.coefficients(batch)];
            tiles.take(row, column..end, &mut room).ok()?;
            for (component, at) in frame.block_rows(batch) {
                let (h, _) = frame.factors[component];
                for block in 0..(end - column) * h {
                    let at = at + block / 2 * 144 + block % 2 * 8;
                    for row in room[at..at + 120].chunks(16) {
                        all.extend_from_slice(&row[..8]);
                    }
                }
            }
            column = end;
        }
    }
    Some(all)
}

fn check_pixels(jpeg: &[u8], fast: &[u8], seed: u64) {
    let (of_jpeg, of_fast) = (JpegHeader::of_jpeg(jpeg).unwrap(), header(fast).unwrap());
    assert_eq!(
        JpegHeader {
            encoding: Encoding::Jpeg,
            header_bytes: of_jpeg.header_bytes,
            ..of_fast
        },
        of_jpeg
    );
    let mut decoder = JpegDecoder::default();
    assert_eq!(decoder.decode(jpeg), decoder.decode(fast));
    let mut numbers = Numbers(seed);
    for scale in [
        DecodeScale::Full,
        DecodeScale::Half,
        DecodeScale::Quarter,
        DecodeScale::Eighth,
    ] {
        let (width, height) = (
            of_jpeg.width.div_ceil(scale.divisor()),
            of_jpeg.height.div_ceil(scale.divisor()),
        );
        let (x, y) = (
            numbers.below(width as usize) as u32,
            numbers.below(height as usize) as u32,
        );
        let part = ImagePart {
            scale,
            region: Some(Region {
                x,
                y,
                width: 1 + numbers.below((width - x) as usize) as u32,
                height: 1 + numbers.below((height - y) as usize) as u32,
            }),
            ..ImagePart::default()
        };
        assert_eq!(
            decoder.decode_part(jpeg, &part),
            decoder.decode_part(fast, &part),
            "{part:?}"
        );
    }
}

fn check(kind: Kind) {
    let jpeg = kind.jpeg();
    for coding in CODINGS {
        let fast = encode(&jpeg, coding);
        for level in Level::all() {
            let (mut baseline, mut reader, mut restored) =
                (Baseline::default(), Reader::default(), Vec::new());
            reader.level = level;
            restore::restore(&fast, &mut baseline, &mut reader, &mut restored).unwrap();
            assert!(restored == jpeg, "{coding:?}, {level:?}");
        }
        let expected = coefficients(&fast, Level::all().next().unwrap(), None).unwrap();
        for level in Level::all() {
            let found = coefficients(&fast, level, None).unwrap();
            assert!(found == expected, "{coding:?}, {level:?}");
        }
        check_pixels(&jpeg, &fast, kind.seed);
        // `encode` verifies without restoring; in debug builds it compares its result with that of restoring.
        let encoded = FastEncoder::default().encode(&jpeg, coding, &Limits::default());
        assert!(encoded.is_none_or(|encoded| encoded == fast));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn fast_images_have_the_pixels_and_the_bytes_of_their_jpeg(kind in any_kind()) {
        check(kind);
    }
}

#[test]
fn every_subsampling_at_the_edges_of_tiles() {
    use Subsampling::*;
    for sampling in [
        None,
        Some(S444),
        Some(S422),
        Some(S420),
        Some(S440),
        Some(S411),
    ] {
        for width in [1, 8, 127, 128, 129, 257] {
            let size = (width, 33);
            check(Kind {
                size,
                sampling,
                ..PLAIN
            });
        }
    }
    check(Kind {
        is_rgb: true,
        sampling: Some(S444),
        ..PLAIN
    });
}

#[test]
fn coefficients_too_large_for_a_field_are_corrected() {
    // Noise of full amplitude at the highest quality, and black blocks beside white ones.
    for seed in 0..4 {
        let kind = Kind {
            quality: 100,
            seed,
            sampling: Some(Subsampling::S444),
            ..PLAIN
        };
        let jpeg = kind.jpeg();
        let fast = encode(&jpeg, FastCoding::Raw);
        let file = File::read(&fast).unwrap();
        assert!(file.tiles[0] > 0, "the first tile has corrections");
        check(kind);
    }
}

#[test]
fn a_range_of_columns_equals_a_part_of_all_columns() {
    let jpeg = Kind {
        size: (700, 20),
        ..PLAIN
    }
    .jpeg();
    for coding in CODINGS {
        let fast = encode(&jpeg, coding);
        for columns in [(0, 1), (3, 9), (7, 8), (8, 16), (9, 44), (43, 44)] {
            let levels = Level::all().map(|level| coefficients(&fast, level, Some(columns)));
            let all: Vec<_> = levels.collect();
            assert!(all.iter().all(|found| found.is_some() && *found == all[0]));
        }
    }
}

#[test]
fn jpegs_that_cannot_be_restored_are_refused() {
    let limits = Limits::default();
    let mut encoder = FastEncoder::default();
    let jpeg = PLAIN.jpeg();
    assert!(encoder.encode(&jpeg, FastCoding::Coded, &limits).is_some());
    // The unused bits of the scan's last byte have values that no encoder writes.
    let mut decoder = JpegDecoder::new(limits);
    let odd = (20..60).find_map(|width| {
        let kind = Kind {
            size: (width, 20),
            ..PLAIN
        };
        let jpeg = kind.jpeg();
        let mut odd = jpeg.clone();
        let last = odd.len() - 3;
        odd[last] ^= 1;
        let is_padding = jpeg[last] != 0 && odd[last] != 0xff;
        (is_padding && decoder.decode(&odd) == decoder.decode(&jpeg)).then_some(odd)
    });
    let odd = odd.expect("a scan that ends within a byte");
    assert_eq!(encoder.encode(&odd, FastCoding::Coded, &limits), None);
    for bytes in [
        &b""[..],
        b"\xff\xd8\xff",
        &jpeg[..jpeg.len() - 2],
        &jpeg[..300],
    ] {
        assert_eq!(encoder.encode(bytes, FastCoding::Coded, &limits), None);
    }
    let fast = encode(&jpeg, FastCoding::Raw);
    assert_eq!(encoder.encode(&fast, FastCoding::Coded, &limits), None);
    let progressive = Encoder::new(&[90; 48 * 48 * 3], 48, 48, PixelFormat::Rgb)
        .progressive(true)
        .encode()
        .unwrap();
    assert_eq!(
        encoder.encode(&progressive, FastCoding::Coded, &limits),
        None
    );
    // Bytes after the image are restored too.
    let longer = [&jpeg[..], b"trailing"].concat();
    let fast = encoder.encode(&longer, FastCoding::Raw, &limits).unwrap();
    assert_eq!(restore_fast(&fast, &limits).unwrap(), longer);
}

#[test]
fn images_that_grow_too_much_are_refused() {
    // Each block has only its highest frequency: the longest bitmap, but a short code in a JPEG.
    let wave =
        |place: usize| ((2 * (place % 8) + 1) as f64 * 7.0 * std::f64::consts::PI / 16.0).cos();
    let pixels: Vec<u8> = (0..400 * 400)
        .flat_map(|at| [(128.0 + 100.0 * wave(at % 400) * wave(at / 400)) as u8; 3])
        .collect();
    let encoder = Encoder::new(&pixels, 400, 400, PixelFormat::Rgb).quality(50);
    let encoder = encoder.grayscale_from_color(true).optimize_huffman(true);
    let jpeg = encoder.encode().unwrap();
    let fast = encode(&jpeg, FastCoding::Raw);
    let encoded = FastEncoder::default().encode(&jpeg, FastCoding::Raw, &Limits::default());
    assert!(
        fast.len() * 2 > jpeg.len() * 3,
        "{} of {} bytes",
        fast.len(),
        jpeg.len()
    );
    assert_eq!(encoded, None);
}

#[test]
fn damaged_tiles_are_handled_equally_on_every_level() {
    let mut numbers = Numbers(7);
    let limits = Limits::default();
    let kinds = [
        PLAIN,
        Kind {
            sampling: Some(Subsampling::S411),
            size: (330, 40),
            quality: 98,
            ..PLAIN
        },
        Kind {
            sampling: None,
            size: (17, 9),
            ..PLAIN
        },
    ];
    for kind in kinds {
        let jpeg = kind.jpeg();
        for coding in CODINGS {
            let fast = encode(&jpeg, coding);
            let tiles = fast.len() - File::read(&fast).unwrap().tiles.len();
            for round in 0..400 {
                let mut damaged = fast.clone();
                for _ in 0..1 + round % 3 {
                    let first = if round % 2 == 0 { tiles } else { 0 };
                    let at = first + numbers.below(damaged.len() - first);
                    damaged[at] = numbers.next() as u8;
                }
                if round % 20 == 0 {
                    damaged.truncate(numbers.below(damaged.len()));
                }
                if let Ok(restored) = restore_fast(&damaged, &limits) {
                    assert!(restored == jpeg);
                }
                let found: Vec<_> = Level::all()
                    .map(|level| coefficients(&damaged, level, None))
                    .collect();
                assert!(
                    found.iter().all(|other| *other == found[0]),
                    "round {round}"
                );
                let mut decoder = JpegDecoder::new(limits);
                if decoder.decode(&damaged).is_ok() {
                    assert!(found[0].is_some());
                }
            }
        }
    }
}

#[test]
fn errors_describe_the_fault() {
    let fast = encode(&PLAIN.jpeg(), FastCoding::Raw);
    let limits = Limits::default();
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fast.clone();
        change(&mut bytes);
        restore_fast(&bytes, &limits).unwrap_err().to_string()
    };
    assert_eq!(
        error(&|bytes| bytes[4] = 9),
        "unsupported FAST: version 9 with table set 0"
    );
    assert_eq!(
        error(&|bytes| bytes[12] ^= 1),
        "corrupt FAST: the checksum of the header does not match"
    );
    assert_eq!(
        error(&|bytes| bytes.truncate(bytes.len() - 1)),
        "FAST data end early: the tiles"
    );
    assert_eq!(
        error(&|bytes| bytes.push(0)),
        "corrupt FAST: bytes follow the last tile"
    );
    assert_eq!(
        error(&|bytes| bytes.truncate(40)),
        format!(
            "FAST header is incomplete: at least {} bytes are needed, 40 are there",
            header(&fast).unwrap().header_bytes
        )
    );
}
