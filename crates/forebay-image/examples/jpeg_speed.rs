//! Speed and correctness of JPEG decoding on real files, compared with libjpeg-turbo-rs, on one
//! thread.
//!
//! `cargo run --release -p forebay-image --example jpeg_speed -- DIRECTORY [ROUNDS [WAY]]`
//!
//! Reads all JPEGs under the directory into memory, and checks that whole images, regions, and
//! regions with seek points equal those of libjpeg-turbo-rs. Then measures every variant on an
//! image before the next image, and prints the mean over images of the fastest round. On shared
//! machines compare ratios, and pin the process to a core (`taskset -c 1`). With a third argument,
//! runs only the variants whose names contain it.

use forebay_image::{
    Decoder, Encoded, FastCoding, FastEncoder, Limits, Output, Probe, Region, SampleSeed,
    SeekDensity, SeekPointBuilder, TrainTransform, Transform, check_structure, probe,
};
use forebay_jpeg::{ImagePart, JpegDecoder};
use libjpeg_turbo_rs::PixelFormat;
use std::path::Path;
use std::time::Instant;

struct Image {
    bytes: Vec<u8>,
    probe: Probe,
    crop: Region,
    points: Option<Vec<u8>>,
    fine: Option<Vec<u8>>,
    /// The fast images, coded and raw; the JPEG itself if it cannot be encoded as one.
    fast: [Vec<u8>; 2],
    seed: SampleSeed,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory of JPEGs");
    let rounds: usize = arguments.next().map_or(5, |n| n.parse().expect("a number"));
    let only = arguments.next().unwrap_or_default();
    let images = read(Path::new(&directory));
    let bytes: usize = images.iter().map(|image| image.bytes.len()).sum();
    let points: Vec<usize> = images
        .iter()
        .filter_map(|image| Some(image.points.as_ref()?.len()))
        .collect();
    println!(
        "{} images, {bytes} bytes; {} with seek points, {} bytes",
        images.len(),
        points.len(),
        points.iter().sum::<usize>()
    );
    check(&images);

    let mut ours = JpegDecoder::new(Limits::default());
    let mut outs = [const { Vec::new() }; 8];
    let mut turbo = Vec::new();
    let mut builder = SeekPointBuilder::default();
    let mut checker = Decoder::new(Limits::default());
    let cell = std::cell::RefCell::new((&mut ours, &mut outs));
    let mut encoder = FastEncoder::default();
    let transform = Transform::Train(TrainTransform::new(224));
    let mut batch = vec![0; transform.output_values()];
    let mut sampler = Decoder::new(Limits::default());
    let sample =
        std::cell::RefCell::new(|bytes: &[u8], points: Option<&[u8]>, seed: SampleSeed| {
            let encoded = Encoded {
                bytes,
                seek_points: points.into(),
            };
            transform
                .apply(&mut sampler, encoded, seed, &Output::default(), &mut batch)
                .expect("decoded before");
        });
    let encoding = std::cell::RefCell::new(|image: &Image, coding| {
        std::hint::black_box(encoder.encode(&image.bytes, coding, &Limits::default()));
    });
    let fast = |way: usize, image: &Image, area: Region, bytes: &[u8]| {
        let (decoder, outs) = &mut *cell.borrow_mut();
        decoder
            .decode_part_into(bytes, &part(area, None), &mut outs[way])
            .expect("decoded before");
        std::hint::black_box(image);
    };
    type Way<'a> = (&'a str, Box<dyn FnMut(&Image) + 'a>);
    let run = |way: usize, image: &Image, area: Region, points: Option<&[u8]>| {
        let (decoder, outs) = &mut *cell.borrow_mut();
        decoder
            .decode_part_into(&image.bytes, &part(area, points), &mut outs[way])
            .expect("decoded before");
    };
    let mut ways: Vec<Way<'_>> = vec![
        (
            "whole, libjpeg-turbo-rs",
            Box::new(|image| decode_turbo(image, &mut turbo)),
        ),
        ("whole", Box::new(|image| run(0, image, whole(image), None))),
        (
            "last pixel (entropy decoding alone)",
            Box::new(|image| run(1, image, last_pixel(image), None)),
        ),
        (
            "whole, seek points",
            Box::new(|image| run(4, image, whole(image), image.points.as_deref())),
        ),
        ("crop", Box::new(|image| run(2, image, image.crop, None))),
        (
            "crop, seek points",
            Box::new(|image| run(3, image, image.crop, image.points.as_deref())),
        ),
        (
            "crop, fine seek points",
            Box::new(|image| run(5, image, image.crop, image.fine.as_deref())),
        ),
        (
            "crop, fast",
            Box::new(|image| fast(6, image, image.crop, &image.fast[0])),
        ),
        (
            "crop, fast-raw",
            Box::new(|image| fast(7, image, image.crop, &image.fast[1])),
        ),
        (
            "sample, seek points",
            Box::new(|image| {
                (sample.borrow_mut())(&image.bytes, image.points.as_deref(), image.seed);
            }),
        ),
        (
            "sample, fast",
            Box::new(|image| (sample.borrow_mut())(&image.fast[0], None, image.seed)),
        ),
        (
            "sample, fast-raw",
            Box::new(|image| (sample.borrow_mut())(&image.fast[1], None, image.seed)),
        ),
        (
            "making a fast image",
            Box::new(|image| (encoding.borrow_mut())(image, FastCoding::Coded)),
        ),
        (
            "making a raw fast image",
            Box::new(|image| (encoding.borrow_mut())(image, FastCoding::Raw)),
        ),
        (
            "making seek points",
            Box::new(|image| {
                std::hint::black_box(builder.build(&image.bytes, SeekDensity::Auto));
            }),
        ),
        (
            "checking the structure",
            Box::new(|image| {
                check_structure(&image.bytes, &Limits::default()).expect("decoded before");
            }),
        ),
        (
            "checking the codes of any kind",
            Box::new(|image| checker.check_codes(&image.bytes).expect("decoded before")),
        ),
    ];
    ways.retain(|(name, _)| name.contains(&only));
    let mut fastest = vec![vec![f64::INFINITY; images.len()]; ways.len()];
    for _ in 0..rounds {
        for (i, image) in images.iter().enumerate() {
            for ((_, way), fastest) in ways.iter_mut().zip(&mut fastest) {
                let start = Instant::now();
                way(image);
                fastest[i] = fastest[i].min(start.elapsed().as_secs_f64());
            }
        }
    }
    let means: Vec<f64> = fastest
        .iter()
        .map(|times| times.iter().sum::<f64>() / images.len() as f64)
        .collect();
    for ((name, _), mean) in ways.iter().zip(&means) {
        println!(
            "{name:36} {:7.0} us {:6.0} images/s {:5.2}x",
            mean * 1e6,
            1.0 / mean,
            means[0] / mean
        );
    }
}

fn whole(image: &Image) -> Region {
    Region::whole(image.probe.width, image.probe.height)
}

fn last_pixel(image: &Image) -> Region {
    Region {
        x: image.probe.width - 1,
        y: image.probe.height - 1,
        width: 1,
        height: 1,
    }
}

fn decode_turbo(image: &Image, out: &mut Vec<u8>) {
    let mut decoder = libjpeg_turbo_rs::Decoder::new(&image.bytes).expect("a JPEG");
    decoder.set_output_format(PixelFormat::Rgb);
    let size = decoder.output_buffer_size().expect("a size");
    out.resize(size, 0);
    decoder.decode_image_into(out).expect("a JPEG");
}

fn read(directory: &Path) -> Vec<Image> {
    let mut builder = SeekPointBuilder::default();
    let mut encoder = FastEncoder::default();
    let mut images = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in std::fs::read_dir(path).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).expect("a file");
            if !bytes.starts_with(&[0xff, 0xd8]) {
                continue;
            }
            let Ok(probe) = probe(&bytes, &Limits::default()) else {
                continue;
            };
            if probe.channels == 4 {
                continue;
            }
            let seed = SampleSeed {
                seed: 1,
                epoch: 0,
                sample: images.len() as u64,
                occurrence: 0,
            };
            let (crop, _) = TrainTransform::new(224).crop(probe.width, probe.height, seed);
            let fast = [FastCoding::Coded, FastCoding::Raw].map(|coding| {
                let fast = encoder.encode(&bytes, coding, &Limits::default());
                fast.unwrap_or_else(|| bytes.clone())
            });
            images.push(Image {
                fast,
                seed,
                points: builder.build(&bytes, SeekDensity::Rows),
                fine: builder.build(&bytes, SeekDensity::Fine),
                bytes,
                probe,
                crop,
            });
        }
    }
    images.sort_by(|a, b| a.bytes.cmp(&b.bytes));
    images
}

fn part(region: Region, seek_points: Option<&[u8]>) -> ImagePart<'_> {
    ImagePart {
        region: Some(region),
        seek_points: seek_points.into(),
        ..ImagePart::default()
    }
}

fn check(images: &[Image]) {
    let mut decoder = JpegDecoder::new(Limits::default());
    let (mut expected, mut out) = (Vec::new(), Vec::new());
    let mut different = 0;
    for image in images {
        decode_turbo(image, &mut expected);
        let regions = [
            (whole(image), None),
            (image.crop, None),
            (image.crop, image.points.as_deref()),
            (image.crop, image.fine.as_deref()),
            (whole(image), image.points.as_deref()),
            (last_pixel(image), None),
        ];
        let mut equal = regions.into_iter().all(|(region, points)| {
            decoder
                .decode_part_into(&image.bytes, &part(region, points), &mut out)
                .is_ok()
                && out == cut(&expected, image.probe.width, region)
        });
        for fast in &image.fast {
            equal &= decoder
                .decode_part_into(fast, &part(image.crop, None), &mut out)
                .is_ok()
                && out == cut(&expected, image.probe.width, image.crop);
        }
        different += usize::from(!equal);
    }
    println!("{different} of {} images differ", images.len());
}

fn cut(pixels: &[u8], width: u32, region: Region) -> Vec<u8> {
    let row = region.width as usize * 3;
    (region.y..region.y + region.height)
        .flat_map(|y| {
            let at = (y as usize * width as usize + region.x as usize) * 3;
            &pixels[at..at + row]
        })
        .copied()
        .collect()
}
