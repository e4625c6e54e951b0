//! E1: how large the files of a dataset are.

use crate::experiment::lab::Lab;
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::published::Published;
use crate::report::{FigureClass, Figure, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E1",
    title: "Sizes of the files of a dataset",
    question: "Which sizes will reads have?",
    is_default: true,
    trials: |_| 0,
    run,
    ..Experiment::OTHER
};

/// Bins of powers of two: the first one begins at 512 bytes, the last one at 4 MiB.
const FIRST_BIN: u32 = 9;
const BINS: usize = 14;

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    let Some(medium) = lab.media.first() else {
        return Ok(found);
    };
    let sizes: Vec<u64> = medium.images()?.iter().map(|file| file.bytes).collect();
    let all: u64 = sizes.iter().sum();
    let published: Vec<(String, f64)> = Published::all()
        .of("E1")
        .map(|known| (known.name.clone(), known.value))
        .collect();
    let (mut files, mut bytes) = ([0u64; BINS], [0u64; BINS]);
    for &size in &sizes {
        let bin = (size.max(1).ilog2().saturating_sub(FIRST_BIN) as usize).min(BINS - 1);
        files[bin] += 1;
        bytes[bin] += size;
    }
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    for (bin, (name, _)) in published.iter().enumerate() {
        let value = percent(files[bin], sizes.len() as u64);
        let mut figure = Figure::measured("these images", name.clone(), "% of files", vec![value]);
        figure.more.insert("% of bytes".to_owned(), percent(bytes[bin], all));
        found.figures.push(figure);
    }
    let bars = |name: &str, class, values: Vec<f64>| Series {
        name: name.to_owned(),
        class,
        points: values.into_iter().enumerate().map(|(bin, value)| (bin as f64, value)).collect(),
    };
    let own = files.iter().map(|&files| percent(files, sizes.len() as u64));
    found.plots.push(Plot {
        title: "Sizes of files".to_owned(),
        x: "size of a file, at least".to_owned(),
        scale: Scale::Names(published.iter().map(|known| known.0.clone()).collect()),
        y: "% of files".to_owned(),
        series: vec![
            bars("these images", FigureClass::Measured, own.collect()),
            bars("ImageNet", FigureClass::Published, published.iter().map(|known| known.1).collect()),
        ],
    });
    let mut sorted = sizes.clone();
    sorted.sort_unstable();
    found.notes.push(format!(
        "{} files, {} bytes on average, median {} bytes",
        sizes.len(),
        all / sizes.len().max(1) as u64,
        sorted[sizes.len() / 2],
    ));
    Ok(found)
}
