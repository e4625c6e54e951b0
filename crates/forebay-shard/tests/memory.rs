//! An open index uses at most 16 bytes per record for offsets and labels.

use forebay_shard::{RecordMeta, Shard, indexed, tfrecord};

const RECORDS: u64 = 100_000;

#[test]
fn sixteen_bytes_a_record() {
    let directory = tempfile::tempdir().unwrap();
    for (name, spread) in [("few classes", 1), ("any label", i64::MAX / RECORDS as i64)] {
        let path = directory.path().join(format!("{name}.fbs"));
        let file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
        let mut writer = indexed::WriterBuilder::new()
            .from_writer(file, &path)
            .unwrap();
        for i in 0..RECORDS {
            let key = format!("n{:08}/n{:08}_{i}.JPEG", i / 1000, i / 1000);
            let label = (i / 1000) as i64 * spread;
            writer
                .append(&[7; 10], &RecordMeta::new(label, key.as_bytes()))
                .unwrap();
        }
        writer.finish().unwrap();
        let index = Shard::open(&path).unwrap().index().clone();
        let per_record = index.column_bytes() as f64 / RECORDS as f64;
        let all = index.memory_bytes() as f64 / RECORDS as f64;
        println!("{name}: {per_record:.2} bytes a record, {all:.2} with blocks and key pages");
        assert!(
            per_record <= 16.0 && all <= 16.0,
            "{name}: {per_record}, {all}"
        );
        if spread == 1 {
            assert!(all < 6.2, "{all}");
        }
    }
}

/// Uses records of a typical size, because the table of blocks counts too.
#[test]
fn blocks_are_few() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("images.fbs");
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = indexed::WriterBuilder::new()
        .from_writer(file, &path)
        .unwrap();
    let image = vec![0x5a; 110_000];
    for i in 0..200 {
        writer
            .append(&image, &RecordMeta::new(i % 1000, b"n01440764/x.JPEG"))
            .unwrap();
    }
    writer.finish().unwrap();
    let index = Shard::open(&path).unwrap().index().clone();
    let bytes = index.memory_bytes() - std::mem::size_of_val(&index);
    println!(
        "{:.2} bytes a record, blocks and key pages included",
        bytes as f64 / 200.0
    );
    assert!(bytes as f64 / 200.0 <= 16.0, "{bytes}");
}

#[test]
fn a_sidecar_takes_as_little() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("records");
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = tfrecord::WriterBuilder::new().from_writer(file, &path);
    for i in 0..RECORDS {
        writer
            .append(b"tiny", &RecordMeta::new((i % 1000) as i64, b"some/key"))
            .unwrap();
    }
    let (_, summary) = writer.finish().unwrap();
    std::fs::create_dir(directory.path().join("index")).unwrap();
    let fbi = summary.to_fbi().unwrap();
    std::fs::write(directory.path().join("index/records.fbi"), fbi).unwrap();
    let shard = Shard::open(&path).unwrap();
    assert_eq!((shard.len(), shard.label(999)), (RECORDS, Some(999)));
    assert_eq!(shard.key(99_999).unwrap(), b"some/key");
    assert!(shard.index().memory_bytes() as f64 / (RECORDS as f64) < 6.2);
}
