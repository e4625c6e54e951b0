//! Reading one image file into a buffer, with as few system calls as it takes to be sure of its size.

use crate::report::Reason;
use rustix::buffer::spare_capacity;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Why a file is not packed: the reason, and details.
pub(super) type Refusal = (Reason, String);

/// Room beyond the expected size, so that a read that stops at the expected size has stopped at the end of the file.
const SLACK_BYTES: usize = 64;

/// Appends the whole file to `buffer`. It must still have the size that it had in the census.
///
/// Regular files give all that is asked for or all that there is: a read that returns less than the room it had
/// was the last. So a file costs open, read and close, and no stat.
pub(super) fn append_file(
    dir: &OwnedFd,
    path: &[u8],
    size: u64,
    buffer: &mut Vec<u8>,
) -> Result<(), Refusal> {
    // Non-blocking, should the file have become a pipe in the meantime; without meaning for regular files.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::openat(dir, path, flags, Mode::empty()).map_err(refusal)?;
    let start = buffer.len();
    let expected =
        usize::try_from(size).map_err(|_| (Reason::TooLarge, format!("{size} bytes")))?;
    buffer.reserve(expected.saturating_add(SLACK_BYTES));
    loop {
        let room = buffer.capacity() - buffer.len();
        let read = match rustix::io::read(&file, spare_capacity(buffer)) {
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(refusal(errno)),
        };
        let total = buffer.len() - start;
        if total > expected || (read == 0 && total < expected) {
            let now = match rustix::fs::fstat(&file) {
                Ok(stat) => format!(", now {}", stat.st_size),
                Err(_) => String::new(),
            };
            return Err((Reason::SizeChanged, format!("then {size} bytes{now}")));
        }
        if read == 0 || (total == expected && read < room) {
            return Ok(());
        }
    }
}

fn refusal(errno: Errno) -> Refusal {
    match errno {
        Errno::NOENT | Errno::NOTDIR => (Reason::Vanished, String::new()),
        Errno::ISDIR => (Reason::Unreadable, "it is a directory now".into()),
        errno => (Reason::Unreadable, std::io::Error::from(errno).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, size: u64) -> Result<Vec<u8>, Reason> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), vec![7u8; 5000]).unwrap();
        std::fs::write(dir.path().join("empty"), b"").unwrap();
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        let fd = rustix::fs::open(
            dir.path(),
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        )
        .unwrap();
        let mut buffer = vec![1];
        append_file(&fd, name.as_bytes(), size, &mut buffer).map_err(|refusal| refusal.0)?;
        Ok(buffer)
    }

    #[test]
    fn a_file_of_the_expected_size_is_read_whole() {
        assert_eq!(read("file", 5000).unwrap().len(), 5001);
        assert_eq!(read("empty", 0).unwrap(), [1]);
    }

    #[test]
    fn any_other_size_is_told() {
        for size in [0, 1, 4999, 5001, 10_000] {
            assert_eq!(read("file", size), Err(Reason::SizeChanged), "{size}");
        }
        assert_eq!(read("empty", 1), Err(Reason::SizeChanged));
        assert_eq!(read("missing", 1), Err(Reason::Vanished));
        assert_eq!(read("file/below", 1), Err(Reason::Vanished));
        assert_eq!(read("dir", 1), Err(Reason::Unreadable));
    }
}
