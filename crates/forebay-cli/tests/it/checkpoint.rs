//! Checkpoints in `forebay inspect`, `export` and `rm`.

use crate::support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_staging::checkpoint::{Request, Uploader, UploaderOptions};
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
fn checkpoint_files_are_copied_and_a_checkpoint_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (area, step) = (dir.path().join("area"), dir.path().join("run/step-1"));
    save(&area, &step);
    let out = dir.path().join("out");
    let get = ["export", text(&step), text(&out), "--staging", text(&area)];
    run(get).done();
    let copied = tree(&out);
    assert_eq!(copied[Path::new("model.bin")], b"weights");
    assert_eq!(copied[Path::new("sub/state.json")], b"{}");
    // Nothing is replaced.
    assert!(run(get).code(1).stderr.contains("is there already"));
    run([&get[..], &["--rank", "1"]].concat()).code(2);

    let inspect = ["inspect", text(&step), "--staging", text(&area), "--json"];
    let shown = run(inspect).done();
    assert_eq!(shown.summary()["world_size"], 1);
    assert!(shown.stdout.contains("sub/state.json"), "{}", shown.stdout);
    let run_dir = step.parent().unwrap();
    let shown = run(["inspect", text(run_dir), "--staging", text(&area), "--json"]).done();
    assert_eq!(shown.summary()["checkpoints"], 1);

    let rm = ["rm", text(&step), "--staging", text(&area)];
    run(rm).code(2);
    run([&rm[..], &["-r", "-n"]].concat()).done();
    assert!(step.exists());
    let pin = Location::parse(&step).unwrap();
    forebay_staging::checkpoint::pin(&pin, &StoreOptions::default(), true).unwrap();
    let refused = run([&rm[..], &["-r"]].concat()).code(2);
    assert!(refused.stderr.contains("pinned"), "{}", refused.stderr);
    assert!(step.exists());
    forebay_staging::checkpoint::pin(&pin, &StoreOptions::default(), false).unwrap();
    run([&rm[..], &["-r"]].concat()).done();
    assert!(!step.exists());
    run([&rm[..], &["-r"]].concat()).code(1);
    assert!(fs::exists(dir.path().join("run")).unwrap());
}
