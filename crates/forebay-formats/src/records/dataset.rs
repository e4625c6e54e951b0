//! Datasets of Forebay: a manifest with TFRecord or indexed shards.

use super::shards::{LabelKeySource, order_of, split};
use super::{Format, FormatInfo, RecordInput, RecordSource, SourceFacts, by_extension};
use crate::error::Result;
use forebay_cache::open_dataset;
use forebay_shard::manifest::FILE_NAME;
use std::collections::BTreeMap;

pub(super) struct Dataset;

impl Format for Dataset {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "dataset",
            title: "a Forebay dataset",
            extensions: &[".fbs"],
            advice: "`forebay convert` makes other shards of it",
            ..FormatInfo::NONE
        }
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let mut all = names.iter().copied();
        all.find(|name| *name == FILE_NAME)
            .or_else(|| by_extension(self.info(), names))
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let dataset = open_dataset(&input.location, &input.read)?;
        let manifest = dataset.manifest();
        let mut splits = Vec::new();
        for name in dataset.splits() {
            let shards = dataset.split(name)?.shards().to_vec();
            splits.push((name.to_owned(), shards));
        }
        let order = match &manifest.order {
            Some(order) => order.clone(),
            None => order_of(&splits)?,
        };
        // Labels are read from the records of TFRecord shards without a sidecar.
        let labels = LabelKeySource::Known(manifest.record_features.clone());
        let fingerprint = dataset.fingerprint().to_owned();
        Ok(RecordSource {
            splits: splits
                .into_iter()
                .map(|shards| split(shards, &labels, false))
                .collect(),
            facts: SourceFacts {
                label_base: manifest.label_base,
                classes: manifest.classes.clone(),
                features: manifest.features.clone(),
                record_features: manifest.record_features.clone(),
                schema: manifest.columns.clone(),
                pack: manifest.pack.clone(),
                identity: BTreeMap::from([("converted_from".to_owned(), fingerprint)]),
                order,
                is_own: true,
                ..SourceFacts::default()
            },
        })
    }
}
