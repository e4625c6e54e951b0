//! Packs to a server that implements S3, through a proxy that injects faults.

use crate::support;

use forebay_pack::{
    Cancel, DatasetFormat, DatasetWriter, Error, Observer, PackOptions, ShardDone, Sharding,
    Uploaded, pack,
};
use forebay_rigs::{BUCKET, FaultProxy, Plan, S3Server};
use forebay_staging::StagingArea;
use forebay_store::{Location, Retry, Store, StoreOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::*;

const SRC: &str = "FOREBAY_TEST_S3_SRC";
const DIR: &str = "FOREBAY_TEST_S3_DIR";
const URL: &str = "FOREBAY_TEST_S3_URL";
/// Number of kills in the test below, if this environment variable is set.
const KILLS: &str = "FOREBAY_TEST_KILLS";

fn place() -> Location {
    Location::parse(format!("s3://{BUCKET}/data/set")).unwrap()
}

fn reached(url: &str, give_up_after: Duration) -> StoreOptions {
    let retry = Retry {
        first_wait: Duration::from_millis(5),
        max_wait: Duration::from_millis(200),
        give_up_after,
        ..Retry::default()
    };
    let start = StoreOptions::new().with_endpoint(url).with_retry(retry);
    S3Server::keys()
        .into_iter()
        .fold(start, |options, (name, value)| options.with(name, value))
}

fn patient(url: &str) -> StoreOptions {
    reached(url, Duration::from_secs(600))
}

/// Creates a source for two shards of 5 to 15 MiB, which are uploaded in parts.
fn source(dir: &Path) -> PathBuf {
    let src = dir.join("src");
    for image in 0..4u64 {
        let content = jpeg(400, 300, 3, &noise(image, 5 << 20));
        put(
            &src,
            format!("n{:08}/{image}.JPEG", image % 2).as_bytes(),
            &content,
        );
    }
    put(&src, b"n00000001/bad.jpg", b"bad");
    src
}

fn options_for(src: &Path, dir: &Path, store: StoreOptions) -> PackOptions {
    let mut options = PackOptions::new(src, place());
    options.sharding = Sharding::Count(2);
    options.jobs = Some(1);
    options.upload.staging_dir = Some(dir.join("area"));
    // There is space for one shard.
    options.upload.staging_bytes = Some(17 << 20);
    options.upload.store = store;
    options
}

fn whole(src: &Path, dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut options = options(src, &dir.join("whole"));
    options.sharding = Sharding::Count(2);
    run(&options).unwrap();
    contents(&dir.join("whole"))
}

/// Checks that the store contains exactly these files and no parts of open uploads, and that the area is empty.
#[track_caller]
fn assert_holds(server: &S3Server, whole: &BTreeMap<PathBuf, Vec<u8>>, dir: &Path) {
    let store = Store::open(&place(), &patient(&server.url())).unwrap();
    let keys = store.list("").unwrap().into_iter().map(|object| object.key);
    let there: BTreeMap<PathBuf, Vec<u8>> = keys
        .map(|key| (PathBuf::from(&key), store.get(&key, 64 << 20).unwrap()))
        .collect();
    assert_eq!(
        there.keys().collect::<Vec<_>>(),
        whole.keys().collect::<Vec<_>>()
    );
    assert!(there == *whole, "the bytes differ");
    assert_eq!(server.open_parts(), 0);
    assert!(
        StagingArea::look(&dir.join("area"))
            .unwrap()
            .sessions
            .is_empty()
    );
}

#[test]
fn with_a_fifth_of_all_requests_failing() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let whole = whole(&src, dir.path());
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 11, Plan::rough(0.2));
    let options = options_for(&src, dir.path(), patient(&proxy.url()));
    let summary = run(&options).unwrap();
    assert_eq!(summary.root, Path::new("s3://bucket/data/set"));
    assert_holds(&server, &whole, dir.path());
    assert!(run(&options).unwrap().already_complete);
    assert_holds(&server, &whole, dir.path());
}

#[test]
fn a_writer_continues_after_failures_of_its_store() {
    let dir = tempfile::tempdir().unwrap();
    let samples = crate::writer::samples;
    let local = crate::writer::writer_options(&dir.path().join("whole"), DatasetFormat::TfRecord);
    crate::writer::write(local, samples()).unwrap();
    let whole = contents(&dir.path().join("whole"));
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 12, Plan::rough(0.2));
    let options = || {
        let mut options = crate::writer::writer_options(Path::new("x"), DatasetFormat::TfRecord);
        options.dst = place();
        options.resume = true;
        options.upload.staging_dir = Some(dir.path().join("area"));
        options.upload.staging_bytes = Some(4 << 20);
        options.upload.store = patient(&proxy.url());
        options
    };
    // An abandoned writer leaves shards in the area, in the store, or being uploaded.
    let mut abandoned = DatasetWriter::create(options(), &Cancel::new()).unwrap();
    for sample in samples().into_iter().take(30) {
        abandoned.write(sample).unwrap();
    }
    drop(abandoned);
    let mut unresumed = options();
    unresumed.resume = false;
    let error = DatasetWriter::create(unresumed, &Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::Unfinished { .. }), "{error}");
    let summary = crate::writer::write(options(), samples()).unwrap();
    assert!(summary.resumed_shards > 0 && !summary.already_complete);
    assert_holds(&server, &whole, dir.path());
    assert!(
        crate::writer::write(options(), samples())
            .unwrap()
            .already_complete
    );
    assert_holds(&server, &whole, dir.path());
}

/// Makes the store unavailable with the first shard, and available again once that was noticed.
struct Outage<'a> {
    proxy: &'a FaultProxy,
    was_noticed: AtomicBool,
}

impl Observer for Outage<'_> {
    fn shard_done(&self, _: &ShardDone) {
        if !self.was_noticed.load(Ordering::SeqCst) {
            self.proxy.set_outage(true);
        }
    }

    fn uploaded(&self, uploaded: &Uploaded) {
        if uploaded.trouble.is_some() {
            self.was_noticed.store(true, Ordering::SeqCst);
            self.proxy.set_outage(false);
        }
    }
}

#[test]
fn a_temporary_outage_of_the_store_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let whole = whole(&src, dir.path());
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 12, Plan::none());
    let outage = Outage {
        proxy: &proxy,
        was_noticed: AtomicBool::new(false),
    };
    // Requests have a short timeout, so that the area has to wait for the store.
    let store = reached(&proxy.url(), Duration::from_secs(2));
    pack(
        &options_for(&src, dir.path(), store),
        &outage,
        &Cancel::new(),
    )
    .unwrap();
    assert!(outage.was_noticed.into_inner());
    assert_holds(&server, &whole, dir.path());
}

#[test]
fn store_errors_are_reported_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let whole = whole(&src, dir.path());
    let server = S3Server::start();
    let wrong = patient(&server.url()).with("aws_secret_access_key", "HIDDEN-AND-WRONG");
    let error = run(&options_for(&src, dir.path(), wrong)).unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error}");
    let told = format!("{error} {error:?} {:?}", error.hint());
    assert!(told.contains("403") && !told.contains("HIDDEN"), "{told}");
    for (path, bytes) in contents(&dir.path().join("area")) {
        assert!(
            !String::from_utf8_lossy(&bytes).contains("HIDDEN"),
            "{}",
            path.display()
        );
    }
    run(&options_for(&src, dir.path(), patient(&server.url()))).unwrap();
    assert_holds(&server, &whole, dir.path());
}

/// The work of the killed process. Without the environment variables, this test does nothing.
#[test]
fn child() {
    let (Some(src), Some(dir), Ok(url)) = (
        std::env::var_os(SRC),
        std::env::var_os(DIR),
        std::env::var(URL),
    ) else {
        return;
    };
    run(&options_for(
        Path::new(&src),
        Path::new(&dir),
        patient(&url),
    ))
    .unwrap();
}

#[test]
fn a_pack_killed_during_multipart_uploads_continues() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let whole = whole(&src, dir.path());
    let kills = std::env::var(KILLS)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(3u64);
    for kill in 0..kills {
        let server = S3Server::start();
        let proxy = FaultProxy::new(server.address(), kill, Plan::none());
        let dir = dir.path().join(format!("kill {kill}"));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["staged_s3::child", "--exact", "--test-threads=1"])
            .envs([
                (SRC, src.as_os_str()),
                (DIR, dir.as_os_str()),
                (URL, proxy.url().as_ref()),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The process is killed after this number of requests, at varying progress of each.
        while proxy.requests() < 6 + kill * 7 % 40 && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The same endpoint is used, because it is part of the name of the destination.
        run(&options_for(&src, &dir, patient(&proxy.url()))).unwrap();
        assert_holds(&server, &whole, &dir);
    }
}

#[test]
fn multipart_uploads_of_other_processes_stay_open() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let server = S3Server::start();
    for key in ["data/set/other.bin", "data/set", "data/set/index/x"] {
        server.begin_upload(key);
    }
    let mut options = options_for(&src, dir.path(), patient(&server.url()));
    run(&options).unwrap();
    assert_eq!(server.open_uploads(), 3);
    options.overwrite = true;
    options.sharding = Sharding::Count(3);
    run(&options).unwrap();
    assert_eq!(server.open_uploads(), 3);
}
