//! Reading an archive from its beginning to its end, skipping what is not needed.
//!
//! A plain file can be skipped by position, which costs nothing from a page cache or a flash disk; on storage where each
//! read takes long, reading on sequentially is faster. Which of both it is is measured. A compressed stream
//! has to be decoded in any case.

use super::VolumeKind;
use super::bytes::ArchiveFile;
use super::read_ahead::{ReadAhead, Sequential};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A header and the beginning of what follows it.
const PEEK_BYTES: usize = 4 << 10;
/// One sequential read: enough for a network file system to go at full speed.
const SEQUENTIAL_BYTES: usize = 1 << 20;
/// So many reads decide between both.
const DECIDE_READS: u32 = 64;
/// A read takes a few microseconds from the page cache, 100 from a flash disk, and milliseconds from what gains by
/// sequential reading.
const SLOW_READ: Duration = Duration::from_micros(300);
/// Longer gaps are skipped by position in any case.
const LONG_SKIP_BYTES: u64 = 64 << 20;
/// Decoders get their input in pieces of this size.
const DECODER_INPUT_BYTES: usize = 256 << 10;
/// Windows of up to 128 MiB, as the zstd tool takes without being told to.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// An archive that is read forward. Positions are those of the decoded bytes.
pub(crate) struct Stream {
    input: Input,
    position: u64,
    compressed: Option<Compressed>,
}

/// How much of a compressed archive the decoder has taken.
enum Compressed {
    /// As the file's offset tells.
    File(Arc<File>),
    /// With the length.
    Object(Arc<AtomicU64>, u64),
}

enum Input {
    File(Forward),
    Object(ReadAhead),
    Decoded(Box<dyn Read + Send>),
}

/// A file with a buffer for headers.
struct Forward {
    file: Arc<File>,
    len: u64,
    buffer: Vec<u8>,
    /// Position of the buffer's first byte.
    start: u64,
    sequential: bool,
    reads: u32,
    time: Duration,
}

impl Stream {
    /// Reads `file` as what `kind` says, a zip archive as it is.
    pub(crate) fn new(file: ArchiveFile, kind: VolumeKind) -> io::Result<Self> {
        let is_plain = matches!(kind, VolumeKind::Tar | VolumeKind::Zip { .. });
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

    /// How far the archive's file is read, and its length: for showing progress.
    pub(crate) fn progress(&self) -> (u64, u64) {
        match (&self.input, &self.compressed) {
            (Input::File(file), _) => (self.position, file.len),
            (Input::Object(object), _) => (self.position, object.len()),
            // A file that does not say shows no progress.
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

    /// Position of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The length of the stream, where it is known without reading it.
    pub(crate) fn len(&self) -> Option<u64> {
        match &self.input {
            Input::File(file) => Some(file.len),
            Input::Object(object) => Some(object.len()),
            Input::Decoded(_) => None,
        }
    }

    /// Fills `out` as far as the stream goes.
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

    /// Goes on to a position that is not before this one. Returns false if the stream ends before it.
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
            // What is not far is on its way already, and passed over in memory.
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
fn decoded(input: impl Read + Send + 'static, kind: VolumeKind) -> io::Result<Input> {
    let input = io::BufReader::with_capacity(DECODER_INPUT_BYTES, input);
    Ok(Input::Decoded(match kind {
        VolumeKind::TarZst => {
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
            // Large pieces go where they belong.
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
            // Sequential reading hides the slowness that it is there for: once begun it goes on.
            self.sequential |= self.time > SLOW_READ * DECIDE_READS;
            (self.reads, self.time) = (0, Duration::ZERO);
        }
        // After an error the buffer holds nothing.
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
    fn any_way_of_reading_gives_the_same_bytes() {
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
            (&plain, VolumeKind::Tar, false),
            (&plain, VolumeKind::Tar, true),
            (&gz, VolumeKind::TarGz, false),
            (&zst, VolumeKind::TarZst, false),
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
