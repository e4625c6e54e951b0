//! The memory of large streams returns to the system when they end.

#[path = "it/support/mod.rs"]
mod support;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use forebay_client::{Client, StreamOptions, Transport};
use forebay_image::{EvalTransform, Transform};
use forebay_loader::Options;
use forebay_pack::{Cancel, DatasetFormat, PackOptions, pack};
use forebay_server::Server;
use forebay_shard::Dataset;
use support::{LONG, Log, options, over, resident_bytes, url};

const STREAMS: u64 = 12;
/// Limit of memory that may stay resident, in bytes.
const STAYS: u64 = 64 << 20;

/// Makes glibc return the free end of each heap at once; blocks between others are still kept.
///
/// By default the end that glibc keeps grows with the freed blocks, up to 64 MiB for each arena, so
/// the memory that stays would depend on the order in which threads end.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code)] // two calls of the C library
fn return_ends_of_heaps() {
    use std::ffi::c_int;
    unsafe extern "C" {
        fn mallopt(option: c_int, value: c_int) -> c_int;
    }
    const TRIM_THRESHOLD: c_int = -1;
    const MMAP_THRESHOLD: c_int = -3;
    for (option, value) in [(MMAP_THRESHOLD, 32 << 20), (TRIM_THRESHOLD, 128 << 10)] {
        // SAFETY: the options and values are those of <malloc.h>; the call takes the locks of malloc.
        assert_eq!(unsafe { mallopt(option, value) }, 1);
    }
}

#[test]
fn memory_of_large_streams_is_returned() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    return_ends_of_heaps();
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("set");
    let mut packing = PackOptions::new(pictures.as_path(), root.as_path());
    packing.format = DatasetFormat::INDEXED;
    pack(&packing, &(), &Cancel::new()).unwrap();
    let mut options = options(&Log::default());
    // More than they plan to hold, on any machine.
    options.total_memory_bytes = Some(64 << 30);
    let mut server = Server::bind(options).unwrap();
    server
        .add_dataset("set", &Dataset::open(&root).unwrap())
        .unwrap();
    let server = server.spawn().unwrap();
    let stream = |batch_size, seed, raw: bool| {
        let transform = match raw {
            true => Transform::KeepEncoded,
            false => Transform::Eval(EvalTransform::new(256, 224)),
        };
        let mut spec = Options::new(batch_size, transform)
            .to_schema()
            .with_split("train");
        spec.seed = Some(seed);
        // With replacement, so batches can be larger than the dataset.
        (spec.class_balanced, spec.num_samples) = (Some(true), Some(1 << 16));
        let client = Client::connect(&url(server.addr()), over(Transport::Tcp)).unwrap();
        client.open(StreamOptions::from(spec)).unwrap()
    };
    // Warm up: one-time allocations stay.
    stream(8, 0, false).next_batch().unwrap().unwrap();
    let before = resident_bytes();
    let streams: Vec<_> = (1..=STREAMS)
        .map(|seed| {
            let raw = seed % 4 != 0;
            let mut stream = stream(if raw { 512 } else { 32 }, seed, raw);
            let batches = [(); 2].map(|()| stream.next_batch().unwrap());
            (batches, stream)
        })
        .collect();
    let held = resident_bytes();
    drop(streams);
    assert!(held > before + 2 * STAYS, "they held {held} of {before}");
    let end = Instant::now() + LONG;
    loop {
        let stays = resident_bytes().saturating_sub(before);
        if server.stats().connections == 0 && stays <= STAYS {
            break;
        }
        assert!(Instant::now() < end, "{stays} of {held} bytes stay");
        thread::park_timeout(Duration::from_millis(20));
    }
}
