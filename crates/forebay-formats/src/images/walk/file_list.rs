//! The files of one unit of a split, stored compactly, and the view of a single file.

use super::members::MemberLocation;
use crate::images::extras::Extras;
use crate::key_path::is_below;
use forebay_shard::MAX_RECORD_BYTES;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One image file of the source.
#[derive(Debug, Clone, Copy)]
pub struct EntryRef<'a> {
    /// Directory relative to the split's directory; empty for the split's directory itself.
    pub dir: &'a [u8],
    /// File name.
    pub name: &'a [u8],
    /// Size in bytes.
    pub size: u64,
    /// Index of its class in the class list, if it has one.
    pub class: Option<u32>,
    /// Its location in the archives of the source; `None` for files of a directory.
    pub place: Option<MemberLocation>,
    /// Boxes and columns of the image.
    pub extras: Extras<'a>,
}

impl EntryRef<'_> {
    /// Writes the key, which is the path relative to the split's directory, into a reused buffer.
    pub fn key_into(&self, key: &mut Vec<u8>) {
        key.clear();
        if !self.dir.is_empty() {
            key.extend_from_slice(self.dir);
            key.push(b'/');
        }
        key.extend_from_slice(self.name);
    }

    /// Returns the key, which is the path relative to the split's directory.
    pub fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.dir.len() + 1 + self.name.len());
        self.key_into(&mut key);
        key
    }
}

/// The files of one unit of a split, in byte order of their keys.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FileList {
    /// Index of the class; set after the class list was decided.
    pub class: Option<u32>,
    /// Name of the class directory; empty for a flat split.
    name: Vec<u8>,
    /// Names of the directories, concatenated.
    dir_bytes: Vec<u8>,
    /// End of each directory in `dir_bytes`, and the index of its first file.
    dirs: Vec<(u64, u64)>,
    /// File names, concatenated.
    name_bytes: Vec<u8>,
    name_lens: CompactNumbers<u8>,
    /// Start of the name of every `MARK_FILES`th file.
    name_marks: Vec<u64>,
    sizes: CompactNumbers<u32>,
    /// Offset of each file in its archive; empty for files of a directory.
    offsets: Vec<u64>,
    /// Runs of files in the same archive: the index of the first file, and the archive.
    archives: Vec<(u64, u16)>,
    bytes: u64,
    content: u64,
    times: u64,
    /// The latest modification time of a file, in nanoseconds; `None` for the members of archives.
    newest: Option<i128>,
    left_out: Vec<LeftOut>,
}

/// An image in a format that is not packed. It is not in the plan, but may be copied to quarantine.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct LeftOut {
    key: Vec<u8>,
    size: u64,
    place: Option<MemberLocation>,
}

/// Builds a [`FileList`].
#[derive(Debug, Default)]
pub struct FileListBuilder {
    chunk: FileList,
    /// Hash of keys and sizes.
    content: blake3::Hasher,
    /// Hash of the modification times.
    times: blake3::Hasher,
}

/// Number of files between marks. The start of a name is the last mark plus the lengths of the names since.
const MARK_FILES: usize = 64;

/// Numbers that are nearly always small. A file takes little more than five bytes in addition to its name.
#[derive(Debug, Serialize, Deserialize)]
struct CompactNumbers<T> {
    /// Narrow values; the largest value of the type means that the number is in `wide`.
    values: Vec<T>,
    wide: BTreeMap<usize, u64>,
}

impl<T> Default for CompactNumbers<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            wide: BTreeMap::new(),
        }
    }
}

impl<T: Copy + TryFrom<u64> + Into<u64>> CompactNumbers<T> {
    const MARK: u64 = (1 << (8 * size_of::<T>())) - 1;

    fn push(&mut self, number: u64) {
        let narrow = number.min(Self::MARK);
        if narrow == Self::MARK {
            self.wide.insert(self.values.len(), number);
        }
        // The mark is the largest value of the type, so the conversion succeeds.
        self.values.extend(T::try_from(narrow));
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the sum of all numbers; `None` if it is too large.
    fn sum(&self) -> Option<u64> {
        let mut all = (0..self.len()).map(|index| self.get(index));
        all.try_fold(0u64, u64::checked_add)
    }

    fn get(&self, index: usize) -> u64 {
        match self.values[index].into() {
            number if number == Self::MARK => self.wide.get(&index).copied().unwrap_or(number),
            number => number,
        }
    }
}

impl FileListBuilder {
    /// Begins the files of a class directory; an empty name stands for a flat split.
    pub fn new(name: &[u8]) -> Self {
        Self {
            chunk: FileList {
                name: name.to_vec(),
                ..FileList::default()
            },
            ..Self::default()
        }
    }

    /// Starts a directory: the files that are pushed from now on are in it.
    pub fn enter(&mut self, dir: &[u8]) {
        let chunk = &mut self.chunk;
        chunk.dir_bytes.extend_from_slice(dir);
        chunk
            .dirs
            .push((chunk.dir_bytes.len() as u64, chunk.files()));
        // Neither directories nor file names contain NUL bytes, so the hashed bytes are unambiguous.
        self.content.update(dir).update(b"\0\0");
    }

    /// Adds a file of the directory that was entered last, with its modification time in nanoseconds.
    pub(crate) fn push_file(&mut self, name: &[u8], size: u64, modified: i128) {
        let newest = &mut self.chunk.newest;
        *newest = Some(newest.map_or(modified, |newest| newest.max(modified)));
        self.push(name, size, modified);
    }

    fn push(&mut self, name: &[u8], size: u64, modified: i128) {
        let chunk = &mut self.chunk;
        debug_assert!(
            !chunk.dirs.is_empty(),
            "a directory is entered before its files come"
        );
        if chunk.files().is_multiple_of(MARK_FILES as u64) {
            chunk.name_marks.push(chunk.name_bytes.len() as u64);
        }
        chunk.name_bytes.extend_from_slice(name);
        chunk.name_lens.push(name.len() as u64);
        chunk.sizes.push(size);
        // Sizes in a hostile archive or store may be arbitrary.
        chunk.bytes = chunk.bytes.saturating_add(size);
        self.content
            .update(name)
            .update(b"\0")
            .update(&size.to_le_bytes());
        self.times.update(&modified.to_le_bytes());
    }

    /// Adds a file of an archive.
    pub(crate) fn push_at(&mut self, name: &[u8], size: u64, place: MemberLocation) {
        // Modification times of members are not hashed; the time of the archive is.
        let chunk = &mut self.chunk;
        if chunk
            .archives
            .last()
            .is_none_or(|(_, last)| *last != place.archive)
        {
            chunk.archives.push((chunk.files(), place.archive));
        }
        chunk.offsets.push(place.offset);
        self.push(name, size, 0);
    }

    /// Records an image that cannot be packed, for the quarantine.
    pub(crate) fn leave_out(&mut self, key: Vec<u8>, size: u64, place: Option<MemberLocation>) {
        self.chunk.left_out.push(LeftOut { key, size, place });
    }

    /// Records the images that another list left out.
    pub fn leave_out_all_of(&mut self, chunk: &FileList) {
        self.chunk.left_out.extend_from_slice(&chunk.left_out);
    }

    /// Takes over when the files of another list changed.
    pub fn changed_as(&mut self, chunk: &FileList) {
        self.changed_at(i128::from(chunk.times));
        self.chunk.newest = chunk.newest;
    }

    /// Adds the modification time of an archive to the hash.
    pub(crate) fn changed_at(&mut self, modified: i128) {
        self.times.update(&modified.to_le_bytes());
    }

    /// Adds a file of another list.
    pub fn push_entry(&mut self, entry: &EntryRef<'_>) {
        match entry.place {
            Some(place) => self.push_at(entry.name, entry.size, place),
            None => self.push(entry.name, entry.size, 0),
        }
    }

    /// Returns the files.
    pub fn finish(self) -> FileList {
        let mut chunk = self.chunk;
        chunk.name_bytes.shrink_to_fit();
        chunk.name_lens.values.shrink_to_fit();
        chunk.name_marks.shrink_to_fit();
        chunk.sizes.values.shrink_to_fit();
        chunk.offsets.shrink_to_fit();
        // The operating system lists names in arbitrary order.
        chunk.left_out.sort_by(|a, b| a.key.cmp(&b.key));
        chunk.content = digest(&self.content);
        chunk.times = digest(&self.times);
        chunk
    }
}

impl FileList {
    /// Returns the class directory; empty for a flat split.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the archives that contain the files, one for each run of files.
    pub fn archives(&self) -> impl Iterator<Item = u16> + '_ {
        self.archives.iter().map(|(_, archive)| *archive)
    }

    /// Returns the number of files.
    pub fn files(&self) -> u64 {
        self.sizes.values.len() as u64
    }

    /// Returns the total size of the files in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns file number `index`. Panics beyond the end, as a slice does.
    pub fn get(&self, index: u64) -> EntryRef<'_> {
        let dir = self.dirs.partition_point(|(_, first)| *first <= index) - 1;
        let dir_start = if dir == 0 { 0 } else { self.dirs[dir - 1].0 };
        let index = index as usize;
        let mark = index / MARK_FILES;
        let since = (mark * MARK_FILES..index).map(|before| self.name_lens.get(before));
        let name_start = self.name_marks[mark] + since.sum::<u64>();
        let name_end = name_start + self.name_lens.get(index);
        EntryRef {
            dir: &self.dir_bytes[dir_start as usize..self.dirs[dir].0 as usize],
            name: &self.name_bytes[name_start as usize..name_end as usize],
            size: self.sizes.get(index),
            class: self.class,
            place: self.offsets.get(index).map(|offset| MemberLocation {
                archive: self.archive_of(index as u64),
                offset: *offset,
            }),
            extras: Extras::default(),
        }
    }

    /// Returns the latest modification time of a file, in nanoseconds since 1970; `None` for the members of archives.
    pub fn newest(&self) -> Option<i128> {
        self.newest
    }

    /// Returns whether a list that was read from a file is consistent, with members of `archives` archives.
    pub fn is_sound(&self, archives: usize) -> bool {
        let files = self.sizes.len();
        let mut at = 0;
        let marks = (0..files).filter_map(|index| {
            let mark = index.is_multiple_of(MARK_FILES).then_some(at);
            at += self.name_lens.get(index);
            mark
        });
        let is_ascending = |runs: &mut dyn Iterator<Item = u64>| runs.is_sorted();
        let begins = |first: Option<u64>| files == 0 || first == Some(0);
        self.name_lens.len() == files
            && self.name_lens.sum() == Some(self.name_bytes.len() as u64)
            && self.name_marks.iter().copied().eq(marks)
            && begins(self.dirs.first().map(|(_, first)| *first))
            && is_ascending(&mut self.dirs.iter().map(|(_, first)| *first))
            && is_ascending(&mut self.dirs.iter().map(|(end, _)| *end))
            && self.dirs.last().map_or(0, |(end, _)| *end) == self.dir_bytes.len() as u64
            && match self.offsets.len() {
                0 => archives == 0 || files == 0,
                offsets => {
                    offsets == files && begins(self.archives.first().map(|(first, _)| *first))
                }
            }
            && is_ascending(&mut self.archives.iter().map(|(first, _)| *first))
            && self
                .archives
                .iter()
                .all(|(_, archive)| usize::from(*archive) < archives)
            && self.left_out.iter().all(|left| match left.place {
                Some(place) => usize::from(place.archive) < archives,
                None => archives == 0 && is_below(&left.key),
            })
            && (archives > 0 || (0..files as u64).all(|index| is_below(&self.get(index).key())))
    }

    fn archive_of(&self, index: u64) -> u16 {
        let run = self.archives.partition_point(|(first, _)| *first <= index) - 1;
        self.archives[run].1
    }

    /// Returns the images that were left out because of their format. Their names are full keys.
    pub fn left_out(&self) -> impl Iterator<Item = EntryRef<'_>> {
        self.left_out.iter().map(|left| EntryRef {
            dir: b"",
            name: &left.key,
            size: left.size,
            class: None,
            place: left.place,
            extras: Extras::default(),
        })
    }

    /// Returns the digest of keys and sizes.
    pub fn content_digest(&self) -> u64 {
        self.content
    }

    /// Returns the digest of the modification times.
    pub fn times_digest(&self) -> u64 {
        self.times
    }
}

/// 64 bits suffice: the digests detect accidental changes, and an attacker gains nothing by forging one.
fn digest(hasher: &blake3::Hasher) -> u64 {
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Returns why a file is too large for a record. Such a file is left out of the plan: a sparse file of 100 GiB would fail the
/// check for free space.
pub(super) fn too_large(size: u64) -> Option<String> {
    (size > MAX_RECORD_BYTES).then(|| format!("{size} bytes, a record holds {MAX_RECORD_BYTES}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_entries_are_returned_unchanged() {
        let mut chunk = FileListBuilder::new(b"c");
        chunk.enter(b"c");
        chunk.push(b"one.jpg", 1, 0);
        chunk.push(b"two\xff.jpg", u64::MAX >> 8, 0);
        chunk.enter(b"c/empty");
        chunk.enter(b"c/deep");
        chunk.push(b"x", 0, 0);
        let chunk = chunk.finish();
        let keys: Vec<_> = (0..chunk.files()).map(|i| chunk.get(i).key()).collect();
        assert_eq!(
            keys,
            [
                b"c/one.jpg".to_vec(),
                b"c/two\xff.jpg".to_vec(),
                b"c/deep/x".to_vec()
            ]
        );
        assert_eq!(chunk.get(1).size, u64::MAX >> 8);
    }

    #[test]
    fn long_names_and_large_files_are_returned() {
        let name = |n: usize| vec![b'a' + (n % 26) as u8; [1, 254, 255, 256, 70_000][n % 5]];
        let size = |n: usize| u64::from(u32::MAX) - 2 + n as u64 % 5;
        let mut chunk = FileListBuilder::new(b"c");
        for n in 0..1000 {
            if n % 130 == 0 {
                chunk.enter(format!("c/{n}").as_bytes());
            }
            chunk.push(&name(n), size(n), 0);
        }
        let chunk = chunk.finish();
        for n in 0..1000 {
            let entry = chunk.get(n as u64);
            assert_eq!(entry.dir, format!("c/{}", n / 130 * 130).as_bytes());
            assert!(entry.name == name(n) && entry.size == size(n), "{n}");
        }
    }

    #[test]
    fn digests_depend_on_names_sizes_and_times() {
        let one = |name: &[u8], size, time| {
            let mut chunk = FileListBuilder::new(b"c");
            chunk.enter(b"c");
            chunk.push(name, size, time);
            let chunk = chunk.finish();
            (chunk.content_digest(), chunk.times_digest())
        };
        let base = one(b"a", 1, 1);
        assert_eq!(base, one(b"a", 1, 1));
        assert_ne!(base.0, one(b"b", 1, 1).0);
        assert_ne!(base.0, one(b"a", 2, 1).0);
        assert_eq!(base.0, one(b"a", 1, 2).0);
        assert_ne!(base.1, one(b"a", 1, 2).1);
    }
}
