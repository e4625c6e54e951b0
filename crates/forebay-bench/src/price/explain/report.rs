//! The texts and the report of `explain`.

use std::collections::BTreeMap;

use forebay_synthetic::is_synthetic;

use super::super::model::StageTimes;
use super::super::remedy::{Price, Situation};
use super::{Seen, Source};
use crate::measure::BenchReport;
use crate::report::{ExperimentReport, Figure, FigureClass, LabReport, Plot, Scale, Series};

impl Source<'_> {
    /// Lists the times per image, and compares the model with the measurement.
    pub(super) fn account(&self, situation: &Situation, seen: &Seen) -> Vec<String> {
        let median = |of: fn(&StageTimes) -> f64| {
            let values: Vec<f64> = situation.rounds.iter().map(of).collect();
            crate::measure::median(&values) * 1e3
        };
        let modeled = situation.rounds.iter();
        let modeled: Vec<f64> = modeled
            .map(|times| times.images_per_s(self.cores))
            .collect();
        let modeled = crate::measure::median(&modeled);
        let measured = crate::measure::median(&situation.rates);
        let limit = situation.rounds[situation.rounds.len() / 2].limit(self.cores);
        vec![
            format!(
                "an image takes {:.3} ms of the storage; of a core {:.3} ms to read, {:.3} ms to decode, {:.3} ms to transform; \
                 {:.3} ms of the consumer",
                median(|times| times.storage_s),
                median(|times| times.fetch_cpu_s),
                median(|times| times.decode_cpu_s),
                median(|times| times.transform_cpu_s),
                median(|times| times.consumer_s),
            ),
            format!(
                "the model gives {modeled:.0} images/s, limited by {}; measured were {:.0} ({:.0} %)",
                limit.name(),
                measured,
                100.0 * measured / modeled.max(f64::MIN_POSITIVE),
            ),
            seen.bottleneck.borrow().clone(),
        ]
    }

    pub(super) fn report(
        &self,
        stages: &BenchReport,
        bottleneck: &str,
        prices: &[Price],
    ) -> LabReport {
        let medium = self.place.to_string();
        let class = match is_synthetic(&medium) {
            true => FigureClass::StandIn,
            false => FigureClass::Measured,
        };
        let mut figures: Vec<Figure> = Vec::new();
        for row in &stages.rows {
            let mut figure =
                Figure::measured(&medium, row.name.clone(), row.unit, row.rates.clone());
            figure.class = class;
            if let Some(cache) = &row.cache {
                figure.cold_share = cache.cold_share;
                figure.proof = cache.proof.clone();
            }
            figure.more.extend(
                row.cpu_seconds_each
                    .map(|s| ("CPU ms each".to_owned(), s * 1e3)),
            );
            figures.push(figure);
        }
        let points = figures.iter().enumerate();
        let points = points
            .map(|(at, figure)| (at as f64, figure.value))
            .collect();
        let plot = Plot {
            title: format!("{medium}: images a second after each stage"),
            x: "stage".to_owned(),
            scale: Scale::Names(figures.iter().map(|figure| figure.name.clone()).collect()),
            y: "images/s".to_owned(),
            series: vec![Series {
                name: medium.clone(),
                class,
                points,
            }],
        };
        let mut notes = stages.notes.clone();
        notes.extend(prices.iter().map(Price::sentence));
        let mut report = LabReport::new(self.options.command.clone(), self.settings());
        report.experiments.push(ExperimentReport {
            id: "explain".to_owned(),
            title: stages.title.clone(),
            question: "What does each stage give, and what would a remedy gain?".to_owned(),
            class,
            reason: bottleneck.to_owned(),
            figures,
            plots: vec![plot],
            notes,
            seconds: self.options.run_time.as_secs_f64()
                * (self.options.runs as f64 + 1.0)
                * stages.rows.len() as f64,
        });
        report
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let build = match cfg!(debug_assertions) {
            true => "debug",
            false => "release",
        };
        let kernel = rustix::system::uname();
        let settings = [
            ("forebay", env!("CARGO_PKG_VERSION").to_owned()),
            ("build", build.to_owned()),
            ("kernel", kernel.release().to_string_lossy().into_owned()),
            ("cores", self.cores.cores.to_string()),
            ("decode threads", self.cores.threads.to_string()),
            ("batch size", self.options.batch_size.to_string()),
            ("run", format!("{:?}", self.options.run_time)),
            ("reads in flight", self.recorded.depth.to_string()),
        ];
        settings
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}
