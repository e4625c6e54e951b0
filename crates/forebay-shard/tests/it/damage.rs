//! Every truncation and every changed byte of a small shard of each kind is detected, and no reader
//! ever returns bytes that were not written.

use std::path::{Path, PathBuf};

use forebay_shard::dataset::sidecar_path;
use forebay_shard::indexed::Codec;
use forebay_shard::verify::{VerifyOptions, VerifyReport, verify_dataset};
use forebay_shard::{
    Dataset, Manifest, RecordMeta, ShardFormat, ShardWriter, indexed, manifest, tfrecord,
};

/// A dataset of one small shard in its own directory.
struct Small {
    directory: tempfile::TempDir,
    shard: PathBuf,
    records: Vec<Vec<u8>>,
}

fn small(format: ShardFormat, codec: Codec) -> Small {
    // Zeros, which codecs compress, and noise, which they do not.
    let noise: Vec<u8> = (0..90u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let records = vec![
        b"one".to_vec(),
        Vec::new(),
        vec![0; 150],
        noise,
        b"five".to_vec(),
    ];
    let directory = tempfile::tempdir().unwrap();
    let name = format!("train-00000-of-00001{}", format.extension());
    let shard = directory.path().join(&name);
    let mut writer: ShardWriter<Vec<u8>> = match format {
        ShardFormat::TfRecord => tfrecord::WriterBuilder::new().from_writer(vec![], &name),
        ShardFormat::Mapped => panic!("mapped shards have a writer of their own"),
        ShardFormat::Indexed => {
            let mut builder = indexed::WriterBuilder::new();
            // Several compressed blocks, and a raw one after four KiB of padding.
            builder
                .compression(codec)
                .block_bytes(if codec == Codec::NONE { 1000 } else { 200 });
            builder.from_writer(vec![], &name).unwrap()
        }
    };
    for (i, record) in records.iter().enumerate() {
        let key = format!("class/{i}.jpeg");
        writer
            .append(record, &RecordMeta::new(i as i64, key.as_bytes()))
            .unwrap();
    }
    let (file, summary) = writer.finish().unwrap();
    std::fs::write(&shard, &file).unwrap();
    if format == ShardFormat::TfRecord {
        std::fs::create_dir(directory.path().join("index")).unwrap();
        let fbi = summary.to_fbi().unwrap();
        std::fs::write(sidecar_path(directory.path(), &name), fbi).unwrap();
    }
    let entry = manifest::ShardEntry {
        name,
        records: summary.records,
        bytes: summary.bytes,
        crc32c: summary.crc32c,
        blake3: None,
    };
    let splits = vec![manifest::SplitEntry::new("train", vec![entry])];
    let json = Manifest::new(format, 1, splits).to_json().unwrap();
    std::fs::write(directory.path().join(manifest::FILE_NAME), json).unwrap();
    let small = Small {
        directory,
        shard,
        records,
    };
    let report = small.verify();
    assert!(report.is_ok(), "{report}");
    assert_eq!((report.records, report.lost_records()), (5, 0));
    small
}

impl Small {
    fn root(&self) -> &Path {
        self.directory.path()
    }

    fn verify(&self) -> VerifyReport {
        let options = VerifyOptions {
            threads: std::num::NonZero::new(1),
            ..VerifyOptions::default()
        };
        verify_dataset(self.root(), &options, &|_| {}).unwrap()
    }

    /// Checks that opening and reading returns the written records, or an error.
    fn read_all(&self) {
        let Ok(split) = Dataset::open(self.root()).unwrap().split("train") else {
            return;
        };
        let mut record = Vec::new();
        for (i, written) in self.records.iter().enumerate() {
            if split.read(i as u64, &mut record).is_ok() {
                assert_eq!(&record, written);
            }
            if let Some(key) = split.key(i as u64).ok().filter(|key| !key.is_empty()) {
                assert_eq!(key, format!("class/{i}.jpeg").as_bytes());
            }
        }
        let scan = split.shards()[0].scan(0..split.len());
        for (record, written) in scan.map_while(Result::ok).zip(&self.records) {
            assert_eq!(&record, written);
        }
    }

    /// Damages `file` at every byte, and truncates it to every length.
    fn damage(&self, file: &Path) {
        let bytes = std::fs::read(file).unwrap();
        let check = |damaged: &[u8], how: String| {
            std::fs::write(file, damaged).unwrap();
            let report = self.verify();
            assert!(!report.is_ok(), "{}: {how} was not found", file.display());
            self.read_all();
        };
        for len in 0..bytes.len() {
            check(&bytes[..len], format!("a cut at byte {len}"));
        }
        let mut longer = bytes.clone();
        longer.push(0);
        check(&longer, "a byte more".to_owned());
        let mut damaged = bytes.clone();
        for at in 0..bytes.len() {
            // A different bit at each offset.
            damaged[at] ^= 1 << (at % 8);
            check(&damaged, format!("byte {at} changed"));
            damaged[at] = bytes[at];
        }
        std::fs::write(file, bytes).unwrap();
    }
}

#[test]
fn a_tfrecord() {
    let small = small(ShardFormat::TfRecord, Codec::NONE);
    small.damage(&small.shard);
}

#[test]
fn a_tfrecord_without_a_sidecar() {
    let small = small(ShardFormat::TfRecord, Codec::NONE);
    std::fs::remove_dir_all(small.root().join("index")).unwrap();
    small.damage(&small.shard);
}

#[test]
fn a_sidecar() {
    let small = small(ShardFormat::TfRecord, Codec::NONE);
    small.damage(&sidecar_path(small.root(), "train-00000-of-00001"));
}

#[test]
fn a_text_index() {
    let small = small(ShardFormat::TfRecord, Codec::NONE);
    let text = "0 19\n19 16\n35 166\n201 106\n307 20\n";
    let path = small.root().join("index/train-00000-of-00001.idx");
    std::fs::write(&path, text).unwrap();
    assert!(small.verify().is_ok(), "{}", small.verify());
    small.damage(&path);
    std::fs::remove_file(sidecar_path(small.root(), "train-00000-of-00001")).unwrap();
    small.damage(&path);
}

#[test]
fn an_indexed_shard_of_compressed_blocks() {
    for codec in Codec::all().filter(|&codec| codec != Codec::NONE) {
        let small = small(ShardFormat::Indexed, codec);
        small.damage(&small.shard);
    }
}

#[test]
fn an_indexed_shard_of_raw_blocks() {
    let small = small(ShardFormat::Indexed, Codec::NONE);
    small.damage(&small.shard);
}

#[test]
fn unknown_files_among_the_shards_are_reported() {
    let small = small(ShardFormat::TfRecord, Codec::NONE);
    std::fs::write(small.root().join("train-00001-of-00002"), b"").unwrap();
    let report = small.verify();
    assert_eq!(report.findings.len(), 1, "{report}");
    assert!(
        report
            .to_string()
            .contains("train-00001-of-00002: is not in the manifest")
    );
}
