//! The viewer: selections, pictures, hostile datasets, access, and the page in a browser.

mod page;

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use forebay_image::{Decoder, PngCompression, SampleFormat};
use forebay_image::{encode_jpeg, encode_png, encode_png_samples, resize};
use forebay_loader::{Dataset, Loader, LoaderOptions, Options};
use forebay_monitor::{ViewOptions, ViewSource, Viewer};
use forebay_pack::{Cancel, PackOptions};
use forebay_shard::manifest::{ClassEntry, Manifest, ShardEntry, SplitEntry};
use forebay_shard::{Column, ExampleBuilder, RecordMeta, Schema, ShardFormat, indexed};
use serde_json::Value;

use crate::request::{Answer, ask, get};
use crate::support::LONG;

const LOCAL: &str = "127.0.0.1:0";
const POLL: Duration = Duration::from_millis(20);
/// A text that would run if it became markup.
const HOSTILE: &str = "\"><img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>";

/// A sample of the test dataset.
struct Sample {
    key: String,
    label: i64,
    image: Vec<u8>,
    caption: String,
    score: f32,
    box_sides: [f32; 4],
}

/// Pixels of one of several patterns, none of which looks like another: slopes between random tones.
fn pattern(number: u32, width: u32, height: u32) -> Vec<u8> {
    let mut state = 0x9e37_79b9u32.wrapping_mul(number + 1);
    let mut tone = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 24)
    };
    let tones: [[f64; 8]; 8] = std::array::from_fn(|_| std::array::from_fn(|_| tone()));
    let mix = |a: f64, b: f64, share: f64| a + (b - a) * share;
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let at = |pixel: u32, side: u32| f64::from(pixel) * 7.0 / f64::from(side);
            let (across, down) = (at(x, width), at(y, height));
            let (column, row) = (across as usize, down as usize);
            let upper = mix(tones[row][column], tones[row][column + 1], across.fract());
            let below = &tones[row + 1];
            let lower = mix(below[column], below[column + 1], across.fract());
            pixels.extend([mix(upper, lower, down.fract()) as u8; 3]);
        }
    }
    pixels
}

fn samples() -> Vec<Sample> {
    let sample = |number: u32, label: i64| Sample {
        key: format!("{label}/{number}.png"),
        label,
        image: encode_png(&pattern(number, 96 + number, 72), 96 + number, 72),
        caption: format!("caption {number}"),
        score: number as f32 / 2.0,
        box_sides: [0.25, 0.25, 0.75, 0.75],
    };
    let mut all: Vec<Sample> = (0..24).map(|number| sample(number, 0)).collect();
    all.push(sample(24, 1));
    all.push(sample(25, 1));
    all[3].box_sides = [0.5, 0.5, 1.5, 0.75];
    all[5].image = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.hacked=1'/>".to_vec();
    all[7].key = format!("{HOSTILE}.png");
    all[7].caption = HOSTILE.to_owned();
    // Smaller and compressed, but the same picture as sample 2.
    let image = forebay_image::RgbImage {
        width: 98,
        height: 72,
        data: pattern(2, 98, 72),
    };
    let small = resize(&image, 80, 60).unwrap();
    all[9].image = encode_jpeg(&small, 80, false).unwrap();
    all
}

/// The mask of sample 1: its left half is an object.
fn mask() -> Vec<u8> {
    let ids: Vec<u8> = (0..97 * 72).map(|at| u8::from(at % 97 < 48)).collect();
    encode_png_samples(&ids, 97, 72, SampleFormat::Gray8, PngCompression::Small).unwrap()
}

/// Writes a dataset whose train split has all samples but the last one, which is the validation split.
fn write(root: &Path) {
    let samples = samples();
    let (train, validation) = samples.split_at(samples.len() - 1);
    let splits = [("train", train), ("validation", validation)].map(|(split, samples)| {
        let name = format!("{split}-00000-of-00001.fbs");
        let path = root.join(&name);
        let file = std::fs::File::create(&path).unwrap();
        let mut shard = indexed::WriterBuilder::new()
            .from_writer(file, &path)
            .unwrap();
        for sample in samples {
            let mut example = ExampleBuilder::new();
            example.add_bytes("image/encoded", &sample.image);
            example.add_int64("image/class/label", sample.label);
            example.add_bytes("caption", sample.caption.as_bytes());
            example.add_float("score", sample.score);
            for (side, at) in ["xmin", "ymin", "xmax", "ymax"]
                .into_iter()
                .zip(sample.box_sides)
            {
                let name = ["image/object/bbox/", side].concat();
                example.add_floats(name.leak(), &[at]);
            }
            example.add_int64s("image/object/bbox/label", &[sample.label]);
            let mask = mask();
            if sample.key == "0/1.png" {
                example.add_bytes("mask", &mask);
            }
            let meta = RecordMeta::new(sample.label, sample.key.as_bytes());
            shard.append(&example.to_vec(), &meta).unwrap();
        }
        let (_, written) = shard.finish().unwrap();
        let entry = ShardEntry {
            name,
            records: written.records,
            bytes: written.bytes,
            crc32c: written.crc32c,
            blake3: None,
        };
        SplitEntry::new(split, vec![entry])
    });
    let mut manifest = Manifest::new(ShardFormat::Indexed, 0, splits.to_vec());
    manifest.classes = [HOSTILE, "dog"]
        .map(|name| ClassEntry {
            name: name.to_owned(),
            text: None,
        })
        .to_vec();
    let columns = [
        ("image", "image"),
        ("label", "label"),
        ("boxes", "boxes"),
        ("mask", "mask"),
        ("caption", "text"),
        ("score", "float"),
    ];
    let columns = columns.map(|(name, kind)| Column::new(name, kind.parse().unwrap()));
    manifest.columns = Schema::new(columns.to_vec()).unwrap();
    std::fs::write(root.join("forebay.json"), manifest.to_json().unwrap()).unwrap();
}

/// A viewer of the test dataset, all of whose records were read.
struct Viewed {
    viewer: Viewer,
    dir: tempfile::TempDir,
}

impl Viewed {
    fn start() -> Viewed {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        let source = ViewSource::dataset(&Dataset::open(dir.path()).unwrap()).unwrap();
        let viewer = start(source);
        Viewed { viewer, dir }
    }

    fn get(&self, path: &str) -> Answer {
        get(self.viewer.addr(), path, "localhost")
    }

    fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// The numbers of the records that a query selects.
    fn numbers(&self, query: &str) -> Vec<u64> {
        let answer = self.json(&format!("/api/records?limit=100&again=true&{query}"));
        let rows = answer["records"].as_array().unwrap();
        assert_eq!(answer["total"], rows.len(), "{query}");
        rows.iter()
            .map(|row| row["number"].as_u64().unwrap())
            .collect()
    }
}

/// Starts a viewer and waits until it has read all records.
fn start(source: ViewSource) -> Viewer {
    let viewer = Viewer::start(LOCAL.parse().unwrap(), source, ViewOptions::default()).unwrap();
    let end = Instant::now() + LONG;
    loop {
        let answer = get(viewer.addr(), "/api/progress", "localhost");
        let progress: Value = serde_json::from_str(&answer.body).unwrap();
        let is_done = progress["read"] == progress["records"] && progress["running"] == false;
        if progress["indexed"] == true && is_done {
            return viewer;
        }
        assert!(Instant::now() < end, "{progress}");
        thread::sleep(POLL);
    }
}

#[test]
fn records_are_selected_and_sorted() {
    let viewed = Viewed::start();
    let summary = viewed.json("/api/summary");
    assert_eq!(
        (&summary["records"], &summary["kind"]),
        (&26.into(), &"a Forebay dataset".into())
    );
    assert_eq!(summary["splits"][1]["name"], "validation");
    assert_eq!(summary["classes"][0]["records"], 24);
    assert_eq!(
        summary["columns"],
        serde_json::json!(["boxes", "caption", "score"])
    );
    assert_eq!(viewed.numbers(""), (0..26).collect::<Vec<_>>());
    for (query, expected) in [
        ("split=validation", &[25][..]),
        ("class=1", &[24, 25]),
        ("class=1&split=train", &[24]),
        ("key=0%2F2", &[2, 20, 21, 22, 23]),
        ("key=0/2.PNG", &[2]),
        ("column=caption&value=caption+11", &[11]),
        ("column=boxes&value=dog", &[24, 25]),
        ("column=score&value=%3C1", &[0, 1]),
        ("column=score&value=%3D6", &[12]),
        ("column=score&value=%3E11.5&descending=true", &[25, 24]),
        ("key=absent", &[]),
    ] {
        assert_eq!(viewed.numbers(query), expected, "{query}");
    }
    // Widths grow with the numbers, apart from those of samples 5 and 9.
    let wide = viewed.numbers("sort=pixels&descending=true&split=train");
    assert_eq!((wide[0], wide[23], wide[24]), (24, 9, 5));
    let flat = viewed.numbers("sort=aspect");
    assert_eq!((flat[0], flat[25]), (5, 25));
    let page = viewed.json("/api/records?offset=24&limit=1");
    assert_eq!(page["records"][0]["class"], "dog");
    assert_eq!(page["records"][0]["size"], serde_json::json!([120, 72]));
    let histograms = viewed.json("/api/histograms?class=1");
    assert_eq!(
        (&histograms["pixels"][14], &histograms["unknown"]),
        (&2.into(), &0.into())
    );
}

#[test]
fn suspicious_samples_come_first() {
    let viewed = Viewed::start();
    for (reason, expected) in [(1, &[5][..]), (2, &[3]), (4, &[2, 9]), (8, &[24, 25])] {
        assert_eq!(
            viewed.numbers(&format!("reasons={reason}")),
            expected,
            "{reason}"
        );
    }
    let first = viewed.numbers("sort=suspicious");
    assert_eq!(first[..6], [5, 3, 2, 9, 24, 25]);
    let broken = viewed.json("/api/record?number=5");
    assert!(!broken["errors"].as_array().unwrap().is_empty(), "{broken}");
    assert_eq!(
        viewed.get("/picture/thumbnail?number=5&side=64").status,
        400
    );
    assert_eq!(
        viewed.json("/api/record?number=9")["alike"],
        serde_json::json!([2])
    );
}

#[test]
fn a_record_is_shown_in_full() {
    let viewed = Viewed::start();
    let record = viewed.json("/api/record?number=24");
    assert_eq!(
        (&record["key"], &record["index"]),
        (&"1/24.png".into(), &24.into())
    );
    let place = record["place"].as_str().unwrap();
    assert!(
        place.contains("train-00000-of-00001.fbs: record 24, bytes "),
        "{place}"
    );
    assert_eq!(record["boxes"][0]["title"], "dog");
    let columns = record["columns"].as_array().unwrap();
    let value = |name: &str| {
        let mut columns = columns.iter();
        columns.find(|column| column["name"] == name).unwrap()["value"].clone()
    };
    assert_eq!(
        (value("caption"), value("score")),
        ("caption 24".into(), "12".into())
    );
    let image = viewed.get("/picture/image?number=24");
    assert!(
        image.head.contains("content-type: image/jpeg"),
        "{}",
        image.head
    );
    let decoded = Decoder::default().decode(&image.bytes).unwrap();
    assert_eq!((decoded.width, decoded.height), (120, 72));
    let small = viewed.get("/picture/thumbnail?number=24&side=30");
    let decoded = Decoder::default().decode(&small.bytes).unwrap();
    assert_eq!((decoded.width, decoded.height), (30, 18));
}

#[test]
fn masks_are_drawn_where_their_objects_are() {
    let viewed = Viewed::start();
    assert_eq!(viewed.json("/api/record?number=1")["mask"], true);
    assert_eq!(viewed.json("/api/record?number=2")["mask"], false);
    let pixels = |objects: bool, flip: &str| {
        let options = format!(
            "%7B%22transform%22:[%7B%22kind%22:%22Resize%22,%22size%22:[72,97]%7D{flip}]%7D"
        );
        let path = format!("/picture/trained?number=1&options={options}&objects={objects}");
        let shown = viewed.get(&path);
        assert_eq!(shown.status, 200, "{}", shown.body);
        Decoder::default().decode(&shown.bytes).unwrap().data
    };
    let flip = ",%7B%22kind%22:%22RandomHorizontalFlip%22,%22p%22:1%7D";
    for (flip, left, right) in [("", true, false), (flip, false, true)] {
        let (plain, drawn) = (pixels(false, flip), pixels(true, flip));
        // Row 5 is above the box.
        let differs = |x: usize| {
            let at = 3 * (5 * 97 + x);
            plain[at..at + 3] != drawn[at..at + 3]
        };
        assert_eq!((differs(10), differs(90)), (left, right), "{flip}");
    }
}

#[test]
fn trained_samples_equal_those_of_a_loader() {
    let viewed = Viewed::start();
    let dataset = Dataset::open(viewed.dir.path()).unwrap();
    for normalized in [false, true] {
        let mut options = r#"{"transform":{"kind":"train","size":48}"#.to_owned();
        if normalized {
            options += r#","normalize":{"mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}"#;
        }
        let given = format!(r#"{options},"indices":[11],"batch_size":1,"seed":5}}"#);
        let given: LoaderOptions = serde_json::from_str(&given).unwrap();
        let split = dataset.split("train").unwrap();
        let mut loader = Loader::new(split, Options::from_schema(&given).unwrap()).unwrap();
        let batch = loader.epoch(3).unwrap().next().unwrap().unwrap();
        let options = format!("{options}}}")
            .replace('"', "%22")
            .replace('{', "%7B");
        let path = format!("/picture/trained?number=11&epoch=3&seed=5&options={options}");
        let shown = viewed.get(&path);
        assert_eq!(shown.status, 200, "{}", shown.body);
        let shown = Decoder::default().decode(&shown.bytes).unwrap();
        let expected: Vec<u8> = match normalized {
            false => batch.payload.to_vec(),
            true => {
                let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
                let values = batch.payload.chunks_exact(4).enumerate();
                values
                    .map(|(at, four)| {
                        let value = f32::from_le_bytes(four.try_into().unwrap());
                        ((value * std[at % 3] + mean[at % 3]) * 255.0).round() as u8
                    })
                    .collect()
            }
        };
        assert_eq!(shown.data, expected);
        let other = viewed.get(&path.replace("epoch=3", "epoch=4"));
        assert_ne!(
            Decoder::default().decode(&other.bytes).unwrap().data,
            expected
        );
    }
}

#[test]
fn selections_are_lists_for_indices() {
    let viewed = Viewed::start();
    let list = viewed.get("/api/export?split=train&class=1");
    assert_eq!(list.body, "[24]");
    assert!(list.head.contains("attachment"), "{}", list.head);
    assert_eq!(viewed.get("/api/export?split=validation").body, "[0]");
    let lines = viewed.get("/api/export?split=train&reasons=4&sort=bytes&lines=true");
    assert_eq!(lines.body, "2\n9\n");
    let mixed = viewed.get("/api/export");
    assert_eq!(mixed.status, 400);
    assert!(mixed.body.contains("choose a split"), "{}", mixed.body);
}

#[test]
fn bad_requests_are_answered_with_reasons() {
    let viewed = Viewed::start();
    for (path, part) in [
        ("/api/records?split=tset", "there is no split"),
        ("/api/records?class=cat", "invalid digit"),
        ("/api/records?column=caption2", "caption2"),
        (
            "/api/records?column=score&value=%3Ecat",
            "expected a number",
        ),
        ("/api/records?sort=color", "unknown variant"),
        ("/api/records?limit=-1", "invalid digit"),
        ("/api/record?number=26", "there is no record 26"),
        (
            "/api/record?number=18446744073709551615",
            "there is no record",
        ),
        ("/picture/thumbnail?number=26", "there is no record 26"),
        ("/picture/trained?number=1&options=%7B", "EOF while parsing"),
        (
            "/picture/trained?number=1&options=%7B%22transform%22:%22keep_encoded%22%7D",
            "stay encoded",
        ),
        (
            "/picture/trained?number=1&options=%7B%22transform%22:%7B%22kind%22:%22train%22,%22size%22:8000%7D%7D",
            "values",
        ),
        ("/picture/etching?number=1", "unknown variant"),
    ] {
        let answer = viewed.get(path);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(answer.body.contains(part), "{path}: {}", answer.body);
    }
    assert_eq!(
        viewed.json("/api/records?offset=18446744073709551615")["records"],
        serde_json::json!([])
    );
    let deep = "[".repeat(5000);
    assert_eq!(
        viewed
            .get(&format!("/picture/trained?number=1&options={deep}"))
            .status,
        400
    );
    let change = "POST /api/scan?run=false HTTP/1.1\r\nHost: localhost";
    assert_eq!(ask(viewed.viewer.addr(), change).status, 403);
    let change = format!("{change}\r\nx-forebay-view: 1");
    assert_eq!(ask(viewed.viewer.addr(), &change).status, 200);
}

#[test]
fn loopback_addresses_answer_this_machine_only() {
    let viewed = Viewed::start();
    let page = viewed.get("/");
    let mut lines = page.head.lines();
    let policy = lines.find(|line| line.starts_with("content-security-policy:"));
    let policy = policy.unwrap();
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    for path in [
        "/",
        "/api/summary",
        "/api/record?number=0",
        "/picture/image?number=0",
    ] {
        let answer = get(viewed.viewer.addr(), path, "evil.example.org");
        assert_eq!(answer.status, 421, "{path}");
        let answer = viewed.get(path);
        assert!(
            answer.head.contains("x-content-type-options: nosniff"),
            "{path}"
        );
    }
}

#[test]
fn other_addresses_need_the_token() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let source = ViewSource::dataset(&Dataset::open(dir.path()).unwrap()).unwrap();
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let viewer = Viewer::start(everywhere, source, ViewOptions::default()).unwrap();
    let (_, token) = viewer
        .url()
        .split_once("/?token=")
        .map(|(_, token)| ((), token.to_owned()))
        .unwrap();
    assert!(token.len() >= 24, "{token}");
    let addr = SocketAddr::from(([127, 0, 0, 1], viewer.addr().port()));
    for path in ["/", "/?token=x", "/api/summary", "/picture/image?number=0"] {
        assert_eq!(get(addr, path, "data-3").status, 401, "{path}");
    }
    let arriving = get(addr, &format!("/?token={token}"), "data-3");
    assert_eq!(arriving.status, 303);
    assert!(
        arriving.head.contains("httponly; samesite=lax"),
        "{}",
        arriving.head
    );
    let mut lines = arriving.head.lines();
    let cookie = lines.find_map(|line| line.strip_prefix("set-cookie: "));
    let cookie = cookie.unwrap().split(';').next().unwrap();
    let with = |cookie: &str| {
        let head = format!("GET /api/summary HTTP/1.1\r\nHost: data-3\r\nCookie: a=b; {cookie}");
        ask(addr, &head).status
    };
    assert_eq!(with(cookie), 200);
    assert_eq!(with(&format!("{cookie}0")), 401);
}

#[test]
fn images_are_shown_before_packing() {
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let options = PackOptions::new(pictures.as_path(), Path::new("."));
    let source = ViewSource::images(&options, &Cancel::new(), || None).unwrap();
    let viewer = start(source);
    let json = |path: &str| -> Value {
        let answer = get(viewer.addr(), path, "localhost");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    };
    let summary = json("/api/summary");
    assert!(summary["records"].as_u64().unwrap() > 4, "{summary}");
    assert!(!summary["classes"].as_array().unwrap().is_empty());
    let record = json("/api/record?number=0");
    let place = record["place"].as_str().unwrap();
    assert!(Path::new(place).is_file(), "{place}");
    assert_eq!(record["errors"], serde_json::json!([]));
}
