//! Ways to empty the page cache before a run.

use std::path::Path;
use std::str::FromStr;

use super::footprint::Footprint;
use crate::{Error, Result};

/// How caches are emptied before a run, as selected by the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cold {
    /// The strongest of [`Root`](Cold::Root) and [`Advise`](Cold::Advise) that the user's permissions allow.
    Auto,
    /// Drops the whole page cache, and cached directory entries and inodes, of this machine.
    Root,
    /// Drops the cached pages of each file.
    Advise,
    /// Uses reads that bypass the page cache (`O_DIRECT`), in measurements that support them.
    Direct,
    /// Leaves caches as they are.
    #[default]
    Off,
}

/// The method of eviction in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `syncfs`, then 3 into `/proc/sys/vm/drop_caches`.
    Root,
    /// `fdatasync`, then `posix_fadvise(POSIX_FADV_DONTNEED)`, for each file.
    Advise,
    /// `O_DIRECT`.
    Direct,
    /// No eviction.
    Off,
}

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

impl Cold {
    /// All values, as users write them.
    pub const NAMES: [&'static str; 5] = ["auto", "root", "advise", "direct", "off"];
}

impl FromStr for Cold {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Ok(match text {
            "auto" => Self::Auto,
            "root" => Self::Root,
            "advise" => Self::Advise,
            "direct" => Self::Direct,
            "off" => Self::Off,
            _ => {
                let names = Self::NAMES.join(", ");
                return Err(format!("unknown way \"{text}\"; expected one of {names}"));
            }
        })
    }
}

impl Way {
    /// Returns the name: `root`, `advise`, `direct`, `off`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Advise => "advise",
            Self::Direct => "direct",
            Self::Off => "off",
        }
    }

    /// Describes the method.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Root => "syncfs, then 3 into /proc/sys/vm/drop_caches",
            Self::Advise => "posix_fadvise(DONTNEED) of each file",
            Self::Direct => "O_DIRECT",
            Self::Off => "caches as they were",
        }
    }
}

/// Empties caches with one method.
#[derive(Debug, Clone, Copy)]
pub struct Evictor(Way);

impl Default for Evictor {
    /// Leaves caches as they are.
    fn default() -> Self {
        Self(Way::Off)
    }
}

impl Evictor {
    /// Selects the method.
    ///
    /// # Errors
    /// This system or this user does not support the method.
    pub fn new(cold: Cold) -> Result<Self> {
        let linux = cfg!(target_os = "linux");
        let way = match cold {
            Cold::Off => Way::Off,
            _ if !linux => {
                return Err(
                    "caches cannot be emptied: only Linux is supported; use --cold off".into(),
                );
            }
            Cold::Auto if may_drop_caches() => Way::Root,
            Cold::Auto | Cold::Advise => Way::Advise,
            Cold::Root if may_drop_caches() => Way::Root,
            Cold::Root => {
                let what = format!(
                    "the page cache cannot be dropped: no permission to write \"{DROP_CACHES}\"; \
                     run as root, or use --cold advise"
                );
                return Err(what.into());
            }
            Cold::Direct => Way::Direct,
        };
        Ok(Self(way))
    }

    /// Selects the method for a measurement that reads through the page cache.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new), and [`Cold::Direct`].
    pub fn buffered(cold: Cold) -> Result<Self> {
        match cold {
            Cold::Direct => {
                Err("this measurement reads through the page cache: use --cold advise, or bench storage".into())
            }
            cold => Self::new(cold),
        }
    }

    /// Returns the selected method.
    pub fn way(self) -> Way {
        self.0
    }

    /// Empties the caches of these bytes. Only [`Way::Root`] also drops pages of other files. Caches outside this machine stay
    /// as they are.
    ///
    /// # Errors
    /// A file cannot be opened or synced.
    pub fn evict(self, footprint: &Footprint) -> Result<()> {
        match self.0 {
            // Before a direct read, the kernel itself writes dirty pages to the device.
            Way::Off | Way::Direct => Ok(()),
            Way::Root => drop_all(footprint),
            Way::Advise => advise_all(footprint),
        }
    }
}

fn may_drop_caches() -> bool {
    rustix::fs::access(DROP_CACHES, rustix::fs::Access::WRITE_OK).is_ok()
}

fn fail(path: &Path, what: &str, error: impl std::fmt::Display) -> Error {
    format!(
        "the cache of \"{}\" cannot be emptied: {what}: {error}",
        path.display()
    )
    .into()
}

#[cfg(target_os = "linux")]
fn drop_all(footprint: &Footprint) -> Result<()> {
    use std::collections::BTreeSet;
    use std::os::unix::fs::MetadataExt;

    let mut synced = BTreeSet::new();
    for file in footprint.local() {
        let open = forebay_shard::storage::open_file(&file.path)
            .map_err(|e| fail(&file.path, "open", e))?;
        let device = open
            .metadata()
            .map_err(|e| fail(&file.path, "stat", e))?
            .dev();
        if synced.insert(device) {
            rustix::fs::syncfs(&open).map_err(|e| fail(&file.path, "syncfs", e))?;
        }
    }
    std::fs::write(DROP_CACHES, "3").map_err(|e| fail(Path::new(DROP_CACHES), "write", e))
}

#[cfg(target_os = "linux")]
fn advise_all(footprint: &Footprint) -> Result<()> {
    use rustix::fs::Advice;

    for file in footprint.local() {
        let open = forebay_shard::storage::open_file(&file.path)
            .map_err(|e| fail(&file.path, "open", e))?;
        // Dirty pages are not dropped, so they are synced first. Without dirty pages, the flush of the device is skipped.
        if super::residency::dirty_bytes(&open) != Some(0) {
            rustix::fs::fdatasync(&open).map_err(|e| fail(&file.path, "fdatasync", e))?;
        }
        rustix::fs::fadvise(&open, 0, None, Advice::DontNeed)
            .map_err(|e| fail(&file.path, "posix_fadvise", e))?;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn drop_all(_: &Footprint) -> Result<()> {
    Err("caches cannot be emptied: only Linux is supported".into())
}

#[cfg(not(target_os = "linux"))]
fn advise_all(_: &Footprint) -> Result<()> {
    Err("caches cannot be emptied: only Linux is supported".into())
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for name in Cold::NAMES {
            name.parse::<Cold>().unwrap();
        }
        let error = "ice".parse::<Cold>().unwrap_err();
        assert!(
            error.contains("\"ice\"") && error.contains("advise"),
            "{error}"
        );
    }

    #[test]
    fn auto_takes_the_strongest_permitted_way() {
        let way = Evictor::new(Cold::Auto).unwrap().way();
        let expected = if may_drop_caches() {
            Way::Root
        } else {
            Way::Advise
        };
        assert_eq!(way, expected);
        assert_eq!(Evictor::new(Cold::Off).unwrap().way(), Way::Off);
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let gone = Footprint::files(["/no/such/file"]);
        let error = Evictor(Way::Advise).evict(&gone).unwrap_err().to_string();
        assert!(
            error.contains("\"/no/such/file\"") && error.contains("open"),
            "{error}"
        );
        Evictor(Way::Off).evict(&gone).unwrap();
    }
}
