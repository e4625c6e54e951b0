//! Space in the staging area, which checkpoints share with the sessions of packs.

use super::*;
use crate::{AreaOptions, StagingArea};

#[test]
fn a_full_area_makes_room_or_says_why_not() {
    let rig = Rig::new();
    let options = UploaderOptions {
        max_bytes: Some(4000),
        ..UploaderOptions::new(rig.area())
    };
    let buffer = Uploader::open(options).unwrap();
    assert!(matches!(
        buffer.begin(4001, Duration::ZERO),
        Err(Error::TooLarge { .. })
    ));
    let text = "x".repeat(1500);
    done(&rig.save(&buffer, &[("a", &text)], &rig.request("step-1")));
    assert_eq!(rig.staged(), [State::Stored]);
    // Local copies of uploaded checkpoints are removed first.
    assert!(buffer.begin(3500, Duration::ZERO).unwrap().is_some());
    assert!(rig.staged().is_empty());
    let wall = rig.dir.path().join("slow");
    std::fs::rename(&wall, rig.dir.path().join("aside")).unwrap();
    std::fs::write(&wall, "").unwrap();
    let saved = rig.save(&buffer, &[("a", &text)], &rig.request("step-2"));
    assert!(
        buffer
            .begin(3500, Duration::from_millis(10))
            .unwrap()
            .is_none(),
        "what is not drained stays"
    );
    std::fs::remove_file(&wall).unwrap();
    assert!(
        buffer.begin(3500, LONG).unwrap().is_some(),
        "room is made by draining"
    );
    done(&saved);
}

#[test]
fn sessions_and_checkpoints_share_the_room() {
    let rig = Rig::new();
    let most = Some(100_000);
    let buffer = Uploader::open(UploaderOptions {
        max_bytes: most,
        ..UploaderOptions::new(rig.area())
    })
    .unwrap();
    let mut options = AreaOptions::new(rig.area());
    options.max_bytes = most;
    let session = StagingArea::open(&options).unwrap();
    let cancel = Cancel::new();
    // Reserved room is not available to others.
    let room = session.reserve(70_000, &cancel).unwrap();
    assert!(buffer.begin(40_000, Duration::ZERO).unwrap().is_none());
    let draft = buffer.begin(25_000, Duration::ZERO).unwrap().unwrap();
    drop(room);
    let tries = std::cell::Cell::new(0);
    let stopped = || tries.replace(tries.get() + 1) > 0;
    let none = session.reserve_unless(80_000, &stopped).unwrap();
    assert!(none.is_none());
    drop(draft);
    drop(session.reserve(80_000, &cancel).unwrap());
    // The local copy of an uploaded checkpoint is removed to make room.
    let text = "x".repeat(40_000);
    done(&rig.save(&buffer, &[("a", &text)], &rig.request("step-1")));
    assert_eq!(rig.staged(), [State::Stored]);
    drop(session.reserve(90_000, &cancel).unwrap());
    assert!(rig.staged().is_empty());
    // A checkpoint that a dead process left takes space until a recovery uploads it.
    left(&rig, &[("a", &text)], "step-2");
    let error = session.reserve(90_000, &cancel).unwrap_err();
    assert!(
        matches!(error, forebay_store::Error::AreaTooSmall { left_bytes, .. } if left_bytes >= 40_000),
        "{error}"
    );
}
