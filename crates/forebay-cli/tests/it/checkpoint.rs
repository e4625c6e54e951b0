//! `forebay checkpoint get` and `rm`.

use crate::support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_checkpoint::{Request, Uploader, UploaderOptions};
use forebay_store::{Location, StoreOptions};
use support::{run, text, tree};

fn save(area: &Path, checkpoint: &Path) {
    let uploader = Uploader::open(UploaderOptions::new(area)).unwrap();
    let draft = uploader.begin(100, Duration::ZERO).unwrap().unwrap();
    for (name, bytes) in [("model.bin", "weights"), ("sub/state.json", "{}")] {
        let mut file = draft.create(name).unwrap();
        std::io::Write::write_all(&mut file, bytes.as_bytes()).unwrap();
        draft.finish(file).unwrap();
    }
    let place = Location::parse(checkpoint).unwrap();
    let saved = uploader
        .save(draft, &Request::new(place, StoreOptions::default()))
        .unwrap();
    saved.wait_for(Duration::from_secs(60)).unwrap().unwrap();
}

#[test]
fn files_of_a_checkpoint_are_copied_and_a_checkpoint_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (area, step) = (dir.path().join("area"), dir.path().join("run/step-1"));
    save(&area, &step);
    let out = dir.path().join("out");
    let get = [
        "checkpoint",
        "get",
        text(&step),
        text(&out),
        "--staging",
        text(&area),
    ];
    run(get).done();
    let copied = tree(&out);
    assert_eq!(copied[Path::new("model.bin")], b"weights");
    assert_eq!(copied[Path::new("sub/state.json")], b"{}");
    // Nothing is replaced.
    assert!(run(get).code(1).stderr.contains("is there already"));
    run([&get[..], &["--rank", "1"]].concat()).code(2);

    let rm = ["checkpoint", "rm", text(&step), "--staging", text(&area)];
    run(rm).done();
    assert!(!step.exists());
    assert!(run(rm).code(1).stderr.contains("no complete checkpoint"));
    assert!(fs::exists(dir.path().join("run")).unwrap());
}
