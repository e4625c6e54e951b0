//! WebDataset: tars whose members are the columns of samples. The members of a sample are adjacent and have the same name up to
//! the first dot of its last part; the rest is the column: `cat/1.jpg`, `cat/1.cls`, `cat/1.json`. Samples with dots in their
//! names need the option for the image: see [`Cut`].

mod columns;
mod index;
mod names;
mod read;
mod write;

use super::conversion::Conversion;
use super::places::{SplitFiles, by_split, files_at, named_files};
use super::{
    CreateSink, Format, FormatInfo, OnBadRecord, RecordInput, RecordSource, RecordSplit,
    SourceFacts,
};
use crate::archive::{Archive, hash_text};
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason};
use columns::Columns;
use forebay_shard::manifest::{EpochOrder, block_records};
use forebay_store::try_map_parallel;
use index::TarIndex;
use names::Cut;
use read::TarFile;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub(super) struct WebDataset;

const EXTENSIONS: &[&str] = &[".tar", ".tar.gz", ".tgz", ".tar.zst"];

/// Returns whether a name is that of a tar.
fn is_tar(name: &str) -> bool {
    EXTENSIONS.iter().any(|ending| name.ends_with(ending))
}

impl Format for WebDataset {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "webdataset",
            title: "a WebDataset (tar archives of samples)",
            extensions: EXTENSIONS,
            is_read_in_place: true,
            advice: "`forebay convert SRC DST --format indexed` keeps the labels and all other columns of a WebDataset's tars; name one archive to pack a tar of class directories",
            ..FormatInfo::NONE
        }
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| is_tar(name))
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let is_file = |root: &Path| is_tar(&root.to_string_lossy());
        let (root, conversion) = Conversion::of_source(input, self.info().name, is_file)?;
        let splits = splits(input, conversion.as_ref(), &root)?;
        let mut sources = Vec::new();
        let mut findings = Vec::new();
        let first = splits.values().flatten().next();
        let cut = match (&conversion, first) {
            (None, Some((_, archive))) => Cut::decide(archive, input)?,
            _ => Cut::FirstDot,
        };
        for (split, files) in splits {
            let indexes = index_all(&files, input, cut)?;
            for index in &indexes {
                findings.extend(index.findings.iter().cloned());
            }
            sources.push((split, indexes));
        }
        if let Some(conversion) = &conversion {
            check_counts(conversion, &sources, input.on_bad_record)?;
        }
        let all = sources.iter().flat_map(|(_, indexes)| indexes);
        let columns = Arc::new(Columns::of(all, conversion.as_ref(), input, &root)?);
        for index in sources.iter_mut().flat_map(|(_, indexes)| indexes) {
            if columns.needs_image {
                let is_image = |extension: &str| columns.is_image(extension);
                index.check_images(is_image, input.on_bad_record, &mut findings)?;
            }
        }
        if sources
            .iter()
            .all(|(_, all)| all.iter().all(|index| index.len() == 0))
        {
            return Err(Error::source(&root, "the tars hold no samples"));
        }
        let (files, identity) = (hash(&sources), identity(&columns, input));
        let facts = SourceFacts {
            features: columns.features(),
            findings,
            ..SourceFacts::new(columns.label_base, columns.schema(), &files, identity)
        };
        let facts = facts.with_conversion(conversion.as_ref(), || order_of(&sources));
        let file = |index| TarFile::new(Arc::new(index), Arc::clone(&columns));
        let splits = sources
            .into_iter()
            .map(|(name, indexes)| RecordSplit::new(name, indexes.into_iter().map(file)));
        Ok(RecordSource {
            splits: splits.collect(),
            facts,
        })
    }

    fn writer(&self) -> Option<CreateSink> {
        Some(|facts, options| Ok(Box::new(write::Sink::new(facts, options)?)))
    }
}

/// Returns the tars of each split.
fn splits(input: &RecordInput, conversion: Option<&Conversion>, root: &Path) -> Result<SplitFiles> {
    if !input.files.is_empty() {
        return Ok(by_split(named_files(input)?, input.split.as_deref()));
    }
    let mut files = files_at(&input.location, &input.read, &is_tar)?;
    let Some(conversion) = conversion else {
        if files.is_empty() {
            return Err(Error::source(root, "there are no tars here"));
        }
        return Ok(by_split(files, input.split.as_deref()));
    };
    let mut splits = BTreeMap::new();
    for split in &conversion.splits {
        let mut own = Vec::new();
        for shard in &split.shards {
            let at = files.iter().position(|(name, _)| *name == shard.name);
            let at = at.ok_or_else(|| Conversion::is_missing(root, &shard.name))?;
            own.push(files.swap_remove(at));
        }
        splits.insert(split.name.clone(), own);
    }
    Ok(splits)
}

/// Reads the headers of tars in parallel.
fn index_all(files: &[(String, Archive)], input: &RecordInput, cut: Cut) -> Result<Vec<TarIndex>> {
    let jobs = std::thread::available_parallelism().map_or(1, |count| count.get());
    let read = |(_, archive): &(String, Archive)| TarIndex::read(archive, input, cut);
    let all = try_map_parallel(files, jobs, &|| false, read)?;
    Ok(all.into_iter().flatten().collect())
}

/// Checks that files have as many samples as were written.
fn check_counts(
    conversion: &Conversion,
    sources: &[(String, Vec<TarIndex>)],
    policy: OnBadRecord,
) -> Result<()> {
    for (split, indexes) in sources {
        let known = conversion.splits.iter().find(|known| known.name == *split);
        let shards = known.map_or(&[][..], |known| &known.shards);
        for (index, shard) in indexes.iter().zip(shards) {
            if policy == OnBadRecord::Fail && index.len() as u64 != shard.records {
                let what = format!(
                    "it holds {} samples, and {} were written",
                    index.len(),
                    shard.records
                );
                return Err(Error::source(&index.version.path, what));
            }
        }
    }
    Ok(())
}

fn order_of(sources: &[(String, Vec<TarIndex>)]) -> EpochOrder {
    let mut order = EpochOrder::default();
    for (split, indexes) in sources {
        let records = indexes.iter().map(|index| index.len() as u64).sum();
        let bytes = indexes.iter().map(TarIndex::data_bytes).sum();
        let block = block_records(records, bytes);
        order.block_records.insert(split.clone(), block);
    }
    order
}

/// Returns the hash that identifies the tars.
fn hash(sources: &[(String, Vec<TarIndex>)]) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    let mut item = |bytes: &[u8]| hash_text(bytes, &mut hasher);
    for (split, indexes) in sources {
        item(split.as_bytes());
        for index in indexes {
            item(index.version.path.as_os_str().as_encoded_bytes());
            item(&index.version.bytes.to_le_bytes());
            item(&index.version.modified.to_le_bytes());
            item(&(index.len() as u64).to_le_bytes());
        }
    }
    hasher
}

/// Returns the options for reading the tars, which identify the source.
fn identity(columns: &Columns, input: &RecordInput) -> [(&'static str, String); 5] {
    let chosen = |name: &Option<String>| name.clone().unwrap_or_default();
    let policy = format!("{:?}", input.on_bad_record).to_lowercase();
    [
        ("label_base", columns.label_base.to_string()),
        ("image_feature", chosen(&input.features.image_feature)),
        ("label_feature", chosen(&input.features.label_feature)),
        ("allow_no_image", input.features.without_images.to_string()),
        ("on_bad_record", policy),
    ]
}

/// Returns the name of a tar's member for findings.
fn place(path: &Path, member: &[u8]) -> Vec<u8> {
    let name = path.file_name().unwrap_or(path.as_os_str());
    [name.as_encoded_bytes(), b"/", member].concat()
}

/// Returns the finding about a sample that was left out.
fn skipped(path: &Path, member: &[u8], detail: String) -> Finding {
    Finding::new(
        Action::Skipped,
        Reason::BadRecord,
        &place(path, member),
        detail,
    )
}

#[cfg(test)]
mod tests;
