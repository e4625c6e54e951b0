//! Statements that were published, and whether they hold here.

mod quantities;
mod table;

use crate::report::{FigureClass, Judgment, LabReport, StatementReport};
use quantities::{OfMedia, experiment};

/// A statement that was published.
struct Statement {
    id: &'static str,
    text: &'static str,
    /// The experiments that test it.
    needs: &'static [&'static str],
    /// The test, or the reason why there is none.
    test: Result<Test, &'static str>,
}

struct Test {
    /// Values of a quantity, one for each pair of runs and medium.
    values: fn(&LabReport) -> OfMedia,
    /// The quantity that `values` gives.
    quantity: &'static str,
    refuted_if: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    Below(f64),
    Above(f64),
    Outside(f64, f64),
}

impl Limit {
    fn refutes(self, value: f64) -> bool {
        match self {
            Limit::Below(limit) => value < limit,
            Limit::Above(limit) => value > limit,
            Limit::Outside(least, most) => value < least || value > most,
        }
    }

    fn words(self) -> String {
        match self {
            Limit::Below(limit) => format!("below {limit}"),
            Limit::Above(limit) => format!("above {limit}"),
            Limit::Outside(least, most) => format!("outside {least} to {most}"),
        }
    }
}

/// Judges all statements by the figures of a report.
pub(super) fn judge(report: &LabReport) -> Vec<StatementReport> {
    let judged = table::STATEMENTS.iter().map(|statement| {
        let (finding, why) = statement.finding(report);
        StatementReport {
            id: statement.id.to_owned(),
            statement: statement.text.to_owned(),
            finding,
            why,
        }
    });
    judged.collect()
}

impl Statement {
    fn finding(&self, report: &LabReport) -> (Judgment, String) {
        let test = match &self.test {
            Ok(test) => test,
            Err(why) => return (Judgment::NotTested, (*why).to_owned()),
        };
        let mut media = (test.values)(report);
        media
            .retain(|(_, values)| !values.is_empty() && values.iter().all(|value| !value.is_nan()));
        if media.is_empty() {
            let needs = self.needs.join(", ");
            return (
                Judgment::NotTested,
                format!("it needs figures of {needs}: {}", test.quantity),
            );
        }
        let all = || media.iter().flat_map(|(_, values)| values.iter().copied());
        let refutes = |value| test.refuted_if.refutes(value);
        let finding = match (all().any(refutes), all().all(refutes)) {
            (false, _) => Judgment::Confirmed,
            (true, true) => Judgment::Refuted,
            (true, false) => Judgment::Undecided,
        };
        let ranges = media.iter().map(|(medium, values)| {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            format!("{medium} {least:.2} to {most:.2}")
        });
        let ranges: Vec<String> = ranges.collect();
        let is_stand_in = self.needs.iter().any(|id| {
            experiment(report, id).is_some_and(|experiment| {
                let mut figures = experiment.figures.iter();
                figures.any(|figure| figure.class == FigureClass::StandIn)
            })
        });
        let stand_in = if is_stand_in {
            "; for the stand-in only"
        } else {
            ""
        };
        let why = format!(
            "{}: {}; refuted {}{stand_in}",
            test.quantity,
            ranges.join(", "),
            test.refuted_if.words()
        );
        (finding, why)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::report::{ExperimentReport, Figure};

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

    fn figure(
        medium: &str,
        name: &str,
        unit: &str,
        runs: &[f64],
        more: &[(&str, &[f64])],
    ) -> Figure {
        let mut figure = Figure::measured(medium, name, unit, runs.to_vec());
        figure.more_runs = more
            .iter()
            .map(|(name, runs)| ((*name).to_owned(), runs.to_vec()))
            .collect();
        figure
    }

    #[test]
    fn further_values_have_ranges_too() {
        let queues = |records: &[f64]| {
            let files = figure(
                "m",
                "image files",
                "MB/s",
                &[1.0, 1.0],
                &[("queue length", &[10.0, 10.0])],
            );
            let records = figure(
                "m",
                "TFRecords",
                "MB/s",
                &[1.0, 1.0],
                &[("queue length", records)],
            );
            finding(&report("E17", vec![files, records]), "H17")
        };
        assert_eq!(queues(&[1.0, 4.0]), Judgment::Confirmed);
        assert_eq!(queues(&[4.0, 6.0]), Judgment::Undecided);
        assert_eq!(queues(&[6.0, 7.0]), Judgment::Refuted);
    }

    #[test]
    fn saves_are_compared_with_the_runtime_the_fast_medium_and_the_waits() {
        let saves = |direct: &[f64], staged: &[f64]| {
            let more = [
                ("s a save", direct),
                ("% of runtime saving", &[15.0, 19.0][..]),
                ("s saving", &[1.0, 1.0]),
                ("s waiting for batches", &[2.0, 0.5]),
            ];
            let staged = [("s a save", staged)];
            report(
                "E10",
                vec![
                    figure("/fast", "direct", "s of runtime", &[1.0, 1.0], &more),
                    figure(
                        "/fast",
                        "staged, drained to /slow",
                        "s of runtime",
                        &[1.0, 1.0],
                        &staged,
                    ),
                    figure(
                        "/fast",
                        "staged, drained to /fast",
                        "s of runtime",
                        &[1.0, 1.0],
                        &[("s a save", &[99.0, 99.0])],
                    ),
                ],
            )
        };
        let near = saves(&[1.0, 2.0], &[1.05, 2.1]);
        assert_eq!(finding(&near, "H10"), Judgment::Confirmed);
        assert_eq!(finding(&near, "H9"), Judgment::Confirmed);
        assert_eq!(finding(&near, "H35"), Judgment::Undecided);
        assert_eq!(
            finding(&saves(&[1.0, 2.0], &[1.2, 2.4]), "H10"),
            Judgment::Refuted
        );
    }

    #[test]
    fn a_copy_that_gains_nothing_never_pays() {
        let epochs = |local: &[f64]| {
            report(
                "E28",
                vec![
                    figure("/shared", "an epoch, cold", "s", &[10.0, 10.0], &[]),
                    figure("/local", "an epoch, cold", "s", local, &[]),
                    figure("/shared", "copy to /local", "s", &[30.0, 30.0], &[]),
                ],
            )
        };
        assert_eq!(finding(&epochs(&[5.0, 4.0]), "H31"), Judgment::Refuted);
        assert_eq!(finding(&epochs(&[10.0, 12.0]), "H31"), Judgment::Confirmed);
        assert_eq!(finding(&epochs(&[9.9, 12.0]), "H31"), Judgment::Confirmed);
        assert_eq!(finding(&epochs(&[5.0, 12.0]), "H31"), Judgment::Undecided);
    }

    #[test]
    fn kinds_of_media_decide_what_is_tested() {
        let mut report = report(
            "E6",
            vec![
                figure("/m", "single files, 1 thread", "images/s", &[1.0, 1.0], &[]),
                figure(
                    "/m",
                    "single files, 4 threads",
                    "images/s",
                    &[4.0, 4.0],
                    &[],
                ),
                figure(
                    "/m",
                    "single files, 8 threads",
                    "images/s",
                    &[4.4, 4.4],
                    &[],
                ),
            ],
        );
        assert_eq!(
            (finding(&report, "H2"), finding(&report, "H3")),
            (Judgment::NotTested, Judgment::NotTested)
        );
        report
            .settings
            .insert("/m: rotational".to_owned(), "1".to_owned());
        report.settings.insert(
            "/m: file system".to_owned(),
            "lustre on host@tcp:/fs".to_owned(),
        );
        assert_eq!(
            (finding(&report, "H2"), finding(&report, "H3")),
            (Judgment::Confirmed, Judgment::Refuted)
        );
    }

    #[test]
    fn prefetching_is_compared_with_the_best_other_setting() {
        let mut all = report("E7", Vec::new());
        let of = |id: &str, figures: Vec<Figure>| report(id, figures).experiments.remove(0);
        let rate = |name: &str, rate: f64| {
            figure("m", name, "%", &[0.0, 0.0], &[("images/s", &[rate, rate])])
        };
        let single = |threads: &str, rate: f64| {
            figure(
                "m",
                &format!("single files, {threads}"),
                "images/s",
                &[rate, rate],
                &[],
            )
        };
        all.experiments = vec![
            of(
                "E5",
                vec![single("1 thread", 10.0), single("4 threads", 25.0)],
            ),
            of(
                "E6",
                vec![
                    single("4 threads", 20.0),
                    figure("m", "indexed shards", "images/s", &[30.0, 30.0], &[]),
                ],
            ),
            of(
                "E7",
                vec![
                    rate("prefetch 0, step 20 ms", 10.0),
                    rate("prefetch 1, step 20 ms", 20.0),
                ],
            ),
        ];
        assert_eq!(finding(&all, "H34"), Judgment::Refuted);
        let why = judge(&all)
            .into_iter()
            .find(|statement| statement.id == "H34")
            .unwrap()
            .why;
        assert!(why.contains("m 1.25 to 1.25"), "{why}");
    }
}
