//! Pages of an LMDB file: two meta pages, and a B+ tree whose leaves hold keys and values in the order of keys.
//!
//! The library maps the file and trusts its pages. This module reads pages and checks every offset.

use crate::archive::{ArchiveFile, ReadAt, u16_at, u32_at, u64_at};
use crate::finding::escape;
use forebay_shard::MAX_RECORD_BYTES;
use std::cmp::Ordering;
use std::io;

/// Size of the header of a page.
pub(super) const PAGE_HEADER_BYTES: usize = 16;
/// Size of the header of a node, before its key.
pub(super) const NODE_HEADER_BYTES: usize = 8;
pub(super) const MAGIC: u32 = 0xbeef_c0de;
pub(super) const VERSION: u32 = 1;
/// Stands for no page.
pub(super) const NO_PAGE: u64 = u64::MAX;
pub(super) const META_BYTES: usize = 152;

/// Flags of pages.
pub(super) const BRANCH: u16 = 1;
pub(super) const LEAF: u16 = 2;
pub(super) const OVERFLOW: u16 = 4;
pub(super) const META: u16 = 8;
/// Flags of nodes: the value is on overflow pages, is a database, or is a set of several values.
pub(super) const BIG_DATA: u16 = 1;
const SUB_DATA: u16 = 2;
const DUP_DATA: u16 = 4;
/// Flags of databases: keys are compared from their ends, keys have several values, keys are native integers.
const REVERSE_KEY: u16 = 2;
const DUP_SORT: u16 = 4;
const INTEGER_KEY: u16 = 8;

const MAX_DEPTH: usize = 32;
const PAGE_BYTES: std::ops::RangeInclusive<u64> = 512..=65536;

/// Location of a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// Offset of the node in the file.
    at: u64,
    /// Size of the value in bytes.
    pub(super) len: u32,
}

/// The values of a file in the order of their keys.
#[derive(Debug)]
pub(super) struct Tree {
    page_bytes: u64,
    pub(super) nodes: Vec<Node>,
}

/// The content of a meta page.
struct Meta {
    page_bytes: u64,
    flags: u16,
    /// Number of levels, from the root to the leaves.
    depth: u16,
    entries: u64,
    root: u64,
    transaction: u64,
}

impl Meta {
    fn read(file: &ArchiveFile, at: u64) -> Result<Self, String> {
        let mut page = [0; META_BYTES];
        read(file, at, &mut page)?;
        let (magic, version) = (u32_at(&page, 16), u32_at(&page, 20));
        if u16_at(&page, 10) & META == 0 || magic != MAGIC {
            return Err(format!("offset {at}: there is no page of metadata"));
        }
        if version != VERSION {
            return Err(format!(
                "offset {at}: version {version} is not read, only {VERSION}"
            ));
        }
        let page_bytes = u64::from(u32_at(&page, 40));
        if !PAGE_BYTES.contains(&page_bytes) || !page_bytes.is_power_of_two() {
            return Err(format!(
                "offset {at}: pages of {page_bytes} bytes: it is damaged, or was written on a machine of 32 bits or another byte order"
            ));
        }
        Ok(Self {
            page_bytes,
            flags: u16_at(&page, 92),
            depth: u16_at(&page, 94),
            entries: u64_at(&page, 120),
            root: u64_at(&page, 128),
            transaction: u64_at(&page, 144),
        })
    }
}

impl Tree {
    /// Lists the values of a file.
    pub(super) fn read(file: &ArchiveFile) -> Result<Self, String> {
        let first = Meta::read(file, 0)?;
        let page_bytes = first.page_bytes;
        let second = Meta::read(file, page_bytes)?;
        let meta = match second.transaction > first.transaction {
            true => second,
            false => first,
        };
        if meta.flags & DUP_SORT != 0 {
            return Err("it has several values for each key, which are no records".to_owned());
        }
        let mut nodes = Vec::new();
        let mut before = None;
        let mut stack = Vec::new();
        if meta.root != NO_PAGE {
            stack.push((meta.root, 0));
        }
        let mut page = vec![0; page_bytes as usize];
        let mut seen = SeenPages::of(file, page_bytes);
        while let Some((number, depth)) = stack.pop() {
            let fail = |what: String| format!("page {number}: {what}");
            seen.add(number, 1).map_err(fail)?;
            if depth > MAX_DEPTH {
                return Err(fail("the tree is too deep".to_owned()));
            }
            let at = number * page_bytes;
            read(file, at, &mut page)?;
            let flags = u16_at(&page, 10);
            if u64_at(&page, 0) != number || flags & (BRANCH | LEAF) == 0 {
                return Err(fail("it is no page of the tree".to_owned()));
            }
            let offsets = node_offsets(&page).map_err(fail)?;
            if flags & BRANCH != 0 {
                // Push in reverse, so that the first child is visited first.
                for offset in offsets.into_iter().rev() {
                    let low = u64::from(u32_at(&page, offset));
                    let child = low | u64::from(u16_at(&page, offset + 4)) << 32;
                    stack.push((child, depth + 1));
                }
                continue;
            }
            if depth + 1 != usize::from(meta.depth) {
                return Err(fail(format!(
                    "it is a leaf at depth {}, and the metadata says {}",
                    depth + 1,
                    meta.depth
                )));
            }
            for offset in offsets {
                let len = leaf_node(&page, offset).map_err(fail)?;
                let key_len = usize::from(u16_at(&page, offset + 6));
                let data = offset + NODE_HEADER_BYTES + key_len;
                let key = &page[offset + NODE_HEADER_BYTES..data];
                let is_next = |before: &Vec<u8>| compare(meta.flags, before, key).is_lt();
                if !before.as_ref().is_none_or(is_next) {
                    return Err(fail(format!(
                        "the key {:?} does not follow the one before it",
                        escape(key)
                    )));
                }
                before = Some(key.to_vec());
                if u16_at(&page, offset + 4) & BIG_DATA != 0 {
                    let bytes = u64::from(len) + PAGE_HEADER_BYTES as u64;
                    let (first, count) = (u64_at(&page, data), bytes.div_ceil(page_bytes));
                    let own = |what| format!("page {first}, of the key {:?}: {what}", escape(key));
                    seen.add(first, count).map_err(own)?;
                }
                nodes.push(Node {
                    at: at + offset as u64,
                    len,
                });
            }
        }
        if nodes.len() as u64 != meta.entries {
            return Err(format!(
                "its tree has {} values, the metadata says {}",
                nodes.len(),
                meta.entries
            ));
        }
        Ok(Self { page_bytes, nodes })
    }

    /// Reads the key and the value of a node.
    pub(super) fn value(
        &self,
        file: &ArchiveFile,
        node: Node,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<(), String> {
        let left = (self.page_bytes - node.at % self.page_bytes) as usize;
        let mut bytes = vec![0; left];
        read(file, node.at, &mut bytes)?;
        let len = leaf_node(&bytes, 0)?;
        if len != node.len {
            return Err("it changed while it was read".to_owned());
        }
        let (key_len, flags) = (usize::from(u16_at(&bytes, 6)), u16_at(&bytes, 4));
        let data = NODE_HEADER_BYTES + key_len;
        key.clear();
        key.extend_from_slice(&bytes[NODE_HEADER_BYTES..data]);
        value.clear();
        if u64::from(len) > MAX_RECORD_BYTES {
            return Err(format!(
                "its {len} bytes are more than the {MAX_RECORD_BYTES} of a record"
            ));
        }
        if flags & BIG_DATA == 0 {
            value.extend_from_slice(&bytes[data..data + len as usize]);
            return Ok(());
        }
        let number = u64_at(&bytes, data);
        let start = number.checked_mul(self.page_bytes);
        let bytes = u64::from(len) + PAGE_HEADER_BYTES as u64;
        let end = start.and_then(|start| start.checked_add(bytes));
        let (Some(start), true) = (start, end.is_some_and(|end| end <= file.len())) else {
            return Err(format!(
                "its {len} bytes from page {number} lie beyond the file"
            ));
        };
        let mut header = [0; PAGE_HEADER_BYTES];
        read(file, start, &mut header)?;
        let pages = u64::from(u32_at(&header, 12));
        let is_there = u64_at(&header, 0) == number && u16_at(&header, 10) & OVERFLOW != 0;
        if !is_there || pages * self.page_bytes < bytes {
            return Err(format!("page {number} does not have its {len} bytes"));
        }
        value.resize(len as usize, 0);
        read(file, start + PAGE_HEADER_BYTES as u64, value)
    }
}

/// The set of pages that are already used. Each page may belong to the tree or to one value only once.
struct SeenPages {
    count: u64,
    bits: Vec<u64>,
}

impl SeenPages {
    fn of(file: &ArchiveFile, page_bytes: u64) -> Self {
        let count = file.len() / page_bytes;
        Self {
            count,
            bits: vec![0; usize::try_from(count / 64 + 1).unwrap_or(0)],
        }
    }

    fn add(&mut self, first: u64, count: u64) -> Result<(), String> {
        let end = first.checked_add(count);
        let Some(end) = end.filter(|end| *end <= self.count) else {
            let all = self.count;
            return Err(format!("it lies beyond the {all} pages of the file"));
        };
        for number in first..end {
            let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
            if self.bits[word] & bit != 0 {
                return Err("it is in the tree twice".to_owned());
            }
            self.bits[word] |= bit;
        }
        Ok(())
    }
}

/// Compares keys in the order of a database with these flags.
fn compare(flags: u16, one: &[u8], other: &[u8]) -> Ordering {
    if flags & INTEGER_KEY != 0 {
        let number = |key: &[u8]| {
            key.iter()
                .rev()
                .fold(0u64, |all, byte| all << 8 | u64::from(*byte))
        };
        return number(one).cmp(&number(other));
    }
    match flags & REVERSE_KEY != 0 {
        true => one.iter().rev().cmp(other.iter().rev()),
        false => one.cmp(other),
    }
}

/// Returns the offsets of the nodes in a page.
fn node_offsets(page: &[u8]) -> Result<Vec<usize>, String> {
    let lower = usize::from(u16_at(page, 12));
    if lower < PAGE_HEADER_BYTES || lower > page.len() || !lower.is_multiple_of(2) {
        return Err(format!("its list of nodes ends at {lower}"));
    }
    let offsets = page[PAGE_HEADER_BYTES..lower].chunks_exact(2);
    let offsets = offsets.map(|two| usize::from(u16::from_le_bytes([two[0], two[1]])));
    let offsets: Vec<usize> = offsets.collect();
    let is_inside = |at: &usize| *at >= lower && at + NODE_HEADER_BYTES <= page.len();
    match offsets.iter().find(|at| !is_inside(at)) {
        Some(at) => Err(format!("a node at {at} lies outside of it")),
        None => Ok(offsets),
    }
}

/// Checks a node of a leaf page. Returns the size of its value in bytes.
fn leaf_node(page: &[u8], offset: usize) -> Result<u32, String> {
    let node = &page[offset..];
    let (len, flags) = (u32_at(node, 0), u16_at(node, 4));
    if flags & (SUB_DATA | DUP_DATA) != 0 {
        return Err("a node is a database with a name, or several values of a key: copy the records into the main database of a file".to_owned());
    }
    let data = NODE_HEADER_BYTES + usize::from(u16_at(node, 6));
    let own = match flags & BIG_DATA != 0 {
        true => 8,
        false => len as usize,
    };
    match data.checked_add(own).is_some_and(|end| end <= node.len()) {
        true => Ok(len),
        false => Err(format!("the node at {offset} reaches beyond it")),
    }
}

fn read(file: &ArchiveFile, at: u64, out: &mut [u8]) -> Result<(), String> {
    file.read_exact_at(out, at)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => format!("offset {at}: it is cut short"),
            _ => format!("offset {at}: {error}"),
        })
}
