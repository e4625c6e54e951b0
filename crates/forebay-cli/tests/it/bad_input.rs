//! Errors of users and of disks: each ends with one line that names the location, the documented exit code, and no partly
//! published dataset.

use crate::support;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use forebay_image::{PngCompression, SampleFormat, encode_png_samples};
use support::{images, run, text, tree};
use tempfile::TempDir;

fn pack(source: &Path, root: &Path, more: &[&str]) -> support::Ran {
    let mut args = vec!["pack", text(source), text(root), "--format", "tfrecord"];
    args.extend(more);
    run(args)
}

fn packed(format: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("shards");
    run([
        "pack",
        text(&images()),
        text(&root),
        "--format",
        format,
        "--shards",
        "2",
    ])
    .done();
    (dir, root)
}

fn shard(root: &Path, start: &str) -> PathBuf {
    fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(start)
        })
        .expect("a shard of that name")
}

fn is_root() -> bool {
    // Root ignores permissions, so only other users can test access that is denied.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o000)).unwrap();
    fs::read_dir(dir.path()).is_ok()
}

#[test]
fn a_low_limit_of_open_files_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let script = "ulimit -n 30; exec \"$0\" \"$@\"";
    let ran: support::Ran = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_forebay"), "pack"])
        .args([&images(), &dir.path().join("out")])
        .args(["--format", "tfrecord"])
        .output()
        .unwrap()
        .into();
    ran.failed_with(&["30 open files", "ulimit -n 37"]);
}

#[test]
fn a_missing_source() {
    let dir = tempfile::tempdir().unwrap();
    let ran = pack(&dir.path().join("nowhere"), &dir.path().join("out"), &[]);
    ran.failed_with(&["nowhere"]);
    assert!(!dir.path().join("out").exists());
}

#[test]
fn a_source_that_is_a_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"x").unwrap();
    pack(&dir.path().join("file"), &dir.path().join("out"), &[]).failed_with(&["file"]);
}

#[test]
fn a_source_without_images() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("src");
    fs::create_dir_all(source.join("class")).unwrap();
    fs::write(source.join("class/notes.txt"), b"no picture").unwrap();
    pack(&source, &dir.path().join("out"), &[]).failed_with(&["src", "image"]);
    assert!(!dir.path().join("out/forebay.json").exists());
}

#[test]
fn an_unreadable_source_and_an_unwritable_destination() {
    if is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    pack(&closed, &dir.path().join("out"), &[]).failed_with(&["closed", "ermission"]);
    pack(&images(), &closed.join("out"), &[]).failed_with(&["closed", "ermission"]);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn an_invalid_destination() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"mine").unwrap();
    pack(&images(), &file, &[]).failed_with(&["file"]);
    pack(&images(), &file.join("below"), &[]).failed_with(&["file"]);
    let full = dir.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("thesis.tex"), b"mine").unwrap();
    pack(&images(), &full, &[]).failed_with(&["full"]);
    pack(&images(), Path::new("/proc/forebay"), &[]).failed_with(&["/proc/forebay"]);
    pack(&images(), Path::new("s3://bucket/x"), &[]).failed_with(&["s3"]);
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    assert_eq!(tree(&full).len(), 1);
}

#[test]
fn one_bad_image_does_not_stop_a_pack() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("src");
    for (path, bytes) in tree(&images())
        .iter()
        .filter(|(path, _)| path.starts_with("train"))
    {
        let to = source.join(path.strip_prefix("train").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, bytes).unwrap();
    }
    let good = tree(&source).len();
    fs::write(source.join("n02782093/empty.JPEG"), b"").unwrap();
    fs::write(source.join("n02782093/text.JPEG"), b"<html>404</html>").unwrap();
    // A PNG header of 100,000 x 100,000 pixels.
    let mut bomb =
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\x01\x86\xa0\0\x01\x86\xa0\x08\x02\0\0\0".to_vec();
    bomb.extend([0; 64]);
    fs::write(source.join("n02782093/bomb.png"), bomb).unwrap();

    let root = dir.path().join("out");
    let ran = pack(&source, &root, &["--json"]).code(3);
    let summary = ran.summary();
    assert_eq!(summary["records"], good);
    assert_eq!(summary["skipped"], 3);
    let report = fs::read_to_string(summary["report"].as_str().unwrap()).unwrap();
    for name in ["empty.JPEG", "text.JPEG", "bomb.png"] {
        assert!(report.contains(name), "{report}");
    }
    let other = dir.path().join("people");
    let ran = pack(&source, &other, &[]).code(3);
    assert!(ran.stderr.contains("bomb.png"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("error:"), "{}", ran.stderr);

    let strict = dir.path().join("strict");
    pack(&source, &strict, &["--on-bad", "fail"]).failed_with(&["n02782093"]);
    assert!(!strict.join("forebay.json").exists());
}

#[test]
fn a_shard_cut_short_is_found_with_its_place() {
    for (format, start) in [("tfrecord", "train-00000"), ("indexed", "train-00000")] {
        let (_dir, root) = packed(format);
        let path = shard(&root, start);
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 100).unwrap();
        let ran = run(["verify", text(&root)]).failed_with(&[]);
        assert!(ran.stdout.contains("train-00000"), "{}", ran.stdout);
        let json = run(["verify", text(&root), "--json"]).code(1);
        let finding = json
            .events()
            .into_iter()
            .find(|event| event["type"] == "finding")
            .expect("a finding");
        assert!(
            finding["path"].as_str().unwrap().contains("train-00000"),
            "{finding}"
        );
        assert!(run(["verify", text(&path)]).code == 1, "{format}");
        run(["inspect", text(&root), "--deep"]).code(1);
    }
}

#[test]
fn a_flipped_byte_is_found_with_its_place() {
    for format in ["tfrecord", "indexed"] {
        let (_dir, root) = packed(format);
        let path = shard(&root, "train-00001");
        let file = fs::OpenOptions::new()
            .write(true)
            .read(true)
            .open(&path)
            .unwrap();
        let at = file.metadata().unwrap().len() / 2;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        let ran = run(["verify", text(&root)]).failed_with(&[]);
        assert!(ran.stdout.contains("train-00001"), "{}", ran.stdout);
        assert!(ran.stdout.contains("expected"), "{}", ran.stdout);
        let back = root.with_file_name("back");
        run(["export", text(&root), text(&back)]).failed_with(&["train-00001"]);
    }
}

#[test]
fn a_wrong_magic_is_no_shard() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["x.fbs", "train-00000-of-00001", "picture.jpg"] {
        let path = dir.path().join(name);
        fs::write(&path, b"This is no shard at all, whatever its name may be.").unwrap();
        for command in ["inspect", "verify"] {
            let ran = run([command, text(&path)]).code(1);
            let all = ran.stdout.clone() + &ran.stderr;
            assert!(all.contains(name), "{command}: {all}");
            ran.explains("error: ", &[]);
        }
        run(["cat", text(&path), "0"]).failed_with(&[name]);
    }
}

#[test]
fn a_manifest_for_other_shards_is_refused() {
    let (_a, one) = packed("tfrecord");
    let (_b, other) = packed("tfrecord");
    let source = images();
    run([
        "pack",
        text(&source),
        text(&other),
        "--format",
        "tfrecord",
        "--shards",
        "2",
        "--seed",
        "5",
        "--overwrite",
    ])
    .done();
    fs::copy(one.join("forebay.json"), other.join("forebay.json")).unwrap();
    let ran = run(["verify", text(&other)]).failed_with(&[]);
    assert!(ran.stdout.contains("train-0000"), "{}", ran.stdout);
}

#[test]
fn an_invalid_manifest() {
    let dir = tempfile::tempdir().unwrap();
    for manifest in ["", "{", "[]", "{\"format\":\"other\"}", "\u{0}\u{0}"] {
        fs::write(dir.path().join("forebay.json"), manifest).unwrap();
        for command in ["inspect", "verify"] {
            let ran = run([command, text(dir.path())]).code(1);
            ran.explains("error: ", &[]);
            assert!(
                (ran.stdout.clone() + &ran.stderr).contains("forebay.json"),
                "{manifest:?}: {}{}",
                ran.stdout,
                ran.stderr
            );
        }
    }
}

#[test]
fn a_shard_that_is_missing() {
    let (_dir, root) = packed("indexed");
    fs::remove_file(shard(&root, "train-00001")).unwrap();
    let ran = run(["verify", text(&root)]).failed_with(&[]);
    assert!((ran.stdout + &ran.stderr).contains("train-00001"));
    run(["cat", text(&root), "0", "--split", "train"]).code(1);
}

#[test]
fn a_record_that_is_no_example() {
    let (dir, _root) = packed("tfrecord");
    let foreign = dir.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    let payload = b"\xff\xff\xff not an Example";
    let path = foreign.join("train-00000-of-00001");
    let file = fs::File::create(&path).unwrap();
    let mut writer = forebay_shard::tfrecord::WriterBuilder::new().from_writer(file, &path);
    writer.write(payload).unwrap();
    writer.finish().unwrap();
    run(["cat", text(&path), "0"]).failed_with(&["train-00000-of-00001", "record 0", "Example"]);
}

/// `--transcode-nonstandard` is about images that their names or kinds hide from other readers.
#[test]
fn only_a_png_under_a_jpeg_name_becomes_a_jpeg() {
    let dir = tempfile::tempdir().unwrap();
    let [source, out, back] = ["in", "out", "back"].map(|name| dir.path().join(name));
    let class = source.join("a");
    fs::create_dir_all(&class).unwrap();
    let (gray, small) = (SampleFormat::Gray8, PngCompression::Small);
    let png = encode_png_samples(&[7; 64], 8, 8, gray, small).unwrap();
    for name in ["named.png", "hidden.jpg"] {
        fs::write(class.join(name), &png).unwrap();
    }
    pack(&source, &out, &["--transcode-nonstandard"]).done();
    run(["export", text(&out), text(&back)]).done();
    let files = tree(&back);
    let found = |name: &str| {
        files
            .iter()
            .find(|(path, _)| path.ends_with(name))
            .unwrap()
            .1
    };
    assert_eq!(found("named.png"), &png);
    assert!(found("hidden.jpg").starts_with(&[0xff, 0xd8]));
}

#[test]
fn image_changes_are_counted_and_bad_options_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (source, aside) = (dir.path().join("in"), dir.path().join("aside"));
    let class = source.join("a");
    fs::create_dir_all(&class).unwrap();
    let dirty = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/dirty");
    for name in ["cmyk.jpg", "ycck.jpg"] {
        fs::copy(dirty.join(name), class.join(name)).unwrap();
    }
    fs::write(class.join("text.jpg"), "no image").unwrap();
    let policy = format!("quarantine:{}", text(&aside));
    let more = [
        "--transcode-nonstandard",
        "--max-side",
        "24",
        "--quality",
        "80",
        "--on-bad",
        &policy,
    ];
    let ran = pack(&source, &dir.path().join("out"), &more).code(3);
    for said in ["1 in quarantine", "2 made smaller", "2 converted"] {
        assert!(ran.stdout.contains(said), "{said}: {}", ran.stdout);
    }
    assert_eq!(fs::read(aside.join("a/text.jpg")).unwrap(), b"no image");
    let other = dir.path().join("other");
    for (more, says) in [
        (&["--quality", "80"][..], "made smaller or converted"),
        (&["--on-bad", "quarantine:"], "quarantine:DIR"),
        (&["--on-bad", "burn"], "quarantine:DIR"),
        (&["--resize-short", "0"], "--resize-short"),
    ] {
        let ran = pack(&source, &other, more);
        assert!(ran.code != 0 && ran.stderr.contains(says), "{}", ran.stderr);
        assert!(!other.exists());
    }
}

#[test]
fn label_list_errors_give_no_hints_about_images() {
    let dir = tempfile::tempdir().unwrap();
    let labels = dir.path().join("labels.csv");
    fs::write(&labels, "path,label\nsun.jpg,1.5\n").unwrap();
    let ran = pack(
        &images(),
        &dir.path().join("shards"),
        &["--labels", text(&labels)],
    );
    assert_ne!(ran.code, 0);
    assert!(ran.stderr.contains("labels.csv"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("name a directory"), "{}", ran.stderr);
}
