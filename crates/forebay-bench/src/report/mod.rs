//! Reports of experiments: measured figures, their settings, and published figures beside them.
//!
//! A report is one JSON document. Markdown, an HTML page and plots are generated from it.

mod html;
mod markdown;
mod plot;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use forebay_store::{Durability, write_file};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::cold::{COLD, Proof};
pub use plot::{Plot, Scale, Series};

/// Version of the JSON document.
const LAYOUT: u32 = 1;
/// File in a report's directory that [`LabReport::read`] reads.
pub const REPORT_FILE: &str = "report.json";

/// The origin of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureClass {
    /// Measured by this run, on the named storage.
    Measured,
    /// Measured by this run, with something slowed down or simulated.
    StandIn,
    /// Published by others, for their machines.
    Published,
    /// Not measured.
    NotRun,
}

impl FigureClass {
    /// Returns the name for tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            FigureClass::Measured => "measured",
            FigureClass::StandIn => "stand-in",
            FigureClass::Published => "published",
            FigureClass::NotRun => "not run",
        }
    }
}

/// The part of a row's name that claims a cold share of at least [`COLD`].
const COLD_WORD: &str = "cold";
/// The part that replaces [`COLD_WORD`] if the share is lower or unknown.
const EMPTIED_WORD: &str = "caches emptied";

/// Returns the name of a row whose caches were emptied, without the claim that they were cold.
fn emptied(name: &str) -> String {
    let word = |part| match part {
        COLD_WORD => EMPTIED_WORD,
        part => part,
    };
    let parts: Vec<&str> = name.split(", ").map(word).collect();
    parts.join(", ")
}

/// Returns the name of a series by its cache state: cold only if all of its rows are.
pub fn series_name<'f>(cache: &str, rows: impl IntoIterator<Item = &'f Figure>) -> String {
    let mut rows = rows.into_iter();
    let is_cold = rows.all(|row| row.cold_share.is_some_and(|share| share >= COLD));
    match is_cold {
        true => cache.to_owned(),
        false => emptied(cache),
    }
}

/// A quantity with its spread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The storage.
    pub medium: String,
    /// The quantity.
    pub name: String,
    /// The origin of the values.
    pub class: FigureClass,
    /// Median of `runs`.
    pub value: f64,
    /// Unit of all values.
    pub unit: String,
    /// The counted runs in order; one value for a published figure.
    pub runs: Vec<f64>,
    /// Bytes from the storage per byte that was read: 1 is cold, 0 is the page cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_share: Option<f64>,
    /// How the cold share was measured, or why it is unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub proof: String,
    /// Further values by name with unit; medians of `more_runs` if there are runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub more: BTreeMap<String, f64>,
    /// The further values of each counted run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub more_runs: BTreeMap<String, Vec<f64>>,
}

impl Figure {
    /// Creates a measured figure, whose value is the median of the runs.
    #[must_use]
    pub fn measured(medium: &str, name: impl Into<String>, unit: &str, runs: Vec<f64>) -> Figure {
        Figure {
            medium: medium.to_owned(),
            name: name.into(),
            class: FigureClass::Measured,
            value: crate::measure::median(&runs),
            unit: unit.to_owned(),
            runs,
            cold_share: None,
            proof: String::new(),
            more: BTreeMap::new(),
            more_runs: BTreeMap::new(),
        }
    }

    /// Adds the proof of its cache state, which decides whether its name may contain "cold".
    #[must_use]
    pub fn with_proof(mut self, proof: &Proof) -> Figure {
        self.cold_share = proof.cold_share;
        self.proof = proof.line();
        self.name_by_share();
        self
    }

    /// Replaces "cold" in the name of a row that is not proved to be cold.
    pub fn name_by_share(&mut self) {
        if self.cold_share.is_none_or(|share| share < COLD) {
            self.name = emptied(&self.name);
        }
    }

    /// Returns whether the row has this name, or the name that replaces it if the row is not proved to be cold.
    pub fn is_row(&self, name: &str) -> bool {
        self.name == name || self.name == emptied(name)
    }

    /// Returns the lowest run.
    #[must_use]
    pub fn lowest(&self) -> f64 {
        self.runs.iter().copied().fold(self.value, f64::min)
    }

    /// Returns the highest run.
    #[must_use]
    pub fn highest(&self) -> f64 {
        self.runs.iter().copied().fold(self.value, f64::max)
    }
}

/// One experiment of the catalog.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExperimentReport {
    /// Its name in the catalog, such as `E4`.
    pub id: String,
    /// Its title.
    pub title: String,
    /// The question that it answers.
    pub question: String,
    /// The origin of its figures; that of single figures may differ.
    pub class: FigureClass,
    /// Why it was not run, or what a stand-in replaces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The figures, published ones last.
    #[serde(rename = "rows")]
    pub figures: Vec<Figure>,
    /// The plots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<Plot>,
    /// Notes that a reader needs to judge the figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// The results of a run of experiments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabReport {
    layout: u32,
    /// The command line, as the user typed it.
    pub command: String,
    /// Settings of the machine and of each medium by name; names of a medium's settings start with the medium.
    pub settings: BTreeMap<String, String>,
    /// The experiments, in the catalog's order.
    pub experiments: Vec<ExperimentReport>,
}

impl LabReport {
    /// Creates a report without experiments.
    #[must_use]
    pub fn new(command: String, settings: BTreeMap<String, String>) -> LabReport {
        LabReport {
            layout: LAYOUT,
            command,
            settings,
            experiments: Vec::new(),
        }
    }

    /// Reads a report from its directory, or from its JSON file.
    ///
    /// # Errors
    /// The file is missing, or is no report of this layout.
    pub fn read(path: &Path) -> Result<LabReport> {
        let file = match path.is_dir() {
            true => path.join(REPORT_FILE),
            false => path.to_owned(),
        };
        let failed = |what: &dyn std::fmt::Display| format!("{}: {what}", file.display());
        let text = fs::read(&file).map_err(|error| failed(&error))?;
        let report: LabReport =
            forebay_shard::json::from_slice(&text).map_err(|error| failed(&error))?;
        match report.layout {
            LAYOUT => Ok(report),
            other => Err(failed(&format!(
                "report layout {other}, this version reads {LAYOUT}"
            ))
            .into()),
        }
    }

    /// Writes `report.json`, `report.md`, `report.html` and a file for each plot into `dir`, which is created.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let mut files = vec![
            (REPORT_FILE.to_owned(), serde_json::to_string_pretty(self)?),
            ("report.md".to_owned(), self.markdown()),
            ("report.html".to_owned(), html::page(self)),
        ];
        for experiment in &self.experiments {
            for (number, plot) in experiment.plots.iter().enumerate() {
                let name = format!("{}-{}.svg", experiment.id, number + 1);
                files.push((name, plot.svg()));
            }
        }
        for (name, text) in files {
            write_file(&dir.join(name), text.as_bytes(), Durability::Cached)?;
        }
        Ok(())
    }

    /// Returns the report as Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        markdown::text(self)
    }
}

/// Returns the columns of an experiment's table, and its rows.
fn table(experiment: &ExperimentReport) -> (Vec<String>, Vec<Vec<String>>) {
    let mut extra: Vec<&String> = Vec::new();
    for name in experiment
        .figures
        .iter()
        .flat_map(|figure| figure.more.keys())
    {
        if !extra.contains(&name) {
            extra.push(name);
        }
    }
    let fixed = [
        "medium",
        "class",
        "cold share",
        "figure",
        "median",
        "lowest",
        "highest",
        "unit",
    ];
    let mut head: Vec<String> = fixed.map(str::to_owned).into();
    head.extend(extra.iter().map(|name| (*name).clone()));
    let is_published = |figure: &&Figure| figure.class == FigureClass::Published;
    let has_sources = experiment
        .figures
        .iter()
        .any(|figure| is_published(&figure));
    head.extend(has_sources.then(|| "source".to_owned()));
    let rows = experiment.figures.iter().map(|figure| {
        let is_range = figure.runs.len() > 1;
        let of_range = |value| {
            if is_range {
                number(value)
            } else {
                String::new()
            }
        };
        let cold = match (figure.cold_share, figure.class) {
            (Some(share), _) => number(share),
            (None, FigureClass::Published) => String::new(),
            (None, _) => figure.proof.clone(),
        };
        let mut row = vec![
            figure.medium.clone(),
            figure.class.word().to_owned(),
            cold,
            figure.name.clone(),
            number(figure.value),
            of_range(figure.lowest()),
            of_range(figure.highest()),
            figure.unit.clone(),
        ];
        let more = extra.iter().map(|name| figure.more.get(*name));
        row.extend(more.map(|value| value.map_or(String::new(), |&value| number(value))));
        let source = || {
            if is_published(&figure) {
                figure.proof.clone()
            } else {
                String::new()
            }
        };
        row.extend(has_sources.then(source));
        row
    });
    (head, rows.collect())
}

/// Formats a number with three significant digits or no decimals, and with thousands separators.
fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, whole) = whole
        .strip_prefix('-')
        .map_or(("", whole), |whole| ("-", whole));
    let mut out = String::from(sign);
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

#[cfg(test)]
mod tests;
