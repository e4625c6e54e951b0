//! The options of `forebay.Loader`, from keyword arguments to a [`LoaderArgs`].

use forebay_loader::Options;
use forebay_options::{LoaderOptions, TransformSpec, Transforms};
use forebay_store::Cancel;
use pyo3::prelude::*;

use super::keywords::Keywords;
use super::{LoaderArgs, schema};
use crate::device::PyHostRegistry;
use crate::failure::{Failure, Kind};
use crate::loader::source::Origin;
use crate::storage::{GivenOptions, reading};

/// Default timeout for a batch, in seconds.
const TIMEOUT_S: f64 = 300.0;

impl LoaderArgs {
    /// Takes all options of a loader for `origin`.
    pub(in crate::loader) fn of(
        keywords: &mut Keywords<'_>,
        origin: &Origin,
        cancel: &Cancel,
    ) -> PyResult<LoaderArgs> {
        let given = schema::options(keywords)?;
        let (options, missing) = match resolved(&given) {
            // A job may have the missing options; invalid values fail here, before the connection.
            Err(missing) if origin.is_served() => (resolved(&filled(&given))?, Some(missing)),
            options => (options?, None),
        };
        let options = machine(keywords, options)?;
        let GivenOptions(storage_options) = keywords.take("storage_options")?.unwrap_or_default();
        let size = |number: Option<u64>| usize::try_from(number.unwrap_or(1)).unwrap_or(usize::MAX);
        Ok(LoaderArgs {
            options,
            missing,
            pad_last: keywords.flag("pad_last")?,
            timeout: super::timeout(keywords.seconds("timeout", TIMEOUT_S)?)?,
            transport: super::transport(keywords.text("transport")?.as_deref())?,
            connections: size(keywords.number("connections")?),
            read: reading(origin.is_far(), &storage_options, cancel)?,
            cancel: cancel.clone(),
            given,
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

/// Takes the options of samples that are read without an order of their own.
pub(crate) fn options_of(keywords: &mut Keywords<'_>) -> PyResult<Options> {
    let mut given = schema::options(keywords)?;
    given.shuffle = Some(false.into());
    Ok(resolved(&given)?)
}

/// Converts the options of a loader without a job.
fn resolved(given: &LoaderOptions) -> Result<Options, Failure> {
    if given.transform.is_none() {
        let message = "choose transform=forebay.TrainTransform(224), EvalTransform(224), KeepEncoded() or a list";
        return Err(Failure::new(Kind::Option, message));
    }
    Ok(Options::from_schema(given)?)
}

/// Returns the options with values for those that only a job may leave out.
fn filled(given: &LoaderOptions) -> LoaderOptions {
    let mut filled = given.clone();
    let train = || Transforms::One(TransformSpec::new("train"));
    filled.transform.get_or_insert_with(train);
    filled.shuffle.get_or_insert_with(|| true.into());
    filled
}

/// Takes the options that depend on this machine.
fn machine(keywords: &mut Keywords<'_>, mut options: Options) -> PyResult<Options> {
    let threads = keywords.number("threads")?.unwrap_or(0);
    options.threads = usize::try_from(threads).unwrap_or(usize::MAX);
    options.memory_bytes = keywords.bytes("memory")?.unwrap_or(0);
    // Of `forebay.torch`, not of users.
    if let Some(given) = keywords.raw("_registry")?.filter(|given| !given.is_none()) {
        options.registry = Some(given.extract::<PyRef<'_, PyHostRegistry>>()?.registry());
    }
    if let Some(bytes) = keywords.bytes("learn_seek_points")? {
        options.learn_seek_points = bytes;
    }
    let page_cache = keywords.text("page_cache")?;
    options.page_cache = super::page_cache(page_cache.as_deref().unwrap_or("keep"))?;
    Ok(options)
}
