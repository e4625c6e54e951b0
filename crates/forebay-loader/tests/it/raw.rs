//! Encoded images: a batch is the concatenation of its records' images.

use crate::dataset;

use dataset::{Recipe, formats, picture, split};
use forebay_batch::Batch;
use forebay_batch::{FLAG_FAILED, FLAG_PADDING};
use forebay_image::{Dtype, Layout, ResizeLike, TrainTransform, Transform, build_seek_points};
use forebay_loader::{Error, Loader, OnError, Options, Shuffle};

fn options(batch_size: u64) -> Options {
    let mut options = Options::new(batch_size, Transform::KeepEncoded);
    options.threads = 3;
    options.virtual_ranks = 4;
    options
}

/// Returns all batches of an epoch.
fn epoch(loader: &mut Loader) -> Vec<Batch> {
    let mut batches = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        batch.check().unwrap();
        batches.push(batch);
    }
    batches
}

fn size(i: u64) -> (u32, u32) {
    (8 + (i % 5) as u32 * 3, 8 + (i % 3) as u32 * 7)
}

#[test]
fn a_batch_is_the_images_of_its_records() {
    for (format, codec) in formats() {
        let recipe = Recipe {
            format,
            codec,
            seek_points: |_, image| build_seek_points(image),
            ..Recipe::default()
        };
        let (_directory, split) = split(&recipe);
        let mut options = options(16);
        options.drop_last = false;
        let mut raw = Loader::new(split.clone(), options.clone()).unwrap();
        options.transform = Transform::Train(TrainTransform::new(4));
        let mut decoded = Loader::new(split, options).unwrap();
        for _ in 0..2 {
            let batches = epoch(&mut raw);
            let others = epoch(&mut decoded);
            assert_eq!(batches.len(), 7);
            for (batch, other) in batches.iter().zip(&others) {
                // Samples and positions are those of the decoded batch.
                assert_eq!(batch.digest, other.digest);
                assert_eq!(batch.samples, other.samples);
                assert_eq!(batch.labels, other.labels);
                assert_eq!(batch.flags, other.flags);
                assert_eq!((batch.step, batch.position), (other.step, other.position));
                assert_eq!(batch.shape, [16, 0, 0, 0]);
                let encoded = batch.encoded.as_ref().unwrap();
                for (i, &sample) in batch.samples.iter().enumerate() {
                    assert_eq!(batch.image(i).unwrap(), picture(sample), "{sample}");
                    assert_eq!((encoded.widths[i], encoded.heights[i]), size(sample));
                }
            }
            let padding = batches[6].flags.iter().filter(|&&f| f == FLAG_PADDING);
            assert_eq!(padding.count(), 12);
            for mut last in [batches, others].map(|mut all| all.pop().unwrap()) {
                last.trim_padding();
                assert_eq!((last.len(), last.labels.len(), last.flags.len()), (4, 4, 4));
                let bytes = (0..4).map(|i| last.image(i).unwrap().len());
                assert_eq!(last.images().len(), bytes.sum::<usize>());
                assert!(last.image(4).is_none());
            }
        }
    }
}

#[test]
fn resuming_continues_at_a_position() {
    let (_directory, split) = split(&Recipe::default());
    let mut all = Loader::new(split.clone(), options(10)).unwrap();
    let all = epoch(&mut all);
    let mut moved = Loader::new(split, options(10)).unwrap();
    moved.next_batch().unwrap();
    moved.seek(0, 70).unwrap();
    for (batch, other) in epoch(&mut moved).iter().zip(&all[7..]) {
        assert_eq!(batch.payload[..], other.payload[..]);
        assert_eq!(batch.encoded, other.encoded);
    }
}

/// Record 7 is not an Example, the image of record 21 has a truncated header, and that of record 30 has an
/// unknown format.
fn damaged(i: u64) -> Option<Vec<u8>> {
    match i {
        7 => None,
        21 => Some(picture(i)[..20].to_vec()),
        30 => Some(b"another kind of picture".to_vec()),
        _ => Some(picture(i)),
    }
}

#[test]
fn damaged_samples_are_handled_by_policy() {
    let recipe = Recipe {
        image: damaged,
        ..Recipe::default()
    };
    let (_directory, split) = split(&recipe);
    let load = |on_error| {
        let mut options = options(10);
        options.shuffle = Shuffle::NONE;
        options.on_error = on_error;
        Loader::new(split.clone(), options).unwrap()
    };
    let mut loader = load(OnError::Raise);
    assert!(matches!(loader.next_batch(), Err(Error::Record { .. })));
    loader.seek(0, 20).unwrap();
    let error = loader.next_batch().unwrap_err();
    assert!(matches!(error, Error::Image { .. }), "{error}");

    let mut zero = load(OnError::Zero);
    let batches = epoch(&mut zero);
    assert_eq!(batches[0].image(7).unwrap(), b"");
    assert_eq!(batches[0].image(8).unwrap(), picture(8));
    assert_eq!(
        (batches[0].labels[7], batches[0].flags[7]),
        (-1, FLAG_FAILED)
    );
    assert_eq!(batches[2].image(1).unwrap(), b"");
    assert_eq!(batches[3].image(0).unwrap(), b"another kind of picture");
    assert_eq!(batches[3].flags[0], 0);
    assert_eq!(batches[3].encoded.as_ref().unwrap().widths[0], 0);
    assert!(zero.stats().failed >= 2);

    let batches = epoch(&mut load(OnError::Skip));
    assert_eq!(batches[0].image(7).unwrap(), picture(8));
    assert_eq!(
        (batches[0].samples[7], batches[0].flags[7]),
        (8, FLAG_FAILED)
    );
    let encoded = batches[0].encoded.as_ref().unwrap();
    assert_eq!((encoded.widths[7], encoded.heights[7]), size(8));
    assert_eq!(batches[2].image(1).unwrap(), picture(22));
}

#[test]
fn a_batch_without_a_good_sample_is_empty() {
    let recipe = Recipe {
        image: |_| None,
        ..Recipe::default()
    };
    for on_error in [OnError::Zero, OnError::Skip] {
        let (_directory, split) = split(&recipe);
        let mut options = options(10);
        options.on_error = on_error;
        let mut loader = Loader::new(split, options).unwrap();
        let batches = epoch(&mut loader);
        assert_eq!(batches.len(), 10);
        for batch in batches {
            assert!(batch.payload.is_empty());
            assert_eq!(batch.image(9), Some(&b""[..]));
        }
    }
}

#[test]
fn pixel_options_are_refused_for_encoded_images() {
    let (_directory, split) = split(&Recipe::default());
    let refused = |change: &dyn Fn(&mut Options)| {
        let mut options = options(10);
        change(&mut options);
        let error = Loader::new(split.clone(), options).unwrap_err().to_string();
        assert!(error.contains("KeepEncoded"), "{error}");
        error
    };
    let mixing = || forebay_image::BatchTransform::new(vec![(forebay_image::Mixing::Nothing, 1.0)]);
    assert!(refused(&|o| o.output.dtype = Dtype::Float16).contains("dtype is float16"));
    assert!(refused(&|o| o.output.layout = Layout::Nchw).contains("layout is nchw"));
    assert!(refused(&|o| o.batch_transform = mixing().ok()).contains("batch_transform"));
    assert!(
        refused(&|o| o.decode.resize_like = ResizeLike::OpenCv).contains("resize_like is opencv")
    );
    assert!(refused(&|o| o.decode.exif = true).contains("exif_orientation"));
    assert!(refused(&|o| o.decode.scaled = true).contains("dct_scaling"));
}

#[test]
fn batches_requested_by_a_peer_are_limited_in_size() {
    let (_directory, split) = split(&Recipe::default());
    let spec = options(10).to_schema();
    let open = |most: u64, spec| {
        let mut options = Options::from_request(spec, most)?;
        options.threads = 1;
        Loader::new(split.clone(), options)
    };
    // If batches are too large on average, the stream is refused when it opens; a single large batch
    // is refused when it is made.
    assert!(open(1 << 20, &spec).is_ok());
    let error = open(100, &spec).unwrap_err().to_string();
    assert!(error.contains("at most 100 bytes"), "{error}");
    let mut loader = open(1 << 20, &spec).unwrap();
    let sizes: Vec<u64> = epoch(&mut loader)
        .iter()
        .map(|batch| batch.payload.len() as u64)
        .collect();
    let largest = sizes.iter().max().copied().unwrap();
    let typical = loader.options().batch_bytes().unwrap() as u64;
    let mut just = open(largest.max(typical), &spec).unwrap();
    assert_eq!(epoch(&mut just).len(), sizes.len());
    let mut many = spec.clone();
    (many.batch_size, many.drop_last) = (Some(1 << 40), Some(false));
    let error = open(1 << 30, &many).unwrap_err().to_string();
    assert!(error.contains("batch_size"), "{error}");
}

#[test]
fn a_single_oversized_batch_is_refused_when_it_is_made() {
    let recipe = Recipe {
        image: |i| {
            let mut image = picture(i);
            if (40..50).contains(&i) {
                // Bytes after the end of an image count as a part of the image.
                image.resize(20_000, 0);
            }
            Some(image)
        },
        ..Recipe::default()
    };
    let (_directory, split) = split(&recipe);
    let mut options = options(10);
    options.shuffle = Shuffle::NONE;
    let mut loader = Loader::new(split.clone(), options.clone()).unwrap();
    assert_eq!(epoch(&mut loader)[4].payload.len(), 200_000);
    let options = Options::from_request(&options.to_schema(), 150_000).unwrap();
    let mut loader = Loader::new(split, options).unwrap();
    for _ in 0..4 {
        loader.next_batch().unwrap().unwrap();
    }
    let error = loader.next_batch().unwrap_err().to_string();
    assert!(error.contains("a batch of 200000 bytes"), "{error}");
    // The batches after it are available.
    loader.seek(0, 50).unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    assert_eq!(batch.image(0).unwrap(), picture(50));
}

#[test]
fn the_memory_of_a_batch_returns_to_its_pool() {
    let (_directory, split) = split(&Recipe::default());
    let pool = forebay_batch::BufferPool::new(1 << 20);
    let mut loader = Loader::resume(split, options(10), (0, 0), Some(pool.clone())).unwrap();
    let batches = epoch(&mut loader);
    drop(loader);
    let held: usize = batches.iter().map(|batch| batch.payload.len()).sum();
    assert!(pool.stats().used_bytes >= held);
    drop(batches);
    assert_eq!(pool.stats().used_bytes, 0);
}
