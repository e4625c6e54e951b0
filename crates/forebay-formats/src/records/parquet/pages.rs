//! The pages of a column: their number of values, and their location in the file.

use super::input::Input;
use super::memory::ColumnMemory;
use bytes::Bytes;
use forebay_shard::Codec;
use forebay_shard::mapped::{ExtentStart, MIN_EXTENT_BYTES, SourceBlock};
use parquet::basic::{Compression, PageType};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns the codec for pages of this compression, if mapped shards support it.
pub(super) fn codec(compression: Compression) -> Option<Codec> {
    match compression {
        Compression::UNCOMPRESSED => Some(Codec::NONE),
        Compression::SNAPPY => Some(Codec::SNAPPY),
        Compression::ZSTD(_) => Some(Codec::ZSTD),
        Compression::LZ4_RAW => Some(Codec::LZ4),
        _ => None,
    }
}

/// Reads the pages of a column and checks that they have no more values than the footer says: a page header of a few bytes may
/// claim billions.
pub(super) struct CountedPages {
    input: Arc<Input>,
    pages: SerializedPageReader<Input>,
    compression: Compression,
    left: i64,
    memory: Arc<ColumnMemory>,
    seen: Option<SeenPages>,
}

impl CountedPages {
    /// Opens the pages of a column in a row group; `seen` collects the decoded pages.
    pub(super) fn open(
        input: &Input,
        chunk: &ColumnChunkMetaData,
        rows: usize,
        memory: Arc<ColumnMemory>,
        seen: Option<SeenPages>,
    ) -> ParquetResult<Self> {
        let input = Arc::new(input.of_column(Arc::clone(&memory)));
        Ok(Self {
            pages: SerializedPageReader::new(Arc::clone(&input), chunk, rows, None)?,
            input,
            compression: chunk.compression(),
            left: chunk.num_values(),
            memory,
            seen,
        })
    }
}

impl Iterator for CountedPages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CountedPages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let page = self.pages.get_next_page()?;
        let Some(page) = page else {
            return Ok(None);
        };
        if page.page_type() != PageType::DICTIONARY_PAGE {
            self.left -= i64::from(page.num_values());
            self.memory.pass_page(u64::from(page.num_values()));
            if self.left < 0 {
                let what = "its pages have more values than the footer says";
                return Err(ParquetError::General(what.to_owned()));
            }
        }
        if let Some(seen) = &self.seen {
            seen.add(&page, self.compression, self.input.last_read());
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        let next = self.pages.peek_next_page()?;
        if let Some(values) = next.and_then(|page| page.num_levels) {
            self.left -= i64::try_from(values).unwrap_or(i64::MAX);
            self.memory.pass_page(values as u64);
        }
        self.pages.skip_next_page()
    }
}

/// The pages from which values were decoded.
#[derive(Debug, Clone, Default)]
pub(super) struct SeenPages(Arc<Mutex<Vec<SeenPage>>>);

#[derive(Debug)]
struct SeenPage {
    /// The decoded page; its values share this memory.
    bytes: Bytes,
    is_dictionary: bool,
    place: Place,
}

/// Location of a page's bytes in the file.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Uncompressed, at this offset.
    File(u64),
    /// In a compressed block. The page begins with this many bytes that are not compressed.
    Block(SourceBlock, usize),
}

impl SeenPages {
    /// Adds a page whose stored bytes are at this offset and have this length.
    fn add(&self, page: &Page, compression: Compression, (offset, len): (u64, u64)) {
        let bytes = page.buffer().clone();
        let (levels, is_compressed) = match page {
            Page::DataPageV2 {
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed,
                ..
            } => (def_levels_byte_len + rep_levels_byte_len, *is_compressed),
            _ => (0, true),
        };
        let (before, codec) = match codec(compression).filter(|_| is_compressed) {
            Some(codec) if codec != Codec::NONE => (u64::from(levels), codec),
            _ => (0, Codec::NONE),
        };
        let place = match codec {
            Codec::NONE => Place::File(offset),
            codec => Place::Block(
                SourceBlock {
                    offset: offset + before,
                    stored_len: len.saturating_sub(before),
                    expanded_len: (bytes.len() as u64).saturating_sub(before),
                    codec,
                },
                before as usize,
            ),
        };
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pages.push(SeenPage {
            is_dictionary: page.is_dictionary_page(),
            bytes,
            place,
        });
    }

    /// Drops the data pages whose values were used, except the last one, which may have further values.
    pub(super) fn forget(&self) {
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = pages.len().saturating_sub(1);
        let mut number = 0;
        pages.retain(|page| {
            number += 1;
            page.is_dictionary || number > last
        });
    }

    /// Returns the location of a value that shares the memory of a page; `None` for short values.
    pub(super) fn locate(&self, value: &[u8]) -> Option<ExtentStart> {
        if value.len() < MIN_EXTENT_BYTES {
            return None;
        }
        let pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = value.as_ptr().addr();
        pages.iter().find_map(|page| {
            let at = start.checked_sub(page.bytes.as_ptr().addr())?;
            if at + value.len() > page.bytes.len() {
                return None;
            }
            Some(match page.place {
                Place::File(offset) => ExtentStart::File(offset + at as u64),
                Place::Block(block, before) => {
                    ExtentStart::Block(block, at.checked_sub(before)? as u64)
                }
            })
        })
    }
}
