//! Counts the requests of epochs of a dataset in a bucket.

use crate::dataset;

use dataset::{Recipe, write};
use forebay_cache::{ReadOptions, open_dataset};
use forebay_image::Transform;
use forebay_loader::{Loader, Options, Shuffle};
use forebay_rigs::{BUCKET, FaultProxy, Plan, S3Server};
use forebay_shard::{Dataset, ShardFormat};
use forebay_store::{Location, Put, Store, StoreOptions};
use std::fs;

const MIB: u64 = 1 << 20;
/// Records of 33 kB, 36 MiB: whole windows of two virtual ranks.
const RECORDS: u64 = 1152;
const BATCH: u64 = 16;

/// A dataset of one shard behind a server that counts requests.
struct Bucket {
    proxy: FaultProxy,
    dataset: Dataset,
    _server: S3Server,
}

impl Bucket {
    fn new(format: ShardFormat) -> Self {
        let server = S3Server::start();
        let recipe = Recipe {
            records: RECORDS,
            shards: 1,
            format,
            image: |i| {
                let mut bytes = dataset::picture(i);
                bytes.resize(32 << 10, 0);
                Some(bytes)
            },
            ..Recipe::default()
        };
        let files = tempfile::tempdir().unwrap();
        write(files.path(), &recipe);
        let proxy = FaultProxy::new(server.address(), 1, Plan::none());
        let mut store = StoreOptions::new().with_endpoint(proxy.url());
        for (name, value) in S3Server::keys() {
            store = store.with(name, value);
        }
        let place = Location::parse(format!("s3://{BUCKET}")).unwrap();
        // Through the store: the server keeps the ETag of what it receives, and hashes other files at each request.
        let bucket = Store::open(&place, &store).unwrap();
        for folder in ["", "index/"] {
            let found = fs::read_dir(files.path().join(folder));
            for file in found.into_iter().flatten().map(Result::unwrap) {
                if file.path().is_file() {
                    let key = format!("{folder}{}", file.file_name().into_string().unwrap());
                    let bytes = fs::read(file.path()).unwrap();
                    bucket.put(&key, &bytes, Put::Always).unwrap();
                }
            }
        }
        let read = ReadOptions::new(store).for_loader();
        Self {
            dataset: open_dataset(&place, &read).unwrap(),
            proxy,
            _server: server,
        }
    }

    /// Reads two epochs. Returns the requests and MiB of their reads, without the manifest, the index and the records of the first
    /// batch, which are read one by one.
    fn read(&self, shuffle: Shuffle) -> (u64, f64) {
        let split = self.dataset.split("train").unwrap();
        let counted = || {
            let stats = split.shards()[0].storage().stats().unwrap();
            (stats, self.proxy.requests())
        };
        let (before, requests_before) = counted();
        let mut options = Options::new(BATCH, Transform::KeepEncoded);
        options.shuffle = shuffle;
        options.virtual_ranks = 2;
        let mut loader = Loader::new(split.clone(), options).unwrap();
        for _ in 0..2 {
            while loader.next_batch().unwrap().is_some() {}
        }
        drop(loader);
        let (after, requests) = counted();
        let did = after.since(&before);
        assert_eq!(
            did.requests,
            requests - requests_before,
            "as the server counts"
        );
        let alone = split.shards()[0].byte_range(0..BATCH).unwrap();
        let bytes = did.fetched_bytes - (alone.end - alone.start);
        (did.requests - BATCH, bytes as f64 / MIB as f64)
    }
}

#[test]
fn epochs_read_4_mib_with_a_request() {
    for format in [ShardFormat::Indexed, ShardFormat::TfRecord] {
        let bucket = Bucket::new(format);
        let mut window = Shuffle::named("window").unwrap();
        window.block_records = 96;
        window.window_blocks = 2;
        for shuffle in [
            Shuffle::blocks(192, 2),
            // Two halves of a window are one read.
            window,
            // 9 MiB are two reads.
            Shuffle::blocks(288, 2),
        ] {
            let (requests, mib) = bucket.read(shuffle);
            println!("{format:?} {shuffle}: {requests} requests for {mib:.1} MiB");
            assert!(mib >= 72.0, "two epochs: {mib}");
            assert!(
                requests as f64 * 4.0 <= mib,
                "{format:?} {shuffle}: {requests} for {mib} MiB"
            );
        }
    }
}
