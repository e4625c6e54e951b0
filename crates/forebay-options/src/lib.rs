//! The options of a loader: names, types, defaults and help, once for every interface.
//!
//! TOML jobs, `forebay serve --job`, `forebay bench loader`, the wire and Python all read [`LoaderOptions`]; the
//! loader implements them. A new option needs a line in `options!` and the code of its effect. [`PROCESS_OPTIONS`] are those
//! of a process: threads, memory, the way to a server.
//!
//! ```
//! use forebay_options::LoaderOptions;
//!
//! let options: LoaderOptions = serde_json::from_str(r#"{"batch_size": 256, "shuffle": false}"#).unwrap();
//! assert_eq!(options.batch_size, Some(256));
//! assert_eq!(options.shuffle.as_deref(), Some("none"));
//! let error = serde_json::from_str::<LoaderOptions>(r#"{"layout": "hwc"}"#).unwrap_err();
//! assert!(error.to_string().starts_with(r#"option layout is "hwc": expected "nhwc" or "nchw""#));
//! ```

use std::collections::BTreeSet;
use std::fmt;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod encoding;
mod foreign;
mod groups;
mod name;
mod stream;
mod values;

use forebay_batch::{Dtype, Layout};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use encoding::{EncodedOptions, MAX_JSON_BYTES};
pub use foreign::{foreign, misspelled};
pub use groups::GROUPS;
pub use name::{OptionName, name_options_as_flags};
pub use stream::StreamInfo;
pub use values::{
    Class, LabelBase, NormalizeSpec, OnError, ShuffleSpec, TransformSpec, Transforms, WeightsSpec,
};

/// Number of samples in a batch if `batch_size` is not set.
pub const DEFAULT_BATCH_SIZE: u64 = 32;

/// The kind of values that an option accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionKind {
    /// A whole number with this minimum.
    Count(u64),
    /// A number of bytes, 1 or more.
    Bytes,
    /// True or false.
    Flag,
    /// A name.
    Text,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// A name, or a table with a `kind` and parameters, or a list of names and tables.
    Transform,
    /// Like `Transform`, for operations on whole batches.
    BatchTransform,
    /// Record numbers.
    Indices,
    /// Names or labels of classes.
    Classes,
    /// Names of columns.
    Columns,
    /// Weights of classes or records.
    Weights,
    /// The label of the first class, or `"stored"`.
    Base,
    /// The name of a shuffle, or a boolean.
    Shuffle,
    /// Mean and standard deviation of red, green and blue.
    Normalize,
    /// A number of seconds, or none.
    Seconds,
    /// The path of a file.
    Path,
    /// Names and values of settings.
    Settings,
}

impl OptionKind {
    /// Returns the possible values, for errors.
    #[must_use]
    pub fn expected(self) -> String {
        match self {
            OptionKind::Count(least) => format!("a whole number from {least} to 2^64 - 1"),
            OptionKind::Bytes => "a number of bytes, 1 or more".to_owned(),
            OptionKind::Flag => "true or false".to_owned(),
            OptionKind::Text => "a name".to_owned(),
            OptionKind::Choice(names) => one_of(names),
            OptionKind::Transform | OptionKind::BatchTransform => {
                "a name, a table with a kind, or a list of tables".to_owned()
            }
            OptionKind::Indices => "numbers of records".to_owned(),
            OptionKind::Classes => "names or labels of classes".to_owned(),
            OptionKind::Columns => "names of columns".to_owned(),
            OptionKind::Weights => {
                "a table of classes to numbers, or a number for each record".to_owned()
            }
            OptionKind::Base => "0, 1 or \"stored\"".to_owned(),
            OptionKind::Shuffle => "true, false or the name of a shuffle".to_owned(),
            OptionKind::Normalize => "a table of mean and std, three numbers each".to_owned(),
            OptionKind::Seconds => "a number of seconds, or None".to_owned(),
            OptionKind::Path => "a path".to_owned(),
            OptionKind::Settings => "a table of names to values".to_owned(),
        }
    }
}

/// Formats names as `"a", "b" or "c"`.
fn one_of(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// An option, as help and documentation show it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LoaderOption {
    /// Name, the same in all interfaces; the command line has dashes in place of underscores.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: OptionKind,
    /// The help of the command line.
    pub doc: &'static str,
    /// Details, for interfaces with space for them.
    pub details: &'static [&'static str],
    /// The default, in words; empty for none.
    pub default: &'static str,
}

macro_rules! options {
    ($(#[doc = $doc:literal] $(#[doc = $more:literal])* $name:ident: $type:ty = $kind:expr, $default:literal;)*) => {
        /// The options of a loader; `None` for options that are not set.
        #[derive(Debug, Clone, PartialEq, Default, Serialize)]
        #[non_exhaustive]
        pub struct LoaderOptions {
            $(
                #[doc = $doc]
                $(#[doc = $more])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<$type>,
            )*
        }

        /// All options, in the order of their help.
        pub const OPTIONS: &[LoaderOption] = &[$(LoaderOption {
            name: stringify!($name),
            kind: $kind,
            doc: $doc,
            details: &[$($more),*],
            default: $default,
        },)*];

        impl LoaderOptions {
            /// Sets one option by name, with the rules of [`OptionKind`].
            ///
            /// # Errors
            ///
            /// An unknown option, or an invalid value.
            pub fn set(&mut self, name: &str, value: Value) -> Result<(), String> {
                match name {
                    $(stringify!($name) => self.$name = read(stringify!($name), $kind, value)?,)*
                    _ => {
                        return Err(unknown(name, &[]));
                    }
                }
                Ok(())
            }

            /// Returns these options, with the values of `other` for options that are not set.
            #[must_use]
            pub fn or(self, other: &LoaderOptions) -> LoaderOptions {
                LoaderOptions {
                    $($name: self.$name.or_else(|| other.$name.clone()),)*
                }
            }
        }
    };
}

options! {
    /// Name of the split
    /// Optional if the dataset has one split. "val", "valid", "validation" and "dev" are the same name.
    split: String = OptionKind::Text, "the only one";
    /// Samples in a batch of one rank
    batch_size: u64 = OptionKind::Count(0), "32";
    /// Rank of this process, from 0
    /// Give `rank` and `world_size` together. Without them they come from the framework or the launcher (docs/loader.md).
    rank: u64 = OptionKind::Count(0), "";
    /// Number of ranks
    /// All ranks get the same number of batches. Reads are fewest if it divides `virtual_ranks`.
    world_size: u64 = OptionKind::Count(0), "any number";
    /// Seed of the order and of random transforms
    seed: u64 = OptionKind::Count(0), "0";
    /// Order of samples: "blocks", "window", "full" or "none"
    /// "blocks" reads blocks of neighboring records in random order and shuffles their samples, so that reads are large. "window"
    /// shuffles samples in the same way but reads the blocks in storage order: for records that are stored in random order. "full" is a
    /// permutation of all samples. True means "blocks", False means "none". The default is true for transforms with a
    /// random operation and false for `EvalTransform`; with any other transform the option is required.
    shuffle: ShuffleSpec = OptionKind::Shuffle, "as the transform says";
    /// Shuffle each epoch in a new order; false repeats the order of epoch 0
    /// Random transforms differ between epochs in both cases.
    reshuffle: bool = OptionKind::Flag, "true";
    /// Records in a block of the shuffle "blocks" or "window"
    block_records: u64 = OptionKind::Count(0), "by their size";
    /// Blocks whose samples are shuffled together, for each virtual rank
    window_blocks: u64 = OptionKind::Count(0), "2";
    /// Number of parts that an epoch is divided into
    /// The order of samples depends on this number and not on the number of ranks.
    virtual_ranks: u64 = OptionKind::Count(0), "64";
    /// Transform of images
    /// Required, except for a job of a server. A list begins with `RandomResizedCrop`, or with `Resize` and `CenterCrop`; flips and
    /// changes of color, `Normalize` and `RandomErasing` follow. `KeepEncoded` leaves images encoded.
    transform: Transforms = OptionKind::Transform, "";
    /// Mixing of the samples of a batch, such as `Mixup`
    /// `Batch.labels_b`, `Batch.lam` and `Batch.one_hot` describe the result.
    batch_transform: Transforms = OptionKind::BatchTransform, "not";
    /// Order of the axes of images in a batch
    layout: Layout = OptionKind::Choice(&["nhwc", "nchw"]), "nhwc";
    /// Type of pixel values
    /// Floating-point values are bytes divided by 255, and normalized if `normalize` or the transform says so.
    dtype: Dtype = OptionKind::Choice(&["uint8", "float32", "float16", "bfloat16"]), "uint8; float32 where normalized";
    /// Mean and standard deviation for the normalization of pixels
    /// Three numbers each, for values from 0 to 1. With a list of transforms, the same as `Normalize` at its end.
    normalize: NormalizeSpec = OptionKind::Normalize, "";
    /// Library whose resize is reproduced
    /// "pillow" is antialiased, as torchvision's default is. "opencv" is INTER_LINEAR, "tensorflow" is tf.image.resize without
    /// antialiasing.
    resize_like: String = OptionKind::Choice(&["pillow", "opencv", "tensorflow"]), "pillow";
    /// Rotate and flip images by their EXIF orientation
    exif_orientation: bool = OptionKind::Flag, "";
    /// Decode JPEG at a reduced size if the crop is larger than the output
    /// Faster, with slightly different pixels. The decoded crop is never smaller than the output.
    dct_scaling: bool = OptionKind::Flag, "";
    /// Maximum number of pixels of an image
    /// Larger images are refused before decoding. The default is 64 Mi pixels; a server has its own limit.
    max_pixels: u64 = OptionKind::Count(1), "";
    /// Maximum size of a decoded image in bytes
    /// Larger images are refused before decoding. The default is 256 MiB; a server has its own limit.
    max_image_bytes: u64 = OptionKind::Bytes, "";
    /// Leave out the last batch of an epoch if it is incomplete
    /// The default is true for transforms with a random operation, false for `EvalTransform`, and for others true if samples are
    /// shuffled. If it is false, ranks get the same number of steps by padding: `Batch.padding` counts the added samples, which have the label -100.
    drop_last: bool = OptionKind::Flag, "as the transform says";
    /// Use only these records, by number
    /// Their order does not matter: without a shuffle, samples come in storage order.
    indices: Vec<u64> = OptionKind::Indices, "";
    /// Use only records of these classes, given by name or label
    classes: Vec<Class> = OptionKind::Classes, "";
    /// Use at most this many records
    /// The first ones in storage order, after `indices` and `classes`. They are the same in each epoch.
    limit: u64 = OptionKind::Count(1), "";
    /// Weights of classes or of records, for sampling with replacement
    /// Classes are given by name or label; the weight of other classes is 1.
    weights: WeightsSpec = OptionKind::Weights, "";
    /// Sample all classes equally often, with replacement
    class_balanced: bool = OptionKind::Flag, "";
    /// Number of samples in an epoch, for sampling with replacement and for a `Mix` with weights
    /// The default is the number of records.
    num_samples: u64 = OptionKind::Count(1), "";
    /// Number of times that each sample comes in an epoch
    /// Each time with other random transforms.
    repeats: u64 = OptionKind::Count(1), "1";
    /// Handling of samples that cannot be read or decoded
    /// "skip" puts the next good sample of the batch in their place, "zero" puts zeros and the label -1. `Batch.failed` says which
    /// samples these are, `stats` counts them by reason.
    on_error: OnError = OptionKind::Choice(&["raise", "skip", "zero"]), "raise";
    /// Label of the first class in batches: 0, 1, or "stored" for labels as they are stored
    /// Labels in `classes` and `weights` count in the same way. Records without a label keep -1. A stored label below that of the
    /// first class is an error that `on_error` handles.
    label_base: LabelBase = OptionKind::Base, "0";
    /// Further columns in batches, by name
    /// `forebay inspect` lists the columns of a dataset; docs/columns.md says what each type becomes in a batch. `NAME:TYPE` reads a
    /// column as another type, as in "meta:json".
    columns: Vec<String> = OptionKind::Columns, "";
    /// Keep boxes that are outside of the crop or smaller than a pixel
    /// By default they are left out, together with their labels.
    keep_empty_boxes: bool = OptionKind::Flag, "";
}

macro_rules! process_options {
    ($(#[doc = $doc:literal] $(#[doc = $more:literal])* $name:ident = $kind:expr, $default:literal;)*) => {
        /// Options of the process that receives batches: its threads and memory, its way to a store or a server. They do not
        /// change what is in a batch, so neither jobs nor servers have them.
        pub const PROCESS_OPTIONS: &[LoaderOption] = &[$(LoaderOption {
            name: stringify!($name),
            kind: $kind,
            doc: $doc,
            details: &[$($more),*],
            default: $default,
        },)*];
    };
}

process_options! {
    /// Fill the last batch up where there is one rank, so that all batches have one size
    /// `Batch.padding` counts the added samples, which have the label -100. Several ranks always have it, with
    /// `drop_last=False`: they get the same number of batches.
    pad_last = OptionKind::Flag, "";
    /// Threads that decode; 0 for as many as this process may use
    /// A server has its own.
    threads = OptionKind::Count(0), "0";
    /// Bytes, or a size such as "2GiB", for records and batches on their way
    /// A server has its own.
    memory = OptionKind::Bytes, "";
    /// Bytes, or a size such as "128MiB", for seek points that are learned while the first epoch decodes; 0 for none
    /// Later epochs decode crops of JPEGs without stored seek points faster with them, to the same pixels. Loaders of a process
    /// that read the same split share them. The default is "128MiB", about 400,000 images of ImageNet's size. A server has its own.
    learn_seek_points = OptionKind::Bytes, "";
    /// Whether the system keeps copies of what was read from local files
    /// "drop" is for a dataset larger than memory that would drive out what others read. A server decides for itself.
    page_cache = OptionKind::Choice(&["keep", "drop"]), "keep";
    /// The longest wait for a batch in seconds; for a server that is busy, that starts, or that is lost
    timeout = OptionKind::Seconds, "300.0";
    /// How batches come from a server
    /// "auto" takes memory shared with a server on this host, without a copy, and TCP otherwise; "shm" wants shared memory or
    /// fails. By default what the environment variable FOREBAY_TRANSPORT says, else "auto". `stats` tells which it is.
    transport = OptionKind::Choice(&["auto", "shm", "tcp"]), "";
    /// Over how many TCP connections each batch comes at once, up to 16
    /// For a network that one of them, or one core, does not fill.
    connections = OptionKind::Count(1), "1";
    /// How a store is reached, see `open`
    /// Credentials come from the environment otherwise.
    storage_options = OptionKind::Settings, "";
    /// A secret that lets this process into a server
    /// By default that of the environment variable FOREBAY_TOKEN. It is sent through TLS, or to a server on this machine, and
    /// never shown.
    token = OptionKind::Text, "";
    /// A file whose first line is the token
    /// Read again for each connection, so that it may be replaced. By default what FOREBAY_TOKEN_FILE names.
    token_file = OptionKind::Path, "";
    /// For `forebays://`: the authorities (PEM) that the server's certificate may be signed by
    /// By default what FOREBAY_TLS_CA names, or those of the system.
    tls_ca = OptionKind::Path, "";
    /// Certificate (PEM) of this process, for servers that want one
    /// By default what FOREBAY_TLS_CLIENT_CERT names.
    tls_cert = OptionKind::Path, "";
    /// Key (PEM) of this process, for servers that want a certificate
    /// By default what FOREBAY_TLS_CLIENT_KEY names.
    tls_key = OptionKind::Path, "";
}

impl<'de> Deserialize<'de> for LoaderOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = LoaderOptions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the options of a loader")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LoaderOptions, A::Error> {
                let mut options = LoaderOptions::default();
                let mut seen = BTreeSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    map.next_value_seed(options.entry(&name))?;
                    if let Some(twice) = seen.replace(name) {
                        return Err(A::Error::custom(format!("option {twice} is given twice")));
                    }
                }
                Ok(options)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// Deserializes the value of one option, with its position in errors; see [`LoaderOptions::entry`].
#[derive(Debug)]
pub struct Entry<'a> {
    options: &'a mut LoaderOptions,
    name: &'a str,
}

impl<'de> DeserializeSeed<'de> for Entry<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let value = Value::deserialize(deserializer)?;
        self.options.set(self.name, value).map_err(D::Error::custom)
    }
}

impl LoaderOptions {
    /// Returns a seed that deserializes one option into `self`, for tables that also have other keys.
    pub fn entry<'a>(&'a mut self, name: &'a str) -> Entry<'a> {
        Entry {
            options: self,
            name,
        }
    }

    /// Returns the options with this split.
    #[must_use]
    pub fn with_split(mut self, split: impl Into<String>) -> Self {
        self.split = Some(split.into());
        self
    }

    /// Returns whether images stay encoded, so that batches vary in size.
    #[must_use]
    pub fn keeps_encoded(&self) -> bool {
        matches!(&self.transform, Some(Transforms::One(only)) if KEEP_ENCODED.contains(&only.kind.as_str()))
    }

    /// Returns whether batches vary in size, because they contain encoded images or columns.
    #[must_use]
    pub fn varies(&self) -> bool {
        self.keeps_encoded() || self.columns.as_ref().is_some_and(|names| !names.is_empty())
    }

    /// Returns the options that are set, by name.
    #[must_use]
    pub fn given(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(given)) => given,
            _ => unreachable!("every option is JSON"),
        }
    }
}

/// Returns whether an option has this name.
#[must_use]
pub fn is_option(name: &str) -> bool {
    OPTIONS.iter().any(|option| option.name == name)
}

/// Returns the error for a name that is neither an option nor one of the `other` keys of a table.
#[must_use]
pub fn unknown(name: &str, other: &[&str]) -> String {
    let names = OPTIONS.iter().map(|option| option.name);
    let known: Vec<&str> = other.iter().copied().chain(names).collect();
    if let Some(answer) = foreign(name) {
        return format!("unknown field `{name}`: {answer}");
    }
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    format!(
        "unknown field `{name}`, expected one of {}",
        known.join(", ")
    )
}

/// Maximum length in characters of a value in an error: some options are long lists of numbers.
const MAX_SHOWN: usize = 300;

/// Formats a value for an error, shortened if it is long.
#[must_use]
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn read<T: DeserializeOwned>(
    name: &str,
    kind: OptionKind,
    value: Value,
) -> Result<Option<T>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let refused = || {
        let (found, expected) = (shown(&value), kind.expected());
        format!("option {name} is {found}: expected {expected}")
    };
    let possible = match (kind, value.as_u64(), value.as_str()) {
        (OptionKind::Count(least), Some(number), _) => number >= least,
        (OptionKind::Bytes, Some(number), _) => number > 0,
        (OptionKind::Choice(names), _, Some(chosen)) => names.contains(&chosen),
        _ => true,
    };
    if !possible {
        return Err(refused());
    }
    T::deserialize(&value)
        .map(Some)
        .map_err(|error| match kind {
            OptionKind::Transform | OptionKind::BatchTransform => format!("option {name}: {error}"),
            _ => refused(),
        })
}

/// The names of the transform that leaves images encoded.
pub const KEEP_ENCODED: [&str; 2] = ["keep_encoded", "KeepEncoded"];

#[cfg(test)]
mod tests;
