//! Measures packing, beside `cat` of the same files into one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use forebay_image::SeekDensity;
use forebay_pack::{Cancel, DatasetFormat, PackOptions, pack as run_pack};
use forebay_store::{DirLock, Durability, Location};

use crate::cold::{Cold, Evictor, Footprint};
use crate::measure::{Alternative, BenchReport, Delivered, Measurement, side_by_side};
use crate::{Error, Result};

const MB: f64 = 1e6;

/// Options of [`pack`].
#[derive(Debug, Clone)]
pub struct PackBenchOptions {
    /// Directory for the output. It is created, and the output is removed after each run.
    pub scratch: PathBuf,
    /// Threads that read and write; `None` selects what the machine allows.
    pub jobs: Option<usize>,
    /// How the page cache of the images is emptied before each run.
    pub cold: Cold,
    /// Counted runs of each alternative.
    pub runs: usize,
}

/// Measures `cat` of all files into one, and packing into both formats, with and without seek points and fsync. Rates are
/// source bytes per second.
///
/// # Errors
/// The source cannot be packed, or the scratch directory has too little space.
pub fn pack(source: &Path, options: &PackBenchOptions) -> Result<BenchReport> {
    fs::create_dir_all(&options.scratch)?;
    // Each run removes the output of the previous one, which must not belong to another process.
    let _lock = DirLock::acquire(&options.scratch)?;
    let scratch = &Scratch(options.scratch.join("forebay-bench-pack"));
    let evictor = Evictor::buffered(options.cold)?;
    let images = Footprint::tree(source)?;
    let sizes = images.local().iter().map(|file| fs::metadata(&file.path));
    let bytes = sizes.map(|file| Ok(file?.len())).sum::<Result<u64>>()?;
    let mut alternatives = Vec::new();
    for synced in [false, true] {
        let suffix = if synced { ", on disk" } else { "" };
        alternatives.push(Alternative::elsewhere(
            format!("cat into one file{suffix}"),
            "MB/s",
            move || cat(source, scratch, bytes, synced),
        ));
        for (name, format) in [
            ("pack --format tfrecord", DatasetFormat::TfRecord),
            ("pack --format indexed", DatasetFormat::INDEXED),
        ] {
            for (without, seek_points) in
                [(" --seek-points off", None), ("", Some(SeekDensity::Auto))]
            {
                let make = move || {
                    let mut pack = PackOptions::new(
                        Location::from(source),
                        Location::from(scratch.0.as_path()),
                    );
                    (pack.format, pack.seek_points) = (format, seek_points);
                    pack.jobs = options.jobs;
                    pack_once(pack, scratch, bytes, synced)
                };
                alternatives.push(Alternative::here(
                    format!("{name}{without}{suffix}"),
                    "MB/s",
                    make,
                ));
            }
        }
    }
    let title = format!("Packing {} ({:.1} MB)", source.display(), bytes as f64 / MB);
    let delivered = move |_: &Measurement| Delivered::local(bytes);
    let alternatives = alternatives
        .into_iter()
        .map(|one: Alternative<'_>| one.reading(images.clone(), evictor, delivered))
        .collect();
    let mut report = side_by_side(title, options.runs, alternatives)?;
    report.notes.push(
        "Rows without \"on disk\" leave the bytes in the page cache, as cat does; the others end with fsync.".into(),
    );
    Ok(report)
}

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn clear(&self) -> Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A destructor cannot report the error; the options name the directory.
        let _ = self.clear();
    }
}

fn cat(source: &Path, scratch: &Scratch, bytes: u64, synced: bool) -> Result<Measurement> {
    scratch.clear()?;
    fs::create_dir_all(&scratch.0)?;
    let target = scratch.0.join("cat");
    let start = Instant::now();
    let mut find = Command::new("find")
        .arg(source)
        .args(["-type", "f", "-print0"])
        .stdout(Stdio::piped())
        .spawn()?;
    let list = find.stdout.take().ok_or("find has no output")?;
    let done = Command::new("xargs")
        .args(["-0", "cat"])
        .stdin(list)
        .stdout(File::create(&target)?)
        .status()?;
    if !find.wait()?.success() || !done.success() {
        return Err(Error::from("cat of the source failed"));
    }
    if synced {
        File::open(&target)?.sync_all()?;
    }
    Ok(Measurement {
        amount: bytes as f64 / MB,
        seconds: start.elapsed().as_secs_f64(),
    })
}

fn pack_once(
    mut options: PackOptions,
    scratch: &Scratch,
    bytes: u64,
    synced: bool,
) -> Result<Measurement> {
    scratch.clear()?;
    options.durability = if synced {
        Durability::Synced
    } else {
        Durability::Cached
    };
    let start = Instant::now();
    run_pack(&options, &(), &Cancel::new())?;
    Ok(Measurement {
        amount: bytes as f64 / MB,
        seconds: start.elapsed().as_secs_f64(),
    })
}
