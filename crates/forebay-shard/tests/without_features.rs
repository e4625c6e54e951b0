//! A build without default features reads plain shards, and names the feature that other files
//! need.

#![cfg(not(any(feature = "blake3", feature = "gzip", feature = "zstd")))]

use forebay_shard::{Codec, Error, Manifest, RecordMeta, Shard, ShardFormat, indexed, tfrecord};

fn shard(codec: Codec) -> Result<Vec<u8>, Error> {
    let mut builder = indexed::WriterBuilder::new();
    let mut writer = builder.compression(codec).from_writer(vec![], "x.fbs")?;
    writer.append(&[7; 1000], &RecordMeta::new(1, b"key"))?;
    Ok(writer.finish()?.0)
}

fn needs(error: Error, feature: &str) {
    assert!(
        error.to_string().contains(&format!("feature `{feature}`")),
        "{error}"
    );
}

#[test]
fn unavailable_codecs_name_their_feature() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.fbs");
    for codec in Codec::all().filter(|&codec| codec != Codec::ZSTD) {
        std::fs::write(&path, shard(codec).unwrap()).unwrap();
        let shard = Shard::open(&path).unwrap();
        let mut record = Vec::new();
        shard.read(0, &mut record).unwrap();
        assert_eq!((record, shard.label(0)), (vec![7; 1000], Some(1)));
    }
    needs(shard(Codec::ZSTD).unwrap_err(), "zstd");
    // The shard of the format document, compressed with zstd.
    let document = include_str!("../../../docs/format/compressed-shards.md");
    let (_, fence) = document.split_once("```hex zstd.fbs\n").unwrap();
    let (fence, _) = fence.split_once("```").unwrap();
    let bytes = fence.lines().flat_map(|line| {
        let hex = line.split('|').next().unwrap().split_whitespace().skip(1);
        hex.map(|byte| u8::from_str_radix(byte, 16).unwrap())
    });
    std::fs::write(&path, bytes.collect::<Vec<_>>()).unwrap();
    let error = Shard::open(&path).unwrap_err();
    assert!(matches!(
        &error,
        Error::NotBuilt {
            feature: "zstd",
            ..
        }
    ));
    needs(error, "zstd");
}

#[test]
fn compressed_tfrecords_name_their_feature() {
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0, 0];
    let mut reader = tfrecord::ReaderBuilder::new().from_reader(&gzip[..], "x.gz");
    needs(reader.read_into(&mut Vec::new()).unwrap_err(), "gzip");
    let mut builder = tfrecord::WriterBuilder::new();
    builder.compression(tfrecord::Compression::Gzip);
    let mut writer = builder.from_writer(vec![], "x.gz");
    writer.write(b"record").unwrap();
    needs(writer.finish().err().unwrap(), "gzip");
}

#[test]
fn a_fingerprint_is_read_but_not_computed() {
    let manifest = Manifest::new(ShardFormat::Indexed, 0, Vec::new());
    needs(manifest.to_json().unwrap_err(), "blake3");
    let written = br#"{"format": "forebay-dataset", "version": 2, "fingerprint": "0123", "shard_format": "indexed",
        "label_base": 0, "splits": [],
  "crc32c": "54da1827"
}
"#;
    let manifest = Manifest::parse("forebay.json".as_ref(), written).unwrap();
    assert_eq!(manifest.fingerprint, "0123");
}
