//! Checks of the given dataset: its file system, whether it can be read, and whether it fits into the page cache.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_bench::cold::{FsClass, Mount};
use forebay_cache::{ReadOptions, open_dataset};
use forebay_server::memory_of_this_machine;
use forebay_shard::{Dataset, ShardFormat};
use forebay_store::{Location, Retry, StoreOptions};

use super::{Context, Finding, Target};
use crate::command::record_source::needs_dataset;
use crate::failure::Failure;
use crate::quantity;

/// Requests to a store are retried for this long: much shorter than by default, since `doctor` reports the error.
const PATIENCE: Duration = Duration::from_secs(20);

fn location<'a>(context: &'a Context<'_>) -> Option<&'a Location> {
    match &context.target {
        Some(Target::Dataset(location)) => Some(location),
        _ => None,
    }
}

/// Checks the type of a local dataset's file system, and its mount options, for slow reads.
pub(super) fn file_system(context: &Context<'_>) -> Vec<Finding> {
    let path = location(context).and_then(|location| location.local_path().ok());
    let mount = path.and_then(Mount::of);
    mount.map(|mount| judge(&mount)).into_iter().collect()
}

fn judge(mount: &Mount) -> Finding {
    let text = format!(
        "{} on {} ({})",
        mount.kind,
        mount.point.display(),
        mount.source
    );
    match mount.class() {
        FsClass::Nfs | FsClass::Network => Finding::warning(
            format!("{text}: a network file system"),
            "measure it with forebay bench storage --cold auto; shards of 256 MiB or more, or a copy on a local disk, are faster",
        ),
        FsClass::Fuse => Finding::warning(
            format!("{text}: files come from a program"),
            "if it is in front of a store, name the store's URL instead",
        ),
        FsClass::Overlay => Finding::warning(
            format!("{text}: a layer of the container"),
            "mount the dataset into the container as a volume",
        ),
        FsClass::Memory => Finding::ok(format!("{text}: in memory, and gone after a reboot")),
        _ if mount.has_option("sync") => Finding::warning(
            format!("{text}, mounted with sync"),
            "mount it without sync",
        ),
        _ if mount.has_option("strictatime") => Finding::warning(
            format!("{text}: each read of a file writes its time"),
            "mount it with noatime or relatime",
        ),
        _ => Finding::ok(text),
    }
}

/// Opens the dataset, compares the sizes of local shards with the manifest, and reads the first record of each split.
pub(super) fn dataset(context: &Context<'_>) -> Vec<Finding> {
    let Some(location) = location(context) else {
        return Vec::new();
    };
    let begin = Instant::now();
    let found = open(context, location).and_then(|dataset| {
        let opened = begin.elapsed();
        read_first_records(&dataset).map(|()| (dataset, opened, begin.elapsed()))
    });
    vec![match found {
        Ok((dataset, opened, read)) => {
            let splits = &dataset.manifest().splits;
            let records = splits.iter().map(|split| split.records).sum();
            Finding::ok(format!(
                "{}, {}; opened after {}, a record of each split after {}",
                quantity::counted(records, "record", "records"),
                quantity::bytes(bytes(&dataset)),
                quantity::duration(opened),
                quantity::duration(read),
            ))
        }
        Err(failure) => {
            let source = Path::new(&location.to_string()).to_owned();
            let failure = needs_dataset(&source, &options(context), "doctor").unwrap_or(failure);
            let remedy = failure
                .hint_line()
                .unwrap_or("forebay verify tells what is damaged");
            Finding::problem(failure.message(), remedy)
        }
    }]
}

fn options(context: &Context<'_>) -> StoreOptions {
    let retry = Retry {
        give_up_after: PATIENCE,
        ..Retry::default()
    };
    context.store.options().with_retry(retry)
}

fn open(context: &Context<'_>, location: &Location) -> Result<Dataset, Failure> {
    let options = ReadOptions::new(options(context));
    let dataset = open_dataset(location, &options)?;
    if let Ok(root) = location.local_path() {
        for entry in dataset
            .manifest()
            .splits
            .iter()
            .flat_map(|split| &split.shards)
        {
            let path = root.join(&entry.name);
            // A dataset of mapped shards has no such file: its records are in files of another tool.
            let Ok(data) = path.metadata() else { continue };
            if data.len() != entry.bytes {
                return Err(Failure::new(format!(
                    "shard \"{}\" has {} bytes, and {} by the manifest",
                    path.display(),
                    data.len(),
                    entry.bytes
                ))
                .hint("copy the dataset again, or see forebay repair"));
            }
        }
    }
    Ok(dataset)
}

/// Returns the number of files that hold the records of a local dataset; `None` without a local dataset that can be opened.
pub(super) fn files(context: &Context<'_>) -> Option<u64> {
    let location = location(context).filter(|location| !location.is_remote())?;
    let dataset = open(context, location).ok()?;
    let manifest = dataset.manifest();
    let shards: u64 = manifest
        .splits
        .iter()
        .map(|split| split.shards.len() as u64)
        .sum();
    // A mapped shard has two files: its index, and the file with its records.
    let each = if manifest.shard_format == ShardFormat::Mapped {
        2
    } else {
        1
    };
    Some(shards * each)
}

fn read_first_records(dataset: &Dataset) -> Result<(), Failure> {
    let mut record = Vec::new();
    for name in dataset.splits() {
        let split = dataset.split(name)?;
        if !split.is_empty() {
            split.read(0, &mut record)?;
        }
    }
    Ok(())
}

fn bytes(dataset: &Dataset) -> u64 {
    dataset
        .manifest()
        .splits
        .iter()
        .map(|split| split.bytes)
        .sum()
}

/// Checks whether the page cache can hold the dataset, so that later epochs need no storage.
pub(super) fn page_cache(context: &Context<'_>) -> Vec<Finding> {
    let Some(location) = location(context).filter(|location| !location.is_remote()) else {
        return Vec::new();
    };
    let Ok(dataset) = open(context, location) else {
        return Vec::new();
    };
    let Some(memory) = memory_of_this_machine() else {
        return Vec::new();
    };
    vec![fits(bytes(&dataset), memory)]
}

fn fits(dataset: u64, memory: u64) -> Finding {
    // Trainers and loaders need the other half of the memory.
    let (size, half) = (quantity::bytes(dataset), quantity::bytes(memory / 2));
    Finding::ok(match dataset <= memory / 2 {
        true => format!(
            "the dataset of {size} fits into half of the memory ({half}): later epochs need no storage"
        ),
        false => format!(
            "the dataset of {size} is larger than half of the memory ({half}): every epoch reads from storage; see forebay bench storage --cold auto"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn slow_file_systems_are_reported() {
        let level = |kind: &str, options: &str| {
            let finding = judge(&Mount {
                point: "/data".into(),
                kind: kind.to_owned(),
                source: "/dev/sda1".to_owned(),
                options: options.to_owned(),
                device: (8, 1),
            });
            assert_eq!(finding.remedy.is_none(), finding.level == Level::Ok);
            finding.level
        };
        assert_eq!(level("ext4", "rw,relatime"), Level::Ok);
        assert_eq!(level("tmpfs", "rw"), Level::Ok);
        for (kind, options) in [
            ("nfs4", "rw"),
            ("overlay", "rw"),
            ("fuse.s3fs", "rw"),
            ("ext4", "rw,sync"),
            ("xfs", "rw,strictatime"),
        ] {
            assert_eq!(level(kind, options), Level::Warning, "{kind} {options}");
        }
    }

    #[test]
    fn dataset_size_is_compared_with_memory() {
        assert!(fits(10, 30).message.contains("fits"));
        assert!(fits(20, 30).message.contains("larger"));
    }
}
