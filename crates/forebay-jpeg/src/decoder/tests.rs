//! Compares the fast decoder with the general one, region by region and scale by scale.

use super::*;
use crate::baseline::build_seek_points;
use std::path::Path;

const SCALES: [DecodeScale; 4] = [
    DecodeScale::Full,
    DecodeScale::Half,
    DecodeScale::Quarter,
    DecodeScale::Eighth,
];

/// The default limits.
static LIMITS: std::sync::LazyLock<Limits> = std::sync::LazyLock::new(Limits::default);

fn job(bytes: &[u8], scale: DecodeScale, region: Region) -> RegionJob<'_> {
    let header = read_header(bytes).unwrap();
    RegionJob {
        bytes,
        encoding: header.encoding,
        size: (header.width, header.height),
        scale: scale.divisor(),
        region,
        limits: &LIMITS,
        seek_points: SeekPoints::None,
    }
}

fn image(region: Region, data: Vec<u8>) -> RgbImage {
    RgbImage {
        width: region.width,
        height: region.height,
        data,
    }
}

fn buffer(region: Region) -> Vec<u8> {
    vec![0; region.width as usize * region.height as usize * 3]
}

/// Decodes with the fast decoder; `None` if it declines.
fn baseline(decoders: &mut Decoders, job: &RegionJob<'_>) -> Option<RgbImage> {
    let mut out = buffer(job.region);
    let rows = &mut Memory::new(&mut out, job.region.width as usize);
    let done = decoders.stream(job, rows).unwrap();
    done.then(|| image(job.region, out))
}

/// Decodes with the decoder for all JPEGs.
fn general(decoders: &mut Decoders, job: &RegionJob<'_>) -> RgbImage {
    let mut out = buffer(job.region);
    decoders.general(job, &mut out).unwrap();
    image(job.region, out)
}

fn cut(image: &RgbImage, region: &Region) -> Vec<u8> {
    let (x, width) = (region.x as usize * 3, region.width as usize * 3);
    let rows = image.data.chunks_exact(image.width as usize * 3);
    rows.skip(region.y as usize)
        .take(region.height as usize)
        .flat_map(|row| row[x..x + width].iter().copied())
        .collect()
}

/// Returns regions at various alignments, at the edges, tiny and large.
fn regions(width: u32, height: u32, count: u32) -> Vec<Region> {
    let mut state = width * 31 + height;
    let mut next = |n: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % n
    };
    let mut regions = vec![
        Region::whole(width, height),
        Region {
            x: width - 1,
            y: height - 1,
            width: 1,
            height: 1,
        },
        Region {
            x: 0,
            y: 0,
            width: 1,
            height: 1,
        },
    ];
    for _ in 0..count {
        let (x, y) = (next(width), next(height));
        let (w, h) = (1 + next(width - x), 1 + next(height - y));
        regions.push(Region {
            x,
            y,
            width: w,
            height: h,
        });
    }
    regions
}

/// Returns smooth color with noise, to get short and long Huffman codes.
fn picture(width: usize, height: usize) -> Vec<u8> {
    let mut state = (width * 7919 + height) as u32;
    (0..width * height * 3)
        .map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (x, y) = (i / 3 % width, i / 3 / width);
            let wave = (x * (3 + i % 3) + y * 5) as f64 * 0.07;
            (128.0 + 90.0 * wave.sin() + f64::from(state >> 26) - 32.0) as u8
        })
        .collect()
}

#[test]
fn every_subsampling_equals_the_reference() {
    use libjpeg_turbo_rs::{Encoder, Subsampling};
    let samplings = [
        (Subsampling::S444, true),
        (Subsampling::S422, true),
        (Subsampling::S420, true),
        (Subsampling::S440, false),
        (Subsampling::S411, false),
    ];
    let mut decoder = JpegDecoder::default();
    let sizes = [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 18, 31, 33, 47, 64, 65, 100];
    for (i, &width) in sizes.iter().enumerate() {
        for (j, &height) in sizes.iter().enumerate() {
            let pixels = picture(width, height);
            let (sampling, supported) = samplings[(i * 3 + j) % samplings.len()];
            let restart = [0, 1, 3, 7][(i + j) % 4];
            let quality = [30, 75, 90, 100][(i * 5 + j) % 4];
            let mut encoder =
                Encoder::new(&pixels, width, height, libjpeg_turbo_rs::PixelFormat::Rgb)
                    .quality(quality)
                    .subsampling(sampling)
                    .optimize_huffman((i + j) % 3 == 0)
                    .restart_blocks(restart);
            if (i + 2 * j) % 7 == 0 {
                encoder = encoder.grayscale_from_color(true);
            }
            let bytes = encoder.encode().unwrap();
            let case = format!("{width}x{height} {sampling:?} restart {restart} quality {quality}");
            let whole = Region::whole(width as u32, height as u32);
            let reference = general(
                &mut decoder.decoders,
                &job(&bytes, DecodeScale::Full, whole),
            );
            for region in regions(width as u32, height as u32, 8) {
                let expected = cut(&reference, &region);
                let got = baseline(
                    &mut decoder.decoders,
                    &job(&bytes, DecodeScale::Full, region),
                );
                // The baseline decoder declines images with rows of one or two chroma samples.
                assert!(
                    got.is_some() || !supported || width < 5,
                    "{case} was declined"
                );
                assert!(
                    got.is_none_or(|got| got.data == expected),
                    "{case} {region:?}"
                );
                let part = ImagePart {
                    region: Some(region),
                    ..ImagePart::default()
                };
                let got = decoder.decode_part(&bytes, &part).unwrap();
                assert!(got.data == expected, "{case} {region:?} of the decoder");
            }
        }
    }
}

#[test]
fn cmyk_becomes_rgb() {
    use libjpeg_turbo_rs::{Encoder, PixelFormat};
    // No cyan, some magenta, full yellow and a little black, inverted as Adobe stores it.
    let inks = [255u8, 200, 0, 230].repeat(16 * 16);
    let bytes = Encoder::new(&inks, 16, 16, PixelFormat::Cmyk)
        .quality(100)
        .encode()
        .unwrap();
    let image = JpegDecoder::default().decode(&bytes).unwrap();
    let expected = [255, 200, 0].map(|ink: u32| (ink * 230 / 255) as u8);
    for pixel in image.data.chunks_exact(3) {
        assert!(
            pixel.iter().zip(expected).all(|(&a, b)| a.abs_diff(b) <= 2),
            "{pixel:?} {expected:?}"
        );
    }
}

/// The CRC-32 of zip and PNG.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| {
            (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg())
        })
    })
}

/// testdata/formats/scaled.txt has the results of libjpeg's scaled transforms.
#[test]
fn scaled_images_equal_libjpeg() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats");
    let mut decoder = JpegDecoder::default();
    let text = std::fs::read_to_string(folder.join("scaled.txt")).unwrap();
    let (mut seen, mut own) = (0, 0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [name, scale, width, height, crc] = fields[..] else {
            panic!("{line}")
        };
        let divisor: u32 = scale.parse().unwrap();
        let scale = SCALES.into_iter().find(|scale| scale.divisor() == divisor);
        let scale = scale.unwrap();
        let (width, height) = (width.parse().unwrap(), height.parse().unwrap());
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let part = ImagePart {
            scale,
            ..ImagePart::default()
        };
        let whole = decoder.decode_part(&bytes, &part).unwrap();
        assert_eq!((whole.width, whole.height), (width, height), "{line}");
        assert_eq!(format!("{:08x}", crc32(&whole.data)), crc, "{line}");
        let points = build_seek_points(&bytes);
        for region in regions(width, height, 20) {
            for seek_points in [None, points.as_deref()] {
                let part = ImagePart {
                    scale,
                    region: Some(region),
                    seek_points: seek_points.into(),
                };
                let got = decoder.decode_part(&bytes, &part).unwrap();
                assert!(got.data == cut(&whole, &region), "{line}: {region:?}");
            }
            let got = baseline(&mut decoder.decoders, &job(&bytes, scale, region));
            own += usize::from(got.is_some());
        }
        seen += 1;
    }
    assert_eq!(seen, 21);
    assert_eq!(own, 18 * 23, "regions that went through the faster decoder");
}

/// Compares the baseline decoder with the general one at every scale: all subsamplings, small
/// sizes, incomplete MCUs at the edges.
#[test]
fn scaled_generated_pictures_equal_the_reference() {
    use libjpeg_turbo_rs::{Encoder, Subsampling};
    let samplings = [
        Subsampling::S444,
        Subsampling::S422,
        Subsampling::S420,
        Subsampling::S440,
        Subsampling::S411,
    ];
    let mut decoders = Decoders::default();
    let sizes = [1, 5, 8, 16, 17, 33, 40, 64, 71];
    for (i, &width) in sizes.iter().enumerate() {
        for (j, &height) in sizes.iter().enumerate() {
            let pixels = picture(width, height);
            let sampling = samplings[(i * 3 + j) % samplings.len()];
            let bytes = Encoder::new(&pixels, width, height, libjpeg_turbo_rs::PixelFormat::Rgb)
                .quality([40, 90, 100][(i + j) % 3])
                .subsampling(sampling)
                .restart_blocks([0, 2][(i + j) % 2])
                .encode()
                .unwrap();
            for scale in &SCALES[1..] {
                let divisor = scale.divisor();
                let region = Region::whole(
                    (width as u32).div_ceil(divisor),
                    (height as u32).div_ceil(divisor),
                );
                let job = job(&bytes, *scale, region);
                let reference = general(&mut decoders, &job);
                if let Some(own) = baseline(&mut decoders, &job) {
                    assert!(
                        own == reference,
                        "{width}x{height} {sampling:?} 1/{divisor}"
                    );
                }
            }
        }
    }
}
