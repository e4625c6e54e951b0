//! Runs `forebay convert` through the binary.

use crate::support;

use std::fs;
use std::path::Path;

use support::{images, run, text, tree};

fn pack(root: &Path, more: &[&str]) {
    let source = images();
    let mut args = vec!["pack", text(&source), text(root)];
    args.extend(more);
    run(args).done();
}

#[test]
fn convert_reports_what_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let (packed, converted) = (dir.path().join("packed"), dir.path().join("converted"));
    pack(&packed, &["--format", "tfrecord", "--seek-points", "off"]);
    let convert = [
        "convert",
        text(&packed),
        text(&converted),
        "--format",
        "indexed",
        "--seek-points",
        "auto",
        "--shards",
        "2",
    ];
    let ran = run(convert).done();
    for part in ["Converted", "seek points of", "forebay.json", "fingerprint"] {
        assert!(ran.stdout.contains(part), "no {part:?} in\n{}", ran.stdout);
    }
    assert!(converted.join("train-00001-of-00002.fbs").is_file());
    run(["verify", text(&converted), "--deep"]).done();
    let again = run(convert).done();
    assert!(
        again.stdout.contains("complete already"),
        "{}",
        again.stdout
    );
    assert!(!ran.stderr.contains("forebay cp"), "{}", ran.stderr);
    let same = run(["convert", text(&packed), text(&dir.path().join("same"))]).done();
    assert!(same.stderr.contains("forebay cp"), "{}", same.stderr);
    // An export gives the images as they were packed.
    let exported = dir.path().join("exported");
    run(["export", text(&converted), text(&exported)]).done();
    let before = dir.path().join("before");
    run(["export", text(&packed), text(&before)]).done();
    assert_eq!(tree(&exported), tree(&before));
    let events = run([
        "convert",
        text(&packed),
        text(&dir.path().join("json")),
        "--json",
    ])
    .done();
    let last: serde_json::Value =
        serde_json::from_str(events.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["command"], "convert");
    assert_eq!(last["seek_point_images"], 0);
}

#[test]
fn tfrecords_of_another_tool_become_a_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let (packed, foreign) = (dir.path().join("packed"), dir.path().join("foreign"));
    pack(&packed, &["--format", "tfrecord", "--shards", "2"]);
    fs::create_dir(&foreign).unwrap();
    for name in ["train-00000-of-00002", "train-00001-of-00002"] {
        fs::copy(packed.join(name), foreign.join(name)).unwrap();
    }
    let dst = dir.path().join("dst");
    run(["convert", text(&foreign), text(&dst), "--format", "indexed"]).done();
    run(["verify", text(&dst)]).done();
    let file = foreign.join("train-00001-of-00002");
    let one = dir.path().join("one");
    // Converting one file of a set is refused, because the result would pass for the whole set.
    run(["convert", text(&file), text(&one)]).code(1);
    fs::rename(file, foreign.join("part.tfrecord")).unwrap();
    run(["convert", text(&foreign.join("part.tfrecord")), text(&one)]).done();
    assert!(one.join("train-00000-of-00001").is_file());
}

#[test]
fn seek_points_of_another_image_are_found() {
    use forebay_shard::example::set_bytes;
    use forebay_shard::{Dataset, image_record, tfrecord};

    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("packed");
    pack(&packed, &["--format", "tfrecord", "--seek-points", "on"]);
    run(["verify", text(&packed), "--deep"]).done();
    let split = Dataset::open(&packed).unwrap().split("train").unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    split.read(0, &mut first).unwrap();
    split.read(1, &mut second).unwrap();
    let points = image_record(&first).unwrap().seek_points.unwrap();
    let mut swapped = Vec::new();
    set_bytes(
        &second,
        &[("image/seek_points", Some(points))],
        &mut swapped,
    )
    .unwrap();
    let path = dir.path().join("swapped.tfrecord");
    let file = fs::File::create(&path).unwrap();
    let mut writer = tfrecord::WriterBuilder::new().from_writer(file, &path);
    writer.write(&first).unwrap();
    writer.write(&swapped).unwrap();
    writer.finish().unwrap();
    run(["verify", text(&path)]).done();
    let found = run(["verify", text(&path), "--deep"]).code(1);
    assert!(
        found.stdout.contains("image/seek_points"),
        "{}",
        found.stdout
    );
    // A conversion creates the seek points again.
    let dst = dir.path().join("mended");
    run(["convert", text(&path), text(&dst), "--seek-points", "on"]).done();
    run(["verify", text(&dst), "--deep"]).done();
}

#[test]
fn verify_reports_images_that_no_decoder_supports() {
    use forebay_shard::example::set_bytes;
    use forebay_shard::{Dataset, image_record, tfrecord};

    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("packed");
    pack(&packed, &["--format", "tfrecord"]);
    let split = Dataset::open(&packed).unwrap().split("train").unwrap();
    let path = dir.path().join("kinds.tfrecord");
    let file = fs::File::create(&path).unwrap();
    let mut writer = tfrecord::WriterBuilder::new().from_writer(file, &path);
    let (mut record, mut changed) = (Vec::new(), Vec::new());
    let mut kinds = [0xc9, 0xc3].iter();
    for number in 0..split.len() {
        split.read(number, &mut record).unwrap();
        let mut image = image_record(&record).unwrap().image.to_vec();
        let frame = image.windows(2).position(|w| w == [0xff, 0xc0]);
        if let (Some(frame), true) = (frame, image.starts_with(&[0xff, 0xd8])) {
            let Some(&kind) = kinds.next() else { break };
            image[frame + 1] = kind;
            changed.clear();
            set_bytes(&record, &[("image/encoded", Some(&image))], &mut changed).unwrap();
            writer.write(&changed).unwrap();
        }
    }
    writer.finish().unwrap();
    let found = run(["verify", text(&path)]).code(1).stdout;
    for kind in ["arithmetic", "lossless"] {
        let what = format!("unsupported JPEG: {kind} coding");
        assert!(found.contains(&what), "{found}");
    }
    for word in ["corrupt", "damaged"] {
        assert!(!found.contains(word), "{found}");
    }
}

/// The error about an unfinished dataset names the command that started it.
#[test]
fn a_failed_conversion_is_continued_by_convert() {
    let dir = tempfile::tempdir().unwrap();
    let (packed, converted) = (dir.path().join("packed"), dir.path().join("converted"));
    pack(&packed, &["--format", "tfrecord", "--shards", "1"]);
    let shard = packed.join("train-00000-of-00001");
    let mut bytes = fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&shard, bytes).unwrap();
    run([
        "convert",
        text(&packed),
        text(&converted),
        "--format",
        "indexed",
    ])
    .failed_with(&["crc32c"]);
    let ran = run(["inspect", text(&converted)]).failed_with(&["forebay.json"]);
    assert!(
        ran.stderr.contains("the same `forebay convert`"),
        "{}",
        ran.stderr
    );
}
