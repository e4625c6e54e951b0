//! Free space of file systems.

use crate::{Error, Result};
use std::path::Path;

/// Bytes that an unprivileged process may still write to the file system that holds `path`.
///
/// `path` need not exist: then its nearest existing ancestor is used.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let mut probe = path;
    loop {
        let asked = if probe.as_os_str().is_empty() {
            Path::new(".")
        } else {
            probe
        };
        match rustix::fs::statvfs(asked) {
            Ok(stat) => return Ok(stat.f_bavail.saturating_mul(stat.f_frsize)),
            Err(rustix::io::Errno::NOENT) => match probe.parent() {
                Some(parent) => probe = parent,
                None => {
                    return Err(Error::io(
                        path,
                        "ask for the free space of",
                        rustix::io::Errno::NOENT,
                    ));
                }
            },
            Err(errno) => return Err(Error::io(path, "ask for the free space of", errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_has_its_ancestors_space() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).unwrap() > 0);
        assert!(free_bytes(&dir.path().join("not/yet/there")).unwrap() > 0);
        assert!(free_bytes(Path::new("not/yet/there")).unwrap() > 0);
    }
}
