//! `cargo bench -p forebay-jpeg`: whole images, crops and smaller scales, beside `zune-jpeg` and
//! `libjpeg-turbo-rs`, over the JPEGs in the repository or in the directory
//! `FOREBAY_BENCH_IMAGES`. One iteration is one image; images alternate.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_jpeg::{
    DecodeScale, FastCoding, FastEncoder, ImagePart, JpegDecoder, Limits, Region, SeekDensity,
    SeekPointBuilder, read_header,
};
use libjpeg_turbo_rs::PixelFormat;
use std::path::{Path, PathBuf};
use zune_jpeg::zune_core::bytestream::ZCursor;

/// A JPEG in all forms in which it can be stored.
struct Image {
    jpeg: Vec<u8>,
    seek_points: Option<Vec<u8>>,
    fast: Vec<u8>,
    /// The middle half of the image.
    crop: Region,
}

fn load() -> Vec<Image> {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let mut folders = vec![std::env::var_os("FOREBAY_BENCH_IMAGES").map_or(shipped, PathBuf::from)];
    let (mut builder, mut encoder) = (SeekPointBuilder::default(), FastEncoder::default());
    let mut images = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let jpeg = std::fs::read(&path).expect("a readable file");
            let fast = encoder.encode(&jpeg, FastCoding::Coded, &Limits::default());
            if let (Ok(header), Some(fast)) = (read_header(&jpeg), fast) {
                images.push(Image {
                    seek_points: builder.build(&jpeg, SeekDensity::Auto),
                    jpeg,
                    fast,
                    crop: Region {
                        x: header.width / 4,
                        y: header.height / 4,
                        width: header.width.div_ceil(2),
                        height: header.height.div_ceil(2),
                    },
                });
            }
        }
    }
    images
}

fn bench(c: &mut Criterion) {
    let images = load();
    let mut group = c.benchmark_group("jpeg");
    group.throughput(Throughput::Elements(1));
    let mut measure = |name: &str, decode: &mut dyn FnMut(&Image)| {
        let mut all = images.iter().cycle();
        group.bench_function(name, |b| {
            b.iter(|| all.next().map(&mut *decode));
        });
    };
    let (mut decoder, mut out) = (JpegDecoder::default(), Vec::new());
    let mut ours = |bytes: &[u8], part: &ImagePart<'_>| {
        let decoded = decoder.decode_part_into(bytes, part, &mut out);
        decoded.expect("a JPEG");
    };
    let whole = ImagePart::default();
    let crop = |image: &Image| ImagePart {
        region: Some(image.crop),
        ..whole
    };
    measure("whole", &mut |image| ours(&image.jpeg, &whole));
    measure("whole-fast", &mut |image| ours(&image.fast, &whole));
    measure("whole-zune-jpeg", &mut |image| {
        let mut decoder = zune_jpeg::JpegDecoder::new(ZCursor::new(&image.jpeg));
        std::hint::black_box(decoder.decode().expect("a JPEG"));
    });
    let mut turbo = Vec::new();
    measure("whole-libjpeg-turbo-rs", &mut |image| {
        let mut decoder = libjpeg_turbo_rs::Decoder::new(&image.jpeg).expect("a JPEG");
        decoder.set_output_format(PixelFormat::Rgb);
        turbo.resize(decoder.output_buffer_size().expect("a size"), 0);
        decoder.decode_image_into(&mut turbo).expect("a JPEG");
    });
    measure("crop", &mut |image| ours(&image.jpeg, &crop(image)));
    measure("crop-seek-points", &mut |image| {
        let seek_points = image.seek_points.as_deref().into();
        let crop = crop(image);
        ours(
            &image.jpeg,
            &ImagePart {
                seek_points,
                ..crop
            },
        );
    });
    measure("crop-fast", &mut |image| ours(&image.fast, &crop(image)));
    let half = ImagePart {
        scale: DecodeScale::Half,
        ..whole
    };
    measure("half", &mut |image| ours(&image.jpeg, &half));
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
