use super::*;
use crate::cold::Way;
use crate::price::sample::Storing;

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
fn demand_is_compared_with_measurements() {
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
    assert!(text(&report, "packing").is_empty(), "it is packed");
    assert!(
        text(&report, "shards").contains("--shard-size"),
        "{report:?}"
    );
}

#[test]
fn ways_to_store_images_are_advised_if_they_save_time() {
    let way = |storing, seconds: f64, bytes| StoringCost {
        storing,
        seconds: vec![seconds],
        decode_seconds: vec![seconds],
        bytes,
        rest: 0.0,
    };
    let ways = vec![
        way(Storing::AsStored, 0.004, 100_000.0),
        way(Storing::SeekPoints, 0.002, 101_000.0),
        way(Storing::Fast, 0.0039, 105_000.0),
        way(Storing::FastRaw, 0.004, 130_000.0),
    ];
    let mut situation = situation(&[1e6], 100_000.0, true, ways);
    situation.cores.cores = 2.0;
    let proof = Watch::begin(&Footprint::Generated, Way::Off).end(0, None);
    let found = Found {
        cost: None,
        images: 1000,
        bytes: 1e8,
        is_packed: true,
        is_local: true,
        situation,
        proof,
    };
    let report = found.report(&options(2, Some(500.0)));
    let images = report.advice.iter().filter(|a| a.topic == "images");
    let images: Vec<&str> = images.map(|advice| &*advice.text).collect();
    assert_eq!(images.len(), 2, "2 % are not worth it: {images:?}");
    assert!(
        images[0].starts_with(
            "seek points (later epochs learn them): 2.00 ms instead of 4.00 ms for an image = 2.00x, 2.0 cores instead of \
             4.0, for 101.0 kB instead of 100.0 kB (+1.0 % bytes): "
        ),
        "{images:?}"
    );
    assert!(images[1].starts_with("fast images: 3.90 ms"), "{images:?}");
    let cores = text(&report, "cores");
    assert!(
        cores.ends_with("= 4.0 cores, 2.0 for each GPU; this machine has 2: 2 machines of this kind with forebay serve, or images that decode faster"),
        "{cores}"
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
