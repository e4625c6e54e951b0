//! `forebay cache`: a dataset on a web server is fetched once, looked at, and thrown out.

use crate::support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use support::{images, run, text};

/// Files by path, over HTTP with ranges; counts the bytes that it sends.
struct Web {
    files: BTreeMap<String, Vec<u8>>,
    sent: AtomicU64,
}

impl Web {
    fn start(root: &Path) -> (Arc<Self>, String) {
        let files = support::tree(root)
            .into_iter()
            .map(|(path, bytes): (PathBuf, Vec<u8>)| (format!("/{}", path.display()), bytes))
            .collect();
        let web = Arc::new(Self {
            files,
            sent: AtomicU64::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = Arc::clone(&web);
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let web = Arc::clone(&serving);
                std::thread::spawn(move || web.answer(stream));
            }
        });
        (web, url)
    }

    fn answer(&self, mut stream: TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        loop {
            let first = lines.next()?.ok()?;
            let mut words = first.split(' ');
            let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
            let mut range = None;
            for line in lines.by_ref() {
                let line = line.ok()?;
                if line.is_empty() {
                    break;
                }
                if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                    let (from, to) = bytes.split_once('-')?;
                    range = Some(from.parse::<usize>().ok()?..to.parse::<usize>().ok()? + 1);
                }
            }
            let Some(file) = self.files.get(&path) else {
                stream
                    .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    .ok()?;
                continue;
            };
            let whole = 0..file.len();
            let wanted = range.clone().unwrap_or(whole);
            let wanted = wanted.start..wanted.end.min(file.len());
            let status = if range.is_some() {
                "206 Partial Content"
            } else {
                "200 OK"
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\netag: \"{}\"\r\naccept-ranges: bytes\r\n\
                 last-modified: Sat, 01 Jan 2022 00:00:00 GMT\r\ncontent-range: bytes {}-{}/{}\r\n\r\n",
                wanted.len(),
                path.len(),
                wanted.start,
                wanted.end.max(1) - 1,
                file.len(),
            );
            stream.write_all(head.as_bytes()).ok()?;
            if method != "HEAD" {
                self.sent.fetch_add(wanted.len() as u64, Ordering::Relaxed);
                stream.write_all(&file[wanted]).ok()?;
            }
        }
    }

    fn take_sent(&self) -> u64 {
        self.sent.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn a_dataset_is_warmed_once_looked_at_and_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let (set, cache) = (dir.path().join("set"), dir.path().join("cache"));
    run(["pack", text(&images()), text(&set), "--format", "indexed"]).done();
    let (web, url) = Web::start(&set);
    let warm = |extra: &[&str]| {
        let mut args = vec!["cache", &url, "--cache-dir", text(&cache), "--json"];
        args.extend(extra);
        run(args)
    };
    let first = warm(&["--cache-bytes", "1GiB"]).done().summary();
    let total = first["total_bytes"].as_u64().unwrap();
    assert_eq!(first["fetched_bytes"], total, "{first}");
    assert_eq!(first["refused_bytes"], 0);
    let shards: u64 = web
        .files
        .iter()
        .filter(|(path, _)| path.ends_with(".fbs"))
        .map(|(_, bytes)| bytes.len() as u64)
        .sum();
    assert_eq!(total, shards);
    assert!(web.take_sent() >= shards);

    let second = warm(&["--cache-bytes", "1GiB"]).done().summary();
    assert_eq!(
        (&second["present_bytes"], &second["fetched_bytes"]),
        (&total.into(), &0.into())
    );
    assert!(web.take_sent() < shards / 2, "the manifest alone");

    let status = run(["cache", "--cache-dir", text(&cache), "--json"])
        .done()
        .summary();
    assert_eq!(status["locations"][0]["location"], url, "{status}");
    assert_eq!(status["users"], 0);
    assert!(status["used_bytes"].as_u64().unwrap() > total);
    let shown = run(["cache", "--cache-dir", text(&cache)]).done();
    assert!(
        shown.stdout.contains(&url) && shown.stdout.contains("not in use"),
        "{}",
        shown.stdout
    );

    warm(&["--split", "nope"])
        .code(2)
        .explains("error: ", &["nope"]);
    let tried = run([
        "cache",
        "--clear",
        "--cache-dir",
        text(&cache),
        "-n",
        "--json",
    ])
    .done()
    .summary();
    assert!(tried["blocks"].as_u64().unwrap() > 0 && cache.exists());
    run(["cache", "--clear", "--cache-dir", text(&cache)]).done();
    assert!(!cache.exists());
}

#[test]
fn a_new_cache_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let place = ["--cache-dir", text(dir.path())];
    // It is created, but there is no dataset.
    let (_web, url) = Web::start(dir.path());
    let fetch = ["cache", &url, "--cache-bytes", "1GiB"];
    run([&fetch, &place[..]].concat()).code(1);
    let shown = run([&["cache"], &place[..]].concat()).done().stdout;
    assert!(
        shown.contains("  empty; ") && !shown.contains("block"),
        "{shown}"
    );
    let clear = ["cache", "--clear", "-n"];
    let cleared = run([&clear, &place[..]].concat()).done().stdout;
    assert!(cleared.starts_with("Nothing to remove from "), "{cleared}");
}

#[test]
fn what_is_no_cache_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "years").unwrap();
    let place = ["--cache-dir", text(dir.path())];
    for clear in [&[][..], &["--clear"]] {
        run([&["cache"], clear, &place].concat()).failed_with(&["cannot be used as a cache"]);
    }
    let local = run([&["cache", text(dir.path())], &place[..]].concat()).code(2);
    local.explains("error: ", &["local directory"]);
    let tried = run(["cache", "--dry-run"]).code(2);
    assert!(tried.stderr.contains("--clear"), "{}", tried.stderr);
    run(["cache", "http://127.0.0.1:1/x"])
        .code(2)
        .explains("error: ", &["no cache"]);
    let new = dir.path().join("new");
    let small = ["--cache-bytes", "1MiB", "--cache-dir", text(&new)];
    let small = run([&["cache", "http://127.0.0.1:1/x"], &small[..]].concat());
    small.failed_with(&["too small", "it needs"]);
    assert_eq!(
        std::fs::read(dir.path().join("thesis.tex")).unwrap(),
        b"years"
    );
}
