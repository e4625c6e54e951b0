//! Labelled runs: is the right bottleneck found, and does a remedy gain what was predicted?
//!
//! The short form moves batches through a simulated pipeline, so it is the same on every machine. The long form throttles real
//! loaders one resource at a time; see [`real`].

mod real;
mod simulated;

use std::collections::BTreeMap;

use super::Gain;

/// Result of a campaign.
#[derive(Debug, Default)]
struct Outcome {
    runs: usize,
    right: usize,
    /// Runs by the bottleneck that was made and the one that was found.
    confused: BTreeMap<(String, String), usize>,
    /// Relative errors of predicted gains.
    errors: Vec<f64>,
    covered: usize,
}

impl Outcome {
    fn found(&mut self, made: &str, found: &str) {
        self.runs += 1;
        match made == found {
            true => self.right += 1,
            false => {
                *self
                    .confused
                    .entry((made.to_owned(), found.to_owned()))
                    .or_default() += 1
            }
        }
    }

    fn gained(&mut self, predicted: &Gain, gained: f64) {
        self.errors.push((predicted.gain / gained - 1.0).abs());
        self.covered += usize::from(predicted.covers(gained));
    }

    fn median_error(&self) -> f64 {
        crate::measure::median(&self.errors)
    }

    /// The goal: 99 % of bottlenecks are right.
    fn check_bottlenecks(&self) {
        println!(
            "{} runs, {} right bottlenecks ({:.1} %), confused {:?}",
            self.runs,
            self.right,
            100.0 * self.right as f64 / self.runs.max(1) as f64,
            self.confused,
        );
        assert!(
            self.runs > 0 && self.right as f64 >= 0.99 * self.runs as f64,
            "{self:?}"
        );
    }

    /// The goals: predictions are within 10 % at the median, and 9 of 10 intervals cover.
    fn check_gains(&self) {
        println!(
            "{} predictions: median error {:.1} %, {:.0} % of intervals cover",
            self.errors.len(),
            100.0 * self.median_error(),
            100.0 * self.covered as f64 / self.errors.len().max(1) as f64,
        );
        assert!(!self.errors.is_empty());
        assert!(self.median_error() <= 0.1, "{self:?}");
        assert!(
            self.covered as f64 >= 0.9 * self.errors.len() as f64,
            "{self:?}"
        );
    }
}
