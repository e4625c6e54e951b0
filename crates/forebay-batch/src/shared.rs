//! Memory that two processes share: a sealed memfd that both map.
//!
//! This module creates such memory and validates files from another process before it maps them. On
//! the server's side [`slots`](super::slots) tracks its use, on the client's side the
//! [`Lender`](super::Lender).
//!
//! The other process can write to the memory at any time. So its content is only used as pixels,
//! never as a length, an index or an address.

// Mapping a file is unsafe because another process may truncate it or write to it. Seals exclude
// the first; the second can only change pixels.
#![expect(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use memmap2::MmapMut;

use super::registry::{HostRegistry, Registration};

/// Memory that another process has mapped, or will map.
pub struct SharedMemory {
    /// Dropped before the memory is unmapped.
    registration: Option<Registration>,
    map: MmapMut,
    id: u32,
    /// `None` after it was passed to the other side; then the mappings alone keep the memory.
    file: Option<OwnedFd>,
}

impl SharedMemory {
    /// Creates memory of `capacity` bytes and allocates all of its pages: a lack of memory is an
    /// error here, not a signal later. The file has no name, so nothing remains when both processes
    /// are gone.
    ///
    /// # Errors
    ///
    /// The system's error: out of memory or descriptors, or no support for such memory.
    pub(super) fn create(id: u32, capacity: usize) -> io::Result<Self> {
        let file = system::create(capacity)?;
        Ok(SharedMemory {
            registration: None,
            map: system::map(&file, capacity)?,
            id,
            file: Some(file),
        })
    }

    /// Maps memory that another process created. The process is not trusted: the file must be a
    /// memfd of exactly `capacity` bytes that is sealed against shrinking.
    ///
    /// # Errors
    ///
    /// The violated requirement, or the system's error when mapping it.
    pub fn open(id: u32, file: &OwnedFd, capacity: usize) -> io::Result<Self> {
        system::check(file, capacity)?;
        Ok(SharedMemory {
            registration: None,
            map: system::map(file, capacity)?,
            id,
            file: None,
        })
    }

    /// Registers the memory for a device of this process.
    pub fn register(&mut self, registry: &HostRegistry) {
        self.registration = registry.register(&self.map);
    }

    /// Returns the number that identifies the memory on both sides.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Takes the file; `None` after the first call.
    pub(super) fn take_file(&mut self) -> Option<OwnedFd> {
        self.file.take()
    }

    /// Returns whether the other side has not received the file yet.
    pub(super) fn is_new(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the capacity in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.map.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({}, {} bytes)", self.id, self.map.len())
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;
    use std::os::fd::OwnedFd;

    use memmap2::{Advice, MmapMut, MmapOptions};
    use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
    use rustix::io::Errno;

    /// The `fstatfs` type of memory files (linux/magic.h). hugetlbfs files have another type, and
    /// access to them can fail.
    const TMPFS_MAGIC: i64 = 0x0102_1994;

    pub(super) fn create(capacity: usize) -> io::Result<OwnedFd> {
        let system = rustix::system::sysinfo();
        let memory = (system.totalram as u64).saturating_mul(system.mem_unit.into());
        if capacity as u64 > memory {
            // The system would evict all other memory before the allocation failed.
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match fs::memfd_create(c"forebay-batch", flags | MemfdFlags::NOEXEC_SEAL) {
            // Linux before 6.3 does not support `NOEXEC_SEAL`.
            Err(Errno::INVAL) => fs::memfd_create(c"forebay-batch", flags)?,
            result => result?,
        };
        let len = capacity as u64;
        fs::ftruncate(&file, len)?;
        fs::fallocate(&file, FallocateFlags::empty(), 0, len)?;
        fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    }

    pub(super) fn check(file: &OwnedFd, capacity: usize) -> io::Result<()> {
        let refused = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let no_memory = || refused("the file that came is no memory".to_owned());
        let Ok(seals) = fs::fcntl_get_seals(file) else {
            return no_memory();
        };
        if fs::fstatfs(file)?.f_type as i64 != TMPFS_MAGIC {
            return no_memory();
        }
        if !seals.contains(SealFlags::SHRINK) {
            return refused("the memory that came is not sealed against shrinking".to_owned());
        }
        let found = fs::fstat(file)?.st_size;
        if u64::try_from(found) != Ok(capacity as u64) {
            return refused(format!(
                "the memory that came has {found} bytes where {capacity} were announced"
            ));
        }
        Ok(())
    }

    pub(super) fn map(file: &OwnedFd, capacity: usize) -> io::Result<MmapMut> {
        // SAFETY: the file has `capacity` bytes and is sealed against shrinking, so every access is
        // to bytes that exist. The other process may change them concurrently; they are pixels, for
        // which every value is valid.
        let map = unsafe { MmapOptions::new().len(capacity).map_mut(file)? };
        let _ = map.advise(Advice::PopulateWrite);
        Ok(map)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;
    use std::os::fd::OwnedFd;

    use memmap2::MmapMut;

    pub(super) fn create(_: usize) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn check(_: &OwnedFd, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn map(_: &OwnedFd, _: usize) -> io::Result<MmapMut> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn refusal(file: &OwnedFd, capacity: usize) -> String {
        SharedMemory::open(1, file, capacity)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn both_sides_share_the_bytes_and_cannot_truncate_them() {
        let mut here = SharedMemory::create(7, 8192).unwrap();
        assert!(here.is_new());
        let file = here.take_file().unwrap();
        assert!(!here.is_new());
        let mut there = SharedMemory::open(7, &file, 8192).unwrap();
        here.bytes_mut()[5000] = 9;
        assert_eq!(there.bytes()[5000], 9);
        there.bytes_mut()[1] = 3;
        assert_eq!(here.bytes()[1], 3);
        assert!(ftruncate(&file, 0).is_err());
        assert!(ftruncate(&file, 1 << 20).is_err());
        assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err());
        // Memory that one side has dropped remains valid for the other.
        drop((here, file));
        assert_eq!(there.bytes()[5000], 9);
    }

    #[test]
    fn only_sealed_memory_of_the_announced_size_is_mapped() {
        let mut memory = SharedMemory::create(0, 4096).unwrap();
        let file = memory.take_file().unwrap();
        assert!(refusal(&file, 8192).contains("has 4096 bytes where 8192"));
        assert!(refusal(&file, 4095).contains("has 4096 bytes where 4095"));
        let open = memfd_create(c"x", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert!(refusal(&open, 4096).contains("not sealed against shrinking"));
        let mut disk = tempfile();
        disk.write_all(&[0; 4096]).unwrap();
        SharedMemory::open(1, &disk.into(), 4096).unwrap_err();
    }

    /// An unlinked file in the directory of the test binary.
    fn tempfile() -> File {
        let path = std::env::current_exe()
            .unwrap()
            .with_file_name(format!("not-memory-{}", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn sizes_beyond_the_memory_of_the_machine_are_refused() {
        let error = SharedMemory::create(0, usize::MAX / 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }
}
