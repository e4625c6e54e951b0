//! The files of a synthetic dataset, with the configured delays and faults of reads.
//!
//! Faults are a function of the seed and the index of the read, so all runs have about the same number of faults.
//! Damage is a function of the record: each read of the record returns the same wrong byte.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_shard::dataset::INDEX_DIRECTORY;
use forebay_shard::manifest::{ClassEntry, FILE_NAME, ShardEntry, SplitEntry};
use forebay_shard::{Dataset, Manifest, ReadAt, ReadProfile, Result, ShardFormat, Storage};

use crate::pictures::{self, Random};
use crate::recipe::Recipe;
use crate::shard::{Body, CLASSES, LABEL_BASE, class_name};

/// With delays, the storage has the read profile of an object store: the number of concurrent
/// reads, and the gap in bytes below which two ranges are read at once.
const FAR_PARALLEL: usize = 32;
const FAR_GAP_BYTES: u64 = 512 << 10;
const FAR_TAIL_BYTES: u64 = 64 << 10;

impl Recipe {
    /// Generates the images. Returns the root of the dataset and a storage with its files.
    ///
    /// # Errors
    /// `decode=off`, which has no files; errors while generating images.
    pub fn storage(&self) -> forebay_shard::Result<(PathBuf, Arc<dyn Storage>)> {
        if !self.decode {
            return Err(forebay_shard::Error::Invalid {
                problem: format!(
                    "{}: decode=off has no records to read: only `forebay serve` hands out batches of it",
                    self.url()
                ),
            });
        }
        let storage = SyntheticStorage::new(self)?;
        Ok((PathBuf::from(self.url()), Arc::new(storage)))
    }

    /// Opens the synthetic dataset.
    ///
    /// # Errors
    /// As [`storage`](Self::storage).
    pub fn open(&self) -> forebay_shard::Result<Dataset> {
        let (root, storage) = self.storage()?;
        Dataset::options().storage(storage).open(root)
    }
}

/// The files of a synthetic dataset.
#[derive(Debug)]
pub struct SyntheticStorage {
    root: PathBuf,
    shards: u64,
    manifest: Arc<Vec<u8>>,
    /// The content of all shards except the last.
    body: Arc<Body>,
    last: Arc<Body>,
    weather: Arc<SimulatedStorage>,
}

impl SyntheticStorage {
    /// Generates the images and computes the content of the manifest.
    pub(crate) fn new(recipe: &Recipe) -> Result<Self> {
        let pictures = pictures::draw(recipe.pictures, recipe.seed, recipe.seek_points)?;
        let pictures = Arc::new(pictures);
        let shards = recipe.records.div_ceil(CLASSES);
        let rest = recipe.records - (shards - 1) * CLASSES;
        let last = Arc::new(Body::new(&pictures, rest)?);
        let body = match shards {
            1 => Arc::clone(&last),
            _ if rest == CLASSES => Arc::clone(&last),
            _ => Arc::new(Body::new(&pictures, CLASSES)?),
        };
        let entries = (0..shards).map(|shard| {
            let body = if shard + 1 == shards { &last } else { &body };
            ShardEntry {
                name: shard_name(shard, shards),
                records: body.records(),
                bytes: body.len(),
                crc32c: body.crc32c(),
                blake3: None,
            }
        });
        let mut manifest = Manifest::new(
            ShardFormat::TfRecord,
            LABEL_BASE,
            vec![SplitEntry::new("train", entries.collect())],
        );
        let class = |class| ClassEntry {
            name: class_name(class),
            text: None,
        };
        manifest.classes = (0..CLASSES).map(class).collect();
        Ok(SyntheticStorage {
            root: PathBuf::from(recipe.url()),
            shards,
            manifest: Arc::new(manifest.to_json()?.into_bytes()),
            body,
            last,
            weather: Arc::new(SimulatedStorage::new(recipe)),
        })
    }

    fn file(&self, path: &Path) -> io::Result<File> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let name = path.strip_prefix(&self.root).map_err(|_| missing())?;
        let name = name.to_str().ok_or_else(missing)?;
        if name == FILE_NAME {
            return Ok(File::Whole(Arc::clone(&self.manifest)));
        }
        let (shard, is_index) = match name
            .strip_prefix(INDEX_DIRECTORY)
            .and_then(|name| name.strip_prefix('/')?.strip_suffix(".fbi"))
        {
            Some(shard) => (shard, true),
            None => (name, false),
        };
        let number = shard
            .strip_prefix("train-")
            .and_then(|shard| shard.split('-').next())
            .and_then(|number| number.parse::<u64>().ok())
            .filter(|&number| number < self.shards && shard_name(number, self.shards) == shard)
            .ok_or_else(missing)?;
        let body = match number + 1 == self.shards {
            true => &self.last,
            false => &self.body,
        };
        let body = Arc::clone(body);
        Ok(match is_index {
            true => File::Index(body),
            false => File::Shard(body, number),
        })
    }
}

fn shard_name(shard: u64, shards: u64) -> String {
    format!("train-{shard:05}-of-{shards:05}")
}

impl Storage for SyntheticStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        Ok(Arc::new(OpenFile {
            file: self.file(path)?,
            weather: Arc::clone(&self.weather),
        }))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.file(path).is_ok())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let names = (0..self.shards).map(|shard| shard_name(shard, self.shards));
        if dir == self.root {
            let mut all: Vec<OsString> = names.map(OsString::from).collect();
            all.extend([FILE_NAME.into(), INDEX_DIRECTORY.into()]);
            return Ok(all);
        }
        if dir == self.root.join(INDEX_DIRECTORY) {
            return Ok(names.map(|name| format!("{name}.fbi").into()).collect());
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn read_profile(&self) -> ReadProfile {
        let mut profile = ReadProfile::default();
        if self.weather.is_remote() {
            profile.parallel = FAR_PARALLEL;
            profile.gap_bytes = FAR_GAP_BYTES;
            profile.tail_bytes = FAR_TAIL_BYTES;
        }
        profile
    }
}

enum File {
    Whole(Arc<Vec<u8>>),
    Index(Arc<Body>),
    /// A shard's content and its index.
    Shard(Arc<Body>, u64),
}

struct OpenFile {
    file: File,
    weather: Arc<SimulatedStorage>,
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenFile({} bytes)", self.len())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} records)", self.records())
    }
}

impl ReadAt for OpenFile {
    fn len(&self) -> u64 {
        match &self.file {
            File::Whole(bytes) => bytes.len() as u64,
            File::Index(body) => body.index().len() as u64,
            File::Shard(body, _) => body.len(),
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let is_data = matches!(self.file, File::Shard(..));
        self.weather.weather(buf.len() as u64, is_data)?;
        // The caller has checked that the range is within the file.
        let whole = |bytes: &[u8], buf: &mut [u8]| {
            buf.copy_from_slice(&bytes[offset as usize..offset as usize + buf.len()]);
        };
        match &self.file {
            File::Whole(bytes) => whole(bytes, buf),
            File::Index(body) => whole(body.index(), buf),
            File::Shard(body, shard) => {
                body.read(buf, offset);
                self.weather.damage(body, *shard, buf, offset);
            }
        }
        Ok(())
    }
}

/// Simulated delays and failures of reads.
#[derive(Debug)]
struct SimulatedStorage {
    latency: Duration,
    bandwidth: Option<u64>,
    stall: Option<(f64, Duration)>,
    fail: f64,
    damage: f64,
    seed: u64,
    reads: AtomicU64,
    /// Time at which all earlier bytes have been transferred over the simulated connection.
    line: Mutex<Option<Instant>>,
}

impl SimulatedStorage {
    fn new(recipe: &Recipe) -> Self {
        SimulatedStorage {
            latency: recipe.latency,
            bandwidth: recipe.bandwidth,
            stall: recipe.stall,
            fail: recipe.fail,
            damage: recipe.damage,
            seed: recipe.seed,
            reads: AtomicU64::new(0),
            line: Mutex::new(None),
        }
    }

    /// Returns whether readers should treat the storage like a remote store.
    fn is_remote(&self) -> bool {
        !self.latency.is_zero() || self.bandwidth.is_some() || self.stall.is_some()
    }

    /// Delays one read, or fails it. Only reads of records fail, so that a dataset can be opened.
    fn weather(&self, bytes: u64, is_data: bool) -> io::Result<()> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::new(self.seed ^ read.wrapping_mul(0xd6e8_feb8_6659_fd93));
        let mut wait = self.latency;
        if let Some((part, time)) = self.stall
            && random.happens(part)
        {
            wait += time;
        }
        if let Some(bandwidth) = self.bandwidth {
            wait += self.queue(bytes, bandwidth, Instant::now());
        }
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        if is_data && random.happens(self.fail) {
            let what = "this read fails because fail= of the synthetic dataset asks for it";
            return Err(io::Error::other(what));
        }
        Ok(())
    }

    /// Returns the time until `bytes` are transferred, after all bytes of earlier reads.
    fn queue(&self, bytes: u64, bandwidth: u64, now: Instant) -> Duration {
        let takes = Duration::from_secs_f64(bytes as f64 / bandwidth as f64);
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let free = line.unwrap_or(now).max(now) + takes;
        *line = Some(free);
        free - now
    }

    /// Changes the byte in the middle of each image that is damaged.
    fn damage(&self, body: &Body, shard: u64, buf: &mut [u8], offset: u64) {
        if self.damage <= 0.0 {
            return;
        }
        let range = offset..offset + buf.len() as u64;
        for record in body.records_in(&range) {
            let number = shard * CLASSES + record;
            let mut random = Random::new(!self.seed ^ number.wrapping_mul(0xa076_1d64_78bd_642f));
            let at = body.middle_of(record);
            if range.contains(&at) && random.happens(self.damage) {
                buf[(at - offset) as usize] ^= 0x55;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_shard::{Dataset, Shard, image_record};

    use super::*;

    fn recipe(query: &str) -> Recipe {
        Recipe::parse(&format!("synthetic://imagenet?pictures=2&{query}")).unwrap()
    }

    fn open(query: &str) -> Dataset {
        recipe(query).open().unwrap()
    }

    #[test]
    fn a_synthetic_dataset_is_complete() {
        let dataset = open("records=2100");
        let split = dataset.split("train").unwrap();
        assert_eq!((split.len(), split.shards().len()), (2100, 3));
        assert_eq!(split.classes().len(), 1000);
        let mut labels = std::collections::BTreeMap::new();
        let mut record = Vec::new();
        for number in [0, 1, 31, 999, 1000, 2000, 2099] {
            split.read(number, &mut record).unwrap();
            let found = image_record(&record).unwrap();
            assert_eq!(found.label, split.label(number));
            assert!(forebay_image::probe(found.image, &Default::default()).is_ok());
            assert!(found.seek_points.is_some());
        }
        for number in 0..2000 {
            *labels.entry(split.label(number).unwrap()).or_insert(0) += 1;
        }
        assert!(labels.len() == 1000 && labels.values().all(|&count| count == 2));
        // Compares every byte with the checksums of the manifest.
        let scan = split.shards()[2].scan(0..100);
        assert_eq!(scan.count(), 100);
    }

    #[test]
    fn delays_do_not_change_the_dataset() {
        let plain = open("records=1500");
        let slow = open("records=1500&latency=1us&bandwidth=100GB&stall=0.01:1us");
        assert_eq!(plain.fingerprint(), slow.fingerprint());
        assert_ne!(plain.fingerprint(), open("records=1501").fingerprint());
        assert_ne!(
            plain.fingerprint(),
            open("records=1500&seed=1").fingerprint()
        );
        assert!(
            !plain.storage().read_profile().is_remote()
                && slow.storage().read_profile().is_remote()
        );
    }

    #[test]
    fn any_range_of_a_shard_can_be_read() {
        let (root, storage) = recipe("records=20").storage().unwrap();
        let file = storage.open(&root.join("train-00000-of-00001")).unwrap();
        let mut whole = vec![0; file.len() as usize];
        file.read_exact_at(&mut whole, 0).unwrap();
        for (from, to) in [
            (0, 1),
            (11, 13),
            (5, 300_000),
            (whole.len() - 1, whole.len()),
        ] {
            let mut part = vec![0; to - from];
            file.read_exact_at(&mut part, from as u64).unwrap();
            assert_eq!(part, whole[from..to], "{from}..{to}");
        }
        assert!(
            file.read_exact_at(&mut [0; 2], whole.len() as u64 - 1)
                .is_err()
        );
        assert!(file.read_exact_at(&mut [0; 2], u64::MAX).is_err());
        // Parses records as TensorFlow does.
        let mut at = 0;
        for _ in 0..20 {
            let len = u64::from_le_bytes(whole[at..at + 8].try_into().unwrap()) as usize;
            let crc = forebay_shard::checksum::crc32c(&whole[at + 12..at + 12 + len]);
            let tail: [u8; 4] = whole[at + 12 + len..at + 16 + len].try_into().unwrap();
            assert_eq!(u32::from_le_bytes(tail), forebay_shard::checksum::mask(crc));
            at += 16 + len;
        }
        assert_eq!(at, whole.len());
        for missing in [
            "train-00001-of-00001",
            "train-0-of-00001",
            "index/x.fbi",
            "x",
        ] {
            assert!(!storage.exists(&root.join(missing)).unwrap(), "{missing}");
        }
    }

    #[test]
    fn generated_files_pass_storage_conformance() {
        let (root, storage) = recipe("records=3").storage().unwrap();
        let files = [
            "forebay.json",
            "train-00000-of-00001",
            "index/train-00000-of-00001.fbi",
        ]
        .map(|name| (name, storage.read(&root.join(name), u64::MAX).unwrap()));
        forebay_shard::storage::conformance::check_as(&*storage, &root, &files);
    }

    #[test]
    fn damage_is_the_same_in_each_read() {
        let dataset = open("records=300&damage=0.1");
        let split = dataset.split("train").unwrap();
        let bad = || {
            let mut record = Vec::new();
            (0..300)
                .filter(|&number| split.read(number, &mut record).is_err())
                .collect::<Vec<u64>>()
        };
        let first = bad();
        assert!((10..60).contains(&first.len()), "{first:?}");
        assert_eq!(bad(), first);
    }

    #[test]
    fn reads_fail_with_the_given_probability() {
        let (root, storage) = recipe("records=10&fail=0.2").storage().unwrap();
        let file = storage.open(&root.join("train-00000-of-00001")).unwrap();
        let failed = (0..1000).filter(|_| file.read_exact_at(&mut [0; 9], 3).is_err());
        let failed = failed.count();
        assert!((120..280).contains(&failed), "{failed}");
    }

    #[test]
    fn reads_share_the_bandwidth() {
        let weather = SimulatedStorage::new(&recipe("bandwidth=1MB"));
        let now = Instant::now();
        assert_eq!(
            weather.queue(500_000, 1_000_000, now),
            Duration::from_millis(500)
        );
        assert_eq!(
            weather.queue(250_000, 1_000_000, now),
            Duration::from_millis(750)
        );
        let later = now + Duration::from_secs(2);
        assert_eq!(
            weather.queue(1_000_000, 1_000_000, later),
            Duration::from_secs(1)
        );
    }

    #[test]
    fn a_single_shard_can_be_opened() {
        let (root, storage) = recipe("records=5").storage().unwrap();
        let path = root.join("train-00000-of-00001");
        let shard = Shard::options().storage(storage).open(&path).unwrap();
        assert_eq!(shard.len(), 5);
    }
}
