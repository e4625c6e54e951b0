//! Sources of the bytes of entries: files of a directory, or members of archives.
//!
//! Opened once for a pack and shared by all workers. An entry is opened first and read later, so that many can be
//! asked for ahead of time. Archives are open once, whatever the number of jobs, unless there are very many.

use super::read::{Clock, Refusal, append_file, open_file};
use crate::census::EntryRef;
use crate::destination::{Destination, Room};
use crate::error::{Error, Result};
use crate::input::{OpenVolume, OpenVolumes, Place, VolumeRef};
use crate::observer::{Observer, Stage};
use crate::options::OnBadImage;
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use crate::report::Reason;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::ffi::OsStr;
use std::io::IoSliceMut;
use std::os::unix::ffi::OsStrExt;

/// The source of a pack, open for reading.
#[derive(Debug)]
pub(super) struct Sources {
    /// The directory of each split; none where archives are the source.
    dirs: Vec<OwnedFd>,
    volumes: OpenVolumes,
    /// For the decoded images of compressed archives.
    _room: Room,
}

/// An entry that is ready to be read.
#[derive(Debug)]
pub(super) struct Opened<'a> {
    what: What<'a>,
    clock: Option<&'a Clock>,
}

#[derive(Debug)]
enum What<'a> {
    /// A file of its own.
    File(OwnedFd),
    /// A member of an archive.
    Member(VolumeRef<'a>, Place, u64),
}

impl Sources {
    /// Opens what the shards need. Compressed archives are decoded into an unnamed file of the destination, which may
    /// take a while; none if it was stopped.
    pub(super) fn open(
        prepared: &Prepared,
        destination: &dyn Destination,
        shards: &[PlannedShard],
        observer: &dyn Observer,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Self>> {
        let census = &prepared.census;
        if let Some(sources) = Self::open_plain(prepared)? {
            return Ok(Some(sources));
        }
        let spool_bytes = if shards.is_empty() {
            0
        } else {
            census.spool_bytes()
        };
        let Some(room) = destination.reserve(spool_bytes, stopped)? else {
            return Ok(None);
        };
        let mut volumes = Vec::new();
        for (number, seen) in (0u16..).zip(census.volumes()) {
            let mut volume = OpenVolume::open(seen)?;
            if seen.is_compressed_stream() {
                let images = places(prepared, shards, number);
                if !images.is_empty() {
                    observer.stage(Stage::Decoding);
                    if !volume.spool(
                        &images,
                        destination.dir().unnamed_file()?,
                        observer,
                        stopped,
                    )? {
                        return Ok(None);
                    }
                    observer.stage(Stage::Writing);
                }
            }
            volumes.push(volume);
        }
        Ok(Some(Self {
            dirs: Vec::new(),
            volumes: OpenVolumes::Open(volumes),
            _room: room,
        }))
    }

    /// Opens a source that can be read as it is; none if it is of compressed archives.
    pub(super) fn open_plain(prepared: &Prepared) -> Result<Option<Self>> {
        let census = &prepared.census;
        if census.volumes().is_empty() {
            let open = |dir: &[u8]| {
                let path = census.src().join(OsStr::from_bytes(dir));
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::open(&path, flags, Mode::empty())
                    .map_err(|errno| Error::io(path, "open", errno))
            };
            let dirs = census.splits().iter().map(|split| open(split.dir()));
            return Ok(Some(Self {
                dirs: dirs.collect::<Result<_>>()?,
                volumes: OpenVolumes::Open(Vec::new()),
                _room: Room::default(),
            }));
        }
        if census.volumes().iter().any(|v| v.is_compressed_stream()) {
            return Ok(None);
        }
        Ok(Some(Self {
            dirs: Vec::new(),
            volumes: OpenVolumes::open(census.volumes())?,
            _room: Room::default(),
        }))
    }

    /// Whether each image comes over a network.
    pub(super) fn is_remote(&self) -> bool {
        self.volumes.are_remote()
    }

    /// Opens an entry of a split.
    pub(super) fn entry(&self, split: usize, entry: &EntryRef<'_>) -> Result<Opened<'_>, Refusal> {
        if let Some(place) = entry.place {
            let volume = self.volumes.get(place.volume);
            let volume = volume.map_err(|error| (Reason::SizeChanged, error.to_string()))?;
            return Ok(What::Member(volume, place, entry.size).into());
        }
        open_file(&self.dirs[split], &entry.key()).map(Opened::from)
    }
}

/// The images of an archive that shards need, in the order in which they are in it: (position, bytes).
fn places(prepared: &Prepared, shards: &[PlannedShard], volume: u16) -> Vec<(u64, u64)> {
    let mut places = Vec::new();
    for shard in shards {
        let census = &prepared.census.splits()[shard.split];
        let split = &prepared.plan.splits()[shard.split];
        for entry in split.entries(census, shard.positions.clone()) {
            let place = entry.place.filter(|place| place.volume == volume);
            places.extend(place.map(|place| (place.offset, entry.size)));
        }
    }
    if matches!(prepared.options.on_bad_image, OnBadImage::Quarantine(_)) {
        let splits = prepared.census.splits().iter();
        for entry in splits.flat_map(|split| split.left_out()) {
            let place = entry.place.filter(|place| place.volume == volume);
            places.extend(place.map(|place| (place.offset, entry.size)));
        }
    }
    places.sort_unstable();
    places
}

impl<'a> From<What<'a>> for Opened<'a> {
    fn from(what: What<'a>) -> Self {
        Self { what, clock: None }
    }
}

impl From<OwnedFd> for Opened<'_> {
    fn from(file: OwnedFd) -> Self {
        What::File(file).into()
    }
}

impl<'a> Opened<'a> {
    /// Tells the system that the bytes will be needed. Only a hint.
    pub(super) fn will_need(&self) {
        match &self.what {
            What::File(file) => {
                let _ = rustix::fs::fadvise(file, 0, None, Advice::WillNeed);
            }
            What::Member(volume, place, size) => volume.will_need(*place, *size),
        }
    }

    /// Whether the beginning is in memory, so that reading it needs no disk; none if the system does not say.
    pub(super) fn is_in_memory(&self) -> Option<bool> {
        match &self.what {
            What::File(file) => is_in_memory(file, 0),
            What::Member(volume, place, _) => is_in_memory(volume.file()?, place.offset),
        }
    }

    /// Has the reading timed.
    pub(super) fn timed<'b>(self, clock: &'b Clock) -> Opened<'b>
    where
        'a: 'b,
    {
        Opened {
            what: self.what,
            clock: Some(clock),
        }
    }

    /// Appends all bytes of the entry to `buffer`. It must still have the size that it had in the census.
    pub(super) fn append_to(&self, size: u64, buffer: &mut Vec<u8>) -> Result<(), Refusal> {
        let begin = Clock::begin();
        let read = match &self.what {
            What::File(file) => append_file(file, size, buffer),
            What::Member(volume, place, _) => volume.append_to(*place, size, buffer),
        };
        if let Some(clock) = self.clock {
            clock.end(begin);
        }
        read
    }
}

fn is_in_memory(file: impl AsFd, at: u64) -> Option<bool> {
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    match preadv2(file, &mut into, at, ReadWriteFlags::NOWAIT) {
        Ok(_) => Some(true),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}
