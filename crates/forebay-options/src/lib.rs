//! The options of a loader: names, types, defaults and help, once for every interface.
//!
//! TOML jobs, `forebay serve --job`, `forebay bench loader`, the wire and Python all read a [`LoaderOptions`]; what
//! an option does is the loader's. A new option is a line in `options!` and the code that obeys it.
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

use std::collections::BTreeMap;
use std::fmt;

use forebay_batch::{Dtype, Layout};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The values of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A whole number, 0 or more.
    Count,
    /// True or false.
    Flag,
    /// A name.
    Text,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// A name, or a table with a `kind` and parameters, or a list of them.
    Transform,
    /// Numbers of records.
    Indices,
    /// Names or labels of classes.
    Classes,
    /// Weights of classes or records.
    Weights,
    /// The label of the first class.
    Base,
    /// The name of a shuffle, or whether to shuffle.
    Shuffle,
}

impl Kind {
    /// The possible values, for errors.
    #[must_use]
    pub fn expected(self) -> String {
        match self {
            Kind::Count => "a whole number from 0 to 2^64 - 1".to_owned(),
            Kind::Flag => "true or false".to_owned(),
            Kind::Text => "a name".to_owned(),
            Kind::Choice(names) => one_of(names),
            Kind::Transform => "a name, a table with a kind, or a list of tables".to_owned(),
            Kind::Indices => "numbers of records".to_owned(),
            Kind::Classes => "names or labels of classes".to_owned(),
            Kind::Weights => {
                "a table of classes to numbers, or a number for each record".to_owned()
            }
            Kind::Base => "0, 1 or \"stored\"".to_owned(),
            Kind::Shuffle => "true, false or the name of a shuffle".to_owned(),
        }
    }
}

/// `"a", "b" or "c"`.
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
    /// Name, the same everywhere; the command line has dashes for underscores.
    pub name: &'static str,
    /// The values it takes.
    pub kind: Kind,
    /// A sentence for users.
    pub doc: &'static str,
    /// The default, in words; empty for none.
    pub default: &'static str,
}

macro_rules! options {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $kind:expr, $default:literal;)*) => {
        /// The options of a loader: `None` for those that are not given.
        #[derive(Debug, Clone, PartialEq, Default, Serialize)]
        #[non_exhaustive]
        pub struct LoaderOptions {
            $(
                $(#[doc = $doc])+
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<$type>,
            )*
        }

        /// All options, in the order of their help.
        pub const OPTIONS: &[LoaderOption] = &[$(LoaderOption {
            name: stringify!($name),
            kind: $kind,
            doc: concat!($($doc),+),
            default: $default,
        },)*];

        impl LoaderOptions {
            /// Sets one option by name, as [`Value`]s are read.
            ///
            /// # Errors
            ///
            /// A name that no option has; a value that the option does not take.
            pub fn set(&mut self, name: &str, value: Value) -> Result<(), String> {
                match name {
                    $(stringify!($name) => self.$name = read(stringify!($name), $kind, value)?,)*
                    _ => {
                        return Err(unknown(name, &[]));
                    }
                }
                Ok(())
            }
        }
    };
}

options! {
    /// Split
    split: String = Kind::Text, "the only one";
    /// Samples a batch, of each rank
    batch_size: u64 = Kind::Count, "32";
    /// Rank, from 0
    rank: u64 = Kind::Count, "0";
    /// Ranks
    world_size: u64 = Kind::Count, "any number";
    /// Seed of the order and of random transforms
    seed: u64 = Kind::Count, "0";
    /// Order of samples: "blocks", "full" or "none"
    shuffle: Shuffle = Kind::Shuffle, "blocks";
    /// Records read together, in a shuffle of blocks
    block_records: u64 = Kind::Count, "by their size";
    /// Blocks mixed together in a lane, in a shuffle of blocks
    window_blocks: u64 = Kind::Count, "2";
    /// Parts of the epoch that are read side by side, a multiple of the ranks
    lanes: u64 = Kind::Count, "64";
    /// Transform of images: "train", "eval" or "raw", or as in CONFIG.toml: { kind = "train", size = 160 }, or a list
    transform: Transforms = Kind::Transform, "train";
    /// How a batch is mixed: { kind = "Mixup", alpha = 0.2 }
    batch_transform: Transforms = Kind::Transform, "not";
    /// Order of the axes
    layout: Layout = Kind::Choice(&["nhwc", "nchw"]), "nhwc";
    /// Type of the numbers
    dtype: Dtype = Kind::Choice(&["uint8", "float32", "float16", "bfloat16"]), "uint8; float32 where normalized";
    /// Whose pixels
    profile: String = Kind::Choice(&["pillow", "opencv", "tensorflow"]), "pillow";
    /// Turn images as EXIF says
    exif_orientation: bool = Kind::Flag, "";
    /// Decode JPEG smaller where the crop allows it
    dct_scaling: bool = Kind::Flag, "";
    /// Most pixels of an image
    max_pixels: u64 = Kind::Count, "";
    /// Most bytes of a decoded image
    max_image_bytes: u64 = Kind::Count, "";
    /// Leave out the last, short batch of an epoch; false pads it
    drop_last: bool = Kind::Flag, "true";
    /// Only these records, by number
    indices: Vec<u64> = Kind::Indices, "";
    /// Only records of these classes, by name or label
    classes: Vec<Class> = Kind::Classes, "";
    /// Only the first so many records
    limit: u64 = Kind::Count, "";
    /// Weights of classes or of each record, for draws with replacement
    weights: Weights = Kind::Weights, "";
    /// Draw each class as often as any other
    class_balanced: bool = Kind::Flag, "";
    /// Samples drawn for an epoch
    draws: u64 = Kind::Count, "";
    /// How often each sample comes in an epoch
    repeats: u64 = Kind::Count, "1";
    /// Handling of samples that cannot be read or decoded
    on_error: OnError = Kind::Choice(&["raise", "skip", "zero"]), "raise";
    /// Label of the first class in batches: 0, 1, or "stored" for labels as they are stored
    label_base: LabelBase = Kind::Base, "0";
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
                while let Some(name) = map.next_key::<String>()? {
                    map.next_value_seed(options.entry(&name))?;
                }
                Ok(options)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// Reads the value of one option, so that its errors have the value's place: see [`LoaderOptions::entry`].
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
    /// Reads one option into these, for tables that have keys of their own besides.
    pub fn entry<'a>(&'a mut self, name: &'a str) -> Entry<'a> {
        Entry {
            options: self,
            name,
        }
    }

    /// The options that are given, by name.
    #[must_use]
    pub fn given(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(given)) => given,
            _ => unreachable!("every option is JSON"),
        }
    }
}

/// Whether an option has this name.
#[must_use]
pub fn is_option(name: &str) -> bool {
    OPTIONS.iter().any(|option| option.name == name)
}

/// An error for a name that no option has, and none of the `other` keys of a table.
#[must_use]
pub fn unknown(name: &str, other: &[&str]) -> String {
    let names = OPTIONS.iter().map(|option| &option.name);
    let known: Vec<String> = other
        .iter()
        .chain(names)
        .map(|name| format!("`{name}`"))
        .collect();
    format!(
        "unknown field `{name}`, expected one of {}",
        known.join(", ")
    )
}

/// Longest value that an error repeats: some options are lists of numbers of records.
const MAX_SHOWN: usize = 300;

/// A value for an error.
#[must_use]
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn read<T: DeserializeOwned>(name: &str, kind: Kind, value: Value) -> Result<Option<T>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let found = shown(&value);
    if let (Kind::Choice(names), Some(chosen)) = (kind, value.as_str())
        && !names.contains(&chosen)
    {
        return Err(format!(
            "option {name} is {found}: expected {}",
            kind.expected()
        ));
    }
    T::deserialize(value).map(Some).map_err(|error| match kind {
        Kind::Transform => format!("option {name}: {error}"),
        _ => format!("option {name} is {found}: expected {}", kind.expected()),
    })
}

/// The name of a shuffle; `true` is `"blocks"` and `false` is `"none"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenShuffle")]
pub struct Shuffle(pub String);

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenShuffle {
    Whether(bool),
    Named(String),
}

impl From<WrittenShuffle> for Shuffle {
    fn from(written: WrittenShuffle) -> Self {
        Shuffle(match written {
            WrittenShuffle::Whether(true) => "blocks".to_owned(),
            WrittenShuffle::Whether(false) => "none".to_owned(),
            WrittenShuffle::Named(name) => name,
        })
    }
}

impl std::ops::Deref for Shuffle {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// A transform: its name, and parameters that the transform itself reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TransformSpec {
    /// Name, as in Python.
    pub kind: String,
    /// Parameters by name.
    #[serde(flatten)]
    pub params: Map<String, Value>,
}

impl<'de> Deserialize<'de> for TransformSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = match Value::deserialize(deserializer)? {
            Value::String(kind) => {
                return Ok(TransformSpec {
                    kind,
                    params: Map::new(),
                });
            }
            Value::Object(table) => Some(table),
            _ => None,
        };
        let mut params = table.ok_or_else(|| D::Error::custom("expected a name or a table"))?;
        match params.remove("kind") {
            Some(Value::String(kind)) => Ok(TransformSpec { kind, params }),
            Some(_) => Err(D::Error::custom("kind: expected a name")),
            None => Err(D::Error::custom("missing field `kind`")),
        }
    }
}

/// One transform, or a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Transforms {
    /// A transform on its own.
    One(TransformSpec),
    /// One after the other.
    List(Vec<TransformSpec>),
}

impl<'de> Deserialize<'de> for Transforms {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Array(list) => {
                let at = |(i, value)| {
                    TransformSpec::deserialize(value)
                        .map_err(|e| D::Error::custom(format!("number {} of the list: {e}", i + 1)))
                };
                let list: Result<Vec<_>, _> = list.into_iter().enumerate().map(at).collect();
                list.map(Transforms::List)
            }
            one => TransformSpec::deserialize(one)
                .map(Transforms::One)
                .map_err(D::Error::custom),
        }
    }
}

/// Handling of a sample that cannot be read or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The loader fails with its error.
    #[default]
    Raise,
    /// The next good sample of the same batch (after the last one, the first one) is in its place, pixels, label and
    /// number; zeros where the batch has none. Marked by [`FLAG_FAILED`](forebay_batch::FLAG_FAILED).
    Skip,
    /// Zeros are in its place, and the label is -1. Marked by [`FLAG_FAILED`](forebay_batch::FLAG_FAILED).
    Zero,
}

/// The label that the first class of a dataset has in batches, and in the options that select records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Class", into = "Class")]
pub enum LabelBase {
    /// 0, as losses and metrics count classes.
    #[default]
    Zero,
    /// 1, as TensorFlow's ImageNet records count classes.
    One,
    /// Labels stay as stored, whatever they count from.
    Stored,
}

impl LabelBase {
    /// Returns the label of the first class, `None` for labels as stored.
    #[must_use]
    pub fn first(self) -> Option<i64> {
        match self {
            LabelBase::Zero => Some(0),
            LabelBase::One => Some(1),
            LabelBase::Stored => None,
        }
    }

    /// Returns the label of the first class of a dataset that stores it as `stored`.
    #[must_use]
    pub fn or_stored(self, stored: i64) -> i64 {
        self.first().unwrap_or(stored)
    }
}

impl TryFrom<Class> for LabelBase {
    type Error = &'static str;

    fn try_from(class: Class) -> Result<Self, Self::Error> {
        match class {
            Class::Label(0) => Ok(LabelBase::Zero),
            Class::Label(1) => Ok(LabelBase::One),
            Class::Name(name) if name == "stored" => Ok(LabelBase::Stored),
            _ => Err("no base of labels"),
        }
    }
}

impl From<LabelBase> for Class {
    fn from(base: LabelBase) -> Self {
        match base.first() {
            Some(first) => Class::Label(first),
            None => Class::Name("stored".to_owned()),
        }
    }
}

/// A class, by label or by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Class {
    /// Its label, as batches have it.
    Label(i64),
    /// Its name in the manifest.
    Name(String),
}

/// Weights for draws with replacement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Weights {
    /// One for each record of the split.
    BySample(Vec<f32>),
    /// One for each of these classes, by label as batches have it.
    ByLabel(Vec<(i64, f64)>),
    /// One for each of these classes, by name.
    ByClass(BTreeMap<String, f64>),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<LoaderOptions, String> {
        LoaderOptions::deserialize(value).map_err(|e| e.to_string())
    }

    fn every() -> Value {
        json!({
            "split": "train", "batch_size": 8, "rank": 1, "world_size": 4, "seed": u64::MAX, "shuffle": "blocks",
            "block_records": 16, "window_blocks": 3, "lanes": 8,
            "transform": [{"kind": "RandomResizedCrop", "size": 96}, {"kind": "Normalize"}],
            "batch_transform": {"kind": "Mixup", "alpha": 0.2}, "layout": "nchw", "dtype": "float16",
            "profile": "opencv", "exif_orientation": true, "dct_scaling": false, "max_pixels": 7,
            "max_image_bytes": 8, "drop_last": false, "indices": [1, 5], "classes": ["a", 3], "limit": 9,
            "weights": {"a": 0.5}, "class_balanced": true, "draws": 20, "repeats": 2, "on_error": "skip",
            "label_base": 1,
        })
    }

    #[test]
    fn options_round_trip() {
        let options = read(every()).unwrap();
        let given = options.given();
        assert_eq!(Value::Object(given.clone()), every());
        assert_eq!(given.len(), OPTIONS.len());
        assert!(OPTIONS.iter().all(|option| given.contains_key(option.name)));
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(
            serde_json::from_str::<LoaderOptions>(&text).unwrap(),
            options
        );
        assert_eq!(read(json!({})).unwrap(), LoaderOptions::default());
        assert_eq!(
            read(json!({"seed": null})).unwrap(),
            LoaderOptions::default()
        );
    }

    #[test]
    fn short_forms_are_those_they_stand_for() {
        for (short, long) in [
            (json!({"shuffle": true}), json!({"shuffle": "blocks"})),
            (json!({"shuffle": false}), json!({"shuffle": "none"})),
            (
                json!({"transform": "raw"}),
                json!({"transform": {"kind": "raw"}}),
            ),
            (
                json!({"transform": ["A"]}),
                json!({"transform": [{"kind": "A"}]}),
            ),
        ] {
            assert_eq!(read(short).unwrap(), read(long).unwrap());
        }
    }

    #[test]
    fn errors_name_the_option() {
        for (value, said) in [
            (
                json!({"batch_size": -1}),
                "option batch_size is -1: expected a whole number from 0",
            ),
            (
                json!({"batch_size": "8"}),
                "option batch_size is \"8\": expected a whole number",
            ),
            (
                json!({"drop_last": 1}),
                "option drop_last is 1: expected true or false",
            ),
            (
                json!({"on_error": "ignore"}),
                "expected \"raise\", \"skip\" or \"zero\"",
            ),
            (
                json!({"profile": "pilow"}),
                "option profile is \"pilow\": expected \"pillow\"",
            ),
            (
                json!({"label_base": 2}),
                "option label_base is 2: expected 0, 1 or \"stored\"",
            ),
            (
                json!({"shuffle": 3}),
                "option shuffle is 3: expected true, false or the name",
            ),
            (
                json!({"transform": 3}),
                "option transform: expected a name or a table",
            ),
            (
                json!({"transform": [{"size": 3}]}),
                "number 1 of the list: missing field `kind`",
            ),
            (
                json!({"batchsize": 1}),
                "unknown field `batchsize`, expected one of `split`",
            ),
        ] {
            let error = read(value).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
