//! Slows down disks for measurements: a cgroup limits the reads and writes of this process.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Limits of a disk, each for all threads together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskLimits {
    /// Bytes read per second.
    pub read: Option<u64>,
    /// Bytes written per second.
    pub write: Option<u64>,
    /// Reads per second.
    pub reads: Option<u64>,
}

impl DiskLimits {
    /// Returns the set limits with their names in cgroups of version 1 and version 2.
    fn entries(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let all = [
            ("blkio.throttle.read_bps_device", "rbps", self.read),
            ("blkio.throttle.write_bps_device", "wbps", self.write),
            ("blkio.throttle.read_iops_device", "riops", self.reads),
        ];
        all.into_iter()
            .filter_map(|(first, second, limit)| Some((first, second, limit?)))
    }
}

impl fmt::Display for DiskLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("read", self.read, " bytes/s"),
            ("write", self.write, " bytes/s"),
            ("reads", self.reads, "/s"),
        ];
        let given = all
            .into_iter()
            .filter_map(|(name, limit, unit)| Some((name, limit?, unit)));
        for (place, (name, limit, unit)) in given.enumerate() {
            let comma = if place > 0 { ", " } else { "" };
            write!(f, "{comma}{name} {limit}{unit}")?;
        }
        Ok(())
    }
}

/// The version of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    First,
    Second,
}

/// Keeps this process in a cgroup with limits until it is dropped.
#[derive(Debug)]
pub(crate) struct Throttle {
    group: PathBuf,
    home: PathBuf,
}

impl Throttle {
    /// Limits the reads and writes of this process on the disks of `devices`.
    pub(crate) fn begin(limits: &DiskLimits, devices: &[(u32, u32)]) -> Result<Self> {
        let disks: Vec<String> = devices
            .iter()
            .filter_map(|device| whole_disk(*device))
            .collect();
        if disks.is_empty() {
            return Err(
                "--limit: the media are on no block device, and only those can be limited".into(),
            );
        }
        let (version, home) = home().ok_or_else(|| {
            Error::from(
                "--limit needs cgroups with the controller blkio or io: neither is mounted here",
            )
        })?;
        Self::within(version, &home, limits, &disks).map_err(|error| {
            let home = home.display();
            format!("--limit: no group with limits can be made in \"{home}\": {error}; it needs root, or a delegated cgroup with the controller io").into()
        })
    }

    /// Creates a cgroup below `home`, the one of this process, and moves this process there.
    fn within(
        version: Version,
        home: &Path,
        limits: &DiskLimits,
        disks: &[String],
    ) -> std::io::Result<Self> {
        if version == Version::Second {
            fs::write(home.join("cgroup.subtree_control"), "+io")?;
        }
        let throttle = Self {
            group: home.join(format!("forebay-bench-{}", std::process::id())),
            home: home.to_owned(),
        };
        fs::create_dir(&throttle.group)?;
        for disk in disks {
            for (first, second, limit) in limits.entries() {
                match version {
                    Version::First => {
                        fs::write(throttle.group.join(first), format!("{disk} {limit}"))?
                    }
                    Version::Second => fs::write(
                        throttle.group.join("io.max"),
                        format!("{disk} {second}={limit}"),
                    )?,
                }
            }
        }
        fs::write(
            throttle.group.join("cgroup.procs"),
            std::process::id().to_string(),
        )?;
        Ok(throttle)
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // A cgroup with processes cannot be removed; an empty one that is left does no harm.
        let _ = fs::write(
            self.home.join("cgroup.procs"),
            std::process::id().to_string(),
        );
        let _ = fs::remove_dir(&self.group);
    }
}

/// Returns the number of the disk of a device: a cgroup limits whole disks, not partitions.
fn whole_disk(device: (u32, u32)) -> Option<String> {
    let link = format!("/sys/dev/block/{}:{}", device.0, device.1);
    let place = fs::canonicalize(link).ok()?;
    let disk = match place.join("partition").exists() {
        true => place.parent()?,
        false => place.as_path(),
    };
    Some(fs::read_to_string(disk.join("dev")).ok()?.trim().to_owned())
}

/// Returns the cgroup of this process in the hierarchy that limits block devices.
fn home() -> Option<(Version, PathBuf)> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    home_in(&own, &mounts)
}

fn home_in(own: &str, mounts: &str) -> Option<(Version, PathBuf)> {
    // Format of a line: `number of the hierarchy:controllers:path`.
    let lines = || {
        own.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            Some((fields.next()?, fields.next()?, fields.next()?))
        })
    };
    let first =
        lines().find(|(_, controllers, _)| controllers.split(',').any(|name| name == "blkio"));
    let second = lines().find(|(number, controllers, _)| *number == "0" && controllers.is_empty());
    let mounted = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let is_kind = right.next()? == kind;
            let options = right.nth(1)?;
            let has = option.is_empty() || options.split(',').any(|name| name == option);
            (is_kind && has).then(|| left.split(' ').nth(4).map(PathBuf::from))?
        })
    };
    let below = |mount: PathBuf, path: &str| mount.join(path.trim_start_matches('/'));
    if let (Some((_, _, path)), Some(mount)) = (first, mounted("cgroup", "blkio")) {
        return Some((Version::First, below(mount, path)));
    }
    let (_, _, path) = second?;
    Some((Version::Second, below(mounted("cgroup2", "")?, path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DiskLimits = DiskLimits {
        read: Some(50_000_000),
        write: None,
        reads: Some(200),
    };

    #[test]
    fn the_group_of_the_process_is_found() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let first = home_in("9:name=systemd:/\n7:blkio:/jobs/1\n0::/x\n", mounts).unwrap();
        assert_eq!(
            first,
            (Version::First, PathBuf::from("/sys/fs/cgroup/blkio/jobs/1"))
        );
        let second = home_in("0::/user.slice\n", mounts).unwrap();
        assert_eq!(
            second,
            (
                Version::Second,
                PathBuf::from("/sys/fs/cgroup/unified/user.slice")
            )
        );
        assert_eq!(home_in("0::/\n", ""), None);
        assert_eq!(home_in("7:cpu:/\n", mounts), None);
    }

    #[test]
    fn limits_are_written_in_the_format_of_each_version() {
        let disks = ["254:0".to_owned()];
        let group = |version| {
            let home = tempfile::tempdir().unwrap();
            let throttle = Throttle::within(version, home.path(), &LIMITS, &disks).unwrap();
            let read =
                |name: &str| fs::read_to_string(throttle.group.join(name)).unwrap_or_default();
            let id = std::process::id().to_string();
            assert_eq!(read("cgroup.procs"), id);
            let texts = (
                read("blkio.throttle.read_bps_device"),
                read("blkio.throttle.write_bps_device"),
                read("io.max"),
            );
            drop(throttle);
            assert_eq!(
                fs::read_to_string(home.path().join("cgroup.procs")).unwrap(),
                id,
                "it is moved back"
            );
            texts
        };
        assert_eq!(
            group(Version::First),
            ("254:0 50000000".to_owned(), String::new(), String::new())
        );
        assert_eq!(group(Version::Second).2, "254:0 riops=200");
        assert_eq!(LIMITS.to_string(), "read 50000000 bytes/s, reads 200/s");
    }

    #[test]
    fn media_without_a_disk_are_refused() {
        let error = Throttle::begin(&LIMITS, &[(0, 30)])
            .unwrap_err()
            .to_string();
        assert!(error.contains("no block device"), "{error}");
    }
}
