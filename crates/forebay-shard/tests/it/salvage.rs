//! Damage affects only the damaged piece.

use std::path::Path;

use forebay_shard::tfrecord::{LostRange, Mode, ReaderBuilder, WriterBuilder};
use forebay_shard::verify::{VerifyOptions, verify_shard};
use forebay_shard::{Codec, RecordMeta, ShardFormat, ShardWriter, indexed, tfrecord};

fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..len).map(step).collect()
}

fn file(records: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = WriterBuilder::new().from_writer(Vec::new(), "shard");
    for record in records {
        writer.write(record).unwrap();
    }
    writer.finish().unwrap().0
}

fn salvage(bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<LostRange>) {
    let mut builder = ReaderBuilder::new();
    let mut reader = builder.mode(Mode::Salvage).from_reader(bytes, "damaged");
    let (mut found, mut record) = (Vec::new(), Vec::new());
    while reader.read_into(&mut record).unwrap().is_some() {
        found.push(record.clone());
    }
    (found, reader.lost().to_vec())
}

/// Returns start and end of each range.
fn ranges(lost: &[LostRange]) -> Vec<(u64, u64)> {
    lost.iter()
        .map(|lost| (lost.offset, lost.offset + lost.len))
        .collect()
}

#[test]
fn a_changed_byte_costs_one_record() {
    let records: Vec<_> = (0..6).map(|i| noise(i, 20 + i as usize)).collect();
    let whole = file(&records);
    let mut start = 0;
    for (hit, record) in records.iter().enumerate() {
        let frame = start..start + record.len() + 16;
        for at in frame.clone() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            let (found, lost) = salvage(&bytes);
            let mut left = records.clone();
            left.remove(hit);
            assert_eq!(found, left, "byte {at}");
            assert_eq!(
                ranges(&lost),
                [(frame.start as u64, frame.end as u64)],
                "byte {at}"
            );
            assert_eq!(lost[0].records_before, hit as u64);
            assert!(
                lost[0]
                    .cause
                    .to_string()
                    .starts_with("shard damaged: at byte")
            );
        }
        start = frame.end;
    }
}

#[test]
fn a_cut_costs_the_cut_record() {
    let records: Vec<_> = (0..4).map(|i| noise(i, 30)).collect();
    let whole = file(&records);
    for len in 0..whole.len() {
        let (found, lost) = salvage(&whole[..len]);
        assert_eq!(found, records[..len / 46], "cut at {len}");
        let rest = ((len - len % 46) as u64, len as u64);
        let expected: Vec<_> = [rest].into_iter().filter(|rest| rest.0 < rest.1).collect();
        assert_eq!(ranges(&lost), expected, "cut at {len}");
    }
}

#[test]
fn removed_or_inserted_bytes_cost_the_adjacent_records() {
    let records: Vec<_> = (0..6).map(|i| noise(i, 100)).collect();
    let whole = file(&records);
    // Bytes are removed from the middle of record 1 to the middle of record 3.
    let holed = [&whole[..180], &whole[400..]].concat();
    let (found, lost) = salvage(&holed);
    assert_eq!(found, [&records[..1], &records[4..]].concat());
    assert_eq!(ranges(&lost), [(116, 244)]);
    // Garbage is inserted between two records.
    let garbage = noise(99, 333);
    let stuffed = [&whole[..232], &garbage, &whole[232..]].concat();
    let (found, lost) = salvage(&stuffed);
    assert_eq!(found, records);
    assert_eq!(ranges(&lost), [(232, 565)]);
}

#[test]
fn several_damages_are_several_ranges() {
    let records: Vec<_> = (0..8).map(|i| noise(i, 84)).collect();
    let mut bytes = file(&records);
    bytes[130] ^= 1; // payload of record 1
    bytes[230] ^= 1; // payload of record 2, which follows it
    bytes[501] ^= 1; // length of record 5
    let (found, lost) = salvage(&bytes);
    let left = [0, 3, 4, 6, 7].map(|i| records[i].clone());
    assert_eq!(found, left);
    let bytes: u64 = lost.iter().map(|lost| lost.len).sum();
    assert_eq!(bytes, 300);
    assert_eq!(ranges(&lost).first().map(|range| range.0), Some(100));
    assert_eq!(ranges(&lost).last(), Some(&(500, 600)));
}

#[test]
fn strict_mode_names_the_record_and_the_byte() {
    let mut bytes = file(&(0..4).map(|i| noise(i, 84)).collect::<Vec<_>>());
    bytes[230] ^= 1;
    let mut reader = ReaderBuilder::new().from_reader(&bytes[..], "train-00000-of-00001");
    let mut record = Vec::new();
    reader.read_into(&mut record).unwrap().unwrap();
    reader.read_into(&mut record).unwrap().unwrap();
    let error = reader.read_into(&mut record).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with(
            "shard train-00000-of-00001: record 2 at byte 200: payload crc32c: expected 0x"
        ),
        "{text}"
    );
    assert_eq!(reader.read_into(&mut record).unwrap(), None);
}

/// Overwrites 64 KiB of a shard of some MiB with zeros: exactly the records that they overlap are lost.
fn zeroed(format: ShardFormat, codec: Codec) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("train-00000-of-00001");
    let mut writer: ShardWriter<Vec<u8>> = match format {
        ShardFormat::TfRecord => tfrecord::WriterBuilder::new().from_writer(vec![], &path),
        ShardFormat::Mapped => panic!("mapped shards have a writer of their own"),
        ShardFormat::Indexed => {
            let mut builder = indexed::WriterBuilder::new();
            builder
                .compression(codec)
                .from_writer(vec![], &path)
                .unwrap()
        }
    };
    for i in 0..400u32 {
        let mut record = noise(i, 5_000 + (i as usize * 7919) % 20_000);
        if codec != Codec::NONE {
            record.fill(i as u8);
            record[..4000].copy_from_slice(&noise(i, 4000));
        }
        writer
            .append(&record, &RecordMeta::new(1, format!("k/{i}").as_bytes()))
            .unwrap();
    }
    let (mut bytes, summary) = writer.finish().unwrap();
    if let Some(fbi) = summary.to_fbi().filter(|_| format == ShardFormat::TfRecord) {
        std::fs::create_dir(directory.path().join("index")).unwrap();
        std::fs::write(directory.path().join("index/train-00000-of-00001.fbi"), fbi).unwrap();
    }
    let middle = bytes.len() / 2;
    bytes[middle..middle + 65_536].fill(0);
    std::fs::write(&path, &bytes).unwrap();

    let report = verify_shard(&path, &VerifyOptions::default(), &|_| {}).unwrap();
    let lost: Vec<u64> = report
        .lost
        .iter()
        .flat_map(|lost| lost.records.clone().unwrap())
        .collect();
    assert_eq!(lost, unreadable(&path), "{report}");
    assert_eq!(report.lost_records() + report.records, 400);
    assert!((2..=40).contains(&lost.len()), "{}", lost.len());
    assert!(lost.is_sorted());
    for lost in &report.lost {
        assert!(lost.bytes.start < middle as u64 + 65_536 && lost.bytes.end > middle as u64);
    }
}

/// Reads every record separately, and returns the numbers of those that fail.
fn unreadable(path: &Path) -> Vec<u64> {
    let shard = forebay_shard::Shard::open(path).unwrap();
    let mut record = Vec::new();
    (0..shard.len())
        .filter(|&i| shard.read(i, &mut record).is_err())
        .collect()
}

#[test]
fn zeroed_bytes_lose_exactly_the_records_they_touch() {
    zeroed(ShardFormat::TfRecord, Codec::NONE);
    Codec::all().for_each(|codec| zeroed(ShardFormat::Indexed, codec));
}

/// A record may contain frames. After a damaged head they look like records, but the index shows
/// that they are not.
#[test]
fn frames_inside_a_record_are_not_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("train-00000-of-00001");
    let inner = file(&(0..5).map(|i| noise(i, 50)).collect::<Vec<_>>());
    let mut writer = WriterBuilder::new().from_writer(Vec::new(), &path);
    for record in [&b"before"[..], &inner, b"after"] {
        writer.write(record).unwrap();
    }
    let (mut bytes, summary) = writer.finish().unwrap();
    std::fs::create_dir(directory.path().join("index")).unwrap();
    let fbi = summary.to_fbi().unwrap();
    std::fs::write(directory.path().join("index/train-00000-of-00001.fbi"), fbi).unwrap();
    bytes[23] ^= 1; // the length of the second record
    std::fs::write(&path, &bytes).unwrap();
    let report = verify_shard(&path, &VerifyOptions::default(), &|_| {}).unwrap();
    assert_eq!(report.records, 2, "{report}");
    assert_eq!(report.lost.len(), 1, "{report}");
    assert_eq!(report.lost[0].records, Some(1..2), "{report}");
}

#[test]
fn a_crafted_file_takes_linear_time() {
    // There is a valid head every twelve bytes, each of which claims nearly all of the remaining bytes.
    let len = 1u32 << 20;
    let mut bytes = vec![0xff];
    while bytes.len() < len as usize {
        let rest = u64::from(len) - bytes.len() as u64;
        let head = rest.saturating_sub(64).to_le_bytes();
        bytes.extend_from_slice(&head);
        let crc = forebay_shard::checksum::mask(forebay_shard::checksum::crc32c(&head));
        bytes.extend_from_slice(&crc.to_le_bytes());
    }
    let started = std::time::Instant::now();
    let (found, lost) = salvage(&bytes);
    assert_eq!((found.len(), lost.len()), (0, 1));
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

/// Returns `len` bytes of valid heads, each of which claims `claim` bytes.
fn heads(len: usize, claim: u64) -> Vec<u8> {
    let head = claim.to_le_bytes();
    let crc = forebay_shard::checksum::mask(forebay_shard::checksum::crc32c(&head));
    let head = [&head[..], &crc.to_le_bytes()].concat();
    head.iter().copied().cycle().take(len).collect()
}

/// Records are found after more zeros than a buffer holds.
#[test]
fn records_after_zeros_are_found() {
    let before = file(&[noise(1, 100)]);
    let after = file(&[noise(2, 100)]);
    let bytes = [&before[..], &vec![0; 64 << 20], &after].concat();
    let (found, lost) = salvage(&bytes);
    assert_eq!(found, [noise(1, 100), noise(2, 100)]);
    assert_eq!(ranges(&lost), [(116, 116 + (64 << 20))]);
}

/// Each range of crafted heads costs little more than its length, however many ranges there are.
#[test]
fn many_crafted_ranges_take_linear_time() {
    let mut bytes = Vec::new();
    let whole = file(&[noise(3, 10)]);
    let claim = 6 << 20;
    for _ in 0..60 {
        bytes.push(0xff);
        bytes.extend(heads(64 << 10, claim));
        bytes.extend_from_slice(&whole);
    }
    bytes.resize(bytes.len() + (8 << 20), 0xff);
    let started = std::time::Instant::now();
    let (found, _) = salvage(&bytes);
    assert_eq!(found.len(), 60);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[test]
fn a_compressed_stream_without_records_is_given_up() {
    use std::io::Write;
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let member = gzip(&vec![0; 16 << 20]);
    // The members expand to 4 GiB.
    let bomb = [gzip(&file(&[noise(4, 50)])), member.repeat(256)].concat();
    let mut builder = ReaderBuilder::new();
    builder.mode(Mode::Salvage).max_record(1 << 20);
    let mut reader = builder.from_reader(&bomb[..], "bomb");
    let mut record = Vec::new();
    assert!(reader.read_into(&mut record).unwrap().is_some());
    assert_eq!(reader.read_into(&mut record).unwrap(), None);
    assert!(reader.position() < 80 << 20, "{}", reader.position());
    assert_eq!(reader.lost().len(), 1);
}
