//! Time from opening a dataset with a million tiny records to the first batch.
//!
//! `FOREBAY_BENCH_RECORDS` sets another number of records.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use forebay_image::{EvalTransform, Transform};
use forebay_loader::{Loader, Options, Shuffle};
use forebay_shard::ShardFormat;

#[path = "../tests/it/dataset/mod.rs"]
mod dataset;

fn first_batch(c: &mut Criterion) {
    let records = std::env::var("FOREBAY_BENCH_RECORDS").map_or(1_000_000, |records| {
        records.parse().expect("FOREBAY_BENCH_RECORDS is a number")
    });
    let mut group = c.benchmark_group("first batch");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(5));
    for format in [ShardFormat::Indexed, ShardFormat::TfRecord] {
        let directory = tempfile::tempdir().expect("a directory for the dataset");
        dataset::write(
            directory.path(),
            &dataset::Recipe {
                records,
                shards: 8,
                format,
                block_bytes: 1 << 20,
                image: |_| Some(forebay_image::encode_png(&[90; 4 * 4 * 3], 4, 4)),
                ..dataset::Recipe::default()
            },
        );
        for shuffle in [Shuffle::default(), Shuffle::FULL] {
            let mut options = Options::new(256, Transform::Eval(EvalTransform::new(8, 8)));
            options.shuffle = shuffle;
            group.bench_function(
                format!("{format}, {records} records, {}", shuffle.name()),
                |b| {
                    b.iter(|| {
                        let split = dataset::open(directory.path());
                        let mut loader = Loader::new(split, options.clone()).expect("a loader");
                        loader
                            .next_batch()
                            .expect("a batch")
                            .expect("an epoch has batches")
                    });
                },
            );
        }
    }
    group.finish();
}

criterion_group!(benches, first_batch);
criterion_main!(benches);
