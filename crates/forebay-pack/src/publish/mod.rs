//! The destination of a dataset, and its publication.
//!
//! A pack, a conversion and a writer open a destination (`upload::open`), whose directory says what earlier runs left
//! (`destination`). [`resume`] reads back the shards of these runs. Finished shards go to the destination one by one, with
//! a line in its journal. `outline` is what the manifest says before; at the end, `manifest` writes the report and the
//! manifest, whose [`account`] has to add up.

pub(crate) mod account;
pub(crate) mod destination;
mod manifest;
mod outline;
pub(crate) mod resume;
pub(crate) mod upload;

pub use destination::UnfinishedBy;
pub(crate) use manifest::{
    FAST_PROGRESSIVE_KEY, IMAGE_BYTES_KEY, Tally, changed_options, identify_samples, is_of_pack,
    is_of_plan, other_dataset, plan_of, publish, shard_entry, summary, write_report,
};
pub(crate) use outline::{LABELS_KEY, outline};
