use std::collections::BTreeSet;
use std::fs;

use super::*;

/// Number of tests that the catalog is divided among.
const PARTS: usize = 4;

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
        stores: Vec::new(),
        store: Default::default(),
        experiments: experiments.iter().map(|name| (*name).to_owned()).collect(),
        files: 96,
        size: 8 << 20,
        runs: 1,
        limit: Duration::from_millis(10),
        cold: Cold::Advise,
        threads: vec![1, 2],
        batch_size: 48,
        prefetch: vec![0, 1],
        steps: vec![Duration::ZERO, Duration::from_millis(5)],
        consumer: Consumer::with_step(Duration::from_millis(2), 16),
        ranks: vec![1, 2],
        data: None,
        limits: None,
        formats: Vec::new(),
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

/// Checks that no format is missing, and that none gives wrong samples.
fn check_samples(experiment: &ExperimentReport, measured: &[&Figure]) {
    let (count, notes) = (measured.len(), &experiment.notes);
    match experiment.id.as_str() {
        "E20" => {
            assert_eq!(count, 28, "{notes:?}");
            let sizes = measured.iter().map(|figure| figure.more["KB an image"]);
            let (least, most) = sizes.fold((f64::MAX, 0.0_f64), |(least, most), size| {
                (least.min(size), most.max(size))
            });
            assert!(least > 0.8 * most, "{least} and {most} KB an image");
        }
        "E21" => assert_eq!(count, 28, "{notes:?}"),
        "E23" => {
            assert_eq!(count, 24);
            for figure in measured {
                assert_eq!(figure.value, 0.0, "{figure:?}");
                assert!(
                    figure.more.values().all(|count| *count == 0.0),
                    "{figure:?}"
                );
            }
        }
        "E25" => assert_eq!(count, 9),
        "E35" => assert_eq!(count, 10),
        _ => {}
    }
}

/// Not in the parts of the catalog: it writes and reads pixels several times, and has its own test with fewer images.
const MANY_PIXELS: &str = "E25";

/// Runs one of four parts of the catalog, and checks its figures. Without `FOREBAY_TEST_FULL` only the first part runs, which has
/// experiments of every chapter.
fn check_part(part: usize) {
    if part > 0 && !forebay_rigs::is_full_test() {
        eprintln!("skipped: `tools/test full` runs this part of the catalog");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ids = CATALOG.iter().map(|experiment| experiment.id);
    let all = ids.skip(part).step_by(PARTS);
    let all: Vec<&str> = all.filter(|id| *id != MANY_PIXELS).collect();
    check(dir.path(), &options(dir.path(), &all));
}

/// Runs experiments on a medium, and checks their figures.
fn check(medium: &std::path::Path, options: &CharacterizeOptions) {
    let report = characterize(options, &Quiet).unwrap();
    assert_eq!(report.experiments.len(), options.experiments.len());
    for experiment in &report.experiments {
        println!("{}: {:.1} s", experiment.id, experiment.seconds);
        let measured = experiment
            .figures
            .iter()
            .filter(|figure| figure.class != FigureClass::Published);
        let measured: Vec<&Figure> = measured.collect();
        if experiment.class == FigureClass::NotRun {
            // The requests of a temporary directory without its own device cannot be counted.
            let expected = match experiment.id.as_str() {
                "E9" | "E17" => "/proc/diskstats",
                "E27" => "/dev/shm",
                "E28" | "E33" => "two media",
                id => panic!("{id}: {}", experiment.reason),
            };
            assert!(
                experiment.reason.contains(expected),
                "{}",
                experiment.reason
            );
            assert!(measured.is_empty());
            continue;
        }
        assert!(!measured.is_empty(), "{} has no figures", experiment.id);
        check_samples(experiment, &measured);
        for figure in measured {
            assert!(
                figure.value.is_finite() && figure.value >= 0.0,
                "{figure:?}"
            );
            let is_called_cold = figure.name.split(", ").any(|part| part == "cold");
            let is_cold = figure.cold_share.is_some_and(|share| share >= 0.95);
            assert!(!is_called_cold || is_cold, "{figure:?}");
            let is_computed = experiment.id == "E1" || figure.medium == "all";
            let nothing_read = ["memory", "synthetic store"].contains(&figure.medium.as_str());
            let reads = !figure.name.contains("write") && !is_computed && !nothing_read;
            assert_eq!(reads, !figure.proof.is_empty(), "{figure:?}");
            assert!(
                is_computed || figure.runs.len() == options.runs,
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
    assert_eq!(
        fs::read_dir(medium).unwrap().count(),
        0,
        "data are removed from the medium"
    );
}

/// A format that is read in place has an index, which is a small part of the bytes that are read.
#[test]
fn footprints_of_formats_in_place_hold_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &["E20"]);
    let lab = Lab::new(&options, &Quiet).unwrap();
    let medium = lab.media.first().unwrap();
    let images = crate::read::record_bytes(&medium.indexed().unwrap());
    let formats = medium.formats(&options).unwrap();
    assert!(formats.len() >= 4);
    for format in formats.iter() {
        let crate::cold::Footprint::Files(files) = crate::read::footprint(&format.split) else {
            panic!("{}: no files", format.name)
        };
        let lengths = files.iter().map(|file| file.path.metadata().unwrap().len());
        let bytes: u64 = lengths.sum();
        assert!(
            bytes >= images / 10 * 9,
            "{}: {bytes} of {images}",
            format.name
        );
    }
}

#[test]
fn first_part_of_the_catalog_measures_or_gives_a_reason() {
    check_part(0);
}

#[test]
fn second_part_of_the_catalog_measures_or_gives_a_reason() {
    check_part(1);
}

#[test]
fn third_part_of_the_catalog_measures_or_gives_a_reason() {
    check_part(2);
}

#[test]
fn fourth_part_of_the_catalog_measures_or_gives_a_reason() {
    check_part(3);
}

#[test]
fn pixels_of_few_images_are_made_and_measured() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &[MANY_PIXELS]);
    (options.files, options.batch_size) = (8, 4);
    check(dir.path(), &options);
}

#[test]
fn only_chosen_formats_are_converted() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &["E20"]);
    (options.files, options.formats) = (8, vec!["MDS".to_owned(), "tfrecord".to_owned()]);
    let medium = data::MediumData::new(dir.path(), &options).unwrap();
    let formats = medium.formats(&options).unwrap();
    let names: Vec<&str> = formats.iter().map(|format| format.name).collect();
    assert_eq!(names, ["tfrecord", "mds"]);
    assert!(formats.iter().all(|format| format.split.len() == 8));
    let made = fs::read_dir(medium.scratch().join("formats")).unwrap();
    let made: BTreeSet<_> = made.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(made, ["mds", "mds-index"].map(Into::into).into());
}

#[test]
fn checkpoints_and_copies_are_staged_between_two_media() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(&dir.path().join("a"), &["E10", "E28"]);
    options.media.push(dir.path().join("b"));
    let report = characterize(&options, &Quiet).unwrap();
    let [checkpoints, copies] = report.experiments.as_slice() else {
        panic!("two experiments: {report:?}");
    };
    let own = |experiment: &ExperimentReport| -> Vec<Figure> {
        let figures = experiment.figures.iter();
        figures
            .filter(|figure| figure.class != FigureClass::Published)
            .cloned()
            .collect()
    };
    let checkpoints = own(checkpoints);
    assert_eq!(checkpoints.len(), 5, "none, two direct, two staged");
    for figure in &checkpoints[1..] {
        assert!(
            figure.more["s a save"] > 0.0
                && figure.more["s until durable"] >= figure.more["s a save"],
            "{figure:?}"
        );
        assert_eq!(figure.class, FigureClass::StandIn);
    }
    let copies = own(copies);
    assert_eq!(copies.len(), 3, "an epoch of each, and a copy");
    assert!(copies[2].name.starts_with("copy to ") && copies[2].more["MB/s"] > 0.0);
    let left = [dir.path().join("a"), dir.path().join("b")]
        .map(|medium| fs::read_dir(medium).unwrap().count());
    assert_eq!(left, [0, 0]);
}

/// Returns the figures of an experiment that were measured here.
fn own(experiment: &ExperimentReport) -> Vec<&Figure> {
    let figures = experiment.figures.iter();
    let own = figures.filter(|figure| figure.class != FigureClass::Published);
    own.collect()
}

/// Checks relations between the figures of one slow location and one fast medium that hold at any speed.
fn check_staging(figures: &[&Figure]) {
    let names: Vec<&str> = figures.iter().map(|figure| &*figure.name).collect();
    let [
        direct,
        direct_2,
        cached,
        cached_2,
        staging,
        copied,
        copied_2,
    ] = figures
    else {
        panic!("two epochs of three ways, and a copy: {names:?}");
    };
    assert!(staging.name.starts_with("stage in to "), "{names:?}");
    for first in [direct, cached, copied] {
        let until = first.more["s until the first batch"];
        assert!(until > 0.0 && until <= first.more["s since the begin"]);
    }
    // The clock continues from epoch to epoch, and from the copy to the epochs that read it.
    for (before, after) in [(direct, direct_2), (cached, cached_2), (copied, copied_2)] {
        let [first, both] = [before, after].map(|figure| figure.more["s since the begin"]);
        let second = after.more["s of the epoch"];
        assert!((first + second - both).abs() < 1e-9 * both, "{after:?}");
    }
    assert!(copied.more["s until the first batch"] > staging.value);
    assert_eq!(cached_2.more["% from the cache"], 100.0, "{cached_2:?}");
    assert!(cached.more["% from the cache"] < 100.0, "{cached:?}");
}

#[test]
fn a_slow_medium_and_a_store_are_staged_on_a_fast_one() {
    let server = forebay_rigs::S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(&dir.path().join("slow"), &["E33"]);
    options.media.push(dir.path().join("fast"));
    options.stores = vec![Location::parse(format!("s3://{}/lab", forebay_rigs::BUCKET)).unwrap()];
    options.store = options.store.with_endpoint(server.url());
    for (name, value) in server.settings() {
        options.store = options.store.with(name, value);
    }
    // The limit allows whole epochs on a slow machine: a part of one would fill only a part of the cache.
    options.limit = Duration::from_secs(600);
    let report = characterize(&options, &Quiet).unwrap();
    let experiment = &report.experiments[0];
    let figures = own(experiment);
    assert_eq!(figures.len(), 14, "{:?}", experiment.reason);
    check_staging(&figures[..7]);
    check_staging(&figures[7..]);
    // The second epoch of a filled cache fetches nothing over the network; an epoch without a cache fetches everything.
    for (place, figure) in figures[7..].iter().enumerate() {
        let fetches = [0, 1, 2, 4].contains(&place);
        assert!(
            !fetches || figure.proof.contains("on the wire"),
            "{figure:?}"
        );
        assert!(
            !fetches || figure.cold_share.is_some_and(|share| share > 0.9),
            "{figure:?}"
        );
    }
    assert_eq!(experiment.plots.len(), 2);
    assert_eq!(experiment.plots[0].series.len(), 3);
    let left = options
        .media
        .iter()
        .map(|medium| fs::read_dir(medium).unwrap().count());
    assert_eq!(left.sum::<usize>(), 0);
    let store = forebay_store::Store::open(&options.stores[0], &options.store).unwrap();
    assert!(store.list("").unwrap().is_empty());
}

#[test]
fn resident_first_order_finds_all_residents_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(&dir.path().join("medium"), &["E35"]);
    // One thread and a whole epoch, so that the share found in memory depends on the order only.
    options.threads = vec![1];
    options.limit = Duration::from_secs(600);
    let report = characterize(&options, &Quiet).unwrap();
    let figures = own(&report.experiments[0]);
    assert_eq!(figures.len(), 10, "{:?}", report.experiments[0].reason);
    for pair in figures.chunks(2) {
        let [loader, first] = pair else {
            panic!("two orders: {pair:?}");
        };
        assert!(first.name.ends_with("resident samples first"), "{first:?}");
        for figure in [loader, first] {
            assert_eq!(figure.more["% of the epoch"], 100.0, "{figure:?}");
        }
        let small = first.name.contains("memory for these");
        assert_eq!(small, first.class == FigureClass::StandIn);
        assert_eq!(small, first.more.contains_key("% found in memory"));
        // Files on tmpfs are always resident.
        let percent: f64 = first.name.split(' ').next().unwrap().parse().unwrap();
        let is_controlled = |figure: &Figure| figure.more["% resident at first"] == percent;
        if !small || !is_controlled(loader) || !is_controlled(first) {
            continue;
        }
        assert_eq!(first.more["% found in memory"], percent, "{first:?}");
        assert!(loader.more["% found in memory"] < percent, "{loader:?}");
        let key = "correlation with the epoch before";
        assert!(first.more[key] < loader.more[key], "{pair:?}");
    }
}

#[test]
fn stores_are_measured_alone_or_with_media_and_emptied() {
    let server = forebay_rigs::S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let place = Location::parse(format!("s3://{}/lab", forebay_rigs::BUCKET)).unwrap();
    let mut options = options(dir.path(), &["E6", "E31"]);
    options.stores = vec![place];
    options.store = options.store.with_endpoint(server.url());
    for (name, value) in server.settings() {
        options.store = options.store.with(name, value);
    }
    options.media.clear();
    options.threads = vec![2];
    let report = characterize(&options, &Quiet).unwrap();
    for (experiment, count) in report.experiments.iter().zip([2, 7]) {
        let own = experiment.figures.iter();
        let own = own.filter(|figure| figure.class == FigureClass::Measured);
        let own: Vec<&Figure> = own.collect();
        assert_eq!(own.len(), count, "{experiment:?}");
        for figure in own {
            assert!(
                figure.medium.starts_with("s3://") && figure.value > 0.0,
                "{figure:?}"
            );
            assert!(
                figure.cold_share.is_some_and(|share| share > 0.9),
                "{figure:?}"
            );
        }
    }
    let store = forebay_store::Store::open(&options.stores[0], &options.store).unwrap();
    assert!(store.list("").unwrap().is_empty());
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
    assert_eq!(options.estimate().unwrap(), Duration::from_millis(6 * 10));
    options.media.push("/b".into());
    assert_eq!(options.estimate().unwrap(), Duration::from_millis(12 * 10));
}
