//! Rates of the stages of a pipeline, its bottleneck, and predicted gains of remedies.
//!
//! - [`explain`] measures the stages of one source, one after another on the same plan, and predicts the gains of remedies.
//! - [`advise`] recommends how to store a dataset on a machine, with the arithmetic.
//! - [`EpochCost`] is what an epoch from a store costs.
//! - [`ImageSample`] measures the dataset's own images when they are stored in other ways.
//! - [`StageTimes`] and [`Gain`] are the model: pure functions of measured values.

mod advise;
mod cost;
mod explain;
mod kept;
mod model;
mod remedy;
mod sample;
mod timed;

pub use advise::{Advice, AdviceReport, AdviseOptions, advise};
pub use cost::EpochCost;
pub use explain::{ExplainOptions, ExplainReport, explain};
pub use model::{Cores, Gain, LimitingResource, StageTimes};
pub use remedy::{Price, Situation, prices};
pub use sample::{ImageSample, Storing, StoringCost};
