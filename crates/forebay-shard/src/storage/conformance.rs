//! A conformance test of the behavior that every [`Storage`] must have, for implementors.
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

/// Returns the files that [`check`] expects: their names below its root, and their content.
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
/// If it does not.
pub fn check(storage: &dyn Storage, root: &Path) {
    check_files(storage, root);
    check_names(storage, root);
    let bytes = storage.open(&root.join("bytes")).unwrap();
    check_ranges(&*bytes);
    check_parts(&*bytes);
    check_threads(storage, &root.join("below/large"));
}

fn check_files(storage: &dyn Storage, root: &Path) {
    for (name, expected) in files() {
        let path = root.join(name);
        let file = storage.open(&path).unwrap();
        assert_eq!(file.len(), expected.len() as u64, "length of {name}");
        assert_eq!(file.is_empty(), expected.is_empty(), "{name}");
        let limit = expected.len() as u64;
        assert_eq!(storage.read(&path, limit).unwrap(), expected, "{name}");
        if let Some(less) = limit.checked_sub(1) {
            let error = storage.read(&path, less).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooLarge, "{name}");
        }
    }
}

fn check_names(storage: &dyn Storage, root: &Path) {
    assert!(storage.exists(&root.join("bytes")).unwrap());
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
            for name in ["bytes", "empty"] {
                assert!(
                    names.iter().any(|found| found == OsStr::new(name)),
                    "{names:?}"
                );
            }
            assert_eq!(
                storage.list(&missing).map_err(kind),
                Err(ErrorKind::NotFound)
            );
        }
    }
}

fn check_ranges(file: &dyn ReadAt) {
    for (offset, len) in [(0, 50), (0, 0), (49, 1), (7, 12), (50, 0)] {
        let mut bytes = vec![99; len];
        file.read_exact_at(&mut bytes, offset as u64).unwrap();
        assert!(bytes.iter().copied().eq(offset..offset + len as u8));
    }
    for (offset, len) in [(0, 51), (50, 1), (u64::from(u32::MAX), 1)] {
        let error = file.read_exact_at(&mut vec![0; len], offset).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len} at {offset}");
    }
    // Advice about any bytes is taken without an error.
    file.will_need(0..50);
    file.will_need(40..1000);
    file.forget(0..50);
}

fn check_parts(file: &dyn ReadAt) {
    for (offset, expected) in [(0, 23), (10, 23), (40, 10), (49, 1), (50, 0), (70, 0)] {
        let (mut a, mut b, mut c) = ([99; 4], [99; 16], [99; 3]);
        let mut parts = [
            IoSliceMut::new(&mut a),
            IoSliceMut::new(&mut b),
            IoSliceMut::new(&mut c),
        ];
        let read = file.read_parts_at(&mut parts, offset).unwrap();
        assert_eq!(read, expected, "{file:?} at {offset}");
        let all = [&a[..], &b, &c].concat();
        let right = (offset..).take(read).map(|byte| byte as u8);
        assert!(all[..read].iter().copied().eq(right));
        assert!(all[read..].iter().all(|&byte| byte == 99));
    }
}

/// Many threads read one file at once.
fn check_threads(storage: &dyn Storage, path: &Path) {
    let expected = &large();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for step in 0..50 {
                    let offset = (thread * 77_777 + step * 4_321) % 290_000;
                    let mut bytes = vec![0; 10_000];
                    let file = storage.open(path).unwrap();
                    file.read_exact_at(&mut bytes, offset as u64).unwrap();
                    assert!(bytes == expected[offset..offset + 10_000], "at {offset}");
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
