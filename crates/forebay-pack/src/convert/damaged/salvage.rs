//! Writes the intact records of a damaged shard.

use super::features::{KEY_FEATURE, recover_key};
use super::shard::DamagedShard;
use crate::convert::record::Converter;
use crate::convert::run::Run;
use crate::convert::shard::{STEP_BYTES, STEP_RECORDS};
use crate::error::Result;
use crate::plan::PlannedShard;
use crate::publish::destination::ShardLine;
use crate::publish::upload;
use crate::write::{WrittenShard, open_shard};
use forebay_shard::example::RecordFeatures;
use forebay_shard::verify::{IntactRecord, VerifyOptions, salvage_shard_in};
use forebay_shard::{ExampleView, RecordMeta};
use std::sync::atomic::{AtomicBool, Ordering};

/// The state of salvaging a shard.
struct Salvaging<'a, 's, W: std::io::Write> {
    features: &'a RecordFeatures,
    key_feature: Option<&'a str>,
    converter: &'a mut Converter<'s>,
    writer: forebay_shard::ShardWriter<W>,
    /// Its image bytes are those of the records of the source.
    line: ShardLine,
    key: Vec<u8>,
    /// Records that cannot be converted, with the reason.
    refused: Vec<(u64, String)>,
}

impl<W: std::io::Write> Salvaging<'_, '_, W> {
    fn take(&mut self, record: &IntactRecord<'_>) -> Result<()> {
        let converted = match self.converter.convert(record.payload) {
            Ok(converted) => converted,
            Err(what) => {
                self.refused.push((record.number, what));
                return Ok(());
            }
        };
        self.line.seek_points.add(converted.seek_point_bytes);
        self.line.progressive.add(converted.is_baseline_now);
        self.line.fast.add(converted.fast);
        let mut label = record.label;
        self.key.clear();
        self.key.extend_from_slice(record.key.unwrap_or_default());
        if (label.is_none() || record.key.is_none())
            && let Ok(example) = ExampleView::parse(record.payload)
        {
            let found = self.features.label(example).ok().flatten();
            label = label.or(found.filter(|label| *label != i64::MIN));
            if record.key.is_none() {
                recover_key(&example, self.key_feature, &mut self.key);
            }
        }
        let meta = RecordMeta {
            label,
            key: &self.key,
        };
        self.writer.append(converted.bytes, &meta)?;
        self.line.image_bytes += record.payload.len() as u64;
        Ok(())
    }
}

impl Run<'_> {
    /// Writes the intact records of a shard. `None` if the conversion was stopped.
    pub(in crate::convert) fn salvage(
        &self,
        planned: &PlannedShard,
        shard: &DamagedShard,
        converter: &mut Converter<'_>,
        stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<WrittenShard>> {
        let bytes = upload::room_of_planned(planned, self.options);
        let Some(room) = self.destination.reserve(bytes, stopped)? else {
            return Ok(None);
        };
        let path = self.destination.dir().path(&planned.name);
        let key_feature = self.source.facts.pack.get(KEY_FEATURE);
        let mut salvaging = Salvaging {
            features: &self.source.facts.record_features,
            key_feature: key_feature.and_then(|name| name.as_str()),
            converter,
            writer: open_shard(&path, self.options)?,
            line: ShardLine::new(&planned.name),
            key: Vec::new(),
            refused: Vec::new(),
        };
        let failed = AtomicBool::new(false);
        let mut failure = None;
        let (mut told_records, mut told_bytes) = (0, 0);
        let mut take = |record: &IntactRecord<'_>| {
            if failed.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = salvaging.take(record) {
                failure = Some(error);
                return failed.store(true, Ordering::Relaxed);
            }
            let (records, bytes) = (salvaging.writer.records(), salvaging.line.image_bytes);
            if records - told_records >= STEP_RECORDS || bytes - told_bytes >= STEP_BYTES {
                self.observer
                    .advanced(records - told_records, bytes - told_bytes);
                (told_records, told_bytes) = (records, bytes);
            }
        };
        let stop = || stopped() || failed.load(Ordering::Relaxed);
        let options = VerifyOptions {
            label_feature: None,
            stop: Some(&stop),
            ..VerifyOptions::default()
        };
        let (mut findings, mut lost) = if shard.is_missing {
            shard.missing()
        } else {
            let report = salvage_shard_in(
                &shard.place(),
                &*shard.storage,
                &options,
                &|_| {},
                &mut take,
            )?;
            if let Some(error) = failure {
                return Err(error);
            }
            if report.stopped {
                return Ok(None);
            }
            (report.findings, report.lost)
        };
        let (records, bytes) = (salvaging.writer.records(), salvaging.line.image_bytes);
        self.observer
            .advanced(records - told_records, bytes - told_bytes);
        for (number, what) in std::mem::take(&mut salvaging.refused) {
            let (finding, place) = shard.refused(number, what);
            findings.push(finding);
            lost.push(place);
        }
        lost.sort_by_key(|lost| lost.bytes.start);
        let (mut line, file) = (salvaging.line, salvaging.writer.finish()?);
        (line.lost, line.lost_records) = shard.lost(lost, records);
        line.damage = findings;
        Ok(Some(WrittenShard::new(line, file, room, self.options)))
    }
}
