//! Windows over storage order: each virtual rank reads its part of the records front to back, and mixes the
//! records that it holds.
//!
//! As [`blocks`](super::blocks), with the blocks in storage order, so that a window is one read. A record moves by at most one
//! window within its virtual rank; a different rotation in each epoch moves the boundaries of virtual ranks and
//! windows. Suits records that are stored in random order: reads are as sequential as without a
//! shuffle, with the memory of `blocks`.

use super::blocks::Windowed;
use super::{Footprint, Kind, Make, Order, Reading, Shuffle, windows};
use crate::error::Result;

pub(super) struct Window;

impl Kind for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn has_blocks(&self) -> bool {
        true
    }

    fn footprint(&self, shuffle: &Shuffle, reading: &Reading) -> Footprint {
        Footprint {
            run_records: shuffle.window_blocks.saturating_mul(shuffle.block_records),
            ..windows(shuffle, reading)
        }
    }

    fn order(&self, make: &Make) -> Result<Box<dyn Order>> {
        make.shuffle.check_blocks()?;
        Ok(Box::new(Windowed::new(make, None)))
    }
}
