use super::*;
use crate::{Cancel, DatasetFormat, PackOptions};
use forebay_shard::Codec;
use std::path::Path;

fn census_of(
    sizes: &[usize],
    change: impl Fn(&mut PackOptions),
) -> (tempfile::TempDir, Census, PackOptions) {
    let dir = tempfile::tempdir().unwrap();
    for (number, size) in sizes.iter().enumerate() {
        let class = dir.path().join(format!("c{}", number % 3));
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("{number:03}.jpg")), vec![0; *size]).unwrap();
    }
    let mut options = PackOptions::new(dir.path(), Path::new("unused"));
    change(&mut options);
    let census = Census::take(&options, &(), &Cancel::new()).unwrap();
    (dir, census, options)
}

fn lengths(plan: &Plan) -> Vec<u64> {
    plan.shards()
        .map(|s| s.positions.end - s.positions.start)
        .collect()
}

#[test]
fn every_file_is_in_exactly_one_shard() {
    let sizes: Vec<usize> = (0..50).map(|n| n * n % 977).collect();
    let shardings = [1, 2, 7, 49, 50, 51, 99_999].map(Sharding::Count);
    let by_bytes = [1, 100, 1000, 10_000, 1 << 40].map(Sharding::Bytes);
    for sharding in shardings.into_iter().chain(by_bytes) {
        let (_dir, census, options) = census_of(&sizes, |o| o.sharding = sharding);
        let plan = Plan::make(&census, &options).unwrap();
        let mut seen = Vec::new();
        for (at, shard) in plan.shards().enumerate() {
            assert!(
                !shard.positions.is_empty(),
                "{sharding:?}: shard {at} is empty"
            );
            assert_eq!(
                shard.name,
                format!("train-{at:05}-of-{:05}", plan.shard_count())
            );
            seen.extend(
                plan.splits()[0]
                    .entries(&census.splits()[0], shard.positions)
                    .map(|e| e.key()),
            );
        }
        assert_eq!(seen.len(), 50);
        seen.sort();
        assert_eq!(
            seen,
            census.splits()[0]
                .iter()
                .map(|e| e.key())
                .collect::<Vec<_>>()
        );
        if let Sharding::Count(count) = sharding {
            assert_eq!(plan.shard_count(), u64::from(count.min(50)));
        }
    }
}

#[test]
fn counts_give_equal_records_and_sizes_give_equal_bytes() {
    let (_dir, census, options) = census_of(&[10; 10], |o| o.sharding = Sharding::Count(4));
    let mut counts = lengths(&Plan::make(&census, &options).unwrap());
    counts.sort();
    assert_eq!(counts, [2, 2, 3, 3]);

    let mut sizes = vec![100_000; 4];
    sizes.extend([1000; 396]);
    let (_dir, census, options) = census_of(&sizes, |o| o.sharding = Sharding::Bytes(150_000));
    let plan = Plan::make(&census, &options).unwrap();
    for shard in plan.shards() {
        assert!(shard.bytes < 260_000, "{shard:?}");
    }
}

#[test]
fn an_unshuffled_split_keeps_the_order_of_keys() {
    let never = |o: &mut PackOptions| o.shuffle = ShuffleWhen::Never;
    let (_dir, census, options) = census_of(&[1; 9], never);
    let plan = Plan::make(&census, &options).unwrap();
    assert_eq!(
        (0..9)
            .map(|p| plan.splits()[0].entry_at(p))
            .collect::<Vec<_>>(),
        (0..9).collect::<Vec<_>>()
    );
}

#[test]
fn the_digest_depends_on_arguments_names_and_sizes() {
    let digest = |sizes: &[usize], change: &dyn Fn(&mut PackOptions)| {
        let (_dir, census, options) = census_of(sizes, change);
        Plan::make(&census, &options).unwrap().digest().to_owned()
    };
    let base = digest(&[1, 2, 3], &|_| ());
    assert_eq!(
        base,
        digest(&[1, 2, 3], &|o| (o.jobs, o.on_bad) =
            (Some(7), crate::OnBad::Fail))
    );
    let changes: [&dyn Fn(&mut PackOptions); 7] = [
        &|o| o.seed = 1,
        &|o| o.label_base = 0,
        &|o| o.format = DatasetFormat::INDEXED,
        &|o| o.format = DatasetFormat::Indexed(Codec::ZSTD.into()),
        &|o| o.sharding = Sharding::Count(1),
        &|o| o.shuffle = ShuffleWhen::Never,
        &|o| o.split = Some("other".into()),
    ];
    for change in changes {
        assert_ne!(base, digest(&[1, 2, 3], change));
    }
    assert_ne!(base, digest(&[1, 2, 4], &|_| ()));
    assert_ne!(base, digest(&[1, 2, 3, 3], &|_| ()));
}
