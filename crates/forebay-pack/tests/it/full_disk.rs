//! A full destination is an ordinary error: nothing is published, and a rerun continues.
//!
//! The tests need permission to mount a tmpfs. Without it, they print a message and do nothing.

use crate::support;

use forebay_pack::{DatasetFormat, Error, OnBad};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::*;

/// A mounted tmpfs of this many KiB.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, kib: u64) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let size = format!("size={kib}k");
        mount(&["-t", "tmpfs", "-o", &size, "tmpfs"], at).then(|| Self(at.to_path_buf()))
    }

    fn remount(&self, options: &str) {
        assert!(mount(&["-o", &format!("remount,{options}")], &self.0));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg(&self.0)
            .stderr(Stdio::null())
            .status();
    }
}

fn mount(args: &[&str], at: &Path) -> bool {
    Command::new("mount")
        .args(args)
        .arg(at)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn a_full_disk_is_an_error_and_more_room_continues() {
    let dir = tempfile::tempdir().unwrap();
    let (src, disk) = (dir.path().join("src"), dir.path().join("disk"));
    tree(&src, 3, 60);
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let whole = dir.path().join(format!("{format:?}"));
        let mut clean = options(&src, &whole);
        clean.format = format;
        run(&clean).unwrap();
        let mut failures = 0;
        for kib in (40..).step_by(68) {
            let Some(small) = SmallDisk::mount(&disk, kib) else {
                eprintln!("skipped: this user may not mount a tmpfs");
                return;
            };
            let mut packed = options(&src, &disk);
            (packed.format, packed.check_space) = (format, false);
            let Err(error) = run(&packed) else { break };
            failures += 1;
            assert!(
                error
                    .hint()
                    .is_some_and(|hint| hint.contains("free some space")),
                "{kib} KiB: {error}"
            );
            assert!(
                error.to_string().contains(disk.to_str().unwrap()),
                "{error}"
            );
            for (name, content) in contents(&disk) {
                let name = name.to_str().unwrap().to_owned();
                assert!(
                    name != "forebay.json" && !name.ends_with(".forebay-tmp"),
                    "{kib} KiB: {name}"
                );
                if name.starts_with("train-") {
                    assert!(
                        content == std::fs::read(whole.join(&name)).unwrap(),
                        "{kib} KiB: {name} is half written"
                    );
                }
            }
            small.remount("size=64m");
            run(&packed).unwrap();
            assert_same(&whole, &disk);
        }
        assert!(failures > 3, "only {failures} sizes were too small");
    }
}

#[test]
fn too_little_space_is_detected_before_the_first_shard() {
    let dir = tempfile::tempdir().unwrap();
    let (src, disk) = (dir.path().join("src"), dir.path().join("disk"));
    tree(&src, 2, 60);
    let Some(small) = SmallDisk::mount(&disk, 300) else {
        eprintln!("skipped: this user may not mount a tmpfs");
        return;
    };
    let mut packed = options(&src, &disk);
    packed.on_bad = OnBad::Fail;
    let error = run(&packed).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    small.remount("ro");
    let error = run(&packed).unwrap_err();
    assert!(
        error.hint().is_some_and(|hint| hint.contains("written to")),
        "{error}"
    );
    small.remount("rw,size=64m");
    run(&packed).unwrap();
}
