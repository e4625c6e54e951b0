//! The datasets of an HDF5 file, and their rows.
//!
//! The decoder is `hdf5-reader`, which has limits for untrusted files. It follows links inside the file. Links to other files
//! and dangling links become findings. Its panics on damaged files become errors.

use super::{links, lzf};
use crate::archive::{Archive, ArchiveFile, FileVersion, ReadAt};
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason};
use crate::records::arrays::{ArrayFile, ArrayInfo, Element, RowReader, chunk_limit};
use forebay_image::catch_panic;
use forebay_shard::schema::NumberType;
use hdf5_reader::error::Error as Hdf5Error;
use hdf5_reader::filters::{FILTER_DEFLATE, FILTER_NBIT, FILTER_SCALEOFFSET, FILTER_SZIP};
use hdf5_reader::group::Group;
use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::filter_pipeline::FilterDescription;
use hdf5_reader::storage::DynStorage;
use hdf5_reader::{
    BlockCacheStorage, ByteOrder, Dataset, Datatype, FilterRegistry, H5Type, OpenOptions,
    RangeRequestStorage, SliceInfo, SliceInfoElem, StringSize, VarLenKind,
};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

/// Most bytes that the decoder may read at once, and most bytes of a batch of rows.
const MAX_READ_BYTES: usize = 1 << 30;
const BATCH_BYTES: u64 = 64 << 20;
/// Size of a batch in bytes, unless chunks are larger.
const READ_BYTES: u64 = 1 << 20;
/// Size of the chunk cache of a reader, so that each chunk is decompressed once. It grows if the chunks of one row need more.
const CACHE_BYTES: usize = 128 << 20;
/// Size and number of cached blocks for objects of a store.
const BLOCK_BYTES: usize = 4 << 20;
const BLOCKS: usize = 16;
/// Deepest nesting of groups, and most groups and datasets of a file.
const MAX_DEPTH: usize = 8;
const MAX_MEMBERS: usize = 4096;
/// Most parameters of an n-bit filter: a number has eight, and each array type around it adds two.
const MAX_NBIT_PARAMETERS: usize = 64;

/// An HDF5 file with its datasets.
#[derive(Debug)]
pub(super) struct Hdf5File {
    archive: Archive,
    version: FileVersion,
    arrays: Vec<ArrayInfo>,
    /// Links that were not followed, because they dangle or lead to another file: name and finding.
    unfollowed: Vec<(String, Finding)>,
}

impl Hdf5File {
    pub(super) fn open(archive: Archive) -> Result<Self> {
        let (version, file) = FileVersion::open(&archive)?;
        let members = guarded(|| {
            let file = open(file, CACHE_BYTES)?;
            let mut members = Members::default();
            members.list(&file, &file.root_group()?, "")?;
            Ok(members)
        });
        let members = members.map_err(|error| {
            let what = format!("it is not an HDF5 file, or damaged: {error}");
            Error::source(&version.path, what)
        })?;
        let unfollowed = members.unfollowed.into_iter().map(|link| {
            let (reason, leads) = match &link.file {
                Some(file) => (
                    Reason::Link,
                    format!("to {:?} in {file:?}, which is not read", link.path),
                ),
                None => (Reason::DanglingLink, format!("to {:?}", link.path)),
            };
            let place = format!("{}: {}", version.path.display(), link.name);
            let finding = Finding::new(Action::Skipped, reason, place.as_bytes(), leads);
            (link.name, finding)
        });
        Ok(Self {
            unfollowed: unfollowed.collect(),
            archive,
            version,
            arrays: members.arrays,
        })
    }

    /// Returns the bytes of all chunks that contain the rows of one chunk; 0 if the dataset has no chunks.
    fn band_bytes(&self, dataset: &Dataset, element_bytes: u64) -> Result<u64> {
        let Some(chunk) = dataset.chunks() else {
            return Ok(0);
        };
        let rows = chunk.first().copied().unwrap_or(1);
        let side_by_side = dataset.shape().iter().zip(&chunk).skip(1);
        let all = side_by_side.map(|(all, one)| {
            let one = u64::from(*one).max(1);
            all.div_ceil(one).saturating_mul(one)
        });
        let bytes = all.fold(
            element_bytes.saturating_mul(u64::from(rows)),
            u64::saturating_mul,
        );
        let most = chunk_limit(self.version.bytes);
        match bytes > most {
            true => Err(Error::source(
                &self.version.path,
                format!(
                    "dataset {:?}: the chunks of {rows} rows, {chunk:?} each, have {bytes} bytes, and at most {most} are read: write smaller chunks, as `h5repack -l CHUNK=` does",
                    dataset.name()
                ),
            )),
            false => Ok(bytes),
        }
    }
}

/// Opens a file with a storage that reads ranges.
fn open(file: ArchiveFile, cache: usize) -> Result<hdf5_reader::Hdf5File, Hdf5Error> {
    let (len, is_object) = (file.len(), file.is_object());
    let storage = RangeRequestStorage::new(len, move |offset, len| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    });
    let mut storage: DynStorage = Arc::new(storage);
    if is_object {
        storage = Arc::new(BlockCacheStorage::new(storage, BLOCK_BYTES, BLOCKS));
    }
    let mut filters = FilterRegistry::new();
    // The parameters of the filter are two versions and the size of a chunk.
    let lzf = move |filter: &FilterDescription, data: &[u8], _: usize| {
        let most = filter.client_data.get(2).copied().unwrap_or(0) as usize;
        lzf::decompress(data, most.min(cache)).map_err(Hdf5Error::InvalidData)
    };
    filters.register(lzf::FILTER, Box::new(lzf));
    let unpack_bits = move |filter: &FilterDescription, data: &[u8], element_bytes: usize| {
        unpack_bits(filter, data, element_bytes, cache)
    };
    filters.register(FILTER_NBIT, Box::new(unpack_bits));
    let options = OpenOptions::default()
        .with_filter_registry(filters)
        .with_chunk_cache_bytes(cache)
        .with_max_chunk_bytes(cache)
        .with_max_read_bytes(MAX_READ_BYTES);
    hdf5_reader::Hdf5File::from_storage_with_options(storage, options)
}

/// Runs the n-bit filter of the decoder, which recurses into the types in the parameters without a limit of its own.
fn unpack_bits(
    filter: &FilterDescription,
    data: &[u8],
    element_bytes: usize,
    most: usize,
) -> Result<Vec<u8>, Hdf5Error> {
    let given = filter.client_data.len();
    if given > MAX_NBIT_PARAMETERS {
        return Err(Hdf5Error::InvalidData(format!(
            "its n-bit filter has {given} parameters: at most {MAX_NBIT_PARAMETERS} are read"
        )));
    }
    FilterRegistry::new().apply_with_limit(filter, data, element_bytes, Some(most))
}

/// Runs the decoder and converts its panics to errors.
fn guarded<T>(decode: impl FnOnce() -> Result<T, Hdf5Error>) -> Result<T, io::Error> {
    match catch_panic(decode) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(Hdf5Error::Io(error))) => Err(error),
        Ok(Err(error)) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            error.to_string(),
        )),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the HDF5 decoder failed on it",
        )),
    }
}

/// The datasets of a file with their paths.
#[derive(Default)]
struct Members {
    arrays: Vec<ArrayInfo>,
    unfollowed: Vec<links::Link>,
    /// The addresses of the current group and its parents.
    above: Vec<u64>,
    groups: usize,
}

impl Members {
    /// Adds the datasets of a group and of its subgroups.
    fn list(
        &mut self,
        file: &hdf5_reader::Hdf5File,
        group: &Group,
        path: &str,
    ) -> Result<(), Hdf5Error> {
        let refused = |what: String| Err(Hdf5Error::InvalidData(what));
        if self.above.contains(&group.address()) {
            return refused(format!("{path:?} is a link to a group that it is in"));
        }
        if self.above.len() > MAX_DEPTH {
            return refused(format!("group {path:?} is nested deeper than {MAX_DEPTH}"));
        }
        self.groups += 1;
        let (groups, datasets) = group.member_names()?;
        if self.groups + groups.len() + self.arrays.len() + datasets.len() > MAX_MEMBERS {
            return refused(format!(
                "it has more than {MAX_MEMBERS} groups and datasets"
            ));
        }
        let known: BTreeSet<&String> = groups.iter().chain(&datasets).collect();
        for mut link in links::links(file, group)? {
            if !known.contains(&link.name) {
                link.name.insert_str(0, path);
                self.unfollowed.push(link);
            }
        }
        for name in datasets {
            let array = describe(file, group.dataset(&name), format!("{path}{name}"));
            self.arrays.push(array);
        }
        self.above.push(group.address());
        for name in groups {
            self.list(file, &group.group(&name)?, &format!("{path}{name}/"))?;
        }
        self.above.pop();
        Ok(())
    }
}

/// Describes a dataset as an array. A dataset that cannot be opened is described too, because the user may drop it.
fn describe(
    file: &hdf5_reader::Hdf5File,
    dataset: Result<Dataset, Hdf5Error>,
    name: String,
) -> ArrayInfo {
    let found = dataset.and_then(|dataset| {
        let element = match is_compressed_twice(file, &dataset)? {
            true => {
                let what = "is compressed by LZF and by another filter".to_owned();
                (Element::Other(what), 0, false)
            }
            false => element(&dataset)?,
        };
        Ok((dataset.shape().to_vec(), element))
    });
    let (shape, (element, width, is_big_endian)) = match found {
        Ok(found) => found,
        Err(error) => {
            let what = format!("cannot be opened: {error}");
            (Vec::new(), (Element::Other(what), 0, false))
        }
    };
    ArrayInfo {
        name,
        element,
        width,
        is_big_endian,
        shape,
    }
}

/// Returns whether LZF is combined with another decompressing filter, whose output would have no limit.
fn is_compressed_twice(file: &hdf5_reader::Hdf5File, dataset: &Dataset) -> Result<bool, Hdf5Error> {
    let expanding = [
        lzf::FILTER,
        FILTER_DEFLATE,
        FILTER_NBIT,
        FILTER_SCALEOFFSET,
        FILTER_SZIP,
    ];
    let header = file.get_or_parse_header(dataset.address())?;
    let mut pipelines = header.messages.iter().filter_map(|message| match message {
        HdfMessage::FilterPipeline(pipeline) => Some(&pipeline.filters),
        _ => None,
    });
    Ok(pipelines.any(|filters| {
        let all = filters
            .iter()
            .filter(|filter| expanding.contains(&filter.id));
        filters.iter().any(|filter| filter.id == lzf::FILTER) && all.count() > 1
    }))
}

/// Returns the type of a dataset's elements, their size in bytes, and whether they are big-endian.
fn element(dataset: &Dataset) -> Result<(Element, u64, bool), Hdf5Error> {
    let other = |what: String| Ok((Element::Other(what), 0, false));
    let mut datatype = dataset.dtype();
    let mut is_bool = false;
    if let Datatype::Enum { base, members } = datatype {
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        // h5py stores bool as this enumeration.
        is_bool = names == ["FALSE", "TRUE"];
        datatype = base;
    }
    let is_big = |order: &ByteOrder| *order == ByteOrder::BigEndian;
    Ok(match datatype {
        Datatype::FixedPoint { size: 1, .. } if is_bool => {
            (Element::Number(NumberType::Bool), 1, false)
        }
        Datatype::FixedPoint {
            size,
            signed,
            byte_order,
        } => {
            let number = match (size, signed) {
                (1, false) => NumberType::Uint8,
                (1, true) => NumberType::Int8,
                (2, false) => NumberType::Uint16,
                (2, true) => NumberType::Int16,
                (4, false) => NumberType::Uint32,
                (4, true) => NumberType::Int32,
                (8, false) => NumberType::Uint64,
                (8, true) => NumberType::Int64,
                _ => return other(format!("has integers of {size} bytes")),
            };
            (
                Element::Number(number),
                u64::from(*size),
                is_big(byte_order),
            )
        }
        Datatype::FloatingPoint { size, byte_order } => {
            // A number of two bytes is float16 or bfloat16, depending on the size of its exponent.
            let exponent = dataset.raw_datatype()?.get(13).copied();
            let number = match (size, exponent) {
                (2, Some(5)) => NumberType::Float16,
                (2, Some(8)) => NumberType::Bfloat16,
                (4, Some(8)) => NumberType::Float32,
                (8, Some(11)) => NumberType::Float64,
                _ => {
                    return other(format!(
                        "has floating-point numbers of {size} bytes that NumPy has not"
                    ));
                }
            };
            (
                Element::Number(number),
                u64::from(*size),
                is_big(byte_order),
            )
        }
        Datatype::String {
            size: StringSize::Fixed(size),
            ..
        } => (Element::Padded, u64::from(*size), false),
        Datatype::String {
            size: StringSize::Variable,
            ..
        }
        | Datatype::VarLen {
            kind: VarLenKind::String,
            ..
        } => (Element::Text, 0, false),
        Datatype::VarLen { base, .. } if matches!(**base, Datatype::FixedPoint { size: 1, .. }) => {
            (Element::Bytes, 0, false)
        }
        Datatype::Compound { .. } => return other("has a compound type".to_owned()),
        _ => return other("has elements of a type that no column holds".to_owned()),
    })
}

impl ArrayFile for Hdf5File {
    fn version(&self) -> &FileVersion {
        &self.version
    }

    fn arrays(&self) -> &[ArrayInfo] {
        &self.arrays
    }

    fn findings(&self) -> &[(String, Finding)] {
        &self.unfollowed
    }

    fn rows(&self, array: usize, first: u64) -> Result<Box<dyn RowReader + '_>> {
        let info = &self.arrays[array];
        let of_file = |error| Error::io(&self.version.path, "open", error);
        let open = |cache| -> Result<Dataset> {
            let file = self.version.reopen(&self.archive)?;
            guarded(|| open(file, cache)?.dataset(&info.name)).map_err(of_file)
        };
        let mut dataset = open(CACHE_BYTES)?;
        let element_bytes = guarded(|| dataset.raw_element_size()).map_err(of_file)? as u64;
        let band_bytes = self.band_bytes(&dataset, element_bytes)?;
        if band_bytes > CACHE_BYTES as u64 {
            dataset = open(band_bytes as usize)?;
        }
        let row = info.row_shape().iter().copied();
        let row_bytes = row.fold(element_bytes, u64::saturating_mul).max(1);
        let chunk = dataset.chunks().and_then(|dims| dims.first().copied());
        let chunk = u64::from(chunk.unwrap_or(1)).max(1);
        // A batch has whole chunks, unless a chunk is larger than the largest batch.
        let most = (BATCH_BYTES / row_bytes).max(1);
        let batch = ((READ_BYTES / row_bytes) / chunk * chunk)
            .max(chunk)
            .min(most);
        Ok(Box::new(DatasetRows {
            dataset,
            info,
            next: first,
            batch,
            buffer: Vec::new(),
            taken: 0,
            references: Vec::new(),
        }))
    }
}

/// An element as stored: a number, a fixed-length byte string, or a reference to a variable-length one.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Stored<const N: usize>([u8; N]);

impl<const N: usize> H5Type for Stored<N> {
    fn hdf5_type() -> Datatype {
        Datatype::Opaque {
            size: N as u32,
            tag: String::new(),
        }
    }

    fn from_bytes(bytes: &[u8], _: &Datatype) -> Result<Self, Hdf5Error> {
        let bytes = bytes.first_chunk::<N>().copied().map(Self);
        bytes.ok_or_else(|| Hdf5Error::InvalidData("an element is cut short".to_owned()))
    }

    fn element_size(_: &Datatype) -> usize {
        N
    }

    fn decode_vec(raw: &[u8], _: &Datatype, count: usize) -> Option<Result<Vec<Self>, Hdf5Error>> {
        let (elements, rest) = raw.as_chunks::<N>();
        let is_whole = elements.len() == count && rest.is_empty();
        is_whole.then(|| Ok(elements.iter().copied().map(Self).collect()))
    }

    fn native_copy_compatible(datatype: &Datatype) -> bool {
        hdf5_reader::dtype_element_size(datatype).is_ok_and(|size| size == N)
    }
}

/// An element of any size.
#[derive(Clone)]
struct StoredBytes(Vec<u8>);

impl H5Type for StoredBytes {
    fn hdf5_type() -> Datatype {
        Datatype::Opaque {
            size: 1,
            tag: String::new(),
        }
    }

    fn from_bytes(bytes: &[u8], _: &Datatype) -> Result<Self, Hdf5Error> {
        Ok(Self(bytes.to_vec()))
    }

    fn element_size(datatype: &Datatype) -> usize {
        hdf5_reader::dtype_element_size(datatype).unwrap_or(1)
    }
}

/// Reads the rows of a dataset, decoded in batches.
struct DatasetRows<'a> {
    dataset: Dataset,
    info: &'a ArrayInfo,
    next: u64,
    batch: u64,
    buffer: Vec<u8>,
    taken: usize,
    /// References to byte strings of variable length in reverse order: the next one is the last.
    references: Vec<Vec<u8>>,
}

impl DatasetRows<'_> {
    /// Decodes the next batch.
    fn decode(&mut self) -> Result<(), Hdf5Error> {
        let rows = self.info.shape.first().copied().unwrap_or(0);
        let end = (self.next / self.batch + 1)
            .saturating_mul(self.batch)
            .min(rows);
        if self.next >= end {
            let end = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(Hdf5Error::Io(end));
        }
        let mut selection = SliceInfo::all(self.info.shape.len());
        selection.selections[0] = SliceInfoElem::Slice {
            start: self.next,
            end,
            step: 1,
        };
        self.buffer = Vec::new();
        self.taken = 0;
        match (&self.info.element, self.info.width) {
            (Element::Text | Element::Bytes, _) => {
                let read = self.dataset.read_slice::<StoredBytes>(&selection)?;
                self.references
                    .extend(read.into_iter().map(|stored| stored.0));
                self.references.reverse();
            }
            (Element::Number(_), 1) => self.numbers::<1>(&selection)?,
            (Element::Number(_), 2) => self.numbers::<2>(&selection)?,
            (Element::Number(_), 4) => self.numbers::<4>(&selection)?,
            (Element::Number(_), 8) => self.numbers::<8>(&selection)?,
            _ => {
                let read = self.dataset.read_slice::<StoredBytes>(&selection)?;
                self.buffer
                    .extend(read.into_iter().flat_map(|stored| stored.0));
            }
        }
        self.next = end;
        Ok(())
    }

    fn numbers<const N: usize>(&mut self, selection: &SliceInfo) -> Result<(), Hdf5Error> {
        let read = self.dataset.read_slice::<Stored<N>>(selection)?;
        if !read.is_standard_layout() {
            return Err(Hdf5Error::InvalidData("decoded rows have gaps".to_owned()));
        }
        // Reuses the memory in which the elements were decoded.
        let (elements, _) = read.into_raw_vec_and_offset();
        let bytes: Vec<[u8; N]> = elements.into_iter().map(|stored| stored.0).collect();
        self.buffer = bytes.into_flattened();
        Ok(())
    }

    fn bytes(&mut self, rows: u64, out: &mut Vec<u8>) -> Result<(), Hdf5Error> {
        let mut left = rows.saturating_mul(self.info.row_bytes().unwrap_or(0));
        while left > 0 {
            if self.taken == self.buffer.len() {
                self.decode()?;
            }
            if out.is_empty() && self.taken == 0 && left == self.buffer.len() as u64 {
                std::mem::swap(out, &mut self.buffer);
                self.buffer.clear();
                return Ok(());
            }
            let there = &self.buffer[self.taken..];
            let len = there.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if len == 0 {
                return Err(Hdf5Error::InvalidData(
                    "a batch of rows is empty".to_owned(),
                ));
            }
            out.extend_from_slice(&there[..len]);
            self.taken += len;
            left -= len as u64;
        }
        Ok(())
    }
}

impl RowReader for DatasetRows<'_> {
    fn read(&mut self, rows: u64, out: &mut Vec<u8>) -> io::Result<()> {
        guarded(|| {
            if !matches!(self.info.element, Element::Text | Element::Bytes) {
                return self.bytes(rows, out);
            }
            for _ in 0..rows {
                if self.references.is_empty() {
                    self.decode()?;
                }
                let reference = self.references.pop().unwrap_or_default();
                out.extend(self.dataset.resolve_vlen_reference_bytes(&reference, 1)?);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unpacks a 16-bit number with 12 significant bits, nested in `arrays` array types.
    fn unpack(arrays: usize) -> Result<Vec<u8>, Hdf5Error> {
        let mut client_data = vec![0, 0, 1];
        client_data.extend([2, 2].repeat(arrays));
        client_data.extend([1, 2, 0, 12, 0]);
        client_data[0] = client_data.len() as u32;
        let filter = FilterDescription {
            id: FILTER_NBIT,
            name: None,
            client_data,
        };
        unpack_bits(&filter, &[0x12, 0x30], 2, 1 << 20)
    }

    #[test]
    fn types_of_n_bit_filters_nest_up_to_a_bound() {
        for arrays in [0, 1, 28] {
            assert_eq!(unpack(arrays).unwrap(), [0x23, 0x01]);
        }
        let error = unpack(1_000_000).unwrap_err().to_string();
        assert!(error.contains("at most 64 are read"), "{error}");
    }
}
