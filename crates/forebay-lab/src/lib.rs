//! Experiments, comparisons and simulations for the development of Forebay.
//!
//! `cargo run --release -p forebay-lab -- --help` lists the commands. The wheel and `forebay` are built without this crate.

pub mod clients;
mod command;
pub mod compare;
pub mod epoch;
pub mod experiment;
pub mod failover;
pub mod fleet;
pub mod published;
pub mod sharing;
pub mod simulate;
pub mod start;
pub mod store;
pub mod throttle;
pub mod transport;
mod watchdog;

pub use command::{command, main_from};

use forebay_bench::{
    Consumer, Error, Result, Steps, cold, measure, random, read, replay, report, storage, stream,
};
