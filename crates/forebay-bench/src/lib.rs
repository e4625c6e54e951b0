//! Measurements of Forebay and of what it is measured against, side by side in one run.

mod clients;
pub mod cold;
mod consumer;
mod epoch;
pub mod experiment;
mod failover;
mod fleet;
mod load;
pub mod measure;
mod pack;
pub mod price;
mod published;
pub mod random;
pub mod read;
pub mod replay;
pub mod report;
mod sharing;
mod simulate;
mod start;
pub mod storage;
mod store;
pub mod stream;
mod throttle;
mod transport;
mod watchdog;

pub use clients::{ClientsOptions, clients, fairness};
pub use consumer::{Consumer, Steps};
pub use epoch::{EpochOptions, epoch};
pub use failover::{FailoverOptions, failover};
pub use fleet::Serving;
pub use load::{LoadOptions, load};
pub use measure::{
    Alternative, BenchReport, CacheState, Delivered, Measurement, Row, side_by_side,
};
pub use pack::{PackBenchOptions, pack};
pub use published::{Published, PublishedFigure};
pub use read::read;
pub use replay::{ReplayOptions, replay};
pub use sharing::{SharingOptions, sharing};
pub use simulate::{
    ClusterPlan, Limit, OneMore, Outcome, Placement, PlanError, Resource, Use, one_more,
    run as simulate,
};
pub use start::start;
pub use store::{StoreBenchOptions, store};
pub use stream::stream;
pub use throttle::DiskLimits;
pub use transport::{TransportOptions, transport};

/// A measurement that could not be made, with what it needed.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The result of a measurement.
pub type Result<T> = std::result::Result<T, Error>;
