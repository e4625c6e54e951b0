//! Differences between two reports: of settings, and of figures beyond their spread.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Figure, FigureClass, LabReport};

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

/// Compares what two reports measured. Published figures are left out.
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
