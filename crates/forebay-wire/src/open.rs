//! Opens small files that a user names, without ever blocking on the open.

use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file or a pipe, such as a shell's `<(command)`, for reading. A named pipe
/// without a writer reads as empty.
///
/// # Errors
/// Errors of the system. Directories, devices and sockets are refused without blocking.
pub fn open_input(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags as i32)
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() {
        // From here on reads block until the writer sends data or closes.
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    } else if !kind.is_file() {
        let why = "it is neither a regular file nor a pipe";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn pipes_without_writer_are_empty_and_devices_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        let mut text = String::new();
        let mut file = open_input(&path).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
        assert!(open_input(Path::new("/dev/zero")).is_err());
        assert!(open_input(dir.path()).is_err());
        // Readers of tokens and keys open their files with this function.
        assert!(crate::token::read(&path).unwrap().is_empty());
    }
}
