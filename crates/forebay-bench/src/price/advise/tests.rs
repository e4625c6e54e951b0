use super::*;

fn options(gpus: u64, each: Option<f64>) -> AdviseOptions {
    AdviseOptions {
        split: None,
        gpus,
        gpu_images_per_s: each,
        cold: Cold::Off,
        read: ReadOptions::default(),
        run_time: Duration::from_millis(100),
    }
}

fn text<'a>(report: &'a AdviceReport, topic: &str) -> &'a str {
    let found = report.advice.iter().find(|advice| advice.topic == topic);
    found.map_or("", |advice| &advice.text)
}

#[test]
fn demand_is_compared_with_what_was_measured() {
    let place =
        Location::parse("synthetic://imagenet?records=2000&pictures=2&seek_points=off").unwrap();
    let report = advise(&place, &options(8, Some(1395.0))).unwrap();
    assert_eq!((report.images, report.demand), (2000, Some(11_160.0)));
    let cores = text(&report, "cores");
    assert!(cores.contains("x 11160 images/s = "), "{cores}");
    let storage = text(&report, "storage");
    assert!(
        storage.starts_with("8 GPUs x 1395 images/s = 11160 images/s x "),
        "{storage}"
    );
    assert!(
        text(&report, "images").starts_with("seek points: ")
            || report
                .advice
                .iter()
                .any(|a| a.text.starts_with("fast images"))
    );
    assert!(text(&report, "packing").is_empty(), "it is packed");
    assert!(
        text(&report, "shards").contains("--shard-size"),
        "{report:?}"
    );
}

#[test]
fn a_directory_of_images_is_advised_on_packing() {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let place = Location::from(images.as_path());
    let report = advise(&place, &options(1, Some(1e9))).unwrap();
    assert!(text(&report, "packing").contains("so pack: "), "{report:?}");
    assert!(
        text(&report, "storage").starts_with("1 GPU x "),
        "{report:?}"
    );
    assert!(
        text(&report, "shards").contains(" / 256 MiB = 1 shard, fewer than "),
        "{report:?}"
    );
    assert!(
        text(&report, "shards").contains("of 1 rank: "),
        "{report:?}"
    );
    let few = advise(&place, &options(1, Some(0.001))).unwrap();
    assert!(
        text(&few, "packing").contains("packing gains little"),
        "{few:?}"
    );
    assert!(
        text(&few, "copy").starts_with("read it where it is"),
        "{few:?}"
    );
    let empty = tempfile::tempdir().unwrap();
    let error = advise(&Location::from(empty.path()), &options(1, None)).unwrap_err();
    assert!(
        error.to_string().contains("there is no forebay.json"),
        "{error}"
    );
}

#[test]
fn the_sentence_names_the_limit_and_a_remedy() {
    let slow =
        Location::parse("synthetic://imagenet?records=30&pictures=2&bandwidth=20MB").unwrap();
    let read = ReadOptions::default();
    let storage = decode_advice(&slow, None, &read).unwrap();
    assert!(
        storage.starts_with("storage-bound here: storage gives "),
        "{storage}"
    );
}
