//! Each kind of store against a server that speaks its protocol.

use crate::conformance;
use forebay_rigs::{Azurite, BUCKET, Gcs, Link, Moto, S3Server, Web};
use forebay_store::{Cancel, Error, ErrorKind, Location, Put, Store, StoreOptions, Transfer};
use std::path::Path;
use std::time::Duration;

fn options(endpoint: &str, settings: Vec<(&'static str, String)>) -> StoreOptions {
    settings.into_iter().fold(
        StoreOptions::new().with_endpoint(endpoint),
        |options, (name, value)| options.with(name, value),
    )
}

fn open(url: &str, options: &StoreOptions) -> Store {
    Store::open(&Location::parse(url).unwrap(), options).unwrap()
}

#[test]
fn a_directory_passes_the_conformance_suite() {
    let dir = tempfile::tempdir().unwrap();
    conformance::check(&open(dir.path().to_str().unwrap(), &StoreOptions::new()));
    let url = format!("file://{}/not/there/yet", dir.path().display());
    conformance::check(&open(&url, &StoreOptions::new()));
}

#[test]
fn s3_by_s3s() {
    let server = S3Server::start();
    let options = options(&server.url(), server.settings());
    conformance::check(&open(&format!("s3://{BUCKET}/a/prefix"), &options));
    assert_eq!(server.open_uploads(), 0);
    conformance::check(&open(
        &format!("s3://{BUCKET}/read/back"),
        &options.with("check_uploads", "read"),
    ));
    assert_eq!(server.open_uploads(), 0);
}

/// A link with latency and limited bandwidth does not change the results.
#[test]
fn s3_behind_a_link() {
    let link = Link::new(Duration::from_millis(2), 200_000_000);
    let server = S3Server::behind(link);
    let options = options(&server.url(), server.settings());
    conformance::check(&open(&format!("s3://{BUCKET}/a/prefix"), &options));
}

#[test]
fn s3_by_moto() {
    let Some(server) = Moto::start() else { return };
    let options = options(&server.url(), server.settings());
    conformance::check(&open(&format!("s3://{BUCKET}"), &options));
}

#[test]
fn google() {
    let server = Gcs::start();
    let options = options(&server.url(), server.settings());
    conformance::check(&open(&format!("gs://{BUCKET}/a/prefix"), &options));
    assert_eq!(server.open_uploads(), 0);
}

#[test]
fn azure() {
    let Some(server) = Azurite::start() else {
        return;
    };
    let options = options(&server.url(), server.settings());
    conformance::check(&open(&format!("az://{BUCKET}/a/prefix"), &options));
}

#[test]
fn a_web_server_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = conformance::noise(3_000_000, 3);
    std::fs::create_dir(dir.path().join("data")).unwrap();
    std::fs::write(dir.path().join("data/a b.bin"), &bytes).unwrap();
    let server = Web::start(dir.path(), true);
    let store = open(&format!("{}/data", server.url()), &StoreOptions::new());
    conformance::check_reads(&store, "a b.bin", &bytes);
    // The location of a store may be a file.
    let file = open(
        &format!("{}/data/a%20b.bin", server.url()),
        &StoreOptions::new(),
    );
    assert_eq!(file.head("").unwrap().unwrap().len, 3_000_000);

    for refused in [
        store.list("").map(drop),
        store.put("x", b"", Put::Always).map(drop),
        store.delete("a b.bin"),
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Request {
                    kind: ErrorKind::Unsupported,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(error.hint().is_some());
    }
    let whole_only = Web::start(dir.path(), false);
    let store = open(&format!("{}/data", whole_only.url()), &StoreOptions::new());
    let error = store.read_at("a b.bin", 1, &mut [0; 10]).unwrap_err();
    assert!(error.to_string().contains("not in parts"), "{error}");
}

#[test]
fn wrong_keys_are_refused_and_not_shown() {
    let server = S3Server::start();
    let options = StoreOptions::new()
        .with_endpoint(server.url())
        .with("region", "us-east-1")
        .with("aws_access_key_id", "MARKEDKEYID")
        .with("aws_secret_access_key", "MARKEDSECRET")
        .with("aws_session_token", "MARKEDTOKEN");
    let store = open(&format!("s3://{BUCKET}/x"), &options);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), conformance::noise(6 << 20, 4)).unwrap();
    let cancel = Cancel::new();
    let transfer = Transfer::new(&cancel);
    let file = dir.path().join("file");
    for error in [
        store.get("a", 1).unwrap_err(),
        store.put("a", b"x", Put::IfAbsent).unwrap_err(),
        store.list("").unwrap_err(),
        store.upload_file("a", &file, &transfer).unwrap_err(),
        store.download_file("a", &file, &transfer).unwrap_err(),
        store.abort_uploads_of("a").unwrap_err(),
    ] {
        let shown = format!("{error} {error:?} {:?} {store:?} {options:?}", error.hint());
        assert!(!shown.contains("MARKED"), "{shown}");
        assert!(
            matches!(
                error,
                Error::Request {
                    kind: ErrorKind::Denied,
                    ..
                }
            ),
            "{error:?}"
        );
    }
    assert!(Path::exists(&file));
}

#[test]
fn a_missing_bucket_is_not_a_missing_object() {
    let server = S3Server::start();
    let options = options(&server.url(), server.settings());
    let store = open("s3://no-such-bucket-4711/x", &options);
    let error = store.list("").unwrap_err();
    assert!(
        matches!(error, Error::Request { attempts: 1, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("bucket"), "{error}");
}

/// A process that is killed between writing and deleting a probe leaves it in the bucket. Its age is by the store's clock.
#[test]
fn probes_of_killed_processes_are_removed() {
    let server = S3Server::start();
    let dir = server.bucket_dir().join("set");
    std::fs::create_dir(&dir).unwrap();
    let put = |name: &str, minutes: u64| {
        let file = std::fs::File::create(dir.join(name)).unwrap();
        let age = std::time::Duration::from_secs(60 * minutes);
        file.set_modified(std::time::SystemTime::now() - age)
            .unwrap();
    };
    put(".forebay-probe-dead", 90);
    put(".forebay-probe-ffff", 100_000);
    put(".forebay-probe-payload", 90);
    put(".forebay-probe-live", 5);
    put(".forebay-probes", 90);
    put("forebay-probe-x", 90);
    let options = options(&server.url(), server.settings());
    let store = open(&format!("s3://{BUCKET}/set"), &options);
    store.put("deep/er/one", b"x", Put::IfAbsent).unwrap();
    let mut left: Vec<String> = store.list("").unwrap().into_iter().map(|o| o.key).collect();
    left.sort();
    assert_eq!(
        left,
        [
            ".forebay-probe-live",
            ".forebay-probes",
            "deep/er/one",
            "forebay-probe-x"
        ]
    );
}
