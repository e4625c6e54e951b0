//! Counters of bytes that were read from storage: by this process, from a device, and from the server of an NFS mount.

use std::collections::BTreeSet;
use std::path::Path;

use super::mount::{FsClass, Mount};

/// Counter values at one time; see [`Counters::since`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// `read_bytes` of `/proc/self/io`: bytes that this process and its ended children caused to be read from devices. Reads by
    /// kernel threads are not included.
    pub process: Option<u64>,
    /// Bytes that all processes read from the devices of the mounts, from `/proc/diskstats`. `None` if a device has no line
    /// there, as in some containers and for file systems over several devices.
    pub device: Option<u64>,
    /// Bytes from the servers of the mounts, from `/proc/self/mountstats`; `None` if a mount is not NFS.
    pub nfs: Option<u64>,
}

/// Unit of `/proc/diskstats` in bytes, for devices with any sector size.
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

/// Returns the bytes read from a disk or a partition; `None` if it has no line.
fn device_bytes(diskstats: &str, device: (u32, u32)) -> Option<u64> {
    diskstats.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let found = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        // Skips the name, reads and merged reads; the next field is the sectors read.
        let sectors: u64 = fields.nth(3)?.parse().ok()?;
        (found == device).then(|| sectors.saturating_mul(SECTOR))
    })
}

/// Returns whether the kernel counts reads of the device: `iostats` of its queue can be off.
fn counts_reads((major, minor): (u32, u32)) -> bool {
    let flag = |queue: &str| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/iostats");
        std::fs::read_to_string(path).ok()
    };
    // A partition has the queue of its disk.
    let flag = flag("queue").or_else(|| flag("../queue"));
    flag.is_none_or(|flag| flag.trim() != "0")
}

/// Returns the bytes from the server of an NFS mount: the fifth number of its `bytes:` line.
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
    fn kernel_counters_are_parsed() {
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
