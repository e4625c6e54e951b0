//! Runs the entries of the fuzz targets without a fuzzer.

#[path = "../../fuzz/entries.rs"]
pub(crate) mod entries;
#[allow(unreachable_pub)] // public in the crate that the file is of
#[path = "../../../forebay-rigs/src/corpus.rs"]
mod replaying;

use std::path::Path;

fn replay(target: &str, entry: fn(&[u8])) {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");
    replaying::replay_corpus(&Path::new(corpus).join(target), 1200, entry);
}

#[test]
fn frames() {
    replay("frames", entries::frames);
}

/// Returns the inputs for the target `mapped`: their names, and shards from the writer.
fn mapped_seeds() -> [(&'static str, Vec<u8>); 3] {
    use forebay_shard::mapped::{Extent, ExtentStart, SourceBlock, SourceIdentity, Writer};
    use forebay_shard::{Codec, RecordMeta};

    let seed = |records: &[(Vec<u8>, Option<ExtentStart>)]| {
        let source = SourceIdentity::new("a", 512);
        let mut writer = Writer::new(Vec::new(), "seed", source).unwrap();
        for (number, (record, start)) in records.iter().enumerate() {
            let key = number.to_string();
            let extent = start.map(|start| Extent {
                record: 0..record.len(),
                start,
            });
            let meta = RecordMeta::new(number as i64, key.as_bytes());
            writer.append(record, &meta, extent.as_slice()).unwrap();
        }
        writer.finish().unwrap().0
    };
    let source = |len| vec![b'b'; len];
    let block = SourceBlock {
        offset: 8,
        stored_len: 100,
        expanded_len: 100,
        codec: Codec::NONE,
    };
    [
        ("seed-empty", seed(&[])),
        (
            "seed-copies",
            seed(&[
                (source(64), Some(ExtentStart::File(0))),
                (source(40), Some(ExtentStart::File(300))),
                (b"in the shard".to_vec(), None),
                (source(99), Some(ExtentStart::File(64))),
            ]),
        ),
        (
            "seed-blocks",
            seed(&[
                (source(33), Some(ExtentStart::Block(block, 60))),
                (source(5000), None),
                (source(50), Some(ExtentStart::Block(block, 0))),
            ]),
        ),
    ]
}

#[test]
fn mapped_shards() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/mapped");
    for (name, bytes) in mapped_seeds() {
        if std::env::var_os("FOREBAY_REGENERATE").is_some() {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(name), &bytes).unwrap();
        }
        assert!(std::fs::read(dir.join(name)).unwrap() == bytes, "{name}");
    }
    replay("mapped", entries::mapped);
}

#[test]
fn shards() {
    replay("shard", entries::shard);
}

#[test]
fn sidecars() {
    replay("sidecar", entries::sidecar);
}

#[test]
fn text_indexes() {
    replay("text_index", entries::text_index);
}

#[test]
fn manifests() {
    replay("manifest", entries::manifest);
}

#[test]
fn examples() {
    replay("example", entries::example);
}
