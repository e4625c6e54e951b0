//! Measures the throughput and latency of a storage with a list of reads at a given queue depth.
//!
//! A [`ReadJob`] is a list of reads. [`run`] performs it with a fixed number of reads in flight, with or without the page
//! cache, from local files or from any [`Storage`](forebay_shard::storage::Storage), and returns a [`RunReport`]:
//! rate, latencies, rate per interval. [`write()`] does the same for writes; its time includes `fsync`.
//!
//! ```no_run
//! use forebay_bench::storage::{Medium, ReadJob, RunOptions, SizeMix, run};
//!
//! let files = [("/data/a.fbs", 1 << 30)];
//! let job = ReadJob::random(files, &SizeMix::fixed(16 << 10), 10_000, 1)?;
//! let report = run(&job, &Medium::Local { direct: true }, &RunOptions::at_depth(128))?;
//! println!("{:.0} reads/s, p99 {:.2} ms", report.reads_per_s(), report.latency(0.99) * 1e3);
//! # Ok::<(), forebay_bench::Error>(())
//! ```

mod job;
mod medium;
mod recorder;
mod report;
mod run;
mod write;

pub use job::{JobFile, ReadJob, ReadOp, SizeMix};
pub use medium::Medium;
pub use recorder::{Recorded, Recorder};
pub use report::RunReport;
pub use run::{RunOptions, run};
pub use write::{WriteJob, renew, write};
