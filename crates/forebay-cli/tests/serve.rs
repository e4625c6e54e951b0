//! `forebay serve` as a trainer meets it, and how it stops.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use forebay_client::{Client, ClientOptions, wire};
use support::{forebay, images, run, text};
use tempfile::TempDir;

fn packed() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("shards");
    run(["pack", text(&images()), text(&root), "--format", "indexed"]).done();
    (dir, root)
}

/// A server on any free port; ends when dropped.
struct Served {
    child: Child,
    url: String,
    rest: BufReader<ChildStdout>,
}

impl Served {
    fn start(root: &Path, more: &[&str]) -> Self {
        let mut child = forebay()
            .args(["serve", text(root), "--listen", "127.0.0.1:0"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut rest = BufReader::new(child.stdout.take().unwrap());
        let mut url = String::new();
        rest.read_line(&mut url).unwrap();
        Self {
            child,
            url: url.trim().to_owned(),
            rest,
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = std::process::Command::new("kill")
            .args(["-s", name, &pid])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Exit code, what stdout said after the URL, and stderr.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.rest.read_to_string(&mut stdout).unwrap();
        let mut pipe = self.child.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap().code(), stdout, stderr)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spec(batch_size: u64) -> wire::StreamSpec {
    wire::StreamSpec {
        split: "train".to_owned(),
        batch_size,
        world_size: 1,
        transform: Some(wire::Transform {
            kind: Some(wire::transform::Kind::Eval(wire::EvalTransform {
                resize: 64,
                crop: 56,
            })),
        }),
        ..wire::StreamSpec::default()
    }
}

#[test]
fn the_first_line_is_the_url_and_batches_come_from_it() {
    let (_dir, root) = packed();
    let served = Served::start(&root, &[]);
    assert!(
        served.url.starts_with("forebay://127.0.0.1:"),
        "{}",
        served.url
    );
    assert!(served.url.ends_with("/shards"), "{}", served.url);
    let client = Client::connect(&served.url, ClientOptions::default()).unwrap();
    let mut stream = client.open(spec(8)).unwrap();
    for _ in 0..6 {
        let batch = stream
            .next_batch()
            .unwrap()
            .expect("48 records are six batches");
        assert_eq!(batch.shape, [8, 56, 56, 3]);
    }
    drop(stream);
    served.signal("INT");
    let (code, stdout, stderr) = served.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.starts_with("Served "), "{stdout}");
    assert!(
        stderr.contains("forebay-client"),
        "connections are logged: {stderr}"
    );
}

#[test]
fn a_server_survives_garbage() {
    let (_dir, root) = packed();
    let served = Served::start(&root, &["--name", "pictures"]);
    let address = served.url.strip_prefix("forebay://").unwrap();
    let address = address.strip_suffix("/pictures").unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b""] {
        let mut socket = TcpStream::connect(address).unwrap();
        let _ = socket.write_all(garbage);
    }
    let client = Client::connect(&served.url, ClientOptions::default()).unwrap();
    assert_eq!(client.splits().len(), 2);
    let wrong = served.url.replace("pictures", "others");
    let error = Client::connect(&wrong, ClientOptions::default())
        .err()
        .unwrap();
    assert!(error.to_string().contains("pictures"), "{error}");
    drop(client);
    served.signal("TERM");
    assert_eq!(served.end().0, Some(0));
}

#[test]
fn events_of_a_server_are_json() {
    let (_dir, root) = packed();
    let served = Served::start(&root, &["--json"]);
    let first: serde_json::Value = serde_json::from_str(&served.url).unwrap();
    assert_eq!(first["type"], "serving");
    let client = Client::connect(first["url"].as_str().unwrap(), ClientOptions::default()).unwrap();
    drop(client);
    served.signal("INT");
    let (code, stdout, _) = served.end();
    assert_eq!(code, Some(0));
    let last: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["type"], "summary");
    assert_eq!(last["command"], "serve");
}

#[test]
fn serve_refuses_what_it_should() {
    let (_dir, root) = packed();
    run(["serve", "/nonexistent"]).failed_with(&["/nonexistent"]);
    let ran = run(["serve", text(&root), "--listen", "0.0.0.0:0"]).code(2);
    ran.explains("error: ", &["0.0.0.0"]);
    assert!(ran.stderr.contains("--insecure"), "{}", ran.stderr);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    run(["serve", text(&root), "--listen", &address]).failed_with(&[&address]);
    run([
        "serve",
        text(&root),
        "--name",
        "a/b",
        "--listen",
        "127.0.0.1:0",
    ])
    .failed_with(&["a/b"]);
}
