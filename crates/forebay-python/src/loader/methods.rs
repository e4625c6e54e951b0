//! The methods of `Loader` in Python.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_loader::{Bottleneck, DeviceCopy};
use forebay_store::Cancel;
use forebay_wire::wire;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyMapping};

use super::arguments::{Count, Keywords, LoaderArgs};
use super::docs;
use super::ranks::{self, Ranks};
use super::source::{self, LoopTimes, Opener, Origin};
use super::state::{self, Identity};
use super::waits::Waits;
use super::{Current, Epoch, PyLoader, Resumed, lock};
use crate::patience::{Deadline, SLICE, patiently};
use crate::pump::{EpochPosition, Pump};

/// How long `close` waits for the threads of a loader to end.
const CLOSING: Duration = Duration::from_secs(10);

#[pymethods]
impl PyLoader {
    #[classattr]
    fn __doc__() -> String {
        docs::docstring()
    }

    #[classattr]
    fn __signature__(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        docs::signature(py)
    }

    #[new]
    #[pyo3(signature = (source, **options))]
    fn new(
        py: Python<'_>,
        source: Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyLoader> {
        let origin = Origin::of(&source)?;
        let name = origin.to_string();
        let cancel = Cancel::new();
        let mut keywords = Keywords::new(py, "Loader", options)?;
        let args = LoaderArgs::of(&mut keywords, &origin, &cancel)?;
        keywords.end()?;
        let (timeout, pad_last) = (args.timeout, args.pad_last);
        let (rank, world_size) = (args.given.rank, args.given.world_size);
        let waits_for = || format!("an answer from {name}");
        let end = Deadline::after(timeout);
        let opener = patiently(py, end, waits_for, &cancel, move || {
            source::reach(&origin, args)
        })?;
        let opener: Arc<dyn Opener> = Arc::from(opener);
        let job = opener.job_world();
        let fixed = Ranks::given(rank, world_size, job)?;
        let ranks = match fixed {
            Some(ranks) => ranks,
            // Missing or contradictory ranks are no error yet: they may change before the first loop.
            None => ranks::of_process(py, job, false)?.unwrap_or(Ranks::UNKNOWN),
        };
        let of_rank = Arc::clone(&opener);
        let (opened, batches) =
            patiently(py, end, waits_for, &cancel, move || of_rank.open(&ranks))?;
        let pump = Pump::new(batches, opened.batches);
        Ok(PyLoader {
            process: std::process::id(),
            name,
            opener: Mutex::new(fixed.is_none().then_some(opener)),
            job,
            rank_is_fixed: fixed.is_some(),
            current: Mutex::new(Arc::new(Current { opened, ranks })),
            resumed: Mutex::new(None),
            timeout,
            pad_last,
            pump: Arc::new(pump),
            waited_ns: AtomicU64::new(0),
            waits: Waits::default(),
            handover_ns: AtomicU64::new(0),
        })
    }

    /// The source of the batches, as given.
    #[getter]
    fn source(&self) -> &str {
        &self.name
    }

    /// The identifier of the dataset.
    #[getter]
    fn fingerprint(&self) -> String {
        self.current().opened.fingerprint.clone()
    }

    /// The identity of its samples: their keys, labels and order. A conversion that keeps them keeps it. None where it
    /// is not known.
    #[getter]
    fn sample_fingerprint(&self) -> Option<String> {
        self.current().opened.sample_fingerprint.clone()
    }

    /// Name of the split.
    #[getter]
    fn split(&self) -> String {
        self.current().opened.split.clone()
    }

    /// Records of the split.
    #[getter]
    fn records(&self) -> u64 {
        self.current().opened.records
    }

    /// The names of classes in the order of the labels of batches, from `label_base` on.
    ///
    /// Empty where the dataset has no list of them, or a label of a `Mix` stands for several classes.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.current().opened.classes.to_vec()
    }

    /// The label of the first class in batches: 0, if the option of that name does not say otherwise.
    ///
    /// None for a `Mix` with ``label_base="stored"`` whose datasets count from different numbers.
    #[getter]
    fn label_base(&self) -> Option<i64> {
        self.current().opened.label_base
    }

    /// The number of the first record of each dataset of a `Mix`; None without one.
    ///
    /// Sample `s` of dataset `d` is record `s - dataset_starts[d]` of its split.
    #[getter]
    fn dataset_starts(&self) -> Option<Vec<u64>> {
        self.current().opened.starts.clone()
    }

    /// Samples of an epoch, all ranks together and without padding: `records`, if no option says otherwise.
    #[getter]
    fn epoch_samples(&self) -> u64 {
        self.current().opened.samples
    }

    /// Samples in a batch of this rank.
    #[getter]
    fn batch_size(&self) -> u64 {
        self.current().opened.options.batch_size
    }

    /// Whether the short batch at the end of an epoch is left out.
    #[getter]
    fn drop_last(&self) -> bool {
        self.current().opened.options.drop_last
    }

    /// This process among those that share an epoch: looked up each time, unless a loop is running.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.ranked(py)?.opened.options.rank)
    }

    /// How many processes share an epoch: looked up as `rank` is.
    #[getter]
    fn world_size(&self, py: Python<'_>) -> PyResult<u64> {
        match self.is_settled() || self.find_ranks(py).is_ok() {
            true => Ok(self.ranked(py)?.opened.options.world_size),
            // The world size may be known before the rank.
            false => ranks::world_of_process(py, self.job),
        }
    }

    /// An object with `set_epoch`, where frameworks look for one.
    #[getter]
    fn sampler<'py>(loader: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let module = loader.py().import("forebay._sampler")?;
        module.getattr("Sampler")?.call1((loader,))
    }

    /// None: batches are made here, and `sampler` has the epochs.
    #[getter]
    fn batch_sampler(&self) -> Option<u64> {
        None
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

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let batches = self.batches(py)?;
        Ok(usize::try_from(batches.per_epoch()).unwrap_or(usize::MAX))
    }

    fn __iter__(loader: Bound<'_, Self>) -> PyResult<Epoch> {
        let this = loader.get();
        this.check_open()?;
        let ranks = this.find_ranks(loader.py())?;
        let generation = this.pump.begin();
        this.follow(loader.py(), ranks)?;
        Ok(Epoch::new(loader.unbind(), generation))
    }

    /// Make the next loop one over `epoch`.
    ///
    /// Not needed: loops count epochs by themselves. May be called at any time: a loop that is
    /// running continues with its own epoch, and the next one begins `epoch`. After
    /// `load_state_dict` with a state of that epoch the position is kept.
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
    /// Counts batches that were handed out, not those that were prepared. After the last batch of an
    /// epoch it is the start of the next one. What it holds survives JSON.
    ///
    /// Returns
    /// -------
    /// dict
    ///     "epoch" and "position", and what they are the numbers of: "fingerprint", "sample_fingerprint", "split",
    ///     "records", "seed", "virtual_ranks", "shuffle" and "label_base"; "digest", see `epoch_digest`.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_process()?;
        let current = self.ranked(py)?;
        let (place, digest) = self.pump.standing();
        current.identity().save(py, place, &digest)
    }

    /// A digest of the delivered part of the last batch's epoch.
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
    ///     When it is of another dataset, seed, shuffle or label base, or no state at all.
    fn load_state_dict(&self, state: &Bound<'_, PyMapping>) -> PyResult<()> {
        self.check_open()?;
        let current = self.current();
        let place = current.identity().load(state)?;
        let resumed = Identity::digest(state)?.map(|(digest, of)| Resumed { place, digest, of });
        let options = &current.opened.options;
        let of = (options.rank, options.world_size);
        let digest = resumed.filter(|resumed| resumed.of == of);
        self.pump.jump(place, digest.map(|resumed| resumed.digest));
        *lock(&self.resumed) = resumed;
        Ok(())
    }

    /// Times and waits of each stage so far.
    ///
    /// Returns
    /// -------
    /// dict
    ///     "images", "batches" and "bytes_read" of the pipeline, which works ahead; "fast_share", which
    ///     part of the decoded images, 0.0 to 1.0, is stored as fast images (`forebay pack --images`),
    ///     None before the first one and while a server does not answer; "learned_seek_points", None where none are
    ///     learned, else "samples" that were decoded with learned seek points, and over all loaders of the split in the
    ///     process that decodes: "images" that have some, "bytes" that hold them, and whether the limit was reached, "full"; "wait_s",
    ///     how long loops waited for batches, "wait_p50_s" and "wait_p99_s", the median of the waits for the last 1,024 batches and
    ///     the wait that 99 % of them do not exceed, None before the first; "handover_s", how long handing finished batches to loops
    ///     took, waiting for Python's lock included; "device_s", how long a loader for a device copied batches
    ///     to it, None without one; "device_copy", how `forebay.torch` copied batches to a GPU: "registered" from the memory
    ///     that they were decoded into, or "pinned: ..." through pinned memory, with the reason, None without a GPU;
    ///     "transport", how batches come: "shm" or "tcp" from a server,
    ///     None where they are made in this process; "stages", with "busy_s", "starved_s" (waiting
    ///     for input), "blocked_s" (waiting for room) and "threads" of each, those of a server
    ///     included; "bound", the bottleneck: "trainer" (the best case), "handover", "device", "decode", "neighbor",
    ///     "storage", "network" or "unknown", and "bottleneck", a sentence about it, None where the trainer waited for less
    ///     than 5 % of its time, both None while a server does not answer; "failed", how many
    ///     samples were replaced (see `on_error`), and "failures", what was wrong with the last of them;
    ///     "storage", None for local files, and for a dataset in a store what was counted since it was
    ///     opened: "fetched_bytes" that came over the network, "retries" after failures, "hedges" (requests
    ///     made twice because the answer was late), "requests", "cost", their estimated price in dollars, None without
    ///     prices, else "in_region" of the data and "over_internet" so far, "epoch_in_region" and "epoch_over_internet"
    ///     for a whole epoch of all ranks, None before the first sample, and "prices", where they come from, and "cache", None without one, else "hits" and "misses"
    ///     of blocks and "hit_bytes" and "miss_bytes" of what was wanted of them. A server counts for all
    ///     of its streams together.
    ///     With servers also "server", the one that batches come from, and "servers", how many batches each sent, also
    ///     those that were only read ahead; "reconnects",
    ///     how often one was lost and the next went on, "longest_gap_s", the longest time until it did, "handovers", how
    ///     often one took over from another that still served, and "retries", attempts that came to nothing: None
    ///     without servers.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.stats_beside(py, None)
    }

    /// The same, for an object in front that copies batches to a device: its seconds of copying and of waiting for batches,
    /// and those of its trainer between two batches and of waiting for one.
    #[pyo3(name = "_stats", signature = (copies))]
    fn stats_beside<'py>(
        &self,
        py: Python<'py>,
        copies: Option<(f64, f64, f64, f64)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let device =
            copies.map(
                |(busy_s, starved_s, trainer_busy_s, trainer_starved_s)| DeviceCopy {
                    busy_s,
                    starved_s,
                    trainer_busy_s,
                    trainer_starved_s,
                },
            );
        let current = self.current();
        let handle = &current.opened.handle;
        // For a server, this sends a request.
        let handover = Duration::from_nanos(self.handover_ns.load(Ordering::Relaxed));
        let waited = self.waited();
        let loops = LoopTimes {
            waited,
            handover,
            device,
        };
        let counters = py.detach(|| handle.counters(loops));
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
        let all = PyDict::new(py);
        all.set_item("images", stats.images)?;
        let fast_share = stats.fast_images as f64 / stats.decoded as f64;
        all.set_item("fast_share", (stats.decoded > 0).then_some(fast_share))?;
        let learned = stats.learned.map(|points| learned(py, &points));
        all.set_item("learned_seek_points", learned.transpose()?)?;
        all.set_item("batches", stats.batches)?;
        all.set_item("bytes_read", stats.bytes_read)?;
        all.set_item("wait_s", waited.as_secs_f64())?;
        let (median, most) = self.waits.quantiles().unzip();
        all.set_item("wait_p50_s", median)?;
        all.set_item("wait_p99_s", most)?;
        all.set_item("handover_s", handover.as_secs_f64())?;
        all.set_item("device_s", device.map(|device| device.busy_s))?;
        // `forebay.torch` knows it.
        all.set_item("device_copy", py.None())?;
        all.set_item("transport", handle.transport())?;
        all.set_item("stages", stages)?;
        let bottleneck = counters.bottleneck.as_ref();
        all.set_item("bound", bottleneck.map(|found| found.bound.name()))?;
        all.set_item("bottleneck", bottleneck.and_then(Bottleneck::sentence))?;
        let epochs = current.opened.records as f64 / stats.images as f64;
        let storage = stats.traffic.map(|traffic| storage(py, &traffic, epochs));
        all.set_item("storage", storage.transpose()?)?;
        all.set_item("failed", stats.failed)?;
        all.set_item("failures", stats.failures)?;
        let servers = handle.servers();
        let servers = servers.as_ref();
        let used = servers.map(|servers| {
            let used = servers.used.iter();
            used.map(|used| (&used.server, used.batches))
                .into_py_dict(py)
        });
        let stream = servers.map(|servers| &servers.stats);
        all.set_item("server", servers.map(|servers| &servers.now))?;
        all.set_item("servers", used.transpose()?)?;
        all.set_item("reconnects", stream.map(|stream| stream.reconnects))?;
        all.set_item("handovers", stream.map(|stream| stream.handovers))?;
        all.set_item("retries", stream.map(|stream| stream.retries))?;
        let gap = stream.map(|stream| stream.longest_gap.as_secs_f64());
        all.set_item("longest_gap_s", gap)?;
        Ok(all)
    }

    /// Stop threads and connections. Batches that were handed out stay.
    ///
    /// Leaving a `with` block does it, and so does the end of the loader's life.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        py.detach(|| {
            self.stop();
            drop(lock(&self.opener).take());
        });
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
        let current = self.current();
        let options = &current.opened.options;
        let place = match self.place() {
            Ok(EpochPosition { epoch, position }) => {
                let transport = match current.opened.handle.transport() {
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
            current.opened.split,
            current.opened.records,
            options.batch_size,
            options.rank,
            options.world_size,
        )
    }
}

/// Returns the counters of a store and its cache; an epoch takes `epochs` times as much.
fn storage<'py>(
    py: Python<'py>,
    traffic: &wire::Traffic,
    epochs: f64,
) -> PyResult<Bound<'py, PyDict>> {
    let storage = PyDict::new(py);
    storage.set_item("fetched_bytes", traffic.fetched_bytes)?;
    storage.set_item("retries", traffic.retries)?;
    storage.set_item("hedges", traffic.hedges)?;
    storage.set_item("requests", traffic.requests)?;
    let cost = (traffic.prices_as_of > 0).then(|| cost(py, traffic, epochs));
    storage.set_item("cost", cost.transpose()?)?;
    let cache = PyDict::new(py);
    cache.set_item("hits", traffic.cache_hits)?;
    cache.set_item("misses", traffic.cache_misses)?;
    cache.set_item("hit_bytes", traffic.cache_hit_bytes)?;
    cache.set_item("miss_bytes", traffic.cache_miss_bytes)?;
    storage.set_item("cache", traffic.has_cache.then_some(cache))?;
    Ok(storage)
}

/// Returns the estimated price of requests and transfers in dollars.
fn cost<'py>(
    py: Python<'py>,
    traffic: &wire::Traffic,
    epochs: f64,
) -> PyResult<Bound<'py, PyDict>> {
    let cost = PyDict::new(py);
    for (to, nano) in [
        ("in_region", traffic.region_nanodollars),
        ("over_internet", traffic.internet_nanodollars),
    ] {
        let dollars = nano as f64 / 1e9;
        cost.set_item(to, dollars)?;
        let of_epoch = epochs.is_finite().then_some(dollars * epochs);
        cost.set_item(format!("epoch_{to}"), of_epoch)?;
    }
    let date = traffic.prices_as_of;
    let (year, month, day) = (date / 10_000, date / 100 % 100, date % 100);
    let prices = format!("estimated from list prices as of {year:04}-{month:02}-{day:02}");
    cost.set_item("prices", prices)?;
    Ok(cost)
}

fn learned<'py>(py: Python<'py>, learned: &wire::LearnedPoints) -> PyResult<Bound<'py, PyDict>> {
    let counts = PyDict::new(py);
    counts.set_item("samples", learned.samples)?;
    counts.set_item("images", learned.images)?;
    counts.set_item("bytes", learned.bytes)?;
    counts.set_item("full", learned.full)?;
    Ok(counts)
}
