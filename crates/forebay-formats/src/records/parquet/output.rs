//! The output buffer of the Parquet library.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that were not written to the file yet; they are moved there after each row group.
#[derive(Clone, Default)]
pub(super) struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    pub(super) fn move_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        out.write_all(&bytes)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
