//! Which redirects are followed, to which hosts, and with which headers.

use forebay_rigs::{Gcs, Scripted};
use forebay_store::{Cancel, Error, ErrorKind, Location, Put, Store, StoreOptions, Transfer};
use std::net::TcpListener;
use std::path::Path;

const STATUSES: [u16; 5] = [301, 302, 303, 307, 308];
/// The marker in all credentials and in the queries of all redirects, which must not appear in errors.
const SECRET: &str = "MARKED";

fn open(url: &str, options: &StoreOptions) -> Store {
    Store::open(&Location::parse(url).unwrap(), options).unwrap()
}

/// A store of each kind of bucket, with credentials, at `endpoint`.
fn buckets(endpoint: &str) -> Vec<Store> {
    let with = |settings: &[(&str, &str)]| {
        let options = StoreOptions::new().with_endpoint(endpoint);
        settings.iter().fold(options, |options, (name, value)| {
            options.with(*name, *value)
        })
    };
    let s3 = with(&[
        ("aws_access_key_id", "MARKEDID"),
        ("aws_secret_access_key", "MARKEDSECRET"),
        ("aws_session_token", "MARKEDTOKEN"),
    ]);
    let google = Gcs::start()
        .settings()
        .into_iter()
        .fold(with(&[]), |options, (name, value)| {
            options.with(name, value)
        });
    let sas = [
        ("azure_storage_account_name", "account"),
        ("azure_storage_sas_key", "sv=2024&sig=MARKEDSIGNATURE"),
    ];
    let key = [
        ("azure_storage_account_name", "account"),
        ("azure_storage_account_key", "TUFSS0VESEVSRQ=="),
    ];
    vec![
        open("s3://bucket/x", &s3),
        open(
            "s3://bucket/x",
            &s3.with("aws_virtual_hosted_style_request", "false"),
        ),
        open("gs://bucket/x", &google),
        open("az://bucket/x", &with(&sas)),
        open("az://bucket/x", &with(&key)),
    ]
}

/// Makes every call that sends a request, and returns the errors.
fn calls(store: &Store, file: &Path) -> Vec<Error> {
    let cancel = Cancel::new();
    let transfer = Transfer {
        part_bytes: 5 << 20,
        ..Transfer::new(&cancel)
    };
    let target = file.with_extension("copy");
    let mut errors: Vec<Error> = [
        store.head("a").map(drop),
        store.get("a", 10).map(drop),
        store.read_at("a", 3, &mut [0; 4]),
        store.list("").map(drop),
        store.put("a", b"x", Put::Always).map(drop),
        store.put("a", b"x", Put::IfAbsent).map(drop),
        store.delete("a"),
        store.upload_file("a", file, &transfer).map(drop),
        store.download_file("a", &target, &transfer).map(drop),
    ]
    .into_iter()
    .map(Result::unwrap_err)
    .collect();
    // Azure has no uploads to list.
    errors.extend(store.abort_uploads_of("a").err());
    errors
}

#[test]
fn requests_to_a_bucket_follow_no_redirect() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 6 << 20]).unwrap();
    for status in STATUSES {
        let other = Scripted::start(|_, _| (200, Vec::new(), Vec::new()));
        let target = format!("http://{}/elsewhere?sig=MARKED", other.address());
        let first = Scripted::start(move |_, path| {
            assert!(!path.contains("elsewhere"));
            (status, vec![("Location", target.clone())], Vec::new())
        });
        for store in buckets(&format!("http://{}", first.address())) {
            for error in calls(&store, &file) {
                let shown = format!("{error} {error:?} {:?}", error.hint());
                assert!(!shown.contains(SECRET), "{shown}");
                assert!(shown.contains(&format!("answered {status}")), "{shown}");
                assert!(shown.contains("a redirect to 127.0.0.1;"), "{shown}");
                let kind = matches!(
                    error,
                    Error::Request {
                        kind: ErrorKind::Refused,
                        attempts: 1,
                        ..
                    }
                );
                assert!(kind, "{error:?}");
            }
        }
        assert!(first.take().len() > 40);
        assert_eq!(other.take(), Vec::<String>::new(), "{status}");
    }
}

#[test]
fn a_bucket_follows_no_redirect_within_its_origin() {
    let server = Scripted::start(|_, path| {
        assert!(!path.contains("elsewhere"), "{path}");
        (307, vec![("Location", "/elsewhere".to_owned())], Vec::new())
    });
    for store in buckets(&format!("http://{}", server.address())) {
        store.get("a", 10).unwrap_err();
    }
}

#[test]
fn the_hint_names_the_region_that_s3_returns() {
    let body = b"<Error><Code>PermanentRedirect</Code><Endpoint>b.s3.eu-central-1.amazonaws.com</Endpoint></Error>";
    let server = Scripted::start(|_, _| {
        let region = ("x-amz-bucket-region", "eu-central-1".to_owned());
        (301, vec![region], body.to_vec())
    });
    let stores = buckets(&format!("http://{}", server.address()));
    let error = stores[0].get("a", 10).unwrap_err();
    assert!(
        error.hint().unwrap().contains("region eu-central-1"),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("301 Moved Permanently"),
        "{error}"
    );
}

/// A web server with one file, which redirects from `/to/HEX` to the URL in hex, and from `/hops/N` N times.
fn web_server() -> Scripted {
    Scripted::start(|method, path| {
        if let Some(target) = path.strip_prefix("/to/") {
            let bytes: Vec<u8> = (0..target.len() / 2)
                .map(|i| u8::from_str_radix(&target[2 * i..2 * i + 2], 16).unwrap())
                .collect();
            let target = String::from_utf8(bytes).unwrap();
            return (302, vec![("Location", target)], Vec::new());
        }
        if let Some(hops) = path.strip_prefix("/hops/") {
            let left: u32 = hops.parse().unwrap();
            let next = match left {
                1 => "../file".to_owned(),
                _ => format!("{}", left - 1),
            };
            return (307, vec![("Location", next)], Vec::new());
        }
        let headers = vec![
            ("ETag", "\"1\"".to_owned()),
            ("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT".to_owned()),
            ("Content-Length", "5".to_owned()),
        ];
        let body = if method == "HEAD" {
            Vec::new()
        } else {
            b"hello".to_vec()
        };
        (200, headers, body)
    })
}

#[test]
fn five_redirects_within_a_web_origin_are_followed() {
    let server = web_server();
    let url = format!("http://{}", server.address());
    let store = open(&url, &StoreOptions::new());
    for hops in 1..=5 {
        let key = format!("hops/{hops}");
        assert_eq!(store.get(&key, 10).unwrap(), b"hello", "{hops}");
        assert_eq!(store.head(&key).unwrap().unwrap().len, 5, "{hops}");
    }
    for request in server.take() {
        let request = request.to_ascii_lowercase();
        for name in ["referer", "authorization", "cookie"] {
            assert!(!request.contains(name), "{request}");
        }
    }
    let error = store.get("hops/6", 10).unwrap_err();
    assert!(error.to_string().contains("at most five"), "{error}");
}

#[test]
fn redirects_to_private_addresses_are_refused() {
    let server = web_server();
    // A listener that shows whether a connection was made.
    let private = TcpListener::bind("127.0.0.1:0").unwrap();
    private.set_nonblocking(true).unwrap();
    let port = private.local_addr().unwrap().port();
    let store = open(
        &format!("http://{}/to", server.address()),
        &StoreOptions::new(),
    );
    for (target, host, why) in [
        (
            format!("http://127.0.0.1:{port}/?s=MARKED"),
            "127.0.0.1",
            "https:// only",
        ),
        (
            format!("http://localhost:{port}/"),
            "localhost",
            "https:// only",
        ),
        (
            "http://example.org/".to_owned(),
            "example.org",
            "https:// only",
        ),
        (
            format!("https://127.0.0.1:{port}/?s=MARKED"),
            "127.0.0.1",
            "private",
        ),
        (format!("https://localhost:{port}/"), "localhost", "private"),
        (
            format!("https://2130706433:{port}/"),
            "127.0.0.1",
            "private",
        ),
        (format!("https://0x7f.1:{port}/"), "127.0.0.1", "private"),
        (format!("https://[::1]:{port}/"), "[::1]", "private"),
        (
            format!("https://[::ffff:127.0.0.1]:{port}/"),
            "[::ffff:7f00:1]",
            "private",
        ),
        (
            format!("//user:MARKED@localhost:{port}/x#y"),
            "localhost",
            "https:// only",
        ),
        (
            "https://169.254.169.254/latest".to_owned(),
            "169.254.169.254",
            "private",
        ),
        ("https://10.0.0.1/".to_owned(), "10.0.0.1", "private"),
        ("https://[fe80::1]/".to_owned(), "[fe80::1]", "private"),
        (
            "https://[fd00:ec2::254]/".to_owned(),
            "[fd00:ec2::254]",
            "private",
        ),
    ] {
        let key: String = target.bytes().map(|byte| format!("{byte:02x}")).collect();
        let error = store.get(&key, 10).unwrap_err();
        let shown = format!("{error} {error:?} {:?}", error.hint());
        assert!(
            shown.contains(&format!("a redirect to {host};")),
            "{target}: {shown}"
        );
        assert!(shown.contains(why), "{target}: {shown}");
        assert!(!shown.contains(SECRET), "{shown}");
        let kind = matches!(
            error,
            Error::Request {
                kind: ErrorKind::Refused,
                attempts: 1,
                ..
            }
        );
        assert!(kind, "{error:?}");
    }
    let seen = private.accept().unwrap_err();
    assert_eq!(seen.kind(), std::io::ErrorKind::WouldBlock);
}
