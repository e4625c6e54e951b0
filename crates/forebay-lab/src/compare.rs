//! Differences between two reports: settings, and figures that changed by more than their spread.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::{Figure, FigureClass, LabReport};

/// A setting that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingChange {
    /// Its name.
    pub name: String,
    /// Its value in the first report; none if it is missing there.
    pub before: Option<String>,
    /// Its value in the second report; none if it is missing there.
    pub after: Option<String>,
}

/// Whether a figure changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All runs of the second report are better than all of the first.
    Better,
    /// All runs of the second report are worse than all of the first.
    Worse,
    /// The ranges of the runs overlap, or there is one run only.
    WithinNoise,
    /// One of the reports lacks the figure.
    Missing,
}

/// A figure of one report or both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FigureChange {
    /// The experiment.
    pub experiment: String,
    /// The storage.
    pub medium: String,
    /// The quantity.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Its median in the first report.
    pub before: Option<f64>,
    /// Its median in the second report.
    pub after: Option<f64>,
    /// Whether it changed.
    pub verdict: Verdict,
}

/// The differences between two reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Settings that differ.
    pub settings: Vec<SettingChange>,
    /// All measured figures, in the order of the first report.
    pub figures: Vec<FigureChange>,
}

/// Compares the measured figures of two reports. Published figures are left out.
#[must_use]
pub fn compare(before: &LabReport, after: &LabReport) -> Comparison {
    let names = before.settings.keys().chain(after.settings.keys());
    let mut names: Vec<&String> = names.collect();
    names.sort();
    names.dedup();
    let settings = names.into_iter().filter_map(|name| {
        let (first, second) = (before.settings.get(name), after.settings.get(name));
        (first != second).then(|| SettingChange {
            name: name.clone(),
            before: first.cloned(),
            after: second.cloned(),
        })
    });
    let (first, mut second) = (figures(before), by_key(after));
    let mut changes: Vec<FigureChange> = first
        .into_iter()
        .map(|(key, figure)| change(&key, Some(figure), second.remove(&key)))
        .collect();
    changes.extend(
        second
            .into_iter()
            .map(|(key, figure)| change(&key, None, Some(figure))),
    );
    Comparison {
        settings: settings.collect(),
        figures: changes,
    }
}

/// Experiment, medium, quantity and unit.
type Key = (String, String, String, String);

fn figures(report: &LabReport) -> Vec<(Key, &Figure)> {
    let all = report.experiments.iter().flat_map(|experiment| {
        experiment.figures.iter().map(|figure| {
            let key = (
                experiment.id.clone(),
                figure.medium.clone(),
                figure.name.clone(),
                figure.unit.clone(),
            );
            (key, figure)
        })
    });
    all.filter(|(_, figure)| matches!(figure.class, FigureClass::Measured | FigureClass::StandIn))
        .collect()
}

fn by_key(report: &LabReport) -> BTreeMap<Key, &Figure> {
    figures(report).into_iter().collect()
}

fn change(key: &Key, before: Option<&Figure>, after: Option<&Figure>) -> FigureChange {
    let verdict = match (before, after) {
        (Some(before), Some(after)) => verdict(before, after),
        _ => Verdict::Missing,
    };
    let (experiment, medium, name, unit) = key.clone();
    FigureChange {
        experiment,
        medium,
        name,
        unit,
        before: before.map(|figure| figure.value),
        after: after.map(|figure| figure.value),
        verdict,
    }
}

fn verdict(before: &Figure, after: &Figure) -> Verdict {
    if before.runs.len() < 2 || after.runs.len() < 2 {
        return Verdict::WithinNoise;
    }
    let (higher, lower) = match (
        after.lowest() > before.highest(),
        after.highest() < before.lowest(),
    ) {
        (false, false) => return Verdict::WithinNoise,
        sides => sides,
    };
    match is_better_higher(&before.unit) {
        true if higher => Verdict::Better,
        false if lower => Verdict::Better,
        _ => Verdict::Worse,
    }
}

/// Rates and shares are better if they are higher; times and sizes if they are lower.
fn is_better_higher(unit: &str) -> bool {
    unit.ends_with("/s") || matches!(unit, "x" | "%" | "% of the device")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ExperimentReport;

    fn report(runs: &[f64]) -> LabReport {
        let mut report = LabReport::new(String::new(), BTreeMap::new());
        report.experiments.push(ExperimentReport {
            id: "E1".to_owned(),
            title: String::new(),
            question: String::new(),
            class: FigureClass::Measured,
            reason: String::new(),
            figures: vec![Figure::measured("m", "read", "MB/s", runs.to_vec())],
            plots: Vec::new(),
            notes: Vec::new(),
            seconds: 1.5,
        });
        report
    }

    #[test]
    fn changes_count_beyond_the_spread_only() {
        let before = report(&[10.0, 11.0, 12.0]);
        let verdict = |runs: &[f64]| compare(&before, &report(runs)).figures[0].verdict;
        assert_eq!(verdict(&[12.0, 13.0, 14.0]), Verdict::WithinNoise);
        assert_eq!(verdict(&[12.5, 13.0, 14.0]), Verdict::Better);
        assert_eq!(verdict(&[8.0, 9.0, 9.5]), Verdict::Worse);
        assert_eq!(
            verdict(&[20.0]),
            Verdict::WithinNoise,
            "one run has no spread"
        );
        let mut after = report(&[10.0, 11.0, 12.0]);
        after
            .settings
            .insert("kernel".to_owned(), "6.19".to_owned());
        after.experiments[0].figures[0].unit = "s".to_owned();
        let changes = compare(&before, &after);
        assert_eq!(changes.settings.len(), 1);
        let missing = changes
            .figures
            .iter()
            .filter(|change| change.verdict == Verdict::Missing);
        assert_eq!(
            missing.count(),
            2,
            "a quantity of another unit is another one"
        );
    }

    #[test]
    fn times_are_better_if_they_are_lower() {
        let timed = |runs: &[f64]| {
            let mut report = report(runs);
            report.experiments[0].figures[0].unit = "s".to_owned();
            report
        };
        let changes = compare(&timed(&[3.0, 3.1]), &timed(&[2.0, 2.1]));
        assert_eq!(changes.figures[0].verdict, Verdict::Better);
    }
}
