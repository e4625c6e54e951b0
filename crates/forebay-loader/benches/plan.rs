//! Cost of the plan in nanoseconds per position.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use forebay_loader::plan::{EpochPlan, PlanOptions, Shuffle};

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

criterion_group!(benches, positions);
criterion_main!(benches);
