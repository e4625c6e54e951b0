//! Measures which pages of a file are in the page cache.
//!
//! There are three methods, and each is reliable under a condition only:
//!
//! - `cachestat(2)` (Linux 6.5): exact. Not used on overlayfs, where it counts the pages of the overlay's inode, which has
//!   none, and reports every file as absent.
//! - `mincore(2)`: exact for files that the user owns or may write. It reports every page of other files as resident.
//! - `preadv2(RWF_NOWAIT)` of a sample of pages. A miss starts a read of the page on recent kernels. So at most one page in a
//!   thousand is probed, without readahead and never twice, and pages that were absent are dropped again.

use std::collections::HashSet;
use std::fmt;

use super::footprint::FileBytes;
use crate::random::Random;

/// At most one page out of this many is probed.
const SAMPLE: u64 = 1000;
/// Minimum number of probes of a valid sample.
const LEAST_SAMPLE: u64 = 30;

/// The method that measured residency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// `cachestat(2)`.
    Cachestat,
    /// `mincore(2)`.
    Mincore,
    /// `preadv2(RWF_NOWAIT)` of a sample.
    Sample,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cachestat => "cachestat",
            Self::Mincore => "mincore",
            Self::Sample => "sampled preadv2(RWF_NOWAIT)",
        })
    }
}

/// Pages of a footprint that are in the page cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Residency {
    /// Part of the bytes that is resident, 0 to 1.
    pub part: f64,
    /// Pages with the bytes; a page with two ranges counts twice.
    pub pages: u64,
    /// Pages that were checked: all of them, or a sample.
    pub asked: u64,
    /// The least exact method that was used.
    pub method: Method,
    /// Two standard errors of `part`; 0 if every page was checked.
    pub margin: f64,
    /// Distinct bytes of the footprint.
    pub bytes: u64,
}

/// Measures residency, and remembers which pages it probed.
#[derive(Debug)]
pub struct Prober {
    /// Device, inode and page number of probed pages.
    pub(super) probed: HashSet<(u64, u64, u64)>,
    random: Random,
    /// Methods that may be used; tests restrict them.
    allowed: &'static [Method],
}

impl Default for Prober {
    fn default() -> Self {
        Self {
            probed: HashSet::new(),
            random: Random::new(0xc01d),
            allowed: &[Method::Cachestat, Method::Mincore, Method::Sample],
        }
    }
}

impl Prober {
    /// Uses these methods only.
    pub fn with_methods(allowed: &'static [Method]) -> Self {
        Self {
            allowed,
            ..Self::default()
        }
    }

    /// Returns how much of these bytes is resident.
    ///
    /// # Errors
    /// The reason why it is unknown.
    pub fn measure(&mut self, files: &[FileBytes]) -> Result<Residency, String> {
        if files.is_empty() {
            return Err("there are no files".to_owned());
        }
        system::measure(self, files)
    }
}

/// Returns the bytes of a file that are not on the device yet; `None` if the system does not report them.
#[cfg(target_os = "linux")]
pub(super) fn dirty_bytes(file: &std::fs::File) -> Option<u64> {
    let stat = system::cachestat(file, 0, 0).ok()?;
    let is_overlay = system::is_overlay(file);
    (!is_overlay).then(|| (stat.dirty + stat.writeback) * super::page_bytes())
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{FileBytes, Prober, Residency};

    pub(super) fn measure(_: &mut Prober, _: &[FileBytes]) -> Result<Residency, String> {
        Err("cache state unknown: only Linux tells it".to_owned())
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::File;
    use std::io::IoSliceMut;
    use std::num::NonZeroU64;
    use std::ops::Range;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use rustix::fs::Advice;
    use rustix::io::{Errno, ReadWriteFlags};

    use super::{FileBytes, LEAST_SAMPLE, Method, Prober, Residency, SAMPLE};
    use crate::cold::footprint::Span;
    use crate::cold::page_bytes;

    /// System call number, the same on every supported architecture.
    const SYS_CACHESTAT: libc::c_long = 451;
    const OVERLAYFS_MAGIC: i128 = 0x794c_7630;
    /// Maximum number of pages per call of `mincore`.
    const WINDOW: u64 = 1 << 18;

    /// `struct cachestat` of linux/mman.h.
    #[repr(C)]
    #[derive(Default)]
    pub(super) struct Cachestat {
        pub(super) cached: u64,
        pub(super) dirty: u64,
        pub(super) writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }

    /// Counts the cached pages of a range; a length of 0 means up to the end.
    #[allow(unsafe_code)]
    pub(super) fn cachestat(file: &File, offset: u64, len: u64) -> Result<Cachestat, Errno> {
        let range = [offset, len];
        let mut stat = Cachestat::default();
        // SAFETY: both pointers are to live memory with the layout that the kernel expects, and the kernel writes to `stat`
        // only.
        let result = unsafe {
            libc::syscall(
                SYS_CACHESTAT,
                file.as_raw_fd(),
                range.as_ptr(),
                &raw mut stat,
                0u32,
            )
        };
        match result {
            0 => Ok(stat),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }

    pub(super) fn is_overlay(file: &File) -> bool {
        rustix::fs::fstatfs(file).is_ok_and(|fs| i128::from(fs.f_type) == OVERLAYFS_MAGIC)
    }

    /// Counts the resident pages of a range.
    #[allow(unsafe_code)]
    fn mincore(file: &File, pages: &Range<u64>) -> Result<u64, Errno> {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

        let page = page_bytes();
        let mut resident = 0;
        let mut from = pages.start;
        while from < pages.end {
            let count = (pages.end - from).min(WINDOW);
            let len = (count * page) as usize;
            let mut each = vec![0u8; count as usize];
            // SAFETY: a new mapping at an address that the kernel selects. Its memory is never accessed, so a file that shrinks
            // meanwhile does no harm. `each` has a byte for each of its pages. It is unmapped once.
            let result = unsafe {
                let at = mmap(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::READ,
                    MapFlags::SHARED,
                    file,
                    from * page,
                )?;
                let result = libc::mincore(at, len, each.as_mut_ptr());
                let error = std::io::Error::last_os_error();
                munmap(at, len)?;
                match result {
                    0 => Ok(()),
                    _ => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
                }
            };
            result?;
            resident += each.iter().filter(|&&flags| flags & 1 == 1).count() as u64;
            from += count;
        }
        Ok(resident)
    }

    /// Returns whether `mincore` is reliable for this file. For files that the user neither owns nor may write, the kernel
    /// reports every page as resident.
    fn is_ours(file: &File, path: &std::path::Path) -> bool {
        let owner = file.metadata().map(|data| data.uid());
        owner.is_ok_and(|uid| uid == rustix::process::geteuid().as_raw())
            || rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
    }

    struct Opened {
        file: File,
        key: (u64, u64),
        spans: Vec<Span>,
    }

    impl Opened {
        fn pages(&self) -> u64 {
            let count = |span: &Span| span.pages.end - span.pages.start;
            self.spans.iter().map(count).sum()
        }

        fn bytes(&self) -> u64 {
            self.spans.iter().map(|span| span.bytes).sum()
        }
    }

    fn open(file: &FileBytes) -> Result<Opened, String> {
        let fail = |error| format!("\"{}\": {error}", file.path.display());
        let open = forebay_shard::storage::open_file(&file.path).map_err(fail)?;
        let data = open.metadata().map_err(fail)?;
        Ok(Opened {
            key: (data.dev(), data.ino()),
            spans: file.spans(data.len()),
            file: open,
        })
    }

    pub(super) fn measure(prober: &mut Prober, files: &[FileBytes]) -> Result<Residency, String> {
        let mut method = Method::Cachestat;
        let (mut pages, mut bytes, mut resident) = (0, 0, 0.0);
        let (mut unanswered, mut unanswered_bytes) = (Vec::new(), 0);
        for file in files {
            let opened = open(file)?;
            pages += opened.pages();
            bytes += opened.bytes();
            match exact(prober.allowed, file, &opened) {
                Some((found, by)) => {
                    resident += found;
                    method = method.max(by);
                }
                None => {
                    unanswered_bytes += opened.bytes();
                    unanswered.push(file);
                }
            }
        }
        let all = (bytes as f64).max(1.0);
        let (mut asked, mut margin) = (pages, 0.0);
        if !unanswered.is_empty() {
            if !prober.allowed.contains(&Method::Sample) {
                return Err("neither cachestat nor mincore answers for these files".to_owned());
            }
            let found = sample(prober, &unanswered)?;
            resident += found.part * unanswered_bytes as f64;
            asked = pages - found.of + found.asked;
            margin = found.margin() * unanswered_bytes as f64 / all;
            method = Method::Sample;
        }
        Ok(Residency {
            part: resident / all,
            pages,
            asked,
            method,
            margin,
            bytes,
        })
    }

    /// Counts resident bytes with a method that checks every page.
    fn exact(allowed: &[Method], file: &FileBytes, opened: &Opened) -> Option<(f64, Method)> {
        let page = page_bytes();
        let bytes = |span: &Span, found: u64| {
            let count = span.pages.end - span.pages.start;
            found as f64 / count as f64 * span.bytes as f64
        };
        if allowed.contains(&Method::Cachestat) && !is_overlay(&opened.file) {
            let count = |span: &Span| {
                let len = (span.pages.end - span.pages.start) * page;
                let stat = cachestat(&opened.file, span.pages.start * page, len)?;
                Ok(bytes(span, stat.cached))
            };
            let found: Result<f64, Errno> = opened.spans.iter().map(count).sum();
            if let Ok(found) = found {
                return Some((found, Method::Cachestat));
            }
        }
        if allowed.contains(&Method::Mincore) && is_ours(&opened.file, &file.path) {
            let count = |span: &Span| Ok(bytes(span, mincore(&opened.file, &span.pages)?));
            let found: Result<f64, Errno> = opened.spans.iter().map(count).sum();
            return found.ok().map(|found| (found, Method::Mincore));
        }
        None
    }

    /// Result of a sample.
    struct Sampled {
        /// Resident part of the probed pages.
        part: f64,
        asked: u64,
        /// Number of pages that the sample represents.
        of: u64,
    }

    impl Sampled {
        /// Returns two standard errors, with Laplace's rule of succession: a part of 0 or 1 is uncertain too.
        fn margin(&self) -> f64 {
            let n = self.asked as f64;
            let part = (self.part * n + 1.0) / (n + 2.0);
            2.0 * (part * (1.0 - part) / n).sqrt()
        }
    }

    /// Probes one page of each thousand.
    fn sample(prober: &mut Prober, files: &[&FileBytes]) -> Result<Sampled, String> {
        let mut total = 0;
        let (mut asked, mut hits) = (0u64, 0u64);
        // Index of the next page to probe, over all files.
        let mut next = prober.random.below(SAMPLE);
        for file in files {
            let opened = open(file)?;
            // No readahead: a miss starts a read of this page only.
            let _ = rustix::fs::fadvise(&opened.file, 0, None, Advice::Random);
            let mut missed = Vec::new();
            for range in opened.spans.iter().map(|span| &span.pages) {
                let count = range.end - range.start;
                while next < total + count {
                    let page = range.start + (next - total);
                    next = (next / SAMPLE + 1) * SAMPLE + prober.random.below(SAMPLE);
                    if !prober.probed.insert((opened.key.0, opened.key.1, page)) {
                        continue;
                    }
                    asked += 1;
                    match probe(&opened.file, page) {
                        Ok(true) => hits += 1,
                        Ok(false) => missed.push(page),
                        Err(error) => {
                            return Err(format!(
                                "the file system does not answer RWF_NOWAIT: {error}"
                            ));
                        }
                    }
                }
                total += count;
            }
            for page in missed {
                forget(&opened.file, page);
            }
        }
        if asked < LEAST_SAMPLE {
            return Err(format!(
                "{total} pages are too few to sample: one in {SAMPLE} is {asked}, at least {LEAST_SAMPLE} are needed"
            ));
        }
        Ok(Sampled {
            part: hits as f64 / asked as f64,
            asked,
            of: total,
        })
    }

    fn probe(file: &File, page: u64) -> Result<bool, Errno> {
        let mut byte = [0];
        let mut into = [IoSliceMut::new(&mut byte)];
        let offset = page * page_bytes();
        match rustix::io::preadv2(file, &mut into, offset, ReadWriteFlags::NOWAIT) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Drops a page whose read the probe started. A page that is being read cannot be dropped, so this waits for the read.
    fn forget(file: &File, page: u64) {
        let offset = page * page_bytes();
        let _ = file.read_at(&mut [0], offset);
        let _ = rustix::fs::fadvise(
            file,
            offset,
            NonZeroU64::new(page_bytes()),
            Advice::DontNeed,
        );
    }
}
