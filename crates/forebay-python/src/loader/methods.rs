//! What Python calls of a `Loader`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_image::Dtype;
use forebay_proto::wire;
use forebay_store::Cancel;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};

use super::arguments::sampling::{self, Given};
use super::arguments::{self, Class, Count, Indices, ShuffleWish, Wish, counts};
use super::source::{self, Origin};
use super::{Epoch, PyLoader, state};
use crate::patience::{Deadline, SLICE, patiently};
use crate::pump::{Place, Pump};
use crate::steps;
use crate::storage::{GivenOptions, reading};
use crate::transform::AnyTransform;

/// Samples in a batch where nothing is said.
const BATCH_SIZE: u64 = 32;
/// How long `close` waits for the threads of a loader to end before it leaves them
/// to themselves.
const CLOSING: Duration = Duration::from_secs(10);

#[pymethods]
impl PyLoader {
    #[new]
    #[pyo3(signature = (
        source, *, batch_size=None, split=None, transform=None, rank=None, world_size=None, seed=None,
        shuffle=None, block_records=None, window_blocks=None, lanes=None,
        layout=None, dtype=None, batch_transform=None, profile=None, exif_orientation=None, dct_scaling=None,
        max_pixels=None, max_image_bytes=None, drop_last=None, pad_last=None, indices=None, classes=None, limit=None, weights=None,
        class_balanced=None, draws=None, repeats=None, on_error=None, label_base=None, threads=Count::Fits(0), memory=None, page_cache="keep", timeout=Some(300.0), transport=None, connections=Count::Fits(1), spread=Count::Fits(1), storage_options=None,
        token=None, token_file=None, tls_ca=None, tls_cert=None, tls_key=None,
    ), text_signature = "(source, *, batch_size=32, split=None, transform=None, rank=None, \
        world_size=None, seed=0, shuffle=True, block_records=None, window_blocks=None, lanes=None, \
        layout='nhwc', dtype=None, batch_transform=None, profile='pillow', exif_orientation=False, dct_scaling=False, \
        max_pixels=None, max_image_bytes=None, drop_last=None, pad_last=None, indices=None, classes=None, limit=None, weights=None, \
        class_balanced=False, draws=None, repeats=1, on_error='raise', label_base=None, threads=0, memory=None, page_cache='keep', timeout=300.0, \
        transport=None, connections=1, spread=1, storage_options=None, token=None, token_file=None, tls_ca=None, tls_cert=None, tls_key=None)")]
    #[allow(clippy::too_many_arguments)] // one each, as Python has them
    fn new(
        py: Python<'_>,
        source: Bound<'_, PyAny>,
        batch_size: Option<Count>,
        split: Option<String>,
        transform: Option<AnyTransform<'_>>,
        rank: Option<Count>,
        world_size: Option<Count>,
        seed: Option<Count>,
        shuffle: Option<ShuffleWish>,
        block_records: Option<Count>,
        window_blocks: Option<Count>,
        lanes: Option<Count>,
        layout: Option<&str>,
        dtype: Option<&str>,
        batch_transform: Option<Bound<'_, PyAny>>,
        profile: Option<&str>,
        exif_orientation: Option<bool>,
        dct_scaling: Option<bool>,
        max_pixels: Option<Count>,
        max_image_bytes: Option<Count>,
        drop_last: Option<bool>,
        pad_last: Option<bool>,
        indices: Option<Indices>,
        classes: Option<Vec<Class>>,
        limit: Option<Count>,
        weights: Option<Bound<'_, PyAny>>,
        class_balanced: Option<bool>,
        draws: Option<Count>,
        repeats: Option<Count>,
        on_error: Option<&str>,
        label_base: Option<i64>,
        threads: Count,
        memory: Option<Count>,
        page_cache: &str,
        timeout: Option<f64>,
        transport: Option<&str>,
        connections: Count,
        spread: Count,
        storage_options: Option<GivenOptions>,
        token: Option<&str>,
        token_file: Option<PathBuf>,
        tls_ca: Option<PathBuf>,
        tls_cert: Option<PathBuf>,
        tls_key: Option<PathBuf>,
    ) -> PyResult<PyLoader> {
        let origin = Origin::of(&source)?;
        let name = origin.to_string();
        let [
            batch_size,
            rank,
            world_size,
            seed,
            block_records,
            window_blocks,
            lanes,
        ] = counts([
            ("batch_size", batch_size),
            ("rank", rank),
            ("world_size", world_size),
            ("seed", seed),
            ("block_records", block_records),
            ("window_blocks", window_blocks),
            ("lanes", lanes),
        ])?;
        let [max_pixels, max_image_bytes, limit, draws, repeats, memory] = counts([
            ("max_pixels", max_pixels),
            ("max_image_bytes", max_image_bytes),
            ("limit", limit),
            ("draws", draws),
            ("repeats", repeats),
            ("memory", memory),
        ])?;
        let ranks = arguments::ranks(rank, world_size)?;
        // What a job must not contradict.
        let mut given = Vec::new();
        for (name, is_given) in [
            ("split", split.is_some()),
            ("batch_size", batch_size.is_some()),
            ("world_size", ranks.world_is_given),
            ("lanes", lanes.is_some()),
            ("seed", seed.is_some()),
            (
                "shuffle",
                shuffle.is_some() || block_records.is_some() || window_blocks.is_some(),
            ),
            ("transform", transform.is_some()),
            ("layout", layout.is_some()),
            ("keep_last", drop_last.is_some() || pad_last.is_some()),
            ("output", dtype.is_some()),
            (
                "decode",
                profile.is_some()
                    || exif_orientation.is_some()
                    || dct_scaling.is_some()
                    || max_pixels.is_some()
                    || max_image_bytes.is_some(),
            ),
            (
                "sampling",
                indices.is_some()
                    || classes.is_some()
                    || limit.is_some()
                    || weights.is_some()
                    || class_balanced.is_some()
                    || draws.is_some()
                    || repeats.is_some(),
            ),
            ("on_error", on_error.is_some()),
            ("batch_transform", batch_transform.is_some()),
        ] {
            if is_given {
                given.push(name);
            }
        }
        let (transform, normalize) = arguments::transform(transform)?;
        if normalize.is_some() && !given.contains(&"output") {
            given.push("output");
        }
        let mut options = forebay_loader::Options::new(batch_size.unwrap_or(BATCH_SIZE), transform);
        (options.rank, options.world_size) = (ranks.rank, ranks.world_size);
        options.seed = seed.unwrap_or(0);
        let shuffle = shuffle.unwrap_or(ShuffleWish::Whether(true));
        options.shuffle = arguments::shuffle(shuffle, block_records, window_blocks)?;
        options.lanes = lanes.unwrap_or(0);
        options.output.layout = arguments::layout(layout.unwrap_or("nhwc"))?;
        options.batch_transform = match batch_transform {
            Some(transform) => Some(steps::batch_transform(&transform)?),
            None => None,
        };
        options.output.normalize = normalize;
        options.output.dtype = match dtype {
            Some(name) => arguments::dtype(name)?,
            None if normalize.is_some() => Dtype::Float32,
            None => Dtype::Uint8,
        };
        options.decode.profile = arguments::profile(profile.unwrap_or("pillow"))?;
        options.decode.exif = exif_orientation.unwrap_or(false);
        options.decode.scaled = dct_scaling.unwrap_or(false);
        arguments::limits(&mut options.decode.limits, max_pixels, max_image_bytes)?;
        options.keep_last = arguments::keep_last(drop_last, pad_last)?;
        options.sampling = sampling::sampling(Given {
            indices,
            classes,
            limit,
            weights,
            class_balanced: class_balanced.unwrap_or(false),
            draws,
            repeats: repeats.unwrap_or(1),
        })?;
        options.on_error = arguments::on_error(on_error.unwrap_or("raise"))?;
        options.threads = threads.size("threads")?;
        options.memory_bytes = memory.unwrap_or(0);
        options.page_cache = arguments::page_cache(page_cache)?;
        let label_base = arguments::label_base(label_base)?;
        let timeout = arguments::timeout(timeout)?;
        let cancel = Cancel::new();
        let GivenOptions(storage_options) = storage_options.unwrap_or_default();
        let wish = Wish {
            options,
            split,
            label_base,
            timeout,
            transport: arguments::transport(transport)?,
            connections: connections.size("connections")?,
            spread: spread.size("spread")?,
            read: reading(origin.is_far(), &storage_options, &cancel)?,
            cancel: cancel.clone(),
            given,
            rank_is_given: ranks.rank_is_given,
            access: arguments::access(token, token_file, tls_ca, tls_cert, tls_key)?,
        };
        let waits_for = || format!("an answer from {name}");
        let end = Deadline::after(timeout);
        let (opened, batches) = patiently(py, end, waits_for, &cancel, move || {
            source::open(&origin, wish)
        })?;
        let stride = opened
            .options
            .batch_size
            .saturating_mul(opened.options.world_size);
        let shift = label_base.map_or(0, |base| base - opened.label_base);
        let pump = Pump::new(batches, opened.samples, stride);
        Ok(PyLoader {
            process: std::process::id(),
            name,
            shift,
            timeout,
            pump: Arc::new(pump),
            handle: Arc::clone(&opened.handle),
            opened,
            waited_ns: AtomicU64::new(0),
        })
    }

    /// Where batches come from, as given.
    #[getter]
    fn source(&self) -> &str {
        &self.name
    }

    /// What tells the dataset apart from every other.
    #[getter]
    fn fingerprint(&self) -> &str {
        &self.opened.fingerprint
    }

    /// Name of the split.
    #[getter]
    fn split(&self) -> &str {
        &self.opened.split
    }

    /// Records of the split.
    #[getter]
    fn records(&self) -> u64 {
        self.opened.records
    }

    /// The number of the first record of each dataset of a `Mix`; None without one.
    ///
    /// Sample `s` of dataset `d` is record `s - dataset_starts[d]` of its split.
    #[getter]
    fn dataset_starts(&self) -> Option<Vec<u64>> {
        self.opened.starts.clone()
    }

    /// Samples of an epoch, all ranks together and without padding: `records`, if no option says otherwise.
    #[getter]
    fn epoch_samples(&self) -> u64 {
        self.opened.samples
    }

    /// Samples in a batch of this rank.
    #[getter]
    fn batch_size(&self) -> u64 {
        self.opened.options.batch_size
    }

    /// This process among those that share an epoch.
    #[getter]
    fn rank(&self) -> u64 {
        self.opened.options.rank
    }

    /// How many processes share an epoch.
    #[getter]
    fn world_size(&self) -> u64 {
        self.opened.options.world_size
    }

    /// The epoch of the next batch.
    #[getter]
    fn epoch(&self) -> PyResult<u64> {
        Ok(self.place()?.epoch)
    }

    /// How many samples of that epoch all ranks together were given.
    #[getter]
    fn position(&self) -> PyResult<u64> {
        Ok(self.place()?.position)
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> PyResult<bool> {
        self.check_process()?;
        Ok(self.pump.is_closed())
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.opened.batches_per_epoch).unwrap_or(usize::MAX)
    }

    fn __iter__(loader: Bound<'_, Self>) -> PyResult<Epoch> {
        let this = loader.get();
        this.check_open()?;
        let generation = this.pump.begin();
        Ok(Epoch::new(loader.unbind(), generation))
    }

    /// Make the next loop one over `epoch`.
    ///
    /// Not needed: loops count epochs by themselves. Where the loader already stands in that
    /// epoch, after `load_state_dict`, its position is kept.
    ///
    /// Parameters
    /// ----------
    /// epoch : int
    ///     The epoch, from 0.
    fn set_epoch(&self, epoch: Count) -> PyResult<()> {
        self.check_open()?;
        self.pump.set_epoch(epoch.number("epoch")?);
        Ok(())
    }

    /// A few numbers that tell where the loader stands.
    ///
    /// Counts batches that were handed out, not those that were prepared. What it holds
    /// survives JSON.
    ///
    /// Returns
    /// -------
    /// dict
    ///     "epoch" and "position", and what they are the numbers of: "fingerprint", "split",
    ///     "records", "seed", "lanes" and "shuffle"; "digest", see `epoch_digest`.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_process()?;
        let (place, digest) = self.pump.standing();
        self.identity().save(py, place, &digest)
    }

    /// What was delivered of the epoch of the last batch.
    ///
    /// The digests of all ranks, added up, are the same for every number of ranks, every batch size and whatever died on the
    /// way, if each sample came exactly once. After a loop it is the digest of that loop's epoch.
    ///
    /// Returns
    /// -------
    /// EpochDigest
    ///     With what was delivered before the state that was loaded, if that was a state of this rank.
    fn epoch_digest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.check_process()?;
        let (_, digest) = self.pump.standing();
        let fields = state::fields(py, &digest)?;
        fields.set_item("value", digest.value)?;
        let class = py.import("forebay._digest")?.getattr("EpochDigest")?;
        class.call((), Some(&fields))
    }

    /// Continue where another loader stood: the next loop gives the very next batch.
    ///
    /// Batch size, number of ranks, transform and source may be others.
    ///
    /// Parameters
    /// ----------
    /// state : dict
    ///     From `state_dict`.
    ///
    /// Raises
    /// ------
    /// StateError
    ///     When it is of another dataset, seed or shuffle, or no state at all.
    fn load_state_dict(&self, state: &Bound<'_, PyMapping>) -> PyResult<()> {
        self.check_open()?;
        let place = self.identity().load(state)?;
        let digest = self.identity().digest(state)?;
        self.pump.jump(place, digest);
        Ok(())
    }

    /// Where the time went so far.
    ///
    /// Returns
    /// -------
    /// dict
    ///     "images", "batches" and "bytes_read" of the pipeline, which works ahead; "wait_s",
    ///     how long loops waited for batches; "transport", how batches come: "shm" or "tcp" from a server,
    ///     None where they are made in this process; "stages", with "busy_s", "starved_s" (waiting
    ///     for input), "blocked_s" (waiting for room) and "threads" of each, those of a server
    ///     included; "verdict", a sentence that tells what holds the trainer back, or None while a
    ///     server does not answer; "failed", how many
    ///     samples were replaced (see `on_error`), and "failures", what was wrong with the last of them;
    ///     "storage", None for local files, and for a dataset in a store what was counted since it was
    ///     opened: "fetched_bytes" that came over the network, "retries" after failures, "hedges" (requests
    ///     made twice because the answer was late), and "cache", None without one, else "hits" and "misses"
    ///     of blocks and "hit_bytes" and "miss_bytes" of what was wanted of them. A server counts for all
    ///     of its streams together.
    ///     With servers also "server", the one that batches come from, and "servers", how many came from each; "reconnects",
    ///     how often one was lost and the next went on, "longest_gap_s", the longest time until it did, "handovers", how
    ///     often one took over from another that still served, and "retries", attempts that came to nothing: None
    ///     without servers.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        // A server is asked.
        let counters = py.detach(|| self.handle.counters());
        let stats = counters.wire;
        let stages = PyDict::new(py);
        for stage in &stats.stages {
            let times = PyDict::new(py);
            times.set_item("busy_s", stage.busy_s)?;
            times.set_item("starved_s", stage.starved_s)?;
            times.set_item("blocked_s", stage.blocked_s)?;
            times.set_item("threads", stage.threads)?;
            stages.set_item(&stage.name, times)?;
        }
        let waited = Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed));
        let all = PyDict::new(py);
        all.set_item("images", stats.images)?;
        all.set_item("batches", stats.batches)?;
        all.set_item("bytes_read", stats.bytes_read)?;
        all.set_item("wait_s", waited.as_secs_f64())?;
        all.set_item("transport", self.handle.transport())?;
        all.set_item("stages", stages)?;
        all.set_item("verdict", counters.verdict)?;
        all.set_item("storage", storage(py, stats.traffic.as_ref())?)?;
        all.set_item("failed", stats.failed)?;
        all.set_item("failures", stats.failures)?;
        let names = [
            "server",
            "servers",
            "reconnects",
            "handovers",
            "retries",
            "longest_gap_s",
        ];
        for name in names {
            all.set_item(name, py.None())?;
        }
        if let Some(servers) = self.handle.servers() {
            let used = PyDict::new(py);
            for server in &servers.used {
                used.set_item(&server.server, server.batches)?;
            }
            let [server, batches, reconnects, handovers, retries, gap] = names;
            all.set_item(server, servers.now)?;
            all.set_item(batches, used)?;
            all.set_item(reconnects, servers.stats.reconnects)?;
            all.set_item(handovers, servers.stats.handovers)?;
            all.set_item(retries, servers.stats.retries)?;
            all.set_item(gap, servers.stats.longest_gap.as_secs_f64())?;
        }
        Ok(all)
    }

    /// Stop threads and connections. Batches that were handed out stay.
    ///
    /// Leaving a `with` block does it, and so does the end of the loader's life.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        self.pump.close();
        self.handle.cancel();
        let deadline = Instant::now() + CLOSING;
        while !py.detach(|| self.pump.join(SLICE)) && Instant::now() < deadline {
            py.check_signals()?;
        }
        Ok(())
    }

    fn __enter__(loader: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        loader.get().check_open()?;
        Ok(loader)
    }

    #[pyo3(signature = (kind=None, value=None, trace=None, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
        trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = (kind, value, trace);
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a Loader has threads and connections and cannot be pickled: make it in the process \
             that uses it, and carry state_dict() over",
        ))
    }

    fn __repr__(&self) -> String {
        let options = &self.opened.options;
        let place = match self.place() {
            Ok(Place { epoch, position }) => {
                let transport = match self.handle.transport() {
                    Some(transport) => format!(", transport='{transport}'"),
                    None => String::new(),
                };
                format!("epoch={epoch}, position={position}{transport}")
            }
            Err(_) => "of another process".to_owned(),
        };
        format!(
            "Loader('{}', split='{}', records={}, batch_size={}, rank={}, world_size={}, {place})",
            self.name,
            self.opened.split,
            self.opened.records,
            options.batch_size,
            options.rank,
            options.world_size,
        )
    }
}

/// What a store and its cache counted.
fn storage<'py>(
    py: Python<'py>,
    traffic: Option<&wire::Traffic>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(traffic) = traffic else {
        return Ok(None);
    };
    let storage = PyDict::new(py);
    storage.set_item("fetched_bytes", traffic.fetched_bytes)?;
    storage.set_item("retries", traffic.retries)?;
    storage.set_item("hedges", traffic.hedges)?;
    let cache = PyDict::new(py);
    cache.set_item("hits", traffic.cache_hits)?;
    cache.set_item("misses", traffic.cache_misses)?;
    cache.set_item("hit_bytes", traffic.cache_hit_bytes)?;
    cache.set_item("miss_bytes", traffic.cache_miss_bytes)?;
    storage.set_item("cache", traffic.has_cache.then_some(cache))?;
    Ok(Some(storage))
}
