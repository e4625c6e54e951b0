//! Parquet files with the layout and the metadata of Hugging Face's `datasets`, or of any other tool.

#[cfg(feature = "formats")]
mod fields;
#[cfg(feature = "formats")]
mod file;
#[cfg(feature = "formats")]
mod footer;
#[cfg(feature = "formats")]
mod input;
#[cfg(feature = "formats")]
mod memory;
#[cfg(feature = "formats")]
mod nested;
#[cfg(feature = "formats")]
mod page_header;
#[cfg(feature = "formats")]
mod pages;
#[cfg(feature = "formats")]
mod places;
#[cfg(feature = "formats")]
mod rows;
#[cfg(feature = "formats")]
mod sink;
#[cfg(test)]
#[cfg(feature = "formats")]
pub(super) mod tests;
#[cfg(feature = "formats")]
mod thrift;
#[cfg(feature = "formats")]
mod values;

use super::CreateSink;
use super::{Format, FormatInfo, RecordInput, RecordSource};
use crate::error::Result;

pub(super) struct Parquet;

impl Format for Parquet {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "parquet",
            title: "Parquet files",
            extensions: &[".parquet"],
            is_read_in_place: true,
            advice: "`forebay convert` makes shards of it",
            ..FormatInfo::NONE
        }
    }

    #[cfg(feature = "formats")]
    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        open(input)
    }

    fn writer(&self) -> Option<CreateSink> {
        #[cfg(feature = "formats")]
        return Some(|facts, options| Ok(Box::new(sink::ParquetSink::new(facts, options)?)));
        #[cfg(not(feature = "formats"))]
        Some(|_, _| {
            Err("this build writes no Parquet files: build it with `--features formats`".to_owned())
        })
    }

    #[cfg(not(feature = "formats"))]
    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let what = "this build reads no Parquet files: build it with `--features formats`";
        Err(crate::Error::source(input.location.local_path()?, what))
    }
}

#[cfg(feature = "formats")]
fn open(input: &RecordInput) -> Result<RecordSource> {
    use super::conversion::Conversion;
    use super::{RecordSplit, SourceFacts, order_by_sizes};
    use crate::error::Error;
    use fields::{Fields, PATHS_ADVICE};
    use file::ParquetFile;
    use forebay_cache::read_storage;
    use forebay_shard::example::RecordFeatures;
    use forebay_shard::schema::{IMAGE, LABEL};

    let (root, storage) = read_storage(&input.location, &input.read)?;
    let conversion = match input.files.is_empty() && !places::is_file(&root) {
        true => Conversion::load(&root, &*storage)?,
        false => None,
    };
    let conversion = conversion.filter(|conversion| conversion.to == "parquet");
    let mut decided: Option<Fields> = None;
    let mut hasher = blake3::Hasher::new();
    let mut splits = Vec::new();
    let mut has_images = false;
    for (name, paths) in places::files(input, conversion.as_ref(), &root, &*storage)? {
        let mut files = Vec::new();
        for path in paths {
            let file = ParquetFile::open(&path, storage.clone(), |metadata| {
                Fields::decide(metadata.file_metadata(), input, conversion.as_ref())
            })?;
            match &decided {
                None => decided = Some(Fields::clone(&file.fields)),
                Some(first) => {
                    if let Some(what) = first.difference(&file.fields) {
                        let what = format!("{what}: all files of a source have the same columns");
                        return Err(Error::source(path, what));
                    }
                }
            }
            if let Some(image) = file.fields.image() {
                has_images = has_images || file.has_values(image)?;
            }
            file.identify(&name, &mut hasher);
            files.push(file);
        }
        splits.push(RecordSplit::new(name, files));
    }
    let fields = decided.ok_or_else(|| Error::source(&root, "there are no Parquet files here"))?;
    let rows = splits.iter().flat_map(|split: &RecordSplit| &split.files);
    let rows: u64 = rows.map(|file| file.records()).sum();
    if let Some(image) = fields.image().filter(|_| !has_images && rows > 0) {
        let what = format!(
            "no row has an image: the column {:?} is null in all of them; {PATHS_ADVICE}, or write the files with the bytes of the images, as `datasets` does with embed_external_files=True",
            image.name
        );
        return Err(Error::source(&root, what));
    }
    let identity = [
        ("columns", format!("{:?}", fields.uses())),
        ("label_base", fields.label_base.to_string()),
    ];
    let mut record_features = RecordFeatures::default();
    for (name, feature) in [
        (IMAGE, &mut record_features.image),
        (LABEL, &mut record_features.label),
    ] {
        if let Some(column) = fields.columns.column(name) {
            feature.clone_from(&column.feature);
        }
    }
    let facts = SourceFacts {
        classes: fields.classes.clone(),
        ..SourceFacts::new(fields.label_base, fields.columns.clone(), &hasher, identity)
    };
    let facts = facts.with_conversion(conversion.as_ref(), || order_by_sizes(&splits));
    // The columns are known from the files, even those of a conversion.
    let facts = SourceFacts {
        features: fields.features(),
        record_features,
        schema: fields.columns.clone(),
        ..facts
    };
    Ok(RecordSource { splits, facts })
}
