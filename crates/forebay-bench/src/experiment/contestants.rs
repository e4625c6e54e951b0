//! The formats that E20 and E21 compare: image files read by a small program, shards and formats that Forebay's loader reads where they
//! are, and formats that their packages read. None of them is measured before its samples are those of the indexed shards.

use std::rc::Rc;
use std::time::Duration;

use forebay_image::{EvalTransform, Transform};
use forebay_shard::Split;

use super::CharacterizeOptions;
use super::data::{ImageFile, MediumData, first_split, image_files};
use super::feed::Feed;
use super::formats::{Differences, Samples};
use super::lab::{Cache, Lab};
use super::mini_app::{MiniApp, SIDE};
use super::packages::{self, Packages, Reading};
use crate::Result;
use crate::cold::Footprint;
use crate::read::footprint;

/// Workers and caches of all figures.
pub(super) const WORKERS: [usize; 2] = [1, 4];
pub(super) const CACHES: [(&str, Cache); 2] = [("cold", Cache::Emptied), ("warm", Cache::Filled)];
pub(super) const FILES: &str = "image files";
/// Formats that are read without packages, image files included.
const OWN: [&str; 7] = [
    "files",
    "tfrecord",
    "indexed",
    "webdataset",
    "mds",
    "parquet",
    "arrayrecord",
];
/// Batches of image files that are made ahead while training.
const AHEAD: u64 = 2;

/// The names of all formats.
pub(super) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = OWN.into_iter().chain(packages::names()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The figures of an experiment with all formats.
pub(super) fn figures(options: &CharacterizeOptions) -> usize {
    count(options) * WORKERS.len() * CACHES.len()
}

/// How many formats there are.
pub(super) fn count(options: &CharacterizeOptions) -> usize {
    let own = OWN.iter().filter(|name| options.has_format(name)).count();
    own + packages::count(options)
}

/// The name of a figure.
pub(super) fn name(format: &str, workers: usize, cache: &str) -> String {
    let noun = if workers == 1 { "worker" } else { "workers" };
    format!("{format}, {workers} {noun}, {cache}")
}

/// A format and its reader.
pub(super) struct Contestant<'l> {
    pub(super) name: String,
    pub(super) files: Footprint,
    reader: Reader,
    options: &'l CharacterizeOptions,
}

#[derive(Clone)]
enum Reader {
    Files(Rc<[ImageFile]>),
    Loader(Split),
    /// One of the packages, by its number.
    Package(Rc<Packages>, usize),
}

/// The result of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivery {
    pub(super) seconds: f64,
    pub(super) waited: f64,
    pub(super) images: u64,
    pub(super) batches: u64,
    pub(super) bytes: u64,
    /// Bytes that were read, those of batches that were not taken included.
    pub(super) read: u64,
    /// Bytes that other processes had read from devices.
    pub(super) by_others: u64,
}

impl Contestant<'_> {
    /// Reads for the time of a run. `step` is the time of a training step: loaders decode for it, packages hand over what is stored.
    pub(super) fn run(&self, workers: usize, step: Option<Duration>) -> Result<Delivery> {
        let (batch, limit) = (self.options.batch_size, self.options.limit);
        match &self.reader {
            Reader::Files(files) => {
                let app = MiniApp {
                    threads: workers,
                    decode: step.is_some(),
                    prefetch: if step.is_some() { AHEAD } else { 0 },
                    steps: step.unwrap_or_default().into(),
                    ..MiniApp::new(files, batch, limit)
                };
                let ran = app.run()?;
                Ok(Delivery {
                    seconds: ran.seconds,
                    waited: ran.waited(),
                    images: ran.images,
                    batches: ran.images / batch,
                    bytes: ran.bytes,
                    read: ran.read,
                    by_others: 0,
                })
            }
            Reader::Loader(split) => {
                let transform = match step {
                    Some(_) => Transform::Eval(EvalTransform::new(SIDE, SIDE)),
                    None => Transform::KeepEncoded,
                };
                let feed = Feed {
                    threads: workers,
                    steps: step.unwrap_or_default().into(),
                    ..Feed::new(split, transform, batch, limit)
                };
                let fed = feed.run()?;
                Ok(Delivery {
                    seconds: fed.seconds,
                    waited: fed.waited,
                    images: fed.images,
                    batches: fed.images.div_ceil(batch),
                    bytes: fed.bytes,
                    read: fed.read,
                    by_others: 0,
                })
            }
            Reader::Package(packages, number) => {
                let reading = Reading {
                    workers,
                    step: step.unwrap_or_default(),
                    ..Reading::default()
                };
                let ran = packages.stored[*number].run(reading, limit)?;
                Ok(Delivery {
                    seconds: ran.seconds,
                    waited: ran.waited,
                    images: ran.images,
                    batches: ran.batches,
                    bytes: ran.bytes,
                    read: ran.read,
                    by_others: ran.from_storage,
                })
            }
        }
    }
}

/// The formats that give the right samples; the others become notes.
pub(super) fn contestants<'l>(
    lab: &'l Lab<'_>,
    medium: &MediumData,
    notes: &mut Vec<String>,
) -> Result<Vec<Contestant<'l>>> {
    let options = lab.options;
    let mut found = Vec::new();
    if options.has_format(OWN[0]) {
        let files = medium.images()?;
        found.push(Contestant {
            name: FILES.to_owned(),
            files: image_files(&files),
            reader: Reader::Files(files),
            options,
        });
    }
    let most = WORKERS[WORKERS.len() - 1];
    let right = Samples::of(&medium.indexed()?, 1)?;
    for format in medium.formats(options)?.iter() {
        let differences = Samples::of(&format.split, most)?.differences(&right);
        if is_right(medium, format.name, &differences, notes) {
            found.push(Contestant {
                name: format.name.to_owned(),
                files: footprint(&format.split),
                reader: Reader::Loader(format.split.clone()),
                options,
            });
        }
    }
    let packages = medium.packages(options)?;
    let right = right_hashes(medium, &packages)?;
    for (number, package) in packages.stored.iter().enumerate() {
        let reading = Reading {
            workers: most,
            ..Reading::default()
        };
        let differences = package.differences(reading, &right[usize::from(package.is_pixels)]);
        let (differences, _) = match differences {
            Ok(found) => found,
            Err(error) => {
                notes.push(format!(
                    "{}: no figures of {}: {error}",
                    medium.name, package.name
                ));
                continue;
            }
        };
        if is_right(medium, package.name, &differences, notes) {
            found.push(Contestant {
                name: package.name.to_owned(),
                files: package.files.clone(),
                reader: Reader::Package(packages.clone(), number),
                options,
            });
        }
    }
    notes.extend(about(&packages));
    Ok(found)
}

/// Whether all samples are right; a note says it if they are not.
pub(super) fn is_right(
    medium: &MediumData,
    name: &str,
    found: &Differences,
    notes: &mut Vec<String>,
) -> bool {
    let Differences {
        wrong,
        missing,
        repeated,
    } = found;
    let is_right = wrong + missing + repeated == 0;
    if !is_right {
        notes.push(format!(
            "{}: no figures of {name}: {wrong} samples are wrong, {missing} missing, {repeated} repeated",
            medium.name
        ));
    }
    is_right
}

/// The hashes of encoded images, and of pixels where a package holds them.
pub(super) fn right_hashes(medium: &MediumData, packages: &Packages) -> Result<[Vec<u64>; 2]> {
    let mut right = [Vec::new(), Vec::new()];
    if packages.stored.iter().any(|package| !package.is_pixels) {
        right[0] = Samples::of(&medium.indexed()?, 1)?.hashes();
    }
    if packages.stored.iter().any(|package| package.is_pixels) {
        let squares = first_split(&medium.squares()?)?;
        let transform = Transform::Eval(EvalTransform::new(medium.side(), medium.side()));
        right[1] = Samples::of_images(&squares, 1, transform)?.hashes();
    }
    Ok(right)
}

/// Notes on packages: versions, those that are missing, and sizes.
pub(super) fn about(packages: &Packages) -> Vec<String> {
    let mut notes = Vec::new();
    if !packages.versions.is_empty() {
        notes.push(format!(
            "Packages: {}. Each runs in worker processes, two batches ahead; imports are not timed.",
            packages.versions.join(", ")
        ));
        let sizes = packages.stored.iter();
        let sizes: Vec<String> = sizes
            .map(|package| {
                format!(
                    "{} {:.1} MB",
                    package.name,
                    package.stored_bytes() as f64 / 1e6
                )
            })
            .collect();
        notes.push(format!("Files: {}.", sizes.join("; ")));
    }
    let missing = packages.missing.iter();
    notes.extend(missing.map(|why| format!("Not measured: {why}")));
    notes
}
