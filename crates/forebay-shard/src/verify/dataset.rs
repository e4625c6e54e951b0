//! Verifies a dataset: every shard, and the shards against the manifest.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{ShardCheck, VerifyFinding, VerifyObserver, VerifyOptions, VerifyReport};
use crate::dataset::Sidecars;
use crate::error::{Error, Result};
use crate::manifest::{FILE_NAME, Manifest, ShardEntry};
use crate::parallel::map_parallel;
use crate::samples::SampleDigest;
use crate::shard::ShardFormat;
use crate::storage::{LocalFiles, Storage};

/// Verifies the dataset in a directory. Several threads read shards; the report is in the order of
/// the manifest.
///
/// # Errors
/// If there is no readable manifest, or no access to a file. All other problems are in the report.
pub fn verify_dataset(
    root: impl AsRef<Path>,
    options: &VerifyOptions<'_>,
    observer: &VerifyObserver<'_>,
) -> Result<VerifyReport> {
    verify_dataset_in(root, &LocalFiles::within_limits(), options, observer)
}

/// As [`verify_dataset`], in any storage. If the storage cannot list names, files that do not belong to the
/// dataset are not found.
///
/// # Errors
/// As [`verify_dataset`].
pub fn verify_dataset_in(
    root: impl AsRef<Path>,
    storage: &dyn Storage,
    options: &VerifyOptions<'_>,
    observer: &VerifyObserver<'_>,
) -> Result<VerifyReport> {
    let root = root.as_ref();
    let manifest = Manifest::load_in(root, storage)?;
    let options = &VerifyOptions {
        label_feature: options
            .label_feature
            .map(|_| manifest.record_features.label.as_str()),
        ..*options
    };
    let entries: Vec<_> = manifest
        .splits
        .iter()
        .flat_map(|split| &split.shards)
        .collect();
    storage.expect(root, entries.len());
    let sidecars = match manifest.shard_format {
        ShardFormat::TfRecord => Sidecars::of(root, storage, entries.len()),
        ShardFormat::Indexed | ShardFormat::Mapped => Sidecars::default(),
    };
    let place = DatasetLocation {
        root,
        storage,
        manifest: &manifest,
        sidecars,
        source: manifest.open_source(root, storage)?,
    };
    let threads = options
        .threads
        .or_else(|| std::thread::available_parallelism().ok())
        .map_or(1, NonZero::get);
    let no_access = OnceLock::new();
    let stopped = || no_access.get().is_some() || options.stop.is_some_and(|stop| stop());
    let options = &VerifyOptions {
        stop: Some(&stopped),
        ..*options
    };
    let verified = map_parallel(&entries, threads, &stopped, |entry| {
        let (verified, error) = verify_entry(&place, entry, options, observer);
        if let Some(error) = error {
            let _ = no_access.set(error);
        }
        verified
    });
    if let Some(error) = no_access.into_inner() {
        return Err(error);
    }
    let mut report = VerifyReport {
        stopped: verified.iter().any(Option::is_none),
        ..VerifyReport::default()
    };
    let mut samples = HashMap::new();
    for (entry, verified) in entries.iter().zip(verified) {
        if let Some((shard, digest)) = verified {
            report.add(shard);
            samples.insert(entry.name.as_str(), digest);
        }
    }
    if !report.stopped {
        let digest = |shard: &str| samples.get(shard).copied().flatten();
        report.findings.extend(other_samples(&place, &digest));
        report.findings.extend(other_account(&place, &digest));
        report.findings.extend(strays(&place)?);
    }
    Ok(report)
}

/// The dataset and its location.
struct DatasetLocation<'a> {
    root: &'a Path,
    storage: &'a dyn Storage,
    manifest: &'a Manifest,
    sidecars: Sidecars,
    source: Option<crate::mapped::Source>,
}

fn verify_entry(
    place: &DatasetLocation<'_>,
    entry: &ShardEntry,
    options: &VerifyOptions<'_>,
    observer: &VerifyObserver<'_>,
) -> ((VerifyReport, Option<SampleDigest>), Option<Error>) {
    let path = place.root.join(&entry.name);
    let mut check = ShardCheck::new(&path, place.storage, options, observer);
    check.want_blake3 = entry.blake3.is_some();
    check.expected_records = Some(entry.records);
    check.source.clone_from(&place.source);
    let format = place.manifest.shard_format;
    let sidecar = match format {
        ShardFormat::TfRecord => place.sidecars.find(&path, place.storage),
        ShardFormat::Indexed | ShardFormat::Mapped => None,
    };
    match check.verify(format, sidecar.as_deref()) {
        Err(error) => check.found(error),
        Ok(()) if check.report.stopped => {}
        Ok(()) => {
            check.compare(
                "bytes, against the manifest",
                entry.bytes,
                check.report.bytes,
            );
            // After damage, the report already contains the number of lost records.
            if check.report.lost.is_empty() {
                check.compare(
                    "records, against the manifest",
                    entry.records,
                    check.report.records,
                );
            }
            let digits = |crc: u32| format!("{crc:08x}");
            if let Some(found) = check.crc32c {
                let (expected, found) = (digits(entry.crc32c), digits(found));
                check.compare("crc32c of the file, against the manifest", expected, found);
            }
            if let (Some(expected), Some(found)) = (&entry.blake3, check.blake3.take()) {
                check.compare("blake3 of the file, against the manifest", expected, found);
            }
        }
    }
    let (samples, no_access) = (check.samples, check.no_access.take());
    ((check.finish(), samples), no_access)
}

/// Compares the sample fingerprint of the manifest with the labels and keys in the indexes, unless
/// an index is missing or damaged.
fn other_samples(
    place: &DatasetLocation<'_>,
    digest: &dyn Fn(&str) -> Option<SampleDigest>,
) -> Option<VerifyFinding> {
    let expected = place.manifest.sample_fingerprint.clone()?;
    let found = place.manifest.sample_fingerprint_of(digest)?;
    (expected != found).then(|| {
        VerifyFinding::from(Error::Mismatch {
            path: place.root.join(FILE_NAME),
            what: "sample_fingerprint, against the keys and labels in the indexes".to_owned(),
            expected,
            found,
        })
    })
}

/// Compares the account in the manifest with its splits and with the labels in the indexes, unless an
/// index is missing or damaged.
fn other_account(
    place: &DatasetLocation<'_>,
    digest: &dyn Fn(&str) -> Option<SampleDigest>,
) -> Option<VerifyFinding> {
    let account = place.manifest.account.as_ref()?;
    let mut labelled = BTreeMap::new();
    for split in &place.manifest.splits {
        let counts = split
            .shards
            .iter()
            .map(|shard| Some(digest(&shard.name)?.labelled()));
        if let Some(count) = counts.sum::<Option<u64>>() {
            labelled.insert(split.name.clone(), count);
        }
    }
    let problem = account.check_stored(place.manifest, &labelled).err()?;
    Some(VerifyFinding::from(Error::Manifest {
        path: place.root.join(FILE_NAME),
        problem,
    }))
}

/// Finds files that are not in the manifest, but have names like shards, so readers that select by name use them.
fn strays(place: &DatasetLocation<'_>) -> Result<Vec<VerifyFinding>> {
    let DatasetLocation { root, manifest, .. } = *place;
    let names = match place.storage.list(root) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(Vec::new()),
        names => names.map_err(|error| Error::io(root, "read", error))?,
    };
    let mut strays: Vec<PathBuf> = Vec::new();
    for name in names {
        let Ok(name) = name.into_string() else {
            continue;
        };
        let named = manifest
            .splits
            .iter()
            .any(|split| is_shard_of(&name, &split.name));
        let mut shards = manifest.splits.iter().flat_map(|split| &split.shards);
        if named && !shards.any(|shard| shard.name == name) {
            strays.push(root.join(name));
        }
    }
    strays.sort();
    let what = "is not in the manifest, but named like a shard: readers that go by names take it";
    Ok(strays
        .into_iter()
        .map(|path| {
            VerifyFinding::from(Error::Unsupported {
                path,
                problem: what.to_owned(),
            })
        })
        .collect())
}

/// Returns whether a name is `SPLIT-NNNNN-of-NNNNN` with any suffix.
fn is_shard_of(name: &str, split: &str) -> bool {
    let Some(rest) = name
        .strip_prefix(split)
        .and_then(|rest| rest.strip_prefix('-'))
    else {
        return false;
    };
    let digits = |text: &str| text.len() >= 5 && text.bytes().take(5).all(|b| b.is_ascii_digit());
    rest.split_once("-of-")
        .is_some_and(|(number, of)| digits(number) && digits(of))
}
