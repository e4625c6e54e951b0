//! A pack that several machines share.
//!
//! Each writes a part of the shards (`run`), as a pack writes all of them, with a journal of its own. `finish` reads back
//! the shards of all parts and publishes the dataset.

mod finish;
mod run;

pub(crate) use finish::missing;
pub use finish::{FinishOptions, finish};
pub use run::PartSummary;
pub(crate) use run::{FinishedShards, PartJob};
