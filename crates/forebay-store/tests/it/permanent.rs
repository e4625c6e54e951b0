//! Permanent faults end an operation at the first response, and long waits are reported.

use forebay_rigs::{BUCKET, Fault, FaultProxy, Plan, S3Server, Scripted};
use forebay_store::{Location, Retry, Store, StoreOptions, on_long_wait};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// The waits between retries are so long that a test with an unexpected retry would take noticeably long.
fn options(url: &str) -> StoreOptions {
    let waits = Retry {
        first_wait: Duration::from_secs(20),
        max_wait: Duration::from_secs(20),
        ..Retry::default()
    };
    let start = StoreOptions::new().with_endpoint(url).with_retry(waits);
    let keys = S3Server::keys().into_iter();
    keys.fold(start, |options, (name, value)| options.with(name, value))
}

fn place(below: &str) -> Location {
    Location::parse(format!("s3://{BUCKET}/{below}")).unwrap()
}

fn refusal(code: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code><Message>no</Message></Error>").into_bytes()
}

/// A server that refuses every request with this response; the response to HEAD has no body.
fn refusing(status: u16, code: &'static str, date: Option<SystemTime>) -> Scripted {
    Scripted::start(move |_, _| {
        let date = date.map(|time| ("Date", httpdate::fmt_http_date(time)));
        (status, Vec::from_iter(date), refusal(code))
    })
}

#[test]
fn permanent_faults_end_an_operation_at_once() {
    for (status, code) in [
        (400, "ExpiredToken"),
        (400, "TokenRefreshRequired"),
        (400, "InvalidToken"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (403, "RequestTimeTooSkewed"),
        (403, "AccessDenied"),
        (401, "Unauthorized"),
        (404, "NoSuchBucket"),
    ] {
        let server = refusing(status, code, None);
        let store = Store::open(
            &place("x"),
            &options(&format!("http://{}", server.address())),
        );
        let store = store.unwrap();
        let mut errors = vec![
            store.get("a", 9).unwrap_err(),
            store.list("").unwrap_err(),
            store.read_at("a", 0, &mut [0; 5]).unwrap_err(),
        ];
        assert_eq!(server.take().len(), 3, "{code}");
        // The response to HEAD has no body, so the client sends a GET to learn the reason.
        if status != 404 {
            errors.push(store.head("a").unwrap_err());
            assert_eq!(server.take().len(), 2, "{code}");
        }
        for error in errors {
            assert!(error.to_string().contains(code), "{error}");
            assert!(!error.may_pass(), "{error}");
            assert_eq!(error.hint().is_some(), status != 404, "{error}");
        }
    }
}

#[test]
fn a_wrong_clock_is_detected_from_the_response() {
    let there = SystemTime::now() - Duration::from_secs(3 * 3600);
    for code in ["RequestTimeTooSkewed", "SignatureDoesNotMatch"] {
        let server = refusing(403, code, Some(there));
        let url = format!("http://{}", server.address());
        let store = Store::open(&place("x"), &options(&url)).unwrap();
        for error in [store.get("a", 9).unwrap_err(), store.head("a").unwrap_err()] {
            let text = error.to_string();
            assert!(text.contains("clock of this machine is 3h"), "{text}");
            assert!(text.contains("ahead of the store's"), "{text}");
            assert!(error.hint().unwrap().contains("NTP"), "{error:?}");
        }
    }
}

/// A request that is refused as malformed may have been damaged in transit, and is retried. If many requests are refused,
/// damage is not the cause, and the retries end.
#[test]
fn refusals_of_many_requests_are_not_retried() {
    let server = refusing(400, "InvalidRequest", None);
    let mut options = options(&format!("http://{}", server.address()));
    options.retry = Retry {
        first_wait: Duration::ZERO,
        max_wait: Duration::ZERO,
        ..Retry::default()
    };
    let store = Store::open(&place("x"), &options).unwrap();
    let begin = SystemTime::now();
    for _ in 0..300 {
        store.get("a", 9).unwrap_err();
    }
    // Five retry tokens are added each second.
    let seconds = begin.elapsed().unwrap().as_secs() as usize;
    assert!(server.take().len() <= 300 + 50 + 5 * (seconds + 1));
}

#[test]
fn long_waits_are_reported_once() {
    let said = Arc::<Mutex<Vec<String>>>::default();
    let to = Arc::clone(&said);
    on_long_wait(move |line| to.lock().unwrap().push(line.to_owned()));
    let server = S3Server::start();
    // Only a server that hangs may run into the timeout, on a busy machine too.
    for (fault, timeout_ms, why) in [
        (Fault::SlowDown, 20_000, "503"),
        (Fault::Hang, 60, "no answer for"),
    ] {
        let proxy = FaultProxy::new(server.address(), 1, Plan::of(1.0, &[fault]));
        let retry = Retry {
            first_wait: Duration::from_millis(1),
            max_wait: Duration::from_millis(1),
            say_after: Duration::from_millis(20),
            max_attempts: 30,
            ..Retry::default()
        };
        let mut options = options(&proxy.url()).with_retry(retry);
        options.timeout = Duration::from_millis(timeout_ms);
        let key = format!("{fault:?}");
        let store = Store::open(&place("said"), &options).unwrap();
        for _ in 0..2 {
            store.get(&key, 9).unwrap_err();
        }
        let said = said.lock().unwrap();
        let about: Vec<&String> = said.iter().filter(|line| line.contains(&key)).collect();
        assert_eq!(about.len(), 1, "{said:?}");
        assert!(about[0].contains(why), "{about:?}");
        assert!(about[0].contains("waiting to read s3://"), "{about:?}");
    }
    // A server that limits requests asks for a pause that is longer than retries go on.
    let asked = AtomicUsize::new(0);
    let server = Scripted::start(move |_, _| match asked.fetch_add(1, Ordering::Relaxed) {
        0..2 => (429, vec![("Retry-After", "1".to_owned())], Vec::new()),
        _ => (200, vec![("ETag", "\"e\"".to_owned())], b"ok".to_vec()),
    });
    let retry = Retry {
        first_wait: Duration::ZERO,
        max_wait: Duration::ZERO,
        say_after: Duration::from_millis(500),
        give_up_after: Duration::from_millis(600),
        ..Retry::default()
    };
    let options = options(&format!("http://{}", server.address())).with_retry(retry);
    let store = Store::open(&place("said"), &options).unwrap();
    assert_eq!(store.get("limited", 9).unwrap(), b"ok");
    let said = said.lock().unwrap();
    let about: Vec<&String> = said.iter().filter(|l| l.contains("limited")).collect();
    assert_eq!(about.len(), 1, "{said:?}");
    assert!(about[0].contains("the next try is in 1 s"), "{about:?}");
}

#[test]
fn directory_markers_are_not_listed() {
    let server = S3Server::with_folders();
    let store = Store::open(&place("set"), &options(&server.url())).unwrap();
    for key in ["photos/a.jpg", "photos/more/b.jpg", "c.jpg"] {
        let put = forebay_store::Put::Always;
        store.put(key, b"image", put).unwrap();
    }
    std::fs::create_dir(server.object_file("set/empty")).unwrap();
    let all = store.list_all("").unwrap();
    let keys: Vec<&str> = all.objects.iter().map(|o| o.key.as_str()).collect();
    assert_eq!(keys, ["c.jpg", "photos/a.jpg", "photos/more/b.jpg"]);
    assert!(all.left_out.is_empty());
    let level = store.list_dir("photos").unwrap();
    let keys: Vec<&str> = level.objects.iter().map(|o| o.key.as_str()).collect();
    assert_eq!(
        (keys, level.dirs),
        (vec!["photos/a.jpg"], vec!["photos/more".to_owned()])
    );
}
