//! Measures raw reading: records from shards, with checksums and without decoding.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use forebay_shard::{Dataset, Shard, Split};
use forebay_synthetic::{Recipe, is_synthetic};

use crate::cold::{Cold, Evictor, Footprint};
use crate::measure::{Alternative, BenchReport, Delivered, Measurement, side_by_side};
use crate::{Error, Result};

/// Number of records that a random run reads.
const RANDOM_READS: u64 = 20_000;
const MB: f64 = 1e6;

/// Reads each dataset's split in order and at random on one thread, beside plain reads of the same files. `split` is the first
/// one by default. `cold` selects how the page cache is emptied.
///
/// # Errors
/// A dataset cannot be read.
pub fn read(
    datasets: &[&Path],
    split: Option<&str>,
    cold: Cold,
    runs: usize,
) -> Result<Vec<BenchReport>> {
    let evictor = Evictor::buffered(cold)?;
    let splits = datasets
        .iter()
        .map(|root| Ok((root.display().to_string(), open(root, split)?)))
        .collect::<Result<Vec<(String, Split)>>>()?;
    // Bytes that the last random run read.
    let random_bytes = &Cell::new(0);
    let mut sequential = Vec::new();
    let mut random = Vec::new();
    let sizes: Vec<u64> = splits
        .iter()
        .map(|(_, split)| stored_bytes(split))
        .collect();
    for ((name, split), &bytes) in splits.iter().zip(&sizes) {
        let whole = move |_: &Measurement| Delivered::local(bytes);
        let format = split
            .shards()
            .first()
            .map_or_else(String::new, |shard| format!("{:?}", shard.format()));
        sequential.push(
            Alternative::here(
                format!("plain reads, 1 MiB each, no checksum: {name}"),
                "MB/s",
                || Measurement::time(|| plain(split)),
            )
            .reading(footprint(split), evictor, whole),
        );
        sequential.push(
            Alternative::here(
                format!("records in order, verified ({format}): {name}"),
                "MB/s",
                || Measurement::time(|| in_order(split)),
            )
            .reading(footprint(split), evictor, whole),
        );
        random.push(
            Alternative::here(
                format!("records at random, verified ({format}): {name}"),
                "records/s",
                || Measurement::time(|| at_random(split, random_bytes)),
            )
            .reading(footprint(split), evictor, |_| {
                Delivered::local(random_bytes.get())
            }),
        );
    }
    let bytes = sizes.first().copied().unwrap_or(0);
    let records = splits.first().map_or(0, |(_, split)| split.len());
    let about = format!("{records} records, {:.1} MB, one thread", bytes as f64 / MB);
    Ok(vec![
        side_by_side(format!("Sequential reads: {about}"), runs, sequential)?,
        side_by_side(
            format!("Random reads: {about}, {RANDOM_READS} reads"),
            runs,
            random,
        )?,
    ])
}

/// Opens a dataset on this machine, or a generated one.
///
/// # Errors
/// The directory has no dataset.
pub fn dataset(root: &Path) -> Result<Dataset> {
    match root.to_str() {
        Some(url) if is_synthetic(url) => Ok(Recipe::parse(url)?.open()?),
        _ => Ok(Dataset::open(root)?),
    }
}

/// Opens a split; the first one if none is named.
///
/// # Errors
/// The directory has no dataset, or the dataset has no such split.
pub fn open(root: &Path, split: Option<&str>) -> Result<Split> {
    split_of(&dataset(root)?, root, split)
}

/// Opens a split of a dataset; the first one if none is named.
///
/// # Errors
/// The dataset has no such split.
pub fn split_of(dataset: &Dataset, root: &Path, split: Option<&str>) -> Result<Split> {
    let name = match split {
        Some(name) => name.to_owned(),
        None => dataset
            .splits()
            .next()
            .ok_or_else(|| Error::from(format!("{}: the dataset has no split", root.display())))?
            .to_owned(),
    };
    Ok(dataset.split(&name)?)
}

/// Returns the files of a split.
pub fn footprint(split: &Split) -> Footprint {
    let paths = data_paths(split);
    let is = |what: &dyn Fn(&str) -> bool| {
        let mut urls = paths.iter().filter_map(|path| path.to_str());
        urls.any(what)
    };
    if is(&is_synthetic) {
        Footprint::Generated
    } else if is(&|url| url.contains("://")) {
        Footprint::Store
    } else {
        Footprint::files(paths)
    }
}

/// Returns the files with the records of a split, each once: shards, and the files of other tools that mapped shards index.
fn data_paths(split: &Split) -> Vec<&Path> {
    let of = |shard| std::iter::once(Shard::path(shard)).chain(Shard::source_path(shard));
    let mut paths: Vec<&Path> = split.shards().iter().flat_map(of).collect();
    // Several shards may index the same file of another tool.
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Returns the bytes of all records of a split.
pub fn record_bytes(split: &Split) -> u64 {
    // Not the sizes of the shard files: shards that index files of another tool are nearly empty.
    let of = |shard: &Shard| -> u64 {
        let records = 0..shard.len();
        records.filter_map(|number| shard.record_len(number)).sum()
    };
    split.shards().iter().map(of).sum()
}

fn stored_bytes(split: &Split) -> u64 {
    let length = |path: &Path| path.metadata().map_or(0, |data| data.len());
    data_paths(split).into_iter().map(length).sum()
}

fn plain(split: &Split) -> Result<f64> {
    let mut buffer = vec![0u8; 1 << 20];
    let mut total = 0u64;
    for path in data_paths(split) {
        let mut file = File::open(path)?;
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            total += n as u64;
        }
    }
    Ok(total as f64 / MB)
}

fn in_order(split: &Split) -> Result<f64> {
    let mut total = 0u64;
    for shard in split.shards() {
        let mut scan = shard.scan(0..shard.len());
        while let Some(record) = scan.next_record()? {
            total += std::hint::black_box(record.bytes).len() as u64;
        }
    }
    Ok(total as f64 / MB)
}

fn at_random(split: &Split, bytes: &Cell<u64>) -> Result<f64> {
    let mut record = Vec::new();
    let mut total = 0;
    let mut state = 1u64;
    for _ in 0..RANDOM_READS {
        // A linear congruential generator is sufficient to select records.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = ((u128::from(state) * u128::from(split.len())) >> 64) as u64;
        split.read(at, &mut record)?;
        total += std::hint::black_box(&record).len() as u64;
    }
    bytes.set(total);
    Ok(RANDOM_READS as f64)
}
