//! The pipeline: plan, fetch, decode, transform, batch.
//!
//! - [`plan`]: the order of an epoch as a pure function of seed and epoch, and
//!   which part of it each rank gets.

mod error;
pub mod plan;

pub use error::{Error, Place, Result};
