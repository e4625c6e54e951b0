//! Cost of the cache when every read hits, compared with plain reads of the same bytes from local files.
//!
//! ```text
//! cargo bench -p forebay-cache --bench cache
//! ```
//!
//! The files are in the page cache, so this measures checksums and bookkeeping, not the disk. A loader reads ImageNet in ranges
//! of about 3.5 MB; 110 KB is the size of a single record.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_cache::{Cache, CacheOptions};

const LEN: u64 = 256 << 20;
const SIZES: [(&str, usize); 2] = [("3.5 MB", 3_500_000), ("110 KB", 110_000)];

fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = Vec::with_capacity(LEN as usize);
    while out.len() < LEN as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out
}

/// Pseudo-random offsets in the object, the same ones in each run.
fn places(size: usize) -> impl FnMut() -> u64 {
    let mut state = 1_u64;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) % (LEN - size as u64)
    }
}

fn benches(criterion: &mut Criterion) {
    let bytes = noise();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plain");
    std::fs::write(&path, &bytes).unwrap();
    let plain = File::open(&path).unwrap();

    let mut caches = Vec::new();
    for block_bytes in [1 << 20, 2 << 20, 4 << 20] {
        let options = CacheOptions {
            dir: Some(dir.path().join(format!("{block_bytes}"))),
            disk_bytes: Some(2 * LEN),
            block_bytes,
            ..CacheOptions::default()
        };
        caches.push((
            format!("directory, {} MiB blocks", block_bytes >> 20),
            options,
        ));
    }
    let memory = CacheOptions {
        memory_bytes: 2 * LEN,
        ..CacheOptions::default()
    };
    caches.push(("memory".to_owned(), memory));
    let caches: Vec<_> = caches
        .into_iter()
        .map(|(name, options)| {
            let cache = Cache::open(&options).unwrap();
            let object = cache.object("s3://bucket/set", "train-00000", None, LEN);
            let fetch = |range: std::ops::Range<u64>, out: &mut [u8]| {
                out.copy_from_slice(&bytes[range.start as usize..range.end as usize]);
                Ok(())
            };
            cache.fill(&object, 0..LEN, &fetch).unwrap();
            (name, cache, object)
        })
        .collect();

    for (name, size) in SIZES {
        let mut group = criterion.benchmark_group(format!("cache hits of {name}"));
        group.sample_size(20).warm_up_time(Duration::from_secs(1));
        group.measurement_time(Duration::from_secs(3));
        group.throughput(Throughput::Bytes(size as u64));
        let mut buf = vec![0; size];
        let mut place = places(size);
        group.bench_function("plain file", |bencher| {
            bencher.iter(|| {
                plain.read_exact_at(&mut buf, place()).unwrap();
                black_box(&buf);
            });
        });
        let mut place = places(size);
        group.bench_function("plain file, crc32c", |bencher| {
            bencher.iter(|| {
                plain.read_exact_at(&mut buf, place()).unwrap();
                black_box(crc32c::crc32c(&buf));
            });
        });
        for (name, cache, object) in &caches {
            let mut place = places(size);
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    cache
                        .read_at(object, place(), &mut buf, &|_, _| {
                            unreachable!("all of it is there")
                        })
                        .unwrap();
                    black_box(&buf);
                });
            });
        }
        group.finish();
    }
}

criterion_group!(cache, benches);
criterion_main!(cache);
