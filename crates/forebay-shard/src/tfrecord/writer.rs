//! Options of the writer of TFRecord files.

use std::io::Write;
use std::path::Path;

use crate::compress::{Compression, Encoder};
use crate::writer::{Body, ShardWriter};

/// Options of a [`ShardWriter`] of a TFRecord file.
#[derive(Debug, Clone)]
pub struct WriterBuilder {
    compression: Compression,
    level: u32,
}

impl Default for WriterBuilder {
    fn default() -> Self {
        Self {
            compression: Compression::None,
            level: 6,
        }
    }
}

impl WriterBuilder {
    /// Creates options for an uncompressed file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compresses the file as a whole. Such a file can only be read from its start and has no
    /// index.
    pub fn compression(&mut self, compression: Compression) -> &mut Self {
        self.compression = compression;
        self
    }

    /// Sets the compression level, 0 to 9; 6 by default.
    pub fn level(&mut self, level: u32) -> &mut Self {
        self.level = level.min(9);
        self
    }

    /// Writes to any writer; `name` is its name in errors. Output is buffered here, so `writer` needs no buffer.
    pub fn from_writer<W: Write>(&self, writer: W, name: impl AsRef<Path>) -> ShardWriter<W> {
        let encoder = Encoder::new(self.compression, self.level, writer);
        ShardWriter::new(name.as_ref(), Body::Stream(self.compression, encoder))
    }
}
