//! A conformance test for implementations of [`Storage`].
//!
//! Enable the feature `conformance` in `[dev-dependencies]`, put [`files`] where your storage finds
//! them, and call [`check`].
//!
//! ```
//! use forebay_shard::storage::{MemoryStorage, conformance};
//!
//! let files = conformance::files();
//! let storage = MemoryStorage::from_iter(files.map(|(name, bytes)| (format!("root/{name}"), bytes)));
//! conformance::check(&storage, "root".as_ref());
//! ```

use std::ffi::OsStr;
use std::io::{ErrorKind, IoSliceMut};
use std::path::Path;

use super::{ReadAt, Storage};

/// Returns the files that [`check`] expects: their names below its root, and their contents.
pub fn files() -> [(&'static str, Vec<u8>); 3] {
    [
        ("bytes", (0..50).collect()),
        ("empty", Vec::new()),
        ("below/large", large()),
    ]
}

fn large() -> Vec<u8> {
    let bytes = (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
    bytes.collect()
}

/// Checks that `storage` reads [`files`] below `root` according to its contract.
///
/// # Panics
/// If the storage violates the contract.
pub fn check(storage: &dyn Storage, root: &Path) {
    check_as(storage, root, &files());
}

/// As [`check`], for a storage with other files: their names below `root`, and their contents. No file may be
/// called `missing`.
///
/// # Panics
/// As [`check`].
pub fn check_as(storage: &dyn Storage, root: &Path, files: &[(&str, Vec<u8>)]) {
    check_names(storage, root, files);
    for (name, bytes) in files {
        let path = root.join(name);
        check_whole(storage, &path, bytes);
        let file = storage.open(&path).unwrap();
        check_ranges(&*file, bytes);
        check_parts(&*file, bytes);
        check_threads(storage, &path, bytes);
    }
}

fn check_whole(storage: &dyn Storage, path: &Path, expected: &[u8]) {
    let file = storage.open(path).unwrap();
    assert_eq!(file.len(), expected.len() as u64, "length of {path:?}");
    assert_eq!(file.is_empty(), expected.is_empty(), "{path:?}");
    let limit = expected.len() as u64;
    assert!(storage.read(path, limit).unwrap() == expected, "{path:?}");
    if let Some(less) = limit.checked_sub(1) {
        let error = storage.read(path, less).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge, "{path:?}");
    }
}

fn check_names(storage: &dyn Storage, root: &Path, files: &[(&str, Vec<u8>)]) {
    for (name, _) in files {
        assert!(storage.exists(&root.join(name)).unwrap(), "{name}");
    }
    let missing = root.join("missing");
    assert!(!storage.exists(&missing).unwrap());
    let kind = |error: std::io::Error| error.kind();
    assert_eq!(
        storage.open(&missing).map_err(kind).err(),
        Some(ErrorKind::NotFound)
    );
    assert_eq!(
        storage.read(&missing, 10).map_err(kind),
        Err(ErrorKind::NotFound)
    );
    match storage.list(root) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        Ok(names) => {
            for (name, _) in files.iter().filter(|(name, _)| !name.contains('/')) {
                assert!(
                    names.iter().any(|found| found == OsStr::new(name)),
                    "{names:?}"
                );
            }
            // An object store has no directories, only names with a common prefix.
            let none = storage.list(&missing).map_err(kind);
            assert!(
                none == Err(ErrorKind::NotFound) || none == Ok(Vec::new()),
                "{none:?}"
            );
        }
    }
}

fn check_ranges(file: &dyn ReadAt, expected: &[u8]) {
    let len = expected.len();
    let last = len.saturating_sub(1);
    for range in [0..len, 0..0, last..len, len / 7..len / 3, len..len] {
        let mut bytes = vec![99; range.len()];
        file.read_exact_at(&mut bytes, range.start as u64).unwrap();
        assert!(bytes == expected[range.clone()], "{file:?} at {range:?}");
    }
    for (offset, more) in [(0, len + 1), (len, 1), (len + 1_000_000, 1)] {
        let read = file.read_exact_at(&mut vec![0; more], offset as u64);
        let error = read.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{more} at {offset}");
    }
    // Advice about any range must be accepted.
    let len = len as u64;
    file.will_need(0..len);
    file.will_need(len / 2..len + 1000);
    file.forget(0..len);
}

fn check_parts(file: &dyn ReadAt, expected: &[u8]) {
    let len = expected.len();
    for offset in [
        0,
        len / 5,
        len - len.min(10),
        len.saturating_sub(1),
        len,
        len + 20,
    ] {
        let (mut a, mut b, mut c) = ([99; 4], [99; 16], [99; 3]);
        let mut parts = [
            IoSliceMut::new(&mut a),
            IoSliceMut::new(&mut b),
            IoSliceMut::new(&mut c),
        ];
        let read = file.read_parts_at(&mut parts, offset as u64).unwrap();
        let right = expected.get(offset..).unwrap_or_default();
        let right = &right[..right.len().min(23)];
        let all = [&a[..], &b, &c].concat();
        assert!(all[..read] == *right, "{file:?} at {offset}: {read} bytes");
        assert!(all[read..].iter().all(|&byte| byte == 99));
    }
}

/// Checks that several threads can read one file concurrently.
fn check_threads(storage: &dyn Storage, path: &Path, expected: &[u8]) {
    const PIECE: usize = 10_000;
    let Some(last) = expected.len().checked_sub(PIECE) else {
        return;
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for step in 0..50 {
                    let offset = (thread * 77_777 + step * 4_321) % (last + 1);
                    let mut bytes = vec![0; PIECE];
                    let file = storage.open(path).unwrap();
                    file.read_exact_at(&mut bytes, offset as u64).unwrap();
                    assert!(bytes == expected[offset..offset + PIECE], "at {offset}");
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{LocalFiles, MemoryStorage};
    use crate::tfrecord::ExpandedFiles;

    #[test]
    fn memory_conforms() {
        let files = files().map(|(name, bytes)| (format!("a/root/{name}"), bytes));
        check(&MemoryStorage::from_iter(files), "a/root".as_ref());
    }

    #[test]
    fn local_files_conform() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("below")).unwrap();
        for (name, bytes) in files() {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        check(&LocalFiles::new(1), dir.path());
        check(&LocalFiles::within_limits(), dir.path());
        check(&ExpandedFiles::default(), dir.path());
    }
}
