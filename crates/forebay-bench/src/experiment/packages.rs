//! Formats that are read by the packages that they belong to: worker processes of Python, beside Forebay's loader.
//!
//! `package_readers.py` is the other side. Each format has a process of its own, which imports its package once.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use forebay_pack::RecordFormat;
use serde_json::{Value, json};

use super::CharacterizeOptions;
use super::data::{FIRST_LABEL, MediumData};
use super::formats::{self, Differences};
use crate::Result;
use crate::cold::Footprint;

static READERS: &str = include_str!("package_readers.py");
/// The longest time without an answer, beyond that of a run: imports, and writing a format.
const PATIENCE: Duration = Duration::from_secs(300);

/// A format and its package.
struct Package {
    /// The name in `package_readers.py`.
    reader: &'static str,
    /// The name in tables.
    name: &'static str,
    source: Source,
    rows: Rows,
}

/// The files that a package reads.
#[derive(Clone, Copy)]
enum Source {
    /// The image files.
    Tree,
    /// Files that it writes from the image files.
    FromTree,
    /// Converted from the indexed shards.
    Records(RecordFormat),
    /// Pixels, converted from images of one size.
    Pixels(RecordFormat),
    /// Files that it writes from the pixels.
    FromPixels,
}

/// The rows of a chunk.
#[derive(Clone, Copy)]
enum Rows {
    /// The format has no chunks that are chosen here.
    Own,
    Of(u64),
    Batch,
}

const fn package(reader: &'static str, name: &'static str, source: Source) -> Package {
    Package {
        reader,
        name,
        source,
        rows: Rows::Own,
    }
}

const fn zarr(name: &'static str, rows: Rows) -> Package {
    Package {
        rows,
        ..package("zarr", name, Source::FromPixels)
    }
}

static PACKAGES: [Package; 15] = [
    package("files", "files, Python", Source::Tree),
    package("zip", "zip, zipfile", Source::FromTree),
    package(
        "webdataset",
        "tar, webdataset",
        Source::Records(RecordFormat::WEBDATASET),
    ),
    package(
        "tfrecord",
        "TFRecord, tfrecord",
        Source::Records(RecordFormat::TFRECORD),
    ),
    package("mds", "MDS, streaming", Source::Records(RecordFormat::MDS)),
    package(
        "parquet",
        "Parquet, pyarrow",
        Source::Records(RecordFormat::PARQUET),
    ),
    package("lmdb", "LMDB, lmdb", Source::Records(RecordFormat::LMDB)),
    package(
        "arrayrecord",
        "ArrayRecord, array_record",
        Source::Records(RecordFormat::ARRAY_RECORD),
    ),
    package(
        "hdf5",
        "HDF5 pixels, h5py",
        Source::Pixels(RecordFormat::HDF5),
    ),
    package(
        "safetensors",
        "safetensors pixels, safetensors",
        Source::Pixels(RecordFormat::SAFETENSORS),
    ),
    zarr("Zarr pixels in chunks of 1, zarr", Rows::Of(1)),
    zarr("Zarr pixels in chunks of a batch, zarr", Rows::Batch),
    zarr("Zarr pixels in chunks of 1000, zarr", Rows::Of(1000)),
    package("npy", "npy pixels, numpy", Source::FromPixels),
    package("pt", "pt pixels, torch", Source::FromPixels),
];

/// The packages that are measured with these options.
fn chosen(options: &CharacterizeOptions) -> impl Iterator<Item = &'static Package> {
    let has_python = options.python.is_some();
    PACKAGES
        .iter()
        .filter(move |known| has_python && options.has_format(known.reader))
}

/// How many they are.
pub(super) fn count(options: &CharacterizeOptions) -> usize {
    chosen(options).count()
}

/// How many of them have chunks whose rows are chosen.
pub(super) fn chunked(options: &CharacterizeOptions) -> usize {
    let chosen = chosen(options);
    chosen
        .filter(|known| !matches!(known.rows, Rows::Own))
        .count()
}

/// The names of all formats that packages read.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PACKAGES.iter().map(|known| known.reader)
}

/// The formats whose packages could be imported, with their files.
#[derive(Debug)]
pub(super) struct Packages {
    pub(super) stored: Vec<StoredPackage>,
    /// The others, with the reason of each.
    pub(super) missing: Vec<String>,
    /// Versions of the packages.
    pub(super) versions: Vec<String>,
}

/// A format with its files, and the process that reads them.
#[derive(Debug)]
pub(super) struct StoredPackage {
    pub(super) name: &'static str,
    pub(super) reader: &'static str,
    /// Whether it holds pixels.
    pub(super) is_pixels: bool,
    /// Rows of a chunk, where they are chosen.
    pub(super) rows: Option<u64>,
    pub(super) files: Footprint,
    place: PathBuf,
    batch: u64,
    /// The largest image.
    largest: u64,
    process: RefCell<Process>,
}

/// How an epoch is read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reading {
    pub(super) workers: usize,
    /// How long the consumer is busy with a batch.
    pub(super) step: Duration,
    /// Whether chunks are shuffled, and their rows stay together.
    pub(super) by_chunk: bool,
    /// Whether all workers share the file that was opened before they were forked.
    pub(super) is_shared: bool,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub(super) struct PackageRun {
    pub(super) images: u64,
    pub(super) batches: u64,
    /// Bytes of the images of all batches.
    pub(super) bytes: u64,
    /// Bytes that workers read, those of batches that were not taken included.
    pub(super) read: u64,
    pub(super) seconds: f64,
    pub(super) waited: f64,
    /// Bytes that its processes had read from devices.
    pub(super) from_storage: u64,
}

impl Packages {
    /// Writes the files of all formats whose packages can be imported.
    pub(super) fn prepare(medium: &MediumData, options: &CharacterizeOptions) -> Result<Self> {
        let mut found = Self {
            stored: Vec::new(),
            missing: Vec::new(),
            versions: Vec::new(),
        };
        let Some(python) = &options.python else {
            return Ok(found);
        };
        for known in chosen(options) {
            let process = Process::begin(python, known.reader)?;
            match known.store(process, medium, options) {
                Ok((stored, version)) => {
                    found.stored.push(stored);
                    if !found.versions.contains(&version) {
                        found.versions.push(version);
                    }
                }
                Err(error) => found.missing.push(format!("{}: {error}", known.name)),
            }
        }
        Ok(found)
    }
}

impl Package {
    /// Its files, which are written first, and the version of the package.
    fn store(
        &self,
        mut process: Process,
        medium: &MediumData,
        options: &CharacterizeOptions,
    ) -> Result<(StoredPackage, String)> {
        let version = process.ask(&json!({"do": "open"}), PATIENCE)?;
        let version = version["package"].as_str().unwrap_or_default().to_owned();
        let rows = match self.rows {
            Rows::Own => None,
            Rows::Of(rows) => Some(rows),
            Rows::Batch => Some(options.batch_size),
        };
        let folder = match rows {
            Some(rows) => format!("{}-{rows}", self.reader),
            None => self.reader.to_owned(),
        };
        let place = medium.scratch().join("packages").join(folder);
        let mut write = |from: &Path| {
            let request = json!({
                "do": "write", "from": utf8(from)?, "to": utf8(&place)?, "rows": rows.unwrap_or(0),
            });
            process.ask(&request, PATIENCE)?;
            super::training::sync_all(&place)
        };
        let place = match self.source {
            Source::Tree => {
                medium.images()?;
                medium.tree()
            }
            Source::FromTree => {
                medium.images()?;
                write(&medium.tree())?;
                place
            }
            Source::Records(format) => {
                medium.indexed()?;
                let from = medium.scratch().join("indexed");
                formats::convert_to(&from, format, formats::SHARDS, &place)?;
                place
            }
            Source::Pixels(format) => {
                formats::convert_to(&medium.squares()?, format, 1, &place)?;
                place
            }
            Source::FromPixels => {
                write(&medium.pixels()?)?;
                place
            }
        };
        let is_pixels = matches!(self.source, Source::Pixels(_) | Source::FromPixels);
        let largest = match is_pixels {
            true => 3 * u64::from(options.side).pow(2),
            false => {
                let images = medium.images()?;
                images.iter().map(|image| image.bytes).max().unwrap_or(0)
            }
        };
        let stored = StoredPackage {
            name: self.name,
            reader: self.reader,
            is_pixels,
            rows,
            files: Footprint::tree(&place)?,
            place,
            batch: options.batch_size,
            largest,
            process: RefCell::new(process),
        };
        Ok((stored, version))
    }
}

impl StoredPackage {
    /// Reads for a time, at most an epoch.
    pub(super) fn run(&self, reading: Reading, limit: Duration) -> Result<PackageRun> {
        let mut request = self.request("run", reading)?;
        request["seconds"] = json!(limit.as_secs_f64());
        request["step"] = json!(reading.step.as_secs_f64());
        let answer = self.process.borrow_mut().ask(&request, limit + PATIENCE)?;
        Ok(serde_json::from_value(answer)?)
    }

    /// Reads an epoch, and compares all samples with those that are right; gives the bytes of the images, too.
    pub(super) fn differences(
        &self,
        reading: Reading,
        right: &[u64],
    ) -> Result<(Differences, PackageRun)> {
        let request = self.request("hash", reading)?;
        let mut answer = self.process.borrow_mut().ask(&request, PATIENCE)?;
        let hashes: Vec<u64> = serde_json::from_value(answer["hashes"].take())?;
        let found = formats::differences(&hashes, right);
        Ok((found, serde_json::from_value(answer)?))
    }

    fn request(&self, act: &str, reading: Reading) -> Result<Value> {
        Ok(json!({
            "do": act,
            "place": utf8(&self.place)?,
            "workers": reading.workers,
            "batch": self.batch,
            "largest": self.largest,
            "rows": self.rows.filter(|_| reading.by_chunk).unwrap_or(0),
            "first_label": FIRST_LABEL,
            "is_shared": reading.is_shared,
            "seed": 0,
        }))
    }

    /// Bytes of its files.
    pub(super) fn stored_bytes(&self) -> u64 {
        let files = self.files.local().iter();
        files
            .filter_map(|file| fs::metadata(&file.path).ok())
            .map(|found| found.len())
            .sum()
    }
}

/// A path as Python gets it.
fn utf8(path: &Path) -> Result<&str> {
    Ok(path
        .to_str()
        .ok_or_else(|| format!("\"{}\" is not UTF-8, which packages need", path.display()))?)
}

/// A Python that answers requests.
#[derive(Debug)]
struct Process {
    name: &'static str,
    child: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
}

impl Process {
    fn begin(python: &Path, name: &'static str) -> Result<Self> {
        let started = Command::new(python)
            .args(["-c", READERS, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child =
            started.map_err(|error| format!("cannot start \"{}\": {error}; --python names the interpreter that has the packages", python.display()))?;
        let (Some(requests), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the interpreter has no pipes".into());
        };
        let (send, answers) = mpsc::channel();
        thread::spawn(move || {
            // Ends with the process, or with the receiver.
            for line in BufReader::new(output).lines().map_while(|line| line.ok()) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            name,
            child,
            requests,
            answers,
        })
    }

    /// The answer to a request; an error that the process reports, or that it ended or was silent for too long.
    fn ask(&mut self, request: &Value, patience: Duration) -> Result<Value> {
        let begin = Instant::now();
        let sent = writeln!(self.requests, "{request}").and_then(|()| self.requests.flush());
        let answer = match sent {
            Ok(()) => self.answers.recv_timeout(patience).ok(),
            Err(_) => None,
        };
        let Some(answer) = answer else {
            let _ = self.child.kill();
            let status = self.child.wait()?;
            return Err(format!(
                "the reader of {} gave no answer within {:.0} s ({status})",
                self.name,
                begin.elapsed().as_secs_f64()
            )
            .into());
        };
        let answer: Value = forebay_shard::json::from_str(&answer)?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(error.to_owned().into()),
            None => Ok(answer),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its workers end with their pipes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python() -> PathBuf {
        "python3".into()
    }

    #[test]
    fn readers_answer_and_name_what_is_missing() {
        let mut files = Process::begin(&python(), "files").unwrap();
        let answer = files.ask(&json!({"do": "open"}), PATIENCE).unwrap();
        assert!(
            answer["package"]
                .as_str()
                .unwrap()
                .starts_with("os of Python 3")
        );
        let request = json!({
            "do": "run", "place": "/nowhere", "workers": 1, "batch": 1, "largest": 1, "seed": 0, "seconds": 1, "step": 0,
        });
        let error = files.ask(&request, PATIENCE).unwrap_err().to_string();
        assert!(
            error.contains("FileNotFoundError") && error.contains("/nowhere"),
            "{error}"
        );
        let mut unknown = Process::begin(&python(), "unknown").unwrap();
        let error = unknown.ask(&json!({"do": "open"}), PATIENCE).unwrap_err();
        assert!(error.to_string().contains("KeyError"), "{error}");
        let error = Process::begin(Path::new("/no/python"), "files").unwrap_err();
        assert!(error.to_string().contains("--python"), "{error}");
    }

    #[test]
    fn a_reader_that_is_silent_is_ended() {
        let mut files = Process::begin(&python(), "files").unwrap();
        let dir = tempfile::tempdir().unwrap();
        for number in 0..8 {
            fs::write(dir.path().join(format!("{number}.png")), "image").unwrap();
        }
        let request = json!({
            "do": "run", "place": dir.path(), "workers": 2, "batch": 1, "largest": 9, "seed": 0, "seconds": 600, "step": 600,
        });
        let error = files.ask(&request, Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("gave no answer"), "{error}");
    }

    #[test]
    fn workers_give_every_sample_once_and_stop_in_time() {
        let dir = tempfile::tempdir().unwrap();
        for class in ["a", "b"] {
            fs::create_dir(dir.path().join(class)).unwrap();
            for number in 0..10u8 {
                fs::write(
                    dir.path().join(class).join(format!("{number}.jpg")),
                    [number; 100],
                )
                .unwrap();
            }
        }
        let mut files = Process::begin(&python(), "files").unwrap();
        let base = json!({
            "do": "hash", "place": dir.path(), "workers": 3, "batch": 4, "largest": 100, "seed": 0,
        });
        let mut answer = files.ask(&base, PATIENCE).unwrap();
        let hashes: Vec<u64> = serde_json::from_value(answer["hashes"].take()).unwrap();
        let right: Vec<u64> = (0..2)
            .flat_map(|label| {
                (0..10u8).map(move |number| formats::content_hash(label, &[number; 100]))
            })
            .collect();
        let found = formats::differences(&hashes, &right);
        assert_eq!((found.wrong, found.missing, found.repeated), (0, 0, 0));
        let mut request = base.clone();
        (request["do"], request["seconds"], request["step"]) = (json!("run"), json!(0), json!(0));
        let ran: PackageRun =
            serde_json::from_value(files.ask(&request, PATIENCE).unwrap()).unwrap();
        assert_eq!(
            (ran.images, ran.bytes, ran.batches),
            (4, 400, 1),
            "one batch after the time is up"
        );
        assert!(
            ran.read >= ran.bytes && ran.waited <= ran.seconds,
            "{ran:?}"
        );
        let mut small = base;
        small["largest"] = json!(50);
        let error = files.ask(&small, PATIENCE).unwrap_err().to_string();
        assert!(error.contains("100 bytes"), "{error}");
    }
}
