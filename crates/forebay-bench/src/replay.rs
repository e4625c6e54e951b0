//! Replays the reads of an epoch without the loader, to measure the rate of the storage for these reads.
//!
//! A recorder in front of the dataset's storage records the reads while the loader runs an epoch of encoded images. The replay
//! uses the same files, offsets, lengths, order, readahead and number of concurrent reads.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forebay_cache::{ReadOptions, read_storage};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_shard::storage::Storage;
use forebay_shard::{Dataset, Split};
use forebay_store::Location;
use forebay_synthetic::{Recipe, is_synthetic};

use crate::Result;
use crate::cold::{Cold, Evictor, Footprint, Way};
use crate::measure::{Alternative, BenchReport, Delivered, Measurement, side_by_side};
use crate::read::split_of;
use crate::storage::{JobFile, Medium, ReadJob, Recorded, Recorder, RunOptions, RunReport, run};

const MB: f64 = 1e6;
/// Width and height of the images in the run with a transform.
const SIDE: u32 = 224;

/// Options of [`replay`].
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// Split, the first one by default.
    pub split: Option<String>,
    /// Samples per batch.
    pub batch_size: u64,
    /// Decoding threads; 0 for as many as there are cores.
    pub threads: usize,
    /// Further numbers of concurrent reads to compare; that of the loader is always measured.
    pub depths: Vec<usize>,
    /// A directory of the same images as single files, named by the keys of the records.
    pub files: Option<PathBuf>,
    /// How the page cache is emptied before each run. [`Cold::Direct`] adds replays that bypass the page cache, and empties it
    /// for the others as [`Cold::Auto`] does.
    pub cold: Cold,
    /// Options for reading from stores.
    pub read: ReadOptions,
    /// Counted runs of each alternative.
    pub runs: usize,
}

/// Replays the reads of an epoch at each location of the dataset, as records and as single files, beside the loader.
///
/// # Errors
/// A dataset or an image cannot be read.
pub fn replay(places: &[Location], options: &ReplayOptions) -> Result<Vec<BenchReport>> {
    let mut reports = Vec::new();
    for place in places {
        let epoch = Epoch::record(place, options)?;
        reports.push(epoch.measure(options)?);
    }
    Ok(reports)
}

/// The reads of a loader at a location, which are repeated without the loader.
pub(crate) struct Recording<'a> {
    place: &'a Location,
    read: &'a ReadOptions,
    pub(crate) job: ReadJob,
    /// The highest number of reads that were in flight at once.
    pub(crate) depth: usize,
    /// Storage of the recorded files, for files that are not below `place`.
    elsewhere: Arc<dyn Storage>,
    pub(crate) is_local: bool,
}

impl<'a> Recording<'a> {
    /// Records the reads of `load` from a split, the first one by default. Returns them with the result of `load`.
    pub(crate) fn new<T>(
        place: &'a Location,
        read: &'a ReadOptions,
        split: Option<&str>,
        load: impl FnOnce(Split) -> Result<T>,
    ) -> Result<(Self, T)> {
        let (root, storage) = storage(place, read)?;
        let recorder = Recorder::new(storage);
        let dataset = open(&root, Arc::new(recorder.clone()))?;
        // Opened before recording, because indexes are read once for all epochs.
        let split = split_of(&dataset, &root, split)?;
        recorder.clear();
        let loaded = load(split)?;
        let Recorded { job, depth } = recorder.recorded()?;
        // Near its end, the loader reads ahead into the next epoch, which repeats reads of the same records.
        let job = job.without_repeats();
        if job.reads() == 0 {
            return Err(
                format!("\"{place}\": loading makes no reads: there is nothing to replay").into(),
            );
        }
        let recording = Self {
            place,
            read,
            depth,
            elsewhere: recorder.files(),
            is_local: place.local_path().is_ok()
                && job.files().iter().all(|file| file.path.is_file()),
            job,
        };
        Ok((recording, loaded))
    }

    /// Returns the bytes whose caches matter.
    pub(crate) fn footprint(&self) -> Footprint {
        match self.is_local {
            true => self.job.footprint(),
            false if is_synthetic(&self.place.to_string()) => Footprint::Generated,
            false => Footprint::Store,
        }
    }

    /// Opens the storage of the recorded files again, so that readahead of earlier runs has no effect.
    pub(crate) fn storage(&self) -> Result<Arc<dyn Storage>> {
        let (root, storage) = storage(self.place, self.read)?;
        // The first connection to a store is no part of a measurement.
        open(&root, Arc::clone(&storage))?;
        let below = |file: &JobFile| file.path.starts_with(&root);
        Ok(match self.job.files().iter().all(below) {
            true => storage,
            false => Arc::clone(&self.elsewhere),
        })
    }

    /// Performs `job`, which has recorded reads. Returns the result, and the bytes that came over the network.
    pub(crate) fn replay(
        &self,
        job: &ReadJob,
        how: &RunOptions,
        direct: bool,
    ) -> Result<(RunReport, Option<u64>)> {
        if self.is_local {
            return Ok((run(job, &Medium::Local { direct }, how)?, None));
        }
        let storage = self.storage()?;
        let before = storage.stats();
        let report = run(job, &Medium::Storage(Arc::clone(&storage)), how)?;
        Ok((report, wire_bytes(&*storage, before)))
    }
}

/// A recorded epoch.
struct Epoch<'a> {
    recorded: Recording<'a>,
    /// The same reads without announcements.
    plain: ReadJob,
    /// Samples in the order of the epoch.
    samples: Vec<u64>,
    dataset: Dataset,
    split: Option<&'a str>,
}

/// Results of the last run of each replay, by row.
type Details = RefCell<BTreeMap<String, RunReport>>;

/// Observations of runs besides their rates.
#[derive(Default)]
struct Seen {
    details: Details,
    /// Bottleneck in the last run of each loader, by row.
    bottlenecks: RefCell<BTreeMap<&'static str, String>>,
    /// Bytes of the last run that came over the network.
    fetched: Cell<Option<u64>>,
}

impl<'a> Epoch<'a> {
    fn record(place: &'a Location, options: &'a ReplayOptions) -> Result<Self> {
        let split = options.split.as_deref();
        let load = |split| epoch(split, Transform::KeepEncoded, options);
        let (recorded, (_, samples)) = Recording::new(place, &options.read, split, load)?;
        // Opened without the recorder, because keys are read later.
        let (root, storage) = storage(place, &options.read)?;
        Ok(Self {
            plain: recorded.job.clone().without_announcements(),
            recorded,
            samples,
            dataset: open(&root, storage)?,
            split,
        })
    }

    fn measure(&self, options: &ReplayOptions) -> Result<BenchReport> {
        let evictor = match options.cold {
            Cold::Direct => Evictor::new(Cold::Auto)?,
            cold => Evictor::new(cold)?,
        };
        let seen = Seen::default();
        let own = self.recorded.depth;
        let mut depths = vec![own];
        depths.extend(options.depths.iter().filter(|&&depth| depth != own));
        let files = options.files.as_ref().map(|dir| self.single_files(dir));
        let files = files.transpose()?;
        let mut all = Vec::new();
        for &depth in &depths {
            let name = format!("reads of the epoch, {depth} in flight");
            all.push(self.replayed(&self.plain, name, depth, evictor, &seen));
        }
        if self.plain != self.recorded.job {
            let name = ANNOUNCED.to_owned();
            all.push(self.replayed(&self.recorded.job, name, own, evictor, &seen));
        }
        if options.cold == Cold::Direct && self.recorded.is_local {
            let name = format!("the same with O_DIRECT, {own} in flight");
            let direct = Evictor::new(Cold::Direct)?;
            all.push(self.replayed(&self.plain, name, own, direct, &seen));
        }
        if let Some(job) = &files {
            for &depth in &depths {
                let name = format!("single files in the same order, {depth} in flight");
                let (details, key) = (&seen.details, name.clone());
                let medium = Medium::Local { direct: false };
                let run = move || {
                    let report = run(job, &medium, &RunOptions::at_depth(depth))?;
                    Ok(keep(&key, report, details))
                };
                let delivered = |_: &Measurement| Delivered::local(job.bytes());
                let one = Alternative::here(name, "MB/s", run);
                all.push(one.reading(job.footprint(), evictor, delivered));
            }
        }
        let train = Transform::Train(TrainTransform::new(SIDE));
        for (name, transform) in [(LOADER, Transform::KeepEncoded), (TRANSFORMED, train)] {
            all.push(self.loaded(name, transform, evictor, options, &seen));
        }
        let title = format!(
            "Storage of {}: the reads of an epoch ({} records, {} reads, {:.1} MB)",
            self.recorded.place,
            self.samples.len(),
            self.recorded.job.reads(),
            self.recorded.job.bytes() as f64 / MB,
        );
        let mut report = side_by_side(title, options.runs, all)?;
        self.finish(&mut report, &seen);
        if evictor.way() == Way::Off {
            let note = "caches were left as they were: --cold auto empties them before each run";
            report.notes.push(note.to_owned());
        }
        Ok(report)
    }

    fn replayed<'r>(
        &'r self,
        job: &'r ReadJob,
        name: String,
        depth: usize,
        evictor: Evictor,
        seen: &'r Seen,
    ) -> Alternative<'r> {
        let key = name.clone();
        let direct = evictor.way() == Way::Direct;
        let run = move || {
            let how = RunOptions::at_depth(depth);
            let (report, fetched) = self.recorded.replay(job, &how, direct)?;
            seen.fetched.set(fetched);
            Ok(keep(&key, report, &seen.details))
        };
        let one = Alternative::here(name, "MB/s", run);
        one.reading(self.recorded.footprint(), evictor, |_| self.delivered(seen))
    }

    fn loaded<'r>(
        &'r self,
        name: &'static str,
        transform: Transform,
        evictor: Evictor,
        options: &'r ReplayOptions,
        seen: &'r Seen,
    ) -> Alternative<'r> {
        let run = move || {
            let (measurement, bottleneck) = self.load(&transform, options, seen)?;
            seen.bottlenecks.borrow_mut().insert(name, bottleneck);
            Ok(measurement)
        };
        let one = Alternative::here(name, "MB/s", run);
        one.reading(self.recorded.footprint(), evictor, |_| self.delivered(seen))
    }

    fn delivered(&self, seen: &Seen) -> Delivered {
        Delivered {
            bytes: self.recorded.job.bytes(),
            fetched: seen.fetched.get(),
        }
    }

    fn load(
        &self,
        transform: &Transform,
        options: &ReplayOptions,
        seen: &Seen,
    ) -> Result<(Measurement, String)> {
        let (root, storage) = storage(self.recorded.place, &options.read)?;
        let dataset = open(&root, Arc::clone(&storage))?;
        let before = storage.stats();
        let split = split_of(&dataset, &root, self.split)?;
        let (took, _) = epoch(split, transform.clone(), options)?;
        seen.fetched.set(wire_bytes(&*storage, before));
        let measurement = Measurement {
            amount: self.recorded.job.bytes() as f64 / MB,
            seconds: took.seconds,
        };
        Ok((measurement, took.bottleneck))
    }

    /// Returns a job that reads the images as single files, in the order of the epoch.
    fn single_files(&self, dir: &Path) -> Result<ReadJob> {
        let split = split_of(&self.dataset, self.dataset.root(), self.split)?;
        let mut files = Vec::with_capacity(self.samples.len());
        for &sample in &self.samples {
            let key = String::from_utf8(split.key(sample)?)
                .map_err(|_| format!("record {sample} has a key that is not UTF-8"))?;
            if key.is_empty() {
                return Err(
                    "the records have no keys: single files cannot be found by them".into(),
                );
            }
            let named = [dir.join(&key), dir.join(split.name()).join(&key)];
            let found = named
                .iter()
                .find_map(|path| Some((path, path.metadata().ok()?.len())));
            let (path, len) = found.ok_or_else(|| {
                format!(
                    "record {sample}: neither \"{}\" nor \"{}\" exists; --files names the directory that was packed",
                    named[0].display(),
                    named[1].display()
                )
            })?;
            files.push((path.clone(), len));
        }
        ReadJob::whole_files(files)
    }

    /// Adds images per second of each alternative, latencies, and the loader's fraction of the storage rate.
    fn finish(&self, report: &mut BenchReport, seen: &Seen) {
        let (details, bottlenecks) = (seen.details.borrow(), seen.bottlenecks.borrow());
        let bytes = self.recorded.job.bytes() as f64 / MB;
        let mut notes = Vec::new();
        for row in &mut report.rows {
            let images = self.samples.len() as f64 * row.median / bytes;
            row.extra.insert("images_per_s", images);
            let Some(detail) = details.get(&row.name) else {
                continue;
            };
            let ms = |part| detail.latency(part) * 1e3;
            let parts = [
                ("p50_ms", 0.5),
                ("p99_ms", 0.99),
                ("p999_ms", 0.999),
                ("longest_ms", 1.0),
            ];
            row.extra.extend(parts.map(|(name, part)| (name, ms(part))));
            row.extra.insert("reads_per_s", detail.reads_per_s());
            notes.push(format!(
                "{}: {images:.0} images/s, {:.0} reads/s; a read takes {:.2} ms (p50), {:.2} (p99), {:.2} (p99.9), {:.2} (longest)",
                row.name, detail.reads_per_s(), ms(0.5), ms(0.99), ms(0.999), ms(1.0),
            ));
            if detail.slowed_down() == Some(true) {
                notes.push(format!(
                    "{}: the last third was 20 % slower than the first",
                    row.name
                ));
            }
        }
        let at_own_depth = report.rows.iter().enumerate();
        let at_own_depth = at_own_depth.filter(|(at, row)| *at == 0 || row.name == ANNOUNCED);
        let given = at_own_depth.map(|(_, row)| row.median).fold(0.0, f64::max);
        for row in report
            .rows
            .iter()
            .filter(|row| row.name == LOADER || row.name == TRANSFORMED)
        {
            let limit = bottlenecks
                .get(row.name.as_str())
                .map_or("", String::as_str);
            notes.push(format!("{}: {limit}", row.name));
            notes.push(format!(
                "{} reached {:.0} % of what this storage can give",
                if row.name == LOADER {
                    "the loader"
                } else {
                    "with the transform it"
                },
                100.0 * row.median / given.max(f64::MIN_POSITIVE),
            ));
        }
        report.notes.extend(notes);
    }
}

const ANNOUNCED: &str = "the same, announced as by the loader";
const LOADER: &str = "loader, images stay encoded";
const TRANSFORMED: &str = "loader, RandomResizedCrop(224) + flip";

/// Keeps the result of a replay, and returns its rate.
fn keep(name: &str, report: RunReport, details: &Details) -> Measurement {
    let measurement = Measurement {
        amount: report.bytes as f64 / MB,
        seconds: report.seconds,
    };
    details.borrow_mut().insert(name.to_owned(), report);
    measurement
}

pub(crate) fn wire_bytes(
    storage: &dyn Storage,
    before: Option<forebay_shard::storage::StorageStats>,
) -> Option<u64> {
    let now = storage.stats()?;
    Some(now.since(&before.unwrap_or_default()).fetched_bytes)
}

/// Opens the storage of a location. Returns the path of the location in the storage, and the storage.
///
/// # Errors
/// The location cannot be opened.
pub fn storage(place: &Location, read: &ReadOptions) -> Result<(PathBuf, Arc<dyn Storage>)> {
    let text = place.to_string();
    Ok(match is_synthetic(&text) {
        true => Recipe::parse(&text)?.storage()?,
        false => read_storage(place, &read.clone().for_loader())?,
    })
}

/// Opens a dataset in a storage.
///
/// # Errors
/// The location has no dataset.
pub fn open(root: &Path, storage: Arc<dyn Storage>) -> Result<Dataset> {
    Ok(Dataset::options().storage(storage).open(root)?)
}

/// Duration and bottleneck of an epoch.
struct Took {
    seconds: f64,
    bottleneck: String,
}

/// Loads an epoch. Returns its duration, and its samples in order.
fn epoch(split: Split, transform: Transform, options: &ReplayOptions) -> Result<(Took, Vec<u64>)> {
    let mut asked = Options::new(options.batch_size, transform);
    asked.threads = options.threads;
    asked.drop_last = false;
    let begin = Instant::now();
    let mut loader = Loader::new(split, asked)?;
    let mut samples = Vec::new();
    while let Some(batch) = loader.next_batch()? {
        let flagged = batch.samples.iter().zip(&batch.flags);
        let real = flagged.filter(|(_, flags)| *flags & forebay_loader::batch::FLAG_PADDING == 0);
        samples.extend(real.map(|(sample, _)| *sample));
    }
    let took = Took {
        seconds: begin.elapsed().as_secs_f64(),
        bottleneck: loader.stats().bottleneck().to_string(),
    };
    Ok((took, samples))
}

#[cfg(test)]
mod tests {
    use forebay_pack::{DatasetFormat, PackOptions};

    use super::*;

    fn options() -> ReplayOptions {
        ReplayOptions {
            split: None,
            batch_size: 8,
            threads: 1,
            depths: vec![1],
            files: None,
            cold: Cold::Off,
            read: ReadOptions::default(),
            runs: 1,
        }
    }

    #[test]
    fn the_reads_of_an_epoch_are_those_of_its_records() {
        let dir = tempfile::tempdir().unwrap();
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
        let packed = dir.path().join("packed");
        let mut pack = PackOptions::new(
            Location::from(images.as_path()),
            Location::from(packed.as_path()),
        );
        pack.format = DatasetFormat::INDEXED;
        pack.seek_points = None;
        forebay_pack::pack(&pack, &(), &forebay_store::Cancel::new()).unwrap();
        let place = Location::from(packed.as_path());
        let mut options = options();
        options.files = Some(images);
        let epoch = Epoch::record(&place, &options).unwrap();
        let split = split_of(&epoch.dataset, &packed, None).unwrap();
        assert!(epoch.recorded.is_local && epoch.samples.len() as u64 == split.len());
        let stored: u64 = split
            .shards()
            .iter()
            .map(|shard| shard.path().metadata().unwrap().len())
            .sum();
        let read = epoch.recorded.job.bytes();
        assert!(read <= stored && read > stored / 2, "{read} of {stored}");
        let reports = replay(&[place], &options).unwrap();
        let names: Vec<_> = reports[0]
            .rows
            .iter()
            .map(|row| row.name.as_str())
            .collect();
        assert_eq!(names.last(), Some(&TRANSFORMED));
        assert!(
            names.iter().any(|name| name.starts_with("single files")),
            "{names:?}"
        );
        for row in &reports[0].rows {
            assert!(
                row.median > 0.0 && row.extra["images_per_s"] > 0.0,
                "{row:?}"
            );
            if cfg!(target_os = "linux") {
                let cache = row.cache.as_ref().expect("caches matter");
                assert!(
                    cache.cache == "warm" || cache.cache.starts_with("unknown"),
                    "{cache:?}"
                );
            }
        }
        assert!(
            reports[0]
                .notes
                .iter()
                .any(|note| note.contains("of what this storage can give"))
        );
    }

    #[test]
    fn generated_data_has_reads_but_no_caches() {
        let place =
            Location::parse("synthetic://imagenet?records=60&pictures=2&latency=1ms").unwrap();
        let mut options = options();
        let report = replay(std::slice::from_ref(&place), &options)
            .unwrap()
            .remove(0);
        let cache = report.rows[0].cache.as_ref().expect("a state");
        assert!(cache.cache.contains("no storage"), "{cache:?}");
        assert!(report.rows[0].extra["p50_ms"] >= 1.0, "{report:?}");
        options.files = Some("/no/such".into());
        let error = replay(&[place], &options).unwrap_err().to_string();
        assert!(
            error.contains("keys") || error.contains("/no/such"),
            "{error}"
        );
    }
}
