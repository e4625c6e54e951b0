//! Counters of bytes that came from a storage: of this process, of a device, of an NFS mount.

use std::collections::BTreeSet;
use std::path::Path;

use super::mount::{FsClass, Mount};

/// Counters at one moment; see [`Counters::since`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// `read_bytes` of `/proc/self/io`: bytes that this process, and children that ended, had read from devices.
    /// Reads that kernel threads issue are not in it.
    pub process: Option<u64>,
    /// Bytes that anyone read from the devices of these mounts, of `/proc/diskstats`. `None` where one of them has no line,
    /// as in some containers and for file systems over several devices.
    pub device: Option<u64>,
    /// Bytes that came from the servers of these mounts, of `/proc/self/mountstats`; `None` where one is not NFS.
    pub nfs: Option<u64>,
}

/// Bytes of a sector of `/proc/diskstats`, whatever the device's own are.
const SECTOR: u64 = 512;

impl Counters {
    /// Reads the counters for these mounts.
    pub fn now(mounts: &[Mount]) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let disks = read("/proc/diskstats");
        let devices: BTreeSet<_> = mounts.iter().map(|mount| mount.device).collect();
        let count = |device: &(u32, u32)| {
            counts_reads(*device)
                .then(|| device_bytes(&disks, *device))
                .flatten()
        };
        let device = devices.iter().map(count).sum();
        let nfs = if mounts.iter().all(|mount| mount.class() == FsClass::Nfs) {
            let stats = read("/proc/self/mountstats");
            mounts
                .iter()
                .map(|mount| nfs_bytes(&stats, &mount.point))
                .sum()
        } else {
            None
        };
        Self {
            process: process_bytes(&read("/proc/self/io")),
            device: if mounts.is_empty() { None } else { device },
            nfs: if mounts.is_empty() { None } else { nfs },
        }
    }

    /// Returns the differences to earlier counters.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            process: less(self.process, earlier.process),
            device: less(self.device, earlier.device),
            nfs: less(self.nfs, earlier.nfs),
        }
    }
}

fn process_bytes(io: &str) -> Option<u64> {
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes:"))?;
    line.trim().parse().ok()
}

/// Bytes read from a disk or a partition; none if it has no line.
fn device_bytes(diskstats: &str, device: (u32, u32)) -> Option<u64> {
    diskstats.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let found = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        // The name, reads, merged reads, sectors.
        let sectors: u64 = fields.nth(3)?.parse().ok()?;
        (found == device).then(|| sectors.saturating_mul(SECTOR))
    })
}

/// Returns whether the device counts at all: `iostats` of its queue can be off.
fn counts_reads((major, minor): (u32, u32)) -> bool {
    let flag = |queue: &str| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/iostats");
        std::fs::read_to_string(path).ok()
    };
    // A partition has the queue of its disk.
    let flag = flag("queue").or_else(|| flag("../queue"));
    flag.is_none_or(|flag| flag.trim() != "0")
}

/// Bytes from the server of an NFS mount: the fifth figure of its `bytes:` line.
fn nfs_bytes(mountstats: &str, point: &Path) -> Option<u64> {
    let mut ours = false;
    for line in mountstats.lines() {
        if line.starts_with("device ") {
            let at = line.split(" mounted on ").nth(1);
            let at = at.and_then(|rest| rest.split(" with fstype ").next());
            ours = at.is_some_and(|at| Path::new(at) == point);
        } else if ours && let Some(figures) = line.trim_start().strip_prefix("bytes:") {
            return figures.split_ascii_whitespace().nth(4)?.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let io = "rchar: 9\nread_bytes: 8192\nwrite_bytes: 1\n";
        assert_eq!(process_bytes(io), Some(8192));
        assert_eq!(process_bytes("read_bytes: x"), None);
        let disks = " 254 0 vda 491 134 185 33560 3284 0 0 0\n 254 1 vda1 1 2 7 4 5\n 7 0 loop0";
        assert_eq!(device_bytes(disks, (254, 0)), Some(185 * 512));
        assert_eq!(device_bytes(disks, (254, 1)), Some(7 * 512));
        assert_eq!(device_bytes(disks, (7, 0)), None);
        assert_eq!(device_bytes(disks, (0, 30)), None);
        let stats = "\
device proc mounted on /proc with fstype proc
device host:/a mounted on /mnt/a with fstype nfs4 statvers=1.1
\tbytes:\t1 2 3 4 5000 6 7 8
device host:/b mounted on /mnt/b with fstype nfs statvers=1.1
\tage:\t9
\tbytes:\t1 2 3 4 6000 6 7 8
";
        assert_eq!(nfs_bytes(stats, Path::new("/mnt/b")), Some(6000));
        assert_eq!(nfs_bytes(stats, Path::new("/mnt/a")), Some(5000));
        assert_eq!(nfs_bytes(stats, Path::new("/proc")), None);
        assert_eq!(nfs_bytes(stats, Path::new("/mnt")), None);
    }

    #[test]
    fn differences_need_both_counters() {
        let counters = |process, device| Counters {
            process,
            device,
            nfs: None,
        };
        let since = counters(Some(10), None).since(&counters(Some(4), Some(1)));
        assert_eq!(since, counters(Some(6), None));
        assert_eq!(Counters::now(&[]).device, None);
    }
}
