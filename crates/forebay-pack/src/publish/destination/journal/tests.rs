use super::*;

fn header() -> Header {
    Header {
        version: JOURNAL_VERSION,
        source: "/src".into(),
        plan: "p".into(),
        arguments: BTreeMap::from([("seed".into(), "0".into())]),
        classes: 1,
        shards: vec!["train-00000-of-00001".into()],
        parts: vec![Directory {
            place: "train: a".into(),
            files: 1,
            bytes: 2,
            content: 3,
            times: 4,
        }],
        is_open_ended: false,
    }
}

fn shard(name: &str) -> ShardLine {
    ShardLine {
        labels: None,
        name: name.into(),
        records: 1,
        bytes: 2,
        crc32c: 3,
        blake3: None,
        image_bytes: 1,
        samples: SampleDigest::default(),
        record_bytes: 2,
        seek_points: SeekPointCount::default(),
        progressive: ProgressiveCount::default(),
        fast: FastCount::default(),
        sidecars: vec![],
        findings: vec![],
        ends_split: false,
        damage: vec![],
        lost: vec![],
        lost_records: 0,
        entry: None,
    }
}

#[test]
fn a_truncated_journal_gives_the_lines_before_the_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut journal = Journal::begin(&path, &header(), [].iter(), Durability::Cached).unwrap();
    let first = std::fs::read(&path).unwrap().len();
    journal.append(&shard("a")).unwrap();
    let second = std::fs::read(&path).unwrap().len();
    journal.append(&shard("b")).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let found = Journal::read(&path).unwrap();
        let expected = [first, second, whole.len()]
            .iter()
            .filter(|end| cut >= **end)
            .count();
        assert_eq!(
            found.map_or(0, |f| 1 + f.shards.len()),
            expected,
            "cut at {cut}"
        );
    }
    for (at, byte) in whole.iter().enumerate().skip(first) {
        let mut bytes = whole.clone();
        bytes[at] = byte ^ 0x20;
        std::fs::write(&path, &bytes).unwrap();
        let found = Journal::read(&path).unwrap().unwrap();
        assert!(
            found
                .shards
                .iter()
                .all(|s| *s == shard("a") || *s == shard("b")),
            "flip at {at}"
        );
        assert!(found.shards.len() < 2, "flip at {at} went unseen");
    }
}

#[test]
fn a_resumed_journal_has_no_torn_tail() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut journal =
        Journal::begin(&path, &header(), [shard("a")].iter(), Durability::Synced).unwrap();
    journal.append(&shard("b")).unwrap();
    journal.append(&shard("a")).unwrap();
    let found = Journal::read(&path).unwrap().unwrap();
    assert_eq!(found.header, header());
    assert_eq!(
        found
            .shards
            .iter()
            .map(|s| s.name.as_str())
            .collect::<Vec<_>>(),
        ["b", "a"]
    );
}

#[test]
fn differences_are_named() {
    let then = header();
    assert_eq!(then.difference(&then), PlanDifference::None);
    let moved = Header {
        source: "/elsewhere".into(),
        ..header()
    };
    assert_eq!(then.difference(&moved), PlanDifference::None);
    let with = |now: Header, change: &dyn Fn(&mut Header)| {
        let mut now = now;
        change(&mut now);
        then.difference(&now)
    };
    let arguments = |change: &dyn Fn(&mut Header)| match with(header(), change) {
        PlanDifference::Arguments(words) => words.join("; "),
        other => panic!("{other:?}"),
    };
    let source = |change: &dyn Fn(&mut Header)| match with(header(), change) {
        PlanDifference::Source(words) => words.join("; "),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        arguments(&|h| _ = h.arguments.insert("seed".into(), "1".into())),
        "seed: then 0, now 1"
    );
    assert_eq!(
        arguments(&|h| _ = h.arguments.insert("x".into(), "1".into())),
        "x: then not given, now 1"
    );
    assert!(
        source(&|h| h.parts[0].files = 9).contains("train: a: then 1 files of 2 bytes, now 9 of 2")
    );
    assert!(source(&|h| h.parts[0].times = 9).contains("modified"));
    assert!(source(&|h| h.parts.clear()).contains("gone"));
    assert!(arguments(&|h| h.plan = "q".into()).contains("class list"));
    let PlanDifference::Arguments(words) = with(moved, &|h| h.parts.clear()) else {
        panic!("another source passed for the same one")
    };
    assert!(
        words[0].contains("source: then /src, now /elsewhere"),
        "{words:?}"
    );
}
