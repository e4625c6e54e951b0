//! The data of a medium: generated images as single files, the same images in shards, and a large file.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_pack::{Cancel, DatasetFormat, PackOptions, pack};
use forebay_shard::example::image_and_label;
use forebay_shard::{Dataset, Split};
use forebay_store::Location;
use forebay_synthetic::Recipe;

use super::CharacterizeOptions;
use super::lab::{Once, name_of};
use crate::Result;
use crate::random::Random;
use crate::storage::{self, RunOptions, WriteJob};

/// The mean size of generated images, rounded up.
pub(super) const MEAN_BYTES: u64 = 125_000;
/// Files in a directory.
const DIRECTORY_FILES: usize = 1000;
/// Writes in flight while the large file is made.
const WRITE_DEPTH: usize = 4;
const WRITE_BLOCK: u32 = 4 << 20;
const SEED: u64 = 7;

/// A directory on a medium, and what was written there.
#[derive(Debug)]
pub(super) struct MediumData {
    pub(super) name: String,
    /// Removed at the end.
    scratch: tempfile::TempDir,
    files: u64,
    size: u64,
    images: Once<Rc<[ImageFile]>>,
    tfrecord: Once<Split>,
    indexed: Once<Split>,
    large: Once<PathBuf>,
    direct: Once<bool>,
}

/// An image in a file of its own.
#[derive(Debug, Clone)]
pub(super) struct ImageFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

impl MediumData {
    pub(super) fn new(medium: &Path, options: &CharacterizeOptions) -> Result<Self> {
        let failed = |error| format!("cannot write to {}: {error}", medium.display());
        fs::create_dir_all(medium).map_err(failed)?;
        let scratch = tempfile::Builder::new()
            .prefix("forebay-bench-")
            .tempdir_in(medium);
        Ok(Self {
            name: name_of(medium),
            scratch: scratch.map_err(failed)?,
            files: options.files,
            // Whole blocks, of all sizes that are read.
            size: (options.size / u64::from(WRITE_BLOCK)).max(1) * u64::from(WRITE_BLOCK),
            images: Once::default(),
            tfrecord: Once::default(),
            indexed: Once::default(),
            large: Once::default(),
            direct: Once::default(),
        })
    }

    /// The images in shuffled order, which is not the order in which they were written.
    pub(super) fn images(&self) -> Result<Rc<[ImageFile]>> {
        self.images.get(|| {
            let root = self.scratch.path().join("files");
            let dataset =
                Recipe::parse(&format!("synthetic://imagenet?records={}", self.files))?.open()?;
            let split = dataset.split("train")?;
            let mut order: Vec<u64> = (0..split.len()).collect();
            Random::new(SEED).shuffle(&mut order);
            let mut record = Vec::new();
            let mut images = Vec::with_capacity(order.len());
            for (place, number) in order.into_iter().enumerate() {
                split.read(number, &mut record)?;
                let (image, label) = image_and_label(&record)?;
                // Classes are directories: the files are packed as they are.
                let class = label.unwrap_or(0) as usize
                    % self.files.div_ceil(DIRECTORY_FILES as u64) as usize;
                let dir = root.join(format!("class-{class:04}"));
                if place < DIRECTORY_FILES || !dir.is_dir() {
                    fs::create_dir_all(&dir)?;
                }
                let path = dir.join(format!("{number:08}.jpg"));
                File::create(&path)?.write_all(image)?;
                images.push(ImageFile {
                    path,
                    bytes: image.len() as u64,
                });
            }
            Random::new(SEED + 1).shuffle(&mut images);
            Ok(images.into())
        })
    }

    /// The images in TFRecords.
    pub(super) fn tfrecord(&self) -> Result<Split> {
        self.tfrecord
            .get(|| self.packed("tfrecord", DatasetFormat::TfRecord))
    }

    /// The images in indexed shards.
    pub(super) fn indexed(&self) -> Result<Split> {
        self.indexed
            .get(|| self.packed("indexed", DatasetFormat::INDEXED))
    }

    fn packed(&self, name: &str, format: DatasetFormat) -> Result<Split> {
        self.images()?;
        let target = self.scratch.path().join(name);
        let source = Location::from(self.scratch.path().join("files").as_path());
        let mut options = PackOptions::new(source, Location::from(target.as_path()));
        options.format = format;
        pack(&options, &(), &Cancel::new())?;
        let dataset = Dataset::open(&target)?;
        let split = dataset.splits().next().map(str::to_owned);
        Ok(dataset.split(&split.ok_or("the pack has no split")?)?)
    }

    /// A large file of bytes that nothing can compress.
    pub(super) fn large(&self) -> Result<PathBuf> {
        self.large.get(|| {
            let path = self.scratch.path().join("large");
            let job = WriteJob {
                path: path.clone(),
                bytes: self.size,
                block: WRITE_BLOCK,
                random: false,
                direct: false,
            };
            storage::write(&job, &RunOptions::at_depth(WRITE_DEPTH))?;
            Ok(path)
        })
    }

    /// Length of the large file in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// A path for a file that is written in a run.
    pub(super) fn scratch_file(&self) -> PathBuf {
        self.scratch.path().join("written")
    }

    /// The directory of this medium that everything lies in.
    pub(super) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Whether the file system can bypass the page cache.
    pub(super) fn direct_works(&self) -> Result<bool> {
        self.direct.get(|| {
            let job = WriteJob {
                path: self.scratch.path().join("direct"),
                bytes: 1 << 16,
                block: 1 << 16,
                random: false,
                direct: true,
            };
            Ok(storage::write(&job, &RunOptions::at_depth(1)).is_ok())
        })
    }
}
