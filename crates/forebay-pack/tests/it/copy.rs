//! Copies datasets to and from a real server: with faults from a proxy, with damaged objects, and with cancellation.

use forebay_pack::copy::{
    CopyAction, CopyError, CopyMode, CopyObserver, CopyOptions, CopyPlan, CopySummary, CopyTarget,
};
use forebay_rigs::{BUCKET, FaultProxy, Plan as Faults, S3Server, Scripted};
use forebay_shard::manifest::{ShardEntry, SplitEntry};
use forebay_shard::{Manifest, ShardFormat, checksum::crc32c};
use forebay_store::{Cancel, Location, ObjectOrTree, Retry, Store, StoreOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

fn bytes(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Writes a dataset of shards of these sizes with arbitrary bytes; a copy does not parse shards.
fn dataset(root: &Path, seed: u32, sizes: &[usize]) {
    std::fs::create_dir_all(root.join("index")).unwrap();
    let shards = sizes.iter().zip(0u32..).map(|(size, number)| {
        let name = format!("train-{number:05}-of-{:05}", sizes.len());
        let content = bytes(seed + number, *size);
        std::fs::write(root.join(&name), &content).unwrap();
        std::fs::write(root.join(format!("index/{name}.idx")), "0 1\n").unwrap();
        ShardEntry {
            name,
            records: 1,
            bytes: content.len() as u64,
            crc32c: crc32c(&content),
            blake3: None,
        }
    });
    let split = SplitEntry::new("train", shards.collect());
    let manifest = Manifest::new(ShardFormat::TfRecord, 1, vec![split]);
    std::fs::write(root.join("forebay.json"), manifest.to_json().unwrap()).unwrap();
}

fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                out.insert(name.to_owned(), std::fs::read(&path).unwrap());
            }
        }
    }
    out
}

fn options(url: String) -> StoreOptions {
    let waits = Retry {
        first_wait: Duration::from_millis(2),
        max_wait: Duration::from_millis(50),
        ..Retry::default()
    };
    let keys = S3Server::keys().into_iter();
    keys.fold(
        StoreOptions::new().with_endpoint(url).with_retry(waits),
        |options, (name, value)| options.with(name, value),
    )
}

fn at(prefix: &str) -> Location {
    Location::parse(format!("s3://{BUCKET}/{prefix}")).unwrap()
}

fn plan(
    from: &Location,
    to: &Location,
    store: &StoreOptions,
    how: CopyOptions,
) -> Result<CopyPlan, CopyError> {
    let source = ObjectOrTree::find(from, store)?;
    let target = CopyTarget::find(to, &source, store)?;
    CopyPlan::make(source, target, how, &(), &Cancel::new())
}

fn copy(
    from: &Location,
    to: &Location,
    store: &StoreOptions,
    how: CopyOptions,
) -> Result<CopySummary, CopyError> {
    plan(from, to, store, how)?.run(&(), &Cancel::new())
}

fn sync() -> CopyOptions {
    let mut options = CopyOptions::default();
    options.mode = CopyMode::Sync;
    options.parallel = 4;
    options
}

#[test]
fn a_dataset_is_uploaded_copied_and_downloaded() {
    let server = S3Server::start();
    let store = options(server.url());
    let dir = tempfile::tempdir().unwrap();
    let (here, back) = (dir.path().join("here"), dir.path().join("back"));
    // The second shard is uploaded in several parts.
    dataset(&here, 1, &[100_000, 20 << 20, 1]);
    let here_at = Location::from(here.as_path());
    let summary = copy(&here_at, &at("a/set"), &store, CopyOptions::default()).unwrap();
    assert_eq!((summary.copied, summary.published), (7, 1));
    // All objects are stored with checksums now, so nothing is sent again, not even indexes.
    let again = copy(&here_at, &at("a/set"), &store, CopyOptions::default()).unwrap();
    assert_eq!((again.copied, again.kept), (0, 7));
    let mut through = CopyOptions::default();
    through.scratch = Some(dir.path().join("scratch"));
    copy(&at("a/set"), &at("b/set"), &store, through).unwrap();
    assert_eq!(
        std::fs::read_dir(dir.path().join("scratch"))
            .unwrap()
            .count(),
        0
    );
    copy(
        &at("b/set"),
        &Location::from(back.as_path()),
        &store,
        sync(),
    )
    .unwrap();
    assert_eq!(tree(&here), tree(&back));
    let kept = copy(
        &at("b/set"),
        &Location::from(back.as_path()),
        &store,
        sync(),
    )
    .unwrap();
    assert_eq!((kept.copied, kept.kept), (0, 7));

    // A different dataset is refused without `overwrite`, and objects outside the prefix are never changed.
    let other = dir.path().join("other");
    dataset(&other, 9, &[5000]);
    let other_at = Location::from(other.as_path());
    let error = copy(&other_at, &at("a/set"), &store, sync()).unwrap_err();
    assert!(matches!(error, CopyError::Refused { .. }), "{error}");
    let mut replace = sync();
    replace.overwrite = true;
    replace.delete = true;
    copy(&other_at, &at("a/set"), &store, replace).unwrap();
    let keys = |prefix: &str| {
        let listed = Store::open(&at(prefix), &store).unwrap().list("").unwrap();
        listed
            .into_iter()
            .map(|object| object.key)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        keys("a/set"),
        [
            "forebay.json",
            "index/train-00000-of-00001.idx",
            "train-00000-of-00001"
        ]
    );
    assert_eq!(keys("b/set").len(), 7);
    assert_eq!(server.open_uploads(), 0);
}

#[test]
fn a_copy_survives_faults_in_a_fifth_of_requests() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let (here, back) = (dir.path().join("here"), dir.path().join("back"));
    dataset(&here, 3, &[10_000, 12 << 20, 300_000, 77]);
    for seed in 0..2 {
        let proxy = FaultProxy::new(server.address(), seed, Faults::rough(0.2));
        let store = options(proxy.url());
        let place = at(&format!("set-{seed}"));
        copy(&Location::from(here.as_path()), &place, &store, sync()).unwrap();
        let _ = std::fs::remove_dir_all(&back);
        copy(&place, &Location::from(back.as_path()), &store, sync()).unwrap();
        assert_eq!(tree(&here), tree(&back));
        assert!(
            proxy.counts().values().sum::<u64>() > 0,
            "the proxy made faults"
        );
    }
    assert_eq!(server.open_parts(), 0);
}

/// Cancels the copy at the first progress.
struct StopAtFirst(Cancel);

impl CopyObserver for StopAtFirst {
    fn moved(&self, _bytes: u64) {
        self.0.cancel();
    }

    fn done(&self, _key: &str, _bytes: u64, _action: CopyAction) {
        self.0.cancel();
    }
}

#[test]
fn a_cancelled_copy_leaves_no_uploads_and_continues() {
    let server = S3Server::start();
    let store = options(server.url());
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path(), 5, &[18 << 20, 17 << 20, 100]);
    let here = Location::from(dir.path());
    let place = at("set");
    let stopped = Cancel::new();
    let begun = plan(&here, &place, &store, sync()).unwrap();
    let error = begun
        .run(&StopAtFirst(stopped.clone()), &stopped)
        .unwrap_err();
    assert!(matches!(error, CopyError::Interrupted { .. }), "{error}");
    assert_eq!(server.open_uploads(), 0);
    assert!(
        Store::open(&place, &store)
            .unwrap()
            .head("forebay.json")
            .unwrap()
            .is_none()
    );
    let summary = copy(&here, &place, &store, sync()).unwrap();
    assert_eq!((summary.copied + summary.kept, summary.published), (7, 1));
}

#[test]
fn a_damaged_object_is_found_when_downloaded() {
    let server = S3Server::start();
    let store = options(server.url());
    let dir = tempfile::tempdir().unwrap();
    let (here, back) = (dir.path().join("here"), dir.path().join("back"));
    dataset(&here, 7, &[200_000, 100]);
    copy(&Location::from(here.as_path()), &at("set"), &store, sync()).unwrap();
    let object = server.object_file("set/train-00000-of-00002");
    let mut content = std::fs::read(&object).unwrap();
    content[99_999] ^= 4;
    std::fs::write(&object, content).unwrap();
    let mut impatient = store.clone();
    impatient.retry = Retry {
        max_attempts: 2,
        first_wait: Duration::from_millis(1),
        max_wait: Duration::from_millis(2),
        ..Retry::default()
    };
    let error = copy(
        &at("set"),
        &Location::from(back.as_path()),
        &impatient,
        sync(),
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("train-00000-of-00002"),
        "{error}"
    );
    for secret in S3Server::keys()
        .iter()
        .filter(|(name, _)| *name != "aws_region")
    {
        assert!(
            !format!("{error} {error:?}").contains(&secret.1),
            "a key is shown"
        );
    }
    assert!(!back.join("forebay.json").exists() && !back.join("train-00000-of-00002").exists());
}

/// Another process may be uploading below the same prefix, even an object of the same name.
#[test]
fn uploads_of_other_processes_stay_open() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path(), 1, &[6 << 20, 1000]);
    let server = S3Server::start();
    let store = options(server.url());
    let from = Location::from(dir.path());
    let files = tree(dir.path());
    let first = files.keys().next().unwrap();
    for key in [
        "set/other.bin".to_owned(),
        "set".to_owned(),
        format!("set/{first}"),
    ] {
        server.begin_upload(&key);
    }
    copy(&from, &at("set"), &store, CopyOptions::default()).unwrap();
    assert_eq!(server.open_uploads(), 3);
    std::fs::write(dir.path().join("more"), bytes(2, 6 << 20)).unwrap();
    copy(&from, &at("set"), &store, sync()).unwrap();
    assert_eq!(server.open_uploads(), 3);
}

#[test]
fn a_copy_ends_at_the_first_permanent_fault() {
    let list = |keys: u32| {
        let one = |n| {
            format!(
                "<Contents><Key>x/{n}</Key><Size>5</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
            )
        };
        let all: String = (0..keys).map(one).collect();
        format!("<ListBucketResult><Name>b</Name>{all}</ListBucketResult>").into_bytes()
    };
    // The credentials expire after the listing.
    let server = Scripted::start(move |_, target| match target {
        _ if target.contains("list-type=2") => (200, Vec::new(), list(500)),
        _ if target.ends_with("forebay.json") => (404, Vec::new(), Vec::new()),
        _ => (
            400,
            Vec::new(),
            b"<Error><Code>ExpiredToken</Code><Message>no</Message></Error>".to_vec(),
        ),
    });
    let dir = tempfile::tempdir().unwrap();
    // The waits between retries are so long that a test with an unexpected retry would take noticeably long.
    let waits = Retry {
        first_wait: Duration::from_secs(20),
        max_wait: Duration::from_secs(20),
        ..Retry::default()
    };
    let options = StoreOptions::new()
        .with_endpoint(format!("http://{}", server.address()))
        .with_retry(waits);
    let options = S3Server::keys()
        .into_iter()
        .fold(options, |options, (name, value)| options.with(name, value));
    let place = Location::parse(format!("s3://{BUCKET}/x")).unwrap();
    let source = ObjectOrTree::find(&place, &options).unwrap();
    let target = CopyTarget::find(&Location::from(dir.path()), &source, &options).unwrap();
    let (cancel, copy) = (Cancel::new(), CopyOptions::default());
    let plan = CopyPlan::make(source, target, copy, &(), &cancel).unwrap();
    let Err(CopyError::Store(error)) = plan.run(&(), &cancel) else {
        panic!("it is copied")
    };
    assert!(error.to_string().contains("ExpiredToken"), "{error}");
    // Each thread starts one object before the copy stops.
    assert!(server.take().len() < 100);
}
