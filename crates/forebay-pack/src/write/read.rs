//! Opens and prefetches image files in advance if the disk is slow.

use super::source::Opened;
use crate::open_files::AHEAD_FILES;
use forebay_formats::Reason;
use forebay_formats::images::Refusal;
use std::collections::VecDeque;

/// Opens entries before they are read, and tells the kernel that they will be needed. Files in the
/// page cache do not benefit from this, so it begins only after files were slow.
#[derive(Debug, Default)]
pub(super) struct ReadAhead<'a> {
    open: VecDeque<Result<Opened<'a>, Refusal>>,
    ahead: bool,
}

impl<'a> ReadAhead<'a> {
    /// Begins to open files in advance. This cannot be undone, because it hides the slowness that is its condition.
    pub(super) fn begin(&mut self) {
        self.ahead = true;
    }

    /// Returns the next file, and opens further files in advance if enabled. `next` opens the file after the last opened one,
    /// or returns `None` if there is none now. Each call returns one file, in the order of opening.
    pub(super) fn take(
        &mut self,
        mut next: impl FnMut() -> Option<Result<Opened<'a>, Refusal>>,
    ) -> Result<Opened<'a>, Refusal> {
        if self.ahead {
            while self.open.len() < AHEAD_FILES {
                let Some(file) = next() else { break };
                if let Ok(entry) = &file {
                    entry.will_need();
                }
                self.open.push_back(file);
            }
        }
        match self.open.pop_front().or_else(next) {
            Some(file) => file,
            None => Err((Reason::Vanished, "there is no further file".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_formats::images::OpenFile;

    #[test]
    fn each_file_is_returned_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"x").unwrap();
        let gone = |_| (Reason::Vanished, String::new());
        for ahead in [false, true] {
            let mut reader = ReadAhead {
                ahead,
                ..ReadAhead::default()
            };
            let mut names = (0..40).map(|n| if n % 3 == 0 { "missing" } else { "file" });
            let mut next = || {
                let name = names.next()?;
                let file = std::fs::File::open(dir.path().join(name)).map_err(gone);
                Some(file.map(|file| Opened::from(OpenFile::from(file))))
            };
            for number in 0..40 {
                assert_eq!(reader.take(&mut next).is_err(), number % 3 == 0, "{number}");
            }
            assert!(reader.take(&mut next).is_err());
        }
    }
}
