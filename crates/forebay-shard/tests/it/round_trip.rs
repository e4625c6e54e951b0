//! Records round-trip in both formats, through the writer and every reader.

use forebay_shard::checksum::crc32c;
use forebay_shard::indexed::Codec;
use forebay_shard::{
    Dataset, Manifest, RecordBlock, RecordMeta, Shard, ShardFormat, ShardSummary, ShardWriter,
    indexed, manifest, tfrecord,
};
use proptest::prelude::*;

type Sample = (Vec<u8>, Option<i64>, Vec<u8>);

fn write(
    format: ShardFormat,
    codec: Codec,
    block: usize,
    samples: &[Sample],
) -> (Vec<u8>, ShardSummary) {
    let mut writer: ShardWriter<Vec<u8>> = match format {
        ShardFormat::TfRecord => tfrecord::WriterBuilder::new().from_writer(Vec::new(), "shard"),
        ShardFormat::Mapped => panic!("mapped shards have a writer of their own"),
        ShardFormat::Indexed => {
            let mut builder = indexed::WriterBuilder::new();
            builder.compression(codec).block_bytes(block);
            builder.from_writer(Vec::new(), "shard").unwrap()
        }
    };
    for (record, label, key) in samples {
        writer
            .append(record, &RecordMeta { label: *label, key })
            .unwrap();
    }
    let (file, summary) = writer.finish().unwrap();
    assert_eq!(summary.bytes, file.len() as u64);
    assert_eq!(summary.crc32c, forebay_shard::checksum::crc32c(&file));
    (file, summary)
}

/// Writes the samples, opens them as a dataset, and reads them in every way.
fn check(format: ShardFormat, codec: Codec, block: usize, samples: &[Sample], cuts: &[usize]) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let (file, summary) = write(format, codec, block, samples);
    let name = format!("train-00000-of-00001{}", format.extension());
    std::fs::write(root.join(&name), &file).unwrap();
    if format == ShardFormat::TfRecord {
        std::fs::create_dir(root.join("index")).unwrap();
        let fbi = summary.to_fbi().unwrap();
        std::fs::write(root.join(format!("index/{name}.fbi")), fbi).unwrap();
    }
    let shard = manifest::ShardEntry {
        name,
        records: summary.records,
        bytes: summary.bytes,
        crc32c: summary.crc32c,
        blake3: None,
    };
    let splits = vec![manifest::SplitEntry::new("train", vec![shard])];
    let json = Manifest::new(format, 1, splits).to_json().unwrap();
    std::fs::write(root.join(manifest::FILE_NAME), json).unwrap();

    let split = Dataset::open(root).unwrap().split("train").unwrap();
    assert_eq!(split.len(), samples.len() as u64);
    let mut record = Vec::new();
    for (i, (bytes, label, key)) in samples.iter().enumerate() {
        split.read(i as u64, &mut record).unwrap();
        assert_eq!(&record, bytes);
        assert_eq!(split.label(i as u64), *label);
        assert_eq!(&split.key(i as u64).unwrap(), key);
    }
    split.read(samples.len() as u64, &mut record).unwrap_err();
    let shard = &split.shards()[0];
    let scanned: Vec<_> = shard.scan(0..shard.len()).map(Result::unwrap).collect();
    assert_eq!(
        scanned,
        samples
            .iter()
            .map(|sample| sample.0.clone())
            .collect::<Vec<_>>()
    );

    let mut out = RecordBlock::default();
    for pair in cuts.windows(2) {
        let (low, high) = (pair[0] % (samples.len() + 1), pair[1] % (samples.len() + 1));
        let range = low.min(high) as u64..low.max(high) as u64;
        shard.read_range(range.clone(), &mut out).unwrap();
        let expected = &samples[range.start as usize..range.end as usize];
        assert_eq!(out.len(), expected.len());
        assert!(out.iter().eq(expected.iter().map(|sample| &sample.0[..])));

        let bytes = shard.byte_range(range.clone()).unwrap();
        let stored = &file[bytes.start as usize..bytes.end as usize];
        let mut other = RecordBlock::default();
        other.stored_mut(stored.len()).copy_from_slice(stored);
        shard.decode(range, &mut other).unwrap();
        assert!(out.iter().eq(other.iter()));
        for (i, record) in out.iter().enumerate() {
            assert_eq!(out.checksum(i), Some(crc32c(record)));
        }
    }
}

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..600),
        (0usize..9000, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
    ];
    let label = proptest::option::of((i64::MIN + 1)..=i64::MAX);
    let key = proptest::collection::vec(any::<u8>(), 0..40);
    proptest::collection::vec((bytes, label, key), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn written_records_are_read_back(
        samples in samples(),
        block in 1usize..20_000,
        cuts in proptest::collection::vec(any::<usize>(), 2..8),
    ) {
        check(ShardFormat::TfRecord, Codec::NONE, block, &samples, &cuts);
        for codec in Codec::all() {
            check(ShardFormat::Indexed, codec, block, &samples, &cuts);
        }
    }
}

#[test]
fn without_a_sidecar_frame_heads_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("foreign");
    let samples: Vec<Sample> = (0..5)
        .map(|i| (vec![i; usize::from(i) * 100], None, Vec::new()))
        .collect();
    let (file, summary) = write(ShardFormat::TfRecord, Codec::NONE, 0, &samples);
    std::fs::write(&path, file).unwrap();
    let shard = Shard::open(&path).unwrap();
    assert_eq!(shard.len(), 5);
    let mut record = Vec::new();
    shard.read(4, &mut record).unwrap();
    assert_eq!(record, vec![4; 400]);
    assert_eq!((shard.label(4), shard.key(4).unwrap()), (None, Vec::new()));

    std::fs::create_dir(directory.path().join("index")).unwrap();
    let idx = summary.to_idx().unwrap();
    assert_eq!(idx, "0 16\n16 116\n132 216\n348 316\n664 416\n");
    std::fs::write(directory.path().join("index/foreign.idx"), idx).unwrap();
    let shard = Shard::open(&path).unwrap();
    shard.read(3, &mut record).unwrap();
    assert_eq!(record, vec![3; 300]);
}
