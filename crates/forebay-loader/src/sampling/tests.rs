//! Resolution of the options for a split with a few labels.

use std::ops::Range;

use forebay_shard::RecordBlock;

use super::*;
use crate::error::RecordLocation;
use crate::plan::{Epoch, PlanOptions, Shuffle};
use crate::source::Classes;

/// Records with labels and nothing else.
struct Labelled(Vec<Option<i64>>);

impl Source for Labelled {
    fn records(&self) -> u64 {
        self.0.len() as u64
    }

    fn bytes(&self) -> u64 {
        self.records() * 100
    }

    fn piece(&self, run: &Range<u64>, _: u64) -> Range<u64> {
        run.clone()
    }

    fn stored_bytes(&self, piece: &Range<u64>) -> Result<u64> {
        Ok((piece.end - piece.start) * 100)
    }

    fn read(&self, _: &Range<u64>, _: &mut RecordBlock) -> Result<()> {
        Err(Error::Interrupted)
    }

    fn locate(&self, record: u64) -> RecordLocation {
        RecordLocation {
            shard: "labels".into(),
            record,
            sample: record,
            key: None,
            offset: 0,
        }
    }

    fn key(&self, _: u64) -> Option<Vec<u8>> {
        None
    }

    fn for_each_label(&self, each: &mut dyn FnMut(u64, Option<i64>)) {
        for (record, &label) in (0..).zip(&self.0) {
            each(record, label);
        }
    }

    fn class_label(&self, name: &str) -> Result<Option<i64>> {
        let at = ["cat", "dog"].iter().position(|class| *class == name);
        Ok(at.map(|at| at as i64 + 1))
    }

    fn classes(&self) -> Classes {
        Classes::default()
    }
}

/// Returns 40 records: one quarter has label 1 (cat), half have label 2 (dog), one quarter has label 3.
fn source() -> Labelled {
    Labelled((0..40).map(|i| Some([1, 2, 2, 3][i % 4])).collect())
}

/// Returns all samples of an epoch, in storage order.
fn samples(sampling: &Sampling, epoch: u64) -> Vec<u64> {
    let (resolved, selection) = sampling.resolve(&source()).unwrap();
    let options = PlanOptions {
        records: selection.len(),
        seed: 4,
        epoch,
        virtual_ranks: 4,
        shuffle: Shuffle::NONE,
        run_records: 1,
    };
    let epoch = Epoch::new(&options, &selection, resolved.times()).unwrap();
    (0..epoch.positions()).map(|p| epoch.at(p).sample).collect()
}

fn refusal(sampling: &Sampling) -> String {
    sampling.resolve(&source()).unwrap_err().to_string()
}

#[test]
fn records_are_chosen_by_number_class_and_limit() {
    let mut sampling = Sampling::default();
    assert!(samples(&sampling, 0).into_iter().eq(0..40));
    sampling.limit = 7;
    assert!(samples(&sampling, 0).into_iter().eq(0..7));
    sampling.limit = 400;
    assert_eq!(samples(&sampling, 0).len(), 40);
    let indices = [3, 5, 7].into();
    sampling = Sampling {
        indices,
        limit: 2,
        ..sampling
    };
    assert_eq!(samples(&sampling, 0), [3, 5]);
    sampling.indices = [].into();
    sampling.limit = 3;
    sampling.classes = vec!["cat".into()];
    assert_eq!(samples(&sampling, 0), [0, 4, 8]);
    sampling.labels = vec![3];
    assert_eq!(samples(&sampling, 0), [0, 3, 4]);
    sampling.indices = [3, 5, 7, 12, 39].into();
    assert_eq!(samples(&sampling, 0), [3, 7, 12]);
    sampling.repeats = 2;
    assert_eq!(samples(&sampling, 0), [3, 3, 7, 7, 12, 12]);
    let (resolved, _) = sampling.resolve(&source()).unwrap();
    assert!(resolved.classes.is_empty());
    assert_eq!(resolved.labels, [1, 3]);
    assert_eq!(resolved.resolve(&source()).unwrap().0, resolved);
}

#[test]
fn classes_are_balanced_and_weighted() {
    let mut sampling = Sampling {
        weights: Weights::Balanced,
        num_samples: 6000,
        ..Sampling::default()
    };
    let count = |sampling: &Sampling| {
        let mut counts = [0u64; 4];
        for sample in samples(sampling, 1) {
            counts[[1, 2, 2, 3][sample as usize % 4]] += 1;
        }
        counts
    };
    // Six standard deviations around 2000 are 219.
    let balanced = count(&sampling);
    assert!(
        balanced[1..].iter().all(|&n| n.abs_diff(2000) < 219),
        "{balanced:?}"
    );
    // Weights apply to records: the twenty dogs weigh 10 together, the ten cats 30, the ten others 10.
    sampling.weights = Weights::ByLabel(vec![(1, 3.0), (2, 0.5)]);
    let weighted = count(&sampling);
    assert!(
        weighted[1].abs_diff(3600) < 228 && weighted[3].abs_diff(1200) < 186,
        "{weighted:?}"
    );
    let by_name = Sampling {
        weights: Weights::ByClass(vec![("cat".into(), 3.0), ("dog".into(), 0.5)]),
        ..sampling.clone()
    };
    assert_eq!(samples(&by_name, 1), samples(&sampling, 1));
    sampling.weights = Weights::BySample((0..40).map(|i| if i < 2 { 1.0 } else { 0.0 }).collect());
    sampling.num_samples = 0;
    let drawn = samples(&sampling, 0);
    assert_eq!(drawn.len(), 40);
    assert!(drawn.iter().all(|&sample| sample < 2));
    assert_ne!(drawn, samples(&sampling, 1));
}

#[test]
fn invalid_options_are_refused_by_name() {
    let refused = |change: &dyn Fn(&mut Sampling)| {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        refusal(&sampling)
    };
    assert!(refused(&|s| s.indices = [1, 1].into()).contains("indices is 1 after 1"));
    assert!(refused(&|s| s.indices = [2, 40].into()).contains("numbers below 40"));
    assert!(refused(&|s| s.classes = vec!["cow".into()]).contains("\"cow\""));
    assert!(refused(&|s| s.labels = vec![1, 9]).contains("label 9"));
    assert!(refused(&|s| s.repeats = u64::MAX).contains("repeats"));
    assert!(refused(&|s| s.num_samples = 5).contains("only weights draw"));
    assert!(refused(&|s| s.weights = Weights::BySample([1.0; 3].into())).contains("3 numbers"));
    assert!(refused(&|s| s.weights = Weights::BySample([0.0; 40].into())).contains("sum of 0"));
    assert!(refused(&|s| s.weights = Weights::ByLabel(vec![(7, 1.0)])).contains("label 7"));
    assert!(refused(&|s| s.weights = Weights::ByLabel(vec![(1, -1.0)])).contains("weights"));
    assert!(
        refused(&|s| {
            s.weights = Weights::Balanced;
            s.num_samples = u64::MAX;
        })
        .contains("16 times")
    );
    let unlabelled = Labelled(vec![Some(1), None]);
    let balanced = Sampling {
        weights: Weights::Balanced,
        ..Sampling::default()
    };
    let error = balanced.resolve(&unlabelled).unwrap_err().to_string();
    assert!(error.contains("no label of record 1"), "{error}");
}

#[test]
fn options_have_an_identity() {
    let mut all = vec![Sampling::default()];
    for weights in [
        Weights::None,
        Weights::Balanced,
        Weights::ByLabel(vec![(1, 0.5), (-3, 2.0)]),
        Weights::ByClass(vec![("cat".into(), 0.5), ("dog".into(), 2.0)]),
        Weights::BySample([0.5, 1.5].into()),
    ] {
        all.push(Sampling {
            indices: [0, 5, 6, 1 << 40].into(),
            classes: vec!["cat".into()],
            labels: vec![-1, 7],
            limit: 9,
            weights,
            num_samples: 11,
            repeats: 3,
        });
    }
    for sampling in &all {
        let same = all
            .iter()
            .filter(|other| other.identity() == sampling.identity());
        assert_eq!(same.count(), 1);
    }
    assert_eq!(all[0].identity(), "all");
}
