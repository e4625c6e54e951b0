//! What an interrupted run left that still counts.

use crate::destination::{Destination, INDEX_DIR, ShardLine};
use crate::error::{Error, Result};
use crate::observer::Cancel;
use forebay_shard::checksum::Crc32c;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes read at a time while a file is summed.
const READ_BYTES: usize = 1 << 20;

/// Those of the shards `wanted` that are there with the size and checksum that a line says, by name. The others have
/// to be written again. Several journals may have a line for one shard: one that is true is enough.
pub(crate) fn check(
    destination: &Destination,
    wanted: &BTreeSet<&str>,
    lines: Vec<ShardLine>,
    jobs: usize,
    cancel: &Cancel,
) -> Result<BTreeMap<String, ShardLine>> {
    let lines = lines.into_iter();
    let slots: Vec<Mutex<Option<ShardLine>>> = lines
        .filter(|line| wanted.contains(line.name.as_str()))
        .map(|line| Mutex::new(Some(line)))
        .collect();
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(slots.len()) {
            scope.spawn(|| {
                let mut buffer = vec![0; READ_BYTES];
                while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut line = slot.lock().unwrap_or_else(|e| e.into_inner());
                    if cancel.is_cancelled() {
                        return;
                    }
                    match line
                        .as_ref()
                        .map(|line| is_intact(destination, line, &mut buffer))
                    {
                        Some(Ok(true)) => {}
                        Some(Err(error)) => {
                            let mut failure = failure.lock().unwrap_or_else(|e| e.into_inner());
                            failure.get_or_insert(error);
                            return;
                        }
                        Some(Ok(false)) | None => *line = None,
                    }
                }
            });
        }
    });
    if cancel.is_cancelled() {
        return Err(Error::Interrupted {
            finished: slots.len() as u64,
            total: wanted.len() as u64,
        });
    }
    if let Some(error) = failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        return Err(error);
    }
    let good = slots
        .into_iter()
        .filter_map(|slot| slot.into_inner().unwrap_or_else(|e| e.into_inner()));
    Ok(good.map(|line| (line.name.clone(), line)).collect())
}

/// Whether all files of a shard are here, or where they are uploaded to. What cannot be read here counts as missing; a store that
/// does not answer is an error.
fn is_intact(destination: &Destination, line: &ShardLine, buffer: &mut [u8]) -> Result<bool> {
    let mut intact = |key: &str, bytes: u64, crc32c: u32| {
        if sum(&destination.path(key), bytes, buffer).is_ok_and(|found| found == Some(crc32c)) {
            return Ok(true);
        }
        destination
            .upload()
            .map_or(Ok(false), |upload| upload.holds(key, bytes, crc32c))
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

/// The checksum of a file, if it has this size.
fn sum(path: &Path, bytes: u64, buffer: &mut [u8]) -> io::Result<Option<u32>> {
    let mut file = File::open(path)?;
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
