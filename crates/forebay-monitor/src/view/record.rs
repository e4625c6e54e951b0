//! A record, as every source gives it.

/// A record, in buffers that can be reused.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) bytes: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) label: Option<i64>,
}

/// Takes what is known of a record without reading it: its size in bytes, label and key.
pub(super) type EachKnown<'a> = &'a mut dyn FnMut(u64, Option<i64>, &[u8]);
