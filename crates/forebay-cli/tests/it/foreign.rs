//! TFRecords of another tool, with its file names and without indexes and a manifest.

use crate::support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use forebay_shard::{ExampleBuilder, tfrecord};
use support::{images, run, text, tree};

/// Writes TFDS-like files of the project's images, and returns their directory.
fn foreign(root: &Path, shards: usize) -> PathBuf {
    let dir = root.join("tfds");
    fs::create_dir_all(&dir).unwrap();
    let files: Vec<(PathBuf, Vec<u8>)> = tree(&images())
        .into_iter()
        .filter(|(path, _)| path.starts_with("train"))
        .collect();
    for shard in 0..shards {
        let name = format!("pictures-train.tfrecord-{shard:05}-of-{shards:05}");
        let path = dir.join(name);
        let mut writer =
            tfrecord::WriterBuilder::new().from_writer(File::create(&path).unwrap(), &path);
        for (number, (path, bytes)) in files.iter().enumerate() {
            if number % shards == shard {
                let name = path.file_name().unwrap().to_str().unwrap();
                let mut example = ExampleBuilder::new();
                example
                    .add_bytes("image/encoded", bytes)
                    .add_bytes("image/filename", name.as_bytes())
                    .add_floats("image/object/bbox/xmin", &[0.25, 0.5])
                    .add_int64("image/class/label", (number % 6) as i64);
                writer.write(&example.to_vec()).unwrap();
            }
        }
        writer.finish().unwrap();
    }
    dir
}

#[test]
fn an_index_makes_a_dataset_of_them() {
    let temp = tempfile::tempdir().unwrap();
    let dir = foreign(temp.path(), 3);
    let before = tree(&dir);
    run(["inspect", text(&dir)]).failed_with(&["tfds", "forebay.json"]);

    // The labels start at 0, but those of TensorFlow's tool at 1. The program does not guess which is right.
    run(["index", text(&dir)]).failed_with(&["record 0: its label is 0", "--label-base 0"]);
    assert!(!dir.join("forebay.json").exists());

    let ran = run(["index", text(&dir), "--label-base", "0"]).done();
    for said in ["image      image/encoded", "label      image/class/label"] {
        assert!(ran.stdout.contains(said), "{}", ran.stdout);
    }
    assert!(ran.stdout.contains("Indexed 48 records"), "{}", ran.stdout);
    let after = tree(&dir);
    assert_eq!(
        after.len(),
        before.len() * 3 + 1,
        "two indexes each and a manifest"
    );
    for (name, bytes) in &before {
        assert_eq!(&after[name], bytes, "the data is left alone");
    }

    let summary = run(["inspect", text(&dir), "--json"]).done().summary();
    assert_eq!(summary["records"], 48);
    assert_eq!(summary["splits"][0]["name"], "train");
    let ran = run([
        "cat",
        text(&dir),
        "--key",
        "n02782093_11.JPEG",
        "--feature",
        "image/encoded",
    ])
    .done();
    let original = images().join("train/n02782093/n02782093_11.JPEG");
    assert_eq!(ran.bytes, fs::read(original).unwrap());
    let ran = run([
        "cat",
        text(&dir),
        "0",
        "--feature",
        "image/object/bbox/xmin",
    ])
    .done();
    assert_eq!(ran.stdout, "0.25\n0.5\n");

    // Indexing again changes nothing.
    let again = ["index", text(&dir), "--label-base", "0", "--json"];
    run(again).done().summary();
    assert_eq!(tree(&dir), after);
}

#[test]
fn an_index_elsewhere_links_to_the_data() {
    let temp = tempfile::tempdir().unwrap();
    let dir = foreign(temp.path(), 2);
    let before = tree(&dir);
    let out = temp.path().join("out");
    for _ in 0..2 {
        run([
            "index",
            text(&dir),
            "--output",
            text(&out),
            "--label-base",
            "0",
        ])
        .done();
    }
    assert_eq!(tree(&dir), before);
    let summary = run(["inspect", text(&out), "--deep", "--json"])
        .done()
        .summary();
    assert_eq!(summary["images"]["records"], 48);
    assert_eq!(summary["label_base"], 0);
}

/// Compressed files of a directory are converted and read as plain ones are; an index cannot point into them.
#[test]
fn compressed_files_of_a_directory_are_found() {
    let temp = tempfile::tempdir().unwrap();
    let dir = foreign(temp.path(), 2);
    for number in 0..2 {
        let old = dir.join(format!("pictures-train.tfrecord-{number:05}-of-00002"));
        let new = dir.join(format!("train-{number:05}-of-00002.tfrecord.gz"));
        let level = flate2::Compression::fast();
        let mut packed = flate2::write::GzEncoder::new(File::create(new).unwrap(), level);
        std::io::copy(&mut File::open(&old).unwrap(), &mut packed).unwrap();
        packed.finish().unwrap();
        fs::remove_file(old).unwrap();
    }
    let dst = temp.path().join("dst");
    let args = ["convert", text(&dir), text(&dst), "--label-base", "0", "-q"];
    run(args).done();
    run(["verify", text(&dst), "--deep", "-q"]).done();
    for args in [["verify", "--deep"], ["inspect", "-v"]] {
        let ran = run([args[0], text(&dir), args[1]]).done();
        assert!(ran.stdout.contains("48 records"), "{}", ran.stdout);
    }
    let ran = run(["index", text(&dir), "--label-base", "0"]);
    let ran = ran.failed_with(&["is compressed as a whole", ".tfrecord.gz"]);
    assert!(ran.stderr.contains("`forebay convert`"), "{}", ran.stderr);
}

#[test]
fn a_missing_file_of_a_set_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = foreign(temp.path(), 2);
    fs::remove_file(dir.join("pictures-train.tfrecord-00001-of-00002")).unwrap();
    run(["index", text(&dir)]).failed_with(&["pictures-train.tfrecord-00001-of-00002"]);
    assert!(!dir.join("forebay.json").exists());
}

#[test]
fn damaged_files_get_no_manifest() {
    let temp = tempfile::tempdir().unwrap();
    let dir = foreign(temp.path(), 2);
    let path = dir.join("pictures-train.tfrecord-00001-of-00002");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    run(["index", text(&dir), "--label-base", "0"]).failed_with(&[
        "pictures-train.tfrecord-00001",
        "record",
        "byte",
        "crc32c",
    ]);
    assert!(!dir.join("forebay.json").exists());
}

#[test]
fn a_directory_without_shards_is_no_source() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("readme"), "x").unwrap();
    run(["index", text(temp.path())]).failed_with(&["TFRecord"]);
    run(["index", "/proc/nonexistent"]).failed_with(&["/proc/nonexistent"]);
}

/// A COCO dataset is recognized by its annotations, whatever its splits are called.
#[test]
fn coco_splits_need_no_year() {
    let temp = tempfile::tempdir().unwrap();
    let (source, dst) = (temp.path().join("coco"), temp.path().join("dst"));
    let files = tree(&images());
    let image = files.iter().find(|(path, _)| path.starts_with("train"));
    let image = image.unwrap().1;
    let size = forebay_image::probe(image, &Default::default()).unwrap();
    let json = format!(
        r#"{{"images": [{{"id": 7, "file_name": "a.jpg", "width": {}, "height": {}}}],
            "annotations": [{{"id": 1, "image_id": 7, "category_id": 3, "bbox": [0, 0, 8, 8]}}],
            "categories": [{{"id": 3, "name": "shape"}}]}}"#,
        size.width, size.height
    );
    fs::create_dir_all(source.join("annotations")).unwrap();
    for split in ["train", "val"] {
        fs::create_dir(source.join(split)).unwrap();
        fs::write(source.join(split).join("a.jpg"), image).unwrap();
        let name = format!("annotations/instances_{split}.json");
        fs::write(source.join(name), &json).unwrap();
    }
    run(["convert", text(&source), text(&dst), "--format", "indexed"]).done();
    let summary = run(["inspect", text(&dst), "--json"]).done().summary();
    let splits = summary["splits"].as_array().unwrap();
    let splits: Vec<_> = splits
        .iter()
        .map(|split| (&split["name"], &split["records"]))
        .collect();
    assert_eq!(
        splits,
        [(&"train".into(), &1.into()), (&"val".into(), &1.into())]
    );
}

/// A list of images is converted with its columns, named directly or by its directory. `pack` uses its labels too.
#[test]
fn lists_of_images_are_converted_and_packed() {
    let (temp, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = temp.path().join("train");
    fs::create_dir(&dir).unwrap();
    let (path, image) = tree(&images())
        .into_iter()
        .find(|(path, _)| path.starts_with("train"))
        .unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    fs::write(dir.join(name), &image).unwrap();
    let list = dir.join("metadata.jsonl");
    fs::write(
        &list,
        format!("{{\"file_name\": {name:?}, \"label\": 3, \"text\": \"a caption\"}}\n"),
    )
    .unwrap();
    for (number, source) in [&dir, &list, &temp.path().to_path_buf()]
        .into_iter()
        .enumerate()
    {
        let dst = out.path().join(format!("converted-{number}"));
        run([
            "convert",
            text(source),
            text(&dst),
            "--format",
            "indexed",
            "-q",
        ])
        .done();
        run(["verify", text(&dst), "--deep", "-q"]).done();
        let shown = run(["cat", text(&dst), "0"]).done();
        for word in ["a caption", name] {
            assert!(shown.stdout.contains(word), "{}", shown.stdout);
        }
    }
    let shown = run(["inspect", text(&list)]).done().stdout;
    assert!(
        shown.contains("a list of images") && shown.contains("text"),
        "{shown}"
    );
    let dst = temp.path().join("dst");
    let args = ["pack", text(&dir), text(&dst), "--format", "indexed"];
    run(args.into_iter().chain(["--labels", text(&list)])).done();
    let shown = run(["inspect", text(&dst)]).done().stdout;
    assert!(
        shown.contains("1 record") && shown.contains("text"),
        "{shown}"
    );
}
