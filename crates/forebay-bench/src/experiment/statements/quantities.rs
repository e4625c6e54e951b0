//! Quantities of a report that statements are tested with: of each medium one value for each round.

use super::super::{
    contestants, cores, e10_checkpoints, e18_conversion, e24_chunks, e28_copy_first, e32_demand,
};
use crate::report::{ExperimentReport, Figure, FigureClass, LabReport};

/// Values of a quantity on each medium.
pub(super) type OfMedia = Vec<(String, Vec<f64>)>;

pub(super) fn experiment<'r>(report: &'r LabReport, id: &str) -> Option<&'r ExperimentReport> {
    report
        .experiments
        .iter()
        .find(|experiment| experiment.id == id)
}

/// The figures of an experiment that were measured here.
fn own<'r>(report: &'r LabReport, id: &str) -> Vec<&'r Figure> {
    let figures = experiment(report, id).map(|experiment| &experiment.figures);
    let own = |figure: &&Figure| figure.class != FigureClass::Published;
    figures.into_iter().flatten().filter(own).collect()
}

/// A further value of each run; the median alone for reports that have no more.
pub(super) fn further(figure: &Figure, name: &str) -> Vec<f64> {
    match figure.more_runs.get(name) {
        Some(runs) => runs.clone(),
        None => figure.more.get(name).copied().into_iter().collect(),
    }
}

pub(super) fn scaled(values: Vec<f64>, factor: f64) -> Vec<f64> {
    values.into_iter().map(|value| value * factor).collect()
}

/// Values by those of the same round.
fn by_round(above: &[f64], below: &[f64]) -> Vec<f64> {
    above
        .iter()
        .zip(below)
        .map(|(above, below)| above / below)
        .collect()
}

/// MB/s of each run, whatever the unit of the figure.
pub(super) fn mb_per_s(figure: &Figure) -> Vec<f64> {
    match figure.unit.as_str() {
        "MB/s" => figure.runs.clone(),
        _ => further(figure, "MB/s"),
    }
}

/// The values that `of` gives for the figures of an experiment.
pub(super) fn of_figures(
    report: &LabReport,
    id: &str,
    of: impl Fn(&Figure) -> Option<Vec<f64>>,
) -> OfMedia {
    let figures = own(report, id).into_iter();
    figures
        .filter_map(|figure| Some((figure.medium.clone(), of(figure)?)))
        .collect()
}

/// A quantity of each medium, by a factor.
pub(super) fn named(report: &LabReport, id: &str, name: &str, factor: f64) -> OfMedia {
    of_figures(report, id, |figure| {
        (figure.name == name).then(|| scaled(figure.runs.clone(), factor))
    })
}

/// One figure by another one of the same round and medium.
pub(super) fn ratios(
    report: &LabReport,
    id: &str,
    name: &str,
    by: &str,
    runs: fn(&Figure) -> Vec<f64>,
) -> OfMedia {
    let figures = own(report, id);
    of_figures(report, id, |figure| {
        let below = figures
            .iter()
            .find(|other| other.name == by && other.medium == figure.medium);
        let below = below.filter(|_| figure.name == name)?;
        Some(by_round(&runs(figure), &runs(below)))
    })
}

/// The last figure of each medium.
pub(super) fn last_of_media(all: OfMedia) -> OfMedia {
    let mut last: OfMedia = Vec::new();
    for (medium, values) in all {
        match last.iter_mut().find(|known| known.0 == medium) {
            Some(known) => known.1 = values,
            None => last.push((medium, values)),
        }
    }
    last
}

/// Media of a kind.
pub(super) fn on(
    report: &LabReport,
    mut all: OfMedia,
    is_kind: fn(&LabReport, &str) -> bool,
) -> OfMedia {
    all.retain(|(medium, _)| is_kind(report, medium));
    all
}

pub(super) fn is_rotational(report: &LabReport, medium: &str) -> bool {
    let setting = report.settings.get(&format!("{medium}: rotational"));
    setting.is_some_and(|value| value == "1")
}

fn file_system<'r>(report: &'r LabReport, medium: &str) -> &'r str {
    let setting = report.settings.get(&format!("{medium}: file system"));
    setting
        .and_then(|value| value.split(' ').next())
        .unwrap_or("")
}

/// Whether several hosts share the storage.
pub(super) fn is_shared(report: &LabReport, medium: &str) -> bool {
    use crate::cold::FsClass::{Network, Nfs};

    matches!(
        crate::cold::Mount::class_of(file_system(report, medium)),
        Some(Nfs | Network)
    )
}

pub(super) fn is_nfs(report: &LabReport, medium: &str) -> bool {
    crate::cold::Mount::class_of(file_system(report, medium)) == Some(crate::cold::FsClass::Nfs)
}

fn threads_name(threads: usize) -> String {
    let noun = if threads == 1 { "thread" } else { "threads" };
    format!("single files, {threads} {noun}")
}

pub(super) fn by_threads(report: &LabReport, id: &str, few: usize, many: usize) -> OfMedia {
    ratios(
        report,
        id,
        &threads_name(many),
        &threads_name(few),
        |figure| figure.runs.clone(),
    )
}

/// The figure with the highest median among those whose names begin so.
fn best<'r>(report: &'r LabReport, id: &str, medium: &str, begins: &str) -> Option<&'r Figure> {
    let figures = own(report, id).into_iter();
    let of_medium =
        figures.filter(|figure| figure.medium == medium && figure.name.starts_with(begins));
    of_medium.max_by(|a, b| a.value.total_cmp(&b.value))
}

pub(super) fn of_ceiling(report: &LabReport, read: &str) -> OfMedia {
    of_figures(report, "E4", |figure| {
        let files =
            best(report, "E6", &figure.medium, "single files").filter(|_| figure.name == read)?;
        Some(by_round(&further(files, "MB/s"), &figure.runs))
    })
}

pub(super) enum Steps {
    Longest,
    All,
}

/// Milliseconds of the step of a figure of E7.
fn step_of(figure: &Figure, prefetch: u64) -> Option<f64> {
    let rest = figure
        .name
        .strip_prefix(&format!("prefetch {prefetch}, step "))?;
    rest.strip_suffix(" ms")?.parse().ok()
}

/// Shares of time that a consumer waited with one batch of prefetch.
pub(super) fn waits(report: &LabReport, steps: Steps) -> OfMedia {
    let mut found: Vec<(String, f64, Vec<f64>)> = Vec::new();
    for figure in own(report, "E7") {
        // Without a step there is nothing that could hide the reads.
        let Some(length) = step_of(figure, 1).filter(|length| *length > 0.0) else {
            continue;
        };
        let shares = scaled(figure.runs.clone(), 0.01);
        match found.iter_mut().find(|known| known.0 == figure.medium) {
            None => found.push((figure.medium.clone(), length, shares)),
            Some(known) => match steps {
                Steps::All => known.2.extend(shares),
                Steps::Longest if length > known.1 => (known.1, known.2) = (length, shares),
                Steps::Longest => {}
            },
        }
    }
    found
        .into_iter()
        .map(|(medium, _, shares)| (medium, shares))
        .collect()
}

/// Seconds of a staged save by those of a direct one on the same fast medium.
pub(super) fn staged_by_direct(report: &LabReport) -> OfMedia {
    let figures = own(report, "E10");
    of_figures(report, "E10", |figure| {
        let slow = figure.name.strip_prefix(e10_checkpoints::STAGED)?;
        let of_fast = |other: &&&Figure| {
            other.name == e10_checkpoints::DIRECT && other.medium == figure.medium
        };
        let direct = figures
            .iter()
            .find(of_fast)
            .filter(|_| slow != figure.medium)?;
        Some(by_round(
            &further(figure, "s a save"),
            &further(direct, "s a save"),
        ))
    })
}

pub(super) fn saving_by_waiting(figure: &Figure) -> Vec<f64> {
    by_round(
        &further(figure, "s saving"),
        &further(figure, "s waiting for batches"),
    )
}

/// The best number of threads of E14 by the consumers of E13 that read nothing.
pub(super) fn tuned_by_synthetic(report: &LabReport) -> OfMedia {
    let synthetic = own(report, "E13")
        .into_iter()
        .find(|figure| figure.name.ends_with("no input"));
    let Some(synthetic) = synthetic else {
        return Vec::new();
    };
    let media = own(report, "E14")
        .into_iter()
        .map(|figure| (figure.medium.clone(), Vec::new()));
    let media = last_of_media(media.collect()).into_iter();
    media
        .filter_map(|(medium, _)| {
            let tuned = best(report, "E14", &medium, "")?;
            Some((medium, by_round(&tuned.runs, &synthetic.runs)))
        })
        .collect()
}

fn threads_of(figure: &Figure) -> Option<usize> {
    figure.name.split(' ').next()?.parse().ok()
}

pub(super) fn cores_by_threads(report: &LabReport) -> OfMedia {
    let here = report
        .settings
        .get("cores")
        .and_then(|cores| cores.parse().ok())
        .unwrap_or(cores());
    let mut media: OfMedia = Vec::new();
    for figure in own(report, "E14") {
        let Some(threads) = threads_of(figure).filter(|threads| *threads <= here) else {
            continue;
        };
        let values = scaled(further(figure, "cores used"), 1.0 / threads as f64);
        match media.iter_mut().find(|known| known.0 == figure.medium) {
            Some(known) => known.1.extend(values),
            None => media.push((figure.medium.clone(), values)),
        }
    }
    media
}

/// Values of the first local medium, and of each shared one.
fn local_and_shared<'r>(
    report: &LabReport,
    figures: Vec<&'r Figure>,
) -> Option<(&'r Figure, Vec<&'r Figure>)> {
    let (shared, local): (Vec<&Figure>, Vec<&Figure>) = figures
        .into_iter()
        .partition(|figure| is_shared(report, &figure.medium));
    Some((local.first().copied()?, shared))
}

pub(super) fn local_by_shared(report: &LabReport) -> OfMedia {
    let figures = own(report, "E18")
        .into_iter()
        .filter(|figure| figure.name == e18_conversion::EXTRACT);
    let Some((local, shared)) = local_and_shared(report, figures.collect()) else {
        return Vec::new();
    };
    shared
        .into_iter()
        .map(|figure| (figure.medium.clone(), by_round(&local.runs, &figure.runs)))
        .collect()
}

pub(super) fn shared_by_local_at_first(report: &LabReport) -> OfMedia {
    let figures = own(report, "E14");
    let least = figures.iter().filter_map(|figure| threads_of(figure)).min();
    let at_first = figures
        .into_iter()
        .filter(|figure| threads_of(figure) == least);
    let Some((local, shared)) = local_and_shared(report, at_first.collect()) else {
        return Vec::new();
    };
    shared
        .into_iter()
        .map(|figure| (figure.medium.clone(), by_round(&figure.runs, &local.runs)))
        .collect()
}

/// Whole chunks by single samples: of Zarr where it was measured, else of shards.
pub(super) fn chunks_by_samples(report: &LabReport) -> OfMedia {
    let ratio = |chunks: &str, samples: &str| {
        ratios(report, "E24", chunks, samples, |figure| figure.runs.clone())
    };
    let batch = report.settings.get("batch size");
    let batch = batch.and_then(|batch| batch.parse().ok()).unwrap_or(64);
    let zarr = |order| e24_chunks::zarr(batch, order, "warm");
    let of_zarr = ratio(&zarr(e24_chunks::BY_CHUNK), &zarr(e24_chunks::FULL));
    if !of_zarr.is_empty() {
        return of_zarr;
    }
    let of_shards = |order: &str| e24_chunks::name(order, "cold");
    ratio(
        &of_shards(&e24_chunks::of_chunk(64)),
        &of_shards(e24_chunks::FULL),
    )
}

/// Samples that HDF5 gave wrong with several workers, beside those of Zarr.
pub(super) fn wrong_with_workers(report: &LabReport) -> OfMedia {
    of_figures(report, "E23", |figure| {
        let several = figure.name.starts_with("HDF5") && !figure.name.ends_with(", 1 worker");
        several.then(|| figure.runs.clone())
    })
}

/// The least ms a batch of a format with one worker is that of the best.
pub(super) fn files_by_best_format(report: &LabReport) -> OfMedia {
    let figures = own(report, "E20");
    let files = contestants::name(contestants::FILES, 4, "cold");
    of_figures(report, "E20", |figure| {
        let of_medium = figures
            .iter()
            .filter(|other| other.medium == figure.medium && figure.name == files);
        let one = of_medium.filter(|other| {
            other.name.ends_with(", 1 worker, cold") && !other.name.starts_with(contestants::FILES)
        });
        let best = one.min_by(|a, b| a.value.total_cmp(&b.value))?;
        Some(by_round(&figure.runs, &best.runs))
    })
}

pub(super) fn demand_of_eight(report: &LabReport) -> OfMedia {
    let name = format!("{} 8 consumers, v100-resnet50-fp16", e32_demand::NEEDED);
    named(report, "E32", &name, 1.0)
}

/// Seconds of the copy by those that each epoch gains; infinite if none is gained.
pub(super) fn epochs_until_copy_pays(report: &LabReport) -> OfMedia {
    let figures = own(report, "E28");
    let epoch = |medium: &str| {
        figures
            .iter()
            .find(|figure| figure.name == e28_copy_first::EPOCH && figure.medium == medium)
    };
    let copies = figures.iter().filter_map(|copy| {
        let to = copy.name.strip_prefix(e28_copy_first::COPY)?;
        let (shared, local) = (epoch(&copy.medium)?, epoch(to)?);
        let gains = shared
            .runs
            .iter()
            .zip(&local.runs)
            .map(|(shared, local)| shared - local);
        let pays = copy
            .runs
            .iter()
            .zip(gains)
            .map(|(copy, gain)| match gain > 0.0 {
                true => copy / gain,
                false => f64::INFINITY,
            });
        Some((to.to_owned(), pays.collect()))
    });
    copies.collect()
}

/// The largest gain of threads (E5) and of packing (E6) by the largest gain of prefetching (E7), round by round.
pub(super) fn other_gains_by_prefetch(report: &LabReport) -> OfMedia {
    let one = threads_name(1);
    let single = own(report, "E5")
        .into_iter()
        .filter(|figure| figure.name == one);
    let of_medium = single.filter_map(|single| {
        let medium = &single.medium;
        let threads = by_round(
            &best(report, "E5", medium, "single files")?.runs,
            &single.runs,
        );
        let files = best(report, "E6", medium, "single files")?;
        let packing = by_round(&best(report, "E6", medium, "")?.runs, &files.runs);
        let prefetch = prefetch_gains(report, medium)?;
        let others = threads
            .iter()
            .zip(packing)
            .map(|(threads, packing)| threads.max(packing));
        let values = others
            .zip(prefetch)
            .map(|(others, prefetch)| others / prefetch);
        Some((medium.clone(), values.collect()))
    });
    of_medium.collect()
}

/// The largest gain in images/s by one batch of prefetch over all steps, one for each round.
fn prefetch_gains(report: &LabReport, medium: &str) -> Option<Vec<f64>> {
    let figures = own(report, "E7");
    let with = |prefetch, step: f64| {
        let mut of_medium = figures.iter().filter(|figure| figure.medium == medium);
        of_medium.find(|figure| step_of(figure, prefetch) == Some(step))
    };
    let steps = figures
        .iter()
        .filter_map(|figure| step_of(figure, 1))
        .filter(|step| *step > 0.0);
    let gains = steps.filter_map(|step| {
        let (before, after) = (with(0, step)?, with(1, step)?);
        Some(by_round(
            &further(after, "images/s"),
            &further(before, "images/s"),
        ))
    });
    gains.reduce(|a, b| a.iter().zip(b).map(|(a, b)| a.max(b)).collect())
}
