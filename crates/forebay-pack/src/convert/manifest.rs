//! The manifest of converted records, and their account.

use super::conversion::{CONVERSION_KEY, Running};
use super::losses;
use super::options::{ImageChange, ProgressiveChange};
use crate::error::Result;
use crate::options::IMAGES_KEY;
use crate::publish::account::{self, FindingCounts};
use crate::publish::destination::ShardLine;
use crate::publish::{identify_samples, shard_entry};
use crate::report::{FastCount, ProgressiveCount, SeekPointCount};
use forebay_formats::records::{ForeignSchema, class_names};
use forebay_shard::manifest::{Account, Manifest, SplitEntry};
use std::collections::BTreeMap;

impl Running<'_> {
    /// Returns the manifest, without an account.
    pub(super) fn manifest(
        &self,
        done: &BTreeMap<String, ShardLine>,
        notes: &mut Vec<String>,
    ) -> Result<Manifest> {
        let Self {
            options,
            changes,
            source,
            plan,
            ..
        } = self;
        let format = options.format.shard_format();
        let mut entries: Vec<Vec<_>> = source.splits.iter().map(|_| Vec::new()).collect();
        for shard in &plan.shards {
            if let Some(line) = done.get(&shard.name) {
                entries[shard.split].push(shard_entry(line));
            }
        }
        let splits = source.splits.iter().zip(entries);
        let splits = splits.map(|(split, shards)| SplitEntry::new(&split.name, shards));
        let mut manifest = Manifest::new(format, source.facts.label_base, splits.collect());
        identify_samples(&mut manifest, done);
        manifest.source = self.mapping.map(|mapping| mapping.source.clone());
        // A run goes on with the same epoch, though records have other sizes now.
        manifest.order = Some(source.facts.order.clone());
        manifest.classes.clone_from(&source.facts.classes);
        manifest.record_features = source.facts.record_features.clone();
        if let Some((schema, dir)) = &source.facts.foreign
            && source.facts.classes.is_empty()
            && source.facts.label.is_some()
        {
            let schema = ForeignSchema {
                features: source.facts.record_features.clone(),
                label_base: source.facts.label_base,
                ..schema.clone()
            };
            let labels = done.values().filter_map(|line| line.labels);
            let labels = labels.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
            if let Some((classes, what)) = class_names(dir, &schema, labels)? {
                manifest.classes = classes;
                notes.push(what);
            }
        }
        manifest.features.clone_from(&source.facts.features);
        manifest.columns = source.facts.schema.clone();
        manifest.pack.clone_from(&source.facts.pack);
        for old in [
            "format",
            "codec",
            "index_text",
            "blake3",
            "plan",
            CONVERSION_KEY,
        ] {
            manifest.pack.remove(old);
        }
        if changes.images != ImageChange::Keep {
            manifest.pack.remove(IMAGES_KEY);
        }
        if options.sharding.is_some() {
            manifest.pack.remove("shards");
            manifest.pack.remove("shard_size");
        }
        let seek_points: SeekPointCount = done.values().map(|line| line.seek_points).sum();
        seek_points.record(&mut manifest);
        let progressive: ProgressiveCount = done.values().map(|line| line.progressive).sum();
        match options.progressive {
            ProgressiveChange::Keep => {}
            ProgressiveChange::Baseline => progressive.record(&mut manifest),
            ProgressiveChange::Original => ProgressiveCount::remove(&mut manifest),
        }
        let fast: FastCount = done.values().map(|line| line.fast).sum();
        fast.record(&mut manifest);
        for (name, value) in options.arguments() {
            manifest.pack.insert(name, value.into());
        }
        for (name, value) in &source.facts.identity {
            manifest.pack.insert(name.clone(), value.as_str().into());
        }
        let digest = plan.digest.as_str();
        manifest.pack.insert(CONVERSION_KEY.into(), digest.into());
        losses::record(source, done, &mut manifest);
        Ok(manifest)
    }

    /// Returns the account of the records, which has to add up.
    pub(super) fn account(
        &self,
        manifest: &Manifest,
        done: &BTreeMap<String, ShardLine>,
    ) -> Result<Account> {
        let of_source = &self.source.facts.findings;
        let found = done
            .values()
            .flat_map(|line| &line.findings)
            .chain(of_source);
        let counts = FindingCounts::of(found);
        let before = FindingCounts::of(of_source.iter());
        // What the source left out by itself is not among its records.
        let read = self.source.len() + before.passed_over();
        let mut account =
            account::account("records", read, counts, manifest, |name| done.get(name));
        if self.source.is_damaged() {
            // Without its manifest and indexes, only what is whole of a damaged shard can be counted.
            account.read = read.max(account.packed_samples() + account.left_out_count());
            let lost = read.saturating_sub(account.packed_samples() + account.left_out_count());
            if lost > 0 {
                account.left_out.insert("lost to damage".to_owned(), lost);
                account.problems.insert("lost to damage".to_owned(), lost);
            }
        }
        account::add_columns(&mut account, &self.source.facts);
        account.unused = self.options.drop_features.iter().cloned().collect();
        account::check(&account, self.shown)?;
        Ok(account)
    }
}
