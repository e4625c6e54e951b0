//! Conversion of stored labels to labels in batches.
//!
//! Shards keep the labels with which they were written, TensorFlow's from 1 by default, while
//! losses count classes from 0. This module converts labels and refuses invalid ones, for single
//! datasets and for mixes.

use forebay_options::LabelBase;

/// Label of a record without one.
pub(crate) const NO_LABEL: i64 = -1;

/// The conversion of the labels of one dataset. Negative labels mean "no label" and are unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Relabel {
    /// Adds `by` to labels of at least `lowest`.
    Shift { lowest: i64, by: i64 },
    /// Looks labels up: stored label `base + i` becomes `labels[i]`.
    Table { base: i64, labels: Vec<i64> },
}

impl Relabel {
    /// Creates the conversion for a dataset whose first class is stored as `stored_base`; `add` is
    /// added to the result.
    pub(crate) fn new(label_base: LabelBase, stored_base: i64, add: i64) -> Self {
        match label_base.first() {
            None => Relabel::Shift { lowest: 0, by: add },
            Some(first) => Relabel::Shift {
                lowest: stored_base,
                by: (first - stored_base).saturating_add(add),
            },
        }
    }

    /// Returns the label in batches, or the reason for refusing it.
    pub(crate) fn of(&self, stored: i64) -> Result<i64, String> {
        if stored < 0 {
            return Ok(stored);
        }
        match self {
            Relabel::Shift { lowest, .. } if stored < *lowest => Err(format!(
                "label {stored} is below {lowest}, the label of the first class of its dataset; \
                 label_base \"stored\" hands labels out as stored"
            )),
            Relabel::Shift { by, .. } => stored
                .checked_add(*by)
                .filter(|label| *label >= 0)
                .ok_or_else(|| format!("label {stored} changed by {by} is no label")),
            Relabel::Table { base, labels } => stored
                .checked_sub(*base)
                .and_then(|at| labels.get(usize::try_from(at).ok()?))
                .copied()
                .ok_or_else(|| {
                    format!(
                        "label {stored} is none of its dataset's classes, by which the mix has labels"
                    )
                }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_count_from_the_base() {
        for (base, stored_base, expected) in [
            (LabelBase::Zero, 1, [0, 999]),
            (LabelBase::One, 1, [1, 1000]),
            (LabelBase::Stored, 1, [1, 1000]),
            (LabelBase::Zero, 0, [1, 1000]),
            (LabelBase::One, 0, [2, 1001]),
        ] {
            let relabel = Relabel::new(base, stored_base, 0);
            let found = [1, 1000].map(|stored| relabel.of(stored).unwrap());
            assert_eq!(found, expected, "{base:?} {stored_base}");
            assert_eq!(relabel.of(-1), Ok(-1), "none stays none");
        }
    }

    #[test]
    fn labels_below_the_first_class_are_refused() {
        for base in [LabelBase::Zero, LabelBase::One] {
            let error = Relabel::new(base, 1, 0).of(0).unwrap_err();
            assert!(error.contains("label 0 is below 1"), "{error}");
        }
        assert_eq!(Relabel::new(LabelBase::Stored, 1, 0).of(0), Ok(0));
        // The sum must not become a missing label or overflow.
        assert!(Relabel::new(LabelBase::Zero, 0, -5).of(4).is_err());
        assert!(Relabel::new(LabelBase::One, 0, 0).of(i64::MAX).is_err());
        assert!(Relabel::new(LabelBase::Stored, 0, -5).of(4).is_err());
    }
}
