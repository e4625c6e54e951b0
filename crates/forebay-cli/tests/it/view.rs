//! `forebay view` of each kind of source, through its HTTP interface.

use crate::support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_rigs::S3Server;
use serde_json::Value;
use support::{forebay, images, run, text};

/// Nothing here takes this long unless it hangs.
const LONG: Duration = Duration::from_secs(120);

/// A running viewer.
struct Viewer {
    child: Child,
    url: String,
}

impl Viewer {
    fn start(source: &str) -> Self {
        Self::of(forebay().args(["view", source]))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
        let mut viewer = Self {
            child,
            url: url.trim().to_owned(),
        };
        if viewer.url.is_empty() {
            let mut stderr = String::new();
            let mut pipe = viewer.child.stderr.take().unwrap();
            pipe.read_to_string(&mut stderr).unwrap();
            panic!("no address: {stderr}");
        }
        viewer
    }

    fn get(&self, path: &str) -> (u16, Vec<u8>) {
        let address = self.url.trim_start_matches("http://").trim_end_matches('/');
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        let request =
            format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap();
        let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
        (status, answer.split_off(end + 4))
    }

    fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// Waits until a field of the progress is true.
    fn until(&self, is_so: impl Fn(&Value) -> bool) {
        let end = Instant::now() + LONG;
        loop {
            let progress = self.json("api/progress");
            if is_so(&progress) {
                return;
            }
            assert!(Instant::now() < end, "{progress}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_read(&self) {
        self.until(|progress| {
            progress["indexed"] == true && progress["read"] == progress["records"]
        });
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The keys, classes and sizes of all records, sorted.
fn rows(viewer: &Viewer) -> Vec<(String, Value, Value)> {
    viewer.wait_read();
    let records = viewer.json("api/records?limit=1000&again=true");
    let rows = records["records"].as_array().unwrap().iter();
    let rows = rows.map(|row| {
        let key = row["key"].as_str().unwrap().to_owned();
        (key, row["class"].clone(), row["size"].clone())
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}

#[test]
fn every_kind_of_source_shows_the_same_samples() {
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    let (packed, tfrecord, archive) = (path("packed"), path("tfrecord"), path("images.tar"));
    let from = images();
    let compressed = path("images.tar.gz");
    for (flag, to) in [("-cf", &archive), ("-czf", &compressed)] {
        let tar = [flag, text(to), "-C", text(&from), "."];
        assert!(Command::new("tar").args(tar).status().unwrap().success());
    }
    let pack = ["pack", "-q", text(&images())].map(str::to_owned);
    for (to, format) in [(&packed, "indexed"), (&tfrecord, "tfrecord")] {
        let more = [text(to), "--format", format, "--label-base", "0"].map(str::to_owned);
        run(pack.iter().cloned().chain(more)).done();
    }
    let expected = rows(&Viewer::start(text(&images())));
    assert!(expected.len() > 40 && expected.iter().all(|row| row.1.is_string()));
    let mut sources = vec![
        packed.clone(),
        tfrecord,
        packed.join("train-00000-of-00001.fbs"),
        archive.clone(),
        compressed.clone(),
    ];
    for format in ["webdataset", "mds"] {
        let to = path(format);
        run([
            "convert",
            "-q",
            text(&packed),
            text(&to),
            "--format",
            format,
        ])
        .done();
        sources.push(to);
    }
    for source in &sources {
        let viewer = Viewer::start(text(source));
        let shown = rows(&viewer);
        // A compressed archive is read in its order: the keys are whole paths. A shard has no names of classes.
        let is_shard = source.extension().is_some_and(|end| end == "fbs");
        for row in &shown {
            let key = match source == &compressed {
                true => row.0.split_once('/').unwrap().1,
                false => &row.0,
            };
            let same = expected.iter().find(|other| other.0 == key);
            let same = same.unwrap_or_else(|| panic!("{}: {row:?}", source.display()));
            assert_eq!(row.2, same.2, "{}", source.display());
            assert!(is_shard || row.1 == same.1, "{}: {row:?}", source.display());
        }
        assert!(
            is_shard || shown.len() == expected.len(),
            "{}",
            source.display()
        );
        let (status, picture) = viewer.get("picture/thumbnail?number=3&side=64");
        assert_eq!((status, &picture[..2]), (200, &b"\xff\xd8"[..]));
    }
}

#[test]
fn tfrecords_without_an_index_are_shown() {
    let temp = tempfile::tempdir().unwrap();
    let packed = temp.path().join("packed");
    run(["pack", "-q", text(&images()), text(&packed)]).done();
    let shards = temp.path().join("shards");
    fs::create_dir(&shards).unwrap();
    for entry in fs::read_dir(&packed).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("train-") {
            fs::copy(&path, shards.join(name)).unwrap();
        }
    }
    let viewer = Viewer::start(text(&shards));
    viewer.wait_read();
    let summary = viewer.json("api/summary");
    assert_eq!(
        (&summary["kind"], &summary["splits"][0]["name"]),
        (&"TFRecords".into(), &"train".into())
    );
    let record = viewer.json("api/record?number=1");
    assert!(
        record["place"].as_str().unwrap().contains("record 1"),
        "{record}"
    );
}

#[test]
fn boxes_of_coco_are_drawn() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("coco");
    fs::create_dir_all(root.join("annotations")).unwrap();
    fs::create_dir(root.join("train2017")).unwrap();
    let png = forebay_image::encode_png(&[90; 3 * 40 * 30], 40, 30);
    fs::write(root.join("train2017/1.png"), png).unwrap();
    let annotations = serde_json::json!({
        "images": [{"id": 1, "file_name": "1.png", "width": 40, "height": 30}],
        "categories": [{"id": 7, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 7, "bbox": [4, 3, 20, 15], "iscrowd": 0, "area": 300,
                         "segmentation": [[4, 3, 24, 3, 24, 18, 4, 18]]}],
    });
    fs::write(
        root.join("annotations/instances_train2017.json"),
        annotations.to_string(),
    )
    .unwrap();
    let viewer = Viewer::start(text(&root));
    viewer.wait_read();
    let record = viewer.json("api/record?number=0");
    assert_eq!(record["boxes"][0]["title"], "cat", "{record}");
    let summary = viewer.json("api/summary");
    let cats = serde_json::json!({"label": record["boxes"][0]["label"], "title": "cat", "records": 0, "boxes": 1});
    assert!(
        summary["classes"].as_array().unwrap().contains(&cats),
        "{summary}"
    );
    let sides: Vec<f64> = serde_json::from_value(record["boxes"][0]["sides"].clone()).unwrap();
    for (side, expected) in sides.iter().zip([0.1, 0.1, 0.6, 0.6]) {
        assert!((side - expected).abs() < 1e-5, "{sides:?}");
    }
    let options = "%7B%22transform%22:%7B%22kind%22:%22eval%22,%22resize%22:30,%22crop%22:30%7D%7D";
    let trained = |objects: &str| {
        let path = format!("picture/trained?number=0&options={options}&objects={objects}");
        let (status, png) = viewer.get(&path);
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&png));
        forebay_image::Decoder::default().decode(&png).unwrap().data
    };
    assert!(trained("false").iter().all(|value| *value == 90));
    assert!(trained("true").iter().any(|value| *value != 90));
}

#[test]
fn stores_are_read_only_as_far_as_is_shown() {
    let temp = tempfile::tempdir().unwrap();
    let packed = temp.path().join("packed");
    run([
        "pack",
        "-q",
        text(&images()),
        text(&packed),
        "--format",
        "indexed",
    ])
    .done();
    let server = S3Server::start();
    let command = |args: &[&str]| {
        let mut command = forebay();
        command.env("AWS_ENDPOINT_URL", server.url()).args(args);
        command.env("HOME", env!("CARGO_TARGET_TMPDIR"));
        for (name, value) in server.settings() {
            command.env(name.to_ascii_uppercase(), value);
        }
        command
    };
    for (from, to) in [
        (packed.as_path(), "s3://bucket/set"),
        (&images(), "s3://bucket/images"),
    ] {
        let status = command(&["cp", "-q", "-r", text(from), to])
            .status()
            .unwrap();
        assert!(status.success());
    }
    let of_images = rows_of_store(
        &mut command(&["view", "s3://bucket/images"]),
        "images that are not packed",
    );
    let of_set = rows_of_store(
        &mut command(&["view", "s3://bucket/set"]),
        "a Forebay dataset",
    );
    assert_eq!(of_images, of_set);
}

/// Views a source in a store, and returns the number of its records.
fn rows_of_store(command: &mut Command, kind: &str) -> u64 {
    let viewer = Viewer::of(command);
    viewer.until(|progress| progress["indexed"] == true);
    let summary = viewer.json("api/summary");
    assert_eq!(summary["kind"], kind);
    // Nothing is read until the page asks for it.
    let progress = &summary["progress"];
    assert_eq!(
        (&progress["read"], &progress["running"]),
        (&0.into(), &false.into())
    );
    let (status, picture) = viewer.get("picture/thumbnail?number=2&side=64");
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&picture));
    summary["records"].as_u64().unwrap()
}

#[test]
fn sources_that_cannot_be_shown_are_errors() {
    let temp = tempfile::tempdir().unwrap();
    let empty = temp.path().join("empty");
    fs::create_dir(&empty).unwrap();
    run(["view", text(&empty)]).failed_with(&["the directory is empty"]);
    run(["view", text(&temp.path().join("missing"))]).failed_with(&["missing"]);
    fs::write(empty.join("forebay.json"), "{").unwrap();
    run(["view", text(&empty)]).failed_with(&["forebay.json"]);
    let refused = run(["view", text(&images()), "-o", "colour=1"]);
    refused.code(2).explains("error: ", &["colour=1"]);
}

#[test]
fn ctrl_c_ends_the_viewer_with_success() {
    let viewer = Viewer::start(text(&images()));
    let pid = viewer.child.id().to_string();
    let sent = Command::new("kill")
        .args(["-s", "INT", &pid])
        .status()
        .unwrap();
    assert!(sent.success());
    let mut viewer = viewer;
    assert_eq!(viewer.child.wait().unwrap().code(), Some(0));
    assert!(Path::new(&images()).exists());
}
