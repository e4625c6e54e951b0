//! Rows that are kept in temporary files until their number is known.

use super::layout::{Layout, Source, Stored, TextAs};
use super::{Element, OFFSETS};
use crate::error::Result;
use crate::records::sink::Scratch;
use forebay_shard::schema::NumberType;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};

const SPOOL_BYTES: usize = 256 << 10;

/// An array whose rows are in a temporary file.
#[derive(Debug)]
pub(in crate::records) struct SpooledArray {
    pub(in crate::records) name: String,
    pub(in crate::records) element: Element,
    pub(in crate::records) shape: Vec<u64>,
    /// Bytes of an element.
    pub(in crate::records) width: u64,
    rows: File,
    /// The length of each row of text in the temporary file; rows of fixed-width text are padded when they are read.
    lens: Option<Vec<u32>>,
}

impl SpooledArray {
    pub(in crate::records) fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.width
    }

    /// Returns the length of each text. Afterwards rows are not padded.
    pub(in crate::records) fn take_lens(&mut self) -> Vec<u32> {
        self.lens.take().unwrap_or_default()
    }

    /// Returns a reader of the rows, from the first one.
    pub(in crate::records) fn reader(&mut self) -> io::Result<impl Read + '_> {
        self.rows.rewind()?;
        Ok(Rows {
            file: BufReader::with_capacity(SPOOL_BYTES, &self.rows),
            lens: self.lens.as_deref(),
            width: self.width as usize,
            row: Vec::new(),
            taken: 0,
        })
    }
}

/// Reads the rows of an array and pads text to its width.
struct Rows<'a> {
    file: BufReader<&'a File>,
    lens: Option<&'a [u32]>,
    width: usize,
    row: Vec<u8>,
    taken: usize,
}

impl Read for Rows<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some(lens) = &mut self.lens else {
            return self.file.read(out);
        };
        while self.taken == self.row.len() {
            let Some((len, rest)) = lens.split_first() else {
                return Ok(0);
            };
            *lens = rest;
            self.row.resize(*len as usize, 0);
            self.file.read_exact(&mut self.row)?;
            self.row.resize(self.width, 0);
            self.taken = 0;
            if self.width == 0 {
                return Ok(0);
            }
        }
        let there = &self.row[self.taken..];
        let len = there.len().min(out.len());
        out[..len].copy_from_slice(&there[..len]);
        self.taken += len;
        Ok(len)
    }
}

/// Collects the rows of an array.
pub(super) struct Spool {
    name: String,
    data: BufWriter<File>,
    /// Number of elements in all rows.
    count: u64,
    /// For rows of variable length: the number of elements up to the end of each row.
    ends: Option<BufWriter<File>>,
    /// For text without offsets: the bytes of each text, and of the longest one.
    lens: Option<(Vec<u32>, u32)>,
    text: TextAs,
    number: NumberType,
    /// The dimensions of a row, or of an element if rows have variable length.
    shape: Vec<u64>,
}

impl Spool {
    pub(super) fn new(
        name: &str,
        source: &Source,
        layout: &Layout,
        scratch: Scratch<'_>,
    ) -> Result<Self> {
        let buffered = || scratch().map(|file| BufWriter::with_capacity(SPOOL_BYTES, file));
        let is_text = matches!(source.stored, Stored::Text | Stored::Key);
        let (number, shape) = match &source.stored {
            Stored::Fixed(number, shape) | Stored::Ragged(number, shape) => {
                (*number, shape.clone())
            }
            Stored::Label => (NumberType::Int64, Vec::new()),
            Stored::Text | Stored::Key => (NumberType::Uint8, Vec::new()),
            Stored::Pixels => {
                let [height, width, channels] = layout.image.unwrap_or([0, 0, 3]);
                let shape = match channels {
                    1 => vec![height, width],
                    channels => vec![height, width, channels],
                };
                (NumberType::Uint8, shape)
            }
        };
        let has_lens = is_text && layout.text != TextAs::Ragged;
        let is_ragged = (is_text && !has_lens) || matches!(source.stored, Stored::Ragged(..));
        let mut ends = None;
        if is_ragged {
            let mut file = buffered()?;
            let begun = file.write_all(&0u64.to_le_bytes());
            begun.map_err(|error| crate::Error::io(name, "write offsets of", error))?;
            ends = Some(file);
        }
        Ok(Self {
            name: name.to_owned(),
            data: buffered()?,
            count: 0,
            ends,
            lens: has_lens.then(|| (Vec::new(), 0)),
            text: layout.text,
            number,
            shape,
        })
    }

    /// Returns the bytes of a row, or of an element if rows have variable length.
    fn element_bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.number.bytes() as u64
    }

    /// Returns an error if a row cannot be appended.
    pub(super) fn check(&self, row: &[u8]) -> std::result::Result<(), String> {
        if self.lens.is_some() {
            if self.text != TextAs::Utf8 && row.ends_with(b"\0") {
                let what = "a text that ends with a zero would be read back without it";
                return Err(what.to_owned());
            }
        } else if self.ends.is_none() && row.len() as u64 != self.element_bytes() {
            return Err(format!(
                "{} bytes are not a row of shape {:?}",
                row.len(),
                self.shape
            ));
        }
        Ok(())
    }

    /// Appends the bytes of a row that was checked.
    pub(super) fn put(&mut self, row: &[u8]) -> io::Result<()> {
        let element = self.element_bytes();
        if let Some(ends) = &mut self.ends {
            self.count += row.len() as u64 / element.max(1);
            ends.write_all(&self.count.to_le_bytes())?;
        } else if let Some((lens, _)) = &mut self.lens
            && self.text == TextAs::Utf8
        {
            lens.push(u32::try_from(row.len()).unwrap_or(u32::MAX));
        } else if let Some((lens, longest)) = &mut self.lens {
            let text = String::from_utf8_lossy(row);
            let len = u32::try_from(text.chars().count() * 4).unwrap_or(u32::MAX);
            lens.push(len);
            *longest = (*longest).max(len);
            for character in text.chars() {
                self.data.write_all(&u32::from(character).to_le_bytes())?;
            }
            return Ok(());
        }
        self.data.write_all(row)
    }

    /// Returns the arrays of `rows` rows: the values, and the offsets if there are any.
    pub(super) fn finish(self, rows: u64, arrays: &mut Vec<SpooledArray>) -> io::Result<()> {
        let data = self.data.into_inner()?;
        let mut shape = self.shape;
        let mut width = self.number.bytes() as u64;
        let mut element = Element::Number(self.number);
        shape.insert(
            0,
            if self.ends.is_some() {
                self.count
            } else {
                rows
            },
        );
        let mut lens = None;
        if let Some((all, longest)) = self.lens {
            (element, width) = match self.text {
                TextAs::Utf8 => (Element::Text, 0),
                // NumPy has no text type of width 0.
                _ => (Element::Utf32, u64::from(longest.max(4))),
            };
            lens = Some(all);
        }
        arrays.push(SpooledArray {
            name: self.name.clone(),
            element,
            shape,
            width,
            rows: data,
            lens,
        });
        if let Some(ends) = self.ends {
            arrays.push(SpooledArray {
                name: format!("{}{OFFSETS}", self.name),
                element: Element::Number(NumberType::Int64),
                shape: vec![rows + 1],
                width: 8,
                rows: ends.into_inner()?,
                lens: None,
            });
        }
        Ok(())
    }
}
