//! Stores under faults: most tests have a fault-injecting proxy between the client and a real server.

use forebay_rigs::{Azurite, BUCKET, Fault, FaultProxy, Form, Gcs, Moto, Plan, S3Server, WebHdfs};
use forebay_store::{
    Cancel, Error, ErrorKind, Location, Put, Retry, Store, StoreOptions, Transfer,
};
use std::time::{Duration, Instant};

/// Short waits between retries, and enough time in total for a busy machine.
fn patient() -> Retry {
    Retry {
        first_wait: Duration::from_millis(5),
        max_wait: Duration::from_millis(200),
        give_up_after: Duration::from_secs(600),
        ..Retry::default()
    }
}

fn open(scheme: &str, endpoint: &str, settings: Vec<(&'static str, String)>) -> Store {
    open_with(scheme, endpoint, settings, &|options| options)
}

fn open_with(
    scheme: &str,
    endpoint: &str,
    settings: Vec<(&'static str, String)>,
    change: &dyn Fn(StoreOptions) -> StoreOptions,
) -> Store {
    let start = StoreOptions::new()
        .with_endpoint(endpoint)
        .with_retry(patient());
    let options = settings
        .into_iter()
        .fold(start, |options, (name, value)| options.with(name, value));
    let place = Location::parse(format!("{scheme}://{BUCKET}/rough")).unwrap();
    Store::open(&place, &change(options)).unwrap()
}

fn wait_until(true_at_last: impl Fn() -> bool) {
    let started = Instant::now();
    while !true_at_last() {
        assert!(started.elapsed() < Duration::from_secs(120));
        std::thread::yield_now();
    }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

/// Makes puts, gets, range reads, multipart uploads, downloads and listings on four threads, and checks that all of them
/// succeed and return the bytes that were written.
fn works(store: &Store, small: u64, large: u64) {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let dir = dir.path();
            scope.spawn(move || {
                let cancel = Cancel::new();
                for i in (0..small).filter(|i| i % 4 == thread) {
                    let bytes = noise(30_000 + i as usize, i);
                    let key = format!("small/{i:03}");
                    let put = if i % 2 == 0 {
                        Put::IfAbsent
                    } else {
                        Put::Always
                    };
                    store.put(&key, &bytes, put).unwrap();
                    assert!(store.get(&key, 1 << 20).unwrap() == bytes, "{key}");
                    let mut range = vec![0; 10_000];
                    store.read_at(&key, 20_000, &mut range).unwrap();
                    assert!(range == bytes[20_000..30_000], "{key}");
                }
                for i in (0..large).filter(|i| i % 4 == thread) {
                    let bytes = noise(11 << 20, i);
                    let (from, to) = (dir.join(format!("{i}.from")), dir.join(format!("{i}.to")));
                    std::fs::write(&from, &bytes).unwrap();
                    let key = format!("large/{i}");
                    let transfer = Transfer {
                        part_bytes: 5 << 20,
                        ..Transfer::new(&cancel)
                    };
                    let sent = store.upload_file(&key, &from, &transfer).unwrap();
                    assert_eq!(sent.crc32c, Some(crc32c::crc32c(&bytes)));
                    store.download_file(&key, &to, &transfer).unwrap();
                    assert!(std::fs::read(&to).unwrap() == bytes, "{key}");
                }
            });
        }
    });
    assert_eq!(store.list("small").unwrap().len() as u64, small);
    assert_eq!(store.list("large").unwrap().len() as u64, large);
}

#[test]
fn webhdfs_with_a_tenth_of_all_requests_failing() {
    let server = WebHdfs::start(Form::NameNode);
    let data = FaultProxy::new(server.data_node(), 2, Plan::rough(0.1));
    server.redirect_to(data.address());
    let names = FaultProxy::new(server.address(), 1, Plan::rough(0.1));
    let place = Location::parse(format!("webhdfs://{}/rough", names.address())).unwrap();
    let options = StoreOptions::new().with_retry(patient());
    works(&Store::open(&place, &options).unwrap(), 40, 4);
    assert!(names.counts().len() >= 7, "{:?}", names.counts());
    assert!(data.counts().len() >= 6, "{:?}", data.counts());
}

#[test]
fn s3_with_a_fifth_of_all_requests_failing() {
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 1, Plan::rough(0.2));
    // FOREBAY_TEST_OBJECTS=900 runs the full test of 1,000 uploads: 900 small objects, and 100 multipart uploads.
    let small = std::env::var("FOREBAY_TEST_OBJECTS").map_or(60, |text| text.parse().unwrap());
    works(
        &open("s3", &proxy.url(), server.settings()),
        small,
        small / 9,
    );
    assert!(proxy.counts().len() >= 7, "{:?}", proxy.counts());
}

#[test]
fn moto_with_a_fifth_of_all_requests_failing() {
    let Some(server) = Moto::start() else { return };
    let proxy = FaultProxy::new(server.address(), 2, Plan::rough(0.2));
    works(&open("s3", &proxy.url(), server.settings()), 20, 3);
}

#[test]
fn google_with_a_fifth_of_all_requests_failing() {
    let server = Gcs::start();
    let proxy = FaultProxy::new(server.address(), 3, Plan::rough(0.2));
    works(&open("gs", &proxy.url(), server.settings()), 40, 4);
}

#[test]
fn azure_with_a_fifth_of_all_requests_failing() {
    let Some(server) = Azurite::start() else {
        return;
    };
    let proxy = FaultProxy::new(server.address(), 4, Plan::rough(0.2));
    let endpoint = server.url_at(proxy.address());
    works(&open("az", &endpoint, server.settings()), 20, 3);
}

#[test]
fn bytes_damaged_in_transit_are_sent_again() {
    let flips = Plan::of(0.3, &[Fault::FlipRequest, Fault::FlipAnswer]);
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 5, Plan::none());
    let store = open("s3", &proxy.url(), server.settings());
    // The first conditional put writes its probe before the proxy damages bytes.
    store.put("first", b"", Put::IfAbsent).unwrap();
    proxy.set_plan(flips.clone());
    whole_objects(&store);
    assert!(proxy.counts().len() == 2, "{:?}", proxy.counts());
    // Google's signature does not cover the body: damage shows only in the checksum that the store reports.
    let server = Gcs::start();
    let proxy = FaultProxy::new(server.address(), 6, flips);
    whole_objects(&open("gs", &proxy.url(), server.settings()));
    assert!(proxy.counts().len() == 2, "{:?}", proxy.counts());
}

fn whole_objects(store: &Store) {
    for i in 0..30 {
        let bytes = noise(20_000, i);
        let key = format!("flip/{i}");
        let put = if i % 2 == 0 {
            Put::IfAbsent
        } else {
            Put::Always
        };
        store.put(&key, &bytes, put).unwrap();
        assert!(store.get(&key, 1 << 20).unwrap() == bytes, "{key}");
    }
}

#[test]
fn ambiguous_put_is_resolved_by_write_token() {
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 7, Plan::of(0.5, &[Fault::CutAnswer]));
    let store = open("s3", &proxy.url(), server.settings());
    for i in 0..20 {
        let key = format!("own/{i}");
        let first = store.put(&key, b"mine", Put::IfAbsent).unwrap();
        let theirs = store.put(&key, b"theirs", Put::IfAbsent);
        assert!(
            matches!(theirs, Err(Error::AlreadyThere { .. })),
            "{theirs:?}"
        );
        let next = Put::IfMatch(first.etag.unwrap());
        store.put(&key, b"next", next).unwrap();
        assert_eq!(store.get(&key, 9).unwrap(), b"next");
    }
    assert!(proxy.counts()[&Fault::CutAnswer] > 10);
}

#[test]
fn a_store_that_ignores_conditions_is_detected() {
    let server = S3Server::ignoring_conditions();
    let store = open("s3", &server.url(), server.settings());
    store.put("there", b"precious", Put::Always).unwrap();
    for put in [Put::IfAbsent, Put::IfMatch("\"x\"".to_owned())] {
        let error = store.put("there", b"mine", put).unwrap_err();
        assert!(matches!(error, Error::NotConditional { .. }), "{error:?}");
        assert!(error.hint().unwrap().contains("assume_conditional_put"));
    }
    assert_eq!(store.get("there", 9).unwrap(), b"precious");
    assert_eq!(store.list("").unwrap().len(), 1);
    let trusting = open_with("s3", &server.url(), server.settings(), &|options| {
        options.with("assume_conditional_put", "true")
    });
    trusting.put("new", b"mine", Put::IfAbsent).unwrap();
}

#[test]
fn an_outage_is_bridged_by_retries() {
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 8, Plan::none());
    let store = open("s3", &proxy.url(), server.settings());
    store.put("a", b"still here", Put::Always).unwrap();
    proxy.set_outage(true);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| store.get("a", 99));
        wait_until(|| proxy.turned_away() >= 3);
        assert!(!reading.is_finished());
        proxy.set_outage(false);
        assert_eq!(reading.join().unwrap().unwrap(), b"still here");
    });
}

#[test]
fn cancelling_ends_the_wait_for_an_unreachable_store() {
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 13, Plan::none());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, noise(11 << 20, 1)).unwrap();
    let never = Cancel::new();
    type Call<'a> = &'a (dyn Fn(&Store) -> Option<Error> + Sync);
    let calls: [Call<'_>; 6] = [
        &|store| store.get("a", 99).err(),
        &|store| store.read_at("a", 0, &mut [0; 5]).err(),
        &|store| store.head("a").err(),
        &|store| store.list("").err(),
        &|store| store.put("b", b"x", Put::Always).err(),
        &|store| {
            let sent = store.upload_file("c", &file, &Transfer::new(&never));
            sent.err()
        },
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let cancel = Cancel::new();
        let store = open_with("s3", &proxy.url(), server.settings(), &|mut options| {
            options.cancel = Some(cancel.clone());
            options
        });
        store.put("a", b"still here", Put::Always).unwrap();
        // Alternates between a server that closes connections and a server that never responds.
        let hangs = number % 2 == 1;
        let (before, hung) = (proxy.turned_away(), proxy.counts());
        match hangs {
            true => proxy.set_plan(Plan::of(1.0, &[Fault::Hang])),
            false => proxy.set_outage(true),
        }
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| call(&store));
            wait_until(|| proxy.turned_away() >= before + 2 || proxy.counts() != hung);
            assert!(!calling.is_finished());
            cancel.cancel();
            let error = calling.join().unwrap();
            assert!(
                matches!(error, Some(Error::Cancelled { .. })),
                "{number}: {error:?}"
            );
        });
        let error = store.get("a", 99).unwrap_err();
        assert!(error.to_string().contains("s3://bucket/rough/a"), "{error}");
        proxy.set_outage(false);
        proxy.set_plan(Plan::none());
    }
    // The cancelled call may have left an open multipart upload, which can be aborted once the store is back.
    let store = open("s3", &server.url(), server.settings());
    store.abort_uploads_of("c").unwrap();
    assert_eq!(server.open_uploads(), 0);
}

#[test]
fn cancelling_at_any_request_leaves_nothing_behind() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, noise((5 << 20) + 1000, 1)).unwrap();
    let upload = |store: &Store, cancel: &Cancel| {
        let transfer = Transfer {
            part_bytes: 5 << 20,
            ..Transfer::new(cancel)
        };
        store.upload_file("in-parts", &file, &transfer).map(drop)
    };
    let put = |store: &Store, _: &Cancel| store.put("once", b"x", Put::IfAbsent).map(drop);
    type Call<'a> = &'a dyn Fn(&Store, &Cancel) -> Result<(), Error>;
    let calls: [(Call<'_>, u64); 2] = [(&upload, 5), (&put, 4)];
    for (call, least) in calls {
        for number in 0.. {
            // A proxy at a new address counts as a new store, so that conditions are probed again.
            let proxy = FaultProxy::new(server.address(), 15, Plan::none());
            let cancel = Cancel::new();
            let store = open_with("s3", &proxy.url(), server.settings(), &|mut options| {
                options.cancel = Some(cancel.clone());
                options
            });
            let stop = cancel.clone();
            proxy.when_done(number, move || stop.cancel());
            let done = call(&store, &cancel);
            assert_eq!(server.open_uploads(), 0, "request {number}");
            let straight = open("s3", &server.url(), server.settings());
            for object in straight.list("").unwrap() {
                let is_whole = ["in-parts", "once"].contains(&object.key.as_str());
                assert!(is_whole, "request {number}: {}", object.key);
                straight.delete(&object.key).unwrap();
            }
            match done {
                // The call made fewer requests than `number`.
                Ok(()) => {
                    assert!(number >= least, "{number} requests");
                    break;
                }
                Err(error) => assert!(matches!(error, Error::Cancelled { .. }), "{error:?}"),
            }
        }
    }
}

#[test]
fn an_error_names_operation_object_and_tries() {
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 9, Plan::of(1.0, &[Fault::Hang]));
    let store = open_with("s3", &proxy.url(), server.settings(), &|mut options| {
        options.timeout = Duration::from_millis(200);
        options.with_retry(Retry {
            max_attempts: 3,
            ..patient()
        })
    });
    let error = store.get("some/thing", 9).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Request {
                kind: ErrorKind::TimedOut,
                attempts: 3,
                ..
            }
        ),
        "{error:?}"
    );
    let text = error.to_string();
    for word in [
        "read",
        "s3://bucket/rough/some/thing",
        "tried 3 times",
        "no answer",
    ] {
        assert!(text.contains(word), "{text}");
    }
    proxy.set_plan(Plan::of(1.0, &[Fault::SlowDown]));
    let error = store.get("some/thing", 9).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Request {
                kind: ErrorKind::Throttled,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("503"), "{error}");
    proxy.set_outage(true);
    let error = store.put("some/thing", b"x", Put::Always).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Request {
                kind: ErrorKind::Unreachable,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn a_store_that_never_responded_fails_sooner() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let store = open_with("s3", &endpoint, S3Server::keys(), &|options| {
        options.with_retry(Retry {
            give_up_after: Duration::from_secs(20),
            ..Retry::default()
        })
    });
    let error = store.get("x", 9).unwrap_err();
    let Error::Request { kind, elapsed, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(kind, ErrorKind::Unreachable);
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
}

#[test]
fn a_store_that_asks_to_slow_down_gets_fewer_requests() {
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 10, Plan::none());
    let store = open_with("s3", &proxy.url(), server.settings(), &|mut options| {
        options.max_requests = 16;
        options
    });
    store.put("a", &noise(100_000, 1), Put::Always).unwrap();
    proxy.set_plan(Plan::of(0.5, &[Fault::SlowDown, Fault::TooMany]));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..3 {
                    store.read_at("a", 5, &mut [0; 1000]).unwrap();
                }
            });
        }
    });
    assert!(proxy.most_at_once() <= 16, "{}", proxy.most_at_once());
    assert!(proxy.counts().contains_key(&Fault::TooMany));
}

#[test]
fn a_late_read_is_hedged() {
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 11, Plan::none());
    let wait = Duration::from_secs(300);
    let store = open_with("s3", &proxy.url(), server.settings(), &|mut options| {
        options.timeout = wait;
        options
    });
    store.put("a", &noise(100_000, 1), Put::Always).unwrap();
    let read = || store.read_at("a", 5, &mut [0; 1000]).unwrap();
    for _ in 0..60 {
        read();
    }
    proxy.set_plan(Plan::of(0.04, &[Fault::Hang]));
    let started = Instant::now();
    while proxy
        .counts()
        .get(&Fault::Hang)
        .is_none_or(|hung| *hung < 2)
    {
        read();
    }
    // A read that is not hedged would wait for its timeout.
    assert!(started.elapsed() < wait);
}

#[test]
fn waiting_for_bandwidth_does_not_time_out() {
    let server = S3Server::start();
    let store = open_with("s3", &server.url(), server.settings(), &|mut options| {
        // At this bandwidth each object takes three times the timeout.
        options.bandwidth = Some(200_000);
        options.timeout = Duration::from_millis(500);
        options
    });
    let bytes = noise(300_000, 1);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for i in 0..2 {
            let (store, bytes) = (&store, &bytes);
            scope.spawn(move || {
                let key = format!("narrow/{i}");
                store.put(&key, bytes, Put::Always).unwrap();
            });
        }
    });
    assert!(started.elapsed() > Duration::from_millis(2500));
}

#[test]
fn uploads_of_a_killed_process_are_aborted() {
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 12, Plan::none());
    let store = open_with("s3", &proxy.url(), server.settings(), &|options| {
        options.with_retry(Retry {
            max_attempts: 2,
            ..patient()
        })
    });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, noise(11 << 20, 1)).unwrap();
    let cancel = Cancel::new();
    // The store becomes unreachable after the first part, so the upload cannot be aborted.
    let progress = |_| proxy.set_outage(true);
    let transfer = Transfer {
        part_bytes: 5 << 20,
        parallel: 1,
        progress: &progress,
        ..Transfer::new(&cancel)
    };
    store.upload_file("left", &file, &transfer).unwrap_err();
    assert_eq!((server.open_uploads(), server.open_parts()), (1, 1));
    proxy.set_outage(false);
    store.abort_uploads_of("elsewhere").unwrap();
    assert_eq!(server.open_uploads(), 1);
    store.abort_uploads_of("left").unwrap();
    assert_eq!((server.open_uploads(), server.open_parts()), (0, 0));
}
