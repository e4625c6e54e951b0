//! Finds the shards of an interrupted run that are still intact.

use crate::error::{Error, Result};
use crate::observer::Cancel;
use crate::publish::destination::{Destination, INDEX_DIR, ShardLine};
use forebay_shard::checksum::Crc32c;
use forebay_store::for_each_parallel_with;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of bytes per read when computing a checksum.
const READ_BYTES: usize = 1 << 20;

/// Returns the shards of `wanted` that exist with the size and checksum of a line, by name. The others have
/// to be written again. Several journals may have a line for a shard; one matching line is enough.
pub(crate) fn check(
    destination: &dyn Destination,
    wanted: &BTreeSet<&str>,
    lines: Vec<ShardLine>,
    jobs: usize,
    cancel: &Cancel,
) -> Result<BTreeMap<String, ShardLine>> {
    let lines: Vec<ShardLine> = lines
        .into_iter()
        .filter(|line| wanted.contains(line.name.as_str()))
        .collect();
    let slots: Vec<AtomicBool> = lines.iter().map(|_| AtomicBool::new(false)).collect();
    for_each_parallel_with(
        lines.iter().zip(&slots),
        jobs,
        || vec![0; READ_BYTES],
        |buffer, (line, is_good)| {
            if cancel.is_cancelled() {
                return Err(Error::Interrupted {
                    finished: lines.len() as u64,
                    total: wanted.len() as u64,
                });
            }
            is_good.store(is_intact(destination, line, buffer)?, Ordering::Relaxed);
            Ok(())
        },
    )?;
    let checked = lines.into_iter().zip(slots);
    let good = checked.filter(|(_, is_good)| is_good.load(Ordering::Relaxed));
    Ok(good.map(|(line, _)| (line.name.clone(), line)).collect())
}

/// Returns whether all files of a shard are in the directory or at the final destination. A local file that cannot be read
/// counts as missing; a store that does not respond is an error.
fn is_intact(destination: &dyn Destination, line: &ShardLine, buffer: &mut [u8]) -> Result<bool> {
    let mut intact = |key: &str, bytes: u64, crc32c: u32| {
        if sum(&destination.dir().path(key), bytes, buffer).is_ok_and(|found| found == Some(crc32c))
        {
            return Ok(true);
        }
        destination.holds(key, bytes, crc32c)
    };
    if !intact(&line.name, line.bytes, line.crc32c)? {
        return Ok(false);
    }
    for sidecar in &line.sidecars {
        let key = format!("{INDEX_DIR}/{}", sidecar.name);
        if !intact(&key, sidecar.bytes, sidecar.crc32c)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the checksum of a file, if it has this size.
fn sum(path: &Path, bytes: u64, buffer: &mut [u8]) -> io::Result<Option<u32>> {
    let mut file = forebay_shard::storage::open_file(path)?;
    if file.metadata()?.len() != bytes {
        return Ok(None);
    }
    let mut sum = Crc32c::default();
    loop {
        match file.read(buffer) {
            Ok(0) => break,
            Ok(read) => sum.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((sum.len() == bytes).then(|| sum.value()))
}
