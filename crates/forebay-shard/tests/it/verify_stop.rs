//! A stopped verification reports that, and does not report unread parts as damage.

use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_shard::manifest::{Manifest, ShardEntry, SplitEntry};
use forebay_shard::verify::{VerifyOptions, VerifyProgress, verify_dataset, verify_shard};
use forebay_shard::{RecordMeta, ShardFormat, ShardWriter, indexed, tfrecord};

const RECORDS: u64 = 200;

fn dataset(root: &Path, format: ShardFormat) -> Vec<std::path::PathBuf> {
    let mut entries = Vec::new();
    for number in 0..3 {
        let name = format!("train-{number:05}-of-00003");
        let path = root.join(&name);
        let file = std::fs::File::create(&path).unwrap();
        let mut writer: ShardWriter<_> = match format {
            ShardFormat::TfRecord => tfrecord::WriterBuilder::new().from_writer(file, &path),
            ShardFormat::Mapped => panic!("mapped shards have a writer of their own"),
            ShardFormat::Indexed => indexed::WriterBuilder::new()
                .from_writer(file, &path)
                .unwrap(),
        };
        for record in 0..RECORDS {
            let meta = RecordMeta::new(1, b"key");
            writer.append(&record.to_le_bytes(), &meta).unwrap();
        }
        let (_, summary) = writer.finish().unwrap();
        entries.push(ShardEntry {
            name,
            records: summary.records,
            bytes: summary.bytes,
            crc32c: summary.crc32c,
            blake3: None,
        });
    }
    let paths = entries.iter().map(|entry| root.join(&entry.name)).collect();
    let manifest = Manifest::new(format, 0, vec![SplitEntry::new("train", entries)]);
    std::fs::write(root.join("forebay.json"), manifest.to_json().unwrap()).unwrap();
    paths
}

#[test]
fn unread_parts_are_not_reported_as_damage() {
    for format in [ShardFormat::TfRecord, ShardFormat::Indexed] {
        let dir = tempfile::tempdir().unwrap();
        let shards = dataset(dir.path(), format);
        for threads in [1, 3] {
            for most in [0, 1, 250, u64::MAX] {
                let seen = AtomicU64::new(0);
                let stop = || seen.load(Ordering::Relaxed) >= most;
                let observer = |progress: VerifyProgress| {
                    seen.fetch_add(progress.records, Ordering::Relaxed);
                };
                let options = VerifyOptions {
                    threads: NonZero::new(threads),
                    stop: Some(&stop),
                    ..VerifyOptions::default()
                };
                let report = verify_dataset(dir.path(), &options, &observer).unwrap();
                assert!(report.findings.is_empty(), "{report}");
                assert_eq!(report.stopped, most != u64::MAX, "{format:?} {most}");
                assert_eq!(report.is_ok(), most == u64::MAX);
                assert_eq!(report.to_string().contains("stopped"), report.stopped);
                assert!(report.records <= 3 * RECORDS);
                if report.stopped {
                    seen.store(0, Ordering::Relaxed);
                    let report = verify_shard(&shards[0], &options, &observer).unwrap();
                    assert!(report.findings.is_empty(), "{report}");
                }
            }
        }
    }
}
