//! Runs with a known cache state, whose share a [`Watch`] must find.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use super::*;
use crate::random::Random;

const PAGES: u64 = 1000;

/// Creates a file on the device; `None` if the file system keeps all pages in memory or is unknown.
fn file(dir: &Path) -> Option<PathBuf> {
    let class = Mount::of(dir)?.class();
    if !matches!(class, FsClass::Disk | FsClass::Overlay) {
        return None;
    }
    let path = dir.join("file");
    let mut bytes = vec![0; (PAGES * page_bytes()) as usize];
    Random::new(7).fill(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    Some(path)
}

#[test]
fn half_cached_files_have_a_cold_share_of_one_half() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = file(dir.path()) else {
        return;
    };
    let footprint = Footprint::files([&path]);
    let exact: [&'static [Method]; 2] = [&[Method::Cachestat, Method::Mincore], &[Method::Mincore]];
    for methods in exact {
        let file = File::open(&path).unwrap();
        // Without readahead, only the requested pages are read.
        fadvise(&file, 0, None, Advice::Random).unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        for page in (0..PAGES).step_by(2) {
            file.read_at(&mut [0], page * page_bytes()).unwrap();
        }
        let mut prober = Prober::with_methods(methods);
        let watch = Watch::begin_with(&footprint, Way::Off, &mut prober);
        let read = std::fs::read(&path).unwrap();
        let proof = watch.end(read.len() as u64, None);
        let share = proof.cold_share.unwrap();
        assert!((share - 0.5).abs() < 0.02, "{}", proof.line());
    }
}

#[test]
fn direct_reads_are_cold_whatever_is_cached() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = file(dir.path()) else {
        return;
    };
    let footprint = Footprint::files([&path]);
    let watch = Watch::begin(&footprint, Way::Direct);
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let Ok(direct) = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()) else {
        return;
    };
    let file = File::from(direct);
    let mut room = vec![0u8; (1 << 20) + 4096];
    let skip = room.as_ptr().align_offset(4096);
    let buffer = &mut room[skip..skip + (1 << 20)];
    let mut at = 0;
    while at < PAGES * page_bytes() {
        at += file.read_at(buffer, at).unwrap() as u64;
    }
    let proof = watch.end(at, None);
    assert_eq!(proof.word(), "cold", "{}", proof.line());
    assert_eq!(proof.resident_before, Some(1.0));
}

#[test]
fn eviction_makes_a_run_cold_and_reading_makes_it_warm() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = file(dir.path()) else {
        return;
    };
    let footprint = Footprint::files([&path]);
    let evictor = Evictor::new(Cold::Advise).unwrap();
    evictor.evict(&footprint).unwrap();
    let words = [(); 2].map(|()| {
        let watch = Watch::begin(&footprint, evictor.way());
        let read = std::fs::read(&path).unwrap();
        watch.end(read.len() as u64, None).word()
    });
    assert_eq!(words, ["cold", "warm"]);
}
