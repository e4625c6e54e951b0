//! Summing a file while it is read, and telling of progress.

use std::fs::File;
use std::io::{self, Read};

use super::{Observer, Progress};
use crate::checksum::Crc32c;

/// Bytes to read at a time where nobody wants them but the sums.
const DRAIN_BYTES: usize = 512 << 10;

/// A file whose bytes are summed as they pass.
pub(super) struct SummedFile<'a> {
    file: File,
    crc: Crc32c,
    blake3: Option<Box<blake3::Hasher>>,
    observer: &'a Observer<'a>,
}

impl<'a> SummedFile<'a> {
    pub(super) fn new(file: File, blake3: bool, observer: &'a Observer<'a>) -> Self {
        let blake3 = blake3.then(|| Box::new(blake3::Hasher::new()));
        Self {
            file,
            crc: Crc32c::default(),
            blake3,
            observer,
        }
    }

    /// Reads to the end; then the sums are the file's.
    pub(super) fn drain(&mut self) -> io::Result<(Crc32c, Option<String>)> {
        let mut buffer = vec![0; DRAIN_BYTES];
        loop {
            match self.read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok((
            self.crc,
            self.blake3
                .as_ref()
                .map(|hash| hash.finalize().to_hex().to_string()),
        ))
    }
}

impl Read for SummedFile<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buf)?;
        let bytes = buf.get(..read).unwrap_or(&[]);
        self.crc.update(bytes);
        if let Some(hash) = &mut self.blake3 {
            hash.update(bytes);
        }
        (self.observer)(Progress {
            bytes: read as u64,
            ..Progress::default()
        });
        Ok(read)
    }
}
