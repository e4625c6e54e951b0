//! The cold share of a run, and its proof.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::counters::Counters;
use super::evict::Way;
use super::footprint::{FileBytes, Footprint};
use super::mount::{FsClass, Mount};
use super::residency::{Method, Prober, Residency};

/// Minimum cold share of a run that is called cold.
pub const COLD: f64 = 0.95;
/// Maximum cold share of a run that is called warm.
pub const WARM: f64 = 0.05;

/// The state of the caches during a run, as far as it is known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proof {
    /// Cold share: bytes that were delivered and had to come from the storage, divided by bytes delivered. At most 1; `None`
    /// if it is unknown.
    pub cold_share: Option<f64>,
    /// Bytes read from the storage per byte delivered. Above the cold share if readahead was wasted.
    pub read_ratio: Option<f64>,
    /// Part of the bytes that was in the page cache before the run; `None` if it is unknown.
    pub resident_before: Option<f64>,
    /// How caches were emptied: `root`, `advise`, `direct`, `off`.
    pub way: &'static str,
    /// The counters and system calls behind the share; for an unknown share, the reason.
    pub method: String,
    /// Whether caches outside this machine may exist, such as those of a server, an array or a hypervisor. Nothing here can see
    /// them.
    pub caches_beyond: bool,
}

impl Proof {
    /// Returns the word to print: `cold`, `part cold (0.43)`, `warm`, or `unknown: why`.
    pub fn word(&self) -> String {
        match self.cold_share {
            None => format!("unknown: {}", self.method),
            Some(share) if share >= COLD && self.caches_beyond => {
                "client cold, server unknown".to_owned()
            }
            Some(share) if share >= COLD => "cold".to_owned(),
            Some(share) if share <= WARM => "warm".to_owned(),
            // Rounded down, so that the share never reads as one that is called cold.
            Some(share) => format!("part cold ({:.2})", (share * 100.0).floor() / 100.0),
        }
    }

    /// Returns the proof as one line.
    pub fn line(&self) -> String {
        let mut parts = vec![self.word()];
        if self.cold_share.is_some() {
            parts.push(self.method.clone());
        }
        if let Some(resident) = self.resident_before {
            parts.push(format!("{:.1} % resident before", 100.0 * resident));
        }
        if let Some(ratio) = self.read_ratio {
            parts.push(format!("{ratio:.2} bytes read for each delivered"));
        }
        if self.way != Way::Off.name() {
            parts.push(format!("--cold {}", self.way));
        }
        parts.join("; ")
    }

    fn unknown(way: Way, why: impl Into<String>) -> Self {
        Self {
            cold_share: None,
            read_ratio: None,
            resident_before: None,
            way: way.name(),
            method: why.into(),
            caches_beyond: false,
        }
    }
}

/// Returns the proof of several runs: the one with the lowest share. An unknown share counts as the lowest.
pub fn summary(proofs: &[Proof]) -> Option<&Proof> {
    let share = |proof: &Proof| proof.cold_share.unwrap_or(-1.0);
    proofs.iter().min_by(|a, b| share(a).total_cmp(&share(b)))
}

/// State of caches and counters at the start of a run.
#[derive(Debug)]
pub struct Watch {
    way: Way,
    place: Place,
    files: Vec<FileBytes>,
    residency: Result<Residency, String>,
    before: Counters,
}

#[derive(Debug)]
enum Place {
    Mounts(Vec<Mount>),
    Store,
    Generated,
    Unknown(String),
}

impl Watch {
    /// Measures the residency, then reads the counters. Call this last before a run.
    pub fn begin(footprint: &Footprint, way: Way) -> Self {
        Self::begin_with(footprint, way, &mut Prober::default())
    }

    /// Begins like [`Watch::begin`], with a prober that remembers the pages that it probed in earlier runs.
    pub fn begin_with(footprint: &Footprint, way: Way, prober: &mut Prober) -> Self {
        let place = match footprint {
            Footprint::Files(files) => mounts(files),
            Footprint::Store => Place::Store,
            Footprint::Generated => Place::Generated,
        };
        let residency = prober.measure(footprint.local());
        let before = place.counters();
        Self {
            way,
            place,
            files: footprint.local().to_vec(),
            residency,
            before,
        }
    }

    /// Returns the proof of a run that delivered `delivered` bytes. For the footprint of a store, `fetched` of them came over
    /// the network.
    pub fn end(&self, delivered: u64, fetched: Option<u64>) -> Proof {
        let read = self.place.counters().since(&self.before);
        let unknown = |why: String| {
            let mut proof = Proof::unknown(self.way, why);
            proof.resident_before = self.residency.as_ref().ok().map(|found| found.part);
            proof
        };
        if delivered == 0 {
            return unknown("nothing was delivered".to_owned());
        }
        match &self.place {
            Place::Unknown(why) => unknown(why.clone()),
            Place::Generated => unknown("generated data: there is no storage".to_owned()),
            Place::Store => match fetched {
                Some(fetched) => self.proof(fetched, delivered, "bytes on the wire", true, None),
                None => unknown("the store does not count its bytes".to_owned()),
            },
            Place::Mounts(mounts) => match from_storage(mounts, &read) {
                Ok((bytes, method)) => {
                    let beyond = mounts.iter().any(|mount| mount.class() == FsClass::Nfs);
                    let method = match &self.residency {
                        Ok(found) => format!("{method}; {}", found.method),
                        Err(why) => format!("{method}; residency unknown: {why}"),
                    };
                    // Direct reads do not use the page cache.
                    let cached = self.residency.as_ref().ok();
                    let cached = cached.filter(|_| self.way != Way::Direct);
                    self.proof(bytes, delivered, &method, beyond, cached)
                }
                Err(why) => unknown(why),
            },
        }
    }

    /// Returns whether pages of the footprint may have been dropped during the run, so that reading them again came from
    /// storage.
    fn lost_pages(&self) -> bool {
        let exact = &[Method::Cachestat, Method::Mincore];
        let after = Prober::with_methods(exact).measure(&self.files);
        after.map_or(true, |found| found.part < 1.0)
    }

    /// Limits the bytes from storage to what the page cache lacked: the rest is readahead that was not used.
    fn proof(
        &self,
        bytes: u64,
        delivered: u64,
        method: &str,
        caches_beyond: bool,
        cached: Option<&Residency>,
    ) -> Proof {
        let useful = match cached {
            Some(found) => {
                let absent = (1.0 - (found.part - found.margin).max(0.0)) * found.bytes as f64;
                let again = match delivered.saturating_sub(found.bytes) {
                    again if again > 0 && self.lost_pages() => again,
                    _ => 0,
                };
                (bytes as f64).min(absent + again as f64)
            }
            None => bytes as f64,
        };
        Proof {
            cold_share: Some((useful / delivered as f64).clamp(0.0, 1.0)),
            read_ratio: Some(bytes as f64 / delivered as f64),
            resident_before: self.residency.as_ref().ok().map(|found| found.part),
            way: self.way.name(),
            method: method.to_owned(),
            caches_beyond,
        }
    }
}

impl Place {
    fn counters(&self) -> Counters {
        match self {
            Self::Mounts(mounts) => Counters::now(mounts),
            Self::Store | Self::Generated | Self::Unknown(_) => Counters::default(),
        }
    }
}

/// Returns the mounts of all files, each once.
fn mounts(files: &[FileBytes]) -> Place {
    // Looked up by directory, as thousands of files are in few directories. A symbolic link is looked up by itself.
    let mut by_dir: BTreeMap<PathBuf, Mount> = BTreeMap::new();
    for file in files {
        let is_link = file.path.is_symlink();
        let dir = match file.path.parent() {
            Some(dir) if !is_link && !dir.as_os_str().is_empty() => dir,
            _ => &file.path,
        };
        if by_dir.contains_key(dir) {
            continue;
        }
        let Some(mount) = Mount::of(dir) else {
            return Place::Unknown(match cfg!(target_os = "linux") {
                true => format!("\"{}\" is on no mount that the system lists", dir.display()),
                false => "cache state unknown: only Linux tells it".to_owned(),
            });
        };
        by_dir.insert(dir.to_owned(), mount);
    }
    let mut found: Vec<Mount> = by_dir.into_values().collect();
    found.sort_by(|a, b| a.point.cmp(&b.point));
    found.dedup();
    match found.is_empty() {
        true => Place::Unknown("there are no files".to_owned()),
        false => Place::Mounts(found),
    }
}

/// Returns the bytes from storage, and the name of the counter.
fn from_storage(mounts: &[Mount], read: &Counters) -> Result<(u64, String), String> {
    use FsClass::{Disk, Memory, Nfs, Other, Overlay};

    let refused = mounts
        .iter()
        .find(|mount| !matches!(mount.class(), Disk | Memory | Overlay | Nfs));
    if let Some(mount) = refused {
        let kind = &mount.kind;
        return Err(match mount.class() {
            FsClass::OwnCache => format!("{kind} has a cache of its own"),
            Other => format!("{kind} has no counter that is read here"),
            _ => format!("{kind} does not count bytes from its server"),
        });
    }
    if let Some(bytes) = read.nfs {
        return Ok((bytes, "bytes from the server (mountstats)".to_owned()));
    }
    if mounts.iter().any(|mount| mount.class() == Nfs) {
        return Err("files are on NFS and on other file systems".to_owned());
    }
    let Some(process) = read.process else {
        return Err("/proc/self/io cannot be read".to_owned());
    };
    // A process counts the reads that it submits, and a device those of all processes: the smaller number is never too high.
    let whole = mounts
        .iter()
        .all(|mount| mount.class() == Disk && mount.device.0 != 0);
    match read.device {
        Some(device) if whole => Ok((
            process.min(device),
            "read_bytes of this process, at most the device's".to_owned(),
        )),
        _ => Ok((process, "read_bytes of this process".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(class: &str, residency: Result<Residency, String>) -> Watch {
        let mount = Mount {
            point: "/x".into(),
            kind: class.to_owned(),
            source: "/dev/x".to_owned(),
            options: String::new(),
            device: (0, 1),
        };
        Watch {
            way: Way::Off,
            place: Place::Mounts(vec![mount]),
            files: Vec::new(),
            residency,
            before: Counters::default(),
        }
    }

    fn resident(part: f64, bytes: u64) -> Result<Residency, String> {
        Ok(Residency {
            part,
            pages: 10,
            asked: 10,
            method: Method::Cachestat,
            margin: 0.0,
            bytes,
        })
    }

    fn word(share: f64) -> String {
        let mut proof = Proof::unknown(Way::Off, "nothing counts");
        assert_eq!(proof.word(), "unknown: nothing counts");
        proof.cold_share = Some(share);
        proof.word()
    }

    #[test]
    fn cold_shares_have_words() {
        assert_eq!(word(1.0), "cold");
        assert_eq!(word(0.95), "cold");
        assert_eq!(word(0.9499), "part cold (0.94)");
        assert_eq!(word(0.43), "part cold (0.43)");
        assert_eq!(word(0.05), "warm");
        assert_eq!(word(0.0), "warm");
    }

    #[test]
    fn wasted_readahead_does_not_make_a_run_cold() {
        let watch = watch("ext4", resident(0.5, 1000));
        let cached = watch.residency.as_ref().ok();
        let proof = watch.proof(1300, 1000, "test", false, cached);
        assert_eq!((proof.cold_share, proof.read_ratio), (Some(0.5), Some(1.3)));
        // A second pass over a file larger than memory reads from the device again.
        let proof = watch.proof(1500, 2000, "test", false, cached);
        assert_eq!(proof.cold_share, Some(0.75));
        // Without residency, the counter alone gives the share.
        let proof = watch.proof(900, 1000, "test", false, None);
        assert_eq!(proof.cold_share, Some(0.9));
    }

    #[test]
    fn file_systems_without_counters_are_unknown() {
        for (kind, why) in [
            ("zfs", "cache of its own"),
            ("fuse.sshfs", "does not count bytes"),
            ("lustre", "does not count bytes"),
        ] {
            let proof = watch(kind, resident(0.0, 10)).end(10, None);
            assert_eq!(proof.cold_share, None);
            assert!(proof.word().contains(why), "{}", proof.word());
        }
        let store = |fetched| {
            let footprint = Footprint::Store;
            Watch::begin(&footprint, Way::Off).end(100, fetched).word()
        };
        assert_eq!(store(Some(100)), "client cold, server unknown");
        assert_eq!(store(Some(50)), "part cold (0.50)");
        assert!(store(None).starts_with("unknown:"));
        let generated = Watch::begin(&Footprint::Generated, Way::Off).end(1, None);
        assert!(generated.word().contains("no storage"));
        assert!(
            watch("ext4", resident(0.0, 1))
                .end(0, None)
                .word()
                .contains("nothing")
        );
    }

    #[test]
    fn the_proof_of_a_row_is_that_of_its_warmest_run() {
        let proof = |share| {
            let mut proof = Proof::unknown(Way::Off, "x");
            proof.cold_share = share;
            proof
        };
        let runs = [proof(Some(1.0)), proof(Some(0.2)), proof(Some(0.9))];
        assert_eq!(summary(&runs).unwrap().cold_share, Some(0.2));
        assert_eq!(
            summary(&[proof(Some(1.0)), proof(None)])
                .unwrap()
                .cold_share,
            None
        );
        assert!(summary(&[]).is_none());
    }
}
