//! The end of a pack: writes the report and the manifest, and returns the summary of the dataset.

use super::outline::PLAN_KEY;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::publish::account::{self, FindingCounts};
use crate::publish::destination::{
    Destination, MANIFEST, Outline, PACK_DIR, Publication, REPORT, ShardLine, WorkDir, read_report,
};
use crate::report::{FastCount, ProgressiveCount, SeekPointCount, SplitSummary, Summary};
use forebay_formats::FindingList;
use forebay_formats::{Action, Finding, Reason};
use forebay_shard::example::{FeatureKind, IMAGE_FAST, IMAGE_PROGRESSIVE, IMAGE_SEEK_POINTS};
use forebay_shard::manifest::{
    EpochOrder, FeatureEntry, Manifest, ShardEntry, SplitEntry, block_records,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// Manifest entries with the number of images that have seek points, and the size of the seek points in bytes.
const SEEK_POINT_IMAGES_KEY: &str = "seek_point_images";
const SEEK_POINT_BYTES_KEY: &str = "seek_point_bytes";
/// Manifest entries with the number of fast images, of JPEGs that could not become fast images, and of progressive ones.
const FAST_IMAGES_KEY: &str = "fast_images";
const FAST_LEFT_KEY: &str = "fast_left";
pub(crate) const FAST_PROGRESSIVE_KEY: &str = "fast_progressive";
/// Manifest entries with the number of progressive JPEGs that were transcoded to baseline, and of those that were not.
const PROGRESSIVE_CHANGED_KEY: &str = "progressive_changed";
const PROGRESSIVE_LEFT_KEY: &str = "progressive_left";
/// Manifest entry with the total size of the images in bytes.
pub(crate) const IMAGE_BYTES_KEY: &str = "image_bytes";

/// A published dataset.
pub(crate) struct Published {
    pub(crate) manifest: Manifest,
    pub(crate) tally: Tally,
}

/// Writes the report, then publishes the dataset. All `shards` must be finished and durable; they are in plan order.
pub(crate) fn publish(
    destination: &dyn Destination,
    outline: &Outline,
    census: &FindingList,
    (shards, done): (&[String], &BTreeMap<String, ShardLine>),
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Published> {
    // Lines are in the order of the plan, not in that of completion.
    let lines: Vec<&ShardLine> = shards.iter().filter_map(|name| done.get(name)).collect();
    let mut tally = Tally::default();
    for finding in findings(census, &lines) {
        tally.add(finding);
    }
    let dir = destination.dir();
    let report = dir.report();
    if tally.counts.is_empty() {
        dir.remove(&report)?;
    } else {
        write_report(dir, census, &lines)?;
    }
    let mut manifest = manifest(outline, shards, done);
    let mut counts = FindingCounts::default();
    for ((action, reason), count) in &tally.counts {
        counts.add(*action, *reason, *count);
    }
    // Files that the census left out were read too. Files that were left out of shards are part of the plan.
    let before = FindingCounts::of_list(census);
    let read = outline.files + before.passed_over();
    let mut account = account::account("files", read, counts, &manifest, |name| done.get(name));
    account.roles.clone_from(&outline.roles);
    account.columns.clone_from(&outline.columns);
    account::check(&account, dir.root())?;
    manifest.account = Some(account);
    let json = manifest.to_json()?;
    let dataset = Publication {
        manifest: json.as_bytes(),
        name: MANIFEST,
        indexes: &[],
        report: (!tally.counts.is_empty()).then_some(report.as_path()),
        shards: done,
    };
    destination.publish(&dataset, observer, cancel)?;
    manifest.fingerprint = manifest.fingerprint();
    Ok(Published { manifest, tally })
}

/// Counts findings, and keeps the first findings about files that were left out.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counts: BTreeMap<(Action, Reason), u64>,
    pub(crate) skipped_examples: Vec<Finding>,
}

impl Tally {
    pub(crate) fn add(&mut self, finding: Finding) {
        *self
            .counts
            .entry((finding.action, finding.reason))
            .or_default() += u64::from(finding.files);
        if finding.action.leaves_out() && self.skipped_examples.len() < Summary::EXAMPLES {
            self.skipped_examples.push(finding);
        }
    }

    /// Counts the findings of an existing report.
    pub(crate) fn of_report(path: &Path) -> Result<Self> {
        let mut tally = Self::default();
        read_report(path, |finding| tally.add(finding))?;
        Ok(tally)
    }
}

fn findings<'a>(
    census: &'a FindingList,
    lines: &'a [&ShardLine],
) -> impl Iterator<Item = Finding> + 'a {
    let of_shards = lines.iter().flat_map(|line| line.findings.iter().cloned());
    census.iter().chain(of_shards)
}

/// Returns whether a dataset was written by a pack.
pub(crate) fn is_of_pack(manifest: &Manifest) -> bool {
    manifest.pack.contains_key(PLAN_KEY)
}

/// Returns whether a dataset is the result of the plan with this digest.
pub(crate) fn is_of_plan(manifest: &Manifest, plan: &str) -> bool {
    plan_of(manifest) == plan
}

/// Returns the digest of the plan of a dataset; empty if the dataset does not result from a plan.
pub(crate) fn plan_of(manifest: &Manifest) -> String {
    let digest = manifest.pack.get(PLAN_KEY);
    let digest = digest.and_then(|digest| digest.as_str());
    digest.unwrap_or_default().to_owned()
}

/// Options whose changes are not reported if the format has changed too.
const FOLLOW_FORMAT: [&str; 2] = ["index_text", "codec"];

/// Returns the differences between the options in a manifest and those of this run, as text. `optional` options are compared
/// even if they are not set in this run.
pub(crate) fn changed_options(
    manifest: &Manifest,
    now: &BTreeMap<String, String>,
    optional: &[&str],
) -> Vec<String> {
    let then = |name: &str| manifest.pack.get(name).and_then(|value| value.as_str());
    let is_same_format = then("format") == now.get("format").map(String::as_str);
    let given = now.keys().map(String::as_str);
    let names: BTreeSet<&str> = given.chain(optional.iter().copied()).collect();
    let names = names
        .into_iter()
        .filter(|name| is_same_format || !FOLLOW_FORMAT.contains(name));
    let changed = names.filter_map(|name| {
        let (then, now) = (then(name), now.get(name).map(String::as_str));
        let shown = |value: Option<&str>| value.unwrap_or("not given").to_owned();
        (then != now).then(|| format!("{name}: then {}, now {}", shown(then), shown(now)))
    });
    changed.collect()
}

/// Returns the error for a destination with a complete dataset of other options or another source.
pub(crate) fn other_dataset(shown: &Path, changed: &[String]) -> Error {
    let what = match changed {
        [] => "the destination holds another dataset, or this one of other options or of a source that has changed since".to_owned(),
        changed => format!(
            "the destination holds a dataset that was written with other options ({})",
            changed.join("; ")
        ),
    };
    Error::OtherDataset {
        path: shown.to_path_buf(),
        what,
    }
}

/// Returns the summary of a published dataset at `root`. The counts of this run are 0.
pub(crate) fn summary(root: &Path, manifest: &Manifest, tally: Tally) -> Summary {
    let splits = manifest.splits.iter().map(SplitSummary::of);
    let has_report = !tally.counts.is_empty();
    Summary {
        root: root.to_path_buf(),
        fingerprint: manifest.fingerprint.clone(),
        splits: splits.collect(),
        image_bytes: number(manifest, IMAGE_BYTES_KEY),
        seek_points: SeekPointCount::of(manifest),
        progressive: ProgressiveCount::of(manifest),
        fast: FastCount::of(manifest),
        classes: manifest.classes.len() as u64,
        class_names: manifest
            .classes
            .iter()
            .map(|class| class.name.clone())
            .collect(),
        resumed_shards: 0,
        packed_bytes: 0,
        packed_files: 0,
        already_complete: true,
        findings: tally.counts.into_iter().collect(),
        uploaded: None,
        skipped_examples: tally.skipped_examples,
        report: has_report.then(|| root.join(PACK_DIR).join(REPORT)),
        warnings: Vec::new(),
        account: manifest.account.clone(),
        census_time: Duration::ZERO,
        write_time: Duration::ZERO,
    }
}

pub(crate) fn write_report(
    dir: &WorkDir,
    census: &FindingList,
    lines: &[&ShardLine],
) -> Result<()> {
    dir.write_report(findings(census, lines))
}

/// Converts a finished shard to its manifest entry.
pub(crate) fn shard_entry(line: &ShardLine) -> ShardEntry {
    ShardEntry {
        name: line.name.clone(),
        records: line.records,
        bytes: line.bytes,
        crc32c: line.crc32c,
        blake3: line.blake3.clone(),
    }
}

/// Returns a number that a manifest records, or 0.
fn number(manifest: &Manifest, key: &str) -> u64 {
    let number = manifest.pack.get(key).and_then(|number| number.as_u64());
    number.unwrap_or(0)
}

/// Adds counts field by field, and reads them from a manifest by the key of each field.
macro_rules! counts {
    ($name:ident { $($field:ident: $key:expr),+ }) => {
        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
                counts.fold(Self::default(), |a, b| Self {
                    $($field: a.$field.saturating_add(b.$field)),+
                })
            }
        }

        impl $name {
            /// Reads the counts from a manifest.
            pub(crate) fn of(manifest: &Manifest) -> Self {
                Self {
                    $($field: number(manifest, $key)),+
                }
            }
        }
    };
}

counts!(SeekPointCount {
    images: SEEK_POINT_IMAGES_KEY,
    bytes: SEEK_POINT_BYTES_KEY
});
counts!(ProgressiveCount {
    changed: PROGRESSIVE_CHANGED_KEY,
    left: PROGRESSIVE_LEFT_KEY
});
counts!(FastCount {
    images: FAST_IMAGES_KEY,
    left: FAST_LEFT_KEY,
    progressive: FAST_PROGRESSIVE_KEY
});

impl SeekPointCount {
    /// Records these counts in a manifest, in place of earlier ones.
    pub(crate) fn record(self, manifest: &mut Manifest) {
        manifest
            .features
            .retain(|feature| feature.name != IMAGE_SEEK_POINTS);
        for (name, value) in [
            (SEEK_POINT_IMAGES_KEY, self.images),
            (SEEK_POINT_BYTES_KEY, self.bytes),
        ] {
            manifest.pack.remove(name);
            if self.images > 0 {
                manifest.pack.insert(name.into(), value.into());
            }
        }
        if self.images > 0 {
            add_own_feature(manifest, IMAGE_SEEK_POINTS);
        }
    }
}

impl ProgressiveCount {
    /// Records these counts in a manifest, and adds the feature for recipes if there are any.
    pub(crate) fn record(self, manifest: &mut Manifest) {
        for (name, value) in [
            (PROGRESSIVE_CHANGED_KEY, self.changed),
            (PROGRESSIVE_LEFT_KEY, self.left),
        ] {
            manifest.pack.insert(name.into(), value.into());
        }
        if self.changed > 0 {
            add_own_feature(manifest, IMAGE_PROGRESSIVE);
        }
    }

    /// Removes the counts from a manifest whose images are all restored.
    pub(crate) fn remove(manifest: &mut Manifest) {
        manifest.pack.remove(PROGRESSIVE_CHANGED_KEY);
        manifest.pack.remove(PROGRESSIVE_LEFT_KEY);
        let features = &mut manifest.features;
        features.retain(|feature| feature.name != IMAGE_PROGRESSIVE);
    }
}

impl FastCount {
    /// Records these counts in a manifest, in place of earlier ones.
    pub(crate) fn record(self, manifest: &mut Manifest) {
        for (name, value) in [
            (FAST_IMAGES_KEY, self.images),
            (FAST_LEFT_KEY, self.left),
            (FAST_PROGRESSIVE_KEY, self.progressive),
        ] {
            manifest.pack.remove(name);
            if value > 0 {
                manifest.pack.insert(name.into(), value.into());
            }
        }
        manifest.set_fast_images(self.images > 0);
        manifest
            .features
            .retain(|feature| feature.name != IMAGE_FAST);
        if self.images > 0 {
            add_own_feature(manifest, IMAGE_FAST);
        }
        if self.progressive > 0 {
            add_own_feature(manifest, IMAGE_PROGRESSIVE);
        }
    }
}

/// Adds a bytes feature that Forebay writes to the features of a manifest.
fn add_own_feature(manifest: &mut Manifest, name: &str) {
    if manifest.features.iter().all(|feature| feature.name != name) {
        let feature = FeatureEntry::new(name, FeatureKind::Bytes, false);
        manifest.features.push(feature);
        manifest.features.sort_by(|a, b| a.name.cmp(&b.name));
    }
}

impl SplitSummary {
    /// Summarizes a split of a manifest.
    pub(crate) fn of(split: &SplitEntry) -> Self {
        Self {
            name: split.name.clone(),
            records: split.records,
            shards: split.shards.len() as u64,
            bytes: split.bytes,
        }
    }
}

/// Returns the manifest: the outline with its shards.
fn manifest(outline: &Outline, shards: &[String], done: &BTreeMap<String, ShardLine>) -> Manifest {
    let mut manifest = outline.manifest.clone();
    let mut names = shards.iter();
    for (split, count) in &outline.splits {
        let count = usize::try_from(*count).unwrap_or(usize::MAX);
        let lines = names.by_ref().take(count).filter_map(|name| done.get(name));
        let shards = SplitEntry::new(split.as_str(), lines.map(shard_entry).collect());
        let mut entries = manifest.splits.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.name == *split) {
            *entry = shards;
        }
    }
    identify_samples(&mut manifest, done);
    let image_bytes: u64 = done.values().map(|line| line.image_bytes).sum();
    manifest
        .pack
        .insert(IMAGE_BYTES_KEY.into(), image_bytes.into());
    // The number of images with seek points is known only after the shards are written.
    let seek_points: SeekPointCount = done.values().map(|line| line.seek_points).sum();
    seek_points.record(&mut manifest);
    let fast: FastCount = done.values().map(|line| line.fast).sum();
    fast.record(&mut manifest);
    // Progressive JPEGs are counted only if the pack transcodes them.
    if manifest.pack.contains_key("progressive") {
        let count: ProgressiveCount = done.values().map(|line| line.progressive).sum();
        count.record(&mut manifest);
    }
    manifest
}

/// Adds the sample fingerprint and the order of epochs to a manifest that has all of its shards.
pub(crate) fn identify_samples(manifest: &mut Manifest, done: &BTreeMap<String, ShardLine>) {
    let order = manifest.splits.iter().map(|split| {
        let lines = split
            .shards
            .iter()
            .filter_map(|shard| done.get(&shard.name));
        let bytes = lines.map(|line| line.record_bytes).sum();
        (split.name.clone(), block_records(split.records, bytes))
    });
    manifest.order = Some(EpochOrder {
        block_records: order.collect(),
    });
    manifest.sample_fingerprint =
        manifest.sample_fingerprint_of(|shard| done.get(shard).map(|line| line.samples));
}
