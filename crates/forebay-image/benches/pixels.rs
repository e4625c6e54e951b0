//! `cargo bench -p forebay-image`: probe, decode, region, resize and whole transforms, over the
//! images in the repository and, if `FOREBAY_BENCH_IMAGES` is set, those in that directory. One
//! iteration is one image; images alternate.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_image::ops::{RandAugment, RandomErasing, RandomHorizontalFlip, RandomResizedCrop};
use forebay_image::{
    BatchTransform, Compose, Decoder, Dtype, Encoded, EvalTransform, FastCoding, FastEncoder,
    Layout, Limits, Mixing, Normalize, Op, Output, RgbImage, SampleSeed, SeekDensity,
    SeekPointBuilder, TrainTransform, Transform, probe, resize, standard_image,
};
use std::borrow::Cow;
use std::hint::black_box;
use std::path::{Path, PathBuf};

fn load(folder: &Path) -> Vec<Vec<u8>> {
    let mut folders = vec![folder.to_owned()];
    let mut paths = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path)
            } else {
                paths.push(path)
            }
        }
    }
    paths.sort();
    let read = |path: &PathBuf| std::fs::read(path).expect("a readable file");
    paths
        .iter()
        .map(read)
        .filter(|bytes| probe(bytes, &Limits::default()).is_ok())
        .collect()
}

fn bench(c: &mut Criterion) {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    bench_folder(c, "shipped", &shipped);
    if let Some(folder) = std::env::var_os("FOREBAY_BENCH_IMAGES") {
        bench_folder(c, "given", Path::new(&folder));
    }
}

fn bench_folder(c: &mut Criterion, name: &str, folder: &Path) {
    let images = load(folder);
    let limits = Limits::default();
    let crop = TrainTransform::new(224);
    let seed = |sample: usize| SampleSeed {
        seed: 1,
        epoch: 0,
        sample: sample as u64,
        occurrence: 0,
    };
    let mut decoder = Decoder::new(limits);
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(1));
    let mut i = 0;
    let mut next = move |count: usize| {
        i = (i + 1) % count;
        i
    };

    group.bench_function("probe", |b| {
        b.iter(|| probe(black_box(&images[next(images.len())]), &limits))
    });
    group.bench_function("decode", |b| {
        b.iter(|| decoder.decode(&images[next(images.len())]))
    });
    group.bench_function("region", |b| {
        b.iter(|| {
            let i = next(images.len());
            let header = probe(&images[i], &limits).expect("probed before");
            let region = crop.crop(header.width, header.height, seed(i)).0;
            decoder.decode_region(&images[i], &header, region)
        })
    });
    let crops: Vec<RgbImage> = (images.iter().enumerate())
        .filter_map(|(i, bytes)| {
            let header = probe(bytes, &limits).ok()?;
            let region = crop.crop(header.width, header.height, seed(i)).0;
            decoder.decode_region(bytes, &header, region).ok()
        })
        .collect();
    group.bench_function("resize", |b| {
        b.iter(|| resize(&crops[next(crops.len())], 224, 224))
    });
    let augment = Compose::new(vec![
        Op::RandomResizedCrop(RandomResizedCrop {
            size: (224, 224),
            scale: crop.scale,
            ratio: crop.ratio,
        }),
        Op::RandomHorizontalFlip(RandomHorizontalFlip { p: 0.5 }),
        Op::RandAugment(RandAugment {
            num_ops: 2,
            magnitude: 9,
            num_magnitude_bins: 31,
            ..Default::default()
        }),
        Op::RandomErasing(RandomErasing::new()),
    ])
    .expect("an order that works");
    let (bytes, half) = (
        Output::default(),
        Output {
            layout: Layout::Nchw,
            dtype: Dtype::Float16,
            normalize: Some(Normalize {
                mean: [0.485, 0.456, 0.406],
                std: [0.229, 0.224, 0.225],
            }),
        },
    );
    let transforms = [
        ("train-224", Transform::Train(crop), bytes),
        ("train-224-float16", Transform::Train(crop), half),
        (
            "eval-224",
            Transform::Eval(EvalTransform::new(256, 224)),
            bytes,
        ),
        ("randaugment-224", Transform::List(augment), bytes),
    ];
    for (name, transform, output) in transforms {
        let mut out = vec![0; transform.output_values() * output.dtype.bytes()];
        group.bench_function(name, |b| {
            b.iter(|| {
                let i = next(images.len());
                transform.apply(&mut decoder, &images[i], seed(i), &output, &mut out)
            })
        });
    }
    for dtype in [Dtype::Uint8, Dtype::Float32, Dtype::Float16] {
        let output = Output {
            dtype,
            ..Output::default()
        };
        let mixup = BatchTransform::new(vec![(Mixing::Mixup { alpha: 1.0 }, 1.0)]);
        let mix = mixup.expect("as it should be").draw(1, 0, 0, (224, 224));
        let mut batch = vec![0; 16 * 224 * 224 * 3 * dtype.bytes()];
        let members: Vec<usize> = (0..16).collect();
        group.bench_function(format!("mixup-16-of-224-{}", dtype.name()), |b| {
            b.iter(|| mix.apply(&output, &members, &mut batch))
        });
    }
    group.finish();
    bench_stored(c, name, &images);
}

/// An image as records store it.
struct Stored {
    bytes: Vec<u8>,
    seek_points: Option<Vec<u8>>,
}

/// Measures crops of the same JPEGs in each form in which records store them, and the encoding of the forms.
fn bench_stored(c: &mut Criterion, name: &str, images: &[Vec<u8>]) {
    let limits = Limits::default();
    let (mut encoder, mut builder) = (FastEncoder::default(), SeekPointBuilder::default());
    // The images that can be stored in all forms.
    let mut forms: [Vec<Stored>; 3] = Default::default();
    for jpeg in images {
        let coded = encoder.encode(jpeg, FastCoding::Coded, &limits);
        let raw = encoder.encode(jpeg, FastCoding::Raw, &limits);
        if let (Some(coded), Some(raw)) = (coded, raw) {
            let points = builder.build(jpeg, SeekDensity::Auto);
            for (form, (bytes, seek_points)) in
                (forms.iter_mut()).zip([(jpeg.clone(), points), (coded, None), (raw, None)])
            {
                form.push(Stored { bytes, seek_points });
            }
        }
    }
    let count = forms[0].len();
    if count == 0 {
        return;
    }
    let total =
        |stored: &Stored| stored.bytes.len() + stored.seek_points.as_ref().map_or(0, Vec::len);
    let bytes = forms
        .each_ref()
        .map(|form| form.iter().map(total).sum::<usize>());
    println!(
        "{name}: {count} of {} images; bytes {bytes:?}",
        images.len()
    );
    let mut group = c.benchmark_group(format!("{name}-stored"));
    group.throughput(Throughput::Elements(1));
    let output = Output::default();
    let transforms = [
        ("train-224", Transform::Train(TrainTransform::new(224))),
        ("eval-224", Transform::Eval(EvalTransform::new(256, 224))),
    ];
    let seed = |sample: u64| SampleSeed {
        seed: 1,
        sample,
        ..SampleSeed::default()
    };
    let mut decoder = Decoder::new(limits);
    for (name, transform) in &transforms {
        let mut out = vec![0; transform.output_values()];
        for (form, stored) in ["jpeg", "fast", "fast-raw"].iter().zip(&forms) {
            let mut i = 0;
            group.bench_function(format!("{name}-{form}"), |b| {
                b.iter(|| {
                    i += 1;
                    let image = &stored[i % count];
                    let encoded = Encoded {
                        bytes: &image.bytes,
                        seek_points: image.seek_points.as_deref().into(),
                    };
                    transform.apply(&mut decoder, encoded, seed(i as u64), &output, &mut out)
                })
            });
        }
    }
    let [jpegs, coded, raw] = &forms;
    for (name, coding) in [("fast", FastCoding::Coded), ("fast-raw", FastCoding::Raw)] {
        let mut i = 0;
        group.bench_function(format!("encode-{name}"), |b| {
            b.iter(|| {
                i += 1;
                encoder.encode(&jpegs[i % count].bytes, coding, &limits)
            })
        });
    }
    for (name, stored) in [("fast", coded), ("fast-raw", raw)] {
        let mut i = 0;
        group.bench_function(format!("restore-{name}"), |b| {
            b.iter(|| {
                i += 1;
                standard_image(&stored[i % count].bytes, &limits).map(Cow::into_owned)
            })
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
