//! Computes the checksums of a file while it is read, and reports progress.

use std::io::{self, Read};

use super::{VerifyObserver, VerifyProgress};
use crate::checksum::Crc32c;
use crate::storage::FileStream;

/// Bytes per read in the parts that are read only for their checksums.
const DRAIN_BYTES: usize = 512 << 10;

/// Running checksums.
pub(super) struct Sums {
    pub(super) crc: Crc32c,
    #[cfg(feature = "blake3")]
    blake3: Option<Box<blake3::Hasher>>,
}

impl Sums {
    /// Creates empty checksums. `blake3` requests a BLAKE3 hash, which is left out without the feature `blake3`.
    #[cfg_attr(not(feature = "blake3"), allow(unused_variables))]
    pub(super) fn new(blake3: bool) -> Self {
        Self {
            crc: Crc32c::default(),
            #[cfg(feature = "blake3")]
            blake3: blake3.then(|| Box::new(blake3::Hasher::new())),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
        #[cfg(feature = "blake3")]
        if let Some(hash) = &mut self.blake3 {
            hash.update(bytes);
        }
    }

    #[cfg(feature = "blake3")]
    pub(super) fn blake3(&self) -> Option<String> {
        Some(self.blake3.as_ref()?.finalize().to_hex().to_string())
    }

    #[cfg(not(feature = "blake3"))]
    pub(super) fn blake3(&self) -> Option<String> {
        None
    }
}

/// A file whose checksums are computed while it is read.
pub(super) struct SummedFile<'a> {
    file: FileStream,
    sums: Sums,
    observer: &'a VerifyObserver<'a>,
}

impl<'a> SummedFile<'a> {
    /// Creates the reader; `sums` are the checksums of the bytes before the stream's position.
    pub(super) fn new(file: FileStream, sums: Sums, observer: &'a VerifyObserver<'a>) -> Self {
        Self {
            file,
            sums,
            observer,
        }
    }

    /// Reads to the end and returns the checksums of the file.
    pub(super) fn drain(mut self) -> io::Result<Sums> {
        let mut buffer = vec![0; DRAIN_BYTES];
        loop {
            match self.read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(self.sums)
    }
}

impl Read for SummedFile<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buf)?;
        self.sums.update(buf.get(..read).unwrap_or(&[]));
        (self.observer)(VerifyProgress {
            bytes: read as u64,
            ..VerifyProgress::default()
        });
        Ok(read)
    }
}
