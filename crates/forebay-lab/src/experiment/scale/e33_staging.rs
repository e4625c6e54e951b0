//! E33: training data on a slow medium, staged on a fast one before training, or cached there while training.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forebay_cache::{Cache as BlockCache, CacheOptions, ReadOptions, RemoteStorage, read_storage};
use forebay_image::Transform;
use forebay_shard::storage::Storage;
use forebay_shard::{Dataset, Split};
use forebay_store::{Cancel, Location, Store, Transfer, for_each_parallel};

use crate::experiment::data::MediumData;
use crate::experiment::feed::Feed;
use crate::experiment::stored::first_split;
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::stores::Shards;
use crate::experiment::{CharacterizeOptions, Experiment, Findings};
use crate::Result;
use crate::cold::{FileBytes, Footprint, Mount};
use crate::read::{footprint, split_of};
use crate::report::{Figure, FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E33",
    title: "Staging of training data",
    question: "What do a copy on a fast disk before training, and a cache there, bring in the first epochs?",
    trials,
    run,
    ..Experiment::OTHER
};

/// Factor of the time limit: whole epochs take longer than other runs.
const TIMES: u32 = 4;
const EPOCHS: u64 = 2;
const DIRECT: &str = "read where it is";
const CACHED: &str = "cache on ";
const STAGED: &str = "copy on ";
/// Name of the trial that copies. The epochs that read the copy do not include its time.
const STAGING: &str = "stage in to ";
const FIRST: &str = "s until the first batch";
const TOTAL: &str = "s since the begin";
const PART: &str = "% of the epoch";

fn trials(options: &CharacterizeOptions) -> usize {
    let media = options.media.len();
    let slow = options.stores.len() + usize::from(media > 1);
    let fast = media.saturating_sub(1).max(1);
    // Two epochs for each slow location; and for each fast medium a copy, two epochs of the copy, and two with a cache.
    let all = slow * (2 + 5 * fast) * TIMES as usize;
    all.div_ceil((media + options.stores.len()).max(1))
}

/// A slow location with shards of the dataset.
struct Slow {
    name: String,
    place: Location,
    read: ReadOptions,
    files: Footprint,
}

/// Directories on a fast medium, for a copy and for a cache.
struct Fast {
    name: String,
    copy: PathBuf,
    cache: PathBuf,
    /// Whether the medium is memory, which stands in for a disk.
    is_memory: bool,
}

/// How an epoch reads the dataset.
#[derive(Clone, Copy)]
enum Way<'t> {
    Direct,
    Cached(&'t Fast),
    Staged(&'t Fast),
}

fn run(lab: &Lab<'_>) -> Result<Findings> {
    if lab.media.len() < 2 && lab.stores.is_empty() {
        return Err("it needs two media: a slow one (the first directory, or a store), and a directory on a fast disk".into());
    }
    let slow = slow_places(lab)?;
    let fast_media = match lab.media.as_slice() {
        [] => vec![lab.source()?],
        [only] => vec![only],
        [_, others @ ..] => others.iter().collect(),
    };
    let fast: Vec<Fast> = fast_media.iter().map(|medium| Fast::new(medium)).collect();
    let mut found = Findings::default();
    for slow in &slow {
        let clocks: Vec<Cell<f64>> = (0..=2 * fast.len()).map(|_| Cell::new(0.0)).collect();
        let mut trials = epochs(lab, slow, Way::Direct, &clocks[0]);
        for (fast, clocks) in fast.iter().zip(clocks[1..].chunks(2)) {
            trials.extend(epochs(lab, slow, Way::Cached(fast), &clocks[0]));
            trials.push(staging(lab, slow, fast, &clocks[1]));
            trials.extend(epochs(lab, slow, Way::Staged(fast), &clocks[1]));
        }
        let figures = lab.in_turns(trials)?;
        found.notes.push(summary(&slow.name, &figures));
        found.plots.push(plot(&slow.name, &figures));
        found.figures.extend(figures);
    }
    found.notes.extend(notes(lab, &slow, &fast_media));
    Ok(found)
}

fn slow_places(lab: &Lab<'_>) -> Result<Vec<Slow>> {
    let mut slow = Vec::new();
    if let [first, _, ..] = lab.media.as_slice() {
        slow.push(Slow {
            name: first.name.clone(),
            files: footprint(&first.tfrecord()?),
            place: Location::from(first.scratch().join("tfrecord").as_path()),
            read: ReadOptions::default().for_loader(),
        });
    }
    for store in &lab.stores {
        slow.push(Slow {
            name: store.name.clone(),
            files: Footprint::Store,
            place: store.put(Shards::TfRecord, lab.source()?)?,
            read: store.read_options().clone(),
        });
    }
    Ok(slow)
}

impl Fast {
    fn new(medium: &MediumData) -> Self {
        Self {
            name: medium.name.clone(),
            copy: medium.scratch().join("staged-in"),
            cache: medium.scratch().join("cache"),
            is_memory: medium.is_memory(),
        }
    }

    /// Removes the copy and the cache of earlier runs, so that the cache starts empty and there is room for one copy.
    fn clear(&self) -> Result<()> {
        for dir in [&self.copy, &self.cache] {
            if dir.exists() {
                fs::remove_dir_all(dir)?;
            }
        }
        Ok(())
    }
}

impl Fast {
    /// Marks figures of a medium in memory as those of a stand-in.
    fn class<'t>(&self, trial: Trial<'t>) -> Trial<'t> {
        match self.is_memory {
            true => trial.standing_in(),
            false => trial,
        }
    }
}

impl Way<'_> {
    fn name(self, epoch: u64) -> String {
        match self {
            Way::Direct => format!("{DIRECT}, epoch {epoch}"),
            Way::Cached(fast) => format!("{CACHED}{}, epoch {epoch}", fast.name),
            Way::Staged(fast) => format!("{STAGED}{}, epoch {epoch}", fast.name),
        }
    }

    /// Returns the files that an epoch reads, whose page cache is emptied before.
    fn files(self, slow: &Slow, epoch: u64) -> Result<Footprint> {
        match self {
            Way::Direct => Ok(slow.files.clone()),
            Way::Cached(_) if epoch == 1 => Ok(slow.files.clone()),
            Way::Cached(fast) => Ok(with(Footprint::tree(&fast.cache)?, &slow.files)),
            Way::Staged(fast) => Ok(Footprint::tree(&fast.copy)?),
        }
    }

    /// Opens the dataset as at the start of a training: nothing is in memory.
    fn open(self, slow: &Slow) -> Result<(Split, Option<Arc<dyn Storage>>)> {
        let (root, storage): (PathBuf, Arc<dyn Storage>) = match self {
            Way::Staged(fast) => return Ok((first_split(&fast.copy)?, None)),
            Way::Direct => read_storage(&slow.place, &slow.read)?,
            Way::Cached(fast) => {
                let cache = BlockCache::open(&CacheOptions {
                    dir: Some(fast.cache.clone()),
                    ..CacheOptions::default()
                })?;
                let read = slow.read.clone().with_cache(Some(Arc::new(cache)));
                // Not `read_storage`, which reads directories without a cache.
                let storage = RemoteStorage::open(&slow.place, &read)?;
                (storage.root().to_owned(), Arc::new(storage))
            }
        };
        let dataset = Dataset::options().storage(Arc::clone(&storage)).open(&root)?;
        Ok((split_of(&dataset, &root, None)?, Some(storage)))
    }
}

/// Returns the files of both footprints.
fn with(files: Footprint, others: &Footprint) -> Footprint {
    match (files, others) {
        (Footprint::Files(mut files), Footprint::Files(others)) => {
            let others: &[FileBytes] = others;
            files.extend_from_slice(others);
            Footprint::Files(files)
        }
        (files, _) => files,
    }
}

/// Returns trials of the first and the second epoch. `clock` is the seconds since the start of training, and continues from the
/// first to the second.
fn epochs<'t>(lab: &'t Lab<'_>, slow: &'t Slow, way: Way<'t>, clock: &'t Cell<f64>) -> Vec<Trial<'t>> {
    let epoch = |number| {
        let run = move || {
            if let (Way::Cached(fast), 1) = (way, number) {
                fast.clear()?;
            }
            if let (Way::Direct | Way::Cached(_), 1) = (way, number) {
                clock.set(0.0);
            }
            measure(lab, slow, way, number, clock)
        };
        let trial = Trial::new(&slow.name, way.name(number), "images/s", run);
        let trial = trial.reading_of(move || way.files(slow, number), Cache::Emptied);
        match way {
            Way::Direct => trial,
            Way::Cached(fast) | Way::Staged(fast) => fast.class(trial),
        }
    };
    (1..=EPOCHS).map(epoch).collect()
}

/// Returns a trial that copies all objects to `fast`.
fn staging<'t>(lab: &'t Lab<'_>, slow: &'t Slow, fast: &'t Fast, clock: &'t Cell<f64>) -> Trial<'t> {
    let run = move || {
        fast.clear()?;
        let begin = Instant::now();
        let (bytes, fetched) = stage_in(slow, &fast.copy, lab.most_threads())?;
        let seconds = begin.elapsed().as_secs_f64();
        clock.set(seconds);
        let sample = Sample::new(seconds, bytes, [("MB/s", bytes as f64 / 1e6 / seconds)]);
        Ok(sample.fetching(Some(fetched)))
    };
    let trial = Trial::new(&slow.name, format!("{STAGING}{}", fast.name), "s", run);
    fast.class(trial.reading(slow.files.clone(), Cache::Emptied))
}

/// Copies a dataset with `threads` concurrent downloads, each durable at the end. Returns the size of the dataset, and the
/// bytes that came over the network.
fn stage_in(slow: &Slow, to: &Path, threads: usize) -> Result<(u64, u64)> {
    let store = Store::open(&slow.place, &slow.read.store)?;
    let objects = store.list("")?;
    let cancel = Cancel::new();
    for_each_parallel(objects.iter(), threads, |object| {
        let copied = store.download_file(&object.key, &to.join(&object.key), &Transfer::new(&cancel));
        copied.map(drop)
    })?;
    let bytes = objects.iter().map(|object| object.len).sum();
    Ok((bytes, store.stats().fetched_bytes))
}

/// Reads an epoch of encoded images.
fn measure(lab: &Lab<'_>, slow: &Slow, way: Way<'_>, number: u64, clock: &Cell<f64>) -> Result<Sample> {
    let options = lab.options;
    let begin = Instant::now();
    let (split, storage) = way.open(slow)?;
    let opened = begin.elapsed().as_secs_f64();
    let feed = Feed {
        threads: lab.most_threads(),
        ..Feed::new(&split, Transform::KeepEncoded, options.batch_size, options.limit * TIMES)
    };
    // Each epoch has its own order.
    let fed = feed.run_as(&mut |options| options.seed = number)?;
    // A run that ends early reads part of an epoch; its rate gives the time of the whole one.
    let seconds = opened + split.len() as f64 / fed.images_per_s();
    let first = clock.get() + opened + fed.first;
    clock.set(clock.get() + seconds);
    let more = [
        ("MB/s", fed.bytes as f64 / 1e6 / fed.seconds),
        ("s of the epoch", seconds),
        (TOTAL, clock.get()),
        (PART, 100.0 * fed.images as f64 / split.len().max(1) as f64),
    ];
    let stats = storage.and_then(|storage| storage.stats());
    let mut sample = Sample::new(fed.images_per_s(), fed.read, more);
    if number == 1 {
        sample.more.insert(FIRST.to_owned(), first);
    }
    if let Some(found) = stats.and_then(|stats| stats.cache) {
        let all = (found.hit_bytes + found.miss_bytes).max(1);
        sample.more.insert("% from the cache".to_owned(), 100.0 * found.hit_bytes as f64 / all as f64);
    }
    Ok(sample.fetching(stats.map(|stats| stats.fetched_bytes)))
}

/// The times of one way to read.
struct Timeline<'f> {
    name: &'f str,
    class: FigureClass,
    /// Seconds until the first batch, and until the ends of both epochs.
    seconds: [f64; 3],
}

/// Returns the times of all ways with figures of both epochs.
fn timelines(figures: &[Figure]) -> Vec<Timeline<'_>> {
    let all = figures.iter().filter_map(|figure| {
        let name = figure.name.strip_suffix(", epoch 1")?;
        let second = format!("{name}, epoch 2");
        let second = figures.iter().find(|figure| figure.name == second)?;
        let seconds = [*figure.more.get(FIRST)?, *figure.more.get(TOTAL)?, *second.more.get(TOTAL)?];
        Some(Timeline { name, class: figure.class, seconds })
    });
    all.collect()
}

/// Returns a sentence with the seconds of all ways.
fn summary(slow: &str, figures: &[Figure]) -> String {
    let ways = timelines(figures).into_iter().map(|Timeline { name, seconds: [first, _, both], .. }| {
        format!("{name}: first batch after {first:.2} s, two epochs after {both:.2} s")
    });
    let ways: Vec<String> = ways.collect();
    format!("{slow}: {}.", ways.join("; "))
}

fn plot(slow: &str, figures: &[Figure]) -> Plot {
    let series = timelines(figures).into_iter().map(|way| Series {
        name: way.name.to_owned(),
        class: way.class,
        points: way.seconds.iter().enumerate().map(|(place, &seconds)| (place as f64, seconds)).collect(),
    });
    Plot {
        title: format!("{slow}: time since the begin"),
        x: "reached".to_owned(),
        scale: Scale::Names(["first batch", "end of epoch 1", "end of epoch 2"].map(str::to_owned).into()),
        y: "s".to_owned(),
        series: series.collect(),
    }
}

fn notes(lab: &Lab<'_>, slow: &[Slow], fast: &[&MediumData]) -> Vec<String> {
    let mut notes = vec![format!(
        "Encoded images of TFRecords with {} threads, files copied side by side by as many. The page cache is emptied before each epoch, as if the dataset were larger than memory: the experiment with long runs measures what memory gains. Caches of servers cannot be seen.",
        lab.most_threads()
    )];
    notes.push("The cache is Forebay's, empty before epoch 1, with its default size; it fetches whole blocks, so epoch 1 finds a part of its own reads there. Training uses it for stores; directories are read without it, and one is opened as a store here to measure it.".to_owned());
    let in_memory = fast.iter().filter(|medium| medium.is_memory());
    notes.extend(in_memory.map(|medium| format!("Stand-in: {} is memory in place of a burst buffer, not durable.", medium.name)));
    let device = |path: &Path| Mount::of(path).map(|mount| mount.device);
    for (slow, path) in slow.iter().filter_map(|slow| Some((slow, slow.place.local_path().ok()?))) {
        let same = fast.iter().filter(|medium| device(medium.scratch()) == device(path));
        notes.extend(same.map(|medium| format!("{} and {} are on one device: neither stands for a burst buffer.", slow.name, medium.name)));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_includes_the_time_of_staging() {
        let figure = |name: &str, more: &[(&str, f64)]| {
            let mut figure = Figure::measured("slow", name, "images/s", vec![1.0]);
            figure.more = more.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
            figure
        };
        let figures = [
            figure("read where it is, epoch 1", &[(FIRST, 0.5), (TOTAL, 10.0)]),
            figure("read where it is, epoch 2", &[(TOTAL, 20.0)]),
            figure("stage in to /fast", &[]),
            figure("copy on /fast, epoch 1", &[(FIRST, 8.25), (TOTAL, 9.0)]),
            figure("copy on /fast, epoch 2", &[(TOTAL, 11.0)]),
            figure("cache on /fast, epoch 1", &[(FIRST, 0.6), (TOTAL, 12.0)]),
        ];
        let told = summary("slow", &figures);
        assert_eq!(
            told,
            "slow: read where it is: first batch after 0.50 s, two epochs after 20.00 s; copy on /fast: first batch after 8.25 s, two epochs after 11.00 s."
        );
        assert_eq!(plot("slow", &figures).series[1].points, [(0.0, 8.25), (1.0, 9.0), (2.0, 11.0)]);
    }
}
