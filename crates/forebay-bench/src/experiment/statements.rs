//! Statements that were published, and whether they hold here.

use crate::report::{ExperimentReport, Figure, FigureClass, Judgment, LabReport, StatementReport};

/// A statement that was published.
struct Statement {
    id: &'static str,
    text: &'static str,
    /// The experiments that test it.
    needs: &'static [&'static str],
    /// Ratios, one for each pair of runs and medium, and the limit beyond which they refute it.
    test: Option<Test>,
}

/// Values of a quantity on each medium.
type OfMedia = Vec<(String, Vec<f64>)>;

struct Test {
    ratios: fn(&LabReport) -> OfMedia,
    /// The quantity that `ratios` gives.
    quantity: &'static str,
    refuted_if: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    Below(f64),
    Above(f64),
}

macro_rules! untested {
    ($($id:literal $needs:expr, $text:literal;)*) => {
        [$(Statement { id: $id, text: $text, needs: &$needs, test: None },)*]
    };
}

static TESTED: [Statement; 9] = [
    Statement {
        id: "H1",
        text: "1 to 2 threads nearly doubles ingestion (KTH)",
        needs: &["E6"],
        test: Some(Test {
            ratios: |report| by_threads(report, "E6", 1, 2),
            quantity: "images/s of 2 threads by those of 1, single files",
            refuted_if: Limit::Below(1.8),
        }),
    },
    Statement {
        id: "H4",
        text: "the framework stays well below the device's ceiling (KTH)",
        needs: &["E4", "E6"],
        test: Some(Test {
            ratios: of_ceiling,
            quantity: "MB/s of single files, best number of threads, by those of one large file",
            refuted_if: Limit::Above(0.9),
        }),
    },
    Statement {
        id: "H5",
        text: "one batch of prefetch hides I/O entirely (KTH)",
        needs: &["E7"],
        test: Some(Test {
            ratios: |report| waits(report, Steps::Longest),
            quantity: "share of time waiting with the longest step",
            refuted_if: Limit::Above(0.05),
        }),
    },
    Statement {
        id: "H6",
        text: "one batch of prefetch hides I/O whatever storage and threads (Notes)",
        needs: &["E7"],
        test: Some(Test {
            ratios: |report| waits(report, Steps::All),
            quantity: "share of time waiting",
            refuted_if: Limit::Above(0.05),
        }),
    },
    Statement {
        id: "H7",
        text: "without prefetch reads come in bursts and the GPU idles (KTH)",
        needs: &["E9"],
        test: Some(Test {
            ratios: |report| named(report, "E9", "prefetch 0, duty cycle", 0.01),
            quantity: "duty cycle without prefetch",
            refuted_if: Limit::Above(0.9),
        }),
    },
    Statement {
        id: "H8",
        text: "larger batches shorten the epoch (KTH)",
        needs: &["E8"],
        test: Some(Test {
            ratios: larger_batches,
            quantity: "images/s of batches of 256 by those of 16",
            refuted_if: Limit::Below(1.05),
        }),
    },
    Statement {
        id: "H17",
        text: "records give lower queue length and wait than files at higher MB/s (Lambda)",
        needs: &["E17"],
        test: Some(Test {
            ratios: queue_lengths,
            quantity: "queue length of TFRecords by that of image files",
            refuted_if: Limit::Above(0.5),
        }),
    },
    Statement {
        id: "H18",
        text: "packing helps where metadata is slow (Lambda)",
        needs: &["E3"],
        test: Some(Test {
            ratios: files_by_shards,
            quantity: "MB/s of single files by those of shards",
            refuted_if: Limit::Above(0.95),
        }),
    },
    Statement {
        id: "H20",
        text: "reads of a mix of sizes from one file are an upper bound for separate files (Lambda)",
        needs: &["E3"],
        test: Some(Test {
            ratios: |report| {
                ratios(
                    report,
                    "E3",
                    "these images as single files",
                    "these sizes in one file",
                    |figure| figure.runs.clone(),
                )
            },
            quantity: "reads/s of single files by those of one file",
            refuted_if: Limit::Above(1.0),
        }),
    },
];

static UNTESTED: [Statement; 26] = untested! {
    "H2" ["E6"], "an HDD gains little beyond 4 threads (KTH)";
    "H3" ["E6"], "a parallel file system scales almost linearly to 8 threads (KTH)";
    "H9" ["E10"], "checkpoints cost about 15 % of runtime unoptimised (Notes)";
    "H10" ["E10"], "a burst buffer is 2.6x better than the slow disk (KTH)";
    "H11" ["E11"], "background flushing outlasts the program (KTH)";
    "H12" ["E13", "E14"], "real input reaches a third of synthetic untuned, 79 % tuned (Lambda)";
    "H13" ["E13"], "input threads, not storage, limit the node at first (Lambda)";
    "H14" ["E14"], "CPU use grows linearly up to about 30 cores for 8 GPUs (Lambda)";
    "H15" ["E15"], "JPEG decoding takes about half the input CPU (Lambda)";
    "H16" ["E15"], "contention appears at high thread counts (Lambda)";
    "H19" ["E18"], "raw trees on shared storage are impractical (Lambda)";
    "H21" ["E32", "E13"], "8 V100 need 1 to 1.3 GB/s (Lambda)";
    "H22" ["E19"], "long runs become warm and faster (Lambda)";
    "H23" ["E24"], "a chunk the size of a batch gives over 200x (Teonite)";
    "H24" ["E20"], "a custom single-threaded loader equals one DataLoader worker (Teonite)";
    "H25" ["E20"], "a good chunked store on one worker beats 4 workers on files (Teonite)";
    "H26" ["E20", "E21"], "stores differ by tens of times alone and by ms while training (Teonite)";
    "H27" ["E23"], "HDF5 with several workers gives wrong labels; Zarr does not (Teonite)";
    "H28" ["E22"], "a print per batch makes loading look 65x slower (Teonite)";
    "H29" ["E26", "E27"], "shared storage beats local NVMe, near DRAM (Weka)";
    "H30" ["E28"], "NFS stops near 1 to 1.5 GB/s per connection (Weka)";
    "H31" ["E28"], "copying to local disk first is obsolete (Weka)";
    "H32" ["E12"], "a forgotten flag costs 25 % (Lambda)";
    "H33" ["E14"], "network storage becomes the limit only once input threads suffice (Lambda)";
    "H34" ["E5", "E6", "E7", "E13"], "prefetching helps more than any other setting (Notes)";
    "H35" ["E9", "E10", "E11"], "reads, not writes, are the bottleneck (Notes)";
};

/// Judges all statements by the figures of a report.
pub(super) fn judge(report: &LabReport) -> Vec<StatementReport> {
    let mut all: Vec<StatementReport> = TESTED
        .iter()
        .chain(&UNTESTED)
        .map(|statement| statement.judge(report))
        .collect();
    all.sort_by_key(|statement| statement.id[1..].parse::<u32>().unwrap_or(u32::MAX));
    all
}

impl Statement {
    fn judge(&self, report: &LabReport) -> StatementReport {
        let (finding, why) = self.finding(report);
        StatementReport {
            id: self.id.to_owned(),
            statement: self.text.to_owned(),
            finding,
            why,
        }
    }

    fn finding(&self, report: &LabReport) -> (Judgment, String) {
        let needs = self.needs.join(", ");
        let Some(test) = &self.test else {
            return (
                Judgment::NotTested,
                format!("it needs a test of {needs} that this report has not"),
            );
        };
        let media = (test.ratios)(report);
        if media.is_empty() {
            return (Judgment::NotTested, format!("it needs figures of {needs}"));
        }
        let all = || media.iter().flat_map(|(_, values)| values.iter().copied());
        let refutes = |value: f64| match test.refuted_if {
            Limit::Below(limit) => value < limit,
            Limit::Above(limit) => value > limit,
        };
        let finding = match (all().any(refutes), all().all(refutes)) {
            (false, _) => Judgment::Confirmed,
            (true, true) => Judgment::Refuted,
            (true, false) => Judgment::Undecided,
        };
        let ranges = media.iter().map(|(medium, values)| {
            let least = values.iter().copied().fold(f64::MAX, f64::min);
            let most = values.iter().copied().fold(f64::MIN, f64::max);
            format!("{medium} {least:.2} to {most:.2}")
        });
        let ranges: Vec<String> = ranges.collect();
        let limit = match test.refuted_if {
            Limit::Below(limit) => format!("below {limit}"),
            Limit::Above(limit) => format!("above {limit}"),
        };
        let is_stand_in = self.needs.iter().any(|id| {
            experiment(report, id).is_some_and(|experiment| {
                experiment
                    .figures
                    .iter()
                    .any(|figure| figure.class == FigureClass::StandIn)
            })
        });
        let stand_in = if is_stand_in {
            "; for the stand-in only"
        } else {
            ""
        };
        (
            finding,
            format!(
                "{}: {}; refuted {limit}{stand_in}",
                test.quantity,
                ranges.join(", ")
            ),
        )
    }
}

fn experiment<'r>(report: &'r LabReport, id: &str) -> Option<&'r ExperimentReport> {
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

/// A quantity of each medium, by a factor.
fn named(report: &LabReport, id: &str, name: &str, factor: f64) -> OfMedia {
    let figures = own(report, id)
        .into_iter()
        .filter(|figure| figure.name == name);
    figures
        .map(|figure| {
            (
                figure.medium.clone(),
                figure.runs.iter().map(|run| run * factor).collect(),
            )
        })
        .collect()
}

/// The runs of one figure divided by those of another one of the same round and medium.
fn ratios(
    report: &LabReport,
    id: &str,
    name: &str,
    by: &str,
    runs: fn(&Figure) -> Vec<f64>,
) -> OfMedia {
    let figures = own(report, id);
    let of = |name: &str, medium: &str| {
        let found = figures
            .iter()
            .find(|figure| figure.name == name && figure.medium == medium);
        found.map(|figure| runs(figure))
    };
    let media = figures
        .iter()
        .filter(|figure| figure.name == name)
        .map(|figure| &figure.medium);
    media
        .filter_map(|medium| {
            let (above, below) = (of(name, medium)?, of(by, medium)?);
            Some((
                medium.clone(),
                above
                    .iter()
                    .zip(below)
                    .map(|(above, below)| above / below)
                    .collect(),
            ))
        })
        .collect()
}

fn by_threads(report: &LabReport, id: &str, few: usize, many: usize) -> OfMedia {
    let name = |threads: usize| {
        let noun = if threads == 1 { "thread" } else { "threads" };
        format!("single files, {threads} {noun}")
    };
    ratios(report, id, &name(many), &name(few), |figure| {
        figure.runs.clone()
    })
}

fn of_ceiling(report: &LabReport) -> OfMedia {
    let read = named(report, "E4", super::e04_ceiling::READ, 1.0);
    let files = own(report, "E6");
    let best = |medium: &str| {
        let of_medium = files
            .iter()
            .filter(|figure| figure.medium == medium && figure.name.starts_with("single files"));
        of_medium
            .filter_map(|figure| figure.more.get("MB/s").copied())
            .reduce(f64::max)
    };
    read.into_iter()
        .filter_map(|(medium, runs)| {
            let rate = best(&medium)?;
            Some((medium, runs.into_iter().map(|run| rate / run).collect()))
        })
        .collect()
}

enum Steps {
    Longest,
    All,
}

/// Shares of time that a consumer waited with one batch of prefetch.
fn waits(report: &LabReport, steps: Steps) -> OfMedia {
    let figures = own(report, "E7");
    let step = |figure: &Figure| -> Option<f64> {
        figure
            .name
            .strip_prefix("prefetch 1, step ")?
            .strip_suffix(" ms")?
            .parse()
            .ok()
    };
    let mut found: Vec<(String, f64, Vec<f64>)> = Vec::new();
    for figure in figures {
        // Without a step there is nothing that could hide the reads.
        let Some(length) = step(figure).filter(|length| *length > 0.0) else {
            continue;
        };
        let shares: Vec<f64> = figure.runs.iter().map(|run| run / 100.0).collect();
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

fn larger_batches(report: &LabReport) -> OfMedia {
    let rate = |figure: &Figure| figure.more.get("images/s").copied().into_iter().collect();
    ratios(
        report,
        "E8",
        "batches of 256, prefetch 0",
        "batches of 16, prefetch 0",
        rate,
    )
}

fn queue_lengths(report: &LabReport) -> OfMedia {
    let length = |figure: &Figure| {
        figure
            .more
            .get("queue length")
            .copied()
            .into_iter()
            .collect()
    };
    ratios(report, "E17", "TFRecords", "image files", length)
}

fn files_by_shards(report: &LabReport) -> OfMedia {
    let rate = |figure: &Figure| match figure.unit.as_str() {
        "MB/s" => vec![figure.value],
        _ => figure.more.get("MB/s").copied().into_iter().collect(),
    };
    ratios(
        report,
        "E3",
        "these images as single files",
        "shards, 1 MiB a read",
        rate,
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn report(id: &str, figures: Vec<Figure>) -> LabReport {
        let mut report = LabReport::new(String::new(), BTreeMap::new());
        report.experiments.push(ExperimentReport {
            id: id.to_owned(),
            title: String::new(),
            question: String::new(),
            class: FigureClass::Measured,
            reason: String::new(),
            figures,
            plots: Vec::new(),
            notes: Vec::new(),
            seconds: 0.0,
        });
        report
    }

    fn finding(report: &LabReport, id: &str) -> Judgment {
        judge(report)
            .into_iter()
            .find(|statement| statement.id == id)
            .unwrap()
            .finding
    }

    #[test]
    fn every_statement_is_there_once() {
        let ids: Vec<String> = judge(&report("E0", Vec::new()))
            .into_iter()
            .map(|statement| statement.id)
            .collect();
        let all: Vec<String> = (1..=35).map(|number| format!("H{number}")).collect();
        assert_eq!(ids, all);
    }

    #[test]
    fn the_whole_range_of_the_runs_decides() {
        let threads = |two: &[f64]| {
            report(
                "E6",
                vec![
                    Figure::measured(
                        "m",
                        "single files, 1 thread",
                        "images/s",
                        vec![10.0, 10.0, 10.0],
                    ),
                    Figure::measured("m", "single files, 2 threads", "images/s", two.to_vec()),
                ],
            )
        };
        assert_eq!(
            finding(&threads(&[19.0, 20.0, 18.5]), "H1"),
            Judgment::Confirmed
        );
        assert_eq!(
            finding(&threads(&[12.0, 13.0, 17.0]), "H1"),
            Judgment::Refuted
        );
        assert_eq!(
            finding(&threads(&[12.0, 13.0, 19.0]), "H1"),
            Judgment::Undecided
        );
        assert_eq!(
            finding(&report("E6", Vec::new()), "H1"),
            Judgment::NotTested
        );
    }

    #[test]
    fn a_step_time_at_which_prefetch_fails_is_found() {
        let waits = |name: &str, percent: f64| {
            let mut figure = Figure::measured("m", name, "% of time waiting", vec![percent; 3]);
            figure.class = FigureClass::StandIn;
            figure
        };
        let report = report(
            "E7",
            vec![
                waits("prefetch 1, step 0 ms", 100.0),
                waits("prefetch 1, step 5 ms", 60.0),
                waits("prefetch 1, step 500 ms", 1.0),
                waits("prefetch 0, step 500 ms", 50.0),
            ],
        );
        assert_eq!(finding(&report, "H5"), Judgment::Confirmed);
        assert_eq!(finding(&report, "H6"), Judgment::Undecided);
        let judged = judge(&report);
        let why = &judged
            .iter()
            .find(|statement| statement.id == "H5")
            .unwrap()
            .why;
        assert!(why.contains("for the stand-in only"), "{why}");
    }
}
