//! A storage of local files that decompresses compressed TFRecord files.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::Compression;
use crate::compress::Decoder;
use crate::storage::{LocalFiles, ReadAt, Storage};

/// Maximum number of decoders kept per file, each at a different position.
const STREAMS_MAX: usize = 8;
/// Bytes decoded and discarded per step.
const SKIP_BYTES: usize = 64 << 10;
/// Number of bytes at the start of a file that identify its compression.
const START_BYTES: u64 = 12;

/// Local files; GZIP and ZLIB files appear with their decompressed bytes and length.
///
/// Opening a file decompresses it once to determine and verify its length, and reading it sequentially decompresses it a
/// second time. Reading backwards starts over. Memory is limited to a few buffers.
#[derive(Debug)]
pub struct ExpandedFiles {
    plain: LocalFiles,
    expanded: Mutex<HashMap<PathBuf, Arc<ExpandedFile>>>,
}

impl Default for ExpandedFiles {
    fn default() -> Self {
        Self {
            plain: LocalFiles::within_limits(),
            expanded: Mutex::default(),
        }
    }
}

impl Storage for ExpandedFiles {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        let known = self.expanded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = known.get(path) {
            return Ok(Arc::<ExpandedFile>::clone(file));
        }
        drop(known);
        let compression = compression_of(path)?;
        if compression == Compression::None {
            return self.plain.open(path);
        }
        let file = Arc::new(ExpandedFile::open(path, compression)?);
        let mut known = self.expanded.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(path.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.plain.exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.plain.list(dir)
    }
}

fn compression_of(path: &Path) -> io::Result<Compression> {
    let mut start = Vec::new();
    File::open(path)?
        .take(START_BYTES)
        .read_to_end(&mut start)?;
    Ok(Compression::detect(&start))
}

/// A compressed file that is presented uncompressed.
struct ExpandedFile {
    path: PathBuf,
    compression: Compression,
    len: u64,
    streams: Mutex<Vec<Stream>>,
}

struct Stream {
    decoder: Decoder<File>,
    position: u64,
}

impl fmt::Debug for ExpandedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpandedFile")
            .field("path", &self.path)
            .field("compression", &self.compression)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl ExpandedFile {
    fn open(path: &Path, compression: Compression) -> io::Result<Self> {
        let mut file = Self {
            path: path.to_owned(),
            compression,
            len: 0,
            streams: Mutex::default(),
        };
        file.len = io::copy(&mut file.begin()?.decoder, &mut io::sink())?;
        Ok(file)
    }

    fn begin(&self) -> io::Result<Stream> {
        let decoder = Decoder::new(self.compression, File::open(&self.path)?)?;
        Ok(Stream {
            decoder,
            position: 0,
        })
    }

    /// Returns the stream with the closest position at or before an offset, or a new stream.
    fn stream_before(&self, offset: u64) -> io::Result<Stream> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let before = streams.iter().enumerate();
        let before = before.filter(|(_, stream)| stream.position <= offset);
        match before.max_by_key(|(_, stream)| stream.position) {
            Some((at, _)) => Ok(streams.swap_remove(at)),
            None => {
                drop(streams);
                self.begin()
            }
        }
    }
}

impl ReadAt for ExpandedFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut stream = self.stream_before(offset)?;
        let mut skipped = vec![0; SKIP_BYTES.min((offset - stream.position) as usize)];
        while stream.position < offset {
            let len = skipped.len().min((offset - stream.position) as usize);
            stream.decoder.read_exact(&mut skipped[..len])?;
            stream.position += len as u64;
        }
        stream.decoder.read_exact(buf)?;
        stream.position += buf.len() as u64;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.len() == STREAMS_MAX {
            // Evicts the stream that is cheapest to create again: the one that is closest to the start.
            let least = streams.iter().enumerate();
            if let Some((at, _)) = least.min_by_key(|(_, stream)| stream.position) {
                streams.swap_remove(at);
            }
        }
        streams.push(stream);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shard;
    use crate::tfrecord::WriterBuilder;

    #[test]
    fn compressed_files_give_the_same_records_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let record = |number: u32| number.to_le_bytes().repeat(5000);
        for compression in [Compression::None, Compression::Gzip, Compression::Zlib] {
            let path = dir.path().join(compression.name());
            let mut builder = WriterBuilder::new();
            builder.compression(compression);
            let mut writer = builder.from_writer(File::create(&path).unwrap(), &path);
            (0..50).for_each(|number| {
                writer.write(&record(number)).unwrap();
            });
            writer.finish().unwrap();
            let storage = Arc::new(ExpandedFiles::default());
            let shard = Shard::options().storage(storage).open(&path).unwrap();
            assert_eq!(shard.len(), 50, "{compression}");
            let mut scan = shard.scan(0..50);
            let mut number = 0;
            while let Some(found) = scan.next_record().unwrap() {
                assert_eq!(found.bytes, record(number), "{compression} {number}");
                number += 1;
            }
            let mut found = Vec::new();
            for number in [49, 3, 17, 2, 48] {
                shard.read(number, &mut found).unwrap();
                assert_eq!(found, record(number as u32), "{compression} {number}");
            }
            // Damaged and truncated files are errors.
            if compression != Compression::None {
                let bytes = std::fs::read(&path).unwrap();
                let cut = dir.path().join("cut");
                std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
                let storage = Arc::new(ExpandedFiles::default());
                assert!(Shard::options().storage(storage).open(&cut).is_err());
            }
        }
    }
}
