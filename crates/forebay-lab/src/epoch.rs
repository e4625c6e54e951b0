//! Measures one epoch of the same dataset at several locations, such as a directory and a store.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use forebay_cache::{ReadOptions, open_dataset};
use forebay_cli::frontend::EpochArgs;
use forebay_image::{TrainTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_shard::{Dataset, Split};
use forebay_store::Location;
use forebay_synthetic::{Recipe, is_synthetic};

use crate::cold::{Evictor, Footprint};
use crate::measure::{Alternative, BenchReport, Delivered, Measurement, side_by_side};
use crate::read::split_of;
use crate::{Error, Result};

/// Measures the images per second of one epoch, including the time to open the dataset, at several locations. All of them must
/// hold the same dataset. The first one is the baseline. `read` has the options for reading from stores.
///
/// # Errors
/// A dataset cannot be read or decoded, or differs from the first one.
pub fn epoch(
    places: &[Location],
    read: ReadOptions,
    options: &EpochArgs,
    runs: usize,
) -> Result<BenchReport> {
    let read = &read.for_loader();
    let known: RefCell<Option<String>> = RefCell::default();
    // Note of the last run of each location, by the index of the location.
    let notes: RefCell<BTreeMap<usize, String>> = RefCell::default();
    let evictor = Evictor::buffered(options.cold.cold)?;
    // Bytes that the last run read and fetched.
    let delivered = Cell::new(Delivered::default());
    let footprints = places.iter().map(|place| footprint(place, read, options));
    let footprints: Vec<Footprint> = footprints.collect::<Result<_>>()?;
    let with_files = places.iter().zip(footprints).enumerate();
    let alternatives = with_files.map(|(number, (place, files))| {
        let (known, notes, delivered) = (&known, &notes, &delivered);
        let run = move || {
            let (sample, fingerprint, note) = one(place, read, options, delivered)?;
            let first = known
                .borrow_mut()
                .get_or_insert(fingerprint.clone())
                .clone();
            if first != fingerprint {
                return Err(Error::from(format!(
                    "{place} is another dataset than the first one"
                )));
            }
            notes.borrow_mut().insert(number, note);
            Ok(sample)
        };
        let one = Alternative::here(place.to_string(), "images/s", run);
        one.reading(files, evictor, |_| delivered.get())
    });
    let title = format!(
        "An epoch with everything before it, batches of {}",
        options.batch_size
    );
    let mut report = side_by_side(title, runs, alternatives.collect())?;
    report.notes.extend(notes.into_inner().into_values());
    Ok(report)
}

fn open(place: &Location, read: &ReadOptions, options: &EpochArgs) -> Result<(Dataset, Split)> {
    let text = place.to_string();
    let dataset = match is_synthetic(&text) {
        true => Recipe::parse(&text)?.open()?,
        false => open_dataset(place, read)?,
    };
    let split = split_of(&dataset, Path::new(&text), options.split.as_deref())?;
    Ok((dataset, split))
}

/// Returns the files whose page cache is emptied before a run.
fn footprint(place: &Location, read: &ReadOptions, options: &EpochArgs) -> Result<Footprint> {
    match place.local_path() {
        Ok(_) => Ok(crate::read::footprint(&open(place, read, options)?.1)),
        Err(_) if is_synthetic(&place.to_string()) => Ok(Footprint::Generated),
        Err(_) => Ok(Footprint::Store),
    }
}

fn one(
    place: &Location,
    read: &ReadOptions,
    options: &EpochArgs,
    delivered: &Cell<Delivered>,
) -> Result<(Measurement, String, String)> {
    let begin = Instant::now();
    let (dataset, split) = open(place, read, options)?;
    let opened = begin.elapsed();
    let transform = Transform::Train(TrainTransform::new(224));
    let mut asked = Options::new(options.batch_size, transform);
    asked.threads = options.threads;
    asked.drop_last = false;
    let mut loader = Loader::new(split, asked)?;
    let (mut images, mut first) = (0, None);
    while let Some(batch) = loader.next_batch()? {
        first.get_or_insert_with(|| begin.elapsed());
        images += batch.samples.len();
    }
    let sample = Measurement {
        amount: images as f64,
        seconds: begin.elapsed().as_secs_f64(),
    };
    let stats = loader.stats();
    delivered.set(Delivered {
        bytes: stats.bytes_read,
        fetched: stats.traffic.map(|traffic| traffic.fetched_bytes),
    });
    let note = format!(
        "{place}: {:.2} s for {images} images, opened after {:.2} s, first batch after {:.2} s; {}",
        sample.seconds,
        opened.as_secs_f64(),
        first.unwrap_or_default().as_secs_f64(),
        stats.bottleneck(),
    );
    Ok((sample, dataset.fingerprint().to_owned(), note))
}
