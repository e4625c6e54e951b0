//! A pack that several machines share.
//!
//! Each writes a part of the shards (`run`), as a pack writes all of them, with a journal of its own. `finish` reads back
//! the shards of all parts and publishes the dataset.

mod finish;
mod run;

pub use finish::{FinishOptions, finish};
pub use run::PartSummary;

use crate::error::{Error, Result};
use crate::publish::destination::PlanDifference;
use std::path::Path;

/// Refuses a part whose plan differs from the one that the parts share.
fn differ(root: &Path, part: String, difference: PlanDifference) -> Result<()> {
    match difference {
        PlanDifference::None => Ok(()),
        different => Err(Error::DifferentPart {
            path: root.to_path_buf(),
            part,
            differences: different.into_words(),
        }),
    }
}
