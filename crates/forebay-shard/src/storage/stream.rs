//! Sequential reading of a file, with announced readahead.

use std::io::{self, Read};
use std::sync::Arc;

use super::{ReadAt, ReadProfile};

/// Number of announcements per readahead window; large steps allow the storage to use large reads.
const STEPS: u64 = 4;

/// Announces to a file the bytes that a sequential reader will need, up to the readahead of the
/// storage, if it has one. When dropped, it revokes announced bytes that were not read.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// `None` for a storage without readahead.
    file: Option<Arc<dyn ReadAt>>,
    reach: u64,
    read: u64,
    told: u64,
    end: u64,
}

impl Ahead {
    /// Creates the readahead of a reader of the bytes `start..end`.
    pub(crate) fn new(file: &Arc<dyn ReadAt>, profile: ReadProfile, start: u64, end: u64) -> Self {
        Self {
            file: (profile.readahead_bytes > 0).then(|| Arc::clone(file)),
            reach: profile.readahead_bytes,
            read: start,
            told: start,
            end,
        }
    }

    /// Returns whether the storage has a readahead.
    pub(crate) fn is_wanted(&self) -> bool {
        self.file.is_some()
    }

    /// Notes that the reader is at offset `at`, and announces further bytes.
    pub(crate) fn advance(&mut self, at: u64) {
        let Some(file) = &self.file else { return };
        self.read = at;
        self.told = self.told.max(at);
        let wanted = at.saturating_add(self.reach).min(self.end);
        let step = wanted.saturating_sub(self.told);
        if step >= self.reach.div_ceil(STEPS) || (wanted == self.end && step > 0) {
            file.will_need(self.told..wanted);
            self.told = wanted;
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && self.told > self.read
        {
            file.forget(self.read..self.told);
        }
    }
}

/// A sequential reader of a file that implements [`Read`].
///
/// The length is determined when the file is opened: bytes appended later are not read, and
/// missing bytes are an [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) error.
#[derive(Debug)]
pub struct FileStream {
    file: Arc<dyn ReadAt>,
    position: u64,
    end: u64,
    ahead: Ahead,
}

impl FileStream {
    /// Reads `file`, which is in a storage with this profile, from offset `start` to its end.
    pub fn new(file: Arc<dyn ReadAt>, profile: ReadProfile, start: u64) -> Self {
        let end = file.len();
        Self {
            ahead: Ahead::new(&file, profile, start, end),
            file,
            position: start.min(end),
            end,
        }
    }
}

impl Read for FileStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.ahead.advance(self.position);
        let left = self.end - self.position;
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.file.read_exact_at(&mut buf[..len], self.position)?;
        self.position += len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Told {
        needed: Mutex<Vec<Range<u64>>>,
        forgotten: Mutex<Vec<Range<u64>>>,
    }

    impl ReadAt for Told {
        fn len(&self) -> u64 {
            1000
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            assert!(offset + buf.len() as u64 <= 1000);
            let bytes = (offset..).zip(buf);
            bytes.for_each(|(at, byte)| *byte = at as u8);
            Ok(())
        }

        fn will_need(&self, bytes: Range<u64>) {
            self.needed.lock().unwrap().push(bytes);
        }

        fn forget(&self, bytes: Range<u64>) {
            self.forgotten.lock().unwrap().push(bytes);
        }
    }

    #[test]
    fn readahead_is_announced_once_and_revoked_at_the_end() {
        let file = Arc::new(Told::default());
        let far = ReadProfile {
            readahead_bytes: 400,
            ..ReadProfile::default()
        };
        let mut stream = FileStream::new(Arc::<Told>::clone(&file), far, 100);
        let mut buf = [0; 64];
        for _ in 0..4 {
            assert_eq!(stream.read(&mut buf).unwrap(), 64);
        }
        let told = file.needed.lock().unwrap().clone();
        assert_eq!(told, [100..500, 500..628]);
        drop(stream);
        // Up to the end of the last announcement.
        let forgotten = file.forgotten.lock().unwrap().clone();
        assert_eq!(forgotten, vec![292..628]);

        file.needed.lock().unwrap().clear();
        let mut all = Vec::new();
        let mut stream = FileStream::new(Arc::<Told>::clone(&file), far, 900);
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all, (900..1000u64).map(|at| at as u8).collect::<Vec<_>>());
        let told = file.needed.lock().unwrap().clone();
        assert_eq!(told, vec![900..1000]);
        drop(stream);

        file.needed.lock().unwrap().clear();
        let mut near = FileStream::new(Arc::<Told>::clone(&file), ReadProfile::default(), 0);
        assert_eq!(near.read_to_end(&mut all).unwrap(), 1000);
        assert!(file.needed.lock().unwrap().is_empty());
    }
}
