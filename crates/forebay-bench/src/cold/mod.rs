//! Empties caches before runs, and proves that they were cold.
//!
//! The throughput of a storage is meaningful only with the part of its bytes that came from the storage. A measurement names the
//! bytes that it reads (a [`Footprint`]), an [`Evictor`] empties their caches, and a [`Watch`] around the run gives a
//! [`Proof`]: the *cold share*, which is bytes from storage divided by bytes delivered, and the method that measured it. A run
//! with a share below [`COLD`] is never called cold.
//!
//! ```no_run
//! use forebay_bench::cold::{Cold, Evictor, Footprint, Watch};
//!
//! let footprint = Footprint::files(["/data/a.fbs"]);
//! let evictor = Evictor::new(Cold::Auto)?;
//! evictor.evict(&footprint)?;
//! let watch = Watch::begin(&footprint, evictor.way());
//! let delivered = std::fs::read("/data/a.fbs")?.len() as u64;
//! println!("{}", watch.end(delivered, None).word());
//! # Ok::<(), forebay_bench::Error>(())
//! ```

mod counters;
mod evict;
mod footprint;
mod mount;
mod proof;
mod residency;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

pub use counters::Counters;
pub use evict::{Cold, Evictor, Way};
pub use footprint::{FileBytes, Footprint};
pub use mount::{FsClass, Mount};
pub use proof::{COLD, Proof, WARM, Watch, summary};
pub use residency::{Method, Prober, Residency};

/// Returns the size of a page of the page cache in bytes.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}
