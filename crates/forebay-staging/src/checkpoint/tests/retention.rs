//! Retention: which checkpoints are removed when another one completes.

use super::*;

#[test]
fn replacing_is_atomic_and_deletes_the_old_data() {
    let rig = Rig::new();
    let buffer = rig.buffer();
    done(&rig.save(&buffer, FILES, &rig.request("best")));
    let refused = Request {
        overwrite: false,
        ..rig.request("best")
    };
    let saved = rig.save(&buffer, &[("a", "other")], &refused);
    assert!(
        matches!(saved.wait_for(LONG), Some(Err(error)) if matches!(*error, Error::Exists { .. }))
    );
    // Saving the same content again is no conflict.
    done(&rig.save(&buffer, FILES, &refused));
    done(&rig.save(&buffer, &[("a", "newest")], &rig.request("best")));
    let far = Checkpoint::open(&rig.place("best"), &StoreOptions::default(), None).unwrap();
    assert_eq!(loaded(&far, 0).unwrap(), as_map(&[("a", "newest")]));
    assert_eq!(tree(&rig.run()).len(), 2, "{:?}", tree(&rig.run()).keys());
}

#[test]
fn newest_pinned_and_read_checkpoints_stay() {
    let rig = Rig::new();
    let buffer = rig.buffer();
    let keep = |name: &str| Request {
        keep: Some(2),
        ..rig.request(name)
    };
    for name in ["step-1", "step-2", "epoch-1", "best"] {
        done(&rig.save(&buffer, FILES, &rig.request(name)));
    }
    // Data without a manifest does not count as a checkpoint, and is not removed while it is recent.
    std::fs::create_dir_all(rig.run().join("step-5/data-x")).unwrap();
    pin(&rig.place("step-1"), &StoreOptions::default(), true).unwrap();
    done(&rig.save(&buffer, FILES, &keep("step-9")));
    assert_eq!(
        rig.names(),
        ["best", "epoch-1", "step-1", "step-2", "step-9"]
    );
    let reader = Checkpoint::open(
        &rig.place("step-2"),
        &StoreOptions::default(),
        Some(&rig.area()),
    )
    .unwrap();
    done(&rig.save(&buffer, FILES, &keep("step-10")));
    done(&rig.save(&buffer, FILES, &keep("step-11")));
    assert_eq!(
        rig.names(),
        ["best", "epoch-1", "step-1", "step-2", "step-10", "step-11"]
    );
    assert_eq!(loaded(&reader, 0).unwrap(), as_map(FILES));
    drop(reader);
    pin(&rig.place("step-1"), &StoreOptions::default(), false).unwrap();
    assert!(pin(&rig.place("step-5"), &StoreOptions::default(), true).is_err());
    // Checkpoints of higher steps, left by a run that was resumed from a lower one, are not touched.
    done(&rig.save(&buffer, FILES, &keep("step-7")));
    assert_eq!(
        rig.names(),
        ["best", "epoch-1", "step-2", "step-7", "step-10", "step-11"]
    );
    assert!(rig.run().join("step-5/data-x").exists());
    assert!(
        !rig.run().join("step-1").exists(),
        "no empty directory stays"
    );
    let one = Request {
        keep: Some(1),
        ..rig.request("step-12")
    };
    done(&rig.save(&buffer, FILES, &one));
    assert_eq!(rig.names(), ["best", "epoch-1", "step-12"]);
}

#[test]
fn removing_refuses_pinned_and_read_checkpoints() {
    let rig = Rig::new();
    let buffer = rig.buffer();
    for name in ["step-1", "step-2"] {
        done(&rig.save(&buffer, FILES, &rig.request(name)));
    }
    let options = StoreOptions::default();
    let (place, area) = (rig.place("step-1"), rig.area());
    let refused = |why: &str| {
        let error = remove(&place, &options, Some(&area)).unwrap_err();
        assert!(error.to_string().ends_with(why), "{error}");
    };
    pin(&place, &options, true).unwrap();
    refused("it is pinned");
    pin(&place, &options, false).unwrap();
    let reader = Checkpoint::open(&place, &options, Some(&area)).unwrap();
    refused("a process of this host reads it");
    drop(reader);
    remove(&place, &options, Some(&area)).unwrap();
    assert_eq!(rig.names(), ["step-2"]);
    assert!(matches!(
        remove(&place, &options, Some(&area)),
        Err(Error::Missing { .. })
    ));
}

#[test]
fn damaged_checkpoints_do_not_count_as_kept() {
    let rig = Rig::new();
    let buffer = rig.buffer();
    let keep = |name: &str| Request {
        keep: Some(2),
        ..rig.request(name)
    };
    for name in ["step-1", "step-2", "step-3"] {
        done(&rig.save(&buffer, FILES, &rig.request(name)));
    }
    for name in ["step-2", "step-3"] {
        std::fs::write(rig.run().join(name).join(MANIFEST_NAME), "{}").unwrap();
    }
    done(&rig.save(&buffer, FILES, &keep("step-4")));
    assert_eq!(rig.load("step-1").unwrap(), as_map(FILES));
    done(&rig.save(&buffer, FILES, &keep("step-5")));
    assert_eq!(rig.names(), ["step-2", "step-3", "step-4", "step-5"]);
    assert_eq!(rig.latest().unwrap(), "step-5");
}

#[test]
fn a_removal_that_was_cut_short_is_finished() {
    let rig = Rig::new();
    let buffer = rig.buffer();
    done(&rig.save(&buffer, FILES, &rig.request("step-1")));
    let dir = rig.run().join("step-1");
    std::fs::rename(
        dir.join(MANIFEST_NAME),
        dir.join("forebay-checkpoint.removed"),
    )
    .unwrap();
    assert_eq!(rig.latest(), None);
    done(&rig.save(
        &buffer,
        FILES,
        &Request {
            keep: Some(3),
            ..rig.request("step-2")
        },
    ));
    assert!(!dir.exists());
}

/// Sets the modification time of a directory and all below it to this long ago.
fn age(dir: &Path, age: Duration) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            self::age(&path, age);
        } else {
            set_age(&path, age);
        }
    }
    set_age(dir, age);
}

fn set_age(path: &Path, age: Duration) {
    let file = std::fs::File::open(path).unwrap();
    file.set_modified(std::time::SystemTime::now() - age)
        .unwrap();
}

#[test]
fn only_data_of_dead_savers_is_removed() {
    let rig = Rig::new();
    let buffer = rig.buffer();
    let day = Duration::from_secs(25 * 3600);
    let put = |key: &str, days: u32| {
        let path = rig.run().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "half").unwrap();
        let step = key.split('/').next().unwrap();
        age(&rig.run().join(step), day * days);
    };
    // Left by savers that were killed: during a copy, after one rank's part, and before the first file.
    put("step-1/data-a/.x.forebay-tmp", 1);
    put("step-1/data-a/y", 1);
    put("step-2/data-b/rank-00001-of-00002.json", 2);
    std::fs::create_dir_all(rig.run().join("step-3/data-c")).unwrap();
    age(&rig.run().join("step-3"), day);
    // These stay: data of a live saver, a file of another tool, another series of names, and a step above the new one.
    put("step-4/data-d/x", 0);
    put("step-5/data-e/x", 1);
    put("step-5/notes.txt", 1);
    put("other-1/data-f/x", 1);
    put("step-21/data-g/x", 1);
    let keep = |name: &str| Request {
        keep: Some(2),
        ..rig.request(name)
    };
    done(&rig.save(&buffer, FILES, &keep("step-19")));
    assert!(
        rig.run().join("step-1").exists(),
        "fewer than two newer ones are complete"
    );
    done(&rig.save(&buffer, FILES, &keep("step-20")));
    let mut left: Vec<String> = std::fs::read_dir(rig.run())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(
        left,
        [
            "other-1", "step-19", "step-20", "step-21", "step-4", "step-5"
        ]
    );
    assert_eq!(tree(&rig.run().join("step-5")).len(), 2);
}
