//! Writes arrays as datasets of an HDF5 file that libhdf5 1.8 and later read: a superblock of version 2, groups with links in
//! their object headers, contiguous datasets, and variable-length text in global heaps. All addresses follow from names, shapes
//! and lengths, so the file is written sequentially.

use crate::option_names::DROP_FEATURE;
use crate::records::arrays::{ArrayFormat, Element, SpooledArray, TextAs};
use forebay_shard::BlockCompression;
use forebay_shard::schema::NumberType;
use hdf5_reader::checksum::jenkins_lookup3;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};

const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";
const SUPERBLOCK_BYTES: u64 = 48;
/// Stands for an undefined address.
const UNDEFINED: u64 = u64::MAX;
/// Objects begin at multiples of this many bytes.
const ALIGNMENT: u64 = 8;
/// Size of a text reference in a dataset: length, address of the heap, and index in the heap.
const REFERENCE_BYTES: u64 = 16;
/// Size of the header of a heap, and of the header of each object in it.
const HEAP_HEADER_BYTES: u64 = 16;
/// Smallest heap in bytes, and most texts of a heap: their indexes start at 1 and have two bytes.
const HEAP_BYTES: u64 = 4096;
const HEAP_TEXTS: usize = 0xffff;
/// Types of messages in object headers.
const DATASPACE: u8 = 1;
const LINK_INFO: u8 = 2;
const DATATYPE: u8 = 3;
const FILL_VALUE: u8 = 5;
const LINK: u8 = 6;
const LAYOUT: u8 = 8;
const GROUP_INFO: u8 = 10;

pub(super) static FORMAT: ArrayFormat = ArrayFormat {
    title: "an HDF5 file",
    extension: super::EXTENSIONS[0],
    text: TextAs::Utf8,
    is_compressed: false,
    refuses: |_| false,
    encode,
};

fn encode(
    arrays: &mut [SpooledArray],
    _compression: BlockCompression,
    out: &mut dyn Write,
) -> io::Result<()> {
    let objects = objects(arrays)?;
    // The length of a header does not depend on the addresses in it.
    let mut next = SUPERBLOCK_BYTES;
    let mut places = Vec::new();
    for object in &objects {
        places.push(next);
        let header = object.header(&vec![0; objects.len()], 0, arrays)?;
        next = (next + header.len() as u64).next_multiple_of(ALIGNMENT);
    }
    let mut data = Vec::new();
    for array in &mut *arrays {
        let stored = Stored::new(array, next);
        next = stored.end.next_multiple_of(ALIGNMENT);
        data.push(stored);
    }
    let mut out = Output { out, at: 0 };
    out.put(&superblock(places[0], next))?;
    for (object, place) in objects.iter().zip(&places) {
        out.pad(*place)?;
        let at = match object {
            Object::Dataset(array) => data[*array].address(),
            Object::Group(_) => 0,
        };
        out.put(&object.header(&places, at, arrays)?)?;
    }
    for (array, stored) in arrays.iter_mut().zip(&data) {
        out.pad(stored.start)?;
        stored.write(array, &mut out)?;
    }
    out.pad(next)
}

/// Counts the written bytes.
struct Output<'a> {
    out: &'a mut dyn Write,
    at: u64,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Copies exactly `bytes` bytes.
    fn copy(&mut self, from: &mut dyn Read, bytes: u64) -> io::Result<()> {
        let copied = io::copy(&mut from.take(bytes), self.out)?;
        self.at += copied;
        match copied == bytes {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Writes zeros up to an address.
    fn pad(&mut self, address: u64) -> io::Result<()> {
        let zeros = address
            .checked_sub(self.at)
            .ok_or_else(|| io::Error::other("an object of the file is longer than its place"))?;
        self.copy(&mut io::repeat(0), zeros)
    }
}

fn superblock(root: u64, end: u64) -> Vec<u8> {
    let mut block = SIGNATURE.to_vec();
    // The version, and the sizes of addresses and lengths in bytes.
    block.extend([2, 8, 8, 0]);
    for address in [0, UNDEFINED, end, root] {
        block.extend(address.to_le_bytes());
    }
    with_checksum(block)
}

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(jenkins_lookup3(&bytes).to_le_bytes());
    bytes
}

/// An object of the file.
#[derive(Debug)]
enum Object {
    /// Links: the name, and the index among all objects.
    Group(Vec<(String, usize)>),
    /// The index among the arrays.
    Dataset(usize),
}

/// Returns the groups in the names of arrays and the datasets in them; the root group comes first.
fn objects(arrays: &[SpooledArray]) -> io::Result<Vec<Object>> {
    let mut objects = vec![Object::Group(Vec::new())];
    let mut groups = BTreeMap::from([(String::new(), 0)]);
    for (number, array) in arrays.iter().enumerate() {
        let refused = |what: &str| {
            let name = &array.name;
            io::Error::other(format!(
                "the array {name:?} {what}, which HDF5 has no place for: {DROP_FEATURE} leaves one out"
            ))
        };
        let parts: Vec<&str> = array.name.split('/').collect();
        if parts.iter().any(|part| matches!(*part, "" | "." | "..")) || array.name.contains('\0') {
            return Err(refused("has a part of its name that is none"));
        }
        let (mut parent, mut path) = (0, String::new());
        for (at, part) in parts.iter().enumerate() {
            path = format!("{path}/{part}");
            let is_last = at + 1 == parts.len();
            let known = groups.get(&path).copied();
            if let (Some(known), false) = (known, is_last) {
                parent = known;
                continue;
            }
            let next = objects.len();
            let Some(Object::Group(links)) = objects.get_mut(parent) else {
                return Err(refused("lies in another array"));
            };
            if known.is_some() || links.iter().any(|(name, _)| name == part) {
                return Err(refused(match is_last {
                    true => "has others in it",
                    false => "lies in another array",
                }));
            }
            links.push(((*part).to_owned(), next));
            objects.push(match is_last {
                true => Object::Dataset(number),
                false => Object::Group(Vec::new()),
            });
            if !is_last {
                groups.insert(path.clone(), next);
                parent = next;
            }
        }
    }
    Ok(objects)
}

impl Object {
    /// Returns the header of the object. `places` has the addresses of all objects, `data` is the address of its data.
    fn header(&self, places: &[u64], data: u64, arrays: &[SpooledArray]) -> io::Result<Vec<u8>> {
        let mut messages = Vec::new();
        match self {
            Self::Group(links) => {
                // No heap and no index of links: the links are messages in this header.
                let undefined = [UNDEFINED.to_le_bytes(), UNDEFINED.to_le_bytes()].concat();
                message(
                    LINK_INFO,
                    &[&[0, 0], undefined.as_slice()].concat(),
                    &mut messages,
                )?;
                message(GROUP_INFO, &[0, 0], &mut messages)?;
                for (name, object) in links {
                    // Flags: the name is UTF-8, and its length has two bytes.
                    let mut link = vec![1, 0x11, 1];
                    let len = u16::try_from(name.len()).map_err(io::Error::other)?;
                    link.extend(len.to_le_bytes());
                    link.extend(name.as_bytes());
                    link.extend(places[*object].to_le_bytes());
                    message(LINK, &link, &mut messages)?;
                }
            }
            Self::Dataset(array) => {
                let array = &arrays[*array];
                let rank = u8::try_from(array.shape.len()).map_err(io::Error::other)?;
                let mut dataspace = vec![2, rank, 0, 1];
                dataspace.extend(array.shape.iter().flat_map(|dim| dim.to_le_bytes()));
                message(DATASPACE, &dataspace, &mut messages)?;
                message(DATATYPE, &datatype(&array.element)?, &mut messages)?;
                // Late allocation, and a fill value only if one is set, which is not the case.
                message(FILL_VALUE, &[3, 0x0a], &mut messages)?;
                let bytes = stored_bytes(array);
                let mut layout = vec![3, 1];
                let address = if bytes == 0 { UNDEFINED } else { data };
                layout.extend(address.to_le_bytes());
                layout.extend(bytes.to_le_bytes());
                message(LAYOUT, &layout, &mut messages)?;
            }
        }
        let len = u32::try_from(messages.len()).map_err(io::Error::other)?;
        // The version, and a flag that the length has four bytes.
        let mut header = b"OHDR\x02\x02".to_vec();
        header.extend(len.to_le_bytes());
        header.extend(messages);
        Ok(with_checksum(header))
    }
}

fn message(kind: u8, content: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let len = u16::try_from(content.len()).map_err(io::Error::other)?;
    out.push(kind);
    out.extend(len.to_le_bytes());
    out.push(0);
    out.extend(content);
    Ok(())
}

/// Returns a datatype message: class and version, bit field of the class, size, and properties.
fn datatype(element: &Element) -> io::Result<Vec<u8>> {
    let integer = |bytes: usize, is_signed: bool| {
        let mut found = vec![0x10, if is_signed { 8 } else { 0 }, 0, 0];
        found.extend((bytes as u32).to_le_bytes());
        found.extend([0, 0, bytes as u8 * 8, 0]);
        found
    };
    // The sign bit is above the exponent, which is above the fraction.
    let float = |exponent: u8, fraction: u8| {
        let bits = exponent + fraction + 1;
        let mut found = vec![0x11, 0x20, bits - 1, 0];
        found.extend(u32::from(bits / 8).to_le_bytes());
        found.extend([0, 0, bits, 0, fraction, exponent, 0, fraction]);
        let bias = (1u32 << (exponent - 1)) - 1;
        found.extend(bias.to_le_bytes());
        found
    };
    Ok(match element {
        Element::Number(number) => match number {
            NumberType::Bool => {
                // The enumeration that h5py reads as bool.
                let mut found = vec![0x18, 2, 0, 0, 1, 0, 0, 0];
                found.extend(integer(1, true));
                found.extend(b"FALSE\0\0\0TRUE\0\0\0\0\0\x01");
                found
            }
            NumberType::Uint8 | NumberType::Uint16 | NumberType::Uint32 | NumberType::Uint64 => {
                integer(number.bytes(), false)
            }
            NumberType::Int8 | NumberType::Int16 | NumberType::Int32 | NumberType::Int64 => {
                integer(number.bytes(), true)
            }
            NumberType::Float16 => float(5, 10),
            NumberType::Bfloat16 => float(8, 7),
            NumberType::Float32 => float(8, 23),
            NumberType::Float64 => float(11, 52),
            other => {
                let what = format!("HDF5 has no numbers of type {}", other.name());
                return Err(io::Error::other(what));
            }
        },
        // Variable-length UTF-8 strings, based on bytes.
        Element::Text => {
            let mut found = vec![0x19, 1, 1, 0];
            found.extend((REFERENCE_BYTES as u32).to_le_bytes());
            found.extend(integer(1, false));
            found
        }
        _ => return Err(io::Error::other("HDF5 files get numbers and text only")),
    })
}

/// Returns the bytes of the dataset itself, without texts.
fn stored_bytes(array: &SpooledArray) -> u64 {
    match array.element {
        Element::Text => array.shape.iter().product::<u64>() * REFERENCE_BYTES,
        _ => array.bytes(),
    }
}

/// The texts of one heap.
#[derive(Debug)]
struct Heap {
    at: u64,
    texts: usize,
    /// Bytes of the header and of all texts.
    used: u64,
}

impl Heap {
    fn size(&self) -> u64 {
        self.used.max(HEAP_BYTES)
    }
}

/// The data of an array and its addresses in the file.
#[derive(Debug)]
struct Stored {
    start: u64,
    end: u64,
    lens: Vec<u32>,
    heaps: Vec<Heap>,
}

impl Stored {
    fn new(array: &mut SpooledArray, start: u64) -> Self {
        let lens = match array.element {
            Element::Text => array.take_lens(),
            _ => Vec::new(),
        };
        let mut end = start + stored_bytes(array);
        let mut heaps: Vec<Heap> = Vec::new();
        let mut heap = Heap {
            at: end,
            texts: 0,
            used: HEAP_HEADER_BYTES,
        };
        for len in &lens {
            let needed = heap_bytes(*len);
            if heap.texts == HEAP_TEXTS || (heap.texts > 0 && heap.used + needed > HEAP_BYTES) {
                end = heap.at + heap.size();
                heaps.push(std::mem::replace(
                    &mut heap,
                    Heap {
                        at: end,
                        texts: 0,
                        used: HEAP_HEADER_BYTES,
                    },
                ));
            }
            heap.used += needed;
            heap.texts += 1;
        }
        if heap.texts > 0 {
            end = heap.at + heap.size();
            heaps.push(heap);
        }
        Self {
            start,
            end,
            lens,
            heaps,
        }
    }

    fn address(&self) -> u64 {
        self.start
    }

    fn write(&self, array: &mut SpooledArray, out: &mut Output<'_>) -> io::Result<()> {
        let bytes = array.bytes();
        let is_text = array.element == Element::Text;
        let mut rows = array.reader()?;
        if !is_text {
            return out.copy(&mut rows, bytes);
        }
        let mut lens = self.lens.as_slice();
        for heap in &self.heaps {
            let (texts, rest) = lens.split_at(heap.texts);
            lens = rest;
            for (number, len) in texts.iter().enumerate() {
                let mut reference = len.to_le_bytes().to_vec();
                // An empty text is not stored in a heap.
                let (address, number) = match len {
                    0 => (0, 0),
                    _ => (heap.at, number as u32 + 1),
                };
                reference.extend(address.to_le_bytes());
                reference.extend(number.to_le_bytes());
                out.put(&reference)?;
            }
        }
        let mut lens = self.lens.as_slice();
        for heap in &self.heaps {
            let (texts, rest) = lens.split_at(heap.texts);
            lens = rest;
            out.pad(heap.at)?;
            out.put(b"GCOL\x01\0\0\0")?;
            out.put(&heap.size().to_le_bytes())?;
            for (number, len) in texts.iter().enumerate() {
                if *len == 0 {
                    continue;
                }
                out.put(&heap_object(number as u16 + 1, 1, u64::from(*len)))?;
                out.copy(&mut rows, u64::from(*len))?;
                out.pad(out.at.next_multiple_of(ALIGNMENT))?;
            }
            // The rest of the heap is a free-space object.
            let free = heap.at + heap.size() - out.at;
            if free >= HEAP_HEADER_BYTES {
                out.put(&heap_object(0, 0, free))?;
            }
            out.pad(heap.at + heap.size())?;
        }
        Ok(())
    }
}

/// Returns the bytes that a text takes in a heap.
fn heap_bytes(len: u32) -> u64 {
    match len {
        0 => 0,
        len => HEAP_HEADER_BYTES + u64::from(len).next_multiple_of(ALIGNMENT),
    }
}

/// Returns the header of an object in a heap: index, number of references, and size in bytes.
fn heap_object(number: u16, references: u16, bytes: u64) -> Vec<u8> {
    let mut header = number.to_le_bytes().to_vec();
    header.extend(references.to_le_bytes());
    header.extend([0; 4]);
    header.extend(bytes.to_le_bytes());
    header
}
