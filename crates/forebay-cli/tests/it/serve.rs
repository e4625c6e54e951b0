//! `forebay serve` as a trainer meets it, and how it stops.

use crate::support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use forebay_client::{Client, ClientOptions, LoaderOptions};
use support::{forebay, images, run, text};
use tempfile::TempDir;

pub(crate) fn packed() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("shards");
    run(["pack", text(&images()), text(&root), "--format", "indexed"]).done();
    (dir, root)
}

/// A server on any free port; ends when dropped.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) url: String,
    rest: BufReader<ChildStdout>,
}

impl Served {
    fn start(root: &Path, more: &[&str]) -> Self {
        Self::start_with(root, more, &[])
    }

    fn start_with(root: &Path, more: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = forebay()
            .args(["serve", text(root), "--listen", "127.0.0.1:0"])
            .args(more)
            .envs(variables.iter().copied())
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

    /// A server with the address of its dashboard.
    pub(crate) fn watched(root: &Path) -> (Self, String) {
        let mut served = Self::start(root, &["--json", "--admin-listen", "127.0.0.1:0"]);
        let url: serde_json::Value = serde_json::from_str(&served.url).unwrap();
        served.url = url["url"].as_str().unwrap().to_owned();
        let mut line = String::new();
        while !line.contains("\"admin\"") {
            line.clear();
            assert!(served.rest.read_line(&mut line).unwrap() > 0);
        }
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        (served, event["address"].as_str().unwrap().to_owned())
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

pub(crate) fn spec(batch_size: u64) -> LoaderOptions {
    let transform = r#"{"kind": "eval", "resize": 64, "crop": 56}"#;
    let json =
        format!(r#"{{"split": "train", "batch_size": {batch_size}, "transform": {transform}}}"#);
    serde_json::from_str(&json).unwrap()
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
    run(["serve", "/proc/nonexistent"]).failed_with(&["/proc/nonexistent"]);
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

/// A directory with a dataset and this CONFIG.toml.
fn configured(config: &str) -> (TempDir, PathBuf) {
    let (dir, _) = packed();
    let file = dir.path().join("CONFIG.toml");
    std::fs::write(&file, config).unwrap();
    (dir, file)
}

const WATCHED: &str = r#"
health_listen = "127.0.0.1:0"
admin_images = false

[datasets.shards]
path = "shards"
"#;

const JOBS: &str = r#"
listen = "127.0.0.1:0"
token_file = "tokens"

[datasets.pictures]
path = "shards"

[jobs.small]
split = "train"
batch_size = 4
world_size = 2
transform = { kind = "eval", resize = 64, crop = 56 }

[jobs.encoded]
split = "train"
transform = "keep_encoded"
shuffle = true
"#;

#[test]
fn a_configuration_has_datasets_and_jobs() {
    let (dir, file) = configured(JOBS);
    std::fs::write(dir.path().join("tokens"), "marked-0123456789 small\n").unwrap();
    let checked = run(["serve", text(&file), "--dry-run"]).done();
    for part in ["/pictures", "/small", "/encoded", "2 ranks of 4 samples"] {
        assert!(checked.stdout.contains(part), "{}", checked.stdout);
    }
    // Flags win over the file.
    let ran = run(["serve", text(&file), "--dry-run", "--max-connections", "7"]).done();
    assert!(
        ran.stdout.contains("at most 7 connections"),
        "{}",
        ran.stdout
    );

    let served = Served::start(&file, &["--log-format", "json"]);
    let url = served.url.replace("/pictures", "/small");
    let token = forebay_client::Token::new("marked-0123456789", "a test").unwrap();
    let options = ClientOptions {
        credential: Some(forebay_client::Credential::Token(token)),
        ..ClientOptions::default()
    };
    let client = Client::connect(&url, options.clone()).unwrap();
    let mut stream = client.open(LoaderOptions::default()).unwrap();
    let batch = stream.next_batch().unwrap().unwrap();
    assert_eq!(batch.shape, [4, 56, 56, 3]);
    assert_eq!(stream.info().world_size(), 2);
    assert!(
        Client::connect(&served.url, options).is_err(),
        "the token is for small"
    );
    assert!(Client::connect(&url, ClientOptions::default()).is_err());
    drop((stream, client));
    served.signal("HUP");
    served.signal("TERM");
    let (code, stdout, stderr) = served.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        !stderr.contains("marked") && !stdout.contains("marked"),
        "{stderr}"
    );
    let events = json_lines(&stderr);
    let named = |name: &str| events.iter().find(|event| event["event"] == name);
    let opened = named("opened").unwrap_or_else(|| panic!("{stderr}"));
    assert_eq!(opened["name"], "small");
    assert_eq!(opened["batch_size"], 4);
    assert!(opened["time"].as_str().unwrap().ends_with('Z'));
    assert!(named("stopped").is_some(), "{stderr}");
}

/// The lines of a log, each of which has to be an object with what all have.
fn json_lines(log: &str) -> Vec<serde_json::Value> {
    let read = |line: &str| -> serde_json::Value {
        let event: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        for name in ["time", "level", "event", "message"] {
            assert!(event[name].is_string(), "{name} of {line}");
        }
        event
    };
    log.lines().map(read).collect()
}

#[test]
fn every_line_of_a_json_log_is_json() {
    let (_dir, root) = configured(WATCHED);
    let more = [
        "--log-format",
        "json",
        "--admin-listen",
        "127.0.0.1:0",
        "--color",
        "always",
        "-v",
    ];
    let served = Served::start_with(&root, &more, &[("FOREBAY_NO_SUCH_VARIABLE", "1")]);
    let client = Client::connect(&served.url, ClientOptions::default()).unwrap();
    let train = serde_json::json!({"split": "train", "transform": "train"});
    let train: LoaderOptions = serde_json::from_value(train).unwrap();
    let mut stream = client.open(train).unwrap();
    assert!(stream.next_batch().unwrap().is_some());
    let wrong = LoaderOptions::default().with_split("no-such");
    assert!(client.open(wrong).is_err());
    drop((stream, client));
    served.signal("HUP");
    served.signal("TERM");
    let (code, _, stderr) = served.end();
    assert_eq!(code, Some(0), "{stderr}");
    let events = json_lines(&stderr);
    let has = |event: &str, part: &str| {
        let mut lines = events.iter().filter(|line| line["event"] == event);
        lines.any(|line| line["message"].as_str().unwrap().contains(part))
    };
    assert!(has("warning", "FOREBAY_NO_SUCH_VARIABLE"), "{stderr}");
    assert!(has("note", "Dashboard: http://"), "{stderr}");
    assert!(has("note", "Ctrl-C stops"), "{stderr}");
    assert!(has("stopped", ""), "{stderr}");
    // One that does not start says so in the same way.
    let ran = run(["serve", "/proc/nonexistent", "--log-format", "json"]);
    let last = json_lines(&ran.stderr).pop().unwrap();
    assert_eq!(
        (&last["event"], &last["level"]),
        (&"error".into(), &"error".into())
    );
    assert!(
        last["message"]
            .as_str()
            .unwrap()
            .contains("/proc/nonexistent")
    );
}

#[test]
fn a_configuration_that_is_wrong_says_where() {
    let refused = |config: &str, texts: &[&str]| {
        let (dir, file) = configured(config);
        std::fs::write(dir.path().join("tokens"), "marked-0123456789\n").unwrap();
        let ran = run(["serve", text(&file), "--dry-run"]);
        assert!(ran.code == 1 || ran.code == 2, "{}", ran.stderr);
        ran.explains("error: ", texts);
        ran.stderr
    };
    let stderr = refused(
        &JOBS.replace("batch_size", "bach_size"),
        &["line 10", "bach_size"],
    );
    assert!(stderr.contains("did you mean `batch_size`?"), "{stderr}");
    refused(
        &JOBS.replace("batch_size = 4", "batch_size = 40\ndrop_last = true"),
        &["small", "80"],
    );
    refused(
        &JOBS.replace("split = \"train\"\nbatch", "split = \"test\"\nbatch"),
        &["small", "test"],
    );
    refused(
        &JOBS.replace("split = \"train\"\nbatch", "batch"),
        &["small", "split"],
    );
    refused(
        &JOBS.replace("[jobs.small]", "[jobs.small]\ndataset = \"no\""),
        &["small", "pictures"],
    );
    refused(&JOBS.replace("\"tokens\"", "\"missing\""), &["missing"]);
    refused(&JOBS.replace("\"shards\"", "\"gone\""), &["gone"]);
    refused(&JOBS.replace("jobs.small", "jobs.pictures"), &["pictures"]);
    refused("listen = \"127.0.0.1:0\"\n", &["names no dataset"]);
}

#[test]
fn several_datasets_and_half_of_tls() {
    let (dir, root) = packed();
    let other = dir.path().join("other");
    run(["convert", text(&root), text(&other), "--format", "tfrecord"]).done();
    let args = [
        "serve",
        text(&root),
        text(&other),
        "--dry-run",
        "--listen",
        "127.0.0.1:0",
    ];
    let ran = run(args).done();
    assert!(
        ran.stdout.contains("/shards") && ran.stdout.contains("/other"),
        "{}",
        ran.stdout
    );
    let ran = run(["serve", text(&root), "--tls-cert", "x.pem"]).code(2);
    ran.explains("error: ", &["--tls-key"]);
    let ran = run([
        "serve",
        text(&root),
        "--tls-cert",
        "x.pem",
        "--tls-key",
        "x.key",
    ]);
    ran.code(1).explains("error: ", &["x.pem"]);
}

#[test]
fn a_server_is_watched_from_a_terminal() {
    let (_dir, root) = configured(WATCHED);
    let more = ["--json", "--admin-listen", "127.0.0.1:0"];
    let mut served = Served::start(&root, &more);
    let first: serde_json::Value = serde_json::from_str(&served.url).unwrap();
    let mut address_of = |listener: &str| loop {
        let mut line = String::new();
        assert!(
            served.rest.read_line(&mut line).unwrap() > 0,
            "no {listener} event"
        );
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        if event["type"] == listener {
            break event["address"].as_str().unwrap().to_owned();
        }
    };
    let (address, health) = (address_of("admin"), address_of("health"));
    let mut probe = std::net::TcpStream::connect(&health).unwrap();
    std::io::Write::write_all(&mut probe, b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut probe, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    let client = Client::connect(first["url"].as_str().unwrap(), ClientOptions::default()).unwrap();
    let mut stream = client.open(spec(8)).unwrap();
    stream.next_batch().unwrap().unwrap();
    // Not a terminal: it is printed once.
    for args in [&["top", &address][..], &["top", &address, "--once"]] {
        let ran = run(args).done();
        assert!(
            ran.stdout.starts_with("forebay on 127.0.0.1:"),
            "{}",
            ran.stdout
        );
        assert!(
            ran.stdout.contains("shards  dataset") && !ran.stdout.contains('\x1b'),
            "{}",
            ran.stdout
        );
        assert!(
            ran.stdout.lines().all(|line| line.chars().count() <= 80),
            "{}",
            ran.stdout
        );
    }
    let url = format!("http://{address}/");
    let ran = run(["top", &url, "--once", "--json"]).done();
    let lines: Vec<serde_json::Value> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [status, summary] = &lines[..] else {
        panic!("{}", ran.stdout)
    };
    assert_eq!(
        (&status["type"], &status["format"]),
        (&"status".into(), &1.into())
    );
    assert_eq!(status["served"][0]["ranks"][0]["batch_size"], 8);
    assert_eq!(status["images"], false);
    assert_eq!(
        (&summary["type"], &summary["command"]),
        (&"summary".into(), &"top".into())
    );
    // The port of trainers is another one, and so is a port without a listener.
    let trainers = first["address"].as_str().unwrap();
    run(["top", trainers, "--once"]).failed_with(&[trainers]);
    run(["top", first["url"].as_str().unwrap()]).code(2);
    drop((stream, client));
    served.signal("INT");
    assert_eq!(served.end().0, Some(0));
    run(["top", &address])
        .failed_with(&[&address])
        .explains("hint: ", &["--admin-listen"]);
}

#[test]
fn two_servers_are_watched_while_one_of_them_is_killed() {
    let (_dir, root) = packed();
    let ((first, a), (mut second, b)) = (Served::watched(&root), Served::watched(&root));
    let client = Client::connect(&first.url, ClientOptions::default()).unwrap();
    let mut stream = client.open(spec(8)).unwrap();
    stream.next_batch().unwrap().unwrap();

    let ran = run(["top", &a, &b]).done();
    assert!(
        ran.stdout.starts_with("forebay on 2 servers  serving"),
        "{}",
        ran.stdout
    );
    for row in [format!("  {a}"), format!("  {b}")] {
        assert!(ran.stdout.contains(&row), "{}", ran.stdout);
    }

    let mut top = forebay()
        .args(["top", &a, &b, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(top.stdout.take().unwrap()).lines();
    let mut next = || -> serde_json::Value {
        serde_json::from_str(&lines.next().expect("it goes on").unwrap()).unwrap()
    };
    let both = next();
    assert_eq!(both["type"], "status");
    assert_eq!(
        (&both["format"], &both["state"]),
        (&1.into(), &"serving".into())
    );
    assert_eq!(both["connections"]["streams"], 1);
    assert_eq!(both["servers"][0]["server"], a.as_str());
    assert_eq!(both["servers"][1]["report"]["served"][0]["name"], "shards");

    second.child.kill().unwrap();
    second.child.wait().unwrap();
    let one = loop {
        let status = next();
        if !status["servers"][1]["error"].is_null() {
            break status;
        }
    };
    assert_eq!(one["state"], "1 of 2 serving");
    assert_eq!(one["servers"][0]["report"]["connections"]["streams"], 1);
    assert!(one["servers"][1]["report"].is_null(), "{one}");
    let text = one["bottleneck"]["text"].as_str().unwrap();
    assert!(text.ends_with(&format!("; no answer from {b}")), "{text}");
    let ran = run(["top", &a, &b, "--once"]).done();
    assert!(ran.stdout.contains("no answer for 1s"), "{}", ran.stdout);
    assert!(
        ran.stdout.contains(&format!("cannot ask {b}: ")),
        "{}",
        ran.stdout
    );

    drop((stream, client));
    first.signal("KILL");
    first.end();
    let mut stderr = String::new();
    top.stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert_eq!(top.wait().unwrap().code(), Some(1), "{stderr}");
    assert!(
        stderr.starts_with("error: none of 2 servers answers: "),
        "{stderr}"
    );
}

#[test]
fn one_job_by_flags() {
    let (_dir, root) = packed();
    let job = [
        "--job",
        "trial",
        "-osplit=train",
        "-obatch_size=4",
        "-oworld_size=2",
        "-otransform={ kind = \"eval\", resize = 64, crop = 56 }",
        "-oweight=2.5",
    ];
    let check = ["serve", text(&root), "--dry-run", "--listen", "127.0.0.1:0"];
    let ran = run(check.iter().chain(&job)).done();
    for part in [
        "/trial",
        "2 ranks of 4 samples",
        "an epoch of 48 samples: 6 batches of 37.6 kB (uint8, nhwc)",
        "weight 2.5",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let served = Served::start(&root, &job);
    let url = served.url.replace("/shards", "/trial");
    let client = Client::connect(&url, ClientOptions::default()).unwrap();
    let mut stream = client.open(LoaderOptions::default()).unwrap();
    assert_eq!(stream.next_batch().unwrap().unwrap().shape, [4, 56, 56, 3]);
    assert_eq!(stream.info().world_size(), 2);

    let ran = run(check.iter().chain(&["-o", "batch_size=4"])).code(2);
    ran.explains("error: ", &["-o is about a job"]);
    assert!(ran.stderr.contains("--job NAME"), "{}", ran.stderr);
    run(check.iter().chain(&["--job", "trial"]))
        .code(2)
        .explains(
            "error: ",
            &["--job trial", "option transform is not given", "eval"],
        );
    run(check
        .iter()
        .chain(&["--job", "trial", "-o", "transform=train"]))
    .code(2)
    .explains("error: ", &["--job trial", "train, validation"]);
    let nothing = ["--job", "trial", "-osplit=train", "-oweight=0"];
    run(check
        .iter()
        .chain(&nothing)
        .chain(&["-o", "transform=train"]))
    .code(2)
    .explains("error: ", &["weight is 0"]);
    let (dir, file) = configured(JOBS);
    std::fs::write(dir.path().join("tokens"), "marked-0123456789\n").unwrap();
    run(["serve", text(&file), "--dry-run", "--job", "trial"])
        .code(2)
        .explains("error: ", &["--job trial", "CONFIG.toml"]);
}

#[test]
fn synthetic_datasets_and_empty_batches_are_served() {
    for (url, name) in [
        ("synthetic://imagenet?records=64&pictures=1", "/imagenet"),
        ("synthetic://imagenet?records=64&decode=off", "/imagenet"),
    ] {
        let job = [
            "--job",
            "trial",
            "-o",
            "batch_size=8",
            "-o",
            "transform=train",
        ];
        let served = Served::start(Path::new(url), &job);
        assert!(served.url.ends_with(name), "{}", served.url);
        let client = Client::connect(&served.url, ClientOptions::default()).unwrap();
        assert_eq!(client.splits()[0].records, 64);
        let mut stream = client.open(spec(8)).unwrap();
        let batch = stream.next_batch().unwrap().unwrap();
        assert_eq!(batch.shape, [8, 56, 56, 3]);
        let trial = served.url.replace(name, "/trial");
        let client = Client::connect(&trial, ClientOptions::default()).unwrap();
        let mut stream = client.open(LoaderOptions::default()).unwrap();
        assert_eq!(
            stream.next_batch().unwrap().unwrap().shape,
            [8, 224, 224, 3]
        );
    }
    let ran = run(["serve", "synthetic://imagenet?lateny=5ms", "--dry-run"]).code(2);
    ran.explains("error: ", &["lateny"]);
    assert!(
        ran.stderr.contains("did you mean latency"),
        "{}",
        ran.stderr
    );
    let url = "synthetic://imagenet?records=3&pictures=1";
    let ran = run(["inspect", url]).done();
    assert!(ran.stdout.contains("train"), "{}", ran.stdout);
    run(["verify", url]).done();
    run([
        "verify",
        "synthetic://imagenet?records=3&pictures=1&damage=1",
    ])
    .code(1);
}
