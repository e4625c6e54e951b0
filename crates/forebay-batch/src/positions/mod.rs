//! Positions of an epoch: the arithmetic that a loader and the receiver of its batches share.
//!
//! An epoch has positions, from 0. Its order, in `forebay_loader::plan`, is built from the keyed permutations, virtual
//! ranks and windows of this module. [`Assignment`] tells which positions a rank has in a batch; the digest of a batch
//! needs them.

mod assignment;
mod permutation;
mod virtual_ranks;
mod windows;

pub use assignment::{Assignment, WindowedOrder};
pub use permutation::{Domain, Key, Permutation};
pub use virtual_ranks::VirtualRanks;
pub use windows::{Window, Windows};
