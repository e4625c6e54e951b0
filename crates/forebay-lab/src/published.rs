//! Figures that others published, which reports show beside measured ones.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

static TEXT: &str = include_str!("published.json");
static ALL: LazyLock<Published> =
    LazyLock::new(|| serde_json::from_str(TEXT).expect("a test parses it"));

/// Published figures and their sources.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The documents, by the short names that figures refer to.
    pub sources: BTreeMap<String, String>,
    /// The machines, by the names that figures refer to.
    pub platforms: BTreeMap<String, String>,
    /// All figures.
    pub figures: Vec<PublishedFigure>,
}

/// A figure that others published.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedFigure {
    /// The experiment of the catalog that repeats it, such as `E4`.
    pub experiment: String,
    /// Short name of the document.
    pub source: String,
    /// The figure, table or passage of the document.
    pub figure: String,
    /// The machine.
    pub platform: String,
    /// The storage.
    pub medium: String,
    /// The quantity.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Whether the value is read off a plot, within about 1 %, because the document does not print it.
    #[serde(default)]
    pub read_off_plot: bool,
}

impl Published {
    /// Returns all published figures.
    #[must_use]
    pub fn all() -> &'static Published {
        &ALL
    }

    /// Returns the published figures of an experiment.
    pub fn of(&self, experiment: &str) -> impl Iterator<Item = &PublishedFigure> {
        let experiment = experiment.to_owned();
        self.figures
            .iter()
            .filter(move |figure| figure.experiment == experiment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_source_a_platform_and_a_unit() {
        let all = Published::all();
        for figure in &all.figures {
            assert!(all.sources.contains_key(&figure.source), "{figure:?}");
            assert!(all.platforms.contains_key(&figure.platform), "{figure:?}");
            assert!(
                !figure.unit.is_empty() && figure.value.is_finite(),
                "{figure:?}"
            );
        }
        assert_eq!(all.of("E4").count(), 8);
    }
}
