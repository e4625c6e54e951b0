//! Samples with typed values, as in MDS and LitData. Each format provides the types and splits a sample into its values; this
//! module encodes the records.

mod columns;
mod encoding;
mod files;

pub(super) use columns::{
    Columns, KEY, SampleColumn, SampleFile, SampleMeta, Target, difference, stored_label, values_at,
};
pub(super) use encoding::{Encoding, array, is_array_type, put_array, put_typed_array, scalar};
pub(super) use files::{
    INDEX, check_offsets, is_file_name, is_relative_path, is_there, read_index, read_offsets,
    read_sample, split_dirs,
};
