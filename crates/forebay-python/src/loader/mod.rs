//! `Loader`: batches by epochs, from a dataset in this process or from a server.
//!
//! Owns what Python sees of it. Where batches come from is [`source`]'s; the thread
//! that fetches them is [`Pump`]'s.

mod arguments;
mod epoch;
mod source;
mod state;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_image::Dtype;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};

use crate::batch::PyBatch;
use crate::failure::{Failure, Kind};
use crate::patience::{Deadline, SLICE, patiently};
use crate::pump::{Event, NoEvent, Place, Pump};
use crate::steps;
use crate::storage::{StorageOptions, read_options};
use crate::transform::AnyTransform;
use arguments::sampling::{self, Class, Given};
use arguments::{ShuffleWish, Wish};
pub(crate) use epoch::Epoch;
use source::{Handle, Opened, Origin};
use state::Identity;

/// Samples in a batch where nothing is said.
const BATCH_SIZE: u64 = 32;
/// How long `close` waits for the threads of a loader to end before it leaves them
/// to themselves.
const CLOSING: Duration = Duration::from_secs(10);

/// Batches of decoded images, shuffled anew each epoch.
///
/// One loop over the loader is one epoch, and the next loop is the next epoch. A loop
/// that is left early ends its epoch. Which samples are in which batch, in which order
/// and with which random crops, is a function of the dataset, `seed`, `shuffle`, `lanes`
/// and the epoch: not of threads, of the machine, or of whether a server is in between.
///
/// Waiting for a batch lets other threads run and ends at Ctrl-C. Threads may share a
/// loader; each batch goes to one of them. A loader does not survive a fork: make it in
/// the process that uses it.
///
/// Parameters
/// ----------
/// source : str, os.PathLike or Mix
///     The directory of a dataset, its URL in a store (`s3://`, `gs://`, `az://`, `https://`), or
///     `forebay://HOST:PORT/NAME` (`forebays://` with TLS) for a dataset or a job that a server has. A job
///     brings its own options: those given here must agree with them. A `Mix` is several datasets as one.
/// batch_size : int, default 32
///     Samples in a batch of this rank.
/// split : str, optional
///     Name of the split; may be left out where there is only one.
/// transform : TrainTransform, EvalTransform, list of transforms or Raw, default TrainTransform(224)
///     What becomes of each image. A list begins with `RandomResizedCrop`, or `Resize` and
///     `CentreCrop`; then come flips and changes of colour, `Normalize`, and `RandomErasing`. With
///     `Raw` images stay encoded.
/// rank, world_size : int, optional
///     This process among those that share an epoch. When neither is given, from the
///     environment variables RANK and WORLD_SIZE, else 0 of 1. All ranks get the same
///     number of batches. `world_size` has to divide `lanes`.
/// seed : int, default 0
///     Seed of the order and of random transforms.
/// shuffle : bool or {"blocks", "full", "none"}, default True
///     True is "blocks": neighbours are read together, and blocks of them are mixed, so
///     that storage is read in large pieces. "full" is a permutation of all samples.
/// block_records, window_blocks : int, optional
///     For "blocks": records that are read together, and how many blocks are mixed.
/// lanes : int, optional
///     Parts of the epoch that are read side by side. A part of the order of samples.
/// layout : {"nhwc", "nchw"}, default "nhwc"
///     The order of the axes of images.
/// dtype : {"uint8", "float32", "float16", "bfloat16"}, optional
///     The type of the numbers of images. In a floating-point type they are divided by 255,
///     and normalised where the list of transforms has `Normalize`. By default uint8, or
///     float32 with `Normalize`.
/// batch_transform : Mixup, CutMix or RandomChoice, optional
///     How the samples of a batch are mixed with each other: see `Batch.labels_b`, `Batch.lam`
///     and `Batch.one_hot`.
/// profile : {"pillow", "opencv", "tensorflow"}, default "pillow"
///     Whose pixels a resized image has: Pillow's (antialiased, as torchvision's default),
///     those of OpenCV's INTER_LINEAR, or those of tf.image.resize without antialiasing.
/// exif_orientation : bool, default False
///     Whether images are turned as their EXIF orientation says.
/// dct_scaling : bool, default False
///     Whether a JPEG is decoded at a half, a quarter or an eighth of its size where the
///     crop is still no smaller than the output: faster, with slightly other pixels.
/// max_pixels, max_image_bytes : int, optional
///     Images of more pixels, or of more bytes when decoded, are refused before they are
///     decoded. By default 64 Mi pixels and 256 MiB; a server has limits of its own.
/// drop_last : bool, default True
///     Whether the short batch at the end of an epoch is left out. Otherwise it is filled
///     up, so that every rank gets every step, and `Batch.padding` tells with what.
/// pad_last : bool, optional
///     The other word for it: the opposite of `drop_last`.
/// indices : sequence of int, optional
///     Only these records, by number in the split, in any order. Storage order is theirs.
/// classes : sequence of str or int, optional
///     Only records of these classes, by name or by label as batches show it.
/// limit : int, optional
///     Only the first so many records, in storage order, of what is left: the same in each epoch.
/// weights : dict or sequence of float, optional
///     Draw samples with replacement. A dictionary weighs records by class (name, or label), and
///     classes that are not in it weigh 1; anything else is one number for each record of the split.
/// class_balanced : bool, default False
///     Draw samples with replacement, each class as likely as any other.
/// draws : int, optional
///     Samples drawn for each epoch, by default as many as records are left. Also where the datasets
///     of a `Mix` have weights.
/// repeats : int, default 1
///     How often each sample comes in an epoch, each time transformed with other random numbers.
/// on_error : {"raise", "skip", "zero"}, default "raise"
///     What becomes of a sample that is damaged. "skip" puts the next good sample of its batch
///     in its place, "zero" zeros and the label -1; `Batch.failed` tells where, `stats` how often and why.
/// label_base : {0, 1}, optional
///     The label of the first class. By default labels are as stored (see
///     `Dataset.label_base`).
/// threads : int, default 0
///     Threads that decode; 0 for as many as this process may use. A server has its own.
/// memory : int, optional
///     Bytes for records and batches on their way. A server has its own.
/// page_cache : {"keep", "drop"}, default "keep"
///     Whether the system keeps copies of what was read from local files. "drop" is for a dataset
///     larger than memory that would drive out what others read. A server decides for itself.
/// timeout : float or None, default 300.0
///     The longest wait for a batch in seconds.
/// transport : {"auto", "shm", "tcp"}, optional
///     How batches come from a server. "auto" takes memory shared with a server on this host, without a
///     copy, and TCP otherwise; "shm" wants shared memory or fails. By default what the environment
///     variable FOREBAY_TRANSPORT says, else "auto". `stats` tells which it is.
/// connections : int, default 1
///     Over how many TCP connections each batch comes at once, up to 16: for a network that one of them, or
///     one core, does not fill.
/// storage_options : dict of str to str, optional
///     How a store is reached, see `open`. Credentials come from the environment otherwise.
/// token : str, optional
///     A secret that lets this process into a server. By default that of the environment variable
///     FOREBAY_TOKEN. It is sent through TLS, or to a server on this machine, and never shown.
/// token_file : str or os.PathLike, optional
///     A file whose first line is the token; read again for each connection, so that it may be
///     replaced. By default what FOREBAY_TOKEN_FILE names.
/// tls_ca : str or os.PathLike, optional
///     For `forebays://`: the authorities (PEM) that the server's certificate may be signed by. By default what
///     FOREBAY_TLS_CA names, or those of the system.
/// tls_cert, tls_key : str or os.PathLike, optional
///     Certificate and key (PEM) of this process, for servers that want them. By default what
///     FOREBAY_TLS_CLIENT_CERT and FOREBAY_TLS_CLIENT_KEY name.
///
/// Raises
/// ------
/// OptionError
///     An option, or a combination of them, that cannot work.
/// MissingError, MismatchError, ShardError, StorageError
///     See `open`.
/// ServerError
///     When the server cannot be reached, or refuses.
/// AuthError
///     When the server wants a token or a certificate, or has one that is not trusted.
/// TimeoutError
///     When it does not answer in time.
///
/// Examples
/// --------
/// >>> with forebay.Loader("packed/", batch_size=256) as loader:  # doctest: +SKIP
/// ...     for images, labels in loader:
/// ...         train(images, labels)
#[pyclass(frozen, module = "forebay", name = "Loader")]
pub(crate) struct PyLoader {
    /// The process that the threads are in.
    process: u32,
    name: String,
    opened: Opened,
    /// Added to labels.
    shift: i64,
    timeout: Option<Duration>,
    pump: Arc<Pump>,
    handle: Arc<dyn Handle>,
    waited_ns: AtomicU64,
}

impl PyLoader {
    fn check_process(&self) -> Result<(), Failure> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let message = "this loader was made in the process that this one was forked from, and its \
             threads did not come along: make the Loader in the process that uses it, or start \
             processes with multiprocessing.get_context('spawn')";
        Err(Failure::new(Kind::Fork, message))
    }

    fn check_open(&self) -> Result<(), Failure> {
        self.check_process()?;
        if self.pump.is_closed() {
            return Err(closed());
        }
        Ok(())
    }

    /// Up to where batches were handed out.
    fn place(&self) -> Result<Place, Failure> {
        // After a fork nobody would ever free the lock that this takes.
        self.check_process()?;
        Ok(self.pump.place())
    }

    fn identity(&self) -> Identity<'_> {
        let options = &self.opened.options;
        Identity {
            fingerprint: &self.opened.fingerprint,
            split: &self.opened.split,
            records: self.opened.records,
            samples: self.opened.samples,
            sampling: options.sampling.identity(),
            seed: options.seed,
            lanes: options.lanes,
            shuffle: options.shuffle,
        }
    }

    /// The next batch of a loop; `None` at the end of its epoch.
    fn next(&self, py: Python<'_>, generation: u64) -> PyResult<Option<PyBatch>> {
        self.check_process()?;
        let mut answer = self.pump.take(generation, Duration::ZERO);
        if matches!(answer, Err(NoEvent::NotYet)) {
            let started = Instant::now();
            let deadline = Deadline::after(self.timeout);
            while matches!(answer, Err(NoEvent::NotYet)) {
                answer = py.detach(|| self.pump.take(generation, SLICE));
                if matches!(answer, Err(NoEvent::NotYet)) {
                    deadline.check(py, || self.waits_for())?;
                }
            }
            let waited = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.waited_ns.fetch_add(waited, Ordering::Relaxed);
        }
        match answer {
            Ok(Event::Batch(batch)) => {
                let starts = self.opened.starts.as_deref();
                PyBatch::new(py, batch, self.shift, starts).map(Some)
            }
            Ok(Event::EpochEnd) => Ok(None),
            Ok(Event::Failed(failure)) => Err(failure.into()),
            Err(NoEvent::Closed) => Err(closed().into()),
            Err(NoEvent::Stale | NoEvent::NotYet) => Err(Failure::new(
                Kind::State,
                "this loop is over: a newer one, set_epoch() or load_state_dict() moved the loader",
            )
            .into()),
        }
    }

    /// Who waits for what.
    fn waits_for(&self) -> String {
        let Place { epoch, position } = self.pump.place();
        let options = &self.opened.options;
        format!(
            "the batch at position {position} of epoch {epoch} (rank {} of {}) from {}",
            options.rank, options.world_size, self.name
        )
    }
}

fn closed() -> Failure {
    Failure::new(Kind::Closed, "the loader is closed")
}

#[pymethods]
impl PyLoader {
    #[new]
    #[pyo3(signature = (
        source, *, batch_size=None, split=None, transform=None, rank=None, world_size=None, seed=None,
        shuffle=None, block_records=None, window_blocks=None, lanes=None,
        layout=None, dtype=None, batch_transform=None, profile=None, exif_orientation=None, dct_scaling=None,
        max_pixels=None, max_image_bytes=None, drop_last=None, pad_last=None, indices=None, classes=None, limit=None, weights=None,
        class_balanced=None, draws=None, repeats=None, on_error=None, label_base=None, threads=0, memory=None, page_cache="keep", timeout=Some(300.0), transport=None, connections=1, storage_options=None,
        token=None, token_file=None, tls_ca=None, tls_cert=None, tls_key=None,
    ), text_signature = "(source, *, batch_size=32, split=None, transform=TrainTransform(224), rank=None, \
        world_size=None, seed=0, shuffle=True, block_records=None, window_blocks=None, lanes=None, \
        layout='nhwc', dtype=None, batch_transform=None, profile='pillow', exif_orientation=False, dct_scaling=False, \
        max_pixels=None, max_image_bytes=None, drop_last=None, pad_last=None, indices=None, classes=None, limit=None, weights=None, \
        class_balanced=False, draws=None, repeats=1, on_error='raise', label_base=None, threads=0, memory=None, page_cache='keep', timeout=300.0, \
        transport=None, connections=1, storage_options=None, token=None, token_file=None, tls_ca=None, tls_cert=None, tls_key=None)")]
    #[allow(clippy::too_many_arguments)] // one each, as Python has them
    fn new(
        py: Python<'_>,
        source: Bound<'_, PyAny>,
        batch_size: Option<u64>,
        split: Option<String>,
        transform: Option<AnyTransform<'_>>,
        rank: Option<u64>,
        world_size: Option<u64>,
        seed: Option<u64>,
        shuffle: Option<ShuffleWish>,
        block_records: Option<u64>,
        window_blocks: Option<u64>,
        lanes: Option<u64>,
        layout: Option<&str>,
        dtype: Option<&str>,
        batch_transform: Option<Bound<'_, PyAny>>,
        profile: Option<&str>,
        exif_orientation: Option<bool>,
        dct_scaling: Option<bool>,
        max_pixels: Option<u64>,
        max_image_bytes: Option<u64>,
        drop_last: Option<bool>,
        pad_last: Option<bool>,
        indices: Option<Vec<u64>>,
        classes: Option<Vec<Class>>,
        limit: Option<u64>,
        weights: Option<Bound<'_, PyAny>>,
        class_balanced: Option<bool>,
        draws: Option<u64>,
        repeats: Option<u64>,
        on_error: Option<&str>,
        label_base: Option<i64>,
        threads: usize,
        memory: Option<u64>,
        page_cache: &str,
        timeout: Option<f64>,
        transport: Option<&str>,
        connections: usize,
        storage_options: Option<StorageOptions>,
        token: Option<&str>,
        token_file: Option<PathBuf>,
        tls_ca: Option<PathBuf>,
        tls_cert: Option<PathBuf>,
        tls_key: Option<PathBuf>,
    ) -> PyResult<PyLoader> {
        let origin = Origin::of(&source)?;
        let name = origin.to_string();
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
        options.threads = threads;
        options.memory_bytes = memory.unwrap_or(0);
        options.page_cache = arguments::page_cache(page_cache)?;
        let label_base = arguments::label_base(label_base)?;
        let timeout = arguments::timeout(timeout)?;
        let wish = Wish {
            options,
            split,
            label_base,
            timeout,
            transport: arguments::transport(transport)?,
            connections,
            read: read_options(origin.is_far(), &storage_options.unwrap_or_default())?,
            given,
            rank_is_given: ranks.rank_is_given,
            access: arguments::access(token, token_file, tls_ca, tls_cert, tls_key)?,
        };
        let waits_for = || format!("an answer from {name}");
        let (opened, batches) = patiently(py, Deadline::after(timeout), waits_for, move || {
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
    fn set_epoch(&self, epoch: u64) -> PyResult<()> {
        self.check_open()?;
        self.pump.set_epoch(epoch);
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
    ///     "records", "seed", "lanes" and "shuffle".
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.identity().save(py, self.place()?)
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
        self.pump.jump(place);
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
    ///     samples were replaced (see `on_error`), and "failures", what was wrong with the last of them.
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
        all.set_item("failed", stats.failed)?;
        all.set_item("failures", stats.failures)?;
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

impl Drop for PyLoader {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // Nobody waits here: the thread frees its source when it ends.
            self.pump.close();
            self.handle.cancel();
        } else {
            // The threads are in another process; freeing what they hold would
            // wait for them.
            std::mem::forget(Arc::clone(&self.pump));
            std::mem::forget(Arc::clone(&self.handle));
        }
    }
}
