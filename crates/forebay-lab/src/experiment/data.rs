//! The data of a medium: generated images as single files, the same images in shards, and a large file.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_image::{Limits, sniff, standard_image};
use forebay_pack::{Cancel, DatasetFormat, PackOptions, pack};
use forebay_shard::Split;
use forebay_shard::example::image_and_label;
use forebay_store::Location;
use forebay_synthetic::Recipe;
use walkdir::WalkDir;

use super::CharacterizeOptions;
use super::once::Once;
use super::stored::{self, Stored, first_split};
use crate::Result;
use crate::cold::{Footprint, FsClass, Mount};
use crate::random::Random;
use crate::read::record_bytes;
use crate::storage::{self, RunOptions, WriteJob};

/// The mean size of generated images, rounded up.
const MEAN_BYTES: u64 = 125_000;
/// Approximate number of images per class directory.
const DIRECTORY_FILES: usize = 1000;
/// Writes in flight while the large file is made.
const WRITE_DEPTH: usize = 4;
const WRITE_BLOCK: u32 = 4 << 20;
const SEED: u64 = 7;

/// Scratch directory on a medium. Each kind of data is written there on first use.
#[derive(Debug)]
pub(super) struct MediumData {
    pub(super) name: String,
    /// Removed on drop.
    scratch: tempfile::TempDir,
    files: u64,
    data: Option<PathBuf>,
    size: u64,
    images: Once<Rc<[ImageFile]>>,
    tfrecord: Once<Split>,
    indexed: Once<Split>,
    formats: Once<Rc<[Stored]>>,
    large: Once<PathBuf>,
    direct: Once<bool>,
}

/// An image file.
#[derive(Debug, Clone)]
pub(super) struct ImageFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Returns the files of images as a footprint, for emptying and filling the page cache.
pub(super) fn image_files(images: &[ImageFile]) -> Footprint {
    Footprint::files(images.iter().map(|image| &image.path))
}

impl MediumData {
    pub(super) fn new(medium: &Path, options: &CharacterizeOptions) -> Result<Self> {
        let failed = |error| format!("cannot write to {}: {error}", medium.display());
        fs::create_dir_all(medium).map_err(failed)?;
        let scratch = tempfile::Builder::new()
            .prefix("forebay-bench-")
            .tempdir_in(medium);
        Ok(Self {
            name: medium.display().to_string(),
            scratch: scratch.map_err(failed)?,
            files: options.files,
            data: options.data.clone(),
            // A multiple of the write block, and thereby of the smaller blocks that are read.
            size: (options.size / u64::from(WRITE_BLOCK)).max(1) * u64::from(WRITE_BLOCK),
            images: Once::default(),
            tfrecord: Once::default(),
            indexed: Once::default(),
            formats: Once::default(),
            large: Once::default(),
            direct: Once::default(),
        })
    }

    /// Returns the images in a shuffled order that differs from the order in which they were written.
    pub(super) fn images(&self) -> Result<Rc<[ImageFile]>> {
        self.images.get(|| {
            let root = self.tree();
            let split = source(self.data.as_deref(), self.files)?;
            let mut order: Vec<u64> = (0..split.len()).collect();
            Random::new(SEED).shuffle(&mut order);
            order.truncate(usize::try_from(self.files)?);
            let classes = (order.len().div_ceil(DIRECTORY_FILES)).max(1) as i64;
            let mut record = Vec::new();
            let mut images = Vec::with_capacity(order.len());
            for (place, number) in order.into_iter().enumerate() {
                split.read(number, &mut record)?;
                let (image, label) = image_and_label(&record)?;
                let image = standard_image(image, &Limits::default())?;
                let format = sniff(&image)
                    .ok_or_else(|| format!("record {number} of the dataset holds no image"))?;
                // Directories are classes, as the packer expects.
                let class = label.unwrap_or(0).rem_euclid(classes);
                let dir = root.join(format!("class-{class:04}"));
                if place < DIRECTORY_FILES || !dir.is_dir() {
                    fs::create_dir_all(&dir)?;
                }
                let path = dir.join(format!("{number:08}.{}", format.extension()));
                File::create(&path)?.write_all(&image)?;
                images.push(ImageFile {
                    path,
                    bytes: image.len() as u64,
                });
            }
            Random::new(SEED + 1).shuffle(&mut images);
            Ok(images.into())
        })
    }

    /// Returns the images in TFRecords.
    pub(super) fn tfrecord(&self) -> Result<Split> {
        self.tfrecord
            .get(|| self.packed("tfrecord", DatasetFormat::TfRecord))
    }

    /// Returns the images in indexed shards.
    pub(super) fn indexed(&self) -> Result<Split> {
        self.indexed
            .get(|| self.packed("indexed", DatasetFormat::INDEXED))
    }

    /// Returns the images in the selected formats that the loader reads in place.
    pub(super) fn formats(&self, options: &CharacterizeOptions) -> Result<Rc<[Stored]>> {
        self.formats.get(|| {
            let mut stored = Vec::new();
            for name in ["tfrecord", "indexed"] {
                if options.has_format(name) {
                    let split = match name {
                        "tfrecord" => self.tfrecord()?,
                        _ => self.indexed()?,
                    };
                    stored.push(Stored { name, split });
                }
            }
            // The other formats are converted from indexed shards.
            self.indexed()?;
            let (from, to) = (
                self.scratch().join("indexed"),
                self.scratch().join("formats"),
            );
            stored.extend(stored::convert_all(&from, &to, |name| {
                options.has_format(name)
            })?);
            Ok(stored.into())
        })
    }

    fn packed(&self, name: &str, format: DatasetFormat) -> Result<Split> {
        self.images()?;
        let target = self.scratch.path().join(name);
        pack_tree(&self.tree(), &target, |options| options.format = format)?;
        first_split(&target)
    }

    /// Returns the directory of the single files.
    pub(super) fn tree(&self) -> PathBuf {
        self.scratch.path().join("files")
    }

    /// Copies the TFRecords to another directory, which is created, and fsyncs the copies.
    pub(super) fn copy_tfrecord(&self, to: &Path) -> Result<Split> {
        self.tfrecord()?;
        let from = self.scratch.path().join("tfrecord");
        copy_dir(&from, to)?;
        first_split(to)
    }

    /// Returns the path of a large file of incompressible bytes.
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

    /// Returns the path of the file that a run writes.
    pub(super) fn scratch_file(&self) -> PathBuf {
        self.scratch.path().join("written")
    }

    /// Returns the scratch directory.
    pub(super) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns whether the file system is in memory, such as tmpfs.
    pub(super) fn is_memory(&self) -> bool {
        Mount::of(self.scratch.path()).is_some_and(|mount| mount.class() == FsClass::Memory)
    }

    /// Returns whether the file system can bypass the page cache.
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

/// Packs a directory of images.
pub(super) fn pack_tree(
    tree: &Path,
    target: &Path,
    change: impl FnOnce(&mut PackOptions),
) -> Result<()> {
    let mut options = PackOptions::new(Location::from(tree), Location::from(target));
    change(&mut options);
    pack(&options, &(), &Cancel::new())?;
    Ok(())
}

/// Opens the split that images are taken from: that of `data`, or else a synthetic one.
fn source(data: Option<&Path>, files: u64) -> Result<Split> {
    match data {
        Some(data) => crate::read::open(data, None),
        None => Ok(
            Recipe::parse(&format!("synthetic://imagenet?records={files}"))?
                .open()?
                .split("train")?,
        ),
    }
}

/// Returns the mean size in bytes of a dataset's records, or that of generated images without a dataset.
pub(super) fn mean_bytes(data: Option<&Path>) -> Result<u64> {
    let Some(data) = data else {
        return Ok(MEAN_BYTES);
    };
    let split = source(Some(data), 0)?;
    Ok(record_bytes(&split).div_ceil(split.len().max(1)))
}

/// Copies a directory recursively and fsyncs each file.
fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    for entry in WalkDir::new(from) {
        let entry = entry?;
        let target = to.join(entry.path().strip_prefix(from)?);
        if entry.file_type().is_dir() {
            fs::create_dir_all(&target)?;
        } else {
            fs::copy(entry.path(), &target)?;
            File::open(&target)?.sync_all()?;
        }
    }
    Ok(())
}
