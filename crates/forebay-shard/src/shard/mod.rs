//! One shard of either format: random access by record number.
//!
//! [`Shard::byte_range`] and [`Shard::decode`] do no IO; positioned reads of its [`Storage`] are
//! built on top of them.

mod decode;
mod format;
mod frame_io;
mod options;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Corruption, Error, Records, Result};
use crate::frame::OVERHEAD_BYTES;
use crate::index::{self, FileKind, Found, Index, Page, page_records};
use crate::mapped::{MappedFile, Source, SourceFile};
use crate::record_block::RecordBlock;
use crate::storage::{self, Ahead, ReadAt, Storage};
use crate::tfrecord;

pub(crate) use decode::{expand_block, indexed_block_limit};
pub use format::{ShardFormat, find_sidecar};
pub(crate) use format::{detect_format, find_sidecar_in};
use frame_io::{check_split_frame, read_frame_at};
pub(crate) use options::Checks;
pub use options::ShardOptions;

/// An open shard. Cloning is cheap, and threads may share it.
///
/// ```
/// use forebay_shard::{RecordMeta, Shard, indexed};
///
/// # let directory = tempfile::tempdir()?;
/// let path = directory.path().join("train-00000-of-00001.fbs");
/// let file = std::fs::File::create(&path)?;
/// let mut writer = indexed::WriterBuilder::new().from_writer(file, &path)?;
/// writer.append(b"first", &RecordMeta::new(3, b"cat/1.jpeg"))?;
/// writer.append(b"second", &RecordMeta::new(4, b"dog/1.jpeg"))?;
/// writer.finish()?;
///
/// let shard = Shard::open(&path)?;
/// let mut record = Vec::new();
/// shard.read(1, &mut record)?;
/// assert_eq!(record, b"second");
/// assert_eq!((shard.label(1), shard.key(1)?), (Some(4), b"dog/1.jpeg".to_vec()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Shard {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// The file that holds the index.
    index_path: Option<PathBuf>,
    format: ShardFormat,
    file_len: u64,
    index: Index,
    checks: Checks,
    storage: Arc<dyn Storage>,
    /// The file that contains the records of a mapped shard.
    source: Option<Arc<SourceFile>>,
}

/// Advice to the storage about a byte range.
enum Advice {
    Forget,
    WillNeed,
}

impl Shard {
    /// Opens a shard in the format detected from its first bytes, with the sidecar `index/NAME.fbi` or `index/NAME.idx`
    /// beside it, if any.
    ///
    /// # Errors
    /// If the file or its index cannot be read or is damaged, or they do not belong together.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(path)
    }

    /// Options for opening a shard: a storage, a known format, a limit for records.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use forebay_shard::{Shard, storage::MemoryStorage, tfrecord};
    /// # let mut writer = tfrecord::WriterBuilder::new().from_writer(Vec::new(), "a");
    /// # writer.write(b"record")?;
    /// # let (bytes, _) = writer.finish()?;
    /// let storage = MemoryStorage::from_iter([("train-00000-of-00001", bytes)]);
    /// let options = Shard::options().storage(Arc::new(storage)).max_record(1 << 20);
    /// let shard = options.open("train-00000-of-00001")?;
    /// assert_eq!(shard.len(), 1);
    /// # Ok::<(), forebay_shard::Error>(())
    /// ```
    pub fn options() -> ShardOptions {
        ShardOptions::default()
    }

    /// Opens a shard whose format and sidecar are known.
    pub(crate) fn open_in(
        path: &Path,
        format: ShardFormat,
        sidecar: Option<&Path>,
        checks: Checks,
        storage: Arc<dyn Storage>,
    ) -> Result<Self> {
        if format == ShardFormat::Mapped {
            return Err(Error::Unsupported {
                path: path.to_owned(),
                problem: "is a mapped shard: open its dataset, whose manifest has the location of the records".to_owned(),
            });
        }
        let file_len = storage::open(&*storage, path)?.len();
        let (index, index_path) = match (format, sidecar) {
            (ShardFormat::Mapped, _) | (ShardFormat::Indexed, _) => {
                let index = read_index(&*storage, path, FileKind::Shard, checks.max_record)?;
                (index, Some(path.to_owned()))
            }
            (ShardFormat::TfRecord, Some(sidecar)) if has_extension(sidecar, "idx") => {
                let text = storage::read_whole(&*storage, sidecar, MAX_IDX_BYTES, "a text index")?;
                let index = index::parse_idx(sidecar, &text, file_len)?;
                index.check_lengths(sidecar, checks.max_record)?;
                (index.into_index(None), None)
            }
            (ShardFormat::TfRecord, Some(sidecar)) => {
                let index = read_index(&*storage, sidecar, FileKind::Sidecar, checks.max_record)?;
                (index, Some(sidecar.to_owned()))
            }
            (ShardFormat::TfRecord, None) => (
                tfrecord::scan_heads(&*storage, path, checks.max_record)?.into_index(None),
                None,
            ),
        };
        if format == ShardFormat::TfRecord && index.data_len() != file_len {
            return Err(Error::Mismatch {
                path: path.to_owned(),
                what: "length of the file (its index is stale, or another file's)".to_owned(),
                expected: format!("{} bytes as the index says", index.data_len()),
                found: format!("{file_len} bytes"),
            });
        }
        let inner = Inner {
            path: path.to_owned(),
            index_path,
            format,
            file_len,
            index,
            checks,
            storage,
            source: None,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Opens a mapped shard, whose records are in a file of `source`.
    ///
    /// # Errors
    /// As [`open`](Self::open); if the source cannot be opened or has another length.
    pub(crate) fn open_mapped(
        path: &Path,
        checks: Checks,
        storage: Arc<dyn Storage>,
        source: Source,
    ) -> Result<Self> {
        let file_len = storage::open(&*storage, path)?.len();
        let index = read_index(&*storage, path, FileKind::Map, checks.max_record)?;
        let map = index.map.clone();
        let map = map.ok_or_else(|| Error::invalid("a mapped shard without a map"))?;
        let inner = Inner {
            path: path.to_owned(),
            index_path: Some(path.to_owned()),
            format: ShardFormat::Mapped,
            file_len,
            index,
            checks,
            storage,
            source: Some(Arc::new(SourceFile::open(source, map)?)),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the path of the file that contains the records of a mapped shard.
    pub fn source_path(&self) -> Option<&Path> {
        self.inner.source.as_deref().map(SourceFile::path)
    }

    /// Returns the number of records.
    pub fn len(&self) -> u64 {
        self.inner.index.len()
    }

    /// Returns whether it has no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the shard's format.
    pub fn format(&self) -> ShardFormat {
        self.inner.format
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns the size of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.inner.file_len
    }

    /// Returns the index of the records.
    pub fn index(&self) -> &Index {
        &self.inner.index
    }

    /// Returns the label of a record, if the index has one.
    pub fn label(&self, record: u64) -> Option<i64> {
        self.inner.index.label(record)
    }

    /// Returns the payload length of a record; `None` beyond the last.
    pub fn record_len(&self, record: u64) -> Option<u64> {
        self.inner.index.record_len(record)
    }

    /// Returns the key of a record, read from storage; empty if the index has no keys.
    ///
    /// # Errors
    /// If the record does not exist, or its page of keys cannot be read.
    pub fn key(&self, record: u64) -> Result<Vec<u8>> {
        self.check_range(&(record..record.saturating_add(1)))?;
        let page = record / index::KEY_PAGE_RECORDS;
        let within = (record % index::KEY_PAGE_RECORDS) as usize;
        let mut key = Vec::new();
        self.read_key_page(page, |page| {
            if let Some(found) = page.iter().nth(within) {
                key.extend_from_slice(found);
            }
        })?;
        Ok(key)
    }

    /// Calls `each` with the number and the key of every record, in order. Makes no call if the index has no
    /// keys.
    ///
    /// # Errors
    /// If a page of keys cannot be read.
    pub fn for_each_key(&self, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
        let inner = &*self.inner;
        if let (Some(keys), Some(path)) = (&inner.index.keys, &inner.index_path) {
            let file = storage::open(&*inner.storage, path)?;
            let mut ahead = key_pages(&file, &*inner.storage, keys);
            for page in 0..index::pages(self.len()) {
                if let Some(start) = keys.directory.get(page as usize) {
                    ahead.advance(keys.offset + start);
                }
                let first = page * index::KEY_PAGE_RECORDS;
                self.read_key_page(page, |keys| {
                    keys.iter()
                        .zip(first..)
                        .for_each(|(key, record)| each(record, key));
                })?;
            }
        }
        Ok(())
    }

    /// Returns the first record with this key.
    ///
    /// # Errors
    /// If a page of keys cannot be read.
    pub fn find_key(&self, key: &[u8]) -> Result<Option<u64>> {
        let mut found = None;
        self.for_each_key(|record, candidate| {
            if candidate == key {
                found = found.or(Some(record));
            }
        })?;
        Ok(found)
    }

    fn read_key_page(&self, page: u64, with: impl FnOnce(&Page<'_>)) -> Result<()> {
        let inner = &*self.inner;
        let (Some(keys), Some(path)) = (&inner.index.keys, &inner.index_path) else {
            return Ok(());
        };
        let at = page as usize;
        let (Some(&start), Some(&end)) = (keys.directory.get(at), keys.directory.get(at + 1))
        else {
            return Ok(());
        };
        let records = page_records(page, self.len());
        let most = 4 + records * (4 + index::MAX_KEY_BYTES as u64);
        let offset = keys.offset + start;
        if end - start > most {
            let expected = format_args!("at most {most} bytes");
            let long = Corruption::new(offset, "key page", expected, end - start);
            return Err(long.shard(path).into());
        }
        let mut bytes = vec![0; (end - start) as usize];
        let file = storage::open(&*inner.storage, path)?;
        storage::read_exact_at(&*file, path, &mut bytes, offset)?;
        with(&Page::parse(&bytes, records, offset).map_err(|damage| damage.shard(path))?);
        Ok(())
    }

    fn check_range(&self, records: &Range<u64>) -> Result<()> {
        if records.end > self.len() {
            return Err(Error::OutOfRange {
                within: Records::Shard(self.inner.path.clone()),
                record: records.start.max(self.len()),
                records: self.len(),
            });
        }
        Ok(())
    }

    /// Returns the byte range that is needed to decode these records: their frames, or whole blocks if
    /// these are compressed.
    ///
    /// # Errors
    /// If the records do not exist.
    pub fn byte_range(&self, records: Range<u64>) -> Result<Range<u64>> {
        self.check_range(&records)?;
        self.inner.index.byte_range(records)
    }

    /// Decodes records from the bytes of [`byte_range`](Self::byte_range), which the caller has put
    /// into [`RecordBlock::stored_mut`]. Verifies every checksum involved.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the bytes are damaged or fewer than needed.
    pub fn decode(&self, records: Range<u64>, out: &mut RecordBlock) -> Result<()> {
        let base = self.byte_range(records.clone())?.start;
        out.clear(records.start);
        out.is_verified = self.inner.checks.verify;
        let result = self.decode_frames(records, base, out);
        result.map_err(|damage| self.damaged(damage))
    }

    /// Reads records from the file.
    ///
    /// # Errors
    /// If the records do not exist, or the file cannot be read or is damaged.
    pub fn read_range(&self, records: Range<u64>, out: &mut RecordBlock) -> Result<()> {
        let bytes = self.byte_range(records.clone())?;
        let len = usize::try_from(bytes.end - bytes.start)
            .map_err(|_| Error::invalid("more bytes at once than memory can hold"))?;
        let file = self.file()?;
        storage::read_exact_at(&*file, &self.inner.path, out.stored_mut(len), bytes.start)?;
        self.decode(records, out)
    }

    /// Advises the system that the bytes of records will not be read again soon, so that its page
    /// cache can evict them. Without system support this has no effect.
    ///
    /// # Errors
    /// If the records do not exist, or the file cannot be opened.
    pub fn forget_range(&self, records: Range<u64>) -> Result<()> {
        self.advise(records, Advice::Forget)
    }

    /// Advises the system to start reading the bytes of records, and returns immediately. Without
    /// system support this has no effect.
    ///
    /// # Errors
    /// If the records do not exist, or the file cannot be opened.
    pub fn will_need_range(&self, records: Range<u64>) -> Result<()> {
        self.advise(records, Advice::WillNeed)
    }

    fn advise(&self, records: Range<u64>, advice: Advice) -> Result<()> {
        let bytes = self.byte_range(records)?;
        let file = self.file()?;
        match advice {
            Advice::Forget => file.forget(bytes),
            Advice::WillNeed => file.will_need(bytes),
        }
        Ok(())
    }

    /// Reads one record, replacing the content of `out`. From a raw block or a TFRecord file, only
    /// the record itself is read and verified. After an error the content of `out` is undefined.
    ///
    /// # Errors
    /// If the record does not exist, or the file cannot be read or is damaged.
    pub fn read(&self, record: u64, out: &mut Vec<u8>) -> Result<()> {
        self.check_range(&(record..record.saturating_add(1)))?;
        let Some(frame) = self.inner.index.raw_frame(record) else {
            let mut block = RecordBlock::default();
            self.read_range(record..record + 1, &mut block)?;
            out.clear();
            out.extend_from_slice(block.get(0));
            return Ok(());
        };
        let len = (frame.end - frame.start) as usize - OVERHEAD_BYTES;
        let file = self.file()?;
        let mut ends = [0; OVERHEAD_BYTES];
        // Existing bytes are overwritten, not zeroed again.
        out.resize(len, 0);
        let read = read_frame_at(&*file, &mut ends, out, frame.start)
            .map_err(|error| Error::io(&self.inner.path, "read", error))?;
        let checked = check_split_frame(&ends, out, read, frame.start, self.inner.checks.verify);
        checked.map_err(|damage| self.damaged(damage.record(record)))
    }

    /// Returns the storage of the records.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        match &self.inner.source {
            Some(source) => source.storage(),
            None => &self.inner.storage,
        }
    }

    /// Opens the file that contains the frames.
    pub(crate) fn file(&self) -> Result<Arc<dyn ReadAt>> {
        let file = storage::open(&*self.inner.storage, &self.inner.path)?;
        let Some(source) = &self.inner.source else {
            return Ok(file);
        };
        Ok(Arc::new(self.mapped(file, source)))
    }

    fn mapped(&self, shard: Arc<dyn ReadAt>, source: &Arc<SourceFile>) -> MappedFile {
        let frames = &self.inner.index.offsets;
        MappedFile {
            shard,
            source: Arc::clone(source),
            len: frames.start(frames.records()).unwrap_or(0),
        }
    }

    /// Adds the path of the file, or for bytes in the source of a mapped shard the path and offset of the source.
    fn damaged(&self, mut damage: Corruption) -> Error {
        let inner = &*self.inner;
        if let Some(source) = &inner.source
            && let Ok(file) = storage::open(&*inner.storage, &inner.path)
        {
            let frame = damage
                .record
                .and_then(|record| inner.index.offsets.frame(record));
            let frames = frame.unwrap_or(damage.offset..damage.offset + 1);
            let offset = self.mapped(file, source).source_offset(frames);
            damage.what += &match offset {
                Some(offset) => format!(
                    " of bytes from offset {offset} of {}",
                    source.path().display()
                ),
                None => format!(" of bytes from {}", source.path().display()),
            };
        }
        damage.shard(&inner.path).into()
    }
}

/// Iterates over all pages of keys.
pub(crate) fn key_pages(
    file: &Arc<dyn ReadAt>,
    storage: &dyn Storage,
    keys: &index::KeyPlace,
) -> Ahead {
    let end = keys.offset + keys.directory.last().copied().unwrap_or(0);
    Ahead::new(file, storage.read_profile(), keys.offset, end)
}

/// Size limit of a text index in bytes, enough for some ten million records.
const MAX_IDX_BYTES: u64 = 256 << 20;

/// Reads the index from the end of a file.
pub(crate) fn read_index(
    storage: &dyn Storage,
    path: &Path,
    kind: FileKind,
    max_record: u64,
) -> Result<Index> {
    let file = storage::open(storage, path)?;
    let len = file.len();
    let mut from = len.saturating_sub(storage.read_profile().tail_bytes);
    loop {
        let mut suffix = vec![0; (len - from) as usize];
        storage::read_exact_at(&*file, path, &mut suffix, from)?;
        match index::parse_suffix(path, kind, len, max_record, &suffix)? {
            Found::Index(index) => return Ok(*index),
            Found::Need(range) if range.start < from => from = range.start,
            Found::Need(_) => return Err(Error::invalid("an index that is never complete")),
        }
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}
