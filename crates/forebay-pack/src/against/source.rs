//! The bytes of the source, for comparison with images. Files are read when they are needed. For archives that can only be
//! decoded from their beginning, a digest of each image is computed in advance.

use crate::census::Census;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, Stage};
use forebay_formats::images::{EntryRef, OpenSource};
use forebay_shard::MAX_RECORD_BYTES;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Half of a BLAKE3 hash: 128 bits make a collision of two different images practically impossible.
type Digest = [u8; 16];

/// The open source.
#[derive(Debug)]
pub(super) struct SourceBytes {
    /// The directory of each split; empty if the source consists of archives.
    dirs: Vec<PathBuf>,
    archives: OpenSource,
    /// The digests of images with their positions, in ascending order, for each compressed archive.
    digests: BTreeMap<u16, Vec<(u64, Digest)>>,
}

/// Result of comparing an image with its file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ImageComparison {
    Same,
    /// The difference, in words.
    Differs(String),
    /// The reason why the file cannot be read.
    Unreadable(String),
}

impl SourceBytes {
    /// Opens archives, and decodes those once that are compressed as a whole.
    pub(super) fn open(census: &Census, observer: &dyn Observer, cancel: &Cancel) -> Result<Self> {
        let dirs = census.splits().iter();
        let dirs = dirs.map(|split| census.src().join(OsStr::from_bytes(split.dir())));
        let archives = OpenSource::open(census.src(), std::iter::empty(), census.archives())?;
        let mut digests = BTreeMap::new();
        for (number, seen) in (0u16..).zip(census.archives()) {
            if seen.is_compressed_stream() {
                observer.stage(Stage::Decoding);
                let images = places(census, number);
                digests.insert(number, digests_of(&archives, number, &images, cancel)?);
            }
        }
        Ok(Self {
            dirs: dirs.collect(),
            archives,
            digests,
        })
    }

    /// Replaces the content of `buffer` by a file. `None` if only a digest is known.
    pub(super) fn read(
        &self,
        split: usize,
        entry: &EntryRef<'_>,
        buffer: &mut Vec<u8>,
    ) -> Option<Result<(), String>> {
        buffer.clear();
        // Larger files cannot be in a record, and the size claimed by a source may be arbitrary.
        if entry.size > MAX_RECORD_BYTES {
            let what = format!("{} bytes, more than a record holds", entry.size);
            return Some(Err(what));
        }
        if let Some(place) = entry.place {
            if self.digests.contains_key(&place.archive) {
                return None;
            }
            let file = self.archives.file(split, entry);
            let read = file.and_then(|file| file.append_to(entry.size, buffer));
            return Some(read.map_err(|(reason, detail)| format!("{} ({detail})", reason.text())));
        }
        let path = self.dirs[split].join(OsStr::from_bytes(&entry.key()));
        Some(read_file(&path, entry.size, buffer).map_err(|error| error.to_string()))
    }

    /// Compares an image with its file.
    pub(super) fn compare(
        &self,
        split: usize,
        entry: &EntryRef<'_>,
        image: &[u8],
        buffer: &mut Vec<u8>,
    ) -> ImageComparison {
        let sizes = || format!("it has {} bytes, the file {}", image.len(), entry.size);
        match self.read(split, entry, buffer) {
            Some(Ok(())) if buffer.as_slice() == image => ImageComparison::Same,
            Some(Ok(())) if buffer.len() != image.len() => ImageComparison::Differs(format!(
                "it has {} bytes, the file {}",
                image.len(),
                buffer.len()
            )),
            Some(Ok(())) => {
                let at = buffer.iter().zip(image).position(|(a, b)| a != b);
                ImageComparison::Differs(format!("byte {} is another", at.unwrap_or(0)))
            }
            Some(Err(why)) => ImageComparison::Unreadable(why),
            None if image.len() as u64 != entry.size => ImageComparison::Differs(sizes()),
            None if self.digest(entry) == Some(digest(&blake3::hash(image))) => {
                ImageComparison::Same
            }
            None => ImageComparison::Differs("its bytes are others".into()),
        }
    }

    fn digest(&self, entry: &EntryRef<'_>) -> Option<Digest> {
        let place = entry.place?;
        let digests = self.digests.get(&place.archive)?;
        let at = digests
            .binary_search_by_key(&place.offset, |(at, _)| *at)
            .ok()?;
        digests.get(at).map(|(_, digest)| *digest)
    }
}

/// Reads a file that should have `size` bytes, and at most one byte more, which shows that the file has grown.
fn read_file(path: &std::path::Path, size: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    let file = forebay_shard::storage::open_file(path)?;
    buffer.reserve(
        usize::try_from(size)
            .unwrap_or(usize::MAX)
            .saturating_add(1)
            .min(1 << 30),
    );
    file.take(size.saturating_add(1)).read_to_end(buffer)?;
    Ok(())
}

/// Lists the images of an archive as (position, size), in ascending order of position.
fn places(census: &Census, archive: u16) -> Vec<(u64, u64)> {
    let entries = census.splits().iter().flat_map(|split| split.iter());
    let mut places: Vec<(u64, u64)> = entries
        .filter_map(|entry| entry.place.map(|place| (place, entry.size)))
        .filter(|(place, _)| place.archive == archive)
        .map(|(place, size)| (place.offset, size))
        .collect();
    places.sort_unstable();
    places
}

fn digests_of(
    archives: &OpenSource,
    archive: u16,
    images: &[(u64, u64)],
    cancel: &Cancel,
) -> Result<Vec<(u64, Digest)>> {
    let mut digests = Vec::with_capacity(images.len());
    let mut hasher = blake3::Hasher::new();
    let mut image = images.iter().filter(|(_, size)| *size > 0).peekable();
    let stopped = || cancel.is_cancelled();
    let whole = archives.decode(archive, images, &(), &stopped, &mut |at, bytes| {
        hasher.update(bytes);
        if let Some((position, size)) = image.peek()
            && at + bytes.len() as u64 == position + size
        {
            digests.push((*position, digest(&hasher.finalize())));
            hasher.reset();
            image.next();
        }
        Ok(())
    })?;
    if whole {
        Ok(digests)
    } else {
        Err(Error::Interrupted {
            finished: 0,
            total: 0,
        })
    }
}

fn digest(hash: &blake3::Hash) -> Digest {
    let (half, _) = hash.as_bytes().split_at(size_of::<Digest>());
    half.try_into().unwrap_or_default()
}
