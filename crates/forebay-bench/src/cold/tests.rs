//! Files with a known cache state, which a [`Prober`] and a [`Watch`] must find.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use super::*;
use crate::random::Random;

const PAGES: u64 = 1000;

/// Creates a file of `pages` pages on the device; `None` if the file system keeps all pages in memory or is unknown.
fn file(dir: &Path, pages: u64) -> Option<PathBuf> {
    let class = Mount::of(dir)?.class();
    if !matches!(class, FsClass::Disk | FsClass::Overlay) {
        return None;
    }
    let path = dir.join("file");
    let mut bytes = vec![0; (pages * page_bytes()) as usize];
    Random::new(7).fill(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    Some(path)
}

#[test]
fn half_cached_files_have_a_cold_share_of_one_half() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = file(dir.path(), PAGES) else {
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
    let Some(path) = file(dir.path(), PAGES) else {
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
    let Some(path) = file(dir.path(), PAGES) else {
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

fn read_pages(path: &Path, pages: &[u64]) {
    let file = File::open(path).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    for page in pages {
        file.read_at(&mut [0], page * page_bytes()).unwrap();
    }
}

#[test]
fn exact_methods_count_the_pages_that_were_read() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = file(dir.path(), 64) else {
        return;
    };
    let footprint = Footprint::files([&path]);
    let mut both = 0;
    for methods in [&[Method::Cachestat][..], &[Method::Mincore]] {
        let methods: &'static [Method] = methods.to_vec().leak();
        Evictor::new(Cold::Advise)
            .unwrap()
            .evict(&footprint)
            .unwrap();
        read_pages(&path, &[0, 9, 63]);
        let Ok(found) = Prober::with_methods(methods).measure(footprint.local()) else {
            continue;
        };
        both += 1;
        assert_eq!((found.pages, found.asked), (64, 64));
        assert_eq!(found.part, 3.0 / 64.0, "{found:?}");
        assert_eq!(found.margin, 0.0);
        let page = page_bytes();
        let parts = [FileBytes {
            path: path.clone(),
            ranges: Some(vec![9 * page + 5..9 * page + 6, 10 * page..12 * page]),
        }];
        let found = Prober::with_methods(methods).measure(&parts).unwrap();
        assert_eq!(
            (found.part, found.bytes),
            (1.0 / (2 * page + 1) as f64, 2 * page + 1)
        );
    }
    // `mincore` is reliable for our own files on every file system.
    assert!(both > 0);
}

#[test]
fn samples_do_not_warm_the_file_or_repeat_pages() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = file(dir.path(), 40_000) else {
        return;
    };
    let footprint = Footprint::files([&path]);
    Evictor::new(Cold::Advise)
        .unwrap()
        .evict(&footprint)
        .unwrap();
    let mut prober = Prober::with_methods(&[Method::Sample]);
    let found = match prober.measure(footprint.local()) {
        Ok(found) => found,
        Err(why) => return assert!(why.contains("RWF_NOWAIT"), "{why}"),
    };
    assert_eq!((found.part, found.asked, found.pages), (0.0, 40, 40_000));
    assert!((0.03..0.2).contains(&found.margin), "{}", found.margin);
    let exact = Prober::default().measure(footprint.local()).unwrap();
    assert_eq!(exact.part, 0.0, "{exact:?}");
    std::io::copy(&mut File::open(&path).unwrap(), &mut std::io::sink()).unwrap();
    assert_eq!(prober.measure(footprint.local()).unwrap().part, 1.0);
    assert!(prober.probed.len() >= 79, "{}", prober.probed.len());
    let few = [FileBytes {
        path,
        ranges: Some(Vec::from([0..1000, 5000..6000])),
    }];
    assert!(prober.measure(&few).unwrap_err().contains("too few"));
}

#[test]
fn a_missing_file_has_no_residency() {
    let why = Prober::default().measure(Footprint::files(["/no/such"]).local());
    assert!(why.unwrap_err().contains("\"/no/such\""));
    assert!(Prober::default().measure(&[]).is_err());
}
