//! `forebay bench loader`: its arguments, and the loader's options that they come to.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use forebay_bench::LoadOptions;
use forebay_image::{Dtype, EvalTransform, Layout, Profile, TrainTransform, Transform};
use forebay_loader::{OnError, Options, PageCache, Shuffle, Weights};

use crate::quantity::parse_size;

#[derive(Debug, Args)]
pub(super) struct LoaderArgs {
    /// A dataset
    pub(super) dataset: PathBuf,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Numbers of decoding threads to compare
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2"
    )]
    threads: Vec<usize>,
    /// Samples a batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: u64,
    /// Seconds a run takes at least
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// What becomes of images, to compare
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "train,eval"
    )]
    transform: Vec<What>,
    /// Side of decoded images in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 224)]
    size: u32,
    /// Type of the numbers
    #[arg(long, value_name = "NAME", default_value = "uint8")]
    dtype: Numbers,
    /// Order of the axes
    #[arg(long, value_name = "NAME", default_value = "nhwc")]
    layout: Axes,
    /// Whose pixels: pillow, opencv or tensorflow
    #[arg(long, value_name = "NAME", default_value_t = Profile::Pillow)]
    profile: Profile,
    /// Turn images as EXIF says
    #[arg(long)]
    exif_orientation: bool,
    /// Decode JPEG smaller where the crop allows it
    #[arg(long)]
    dct_scaling: bool,
    /// Order of samples
    #[arg(long, value_name = "NAME", default_value = "blocks")]
    shuffle: Order,
    /// Only the first so many samples
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    limit: u64,
    /// Only these classes, by name
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    classes: Vec<String>,
    /// Only these records, by number
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    indices: Vec<u64>,
    /// Draw each class as often as any other
    #[arg(long)]
    class_balanced: bool,
    /// Samples drawn for an epoch, with --class-balanced [default: as many as there are]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    draws: u64,
    /// How often each sample comes in an epoch
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeats: u64,
    /// What becomes of damaged samples
    #[arg(long, value_name = "WHAT", default_value = "raise")]
    on_error: Damaged,
    /// Threads that read [default: 4]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    readers: usize,
    /// Memory for records and batches
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1GiB")]
    memory: u64,
    /// The system's copies of what was read
    #[arg(long, value_name = "WHAT", default_value = "keep")]
    page_cache: Copies,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// Random crop, flip
    Train,
    /// Resize, centre crop
    Eval,
    /// Images stay encoded
    Raw,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Numbers {
    Uint8,
    Float32,
    Float16,
    Bfloat16,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Axes {
    Nhwc,
    Nchw,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Order {
    /// Blocks of neighbours, mixed
    Blocks,
    /// A permutation of all
    Full,
    /// As stored
    None,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Damaged {
    Raise,
    Skip,
    Zero,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Copies {
    Keep,
    Drop,
}

impl LoaderArgs {
    pub(super) fn options(self, runs: usize) -> LoadOptions {
        let transforms = self.transform.iter().map(|&what| self.transform(what));
        let transforms: Vec<(String, Transform)> = transforms.collect();
        // The transform is one of those in turn.
        let mut options = Options::new(self.batch_size, Transform::Raw);
        options.output.dtype = match self.dtype {
            Numbers::Uint8 => Dtype::Uint8,
            Numbers::Float32 => Dtype::Float32,
            Numbers::Float16 => Dtype::Float16,
            Numbers::Bfloat16 => Dtype::Bfloat16,
        };
        options.output.layout = match self.layout {
            Axes::Nhwc => Layout::Nhwc,
            Axes::Nchw => Layout::Nchw,
        };
        options.decode.profile = self.profile;
        options.decode.exif = self.exif_orientation;
        options.decode.scaled = self.dct_scaling;
        options.shuffle = match self.shuffle {
            Order::Blocks => Shuffle::default(),
            Order::Full => Shuffle::Full,
            Order::None => Shuffle::None,
        };
        let mut indices = self.indices;
        indices.sort_unstable();
        indices.dedup();
        options.sampling.indices = Arc::from(indices);
        options.sampling.classes = self.classes;
        options.sampling.limit = self.limit;
        options.sampling.draws = self.draws;
        options.sampling.repeats = self.repeats;
        if self.class_balanced {
            options.sampling.weights = Weights::Balanced;
        }
        options.on_error = match self.on_error {
            Damaged::Raise => OnError::Raise,
            Damaged::Skip => OnError::Skip,
            Damaged::Zero => OnError::Zero,
        };
        options.readers = self.readers;
        options.memory_bytes = self.memory;
        options.page_cache = match self.page_cache {
            Copies::Keep => PageCache::Keep,
            Copies::Drop => PageCache::Drop,
        };
        options.keep_last = true;
        LoadOptions {
            split: self.split,
            threads: self.threads,
            seconds: self.seconds,
            transforms,
            options,
            runs,
        }
    }

    /// A transform, and what it is called.
    fn transform(&self, what: What) -> (String, Transform) {
        let side = self.size;
        match what {
            What::Train => (
                format!("RandomResizedCrop({side}) + flip"),
                Transform::Train(TrainTransform::new(side)),
            ),
            What::Eval => {
                // 256 for 224, as everybody has it.
                let short = side.saturating_mul(8).div_ceil(7);
                (
                    format!("Resize({short}) + CentreCrop({side})"),
                    Transform::Eval(EvalTransform::new(short, side)),
                )
            }
            What::Raw => ("encoded".to_owned(), Transform::Raw),
        }
    }
}
