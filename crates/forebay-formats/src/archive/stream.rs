//! Reads an archive from beginning to end, and skips data that is not needed.
//!
//! Skipping by offset in a plain file costs nothing in the page cache or on a flash disk. On storage with a high latency per
//! read, sequential reading is faster. The stream measures which one applies. A compressed stream is always decoded
//! sequentially.

use super::ArchiveKind;
use super::bytes::ArchiveFile;
use super::read_ahead::{ReadAhead, Sequential};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes per read when skipping by offset: a header and the beginning of the data.
const PEEK_BYTES: usize = 4 << 10;
/// Bytes per sequential read: enough for a network file system to reach full speed.
const SEQUENTIAL_BYTES: usize = 1 << 20;
/// Number of reads after which their time decides between skipping and sequential reading.
const DECIDE_READS: u32 = 64;
/// Mean time per read above which the stream switches to sequential reading. A read takes a few microseconds from the page
/// cache, 100 from a flash disk, and milliseconds from storage that benefits from sequential reading.
const SLOW_READ: Duration = Duration::from_micros(300);
/// Gaps longer than this are always skipped by offset.
const LONG_SKIP_BYTES: u64 = 64 << 20;
/// Size of the input buffer of decoders.
const DECODER_INPUT_BYTES: usize = 256 << 10;
/// Largest window, 128 MiB: the default limit of the zstd tool.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// An archive that is read forward. Positions are offsets in the decoded bytes.
pub(crate) struct Stream {
    input: Input,
    position: u64,
    compressed: Option<Compressed>,
}

/// Progress of reading a compressed archive.
enum Compressed {
    /// Its position is the offset of the open file.
    File(Arc<File>),
    /// The position, and the length of the object.
    Object(Arc<AtomicU64>, u64),
}

enum Input {
    File(Forward),
    Object(ReadAhead),
    Decoded(Box<dyn Read + Send>),
}

/// A file with a read buffer.
struct Forward {
    file: Arc<File>,
    len: u64,
    buffer: Vec<u8>,
    /// Offset of the first byte of the buffer.
    start: u64,
    sequential: bool,
    reads: u32,
    time: Duration,
}

impl Stream {
    /// Opens a stream that decodes `file` as `kind`; a zip archive is not decoded.
    pub(crate) fn new(file: ArchiveFile, kind: ArchiveKind) -> io::Result<Self> {
        let is_plain = matches!(kind, ArchiveKind::Tar | ArchiveKind::Zip { .. });
        let (input, compressed) = match file {
            ArchiveFile::Local(file, len) if is_plain => {
                let forward = Forward {
                    file,
                    len,
                    buffer: Vec::new(),
                    start: 0,
                    sequential: false,
                    reads: 0,
                    time: Duration::ZERO,
                };
                (Input::File(forward), None)
            }
            ArchiveFile::Object(object) if is_plain => {
                (Input::Object(ReadAhead::new(object)), None)
            }
            ArchiveFile::Local(file, _) => {
                let known = Compressed::File(Arc::clone(&file));
                (decoded(file, kind)?, Some(known))
            }
            ArchiveFile::Object(object) => {
                let position = Arc::new(AtomicU64::new(0));
                let known = Compressed::Object(Arc::clone(&position), object.len());
                (
                    decoded(Sequential::new(object, position), kind)?,
                    Some(known),
                )
            }
        };
        Ok(Self {
            input,
            position: 0,
            compressed,
        })
    }

    /// Returns the position in the archive's file and the length of the file, to show progress.
    pub(crate) fn progress(&self) -> (u64, u64) {
        match (&self.input, &self.compressed) {
            (Input::File(file), _) => (self.position, file.len),
            (Input::Object(object), _) => (self.position, object.len()),
            // Without a file offset, no progress is shown.
            (Input::Decoded(_), Some(Compressed::File(file))) => {
                let mut file: &File = file;
                let len = file.metadata().map_or(0, |meta| meta.len());
                (file.stream_position().unwrap_or(0).min(len), len)
            }
            (Input::Decoded(_), Some(Compressed::Object(position, len))) => {
                (position.load(Ordering::Relaxed).min(*len), *len)
            }
            (Input::Decoded(_), None) => (0, 0),
        }
    }

    /// Returns the offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the length of the stream, if it is known without decoding.
    pub(crate) fn len(&self) -> Option<u64> {
        match &self.input {
            Input::File(file) => Some(file.len),
            Input::Object(object) => Some(object.len()),
            Input::Decoded(_) => None,
        }
    }

    /// Fills `out`, or fewer bytes at the end of the stream. Returns the number of bytes.
    pub(crate) fn fill(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < out.len() {
            let rest = &mut out[filled..];
            let read = match &mut self.input {
                Input::File(file) => file.read_at(self.position, rest)?,
                Input::Object(object) => object.read_at(self.position, rest)?,
                Input::Decoded(decoder) => match decoder.read(rest) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                },
            };
            if read == 0 {
                break;
            }
            filled += read;
            self.position += read as u64;
        }
        Ok(filled)
    }

    /// Skips to a position, which must not be before the current one. Returns false if the stream ends earlier.
    pub(crate) fn skip_to(&mut self, position: u64) -> io::Result<bool> {
        let by_position = match &mut self.input {
            Input::File(file) => {
                if position > file.len {
                    return Ok(false);
                }
                !file.sequential
                    || position - self.position.min(position) > LONG_SKIP_BYTES
                    || file.holds(position)
            }
            // Nearby data is already in flight and is discarded in memory.
            Input::Object(object) => {
                if position > object.len() {
                    return Ok(false);
                }
                true
            }
            Input::Decoded(_) => false,
        };
        if by_position {
            self.position = position;
        }
        let mut sink = [0; 16 << 10];
        while self.position < position {
            let step = (position - self.position).min(sink.len() as u64) as usize;
            if self.fill(&mut sink[..step])? < step {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the decoder of a compressed archive.
fn decoded(input: impl Read + Send + 'static, kind: ArchiveKind) -> io::Result<Input> {
    let input = io::BufReader::with_capacity(DECODER_INPUT_BYTES, input);
    Ok(Input::Decoded(match kind {
        ArchiveKind::TarZst => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(decoder)
        }
        _ => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
    }))
}

impl Forward {
    fn holds(&self, position: u64) -> bool {
        position >= self.start && position < self.start + self.buffer.len() as u64
    }

    fn read_at(&mut self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        if !self.holds(position) {
            // Large reads bypass the buffer.
            if !self.sequential && out.len() >= PEEK_BYTES {
                return retry(|| self.file.read_at(out, position));
            }
            self.refill(position)?;
        }
        let from = (position - self.start) as usize;
        let there = self.buffer.get(from..).unwrap_or_default();
        let count = there.len().min(out.len());
        out[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn refill(&mut self, position: u64) -> io::Result<()> {
        let room = if self.sequential {
            SEQUENTIAL_BYTES
        } else {
            PEEK_BYTES
        };
        self.buffer.resize(room, 0);
        let begin = Instant::now();
        let read = retry(|| self.file.read_at(&mut self.buffer, position));
        self.time += begin.elapsed();
        self.reads += 1;
        if self.reads == DECIDE_READS {
            // Once sequential, the stream stays so: fast reads are then a result of sequential reading.
            self.sequential |= self.time > SLOW_READ * DECIDE_READS;
            (self.reads, self.time) = (0, Duration::ZERO);
        }
        // After an error the buffer is empty.
        self.buffer.truncate(*read.as_ref().unwrap_or(&0));
        self.start = position;
        read.map(|_| ())
    }
}

fn retry(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes::Archive;
    use super::*;
    use std::io::Write;

    #[test]
    fn all_kinds_of_reading_give_the_same_bytes() {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        std::fs::write(&plain, &bytes).unwrap();
        let gz = dir.path().join("gz");
        let mut writer =
            flate2::write::GzEncoder::new(File::create(&gz).unwrap(), flate2::Compression::fast());
        writer.write_all(&bytes).unwrap();
        writer.finish().unwrap();
        let zst = dir.path().join("zst");
        std::fs::write(&zst, zstd::encode_all(bytes.as_slice(), 1).unwrap()).unwrap();
        for (path, kind, sequential) in [
            (&plain, ArchiveKind::Tar, false),
            (&plain, ArchiveKind::Tar, true),
            (&gz, ArchiveKind::TarGz, false),
            (&zst, ArchiveKind::TarZst, false),
        ] {
            let (file, _) = Archive::Local(path.clone()).open().unwrap();
            let mut stream = Stream::new(file, kind).unwrap();
            if let Input::File(file) = &mut stream.input {
                file.sequential = sequential;
            }
            let len = std::fs::metadata(path).unwrap().len();
            assert_eq!(stream.progress().1, len);
            let mut position = 0;
            let mut out = vec![0; 10_000];
            for step in [0, 1, 511, 5000, 90_000, 400_000, 3] {
                for len in [512usize, 16, 10_000] {
                    position += step;
                    assert!(stream.skip_to(position).unwrap());
                    let read = stream.fill(&mut out[..len]).unwrap();
                    let expected =
                        &bytes[position as usize..(position as usize + len).min(bytes.len())];
                    assert!(out[..read] == *expected, "{kind:?} {position}");
                    position += read as u64;
                    assert_eq!(stream.position(), position);
                }
            }
            assert!(stream.skip_to(3_000_000).unwrap());
            assert_eq!(stream.fill(&mut out).unwrap(), 0);
            assert_eq!(stream.progress(), (len, len), "{kind:?}");
            assert!(!stream.skip_to(3_000_001).unwrap());
        }
    }
}
