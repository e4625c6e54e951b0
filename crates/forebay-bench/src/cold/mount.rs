//! The file system of a path, and what is known about its caches.

use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub point: PathBuf,
    /// File system type, as named by the kernel: `ext4`, `nfs4`, `overlay`.
    pub kind: String,
    /// The mounted device or export: `/dev/sda1`, `server:/export`.
    pub source: String,
    /// Options of the mount and of the file system, separated by commas.
    pub options: String,
    /// Device number: major, minor. Major 0 is no block device.
    pub device: (u32, u32),
}

/// The kind of storage behind a file system. It decides which counters prove a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsClass {
    /// A block device. The kernel counts its reads for the process that reads.
    Disk,
    /// Memory: the page cache is the storage.
    Memory,
    /// Layers over other file systems.
    Overlay,
    /// NFS, which counts the bytes from its server.
    Nfs,
    /// Another network file system.
    Network,
    /// A user-space file system.
    Fuse,
    /// A file system with its own cache beside the page cache (ZFS).
    OwnCache,
    /// None of these.
    Other,
}

impl Mount {
    /// Returns the mount of a path; `None` if the system does not report mounts, or the path does not exist.
    pub fn of(path: &Path) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mounts = table.lines().filter_map(parse);
        // Of several mounts at the same point, the last one is visible.
        mounts
            .filter(|mount| path.starts_with(&mount.point))
            .max_by_key(|mount| mount.point.components().count())
    }

    /// Returns the class of a file system type; `None` if the mounted device decides.
    pub fn class_of(kind: &str) -> Option<FsClass> {
        Some(match kind {
            "tmpfs" | "ramfs" | "devtmpfs" | "hugetlbfs" => FsClass::Memory,
            "overlay" => FsClass::Overlay,
            "nfs" | "nfs4" => FsClass::Nfs,
            "cifs" | "smb3" | "ceph" | "lustre" | "beegfs" | "gpfs" | "9p" | "virtiofs" | "afs"
            | "orangefs" | "wekafs" | "pvfs2" | "panfs" => FsClass::Network,
            "zfs" => FsClass::OwnCache,
            kind if kind.starts_with("fuse") => FsClass::Fuse,
            _ => return None,
        })
    }

    /// Returns the class of the storage.
    pub fn class(&self) -> FsClass {
        match Self::class_of(&self.kind) {
            Some(class) => class,
            _ if self.device.0 != 0 || self.source.starts_with("/dev/") => FsClass::Disk,
            None => FsClass::Other,
        }
    }

    /// Returns whether an option is set.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }
}

/// Parses a line of `/proc/self/mountinfo` (see proc(5)).
fn parse(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let (major, minor) = left.next()?.split_once(':')?;
    let point = unescape(left.nth(1)?);
    let own = left.next()?;
    let mut right = right.splitn(3, ' ');
    let (kind, source) = (right.next()?, unescape(right.next()?));
    let of_fs = right.next().unwrap_or("");
    Some(Mount {
        point: PathBuf::from(point),
        kind: kind.to_owned(),
        source,
        options: format!("{own},{of_fs}"),
        device: (major.parse().ok()?, minor.parse().ok()?),
    })
}

/// Decodes the kernel's octal escapes, such as `\040` for a space.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| first == b'\\');
        let code = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_parsed() {
        let line =
            r"36 35 98:0 /mnt1 /mnt/a\040b rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt/a b"));
        assert_eq!((mount.kind.as_str(), mount.device), ("ext3", (98, 0)));
        assert!(mount.has_option("noatime") && mount.has_option("errors=continue"));
        assert!(!mount.has_option("atime"));
        assert_eq!(mount.class(), FsClass::Disk);
        for bad in [
            "",
            "36 35 98:0 /",
            "36 35 x:0 / / rw - ext3 a b",
            "1 2 3 - 4",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(unescape(r"a\134b\9\"), r"a\b\9\");
    }

    #[test]
    fn file_system_types_have_classes() {
        let class = |kind: &str, source: &str| {
            let mount = Mount {
                point: PathBuf::from("/"),
                kind: kind.to_owned(),
                source: source.to_owned(),
                options: String::new(),
                device: (0, 30),
            };
            mount.class()
        };
        assert_eq!(class("tmpfs", "none"), FsClass::Memory);
        assert_eq!(class("btrfs", "/dev/sda1"), FsClass::Disk);
        assert_eq!(class("nfs4", "host:/x"), FsClass::Nfs);
        assert_eq!(class("fuse.sshfs", "host:"), FsClass::Fuse);
        assert_eq!(class("fuseblk", "/dev/sda1"), FsClass::Fuse);
        assert_eq!(class("zfs", "tank"), FsClass::OwnCache);
        assert_eq!(class("lustre", "x"), FsClass::Network);
        assert_eq!(class("proc", "proc"), FsClass::Other);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_mounts() {
        assert_eq!(Mount::of(Path::new("/proc/self")).unwrap().kind, "proc");
        assert_eq!(Mount::of(Path::new("/no/such/path")), None);
    }
}
