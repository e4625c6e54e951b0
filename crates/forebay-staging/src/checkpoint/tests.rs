//! End-to-end tests of checkpoints, with directories as stores.

mod retention;
mod room;

use super::*;
use crate::unit::Unit;
use forebay_store::{Cancel, Location, StoreOptions};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Timeout: no operation here takes this long unless it hangs.
const LONG: Duration = Duration::from_secs(60);

struct Rig {
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// Returns the staging areas of two machines, and their uploaders.
    fn two_machines(&self) -> (Vec<PathBuf>, Vec<Uploader>) {
        let areas = (0..2).map(|rank| self.dir.path().join(format!("fast{rank}")));
        let areas: Vec<PathBuf> = areas.collect();
        let uploader = |area| Uploader::open(UploaderOptions::new(area)).unwrap();
        let uploaders = areas.iter().map(uploader).collect();
        (areas, uploaders)
    }

    fn area(&self) -> PathBuf {
        self.dir.path().join("fast")
    }

    fn run(&self) -> PathBuf {
        self.dir.path().join("slow/run")
    }

    fn buffer(&self) -> Uploader {
        Uploader::open(UploaderOptions::new(self.area())).unwrap()
    }

    fn place(&self, name: &str) -> Location {
        Location::parse(self.run().join(name)).unwrap()
    }

    fn request(&self, name: &str) -> Request {
        Request::new(self.place(name), StoreOptions::default())
    }

    fn save(&self, buffer: &Uploader, files: &[(&str, &str)], request: &Request) -> Saved {
        buffer.save(draft(buffer, files), request).unwrap()
    }

    /// Loads all files of a checkpoint, by name.
    fn load(&self, name: &str) -> Result<BTreeMap<String, String>> {
        let found = Checkpoint::open(
            &self.place(name),
            &StoreOptions::default(),
            Some(&self.area()),
        )?;
        loaded(&found, 0)
    }

    fn latest(&self) -> Option<String> {
        let run = Location::parse(self.run()).unwrap();
        let found = latest(&run, &StoreOptions::default(), Some(&self.area())).unwrap();
        found.map(|place| place.rsplit('/').next().unwrap().to_owned())
    }

    fn names(&self) -> Vec<String> {
        let run = Location::parse(self.run()).unwrap();
        let found = list(&run, &StoreOptions::default(), None).unwrap();
        found.into_iter().map(|found| found.name).collect()
    }

    /// Returns the states of the checkpoints in the staging area.
    fn staged(&self) -> Vec<State> {
        status(&self.area())
            .unwrap()
            .into_iter()
            .map(|status| status.state)
            .collect()
    }
}

fn draft(buffer: &Uploader, files: &[(&str, &str)]) -> Draft {
    let draft = buffer.begin(0, LONG).unwrap().unwrap();
    for (name, text) in files {
        let mut file = draft.create(name).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        draft.finish(file).unwrap();
    }
    draft
}

fn loaded(found: &Checkpoint, rank: u32) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for file in &found.manifest().parts[rank as usize].files {
        let mut bytes = vec![0; file.bytes as usize];
        found.read(rank, file, &mut bytes, &Cancel::new())?;
        files.insert(file.name.clone(), String::from_utf8(bytes).unwrap());
    }
    Ok(files)
}

fn done(saved: &Saved) {
    match saved.wait_for(LONG) {
        Some(Ok(())) => {}
        other => panic!("{}: {other:?}, {:?}", saved.location(), saved.error()),
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LONG, "waited for {what}");
        std::thread::yield_now();
    }
}

/// Leaves an acknowledged checkpoint in the area, as a process does that dies before the upload.
fn left(rig: &Rig, files: &[(&str, &str)], name: &str) {
    let buffer = rig.buffer();
    let place = super::name::CheckpointPath::of(&rig.place(name)).unwrap();
    let mut orders = super::marker::SaveTarget {
        place,
        store: StoreOptions::default(),
        overwrite: true,
        keep: None,
        attempt: String::new(),
        rank: 0,
        world_size: 1,
        superseded: Vec::new(),
    };
    draft(&buffer, files)
        .commit(&mut orders, "files", serde_json::Map::new())
        .unwrap();
}

const FILES: &[(&str, &str)] = &[("a", "one"), ("deep/er/b", "two two"), ("empty", "")];

fn as_map(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    files
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect()
}

#[test]
fn saved_files_load_from_the_area_and_from_the_store() {
    let rig = Rig::new();
    let buffer = rig.buffer();
    let saved = rig.save(&buffer, FILES, &rig.request("step-1"));
    // Whether the upload has finished or not, loading returns the same files.
    assert_eq!(rig.load("step-1").unwrap(), as_map(FILES));
    assert_eq!(rig.latest().as_deref(), Some("step-1"));
    done(&saved);
    assert_eq!((saved.moved(), saved.bytes()), (10, 10));
    assert_eq!(rig.load("step-1").unwrap(), as_map(FILES));
    let far = Checkpoint::open(&rig.place("step-1"), &StoreOptions::default(), None).unwrap();
    assert!(!far.is_local());
    assert_eq!(loaded(&far, 0).unwrap(), as_map(FILES));
    let out = rig.dir.path().join("out");
    for file in &far.manifest().parts[0].files {
        far.export(0, file, &out.join(&file.name), &Cancel::new(), &|_| {})
            .unwrap();
        assert_eq!(
            std::fs::metadata(out.join(&file.name)).unwrap().len(),
            file.bytes
        );
    }
    assert!(far.verify(&Cancel::new(), &|_| {}).unwrap().is_empty());
    assert_eq!(rig.staged(), [State::Stored]);
}

fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                found.insert(
                    path.strip_prefix(dir).unwrap().to_path_buf(),
                    std::fs::read(path).unwrap(),
                );
            }
        }
    }
    found
}

#[test]
fn uncommitted_drafts_leave_nothing() {
    let rig = Rig::new();
    let buffer = rig.buffer();
    drop(draft(&buffer, FILES));
    assert!(rig.staged().is_empty());
    let unfinished = draft(&buffer, FILES);
    let file = unfinished.create("more").unwrap();
    let error = buffer.save(unfinished, &rig.request("step-1")).unwrap_err();
    assert!(error.to_string().contains("more"), "{error}");
    drop(file);
    assert!(rig.staged().is_empty());
    let twice = draft(&buffer, FILES);
    assert!(twice.create("a").is_err() && twice.create("../x").is_err());
    for bad in [
        Request {
            keep: Some(0),
            ..rig.request("step-1")
        },
        Request {
            rank: 2,
            world_size: 2,
            ..rig.request("step-1")
        },
        Request {
            world_size: 2,
            ..rig.request("step-1")
        },
        Request {
            world_size: 2,
            attempt: Some("a/b".to_owned()),
            ..rig.request("step-1")
        },
    ] {
        let error = buffer.save(draft(&buffer, FILES), &bad).unwrap_err();
        assert!(matches!(error, Error::Option { .. }), "{error}");
    }
    assert!(rig.load("step-1").is_err() && rig.latest().is_none());
}

#[test]
fn recovery_uploads_checkpoints_of_dead_processes() {
    let rig = Rig::new();
    left(&rig, FILES, "step-3");
    left(&rig, &[("a", "newer")], "step-4");
    // A draft that was never acknowledged.
    let (unfinished, lock) = Unit::create(&rig.area()).unwrap();
    std::fs::write(unfinished.file("half"), "ha").unwrap();
    drop(lock);
    assert_eq!(rig.load("step-3").unwrap(), as_map(FILES));
    assert_eq!(rig.latest().as_deref(), Some("step-4"));
    assert_eq!(rig.staged(), [State::Staged, State::Staged, State::Writing]);
    let buffer = rig.buffer();
    let found = buffer.recover(&|_| None).unwrap();
    assert_eq!(found.len(), 2);
    found.iter().for_each(done);
    assert_eq!(rig.names(), ["step-3", "step-4"]);
    // One copy stays on the fast disk, and the unfinished draft is removed.
    until("the area to be tidy", || rig.staged() == [State::Stored]);
    assert_eq!(rig.load("step-3").unwrap(), as_map(FILES));
    assert!(buffer.recover(&|_| None).unwrap().is_empty());
}

#[test]
fn recovery_leaves_drafts_of_live_processes() {
    let rig = Rig::new();
    let (one, other) = (rig.buffer(), rig.buffer());
    let draft = draft(&one, FILES);
    assert!(other.recover(&|_| None).unwrap().is_empty());
    done(&one.save(draft, &rig.request("step-1")).unwrap());
}

#[test]
fn an_unreachable_store_delays_only_the_upload() {
    let rig = Rig::new();
    // A file in the place of the store's directory makes uploads fail.
    let wall = rig.dir.path().join("slow");
    std::fs::write(&wall, "").unwrap();
    let buffer = rig.buffer();
    let saved = rig.save(&buffer, FILES, &rig.request("step-1"));
    until("a failed try", || saved.error().is_some());
    assert!(!saved.is_done() && saved.outcome().is_none());
    assert_eq!(rig.load("step-1").unwrap(), as_map(FILES));
    assert!(status(&rig.area()).unwrap()[0].error.is_some());
    assert!(saved.wait_for(Duration::ZERO).is_none());
    std::fs::remove_file(&wall).unwrap();
    done(&saved);
    assert!(saved.error().is_none());
    assert_eq!(rig.names(), ["step-1"]);
}

#[test]
fn damage_is_refused_with_the_files_name() {
    let rig = Rig::new();
    done(&rig.save(&rig.buffer(), FILES, &rig.request("step-1")));
    let data = |name: &str| {
        let found = Checkpoint::open(&rig.place("step-1"), &StoreOptions::default(), None).unwrap();
        rig.run().join("step-1").join(found.manifest().key(0, name))
    };
    let far = || {
        let found = Checkpoint::open(&rig.place("step-1"), &StoreOptions::default(), None).unwrap();
        loaded(&found, 0).map(drop).and(
            found
                .verify(&Cancel::new(), &|_| {})
                .map(|found| found.len()),
        )
    };
    assert_eq!(far().unwrap(), 0);
    let path = data("deep/er/b");
    let good = std::fs::read(&path).unwrap();
    for bad in [b"two tvo".as_slice(), b"two", b"two two two"] {
        std::fs::write(&path, bad).unwrap();
        match far() {
            Err(Error::Corrupt { file, .. }) => assert_eq!(file, "deep/er/b"),
            other => panic!("{other:?}"),
        }
        // The copy on the fast disk is intact.
        assert_eq!(rig.load("step-1").unwrap(), as_map(FILES));
    }
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(far(), Err(Error::Corrupt { .. })));
    std::fs::write(&path, good).unwrap();
    // A damaged copy on the fast disk is skipped, and the store's file is read.
    let copy = Unit::all(&rig.area()).unwrap().remove(0).file("deep/er/b");
    for bad in [b"two tvo".as_slice(), b"two", b"two two two"] {
        std::fs::write(&copy, bad).unwrap();
        assert_eq!(rig.load("step-1").unwrap(), as_map(FILES));
    }
    let manifest = rig.run().join("step-1").join(MANIFEST_NAME);
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"bytes\": 7", "\"bytes\": 8")).unwrap();
    assert!(matches!(rig.load("step-1"), Err(Error::Manifest { .. })));
    assert_eq!(rig.latest(), None, "what is damaged is never the latest");
}

#[test]
fn ranges_of_files_are_read_from_both_places() {
    let rig = Rig::new();
    done(&rig.save(&rig.buffer(), FILES, &rig.request("step-1")));
    let options = StoreOptions::default();
    for area in [None, Some(rig.area())] {
        let found = Checkpoint::open(&rig.place("step-1"), &options, area.as_deref()).unwrap();
        assert_eq!(found.is_local(), area.is_some());
        let file = found.manifest().parts[0].file("deep/er/b").unwrap();
        let range = |offset, length| {
            let mut bytes = vec![0; length];
            found.read_range(0, file, offset, &mut bytes, &Cancel::new())?;
            Result::Ok(String::from_utf8(bytes).unwrap())
        };
        assert_eq!(range(4, 3).unwrap(), "two");
        assert_eq!(range(7, 0).unwrap(), "");
        for (offset, length) in [(5, 3), (u64::MAX, 1)] {
            assert!(matches!(range(offset, length), Err(Error::Corrupt { .. })));
        }
    }
}

#[test]
fn a_damaged_staged_file_is_never_drained() {
    let rig = Rig::new();
    left(&rig, FILES, "step-1");
    let entry = Unit::all(&rig.area()).unwrap().remove(0);
    std::fs::write(entry.file("a"), "0ne").unwrap();
    assert!(matches!(rig.load("step-1"), Err(Error::Corrupt { .. })));
    let found = rig.buffer().recover(&|_| None).unwrap();
    match found[0].wait_for(LONG) {
        Some(Err(error)) => assert!(error.to_string().contains("files/a"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(rig.names().is_empty());
    assert_eq!(
        rig.staged(),
        [State::Staged],
        "it is kept for somebody to look at"
    );
}

#[test]
fn ranks_make_one_checkpoint_together() {
    let rig = Rig::new();
    // Each rank has its own staging area, as on a machine of its own.
    let areas: Vec<Uploader> = (0..4)
        .map(|rank| {
            Uploader::open(UploaderOptions::new(
                rig.dir.path().join(format!("fast{rank}")),
            ))
            .unwrap()
        })
        .collect();
    let request = |rank, attempt: &str| Request {
        rank,
        world_size: 3,
        attempt: Some(attempt.to_owned()),
        ..rig.request("step-1")
    };
    let part = |rank: u32| [("shard", ["zero", "one", "two"][rank as usize])];
    let first = rig.save(&areas[0], &part(0), &request(0, "try-1"));
    let second = rig.save(&areas[1], &part(1), &request(1, "try-1"));
    until("both parts", || {
        first.missing_ranks() == [2] && second.missing_ranks() == [2]
    });
    assert!(rig.names().is_empty(), "two of three are no checkpoint");
    assert_eq!(rig.latest(), None);
    // A part of another attempt does not complete it.
    let stray = rig.save(&areas[3], &part(2), &request(2, "try-0"));
    until("the stray part", || stray.missing_ranks() == [0, 1]);
    assert!(rig.names().is_empty());
    let third = rig.save(&areas[2], &part(2), &request(2, "try-1"));
    for saved in [&first, &second, &third] {
        done(saved);
    }
    let found = Checkpoint::open(&rig.place("step-1"), &StoreOptions::default(), None).unwrap();
    assert_eq!(found.manifest().world_size(), 3);
    for rank in 0..3 {
        assert_eq!(loaded(&found, rank).unwrap(), as_map(&part(rank)));
    }
    assert!(found.verify(&Cancel::new(), &|_| {}).unwrap().is_empty());
    // Other content under the same attempt is refused, since it would mix two checkpoints.
    let mixed = rig.save(&areas[0], &[("shard", "other")], &request(0, "try-1"));
    assert!(
        matches!(mixed.wait_for(LONG), Some(Err(error)) if matches!(*error, Error::Exists { .. }))
    );
    // A rank stops waiting for missing parts once a newer step is complete.
    let newer = Request {
        attempt: None,
        ..rig.request("step-2")
    };
    done(&rig.save(&rig.buffer(), FILES, &newer));
    assert!(
        matches!(stray.wait_for(LONG), Some(Err(error)) if matches!(*error, Error::Abandoned { .. }))
    );
}

/// Copies a staged unit, to restore the state in which a crash would have left it.
fn copy_entry(from: &Path, to: &Path) {
    for (name, bytes) in tree(from) {
        let target = to.join(name);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
}

#[test]
fn a_replaced_checkpoint_is_not_published_again() {
    let rig = Rig::new();
    let (old, new) = ([("a", "old")], [("a", "new")]);
    // The process dies after it published the manifest and before it marked the unit as stored.
    left(&rig, &old, "best");
    let entries = rig.area().join(".forebay-checkpoints");
    let entry = std::fs::read_dir(&entries).unwrap().next().unwrap();
    let entry = entry.unwrap().path();
    let aside = rig.dir.path().join("aside");
    copy_entry(&entry, &aside);
    rig.buffer()
        .recover(&|_| None)
        .unwrap()
        .iter()
        .for_each(done);
    let buffer = rig.buffer();
    done(&rig.save(&buffer, &new, &rig.request("best")));
    let there = tree(&rig.run());
    assert_eq!(there.len(), 2, "{:?}", there.keys());
    copy_entry(&aside, &entries.join(format!("{:020}", 7)));
    let again = rig.buffer().recover(&|_| None).unwrap();
    assert_eq!(again.len(), 1);
    again.iter().for_each(done);
    assert_eq!(tree(&rig.run()), there);
    assert_eq!(rig.load("best").unwrap(), as_map(&new));
}

#[test]
fn a_late_rank_does_not_publish_a_replaced_attempt() {
    let rig = Rig::new();
    let (areas, buffers) = rig.two_machines();
    let save = |rank: u32, attempt: &str| {
        let request = Request {
            rank,
            world_size: 2,
            attempt: Some(attempt.to_owned()),
            ..rig.request("best")
        };
        let text = format!("{attempt} of {rank}");
        rig.save(&buffers[rank as usize], &[("a", &text)], &request)
    };
    // Rank 1 has uploaded its part, and waits for rank 0.
    let first = save(1, "one");
    until("the part", || first.missing_ranks() == [0]);
    let entries = areas[1].join(".forebay-checkpoints");
    let entry = std::fs::read_dir(&entries).unwrap().next().unwrap();
    let aside = rig.dir.path().join("aside");
    copy_entry(&entry.unwrap().path(), &aside);
    assert!(!aside.join("files").exists());
    done(&save(0, "one"));
    done(&first);
    let second = [save(0, "two"), save(1, "two")];
    second.iter().for_each(done);
    let there = tree(&rig.run());
    assert_eq!(there.len(), 5, "{:?}", there.keys());
    // Rank 1 died while it waited, and recovers now.
    copy_entry(&aside, &entries.join(format!("{:020}", 7)));
    let again = buffers[1].recover(&|_| None).unwrap();
    assert_eq!(again.len(), 1);
    again.iter().for_each(done);
    assert_eq!(tree(&rig.run()), there);
    // A save that reuses the name of a replaced attempt is refused.
    let twice = save(0, "one").wait_for(LONG);
    assert!(
        matches!(&twice, Some(Err(error)) if error.to_string().contains("complete before")),
        "{twice:?}"
    );
    assert_eq!(tree(&rig.run()), there);
}

#[test]
fn a_failed_save_ends_with_a_later_complete_one() {
    let rig = Rig::new();
    let (areas, buffers) = rig.two_machines();
    let request = |rank: u32, attempt: &str| Request {
        rank,
        world_size: 2,
        attempt: Some(attempt.to_owned()),
        ..rig.request("step-1")
    };
    let save = |rank: u32, attempt: &str| {
        let text = format!("{attempt} of {rank}");
        let request = request(rank, attempt);
        rig.save(&buffers[rank as usize], &[("a", &text)], &request)
    };
    // Rank 0 failed, so its part of the first attempts never comes. Rank 1 had uploaded its part of "one", but not of "two".
    let first = save(1, "one");
    until("the part", || first.missing_ranks() == [0]);
    let mut target = request(1, "two").orders().unwrap();
    draft(&buffers[1], FILES)
        .commit(&mut target, "files", serde_json::Map::new())
        .unwrap();
    let third = [save(0, "three"), save(1, "three")];
    third.iter().for_each(done);
    done(&first);
    let again = buffers[1].recover(&|_| None).unwrap();
    assert_eq!(again.len(), 1);
    again.iter().for_each(done);
    // Two files, two parts and the manifest.
    let names = tree(&rig.run()).into_keys().collect::<Vec<_>>();
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(status(&areas[1]).unwrap().is_empty());
    let found = Checkpoint::open(&rig.place("step-1"), &StoreOptions::default(), None).unwrap();
    assert_eq!(found.manifest().attempt, "three");
    assert!(found.verify(&Cancel::new(), &|_| {}).unwrap().is_empty());
}

#[test]
fn a_part_of_unknown_age_waits_beside_a_complete_save() {
    let rig = Rig::new();
    let (one, other) = (
        rig.buffer(),
        Uploader::open(UploaderOptions::new(rig.dir.path().join("other"))).unwrap(),
    );
    let request = Request {
        world_size: 2,
        rank: 1,
        attempt: Some("one".to_owned()),
        ..rig.request("step-1")
    };
    let part = rig.save(&one, FILES, &request);
    until("the part", || part.missing_ranks() == [0]);
    assert!(!part.is_beside_complete());
    // Saved through another area, so whether it is newer is unknown here: the part is kept, since rank 0 may follow.
    done(&rig.save(&other, FILES, &rig.request("step-1")));
    until("another look", || part.is_beside_complete());
    let request = Request { rank: 0, ..request };
    let rest = rig.save(&other, FILES, &request);
    [&part, &rest].into_iter().for_each(done);
    let found = Checkpoint::open(&rig.place("step-1"), &StoreOptions::default(), None).unwrap();
    assert_eq!(found.manifest().attempt, "one");
}

#[test]
fn closing_keeps_what_is_staged() {
    let rig = Rig::new();
    std::fs::write(rig.dir.path().join("slow"), "").unwrap();
    let buffer = rig.buffer();
    let saved = rig.save(&buffer, FILES, &rig.request("step-1"));
    buffer.close();
    drop((saved, buffer));
    std::fs::remove_file(rig.dir.path().join("slow")).unwrap();
    assert_eq!(rig.load("step-1").unwrap(), as_map(FILES));
    rig.buffer()
        .recover(&|_| None)
        .unwrap()
        .iter()
        .for_each(done);
    assert_eq!(rig.names(), ["step-1"]);
}

#[test]
fn directories_and_adopted_files_are_saved() {
    let rig = Rig::new();
    let source = rig.dir.path().join("source");
    std::fs::create_dir_all(source.join("x/y")).unwrap();
    std::fs::create_dir(source.join("empty")).unwrap();
    std::fs::write(source.join("x/y/z"), "zett").unwrap();
    std::os::unix::fs::symlink(source.join("x/y/z"), source.join("link")).unwrap();
    let buffer = rig.buffer();
    let draft = buffer.begin(0, LONG).unwrap().unwrap();
    draft.copy_dir(&source, &Cancel::new()).unwrap();
    std::fs::write(draft.path("own").unwrap(), "by a library").unwrap();
    draft.adopt("own", &Cancel::new()).unwrap();
    done(&buffer.save(draft, &rig.request("step-1")).unwrap());
    let expected = [("link", "zett"), ("own", "by a library"), ("x/y/z", "zett")];
    assert_eq!(rig.load("step-1").unwrap(), as_map(&expected));
    std::os::unix::fs::symlink(&source, source.join("loop")).unwrap();
    let draft = buffer.begin(0, LONG).unwrap().unwrap();
    let error = draft.copy_dir(&source, &Cancel::new()).unwrap_err();
    assert!(error.to_string().contains("loop"), "{error}");
}

#[test]
fn two_processes_save_one_name() {
    let rig = Rig::new();
    // Uploaders of one process exclude each other as those of two processes do.
    let all: Vec<Saved> = std::thread::scope(|scope| {
        let rig = &rig;
        let threads: Vec<_> = (0..4)
            .map(|number| {
                scope.spawn(move || {
                    let buffer = rig.buffer();
                    (0..3)
                        .map(|_| {
                            rig.save(
                                &buffer,
                                &[("a", &format!("from {number}"))],
                                &rig.request("best"),
                            )
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    all.iter().for_each(done);
    let found = Checkpoint::open(&rig.place("best"), &StoreOptions::default(), None).unwrap();
    assert!(loaded(&found, 0).unwrap()["a"].starts_with("from "));
    assert_eq!(
        tree(&rig.run()).len(),
        2,
        "what lost is gone: {:?}",
        tree(&rig.run()).keys()
    );
}
