//! Columns of a batch: further values of its samples, which follow the pixels in the same payload.
//!
//! The arrays of all columns follow the images in order, each aligned to [`ALIGNMENT`]. So the
//! offset of an array follows from the sizes before it, and a peer that sends another offset is
//! refused. Offsets of ragged columns are not in the payload: another process may change shared
//! memory at any time, and offsets are used as indexes.

use std::collections::BTreeSet;

use super::InconsistentBatch;

/// Arrays of columns start at multiples of this many bytes of the payload.
pub const ALIGNMENT: usize = 64;
/// Most columns of a batch.
pub const MAX_COLUMNS: usize = 256;
/// Longest name of a column, in bytes.
const MAX_NAME_BYTES: usize = 200;
/// Most dimensions of an array: the samples, and up to eight of a tensor.
const MAX_DIMENSIONS: usize = 9;

macro_rules! elements {
    ($($variant:ident $name:literal $bytes:literal,)*) => {
        /// The type of the elements of a column, little-endian.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Element {
            $(
                #[doc = concat!("\"", $name, "\", as in NumPy.")]
                $variant,
            )*
        }

        impl Element {
            /// All types.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name, as in NumPy.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the size of an element in bytes.
            #[must_use]
            pub const fn bytes(self) -> usize {
                match self {
                    $(Self::$variant => $bytes,)*
                }
            }
        }
    };
}

elements! {
    Bool "bool" 1,
    Uint8 "uint8" 1,
    Int8 "int8" 1,
    Uint16 "uint16" 2,
    Int16 "int16" 2,
    Uint32 "uint32" 4,
    Int32 "int32" 4,
    Uint64 "uint64" 8,
    Int64 "int64" 8,
    Float16 "float16" 2,
    Bfloat16 "bfloat16" 2,
    Float32 "float32" 4,
    Float64 "float64" 8,
}

impl Element {
    /// Returns the type with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|element| element.name() == name)
    }
}

/// The content of a column, which determines its arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ColumnKind {
    /// Numbers. Without offsets one array of shape (N, ...); with offsets (values, ...).
    Numbers,
    /// Tensors of varying shapes, with offsets: all numbers one after the other, and shapes, int64
    /// (N, dimensions).
    Tensors,
    /// UTF-8, with offsets: uint8 (bytes).
    Text,
    /// Byte strings, with offsets: uint8 (bytes).
    Bytes,
    /// JSON documents, with offsets: uint8 (bytes).
    Json,
    /// Boxes, with offsets: corners as x, y, x, y in pixels, float32 (boxes, 4), and labels, int64
    /// (boxes).
    Boxes,
    /// Keypoints, with offsets: x, y in pixels, float32 (points, 2), and visibility, int64
    /// (points).
    Keypoints,
}

impl ColumnKind {
    /// All kinds.
    pub const ALL: [ColumnKind; 7] = [
        ColumnKind::Numbers,
        ColumnKind::Tensors,
        ColumnKind::Text,
        ColumnKind::Bytes,
        ColumnKind::Json,
        ColumnKind::Boxes,
        ColumnKind::Keypoints,
    ];

    /// Returns the number of arrays of the column.
    const fn arrays(self) -> usize {
        match self {
            ColumnKind::Numbers | ColumnKind::Text | ColumnKind::Bytes | ColumnKind::Json => 1,
            ColumnKind::Tensors | ColumnKind::Boxes | ColumnKind::Keypoints => 2,
        }
    }

    /// Returns whether array `number` may have this element type, and these dimensions after the
    /// first one.
    fn allows(self, number: usize, element: Element, row: &[usize]) -> bool {
        match (self, number) {
            (ColumnKind::Numbers, _) => true,
            (ColumnKind::Tensors, 0) => row.is_empty(),
            (ColumnKind::Tensors, _) => element == Element::Int64 && row.len() == 1,
            (ColumnKind::Text | ColumnKind::Bytes | ColumnKind::Json, _) => {
                element == Element::Uint8 && row.is_empty()
            }
            (ColumnKind::Boxes, 0) => element == Element::Float32 && row == [4],
            (ColumnKind::Keypoints, 0) => element == Element::Float32 && row == [2],
            (ColumnKind::Boxes | ColumnKind::Keypoints, _) => {
                element == Element::Int64 && row.is_empty()
            }
        }
    }

    /// Returns whether array `number` has one row for each sample, although the column has
    /// offsets.
    fn is_by_sample(self, number: usize) -> bool {
        self == ColumnKind::Tensors && number == 1
    }
}

/// An array of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnArray {
    /// Type of its elements.
    pub element: Element,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Offset of its first byte in the payload; [`place`] sets it.
    pub start: usize,
}

impl ColumnArray {
    /// Creates an array with `start` 0; [`place`] sets the real offset.
    #[must_use]
    pub fn new(element: Element, shape: Vec<usize>) -> Self {
        ColumnArray {
            element,
            shape,
            start: 0,
        }
    }

    /// Returns its size in bytes; `None` on overflow.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        let product = |bytes: usize, &len: &usize| bytes.checked_mul(len);
        self.shape.iter().try_fold(self.element.bytes(), product)
    }
}

/// A column of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchColumn {
    /// Name, as in the schema of the dataset.
    pub name: String,
    /// Its content.
    pub kind: ColumnKind,
    /// Start of each sample's values in the first axis of the arrays, followed by the end of the
    /// last one. `None` if each sample has one row.
    pub offsets: Option<Vec<i64>>,
    /// Its arrays; the kind determines their number.
    pub arrays: Vec<ColumnArray>,
}

impl BatchColumn {
    /// Keeps only the first `samples` samples. The offsets of arrays in the payload do not change.
    pub(crate) fn truncate(&mut self, samples: usize) {
        let rows = self.offsets.as_mut().map_or(samples, |offsets| {
            offsets.truncate(samples + 1);
            let end = offsets.last().copied().unwrap_or(0);
            usize::try_from(end).unwrap_or(0)
        });
        for (number, array) in self.arrays.iter_mut().enumerate() {
            array.shape[0] = match self.kind.is_by_sample(number) {
                true => samples,
                false => rows,
            };
        }
    }
}

/// Sets the offsets of the arrays of columns, which follow `pixels` bytes of images. Returns the
/// size of the payload in bytes; `None` on overflow.
#[must_use]
pub fn place(columns: &mut [BatchColumn], pixels: usize) -> Option<usize> {
    let mut end = pixels;
    for array in columns.iter_mut().flat_map(|column| &mut column.arrays) {
        array.start = end.checked_next_multiple_of(ALIGNMENT)?;
        end = array.start.checked_add(array.bytes()?)?;
    }
    Some(end)
}

/// Checks that columns are valid for `samples` samples and that arrays are at the offsets that
/// [`place`] sets. Returns the size of the payload with `pixels` bytes of images.
pub(crate) fn check(
    columns: &[BatchColumn],
    samples: usize,
    pixels: usize,
) -> Result<usize, InconsistentBatch> {
    let same = |what: &str, name: &str, expected, found| match expected == found {
        true => Ok(()),
        false => Err(InconsistentBatch {
            what: format!("{what} of column {name:?}").into(),
            expected,
            found,
        }),
    };
    if columns.len() > MAX_COLUMNS {
        return Err(InconsistentBatch {
            what: "columns".into(),
            expected: MAX_COLUMNS,
            found: columns.len(),
        });
    }
    let mut names = BTreeSet::new();
    let mut end = pixels;
    for column in columns {
        let name = column.name.as_str();
        let is_good = (1..=MAX_NAME_BYTES).contains(&name.len());
        let cut: String = name.chars().take(20).collect();
        same("valid names", &cut, 1, usize::from(is_good))?;
        same(
            "columns with the name",
            name,
            1,
            1 + usize::from(!names.insert(name)),
        )?;
        let rows = match &column.offsets {
            None => samples,
            Some(offsets) => {
                same("offsets", name, samples.saturating_add(1), offsets.len())?;
                let ascending = offsets.first() == Some(&0) && offsets.is_sorted();
                same("ascending offsets from 0", name, 1, usize::from(ascending))?;
                let last = offsets.last().copied().unwrap_or(0);
                usize::try_from(last).unwrap_or(usize::MAX)
            }
        };
        let is_ragged = column.offsets.is_some() || column.kind == ColumnKind::Numbers;
        same("lists of offsets", name, 1, usize::from(is_ragged))?;
        same("arrays", name, column.kind.arrays(), column.arrays.len())?;
        for (number, array) in column.arrays.iter().enumerate() {
            let fits = (1..=MAX_DIMENSIONS).contains(&array.shape.len())
                && column.kind.allows(number, array.element, &array.shape[1..]);
            same(
                "arrays of its kind",
                name,
                number + 1,
                number + usize::from(fits),
            )?;
            let expected = match column.kind.is_by_sample(number) {
                true => samples,
                false => rows,
            };
            same("rows", name, expected, array.shape[0])?;
            let start = end
                .checked_next_multiple_of(ALIGNMENT)
                .unwrap_or(usize::MAX);
            same("start", name, start, array.start)?;
            let after = array.bytes().and_then(|bytes| start.checked_add(bytes));
            end = after.unwrap_or(usize::MAX);
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(
        name: &str,
        kind: ColumnKind,
        offsets: Option<&[i64]>,
        arrays: &[(Element, &[usize])],
    ) -> BatchColumn {
        let arrays = arrays
            .iter()
            .map(|(element, shape)| ColumnArray::new(*element, shape.to_vec()));
        BatchColumn {
            name: name.to_owned(),
            kind,
            offsets: offsets.map(<[i64]>::to_vec),
            arrays: arrays.collect(),
        }
    }

    /// Returns a column of each kind, for two samples.
    fn each_kind() -> Vec<BatchColumn> {
        use ColumnKind::{Boxes, Bytes, Keypoints, Numbers, Tensors, Text};
        use Element::{Float32, Int16, Int64, Uint8};
        vec![
            column("age", Numbers, None, &[(Int64, &[2])]),
            column("tags", Numbers, Some(&[0, 3, 3]), &[(Int64, &[3])]),
            column(
                "grid",
                Tensors,
                Some(&[0, 6, 7]),
                &[(Int16, &[7]), (Int64, &[2, 2])],
            ),
            column("caption", Text, Some(&[0, 0, 5]), &[(Uint8, &[5])]),
            column("raw", Bytes, Some(&[0, 0, 0]), &[(Uint8, &[0])]),
            column(
                "boxes",
                Boxes,
                Some(&[0, 1, 3]),
                &[(Float32, &[3, 4]), (Int64, &[3])],
            ),
            column(
                "points",
                Keypoints,
                Some(&[0, 0, 1]),
                &[(Float32, &[1, 2]), (Int64, &[1])],
            ),
        ]
    }

    #[test]
    fn columns_keep_their_first_samples() {
        let rows = |column: &BatchColumn| -> Vec<usize> {
            column.arrays.iter().map(|array| array.shape[0]).collect()
        };
        let mut columns = each_kind();
        place(&mut columns, 10).unwrap();
        let before = columns.clone();
        for (column, expected) in
            columns
                .iter_mut()
                .zip([&[1][..], &[3], &[6, 1], &[0], &[0], &[1, 1], &[0, 0]])
        {
            column.truncate(1);
            assert_eq!(rows(column), expected, "{}", column.name);
            assert!(
                column
                    .offsets
                    .as_ref()
                    .is_none_or(|offsets| offsets.len() == 2)
            );
        }
        let starts = |columns: &[BatchColumn]| -> Vec<usize> {
            let arrays = columns.iter().flat_map(|column| &column.arrays);
            arrays.map(|array| array.start).collect()
        };
        assert_eq!(starts(&columns), starts(&before));
    }

    #[test]
    fn arrays_follow_the_images() {
        let mut columns = each_kind();
        let bytes = place(&mut columns, 100).unwrap();
        assert_eq!(check(&columns, 2, 100), Ok(bytes));
        let starts: Vec<usize> = columns
            .iter()
            .flat_map(|c| &c.arrays)
            .map(|a| a.start)
            .collect();
        assert_eq!(starts, [128, 192, 256, 320, 384, 448, 448, 512, 576, 640]);
        assert_eq!(bytes, 648);
        assert_eq!(place(&mut [], 100), Some(100));
    }

    #[test]
    fn hostile_columns_are_refused() {
        type Change = fn(&mut Vec<BatchColumn>);
        let changes: [(&str, Change); 20] = [
            ("start of column \"age\"", |c| c[0].arrays[0].start += 64),
            ("start of column \"age\"", |c| c[0].arrays[0].start = 0),
            ("start of column \"tags\"", |c| c[1].arrays[0].start += 8),
            ("start of column \"tags\"", |c| {
                c[1].arrays[0].start = c[0].arrays[0].start
            }),
            ("rows of column \"age\"", |c| c[0].arrays[0].shape[0] = 3),
            ("rows of column \"tags\"", |c| {
                c[1].arrays[0].shape[0] = usize::MAX
            }),
            ("rows of column \"tags\"", |c| {
                c[1].offsets.as_mut().unwrap()[2] = i64::MAX
            }),
            ("offsets of column \"tags\"", |c| {
                c[1].offsets.as_mut().unwrap().truncate(2)
            }),
            ("ascending offsets from 0 of column \"tags\"", |c| {
                c[1].offsets = Some(vec![0, 4, 3])
            }),
            ("ascending offsets from 0 of column \"tags\"", |c| {
                c[1].offsets = Some(vec![1, 3, 3])
            }),
            ("ascending offsets from 0 of column \"tags\"", |c| {
                c[1].offsets = Some(vec![-1, 0, 3])
            }),
            ("lists of offsets of column \"grid\"", |c| {
                c[2].offsets = None
            }),
            ("arrays of column \"grid\"", |c| c[2].arrays.truncate(1)),
            ("arrays of column \"age\"", |c| c[0].arrays.clear()),
            ("arrays of its kind of column \"age\"", |c| {
                c[0].arrays[0].shape.clear()
            }),
            ("arrays of its kind of column \"age\"", |c| {
                c[0].arrays[0].shape = vec![2; 10]
            }),
            ("arrays of its kind of column \"caption\"", |c| {
                c[3].arrays[0].element = Element::Int8
            }),
            ("arrays of its kind of column \"boxes\"", |c| {
                c[5].arrays[0].shape[1] = 5
            }),
            ("valid names of column \"\"", |c| c[6].name.clear()),
            ("columns with the name of column \"age\"", |c| {
                c[6].name = "age".to_owned()
            }),
        ];
        for (what, change) in changes {
            let mut columns = each_kind();
            place(&mut columns, 100).unwrap();
            change(&mut columns);
            assert_eq!(check(&columns, 2, 100).unwrap_err().what, what);
        }
        // If a shape overflows, no offset is set, and `check` returns a size that no payload has.
        let mut columns = vec![column(
            "a",
            ColumnKind::Numbers,
            None,
            &[(Element::Int64, &[2, usize::MAX])],
        )];
        assert_eq!(place(&mut columns, 0), None);
        assert_eq!(check(&columns, 2, 0), Ok(usize::MAX));
        let many = vec![columns[0].clone(); MAX_COLUMNS + 1];
        assert_eq!(check(&many, 2, 0).unwrap_err().what, "columns");
    }

    proptest! {
        #[test]
        fn places_are_aligned_and_disjoint(
            pixels in 0usize..10_000,
            shapes in proptest::collection::vec((0..Element::ALL.len(), 0usize..50, 0usize..5), 0..20),
        ) {
            let mut columns: Vec<BatchColumn> = shapes
                .iter()
                .enumerate()
                .map(|(i, &(element, rows, row))| {
                    let offsets = [0, rows as i64];
                    let shape = [rows, row];
                    let array = (Element::ALL[element], &shape[..]);
                    column(&i.to_string(), ColumnKind::Numbers, Some(&offsets), &[array])
                })
                .collect();
            let bytes = place(&mut columns, pixels).unwrap();
            prop_assert_eq!(check(&columns, 1, pixels), Ok(bytes));
            let mut end = pixels;
            for array in columns.iter().flat_map(|column| &column.arrays) {
                prop_assert!(array.start.is_multiple_of(ALIGNMENT) && array.start >= end);
                prop_assert!(array.start - end < ALIGNMENT);
                end = array.start + array.bytes().unwrap();
            }
            prop_assert_eq!(end, bytes);
        }
    }
}
