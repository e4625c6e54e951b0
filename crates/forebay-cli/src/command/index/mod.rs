//! `forebay index`: makes a dataset of records that stay in the files of another tool.

mod in_place;
pub(crate) mod names;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args as ClapArgs;
use forebay_pack::{ForeignRecords, ForeignSchema, class_names};
use forebay_shard::dataset::INDEX_DIRECTORY;
use forebay_shard::example::{FeatureKind, RecordFeatures, feature_kinds};
use forebay_shard::manifest::{
    Account, EpochOrder, FeatureEntry, Manifest, RoleAccount, ShardEntry, SplitAccount, SplitEntry,
    block_records,
};
use forebay_shard::tfrecord::build_sidecar;
use forebay_shard::tfrecord::{Compression, ReaderBuilder};
use forebay_shard::{Dataset, SampleDigest, Shard, ShardFormat};
use forebay_store::Error::Locked;
use forebay_store::{DirLock, Durability, clean_stale, sync_dir, try_map_parallel, write_file};
use serde_json::json;

use super::foreign_args::ForeignArgs;
use crate::account;
use crate::console::Console;
use crate::failure::{Failure, Outcome, io_hint};
use crate::input::{MANIFEST, local, show};
use crate::paint::printable;
use crate::quantity;

/// Index files of another tool, so that loaders read them in place
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Reads every record once and writes an index of each file with a checksum of each record. Loaders and
all other commands then read the records where they are. The files are not touched.

PATH is a WebDataset (.tar), MDS, Parquet, ArrayRecord or TFRecords: a directory, files, a pattern, or a
place in a store. TFRecords get indexes, binary (.fbi) and as NVIDIA DALI's text (.idx), in index/ of
their own directory; of all other formats, and with --seek-points, --output DIR gets mapped shards
(.fbm).

Examples:
  forebay index imagenet-tfrecords/
  forebay index /readonly/train-* --output indexed/     links to the files, indexes and manifest
  forebay index 'wds/train-{000..127}.tar' --output wds-index/ --seek-points auto
  forebay index s3://bucket/mds/ --output mds-index/
  forebay index data/ --image-feature jpg --label-feature y --label-base 0

The features that hold image and label are found by their names and printed; records without an
image are refused. Names of classes are taken from label.labels.txt, labels.txt or classes.txt beside
the files, where there are as many as labels.")]
pub(crate) struct Args {
    /// The directory of the files, or the files of one dataset; train-{000..127}.tar names many
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Make the dataset here; TFRecords get links to their files
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    #[command(flatten)]
    in_place: in_place::InPlaceArgs,

    #[command(flatten)]
    foreign: ForeignArgs,

    /// Files read at the same time [default: the cores of the machine or container]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Replace the dataset that is there
    #[arg(long)]
    overwrite: bool,
}

const ELSEWHERE: &str = "choose another place with --output DIR";

/// The result of indexing one TFRecord file.
struct Indexed {
    entry: ShardEntry,
    samples: SampleDigest,
    labels: Option<(i64, i64)>,
    features: BTreeMap<String, (FeatureKind, bool)>,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    if let Some(options) = in_place::options(&args, console)? {
        return in_place::run(&options, console);
    }
    let started = Instant::now();
    let (root, files) = decide(&args)?;
    let by_split = names::by_split(&files, args.foreign.split.as_deref())?;
    make_dir(&root)?;
    let _lock = DirLock::acquire(&root).map_err(|error| match error {
        Locked { .. } => Failure::from(error),
        error => Failure::from(error).hint(ELSEWHERE),
    })?;
    may_publish(&root, args.overwrite)?;
    if args.output.is_some() {
        link_all(&root, &files)?;
    }
    let index_dir = root.join(INDEX_DIRECTORY);
    make_dir(&index_dir)?;
    for dir in [&root, &index_dir] {
        clean_stale(dir)?;
    }
    let schema = schema_of(by_split.values().flatten(), &args.foreign.records())?;

    let interrupt = console.interrupt().answer();
    let jobs = args.jobs.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        NonZeroUsize::get,
    );
    let paths: Vec<&PathBuf> = by_split.values().flatten().collect();
    let sizes = paths.iter().map(|path| Ok(fs::metadata(path)?.len()));
    let sizes: Vec<u64> = sizes
        .collect::<Result<_, std::io::Error>>()
        .map_err(|error| Failure::new(format!("cannot read a file's size: {error}")))?;
    let bar = console.bar("indexing", Some(sizes.iter().sum()));
    let files: Vec<(&PathBuf, u64)> = paths.into_iter().zip(sizes).collect();
    let stopped = || interrupt.is_asked();
    let results = try_map_parallel(&files, jobs, &stopped, |(path, size)| {
        let indexed = index_file(&root, path, &schema)?;
        bar.add(indexed.entry.records, *size, "records");
        console.event("shard", &indexed.entry);
        Ok::<_, Failure>(indexed)
    })?;
    drop(bar);
    let mut indexed = BTreeMap::new();
    let mut missing = false;
    for ((path, _), result) in files.iter().zip(results) {
        match result {
            Some(result) => {
                indexed.insert((*path).clone(), result);
            }
            None => missing = true,
        }
    }
    if missing {
        return Err(Failure::interrupted(
            "stopped before all files were indexed; no manifest was written",
        )
        .hint("the same command again indexes them all"));
    }
    let manifest = manifest_of(&by_split, indexed, &schema, console)?;
    let manifest = manifest.to_json()?;
    write_file(
        &root.join(MANIFEST),
        manifest.as_bytes(),
        Durability::Synced,
    )?;
    sync_dir(&root)?;
    // Opening the dataset checks that the files just written are readable.
    let dataset = Dataset::open(&root)?;
    report(&dataset, started, console);
    Ok(account::outcome(dataset.manifest().account.as_ref()))
}

/// Returns the directory of the dataset, and the TFRecord files to index.
fn decide(args: &Args) -> Result<(PathBuf, Vec<PathBuf>), Failure> {
    let mut files = Vec::new();
    let mut directories = Vec::new();
    for path in &args.paths {
        let path = local(path)?;
        let meta = fs::metadata(&path).map_err(|error| {
            Failure::new(format!("cannot open {}: {error}", show(&path)))
                .maybe_hint(io_hint(&error))
        })?;
        if meta.is_dir() {
            files.extend(names::shards_in(&path)?);
            directories.push(path);
        } else {
            directories.push(path.parent().map_or_else(PathBuf::new, Path::to_owned));
            files.push(path);
        }
    }
    files.sort();
    files.dedup();
    if let Some(out) = &args.output {
        return Ok((local(out)?, files));
    }
    directories.dedup();
    match directories.as_slice() {
        [one] if one.as_os_str().is_empty() => Ok((PathBuf::from("."), files)),
        [one] => Ok((one.clone(), files)),
        _ => Err(Failure::usage("the files are in several directories")
            .hint("choose where the dataset is made with --output DIR")),
    }
}

/// Returns an error if the directory holds a packed dataset: its manifest has facts that indexing cannot recover.
fn may_publish(root: &Path, overwrite: bool) -> Result<(), Failure> {
    if overwrite {
        return Ok(());
    }
    match Manifest::load(root) {
        Ok(manifest) if manifest.pack.get("tool").is_none_or(|tool| tool != "index") => Err(
            Failure::new(format!("{} is a packed dataset already", show(root)))
                .hint("it needs no index; --overwrite replaces its manifest all the same"),
        ),
        Ok(_) => Ok(()),
        Err(forebay_shard::Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            Ok(())
        }
        Err(error) => Err(Failure::from(error).hint("--overwrite replaces it")),
    }
}

fn make_dir(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|error| {
        Failure::new(format!("cannot make {}: {error}", show(path)))
            .maybe_hint(io_hint(&error))
            .hint(ELSEWHERE)
    })
}

/// Makes symlinks in `root` to the files, so that the directory of the files need not be writable.
fn link_all(root: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    for file in files {
        let Some(name) = file.file_name() else {
            continue;
        };
        let (link, failed) = (root.join(name), |link: &Path, error: std::io::Error| {
            Failure::new(format!(
                "cannot link {} to {}: {error}",
                show(link),
                show(file)
            ))
            .maybe_hint(io_hint(&error))
        });
        let target = fs::canonicalize(file).map_err(|error| failed(&link, error))?;
        match symlink(&target, &link) {
            Ok(()) => {}
            // An earlier run made the link, or the file itself is in `root`.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let there = fs::canonicalize(&link).map_err(|error| failed(&link, error))?;
                if there != target {
                    return Err(Failure::new(format!(
                        "{} is there already and is not {}",
                        show(&link),
                        show(&target)
                    ))
                    .hint("choose an empty directory with --output DIR"));
                }
            }
            Err(error) => return Err(failed(&link, error)),
        }
    }
    Ok(())
}

/// Returns the schema of the records, derived from the first record of the first file that has one.
fn schema_of<'a>(
    files: impl Iterator<Item = &'a PathBuf>,
    records: &ForeignRecords,
) -> Result<ForeignSchema, Failure> {
    let refuse = |path: &Path, what: String| {
        Failure::new(format!("{}: record 0: {what}", show(path)))
            .hint("an index is for datasets of images; --allow-no-image indexes other records too")
    };
    for path in files {
        let mut reader = ReaderBuilder::new().from_path(path)?;
        let first = reader.next_record()?.map(|record| record.bytes.to_vec());
        if let Some(compression @ (Compression::Gzip | Compression::Zlib)) = reader.compression() {
            return Err(Failure::new(format!(
                "{} is compressed as a whole ({compression}): an index cannot point into it",
                show(path)
            ))
            .hint("`forebay convert` makes a dataset of compressed TFRecords"));
        }
        if let Some(first) = first {
            let schema = records.decide(Some(&first));
            let schema = schema.map_err(|what| refuse(path, what))?;
            schema.check(&first).map_err(|what| refuse(path, what))?;
            if let (Some(name), false) = (&schema.other_label, records.without_labels) {
                let what = format!(
                    "{}: record 0: {name:?} has the name of a label and holds no single integer, and an index leaves records as they are",
                    show(path)
                );
                return Err(Failure::new(what).hint(
                    "`forebay convert SRC DST --format indexed` makes classes of it; --no-labels indexes the records without labels",
                ));
            }
            return Ok(schema);
        }
    }
    records.decide(None).map_err(Failure::new)
}

fn index_file(root: &Path, path: &Path, schema: &ForeignSchema) -> Result<Indexed, Failure> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| Failure::new(format!("{}: a shard's name must be UTF-8", show(path))))?;
    let (label, key) = (schema.features.label.as_str(), schema.key.as_str());
    let check = |record: &[u8]| schema.check(record);
    let (index, crc32c) = build_sidecar(path, Some(label), Some(key), &check)?;
    let sidecar = root.join(INDEX_DIRECTORY).join(name);
    let with = |extension: &str| {
        let mut path = sidecar.clone().into_os_string();
        path.push(extension);
        PathBuf::from(path)
    };
    let synced = Durability::Synced;
    write_file(&with(".fbi"), &index.to_fbi(crc32c), synced)?;
    write_file(&with(".idx"), index.to_idx().as_bytes(), synced)?;

    let sidecar = with(".fbi");
    let options = Shard::options().format(ShardFormat::TfRecord, Some(&sidecar));
    let shard = options.open(path)?;
    let mut labels = None;
    let known = (0..shard.len()).filter_map(|record| shard.label(record));
    for label in known.filter(|label| *label >= 0) {
        let (least, most) = labels.unwrap_or((label, label));
        labels = Some((label.min(least), label.max(most)));
    }
    Ok(Indexed {
        entry: ShardEntry {
            name: name.to_owned(),
            records: shard.len(),
            bytes: shard.file_len(),
            crc32c,
            blake3: None,
        },
        samples: index.samples(),
        labels,
        features: first_features(&shard)?,
    })
}

/// Returns the features of a shard's first record: for each the kind, and whether it holds exactly one value.
fn first_features(shard: &Shard) -> Result<BTreeMap<String, (FeatureKind, bool)>, Failure> {
    if shard.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut record = Vec::new();
    shard.read(0, &mut record)?;
    // A record that is not an Example has no features. This is no error: an index needs none.
    Ok(feature_kinds(&record))
}

fn manifest_of(
    by_split: &BTreeMap<String, Vec<PathBuf>>,
    mut indexed: BTreeMap<PathBuf, Indexed>,
    schema: &ForeignSchema,
    console: &Console,
) -> Result<Manifest, Failure> {
    let mut features: BTreeMap<String, (FeatureKind, bool)> = BTreeMap::new();
    let mut labels: Option<(i64, i64)> = None;
    let mut dir = None;
    let mut splits = Vec::new();
    let mut samples = HashMap::new();
    let mut order = EpochOrder::default();
    for (split, paths) in by_split {
        let mut shards = Vec::new();
        dir = dir.or(paths.first().and_then(|path| path.parent()));
        for indexed in paths.iter().filter_map(|path| indexed.remove(path)) {
            for (name, (kind, is_one)) in indexed.features {
                let known = features.entry(name).or_insert((kind, is_one));
                known.1 &= is_one;
            }
            if let Some((least, most)) = indexed.labels {
                let known = labels.unwrap_or((least, most));
                labels = Some((known.0.min(least), known.1.max(most)));
            }
            samples.insert(indexed.entry.name.clone(), indexed.samples);
            shards.push(indexed.entry);
        }
        let split = SplitEntry::new(split, shards);
        let block = block_records(split.records, split.bytes);
        order.block_records.insert(split.name.clone(), block);
        splits.push(split);
    }
    let mut manifest = Manifest::new(ShardFormat::TfRecord, schema.label_base, splits);
    manifest.order = Some(order);
    manifest.sample_fingerprint =
        manifest.sample_fingerprint_of(|shard| samples.get(shard).copied());
    manifest.record_features = schema.features.clone();
    manifest.account = Some(account_of(&manifest, schema, &samples));
    if let Some((classes, what)) = class_names(dir.unwrap_or(Path::new("")), schema, labels)? {
        manifest.classes = classes;
        console.note(printable(&what));
    }
    manifest.features = features
        .into_iter()
        .map(|(name, (kind, is_one))| FeatureEntry::new(name, kind, !is_one))
        .collect();
    manifest.pack = BTreeMap::from([
        ("tool".to_owned(), "index".into()),
        ("key_feature".to_owned(), schema.key.clone().into()),
    ]);
    Ok(manifest)
}

/// Returns the account for the manifest: all records count as packed, since none is left out.
fn account_of(
    manifest: &Manifest,
    schema: &ForeignSchema,
    samples: &HashMap<String, SampleDigest>,
) -> Account {
    let mut account = Account::new("records");
    for split in &manifest.splits {
        let digests = split
            .shards
            .iter()
            .filter_map(|shard| samples.get(&shard.name));
        let own = SplitAccount {
            samples: split.records,
            labelled: digests.map(SampleDigest::labelled).sum(),
        };
        account.read += own.samples;
        account.packed.insert(split.name.clone(), own);
        account.note_unlabelled(&split.name, own);
    }
    let RecordFeatures { image, label, .. } = &schema.features;
    let has_labels = account.packed.values().any(|split| split.labelled > 0);
    for (role, source) in [("image", image), ("label", label)] {
        if role == "image" || has_labels {
            let source = source.clone();
            account
                .roles
                .insert(role.to_owned(), RoleAccount { source, form: None });
        }
    }
    account
}

fn report(dataset: &Dataset, started: Instant, console: &Console) {
    let manifest = dataset.manifest();
    let shards: u64 = manifest
        .splits
        .iter()
        .map(|split| split.shards.len() as u64)
        .sum();
    let records: u64 = manifest.splits.iter().map(|split| split.records).sum();
    let bytes: u64 = manifest.splits.iter().map(|split| split.bytes).sum();
    let elapsed = started.elapsed();
    console.heading(format!(
        "Indexed {} of {} in {} ({})",
        quantity::counted(records, "record", "records"),
        quantity::counted(shards, "shard", "shards"),
        quantity::duration(elapsed),
        quantity::byte_rate(bytes, elapsed),
    ));
    for split in &manifest.splits {
        console.line(format!(
            "  {}: {} in {}",
            split.name,
            quantity::counted(split.records, "record", "records"),
            quantity::counted(split.shards.len() as u64, "shard", "shards"),
        ));
    }
    if let Some(account) = &manifest.account {
        let classes: Vec<String> = manifest
            .classes
            .iter()
            .map(|class| class.name.clone())
            .collect();
        account::print(account, &classes, console);
    }
    console.line(format!(
        "  indexes in {}",
        show(&dataset.root().join(INDEX_DIRECTORY))
    ));
    console.line(format!(
        "  manifest {}",
        show(&dataset.root().join(MANIFEST))
    ));

    console.event(
        "summary",
        &json!({
            "command": "index",
            "exit_code": account::outcome(manifest.account.as_ref()).exit_code(),
            "account": manifest.account.as_ref(),
            "root": dataset.root().display().to_string(),
            "fingerprint": dataset.fingerprint(),
            "records": records,
            "shards": shards,
            "bytes": bytes,
            "seconds": elapsed.as_secs_f64(),
        }),
    );
}
