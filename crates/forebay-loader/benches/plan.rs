//! Cost of the plan in nanoseconds per position, and of the first batch of a run that is resumed.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use forebay_image::Transform;
use forebay_loader::Options;
use forebay_loader::plan::{Epoch, EpochPlan, PlanOptions, Selection, Shuffle};

fn plan(shuffle: Shuffle) -> EpochPlan {
    EpochPlan::new(&PlanOptions {
        records: 1_281_167,
        seed: 1,
        epoch: 2,
        virtual_ranks: 64,
        shuffle,
        run_records: 32,
    })
    .expect("good numbers")
}

fn positions(c: &mut Criterion) {
    let blocks = Shuffle::blocks(32, 2);
    for shuffle in [Shuffle::NONE, blocks, Shuffle::FULL] {
        let plan = plan(shuffle);
        let mut p = 0;
        c.bench_function(&format!("sample_at/{}", shuffle.name()), |b| {
            b.iter(|| {
                p = (p + 1) % 1_281_167;
                plan.sample_at(black_box(p))
            });
        });
        c.bench_function(&format!("run_at/{}", shuffle.name()), |b| {
            b.iter(|| {
                p = (p + 1) % 1_281_167;
                plan.run_at(black_box(p))
            });
        });
    }
    c.bench_function("new epoch", |b| b.iter(|| black_box(self::plan(blocks))));
}

/// Plans a batch of a rank in the middle of an epoch of a billion samples.
fn resumed(c: &mut Criterion) {
    const SAMPLES: u64 = 1_000_000_000;
    let selection = Selection::first(SAMPLES);
    for world_size in [64, 56, 1000] {
        let mut options = Options::new(256, Transform::KeepEncoded);
        (options.world_size, options.rank) = (world_size, world_size - 2);
        c.bench_function(&format!("resumed/{world_size} ranks"), |b| {
            b.iter(|| {
                let options = options
                    .resolve(SAMPLES, SAMPLES * 110_000)
                    .expect("options");
                let order = PlanOptions {
                    records: SAMPLES,
                    seed: options.seed,
                    epoch: 3,
                    virtual_ranks: options.virtual_ranks,
                    shuffle: options.shuffle,
                    run_records: 32,
                };
                let plan = Epoch::new(&order, &selection, 1).expect("a plan");
                let batches = options.batches(SAMPLES).expect("batches");
                let positions = batches.assignment().positions(3, black_box(987_654_321));
                positions
                    .into_iter()
                    .map(|p| plan.at(p))
                    .collect::<Vec<_>>()
            });
        });
    }
}

criterion_group!(benches, positions, resumed);
criterion_main!(benches);
