//! Compares every decoder with the reference decoder of its format, region by region.

use super::*;
use crate::build_seek_points;
use crate::format::probe;
use std::path::{Path, PathBuf};

/// The images in the repository, and those in `$FOREBAY_BENCH_IMAGES`.
fn images() -> Vec<PathBuf> {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let mut folders = vec![shipped];
    folders.extend(std::env::var_os("FOREBAY_BENCH_IMAGES").map(PathBuf::from));
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|e| e == "JPEG") => found.push(path),
                false => {}
            }
        }
    }
    found.sort();
    assert!(found.len() >= 60, "{} images", found.len());
    found
}

fn cut(image: &RgbImage, region: &Region) -> Vec<u8> {
    let (x, width) = (region.x as usize * 3, region.width as usize * 3);
    let rows = image.data.chunks_exact(image.width as usize * 3);
    rows.skip(region.y as usize)
        .take(region.height as usize)
        .flat_map(|row| row[x..x + width].iter().copied())
        .collect()
}

fn jpeg() -> &'static [FormatDecoder] {
    Format::Jpeg.imp().decoders()
}

/// The fast JPEG decoder.
fn baseline(job: &DecodeJob<'_>, scratch: &mut Scratch, canvas: &mut Canvas) -> Result<Outcome> {
    (jpeg()[0].decode)(job, scratch, canvas)
}

/// The decoder for all JPEGs.
fn general(job: &DecodeJob<'_>, scratch: &mut Scratch, canvas: &mut Canvas) -> Result<Outcome> {
    (jpeg()[1].decode)(job, scratch, canvas)
}

/// Decodes with one decoder; `None` if it declines.
fn with(
    decode: fn(&DecodeJob<'_>, &mut Scratch, &mut Canvas) -> Result<Outcome>,
    scratch: &mut Scratch,
    bytes: &[u8],
    region: Option<Region>,
) -> Option<RgbImage> {
    let limits = Limits::default();
    let probe = probe(bytes, &limits).unwrap();
    let region = region.unwrap_or(Region::whole(probe.width, probe.height));
    let mut canvas = Canvas::default();
    let job = DecodeJob {
        bytes,
        probe: &probe,
        scale: 1,
        region,
        limits: &limits,
        seek_points: None,
    };
    if decode(&job, scratch, &mut canvas).unwrap() == Outcome::Declined {
        return None;
    }
    assert!(canvas.holds(&region));
    Some(canvas.cut(&region))
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

#[test]
fn regions_equal_parts_of_the_whole_image() {
    let mut decoder = Decoder::new(Limits::default());
    let mut scratch = Scratch::default();
    let mut own = 0;
    for path in images() {
        let bytes = std::fs::read(&path).unwrap();
        let probe = probe(&bytes, &Limits::default()).unwrap();
        // The last decoder of a format never declines.
        let last = probe.format.imp().decoders().last().unwrap();
        let reference = with(last.decode, &mut scratch, &bytes, None).unwrap();
        for region in regions(probe.width, probe.height, 12) {
            let expected = cut(&reference, &region);
            let got = decoder.decode_region(&bytes, &probe, region).unwrap();
            assert!(got.data == expected, "{} {region:?}", path.display());
            if probe.format == Format::Jpeg {
                let got = with(baseline, &mut scratch, &bytes, Some(region));
                own += usize::from(got.is_some());
                assert!(
                    got.is_none_or(|got| got.data == expected),
                    "{} {region:?}",
                    path.display()
                );
            }
        }
    }
    assert!(
        own >= 58 * 15,
        "{own} regions went through the faster decoder"
    );
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
    let mut scratch = Scratch::default();
    let mut decoder = Decoder::new(Limits::default());
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
            let header = probe(&bytes, &Limits::default()).unwrap();
            let reference = with(general, &mut scratch, &bytes, None).unwrap();
            for region in regions(width as u32, height as u32, 8) {
                let expected = cut(&reference, &region);
                let got = with(baseline, &mut scratch, &bytes, Some(region));
                // The baseline decoder declines images with rows of one or two chroma samples.
                assert!(
                    got.is_some() || !supported || width < 5,
                    "{case} was declined"
                );
                assert!(
                    got.is_none_or(|got| got.data == expected),
                    "{case} {region:?}"
                );
                let got = decoder.decode_region(&bytes, &header, region).unwrap();
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
    let image = Decoder::new(Limits::default()).decode(&bytes).unwrap();
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
    let mut decoder = Decoder::new(Limits::default());
    let text = std::fs::read_to_string(folder.join("scaled.txt")).unwrap();
    let mut scratch = Scratch::default();
    let (mut seen, mut own) = (0, 0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [name, scale, width, height, crc] = fields[..] else {
            panic!("{line}")
        };
        let scale = scale.parse().unwrap();
        let (width, height) = (width.parse().unwrap(), height.parse().unwrap());
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let probe = probe(&bytes, &Limits::default()).unwrap();
        let region = Region::whole(width, height);
        decoder
            .fill_scaled(&bytes, &probe, scale, region, None, jpeg())
            .unwrap();
        let whole = decoder.canvas.cut(&region);
        assert_eq!(format!("{:08x}", crc32(&whole.data)), crc, "{line}");
        let points = build_seek_points(&bytes);
        for region in regions(width, height, 20) {
            for points in [None, points.as_deref()] {
                decoder
                    .fill_scaled(&bytes, &probe, scale, region, points, jpeg())
                    .unwrap();
                let got = decoder.canvas.cut(&region);
                assert!(got.data == cut(&whole, &region), "{line}: {region:?}");
            }
            let job = DecodeJob {
                bytes: &bytes,
                probe: &probe,
                scale,
                region,
                limits: &Limits::default(),
                seek_points: None,
            };
            let mut canvas = Canvas::default();
            let outcome = baseline(&job, &mut scratch, &mut canvas).unwrap();
            own += usize::from(outcome == Outcome::Done);
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
    let mut scratch = Scratch::default();
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
            let probe = probe(&bytes, &Limits::default()).unwrap();
            for scale in [2, 4, 8] {
                let region = Region::whole(
                    (width as u32).div_ceil(scale),
                    (height as u32).div_ceil(scale),
                );
                let job = DecodeJob {
                    bytes: &bytes,
                    probe: &probe,
                    scale,
                    region,
                    limits: &Limits::default(),
                    seek_points: None,
                };
                let mut canvases = [Canvas::default(), Canvas::default()];
                let [reference, own] = &mut canvases;
                let outcome = general(&job, &mut scratch, reference).unwrap();
                assert_eq!(outcome, Outcome::Done);
                if baseline(&job, &mut scratch, own).unwrap() == Outcome::Done {
                    assert!(
                        own.cut(&region) == reference.cut(&region),
                        "{width}x{height} {sampling:?} 1/{scale}"
                    );
                }
            }
        }
    }
}

#[test]
fn oriented_fast_images_equal_their_jpeg() {
    let limits = Limits::default();
    let image = RgbImage {
        width: 211,
        height: 97,
        data: picture(211, 97),
    };
    let plain = crate::encode_jpeg(&image, 85, false).unwrap();
    for tag in 2..=8 {
        let mut jpeg = plain.clone();
        crate::set_orientation(&mut jpeg, tag);
        let mut encoder = crate::FastEncoder::default();
        let fast = encoder.encode(&jpeg, crate::FastCoding::Coded, &limits);
        let fast = fast.unwrap();
        let probe = probe(&fast, &limits).unwrap();
        assert_eq!(crate::orientation(&fast, &probe), Some(tag));
        let mut options = DecodeOptions::new(limits);
        options.exif = true;
        options.scaled = true;
        let mut decoder = Decoder::with_options(options);
        assert_eq!(decoder.decode(&jpeg), decoder.decode(&fast));
        let transform = crate::Transform::Eval(crate::EvalTransform::new(32, 24));
        let output = crate::Output::default();
        let [of_jpeg, of_fast] = [&jpeg, &fast].map(|bytes| {
            let mut out = vec![0; transform.output_values()];
            let seed = crate::SampleSeed::default();
            transform
                .apply(&mut decoder, bytes, seed, &output, &mut out)
                .unwrap();
            out
        });
        assert_eq!(of_jpeg, of_fast);
    }
}
