//! The conformance suite that every kind of store must pass.

use forebay_store::{Cancel, Error, Object, Put, Store, Transfer};
use std::cell::Cell;

/// Returns pseudo-random bytes.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

/// Checks all guarantees of a [`Store`], at a location that is empty and writable.
///
/// # Panics
/// If the store violates a guarantee.
pub(crate) fn check(store: &Store) {
    check_with(store, store.location().is_remote());
}

/// As [`check`]; `has_checksums` is whether the store keeps the CRC-32C of an object.
pub(crate) fn check_with(store: &Store, has_checksums: bool) {
    small_objects(store, has_checksums);
    ranges(store);
    conditions(store);
    listings(store);
    files(store, has_checksums);
    let bytes = noise(3_000_000, 3);
    store.put("reads", &bytes, Put::Always).unwrap();
    check_reads(store, "reads", &bytes);
}

/// Checks the guarantees of a [`Store`] for readers. The object `key` must consist of `bytes` (1,000 at least), and no object
/// may be called `none`.
///
/// # Panics
/// If the store violates a guarantee.
pub(crate) fn check_reads(store: &Store, key: &str, bytes: &[u8]) {
    assert_eq!(store.get(key, bytes.len() as u64).unwrap(), bytes);
    let limit = bytes.len() as u64 - 1;
    let limited = store.get(key, limit);
    assert!(
        matches!(limited, Err(Error::TooLarge { .. })),
        "{limited:?}"
    );
    let object = store.head(key).unwrap().unwrap();
    assert_eq!(object.len, bytes.len() as u64);
    for (offset, len) in [(0, 1), (bytes.len() - 1, 1), (123, 789), (0, bytes.len())] {
        let mut buf = vec![0; len];
        store.read_at_if(&object, offset as u64, &mut buf).unwrap();
        assert!(buf == bytes[offset..offset + len]);
    }
    let beyond = store.read_at(key, bytes.len() as u64 - 1, &mut [0; 2]);
    assert!(matches!(beyond, Err(Error::BeyondEnd { .. })), "{beyond:?}");
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("copy");
    let cancel = Cancel::new();
    let transfer = Transfer {
        part_bytes: 1 << 20,
        ..Transfer::new(&cancel)
    };
    store.download_file(key, &target, &transfer).unwrap();
    assert!(std::fs::read(target).unwrap() == bytes);
    assert_eq!(store.head("none").unwrap(), None);
    assert!(matches!(store.get("none", 10), Err(Error::NotFound { .. })));
}

fn small_objects(store: &Store, has_checksums: bool) {
    assert_eq!(store.head("none").unwrap(), None);
    assert!(matches!(store.get("none", 10), Err(Error::NotFound { .. })));
    for (key, bytes) in [
        ("empty", &b""[..]),
        ("a/b c/ü+&%=~.txt", &b"hello"[..]),
        ("a/b c/plain", &b"12345"[..]),
    ] {
        let written = store.put(key, bytes, Put::Always).unwrap();
        assert_eq!(store.get(key, 5).unwrap(), bytes, "{key}");
        let head = store.head(key).unwrap().unwrap();
        assert_eq!((head.key.as_str(), head.len), (key, bytes.len() as u64));
        assert_eq!(head.etag, written.etag, "{key}");
        assert!(head.modified.is_some());
        if has_checksums {
            assert_eq!(head.crc32c, Some(written.crc32c), "{key}");
        }
    }
    let limited = store.get("a/b c/plain", 4);
    assert!(
        matches!(
            limited,
            Err(Error::TooLarge {
                len: 5,
                limit: 4,
                ..
            })
        ),
        "{limited:?}"
    );
    store.delete("a/b c/plain").unwrap();
    store.delete("a/b c/plain").unwrap();
    assert_eq!(store.head("a/b c/plain").unwrap(), None);
}

fn ranges(store: &Store) {
    let bytes = noise(100_000, 1);
    store.put("ranges", &bytes, Put::Always).unwrap();
    for (offset, len) in [(0, 1), (0, 100_000), (99_999, 1), (1_234, 56_789), (0, 0)] {
        let mut buf = vec![0; len];
        store.read_at("ranges", offset as u64, &mut buf).unwrap();
        assert_eq!(buf, bytes[offset..offset + len]);
    }
    for (offset, len) in [(99_999, 2), (100_000, 1), (200_000, 1)] {
        let beyond = store.read_at("ranges", offset, &mut vec![0; len]);
        assert!(
            matches!(beyond, Err(Error::BeyondEnd { len: 100_000, .. })),
            "{beyond:?}"
        );
    }
    let gone = store.read_at("none", 0, &mut [0]);
    assert!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");

    let before = store.head("ranges").unwrap().unwrap();
    let mut buf = [0; 10];
    store.read_at_if(&before, 5, &mut buf).unwrap();
    assert_eq!(buf, bytes[5..15]);
    store
        .put("ranges", &noise(100_000, 2), Put::Always)
        .unwrap();
    let changed = store.read_at_if(&before, 5, &mut buf);
    assert!(matches!(changed, Err(Error::Changed { .. })), "{changed:?}");
}

fn conditions(store: &Store) {
    let first = store.put("one", b"first", Put::IfAbsent).unwrap();
    let second = store.put("one", b"second", Put::IfAbsent);
    assert!(
        matches!(second, Err(Error::AlreadyThere { .. })),
        "{second:?}"
    );
    assert_eq!(store.get("one", 9).unwrap(), b"first");
    let etag = first.etag.unwrap();
    let next = store
        .put("one", b"third", Put::IfMatch(etag.clone()))
        .unwrap();
    assert_ne!(next.etag.as_deref(), Some(etag.as_str()));
    let stale = store.put("one", b"fourth", Put::IfMatch(etag));
    assert!(matches!(stale, Err(Error::Changed { .. })), "{stale:?}");
    assert_eq!(store.get("one", 9).unwrap(), b"third");

    // Of several concurrent puts, exactly one succeeds.
    let winners: usize = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|i| scope.spawn(move || store.put("race", &[i], Put::IfAbsent)))
            .collect();
        tries
            .into_iter()
            .map(|done| match done.join().unwrap() {
                Ok(_) => 1,
                Err(Error::AlreadyThere { .. }) => 0,
                Err(error) => panic!("{error}"),
            })
            .sum()
    });
    assert_eq!(winners, 1);
}

fn listings(store: &Store) {
    for key in ["l/b/2", "l/a", "l/b/1", "l/c/d/e", "lx"] {
        store.put(key, key.as_bytes(), Put::Always).unwrap();
    }
    let keys = |objects: Vec<Object>| objects.into_iter().map(|o| o.key).collect::<Vec<_>>();
    assert_eq!(
        keys(store.list("l").unwrap()),
        ["l/a", "l/b/1", "l/b/2", "l/c/d/e"]
    );
    assert_eq!(keys(store.list("l/b").unwrap()), ["l/b/1", "l/b/2"]);
    assert!(store.list("nothing").unwrap().is_empty());
    let level = store.list_dir("l").unwrap();
    assert_eq!(keys(level.objects), ["l/a"]);
    assert_eq!(level.dirs, ["l/b", "l/c"]);
    let all = store.list("").unwrap();
    assert!(
        all.iter().any(|object| object.key == "a/b c/ü+&%=~.txt"),
        "{all:?}"
    );
    assert!(
        all.iter()
            .all(|object| !object.key.contains("forebay-probe")),
        "{all:?}"
    );
}

fn files(store: &Store, has_checksums: bool) {
    let dir = tempfile::tempdir().unwrap();
    let cancel = Cancel::new();
    // The last size is uploaded in parts, of which the last part is short; the others in one put.
    for (key, len) in [("f/empty", 0), ("f/small", 70_000), ("f/large", 11_000_001)] {
        let bytes = noise(len, len as u64);
        let source = dir.path().join("source");
        std::fs::write(&source, &bytes).unwrap();
        let crc32c = crc32c::crc32c(&bytes);
        for known in [None, Some(crc32c)] {
            let seen = Cell::new(0);
            let progress = |bytes| seen.set(seen.get() + bytes);
            let transfer = Transfer {
                crc32c: known,
                part_bytes: 5 << 20,
                progress: &progress,
                ..Transfer::new(&cancel)
            };
            let sent = store.upload_file(key, &source, &transfer).unwrap();
            assert_eq!((sent.len, sent.crc32c), (len as u64, Some(crc32c)), "{key}");
            assert_eq!(seen.get(), len as u64, "{key}");
        }
        let head = store.head(key).unwrap().unwrap();
        assert_eq!(head.len, len as u64);
        if has_checksums {
            assert_eq!(head.crc32c, Some(crc32c), "{key}");
        }
        let target = dir.path().join("deep/er").join("target");
        let seen = Cell::new(0);
        let progress = |bytes| seen.set(seen.get() + bytes);
        let transfer = Transfer {
            part_bytes: 1 << 20,
            progress: &progress,
            ..Transfer::new(&cancel)
        };
        store.download_file(key, &target, &transfer).unwrap();
        assert!(std::fs::read(&target).unwrap() == bytes, "{key}");
        assert_eq!(seen.get(), len as u64, "{key}");
    }
    let source = dir.path().join("source");
    // The file does not have the checksum that the caller gives.
    let wrong = Transfer {
        crc32c: Some(1),
        part_bytes: 5 << 20,
        ..Transfer::new(&cancel)
    };
    let refused = store.upload_file("f/wrong", &source, &wrong);
    assert!(
        matches!(refused, Err(Error::Checksum { .. })),
        "{refused:?}"
    );
    assert_eq!(store.head("f/wrong").unwrap(), None);
    let target = dir.path().join("wrong");
    let refused = store.download_file("f/small", &target, &wrong);
    assert!(
        matches!(refused, Err(Error::Checksum { .. })),
        "{refused:?}"
    );
    let none = store.download_file("none", &target, &Transfer::new(&cancel));
    assert!(matches!(none, Err(Error::NotFound { .. })), "{none:?}");
    let none = store.upload_file("f/none", &dir.path().join("none"), &Transfer::new(&cancel));
    assert!(matches!(none, Err(Error::Io { .. })), "{none:?}");
    assert!(!target.exists());

    // Cancelled after the first part.
    let cancel = Cancel::new();
    let progress = |_| cancel.cancel();
    let transfer = Transfer {
        part_bytes: 5 << 20,
        parallel: 1,
        progress: &progress,
        ..Transfer::new(&cancel)
    };
    let stopped = store.upload_file("f/stopped", &source, &transfer);
    assert!(
        matches!(stopped, Err(Error::Cancelled { .. })),
        "{stopped:?}"
    );
    assert_eq!(store.head("f/stopped").unwrap(), None);
    let cancel = Cancel::new();
    let progress = |_| cancel.cancel();
    let transfer = Transfer {
        part_bytes: 1 << 20,
        parallel: 1,
        progress: &progress,
        ..Transfer::new(&cancel)
    };
    let stopped = store.download_file("f/large", &target, &transfer);
    assert!(
        matches!(stopped, Err(Error::Cancelled { .. })),
        "{stopped:?}"
    );
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
