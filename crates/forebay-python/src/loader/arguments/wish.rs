//! The options of `forebay.Loader`, from keyword arguments to a [`Wish`].

use forebay_image::Dtype;
use forebay_loader::Options;
use forebay_store::Cancel;
use pyo3::prelude::*;

use super::Wish;
use super::given::{Classes, DtypeName, GivenBase, Indices, ShuffleWish};
use super::keywords::{Keywords, named};
use super::sampling::{self, Given};
use crate::loader::source::Origin;
use crate::steps;
use crate::storage::{GivenOptions, reading};
use crate::transform::AnyTransform;

/// Samples in a batch by default.
const BATCH_SIZE: u64 = 32;
/// The longest wait for a batch by default.
const TIMEOUT_S: f64 = 300.0;

/// Fields of a spec, and the options that they are made of: a job must agree with those that are given.
const FIELDS: [(&str, &[&str]); 14] = [
    ("split", &["split"]),
    ("batch_size", &["batch_size"]),
    ("lanes", &["lanes"]),
    ("seed", &["seed"]),
    ("shuffle", &["shuffle", "block_records", "window_blocks"]),
    ("transform", &["transform"]),
    ("layout", &["layout"]),
    ("keep_last", &["drop_last", "pad_last"]),
    ("output", &["dtype"]),
    (
        "decode",
        &[
            "profile",
            "exif_orientation",
            "dct_scaling",
            "max_pixels",
            "max_image_bytes",
        ],
    ),
    (
        "sampling",
        &[
            "indices",
            "classes",
            "limit",
            "weights",
            "class_balanced",
            "draws",
            "repeats",
        ],
    ),
    ("on_error", &["on_error"]),
    ("batch_transform", &["batch_transform"]),
    ("label_base", &["label_base"]),
];

impl Wish {
    /// Takes all options of a loader of `origin`.
    pub(in crate::loader) fn of(
        keywords: &mut Keywords<'_>,
        origin: &Origin,
        cancel: &Cancel,
    ) -> PyResult<Wish> {
        let mut given = Vec::new();
        for (field, options) in FIELDS {
            if keywords.has(options)? {
                given.push(field);
            }
        }
        let split = keywords.text("split")?;
        let options = stream(keywords, &mut given)?;
        let GivenOptions(storage_options) = keywords.take("storage_options")?.unwrap_or_default();
        let size = |number: Option<u64>| usize::try_from(number.unwrap_or(1)).unwrap_or(usize::MAX);
        Ok(Wish {
            options,
            split,
            timeout: super::timeout(keywords.seconds("timeout", TIMEOUT_S)?)?,
            transport: super::transport(keywords.text("transport")?.as_deref())?,
            connections: size(keywords.number("connections")?),
            spread: size(keywords.number("spread")?),
            read: reading(origin.is_far(), &storage_options, cancel)?,
            cancel: cancel.clone(),
            given,
            rank: keywords.number("rank")?,
            world_size: keywords.number("world_size")?,
            access: super::access(
                keywords.text("token")?.as_deref(),
                keywords.path("token_file")?,
                keywords.path("tls_ca")?,
                keywords.path("tls_cert")?,
                keywords.path("tls_key")?,
            )?,
        })
    }
}

/// The options of batches, and of this machine's part in making them.
fn stream(keywords: &mut Keywords<'_>, given: &mut Vec<&'static str>) -> PyResult<Options> {
    let (transform, normalize) = super::transform(keywords.take::<AnyTransform<'_>>("transform")?)?;
    if normalize.is_some() && !given.contains(&"output") {
        given.push("output");
    }
    let batch_size = keywords.number("batch_size")?.unwrap_or(BATCH_SIZE);
    let mut options = Options::new(batch_size, transform);
    options.seed = keywords.number("seed")?.unwrap_or(0);
    let shuffle = keywords.take("shuffle")?;
    options.shuffle = super::shuffle(
        shuffle.unwrap_or(ShuffleWish::Whether(true)),
        keywords.number("block_records")?,
        keywords.number("window_blocks")?,
    )?;
    options.lanes = keywords.number("lanes")?.unwrap_or(0);
    let layout = keywords.text("layout")?;
    options.output.layout = super::layout(layout.as_deref().unwrap_or("nhwc"))?;
    if let Some(transform) = keywords.raw("batch_transform")?.filter(|t| !t.is_none()) {
        let mixing = steps::batch_transform(&transform);
        let mixing = mixing.map_err(|error| named(transform.py(), "batch_transform", error))?;
        options.batch_transform = Some(mixing);
    }
    options.output.normalize = normalize;
    options.output.dtype = match keywords.take("dtype")? {
        Some(DtypeName(name)) => super::dtype(&name)?,
        None if normalize.is_some() => Dtype::Float32,
        None => Dtype::Uint8,
    };
    let profile = keywords.text("profile")?;
    options.decode.profile = super::profile(profile.as_deref().unwrap_or("pillow"))?;
    options.decode.exif = keywords.flag("exif_orientation")?.unwrap_or(false);
    options.decode.scaled = keywords.flag("dct_scaling")?.unwrap_or(false);
    super::limits(
        &mut options.decode.limits,
        keywords.number("max_pixels")?,
        keywords.bytes("max_image_bytes")?,
    )?;
    options.keep_last = super::keep_last(keywords.flag("drop_last")?, keywords.flag("pad_last")?)?;
    options.sampling = sampling::sampling(Given {
        indices: keywords.take::<Indices>("indices")?,
        classes: keywords.take::<Classes>("classes")?,
        limit: keywords.number("limit")?,
        weights: keywords
            .raw("weights")?
            .filter(|weights| !weights.is_none()),
        class_balanced: keywords.flag("class_balanced")?.unwrap_or(false),
        draws: keywords.number("draws")?,
        repeats: keywords.number("repeats")?.unwrap_or(1),
    })?;
    let on_error = keywords.text("on_error")?;
    options.on_error = super::on_error(on_error.as_deref().unwrap_or("raise"))?;
    let label_base = keywords.take("label_base")?;
    options.label_base = label_base.map(|GivenBase(base)| base).unwrap_or_default();
    let threads = keywords.number("threads")?.unwrap_or(0);
    options.threads = usize::try_from(threads).unwrap_or(usize::MAX);
    options.memory_bytes = keywords.bytes("memory")?.unwrap_or(0);
    let page_cache = keywords.text("page_cache")?;
    options.page_cache = super::page_cache(page_cache.as_deref().unwrap_or("keep"))?;
    Ok(options)
}
