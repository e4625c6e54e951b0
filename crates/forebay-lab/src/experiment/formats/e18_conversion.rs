//! E18: what creating, listing, opening and packing a tree of image files costs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_pack::{Cancel, PackOptions, pack};
use forebay_store::Location;
use walkdir::WalkDir;

use crate::experiment::data::{ImageFile, MediumData, image_files};
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E18",
    title: "Raw trees, metadata and open files",
    question: "Can the storage take a tree of image files, and what does packing it need?",
    // Packing reads all images, which takes longer than another run.
    trials: |_| 4 + PACK_TIMES,
    run,
    ..Experiment::OTHER
};

const PACK_TIMES: usize = 3;
/// Maximum number of files that are created, and files per directory.
const EXTRACTED: usize = 2000;
const DIRECTORY: usize = 500;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
const EXTRACT: &str = "create and write files";

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    let names = [EXTRACT, "list directories", "stat files", "open and close files", "pack the tree"];
    for medium in &lab.media {
        let (images, limit) = (medium.images()?, lab.options.limit);
        let tree = medium.tree();
        let extracted = extractable(&images)?;
        let files = image_files(&images);
        let each = |name: &str, run: Box<dyn FnMut() -> Result<Sample>>| Trial::new(&medium.name, name, "files/s", run);
        let one_by_one = |name: &str, act: fn(&Path) -> io::Result<()>| {
            let images = images.clone();
            each(name, Box::new(move || by_file(&images, limit, act))).reading(files.clone(), Cache::Emptied)
        };
        let root = tree.clone();
        let trials = vec![
            Trial::new(&medium.name, names[0], "files/s", || extract(medium, &extracted, limit)),
            each(names[1], Box::new(move || list(&root))).reading(files.clone(), Cache::Emptied),
            one_by_one(names[2], |path| path.metadata().map(|_| ())),
            one_by_one(names[3], |path| File::open(path).map(|_| ())),
            Trial::new(&medium.name, names[4], "files/s", || pack_tree(medium, &tree, images.len(), &images))
                .reading(files.clone(), Cache::Emptied),
        ];
        found.figures.extend(lab.in_turns(trials)?);
    }
    let series = found.figures.chunks(names.len()).map(|figures| Series::bars(&figures[0].medium, FigureClass::Measured, figures));
    found.plots.push(Plot {
        title: "A tree of image files".to_owned(),
        x: "operation".to_owned(),
        scale: Scale::Names(names.map(str::to_owned).to_vec()),
        y: "files/s".to_owned(),
        series: series.collect(),
    });
    found.notes.push(format!(
        "One thread, but for packing; files that are created are not forced to disk one by one, and all are when the time ends. Directories are cached unless caches are emptied with root. {}",
        open_limit()
    ));
    Ok(found)
}

/// Reads up to 256 images into memory.
fn extractable(images: &[ImageFile]) -> Result<Vec<Vec<u8>>> {
    let some = images.iter().take(EXTRACTED.min(256));
    some.map(|image| Ok(fs::read(&image.path)?)).collect()
}

/// Creates files in several directories until the time is up or there are `EXTRACTED` files.
fn extract(medium: &MediumData, contents: &[Vec<u8>], limit: Duration) -> Result<Sample> {
    let root = medium.scratch().join("extracted");
    let begin = Instant::now();
    let (mut files, mut bytes) = (0, 0);
    for number in 0..EXTRACTED {
        let dir = root.join(format!("{:04}", number / DIRECTORY));
        if number % DIRECTORY == 0 {
            fs::create_dir_all(&dir)?;
        }
        let content = &contents[number % contents.len()];
        File::create(dir.join(format!("{number:08}.jpg")))?.write_all(content)?;
        files += 1;
        bytes += content.len();
        if begin.elapsed() > limit {
            break;
        }
    }
    crate::experiment::training::sync_all(&root)?;
    let seconds = begin.elapsed().as_secs_f64();
    fs::remove_dir_all(&root)?;
    Ok(Sample::new(f64::from(files) / seconds, 0, [("MB/s", bytes as f64 / 1e6 / seconds)]))
}

fn list(root: &Path) -> Result<Sample> {
    let begin = Instant::now();
    let mut files = 0u64;
    for entry in WalkDir::new(root) {
        files += u64::from(!entry?.file_type().is_dir());
    }
    Ok(Sample::new(files as f64 / begin.elapsed().as_secs_f64(), 0, []))
}

/// Calls `act` for each file, in shuffled order, until the time is up.
fn by_file(images: &[ImageFile], limit: Duration, act: fn(&Path) -> io::Result<()>) -> Result<Sample> {
    let begin = Instant::now();
    let mut files = 0u64;
    for image in images {
        act(&image.path)?;
        files += 1;
        if begin.elapsed() > limit {
            break;
        }
    }
    Ok(Sample::new(files as f64 / begin.elapsed().as_secs_f64(), 0, []))
}

fn pack_tree(medium: &MediumData, tree: &Path, files: usize, images: &[ImageFile]) -> Result<Sample> {
    let target: PathBuf = medium.scratch().join("packed");
    let options = PackOptions::new(Location::from(tree), Location::from(target.as_path()));
    let begin = Instant::now();
    let (packed, most) = with_open_files(|| pack(&options, &(), &Cancel::new()));
    packed?;
    let seconds = begin.elapsed().as_secs_f64();
    fs::remove_dir_all(&target)?;
    let bytes: u64 = images.iter().map(|image| image.bytes).sum();
    let mut sample = Sample::new(files as f64 / seconds, bytes, [("MB/s", bytes as f64 / 1e6 / seconds)]);
    sample.more.extend(most.map(|most| ("most open files".to_owned(), most as f64)));
    Ok(sample)
}

/// Runs `work` and returns its result with the most files that the process had open meanwhile; `None` without /proc.
fn with_open_files<T>(work: impl FnOnce() -> T) -> (T, Option<usize>) {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = None;
            while !ended.load(Ordering::Acquire) {
                let open = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
                most = most.max(open);
                thread::sleep(BETWEEN_LOOKS);
            }
            most
        });
        let done = work();
        ended.store(true, Ordering::Release);
        (done, watcher.join().ok().flatten())
    })
}

/// Returns a sentence with the limit of open files of this process.
fn open_limit() -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some(limit) => format!("The process may have {limit} files open."),
        None => "The limit of open files is unknown.".to_owned(),
    }
}
