//! The open source of a pack, shared by all workers.

use super::clock::Clock;
use crate::error::Result;
use crate::observer::{Observer, SourceProgress, Stage};
use crate::options::OnBad;
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use crate::publish::destination::{Destination, SpaceReservation};
use forebay_formats::images::{EntryRef, OpenFile, OpenSource, Refusal, SourceArchive};

/// The open source of a pack.
#[derive(Debug)]
pub(super) struct Sources {
    files: OpenSource,
    /// Reserved space for the decoded images of compressed archives.
    _room: SpaceReservation,
}

/// An entry that is ready to be read.
#[derive(Debug)]
pub(super) struct Opened<'a> {
    file: OpenFile<'a>,
    clock: Option<&'a Clock>,
}

impl Sources {
    /// Opens the files that the shards need. Compressed archives are decoded into an unnamed file of the destination, which may
    /// take a while; `None` if the pack was stopped.
    pub(super) fn open(
        prepared: &Prepared,
        destination: &dyn Destination,
        shards: &[PlannedShard],
        observer: &dyn Observer,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Self>> {
        let census = &prepared.census;
        let mut archives = census.archives().iter();
        if !archives.any(SourceArchive::is_compressed_stream) {
            return Ok(Some(Self {
                files: open(prepared)?,
                _room: SpaceReservation::default(),
            }));
        }
        let spool_bytes = if shards.is_empty() {
            0
        } else {
            census.spool_bytes()
        };
        let Some(room) = destination.reserve(spool_bytes, stopped)? else {
            return Ok(None);
        };
        let mut files = open(prepared)?;
        for (number, seen) in (0u16..).zip(census.archives()) {
            let images = match seen.is_compressed_stream() {
                true => places(prepared, shards, number),
                false => Vec::new(),
            };
            if images.is_empty() {
                continue;
            }
            observer.stage(Stage::Decoding);
            let spool = destination.dir().unnamed_file()?;
            let progress = SourceProgress(observer);
            if !files.spool(number, &images, spool, &progress, stopped)? {
                return Ok(None);
            }
            observer.stage(Stage::Writing);
        }
        Ok(Some(Self { files, _room: room }))
    }

    /// Returns whether images are read over a network.
    pub(super) fn is_remote(&self) -> bool {
        self.files.is_remote()
    }

    /// Opens an entry of a split.
    pub(super) fn entry(&self, split: usize, entry: &EntryRef<'_>) -> Result<Opened<'_>, Refusal> {
        self.files.file(split, entry).map(Opened::from)
    }
}

fn open(prepared: &Prepared) -> Result<OpenSource> {
    let census = &prepared.census;
    let dirs = census.splits().iter().map(|split| split.dir());
    Ok(OpenSource::open(census.src(), dirs, census.archives())?)
}

/// Returns the images of an archive that the shards need, in the order of the archive: (position, bytes).
fn places(prepared: &Prepared, shards: &[PlannedShard], archive: u16) -> Vec<(u64, u64)> {
    let mut places = Vec::new();
    for shard in shards {
        let census = &prepared.census.splits()[shard.split];
        let split = &prepared.plan.splits()[shard.split];
        for entry in split.entries(census, shard.positions.clone()) {
            let place = entry.place.filter(|place| place.archive == archive);
            places.extend(place.map(|place| (place.offset, entry.size)));
        }
    }
    if matches!(prepared.options.on_bad, OnBad::Quarantine(_)) {
        let splits = prepared.census.splits().iter();
        for entry in splits.flat_map(|split| split.left_out()) {
            let place = entry.place.filter(|place| place.archive == archive);
            places.extend(place.map(|place| (place.offset, entry.size)));
        }
    }
    places.sort_unstable();
    places
}

impl<'a> From<OpenFile<'a>> for Opened<'a> {
    fn from(file: OpenFile<'a>) -> Self {
        Self { file, clock: None }
    }
}

impl<'a> Opened<'a> {
    /// Tells the system that the bytes will be needed. This is only a hint.
    pub(super) fn will_need(&self) {
        self.file.will_need();
    }

    /// Returns the entry with `clock` measuring its reads.
    pub(super) fn timed<'b>(self, clock: &'b Clock) -> Opened<'b>
    where
        'a: 'b,
    {
        Opened {
            file: self.file,
            clock: Some(clock),
        }
    }

    /// Appends all bytes of the entry to `buffer`. Its size must still be that in the census.
    pub(super) fn append_to(&self, size: u64, buffer: &mut Vec<u8>) -> Result<(), Refusal> {
        let begin = Clock::begin();
        let read = self.file.append_to(size, buffer);
        if let Some(clock) = self.clock {
            clock.end(begin);
        }
        read
    }
}
