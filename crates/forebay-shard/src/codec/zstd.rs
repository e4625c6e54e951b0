//! Zstandard, one frame a block.

use std::cell::RefCell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

use super::BlockCodec;

pub(super) struct Zstd {
    compressor: Compressor<'static>,
    decompressor: Decompressor<'static>,
}

thread_local! {
    /// A context is costly to make and cheap to keep: one for each thread.
    static CODEC: RefCell<Option<Zstd>> = const { RefCell::new(None) };
}

/// Calls `with` with this thread's codec.
pub(super) fn with_thread_codec<T>(with: impl FnOnce(&mut Zstd) -> io::Result<T>) -> io::Result<T> {
    CODEC.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Some(Zstd::new(0)?);
        }
        slot.as_mut()
            .map_or_else(|| Err(io::ErrorKind::OutOfMemory.into()), with)
    })
}

impl Zstd {
    pub(super) fn new(level: i32) -> io::Result<Self> {
        Ok(Self {
            compressor: Compressor::new(level)?,
            decompressor: Decompressor::new()?,
        })
    }
}

impl BlockCodec for Zstd {
    fn compress(&mut self, raw: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        out.extend_from_slice(&self.compressor.compress(raw)?);
        Ok(())
    }

    fn decompress(&mut self, stored: &[u8], raw_len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        out.try_reserve_exact(raw_len)?;
        // The vector may hold more room than asked for: what matters is the
        // length that comes out.
        let written = self.decompressor.decompress_to_buffer(stored, out)?;
        if written != raw_len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the block expands to {written} bytes instead of {raw_len}"),
            ));
        }
        Ok(())
    }
}
