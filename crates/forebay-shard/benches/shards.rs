//! Reading and writing shards: GB/s of payload, records/s.
//!
//! ```text
//! cargo bench -p forebay-shard --bench shards
//! ```
//!
//! Files are in the page cache, records have 110 KB (ImageNet's median), and both checksums of
//! every record are verified.

use std::fs::File;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use forebay_shard::{
    Codec, ExampleBuilder, RecordBlock, RecordMeta, Shard, ShardWriter, image_and_label, indexed,
    tfrecord,
};

const RECORD_BYTES: usize = 110_000;
const RECORDS: u64 = 1000;
const TOTAL: u64 = RECORDS * RECORD_BYTES as u64;

fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(RECORD_BYTES + 8);
    while out.len() < RECORD_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(RECORD_BYTES);
    out
}

fn tfrecords(path: &Path) -> ShardWriter<File> {
    tfrecord::WriterBuilder::new().from_writer(File::create(path).unwrap(), path)
}

fn blocks(path: &Path, codec: Codec) -> ShardWriter<File> {
    let mut builder = indexed::WriterBuilder::new();
    builder
        .compression(codec)
        .from_writer(File::create(path).unwrap(), path)
        .unwrap()
}

fn fill(mut writer: ShardWriter<File>, records: &[Vec<u8>]) {
    for (i, record) in (0..).zip(records.iter().cycle().take(RECORDS as usize)) {
        let key = format!("n01440764/n01440764_{i}.JPEG");
        writer
            .append(record, &RecordMeta::new(i % 1000, key.as_bytes()))
            .unwrap();
    }
    writer.finish().unwrap();
}

fn group<'a>(
    criterion: &'a mut Criterion,
    name: &str,
) -> BenchmarkGroup<'a, criterion::measurement::WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10).warm_up_time(Duration::from_secs(1));
    group.measurement_time(Duration::from_secs(4));
    group
}

fn sequential(criterion: &mut Criterion, path: &Path, shards: &[(&str, PathBuf)]) {
    let mut group = group(criterion, "sequential");
    group.throughput(Throughput::Bytes(TOTAL));
    group.bench_function("tfrecord reader", |bencher| {
        bencher.iter(|| {
            let mut reader = tfrecord::Reader::from_path(path).unwrap();
            let mut bytes = 0;
            while let Some(record) = reader.next_record().unwrap() {
                bytes += record.bytes.len();
            }
            assert_eq!(bytes as u64, TOTAL);
        });
    });
    for (name, path) in shards {
        let shard = Shard::open(path).unwrap();
        group.bench_function(format!("scan {name}"), |bencher| {
            bencher.iter(|| {
                let mut scan = shard.scan(0..shard.len());
                let mut bytes = 0;
                while let Some(record) = scan.next_record().unwrap() {
                    bytes += record.bytes.len();
                }
                assert_eq!(bytes as u64, TOTAL);
            });
        });
    }
    group.finish();
}

fn random(criterion: &mut Criterion, shards: &[(&str, PathBuf)]) {
    let mut group = group(criterion, "random record");
    group.throughput(Throughput::Bytes(RECORD_BYTES as u64));
    for (name, path) in shards {
        let shard = Shard::open(path).unwrap();
        let (mut out, mut at) = (Vec::new(), 0);
        group.bench_function(*name, |bencher| {
            bencher.iter(|| {
                at = (at + 619) % RECORDS;
                shard.read(at, &mut out).unwrap();
                black_box(&out);
            });
        });
    }
    group.finish();
}

fn write(criterion: &mut Criterion, directory: &Path, records: &[Vec<u8>]) {
    let mut group = group(criterion, "write");
    group.throughput(Throughput::Bytes(TOTAL));
    let path = directory.join("written");
    group.bench_function("tfrecord", |b| b.iter(|| fill(tfrecords(&path), records)));
    group.bench_function("indexed", |b| {
        b.iter(|| fill(blocks(&path, Codec::NONE), records))
    });
    group.finish();
}

/// Uses tiny records, to measure the cost per record.
fn tiny(criterion: &mut Criterion, directory: &Path) {
    const COUNT: u64 = 100_000;
    let path = directory.join("tiny.fbs");
    let mut writer = blocks(&path, Codec::NONE);
    for i in 0..COUNT {
        writer
            .append(&[7; 100], &RecordMeta::new(i as i64 % 1000, b"a/key"))
            .unwrap();
    }
    writer.finish().unwrap();
    let shard = Shard::open(&path).unwrap();
    let mut group = group(criterion, "tiny records");
    group.throughput(Throughput::Elements(COUNT));
    group.bench_function("open", |b| b.iter(|| Shard::open(&path).unwrap()));
    group.bench_function("scan", |b| {
        b.iter(|| {
            let mut scan = shard.scan(0..COUNT);
            while let Some(record) = scan.next_record().unwrap() {
                black_box(record.bytes);
            }
        });
    });
    let mut block = RecordBlock::default();
    group.bench_function("read_range", |b| {
        b.iter(|| shard.read_range(0..COUNT, &mut block))
    });
    group.finish();
}

fn example(criterion: &mut Criterion, image: &[u8]) {
    let mut builder = ExampleBuilder::new();
    builder
        .add_bytes("image/encoded", image)
        .add_int64("image/class/label", 7)
        .add_int64("image/height", 500)
        .add_int64("image/width", 375)
        .add_bytes("image/filename", b"n01440764_10026.JPEG")
        .add_bytes("image/class/synset", b"n01440764");
    let record = builder.to_vec();
    let mut group = group(criterion, "example");
    group.bench_function("image and label", |b| {
        b.iter(|| image_and_label(black_box(&record)).unwrap().1);
    });
    group.finish();
}

fn benches(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let records: Vec<Vec<u8>> = (0..50).map(noise).collect();
    let path = directory.path().join("train-00000-of-00001");
    fill(tfrecords(&path), &records);
    let raw = directory.path().join("raw.fbs");
    fill(blocks(&raw, Codec::NONE), &records);
    let shards = [("tfrecord", path.clone()), ("indexed", raw)];
    sequential(criterion, &path, &shards);
    random(criterion, &shards);
    write(criterion, directory.path(), &records);
    tiny(criterion, directory.path());
    example(criterion, &records[0]);
}

criterion_group!(shards, benches);
criterion_main!(shards);
