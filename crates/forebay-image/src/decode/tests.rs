//! Compares every decoder with the reference decoder of its format, region by region.

use super::*;
use crate::format::probe;
use forebay_jpeg::internals::Memory;
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

/// Decodes with the format's faster decoder, `None` if it declines, or with the one that never does.
fn with(
    faster: bool,
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
        seek_points: SeekPoints::None,
        declined: true,
    };
    let format = probe.format.imp();
    if faster {
        let (width, height) = (region.width as usize, region.height as usize);
        canvas.reset(width, height);
        let mut rows = Memory::new(&mut canvas.data[..width * height * 3], width);
        if !format.stream(&job, scratch, &mut rows).unwrap() {
            return None;
        }
    } else {
        format.decode(&job, scratch, &mut canvas).unwrap();
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
        let reference = with(false, &mut scratch, &bytes, None).unwrap();
        for region in regions(probe.width, probe.height, 12) {
            let expected = cut(&reference, &region);
            let got = decoder.decode_region(&bytes, &probe, region).unwrap();
            assert!(got.data == expected, "{} {region:?}", path.display());
            if probe.format == Format::Jpeg {
                let got = with(true, &mut scratch, &bytes, Some(region));
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
