//! Opens files whose paths a user gives, without blocking.
//!
//! Opening a FIFO blocks until it has a writer, and reading a terminal blocks until its user types.
//! A dataset's directory may come from elsewhere, so a FIFO with the name of one of its files must
//! be an error.

use rustix::fs::OFlags;
use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file or a block device for reading.
///
/// # Errors
/// Errors of the system. Other kinds of files are refused without blocking.
///
/// ```
/// let error = forebay_shard::storage::open_file(std::path::Path::new("/dev/null")).unwrap_err();
/// assert_eq!(error.to_string(), "it is a character device, not a regular file");
/// ```
pub fn open_file(path: &Path) -> io::Result<File> {
    let file = open_now(path)?;
    refuse(file.metadata()?.file_type(), false)?;
    Ok(file)
}

/// Opens a small text file for reading. As [`open_file`], but also accepts a pipe, such as a shell's
/// `<(command)`.
///
/// # Errors
/// As [`open_file`].
pub fn open_input(path: &Path) -> io::Result<File> {
    let file = open_now(path)?;
    let kind = file.metadata()?.file_type();
    refuse(kind, true)?;
    if kind.is_fifo() {
        // From here on reads block until a writer sends data; without a writer, the pipe is empty.
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    }
    Ok(file)
}

/// Reads a whole regular file.
///
/// # Errors
/// As [`open_file`].
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_file(path)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut file, &mut bytes)?;
    Ok(bytes)
}

fn open_now(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let mut options = OpenOptions::new();
    options.read(true);
    match options.clone().custom_flags(flags as i32).open(path) {
        // Another process holds a lease on the file. A blocking open makes it release the lease.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && path.is_file() => {
            options.open(path)
        }
        opened => opened,
    }
}

fn refuse(kind: FileType, may_be_pipe: bool) -> io::Result<()> {
    let what = if kind.is_file() || kind.is_block_device() || (may_be_pipe && kind.is_fifo()) {
        return Ok(());
    } else if kind.is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::IsADirectory,
            "it is a directory",
        ));
    } else if kind.is_fifo() {
        "FIFO"
    } else if kind.is_char_device() {
        "character device"
    } else {
        "socket"
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("it is a {what}, not a regular file"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn fifo(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        path
    }

    #[test]
    fn files_that_would_block_a_reader_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, word) in [
            (fifo(dir.path()), "FIFO"),
            (dir.path().to_owned(), "directory"),
            ("/dev/zero".into(), "character device"),
        ] {
            let error = open_file(&path).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert!(read_file(&path).is_err());
        }
        assert!(open_file(&socket).is_err());
        assert!(open_input(&socket).is_err());
        assert!(open_input(Path::new("/dev/zero")).is_err());
        let file = dir.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read_file(&file).unwrap(), b"text");
    }

    #[test]
    fn small_inputs_may_be_pipes() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path());
        // A pipe without a writer is at its end immediately.
        let mut text = String::new();
        open_input(&path)
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "");
        // A writer that is slower than its reader.
        let mut input = open_input(&path).unwrap();
        let mut out = OpenOptions::new().write(true).open(&path).unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            input.read_to_string(&mut text).map(|_| text)
        });
        for word in ["one ", "two"] {
            std::thread::yield_now();
            out.write_all(word.as_bytes()).unwrap();
        }
        drop(out);
        assert_eq!(reader.join().unwrap().unwrap(), "one two");
    }
}
