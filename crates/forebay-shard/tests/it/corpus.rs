//! The fuzz targets without a fuzzer: every stored input, every prefix of it, and a few thousand
//! mutations.

#[path = "../../fuzz/entries.rs"]
mod entries;

use std::path::Path;

/// A pseudorandom sequence that depends on its seed only.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Mutates bytes as fuzzers do: bits, interesting values, truncation, repetition.
fn change(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(bytes.len());
        match numbers.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << numbers.below(8),
            1 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][numbers.below(5)],
            2 => {
                let value = [0, 1, 16, u64::MAX, 1 << 32, 1 << 63][numbers.below(6)];
                let end = bytes.len().min(at + 8);
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            3 => bytes.truncate(at),
            4 => {
                let end = (at + numbers.below(40)).min(bytes.len());
                bytes.extend_from_within(at..end);
            }
            _ => {
                let end = (at + numbers.below(20)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
}

fn replay(target: &str, entry: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 3, "{target}: {} inputs", inputs.len());
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for path in inputs {
        let seed = std::fs::read(&path).unwrap();
        entry(&seed);
        for len in 0..seed.len().min(600) {
            entry(&seed[..len]);
        }
        for _ in 0..1500 {
            let mut input = seed.clone();
            change(&mut input, &mut numbers);
            entry(&input);
        }
    }
}

#[test]
fn frames() {
    replay("frames", entries::frames);
}

/// The inputs of the target `mapped`: their names, and what the writer writes.
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
