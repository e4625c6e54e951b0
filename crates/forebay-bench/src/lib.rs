//! Measurements of Forebay and its alternatives, side by side in one run.

pub mod cold;
mod consumer;
mod load;
pub mod measure;
mod pack;
pub mod price;
pub mod random;
pub mod read;
pub mod replay;
pub mod report;
mod scaling;
pub mod storage;
pub mod stream;

pub use consumer::{Consumer, Steps};
pub use load::{LoadOptions, load};
pub use measure::{
    Alternative, BenchReport, CacheState, Delivered, Measurement, Row, side_by_side,
};
pub use pack::{PackBenchOptions, pack};
pub use read::read;
pub use replay::{ReplayOptions, replay};
pub use stream::stream;

/// The error of a measurement that could not be made.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The result of a measurement.
pub type Result<T> = std::result::Result<T, Error>;
