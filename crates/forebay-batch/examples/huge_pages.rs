//! Measures the benefit of huge pages for the memory of batches:
//! `cargo run --release --example huge_pages -p forebay-batch`.
//!
//! The batch has 256 images of 224x224. Measured are the time to prepare fresh memory for writing,
//! and the time to write into reused memory, image by image as decoders do. The variants
//! alternate; medians are printed.

// The file that is mapped is not shared with another process.
#![allow(unsafe_code)]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use memmap2::{Advice, MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

const BATCH: usize = 256 * 224 * 224 * 3;
const CAPACITY: usize = BATCH.next_multiple_of(2 << 20);
const ROUNDS: usize = 31;

#[derive(Clone, Copy)]
enum Way {
    /// Private memory.
    Own { huge: bool, populate: bool },
    /// Memory that another process can map.
    Shared { huge: bool },
}

impl Way {
    fn name(self) -> String {
        match self {
            Way::Own { huge, populate } => format!(
                "own memory, {} pages, {}",
                if huge { "huge" } else { "small" },
                if populate {
                    "populated"
                } else {
                    "touched when written"
                }
            ),
            Way::Shared { huge } => {
                format!(
                    "shared memory, {} pages",
                    if huge { "huge" } else { "small" }
                )
            }
        }
    }

    fn fresh(self) -> Result<MmapMut, Box<dyn Error>> {
        match self {
            Way::Own { huge, populate } => {
                let map = MmapMut::map_anon(CAPACITY)?;
                if huge {
                    map.advise(Advice::HugePage)?;
                }
                if populate {
                    map.advise(Advice::PopulateWrite)?;
                }
                Ok(map)
            }
            Way::Shared { huge } => {
                let file = memfd_create(c"huge-pages", MemfdFlags::CLOEXEC)?;
                if huge {
                    ftruncate(&file, CAPACITY as u64)?;
                } else {
                    fallocate(&file, FallocateFlags::empty(), 0, CAPACITY as u64)?;
                }
                // SAFETY: no other process has the file, and its size does not change after the
                // mapping.
                let map = unsafe { MmapOptions::new().len(CAPACITY).map_mut(&file)? };
                if huge {
                    map.advise(Advice::HugePage)?;
                }
                map.advise(Advice::PopulateWrite)?;
                Ok(map)
            }
        }
    }
}

/// Writes images in scattered order, row by row, as several decoding threads do.
fn write(map: &mut [u8], round: usize) {
    const PICTURE: usize = 224 * 224 * 3;
    for i in 0..256 {
        let at = (i * 37 % 256) * PICTURE;
        for row in map[at..at + PICTURE].chunks_exact_mut(224 * 3) {
            row.fill(round as u8);
        }
    }
    black_box(map);
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Returns the KiB of this process that are in huge pages.
fn huge_kib() -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let of = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Ok(of("AnonHugePages:") + of("ShmemPmdMapped:"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let own = |huge, populate| Way::Own { huge, populate };
    let ways = [
        own(false, false),
        own(true, false),
        own(false, true),
        own(true, true),
        Way::Shared { huge: false },
        Way::Shared { huge: true },
    ];
    let mut ready = vec![Vec::new(); ways.len()];
    let mut first = vec![Vec::new(); ways.len()];
    let mut kept: Vec<MmapMut> = ways
        .iter()
        .map(|way| way.fresh())
        .collect::<Result<_, _>>()?;
    let mut again = vec![Vec::new(); ways.len()];
    let mut huge = vec![0; ways.len()];
    for round in 0..ROUNDS {
        for (i, way) in ways.iter().enumerate() {
            let before = huge_kib()?;
            let begun = Instant::now();
            let mut map = way.fresh()?;
            ready[i].push(begun.elapsed().as_secs_f64());
            write(&mut map, round);
            first[i].push(begun.elapsed().as_secs_f64());
            huge[i] = huge_kib()?.saturating_sub(before);
            let begun = Instant::now();
            write(&mut kept[i], round);
            again[i].push(begun.elapsed().as_secs_f64());
        }
    }
    println!(
        "{:44} {:>9} {:>15} {:>13} {:>12}",
        "38.5 MB, ms", "to get it", "and write once", "write it kept", "huge, MiB"
    );
    for (i, way) in ways.iter().enumerate() {
        let ms = |times: &[f64]| 1e3 * median(times.to_vec());
        let (ready, first, again) = (ms(&ready[i]), ms(&first[i]), ms(&again[i]));
        println!(
            "{:44} {ready:9.2} {first:15.2} {again:13.2} {:12}",
            way.name(),
            huge[i] >> 10
        );
    }
    Ok(())
}
