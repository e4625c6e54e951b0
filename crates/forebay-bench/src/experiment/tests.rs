use std::collections::BTreeSet;
use std::fs;

use super::*;

struct Quiet;

impl CharacterizeObserver for Quiet {
    fn begins(&self, _: &Experiment) {}
    fn runs(&self, _: &str, _: &str, _: usize) {}
    fn is_interrupted(&self) -> bool {
        false
    }
}

struct Impatient;

impl CharacterizeObserver for Impatient {
    fn begins(&self, _: &Experiment) {}
    fn runs(&self, _: &str, _: &str, _: usize) {}
    fn is_interrupted(&self) -> bool {
        true
    }
}

fn options(medium: &std::path::Path, experiments: &[&str]) -> CharacterizeOptions {
    CharacterizeOptions {
        media: vec![medium.to_owned()],
        experiments: experiments.iter().map(|name| (*name).to_owned()).collect(),
        files: 96,
        size: 8 << 20,
        runs: 1,
        limit: Duration::from_millis(50),
        cold: Cold::Advise,
        threads: vec![1, 2],
        batch_size: 16,
        prefetch: vec![0, 1],
        steps: vec![Duration::ZERO, Duration::from_millis(5)],
        command: "test".to_owned(),
    }
}

#[test]
fn names_are_unique_and_known() {
    let ids: BTreeSet<&str> = CATALOG.iter().map(|experiment| experiment.id).collect();
    assert_eq!(ids.len(), CATALOG.len());
    let published: BTreeSet<&str> = Published::all()
        .figures
        .iter()
        .map(|figure| figure.experiment.as_str())
        .collect();
    assert!(
        published.iter().all(|id| id.starts_with('E')),
        "{published:?}"
    );
    let options = options(std::path::Path::new("/proc"), &["e4", "E99"]);
    let error = options.chosen().err().unwrap().to_string();
    assert!(
        error.contains("\"E99\"") && error.contains("E1, E2"),
        "{error}"
    );
}

#[test]
fn every_experiment_of_the_catalog_measures_or_says_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let all: Vec<&str> = CATALOG.iter().map(|experiment| experiment.id).collect();
    let options = options(dir.path(), &all);
    let report = characterize(&options, &Quiet).unwrap();
    assert_eq!(report.experiments.len(), CATALOG.len());
    for experiment in &report.experiments {
        let measured = experiment
            .figures
            .iter()
            .filter(|figure| figure.class != FigureClass::Published);
        let measured: Vec<&Figure> = measured.collect();
        if experiment.class == FigureClass::NotRun {
            // Requests cannot be counted where the temporary directory has no device of its own.
            assert!(
                matches!(experiment.id.as_str(), "E9" | "E17"),
                "{}: {}",
                experiment.id,
                experiment.reason
            );
            assert!(
                experiment.reason.contains("/proc/diskstats"),
                "{}",
                experiment.reason
            );
            assert!(measured.is_empty());
            continue;
        }
        assert!(!measured.is_empty(), "{} has no figures", experiment.id);
        for figure in measured {
            assert!(
                figure.value.is_finite() && figure.value >= 0.0,
                "{figure:?}"
            );
            let reads = !figure.name.contains("write") && experiment.id != "E1";
            assert_eq!(reads, !figure.proof.is_empty(), "{figure:?}");
            assert!(
                experiment.id == "E1" || figure.runs.len() == options.runs,
                "{figure:?}"
            );
        }
        let published = Published::all().of(&experiment.id).count();
        let shown = experiment
            .figures
            .iter()
            .filter(|figure| figure.class == FigureClass::Published);
        assert_eq!(shown.count(), published);
    }
    assert!(
        report.settings.contains_key("kernel"),
        "{:?}",
        report.settings
    );
    assert_eq!(report.statements.len(), 35);
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        0,
        "data are removed from the medium"
    );
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let error = characterize(&options(dir.path(), &["E4"]), &Impatient).unwrap_err();
    assert!(error.to_string().contains("interrupted"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_medium_that_cannot_be_written_is_named() {
    let error = characterize(
        &options(std::path::Path::new("/proc/medium"), &["E4"]),
        &Quiet,
    )
    .unwrap_err();
    assert!(error.to_string().contains("/proc/medium"), "{error}");
}

#[test]
fn the_estimate_counts_each_run_and_medium() {
    let mut options = options(std::path::Path::new("/a"), &["E4"]);
    // Three trials, one counted round and one that is discarded.
    assert_eq!(options.estimate().unwrap(), Duration::from_millis(6 * 50));
    options.media.push("/b".into());
    assert_eq!(options.estimate().unwrap(), Duration::from_millis(12 * 50));
}
