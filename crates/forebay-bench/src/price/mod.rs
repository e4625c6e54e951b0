//! Rates of the stages of a pipeline, its bottleneck, and the predicted gains of remedies.
//!
//! - [`explain`] measures the stages of one source one after another on the same plan, and prices remedies.
//! - [`advise`] looks at a dataset and at a machine, and says how to store it, with the arithmetic.
//! - [`ImageSample`] measures the dataset's own images in other ways to store them.
//! - [`StageTimes`] and [`Gain`] are the model: pure functions of what was measured.

mod advise;
mod explain;
mod kept;
mod model;
mod remedy;
mod sample;
mod timed;

pub use advise::{Advice, AdviceReport, AdviseOptions, advise};
pub use explain::{ExplainOptions, ExplainReport, explain};
pub use model::{Cores, Gain, LimitingResource, StageTimes};
pub use remedy::{Price, Situation, prices};
pub use sample::{ImageSample, Storing, StoringCost};
