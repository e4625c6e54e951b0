//! A dataset's life through the binary: pack, inspect, verify, cat, export, index.

use crate::support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use support::{images, run, run_in, text, tree};
use tempfile::TempDir;

const FORMATS: [&str; 2] = ["tfrecord", "indexed"];

fn packed(format: &str, more: &[&str]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("shards");
    let source = images();
    let mut args = vec!["pack", text(&source), text(&root), "--format", format];
    args.extend(more);
    run(args).done();
    (dir, root)
}

fn first_shard(root: &Path) -> PathBuf {
    let mut shards: Vec<PathBuf> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| text(path).contains("train-00000-of-"))
        .collect();
    shards.sort();
    shards.remove(0)
}

/// Returns the source's images by path. `val` has the name of its split, and the class list is left out.
fn source_images() -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for (path, bytes) in tree(&images()) {
        if path.extension().is_some_and(|ext| ext == "txt") {
            continue;
        }
        let path = match path.strip_prefix("val") {
            Ok(rest) => Path::new("validation").join(rest),
            Err(_) => path,
        };
        files.insert(path, bytes);
    }
    files
}

#[test]
fn pack_prints_its_result_on_stdout_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let source = images();
    let ran = run_in(
        dir.path(),
        [
            "pack",
            text(&source.canonicalize().unwrap()),
            "out",
            "--format",
            "tfrecord",
            "--shards",
            "2",
        ],
    )
    .done();
    assert_eq!(ran.stderr, "", "no bar and no note where stderr is a pipe");
    for part in ["Packed", "train", "out/forebay.json", "fingerprint", "MB/s"] {
        assert!(ran.stdout.contains(part), "no {part:?} in\n{}", ran.stdout);
    }
    assert!(dir.path().join("out/train-00001-of-00002").is_file());
    assert!(
        dir.path()
            .join("out/index/train-00001-of-00002.fbi")
            .is_file()
    );
    assert!(
        dir.path()
            .join("out/index/train-00001-of-00002.idx")
            .is_file()
    );
}

#[test]
fn quiet_hides_reports_of_what_was_written_and_no_other_results() {
    let (dir, root) = packed("indexed", &[]);
    let (source, copy) = (images(), dir.path().join("copy"));
    let (again, files) = (dir.path().join("again"), dir.path().join("files"));
    for args in [
        ["pack", text(&source), text(&again)],
        ["convert", text(&root), text(&copy)],
        ["export", text(&root), text(&files)],
    ] {
        let ran = run(args.into_iter().chain(["-q"])).done();
        assert_eq!((&*ran.stdout, &*ran.stderr), ("", ""), "{args:?}");
    }
    let plan = run(["pack", text(&source), text(&dir.path().join("new")), "-nq"]).done();
    assert!(plan.stdout.contains("train-00000-of"), "{}", plan.stdout);
    let shown = run(["inspect", text(&root), "-q"]).done();
    assert!(shown.stdout.contains("fingerprint"), "{}", shown.stdout);
}

#[test]
fn the_json_of_pack_is_events_and_a_summary() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("out");
    let source = images();
    let ran = run([
        "pack",
        text(&source),
        text(&root),
        "--format",
        "indexed",
        "--json",
    ])
    .done();
    let summary = ran.summary();
    assert_eq!(summary["command"], "pack");
    assert_eq!(summary["exit_code"], 0);
    assert_eq!(summary["records"], source_images().len());
    let kinds: Vec<String> = ran
        .events()
        .iter()
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect();
    assert!(kinds.iter().any(|kind| kind == "shard"), "{kinds:?}");
}

#[test]
fn the_output_is_the_same_for_any_number_of_jobs() {
    for format in FORMATS {
        let (_a, one) = packed(format, &["--shards", "5", "--jobs", "1", "--seed", "3"]);
        let (_b, four) = packed(format, &["--shards", "5", "--jobs", "4", "--seed", "3"]);
        assert_eq!(tree(&one), tree(&four), "{format}");
        let (_c, other) = packed(format, &["--shards", "5", "--seed", "4"]);
        assert_ne!(tree(&one), tree(&other), "another seed, another order");
    }
}

#[test]
fn packing_again_finds_it_complete() {
    let (_dir, root) = packed("tfrecord", &[]);
    let before = tree(&root);
    let source = images();
    let again = run(["pack", text(&source), text(&root), "--format", "tfrecord"]).done();
    assert!(
        again.stdout.contains("complete already"),
        "{}",
        again.stdout
    );
    let json = run([
        "pack",
        text(&source),
        text(&root),
        "--format",
        "tfrecord",
        "--json",
    ])
    .done();
    assert_eq!(json.summary()["already_complete"], true);
    assert_eq!(tree(&root), before);
    run([
        "pack",
        text(&source),
        text(&root),
        "--format",
        "tfrecord",
        "--seed",
        "9",
    ])
    .code(1);
    assert_eq!(tree(&root), before);
    run([
        "pack",
        text(&source),
        text(&root),
        "--format",
        "tfrecord",
        "--seed",
        "9",
        "--overwrite",
    ])
    .done();
    assert_ne!(tree(&root), before);
}

#[test]
fn a_dry_run_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("out");
    let source = images();
    let args = [
        "pack",
        text(&source),
        text(&root),
        "--format",
        "tfrecord",
        "--shards",
        "2",
        "-n",
    ];
    let ran = run(args).done();
    assert!(!root.exists());
    assert!(
        ran.stdout.contains("train-00000-of-00002"),
        "{}",
        ran.stdout
    );
    let ran = run(args.iter().chain(&["--json"])).done();
    let summary = ran.summary();
    assert_eq!(summary["dry_run"], true);
    assert_eq!(summary["records"], source_images().len());
    assert!(!root.exists());
}

#[test]
fn inspect_shows_dataset_and_shards() {
    for format in FORMATS {
        let (_dir, root) = packed(format, &["--shards", "2"]);
        let ran = run(["inspect", text(&root)]).done();
        assert_eq!(ran.stderr, "");
        assert!(
            ran.stdout.lines().all(|line| line.chars().count() <= 100),
            "{}",
            ran.stdout
        );
        for part in [
            "train",
            "validation",
            "image/encoded",
            "column ",
            "n02782093",
            "KiB",
            "█",
        ] {
            assert!(
                ran.stdout.contains(part),
                "{format}: no {part:?} in\n{}",
                ran.stdout
            );
        }
        let summary = run(["inspect", text(&root), "--deep", "--json"])
            .done()
            .summary();
        assert_eq!(summary["records"], source_images().len());
        let label =
            serde_json::json!({"name": "label", "type": "label", "feature": "image/class/label"});
        assert_eq!(summary["columns"][1], label);
        let image_bytes: usize = source_images().values().map(Vec::len).sum();
        assert_eq!(summary["images"]["bytes"], image_bytes);
        let sizes: u64 = summary["images"]["sizes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|bucket| bucket["count"].as_u64().unwrap())
            .sum();
        assert_eq!(sizes, source_images().len() as u64);

        let shard = first_shard(&root);
        let one = run(["inspect", text(&shard), "--json"]).done().summary();
        assert!(one["records"].as_u64().unwrap() > 0, "{one}");
        run(["inspect", text(&shard)]).done();
    }
}

#[test]
fn contact_sheets_have_the_chosen_images() {
    for format in FORMATS {
        let (dir, root) = packed(format, &["--shards", "2"]);
        let list = dir.path().join("indices.json");
        fs::write(&list, "[7, 0,\n3]").unwrap();
        let sheet = dir.path().join("sheet.png");
        let inspect = |source: &Path, options: &[&str]| {
            let args = ["inspect", text(source), "--contact-sheet", text(&sheet)];
            run(args.iter().chain(options))
        };
        // Tiles are 234 pixels wide and 300 high: an image, its key, class and number.
        for (options, columns, rows) in [
            (vec![], 10, 6),
            (vec!["--split", "validation"], 4, 3),
            (vec!["--split", "val", "--indices", "3"], 1, 1),
            (vec!["--split", "train", "--indices", "0-9,3"], 4, 3),
            (vec!["--split", "train", "--indices", text(&list)], 3, 1),
            (vec!["--class", "n02782093"], 5, 2),
            (vec!["--split", "val", "--class", "n02782093,2"], 2, 2),
        ] {
            inspect(&root, &options).done();
            let png = fs::read(&sheet).unwrap();
            let png = forebay_image::probe(&png, &Default::default()).unwrap();
            let size = (10 + columns * 234, 10 + rows * 300);
            assert_eq!((png.width, png.height), size, "{options:?}");
        }
        for (options, error) in [
            (
                vec!["--split", "test"],
                "no split \"test\": it has train, validation",
            ),
            (
                vec!["--indices", "0"],
                "has several splits: train, validation",
            ),
            (vec!["--class", "cat"], "has no class \"cat\": it has n0"),
            (
                vec!["--split", "val", "--indices", "12"],
                "--indices 12: there are 12 records, numbered from 0",
            ),
            (
                vec!["--split", "val", "--indices", "3-1"],
                "--indices 3-1: expected a number, a range such as 20-29, or a file",
            ),
            (
                vec!["--split", "val", "--indices", "gone.json"],
                "--indices gone.json: expected",
            ),
            (
                vec!["--split", "train", "--indices", "0", "--class", "1,2,3"],
                "none of the chosen records of",
            ),
        ] {
            let ran = inspect(&root, &options);
            assert!([1, 2].contains(&ran.code), "{options:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(error), "{options:?}: {}", ran.stderr);
        }
        // Images without a class have two lines.
        let (flat, plain) = (dir.path().join("flat"), dir.path().join("plain"));
        fs::create_dir(&flat).unwrap();
        let directory = images().join("train/n02782093");
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, flat.join(path.file_name().unwrap())).unwrap();
        }
        run(["pack", text(&flat), text(&plain), "--format", format]).done();
        inspect(&plain, &[]).done();
        let png = fs::read(&sheet).unwrap();
        let png = forebay_image::probe(&png, &Default::default()).unwrap();
        assert_eq!((png.width, png.height), (10 + 4 * 234, 10 + 2 * 278));
        let shard = first_shard(&root);
        inspect(&shard, &["--class", "1", "--indices", "0-5"]).done();
        let ran = inspect(&shard, &["--split", "train"]).code(2);
        assert!(ran.stderr.contains("--split goes with a dataset"));
        run(["inspect", text(&root), "--class", "1"]).code(2);
    }
}

#[test]
fn contact_sheets_replace_no_other_file() {
    let (_dir, root) = packed("indexed", &["--shards", "2"]);
    let manifest = root.join("forebay.json");
    let before = fs::read(&manifest).unwrap();
    let ran = run(["inspect", text(&root), "--contact-sheet", text(&manifest)]);
    ran.failed_with(&["is no PNG"]);
    assert_eq!(fs::read(&manifest).unwrap(), before);
}

#[test]
fn verify_finds_a_dataset_and_a_shard_sound() {
    for format in FORMATS {
        let (_dir, root) = packed(format, &["--blake3"]);
        let ran = run(["verify", text(&root)]).done();
        assert!(ran.stdout.starts_with("ok"), "{}", ran.stdout);
        let summary = run(["verify", text(&root), "--deep", "--json"])
            .done()
            .summary();
        assert_eq!(summary["damage"], 0);
        assert_eq!(summary["records"], source_images().len());
        assert_eq!(summary["decoded"], source_images().len());
        run(["verify", text(&first_shard(&root))]).done();
    }
}

#[test]
fn cat_shows_a_record_and_gives_back_its_bytes() {
    for format in FORMATS {
        let (dir, root) = packed(format, &["--shards", "3"]);
        let ran = run(["cat", text(&root), "0", "--split", "train"]).done();
        for part in ["image/class/label", "image/encoded", "JPEG", "key"] {
            assert!(
                ran.stdout.contains(part),
                "{format}: no {part:?} in\n{}",
                ran.stdout
            );
        }
        let key = "n02782093/n02782093_11.JPEG";
        let original = &source_images()[&Path::new("train").join(key)];
        let find = ["cat", text(&root), "--split", "train", "--key", key];
        let shown = run(find.iter().chain(&["--json"])).done();
        let record = &shown.events()[0];
        assert_eq!(record["type"], "record");
        assert_eq!(record["key"], key);
        assert_eq!(
            record["features"]["image/encoded"]["values"][0]["bytes"],
            original.len()
        );
        let piped = run(find.iter().chain(&["--feature", "image/encoded"])).done();
        assert_eq!(&piped.bytes, original);
        let file = dir.path().join("x.jpg");
        run(find
            .iter()
            .copied()
            .chain(["--feature", "image/encoded", "-o", text(&file)]))
        .done();
        assert_eq!(&fs::read(&file).unwrap(), original);
        let label = run(find.iter().chain(&["--feature", "image/class/label"])).done();
        assert!(
            label.stdout.trim().parse::<i64>().is_ok(),
            "{}",
            label.stdout
        );

        run(find.iter().chain(&["--feature", "image/nothing"])).failed_with(&["image/nothing"]);
        run([
            "cat",
            text(&root),
            "--split",
            "train",
            "--key",
            "no/such.JPEG",
        ])
        .failed_with(&["no/such.JPEG"]);
        run(["cat", text(&root), "9999", "--split", "train"]).failed_with(&["9999"]);
        run(["cat", text(&root), "0"])
            .code(2)
            .explains("error: ", &["train", "validation"]);
    }
}

#[test]
fn export_gives_back_every_file() {
    for format in FORMATS {
        let (dir, root) = packed(format, &[]);
        let back = dir.path().join("back");
        let ran = run(["export", text(&root), text(&back)]).done();
        assert!(ran.stdout.contains(&source_images().len().to_string()));
        assert_eq!(tree(&back), source_images(), "{format}");
        let again = run(["export", text(&root), text(&back), "--json"])
            .done()
            .summary();
        assert_eq!(again["unchanged"], source_images().len());
        fs::write(back.join("train/n02782093/n02782093_11.JPEG"), b"mine").unwrap();
        let ran = run(["export", text(&root), text(&back)]);
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        assert!(ran.stdout.contains("n02782093_11.JPEG"), "{}", ran.stdout);
    }
}

#[test]
fn index_writes_the_same_text_index_as_pack() {
    let (dir, root) = packed("tfrecord", &["--shards", "2"]);
    let foreign = dir.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    let packed_files = tree(&root);
    for (name, bytes) in &packed_files {
        if name.components().count() == 1 && text(name).contains("-of-") {
            fs::write(foreign.join(name), bytes).unwrap();
        }
    }
    run(["index", text(&foreign)]).done();
    let indexed = tree(&foreign);
    for name in packed_files
        .keys()
        .filter(|name| text(name).ends_with(".idx"))
    {
        assert_eq!(indexed[name], packed_files[name], "{}", name.display());
    }
    run(["verify", text(&foreign)]).done();
    let ran = run(["cat", text(&foreign), "0", "--split", "train", "--json"]).done();
    assert!(ran.events()[0]["features"]["image/encoded"].is_object());
}

#[test]
fn a_closed_pipe_is_quiet_for_results_too() {
    let (_dir, root) = packed("tfrecord", &[]);
    let mut child = support::forebay()
        .args(["inspect", text(&root)])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
}

/// `verify` names damage and a remedy, and the remedy works.
#[test]
fn damage_is_named_by_verify_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let (shards, copy) = (dir.path().join("shards"), dir.path().join("copy"));
    run([
        "pack",
        text(&images()),
        text(&shards),
        "--shards",
        "2",
        "--format",
        "indexed",
    ])
    .done();
    let whole = run(["--json", "repair", text(&shards), text(&copy)]).done();
    assert_eq!(whole.summary()["lost_records"], 0);
    assert!(!copy.join("pack/report.jsonl").exists());

    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(shards.join("forebay.json")).unwrap()).unwrap();
    let name = manifest["splits"][0]["shards"][0]["name"].as_str().unwrap();
    let mut bytes = std::fs::read(shards.join(name)).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(shards.join(name), bytes).unwrap();
    let hint = format!("`forebay repair {} DST`", shards.display());
    let ran = run(["verify", text(&shards)]).failed_with(&["1 record is lost"]);
    ran.explains("hint: ", &[&hint]);
    let repaired = dir.path().join("repaired");
    let ran = run(["--json", "repair", text(&shards), text(&repaired)]).code(3);
    assert_eq!(ran.summary()["lost_records"], 1);
    assert_eq!(ran.summary()["exit_code"], 3);
    let lost: Vec<_> = ran
        .events()
        .into_iter()
        .filter(|event| event["type"] == "lost")
        .collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    run(["verify", text(&repaired), "--deep"]).done();
    // A second repair finds its work done, and still reports what is lost.
    let again = run(["--json", "repair", text(&shards), text(&repaired)]).code(3);
    assert_eq!(again.summary()["already_complete"], true);

    std::fs::write(shards.join("forebay.json"), b"{}").unwrap();
    let ran = run(["verify", text(&shards)]).failed_with(&["forebay.json"]);
    ran.explains("hint: ", &["`forebay repair SRC DST` rebuild it"]);
    let rebuilt = dir.path().join("rebuilt");
    let ran = run(["--json", "repair", text(&shards), text(&rebuilt)]).code(3);
    assert_eq!(ran.summary()["notes"].as_array().unwrap().len(), 3);
    run(["verify", text(&rebuilt)]).done();
}
