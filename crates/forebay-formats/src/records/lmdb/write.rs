//! Writes an LMDB file from sorted keys: overflow pages and leaves as they fill up, then the branches above them.

use super::pages::{
    BIG_DATA, BRANCH, LEAF, MAGIC, META, META_BYTES, NO_PAGE, NODE_HEADER_BYTES, OVERFLOW,
    PAGE_HEADER_BYTES, VERSION,
};
use crate::error::Result;
use crate::finding::escape;
use crate::records::SourceRecord;
use crate::records::sink::{Appended, RecordSink, RecordWriter, Scratch, SinkError};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek, Write};

pub(super) const PAGE: usize = 4096;
/// Longest key that the library accepts, in bytes.
const MAX_KEY_BYTES: usize = 511;
/// Values of larger nodes are written to overflow pages, so that at least two nodes fit into a page.
const MAX_NODE_BYTES: usize = (((PAGE - PAGE_HEADER_BYTES) / 2) & !1) - 2;
/// Digits of the number at the beginning of a key, and a slash.
pub(super) const PREFIX_BYTES: usize = 11;
const SPOOL_BYTES: usize = 1 << 20;

/// Writes LMDB files.
#[derive(Debug)]
pub(super) struct Sink;

impl RecordSink for Sink {
    fn file_name(&self, split: &str, number: u32, _count: u32) -> String {
        format!("{split}-{number:05}{}", super::EXTENSION)
    }

    fn begin(&self, first: u64, scratch: Scratch<'_>) -> Result<Box<dyn RecordWriter>> {
        Ok(Box::new(Writer {
            pages: BufWriter::with_capacity(SPOOL_BYTES, scratch()?),
            number: first,
            next_page: 2,
            overflow_pages: 0,
            entries: 0,
            leaf: Page::default(),
            leaves: Vec::new(),
        }))
    }
}

/// Nodes of the next page.
#[derive(Default)]
struct Page {
    nodes: Vec<Vec<u8>>,
    /// Bytes of the nodes and of their offsets.
    bytes: usize,
    first_key: Vec<u8>,
}

impl Page {
    fn has_room(&self, node: usize) -> bool {
        PAGE_HEADER_BYTES + self.bytes + 2 + node.next_multiple_of(2) <= PAGE
    }

    fn push(&mut self, mut node: Vec<u8>, key: &[u8]) {
        if self.nodes.is_empty() {
            self.first_key = key.to_vec();
        }
        node.resize(node.len().next_multiple_of(2), 0);
        self.bytes += 2 + node.len();
        self.nodes.push(node);
    }

    /// Encodes the page with this number.
    fn encode(&self, number: u64, flags: u16) -> Vec<u8> {
        let mut page = header(number, flags);
        page.resize(PAGE, 0);
        let mut upper = PAGE;
        for (at, node) in self.nodes.iter().enumerate() {
            upper -= node.len();
            page[upper..upper + node.len()].copy_from_slice(node);
            let offset = PAGE_HEADER_BYTES + 2 * at;
            page[offset..offset + 2].copy_from_slice(&(upper as u16).to_le_bytes());
        }
        let lower = PAGE_HEADER_BYTES + 2 * self.nodes.len();
        page[12..14].copy_from_slice(&(lower as u16).to_le_bytes());
        page[14..16].copy_from_slice(&(upper as u16).to_le_bytes());
        page
    }
}

/// Returns the beginning of a page header, without its last field: the offsets, or the count of overflow pages.
fn header(number: u64, flags: u16) -> Vec<u8> {
    let mut page = number.to_le_bytes().to_vec();
    page.extend(0u16.to_le_bytes());
    page.extend(flags.to_le_bytes());
    page
}

/// Returns a node of a branch: the page number of a child, and its first key.
fn branch_node(child: u64, key: &[u8]) -> Vec<u8> {
    let mut node = (child as u32).to_le_bytes().to_vec();
    node.extend(((child >> 32) as u16).to_le_bytes());
    node.extend((key.len() as u16).to_le_bytes());
    node.extend_from_slice(key);
    node
}

/// Writes the records of one file.
struct Writer {
    /// All pages except the meta pages.
    pages: BufWriter<File>,
    number: u64,
    next_page: u64,
    overflow_pages: u64,
    entries: u64,
    leaf: Page,
    /// First key and page number of each leaf.
    leaves: Vec<(Vec<u8>, u64)>,
}

impl Writer {
    fn put(&mut self, page: &[u8]) -> io::Result<u64> {
        self.pages.write_all(page)?;
        self.next_page += 1;
        Ok(self.next_page - 1)
    }

    /// Writes a value to overflow pages. Returns the number of the first one.
    fn overflow(&mut self, value: &[u8]) -> io::Result<u64> {
        let bytes = PAGE_HEADER_BYTES + value.len();
        let count = bytes.div_ceil(PAGE);
        let number = self.next_page;
        let mut head = header(number, OVERFLOW);
        head.extend((count as u32).to_le_bytes());
        self.pages.write_all(&head)?;
        self.pages.write_all(value)?;
        self.pages.write_all(&vec![0; count * PAGE - bytes])?;
        self.next_page += count as u64;
        self.overflow_pages += count as u64;
        Ok(number)
    }

    fn flush_leaf(&mut self) -> io::Result<()> {
        let leaf = std::mem::take(&mut self.leaf);
        if leaf.nodes.is_empty() {
            return Ok(());
        }
        let page = leaf.encode(self.next_page, LEAF);
        let number = self.put(&page)?;
        self.leaves.push((leaf.first_key, number));
        Ok(())
    }

    /// Writes the branches above the leaves. Returns the root page and the numbers of levels and of branches.
    fn branches(&mut self) -> io::Result<(u64, u16, u64)> {
        let mut level = std::mem::take(&mut self.leaves);
        let (mut depth, mut branches) = (u16::from(!level.is_empty()), 0);
        while level.len() > 1 {
            let mut pages = vec![Page::default()];
            for (key, child) in &level {
                let node = NODE_HEADER_BYTES + key.len();
                if !pages[pages.len() - 1].has_room(node) {
                    pages.push(Page::default());
                }
                let last = pages.len() - 1;
                let page = &mut pages[last];
                // The first key of a branch is never compared, so it is omitted.
                let stored: &[u8] = if page.nodes.is_empty() { &[] } else { key };
                page.push(branch_node(*child, stored), key);
            }
            balance(&mut pages, &level);
            let mut above = Vec::with_capacity(pages.len());
            for page in pages {
                let bytes = page.encode(self.next_page, BRANCH);
                above.push((page.first_key, self.put(&bytes)?));
                branches += 1;
            }
            level = above;
            depth += 1;
        }
        let root = level.first().map_or(NO_PAGE, |(_, page)| *page);
        Ok((root, depth, branches))
    }
}

/// Moves a node to the last page if that has only one, because a branch must have at least two children.
fn balance(pages: &mut [Page], level: &[(Vec<u8>, u64)]) {
    let [.., before, last] = pages else { return };
    if last.nodes.len() > 1 {
        return;
    }
    let [.., moved, own] = level else { return };
    if let Some(node) = before.nodes.pop() {
        before.bytes -= 2 + node.len();
    }
    *last = Page::default();
    last.push(branch_node(moved.1, &[]), &moved.0);
    last.push(branch_node(own.1, &own.0), &own.0);
}

impl RecordWriter for Writer {
    fn append(
        &mut self,
        record: &SourceRecord<'_>,
        _out: &mut dyn Write,
    ) -> std::result::Result<Appended, SinkError> {
        let len = u32::try_from(record.bytes.len())
            .map_err(|_| SinkError::Record("it is larger than 4 GiB".to_owned()))?;
        // Keys begin with the number of the record, so they are sorted like the records.
        let mut key = format!("{:010}/", self.number).into_bytes();
        let room = record.key.len().min(MAX_KEY_BYTES - key.len());
        key.extend_from_slice(&record.key[..room]);
        self.number += 1;
        let mut node = len.to_le_bytes().to_vec();
        let is_big = NODE_HEADER_BYTES + key.len() + record.bytes.len() > MAX_NODE_BYTES;
        let flags = if is_big { BIG_DATA } else { 0 };
        node.extend(flags.to_le_bytes());
        node.extend((key.len() as u16).to_le_bytes());
        node.extend_from_slice(&key);
        let own = if is_big { 8 } else { record.bytes.len() };
        if !self.leaf.has_room(node.len() + own) {
            self.flush_leaf()?;
        }
        match is_big {
            true => node.extend(self.overflow(record.bytes)?.to_le_bytes()),
            false => node.extend_from_slice(record.bytes),
        }
        self.leaf.push(node, &key);
        self.entries += 1;
        let is_whole = room == record.key.len();
        Ok(Appended {
            new_key: (!is_whole).then(|| escape(&record.key[..room])),
        })
    }

    fn finish(
        &mut self,
        _name: &str,
        out: &mut dyn Write,
    ) -> std::result::Result<Value, SinkError> {
        self.flush_leaf()?;
        let leaves = self.leaves.len() as u64;
        let (root, depth, branches) = self.branches()?;
        self.pages.flush()?;
        for number in 0..2u64 {
            let mut page = header(number, META);
            page.resize(PAGE_HEADER_BYTES, 0);
            page.extend(MAGIC.to_le_bytes());
            page.extend(VERSION.to_le_bytes());
            page.extend(0u64.to_le_bytes());
            page.extend((self.next_page * PAGE as u64).to_le_bytes());
            // The database of free pages, whose keys are integers, and the main database.
            page.extend((PAGE as u32).to_le_bytes());
            page.extend(8u16.to_le_bytes());
            page.extend([0; 34]);
            page.extend(NO_PAGE.to_le_bytes());
            page.extend([0; 6]);
            page.extend(depth.to_le_bytes());
            for value in [branches, leaves, self.overflow_pages, self.entries, root] {
                page.extend(value.to_le_bytes());
            }
            page.extend((self.next_page - 1).to_le_bytes());
            page.extend(number.to_le_bytes());
            debug_assert_eq!(page.len(), META_BYTES);
            page.resize(PAGE, 0);
            out.write_all(&page)?;
        }
        let file = self.pages.get_mut();
        file.rewind()?;
        io::copy(&mut BufReader::with_capacity(SPOOL_BYTES, file), out)?;
        Ok(Value::Null)
    }
}
