//! Image files that a format lists one by one, presented as one file of records.

use super::annotation_files::read_listed;
use super::{RecordFile, RecordReader, SourceRecord};
use crate::annotation_size::{SizeFit, compare, header_size};
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason, escape};
use forebay_shard::ExampleBuilder;
use forebay_shard::schema::{Column, ColumnValue};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Image files that a list or annotations name.
pub(super) trait ImageFiles: fmt::Debug + Send + Sync {
    /// Estimated bytes of a record in addition to its files, to split records into shards.
    const RECORD_BYTES: u64 = 512;

    /// Returns the path that stands for all image files, such as the list.
    fn path(&self) -> &Path;

    fn count(&self) -> usize;

    /// Returns an image. Panics if `number` is not below [`count`](Self::count).
    fn image(&self, number: usize) -> ImageFile<'_>;

    /// Appends the record of an image that was read. [`Error::Record`] leaves the image out; other errors stop reading.
    fn encode(&self, number: usize, image: &ReadImage<'_>, out: &mut Vec<u8>) -> Result<()>;
}

/// An image file of a list.
pub(super) struct ImageFile<'a> {
    /// Directory that the name is relative to.
    pub(super) dir: &'a Path,
    /// File name, which is also the key of the record.
    pub(super) name: &'a Path,
    /// Size at the time of listing.
    pub(super) bytes: u64,
    /// Bytes of the files that belong to the image, such as masks.
    pub(super) more_bytes: u64,
    pub(super) label: Option<i64>,
    /// Line number in the list, if the source is a list.
    pub(super) line: Option<u32>,
    /// Width and height in the annotation, if the annotation has coordinates.
    pub(super) declared: Option<[f64; 2]>,
}

/// The bytes of an image.
pub(super) struct ReadImage<'a> {
    pub(super) bytes: &'a [u8],
    /// Width and height from its header if the annotation or masks depend on them, otherwise zeros.
    pub(super) size: [u32; 2],
}

impl ImageFile<'_> {
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(self.name)
    }

    fn stored_bytes(&self) -> u64 {
        self.bytes + self.more_bytes
    }
}

/// All images of a list as one file of records.
#[derive(Debug)]
pub(super) struct ListedImages<L>(pub(super) L);

impl<L: ImageFiles> RecordFile for ListedImages<L> {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn bytes(&self) -> u64 {
        let images = (0..self.0.count()).map(|number| self.0.image(number));
        images.map(|image| image.stored_bytes()).sum()
    }

    fn records(&self) -> u64 {
        self.0.count() as u64
    }

    fn record_bytes(&self, record: u64) -> u64 {
        match record < self.records() {
            true => self.0.image(record as usize).stored_bytes() + L::RECORD_BYTES,
            false => 0,
        }
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        Ok(Box::new(Reader {
            images: &self.0,
            next: records.start,
            end: records.end.min(self.records()),
            record: Vec::new(),
            remarks: Vec::new(),
        }))
    }
}

/// Appends a record with these columns and lists of byte strings. A column without a value is left out. `path` is the path of
/// the image, for errors.
pub(super) fn encode_columns<'a>(
    columns: &[Column],
    value: impl Fn(&Column) -> Option<ColumnValue<'a>>,
    lists: &[(&str, Vec<&[u8]>)],
    path: impl Fn() -> PathBuf,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut builder = ExampleBuilder::new();
    let features: Vec<_> = columns.iter().map(Column::features).collect();
    for (column, features) in columns.iter().zip(&features) {
        if let Some(value) = value(column) {
            let added = column.add(features, &value, &mut builder);
            added.map_err(|error| Error::source(path(), error.to_string()))?;
        }
    }
    for (name, values) in lists {
        builder.add_bytes_list(name, values);
    }
    builder.encode_into(out);
    Ok(())
}

struct Reader<'a, L> {
    images: &'a L,
    next: u64,
    end: u64,
    record: Vec<u8>,
    remarks: Vec<Finding>,
}

impl<L: ImageFiles> RecordReader for Reader<'_, L> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let (number, images) = (self.next, self.images);
        if number >= self.end {
            return Ok(None);
        }
        self.next += 1;
        let image = images.image(number as usize);
        let key = image.name.as_os_str().as_encoded_bytes();
        let bytes = read_listed(&image.path(), image.bytes)?;
        let refused = |what: String| {
            let what = format!("{}: {what}", escape(key));
            let (path, what) = match image.line {
                Some(line) => (images.path(), format!("line {line}: {what}")),
                None => (image.dir, what),
            };
            Error::record(path, number, what)
        };
        crate::sniff::check_image(&bytes).map_err(refused)?;
        let size = match image.declared.is_some() || image.more_bytes > 0 {
            true => header_size(&bytes).map_err(refused)?,
            false => [0; 2],
        };
        if let Some(declared) = image.declared
            && compare(declared, size).map_err(refused)? == SizeFit::Scaled
        {
            let [of, own] = [declared, size.map(f64::from)].map(|[w, h]| format!("{w}x{h}"));
            let detail = format!("from {of} to {own}");
            let remark = Finding::new(Action::Kept, Reason::ScaledBoxes, key, detail);
            self.remarks.push(remark);
        }
        self.record.clear();
        let read = ReadImage {
            bytes: &bytes,
            size,
        };
        images.encode(number as usize, &read, &mut self.record)?;
        Ok(Some(SourceRecord {
            number,
            bytes: &self.record,
            label: image.label,
            key,
        }))
    }

    fn take_remarks(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.remarks)
    }
}
