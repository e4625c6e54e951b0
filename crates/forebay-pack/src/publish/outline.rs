//! The parts of a manifest that are known before shards are written.

use super::destination::Outline;
use crate::census::Census;
use crate::options::PackOptions;
use crate::plan::Plan;
use forebay_formats::escape;
use forebay_formats::key_path::base;
use forebay_shard::example::FeatureKind;
use forebay_shard::manifest::{ClassEntry, FeatureEntry, Manifest, RoleAccount, SplitEntry};
use std::collections::BTreeMap;

/// Manifest entry with the digest of the plan, by which the same command recognizes a finished dataset.
pub(super) const PLAN_KEY: &str = "plan";
/// Manifest entry with the layout of the source.
const LAYOUT_KEY: &str = "layout";
/// Manifest entry with the name of the file of labels, if one was used.
pub(crate) const LABELS_KEY: &str = "labels";

/// Returns the manifest without its shards.
pub(crate) fn outline(options: &PackOptions, census: &Census, plan: &Plan) -> Outline {
    let format = options.format.shard_format();
    let splits = plan.splits().iter();
    let splits = splits.map(|split| SplitEntry::new(split.name(), Vec::new()));
    let mut manifest = Manifest::new(format, i64::from(options.label_base), splits.collect());
    manifest.features = features(census);
    let classes = census.classes().iter();
    manifest.classes = classes
        .map(|class| ClassEntry {
            name: escape(&class.name),
            text: class.text.clone(),
        })
        .collect();
    for (name, value) in plan.arguments() {
        manifest.pack.insert(name.clone(), value.as_str().into());
    }
    manifest.pack.insert(PLAN_KEY.into(), plan.digest().into());
    manifest
        .pack
        .insert(LAYOUT_KEY.into(), census.layout().name().into());
    if let Some(file) = &options.labels {
        let name = file.file_name().unwrap_or(file.as_os_str());
        manifest
            .pack
            .insert(LABELS_KEY.into(), escape(name.as_encoded_bytes()).into());
    }
    let splits = plan.splits().iter();
    Outline {
        manifest,
        splits: splits
            .map(|split| (split.name().to_owned(), u64::from(split.shard_count())))
            .collect(),
        warnings: census.warnings().to_vec(),
        files: census.files(),
        roles: roles(options, census),
        columns: columns(census),
        census: None,
    }
}

/// Returns the sources of images and labels.
fn roles(options: &PackOptions, census: &Census) -> BTreeMap<String, RoleAccount> {
    let role = |source: &str| RoleAccount {
        source: source.to_owned(),
        form: None,
    };
    let mut roles = BTreeMap::from([("image".to_owned(), role("files"))]);
    let labels = match &options.labels {
        Some(_) => Some("file of labels"),
        None if !census.classes().is_empty() => Some("layout"),
        None => None,
    };
    roles.extend(labels.map(|source| ("label".to_owned(), role(source))));
    // Directories whose names differ from the names of their splits, such as `val` or `dev`.
    let splits = census.splits().iter();
    let renamed = splits
        .filter(|split| !split.dir().is_empty() && base(split.dir()) != split.name().as_bytes());
    let renamed: Vec<String> = renamed
        .map(|split| format!("{} is {}", escape(split.dir()), split.name()))
        .collect();
    if !renamed.is_empty() {
        roles.insert("split".to_owned(), role(&renamed.join(", ")));
    }
    roles
}

/// Returns the columns of files of labels and annotations.
fn columns(census: &Census) -> Vec<String> {
    let features = census.extra_features().features();
    features.into_iter().map(|(name, ..)| name).collect()
}

/// Returns the features of the records, sorted by name.
fn features(census: &Census) -> Vec<FeatureEntry> {
    let classes = census.classes();
    let mut features = Vec::new();
    let mut add = |name: &str, kind| features.push(FeatureEntry::new(name, kind, false));
    add("image/channels", FeatureKind::Int64);
    add("image/class/label", FeatureKind::Int64);
    if !classes.is_empty() {
        add("image/class/synset", FeatureKind::Bytes);
    }
    if classes.iter().any(|class| class.text.is_some()) {
        add("image/class/text", FeatureKind::Bytes);
    }
    for (name, kind) in [
        ("image/colorspace", FeatureKind::Bytes),
        ("image/encoded", FeatureKind::Bytes),
        ("image/filename", FeatureKind::Bytes),
        ("image/format", FeatureKind::Bytes),
        ("image/height", FeatureKind::Int64),
        ("image/width", FeatureKind::Int64),
    ] {
        add(name, kind);
    }
    for (name, kind, list) in census.extra_features().features() {
        features.push(FeatureEntry::new(name, kind, list));
    }
    features.sort_by(|a, b| a.name.cmp(&b.name));
    features
}
