//! `Loader`: batches by epochs, from a dataset in this process or from a server.
//!
//! Owns what Python sees of it: the class and how batches are handed out here, its methods in [`methods`]. Where batches
//! come from is [`source`]'s; the thread that fetches them is [`Pump`]'s.

mod arguments;
mod epoch;
mod methods;
mod ranks;
mod source;
mod state;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_batch::digest::EpochDigest;
use forebay_store::Cancel;
use pyo3::prelude::*;

use crate::batch::PyBatch;
use crate::failure::{Failure, Kind};
use crate::patience::{Deadline, SLICE, patiently};
use crate::pump::{Event, NoEvent, Place, Pump};
pub(crate) use arguments::_bytes;
pub(crate) use epoch::Epoch;
use ranks::Ranks;
use source::{Opened, Opener};
use state::Identity;

/// Batches of decoded images, in another order each epoch.
///
/// One loop over the loader is one epoch, and the next loop is the next epoch, also after a loop
/// that was left early: as `torch.utils.data.DataLoader` does with `shuffle=True`. `set_epoch`, or
/// `sampler.set_epoch`, chooses the epoch of the next loop. Which samples are in which batch, in which order
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
///     `forebay://HOST:PORT/NAME` (`forebays://` with TLS) for a dataset or a job that a server has. Several servers of the
///     same are `forebay://A:PORT,B:PORT/NAME`; all addresses of a name `forebay+dns://HOST:PORT/NAME`; those of a file
///     `forebay+file:///PATH/NAME`. A rank has one of them and goes on with another when that one is gone. A job
///     brings its own options: those given here must agree with them. A `Mix` is several datasets as one.
/// batch_size : int, default 32
///     Samples in a batch of this rank.
/// split : str, optional
///     Name of the split; may be left out where there is only one.
/// transform : TrainTransform, EvalTransform, list of transforms or Raw, default TrainTransform(224)
///     What becomes of each image. A list begins with `RandomResizedCrop`, or `Resize` and
///     `CenterCrop`; then come flips and changes of colour, `Normalize`, and `RandomErasing`. With
///     `Raw` images stay encoded.
/// rank, world_size : int, optional
///     This process among those that share an epoch; give both or neither (a server's job knows the
///     world size). When neither is given, the loader asks `torch.distributed`, JAX, RANK and WORLD_SIZE, MPI and
///     SLURM, in this order, each time that a loop begins or the rank is needed: docs/loader.md has the rules. All ranks get
///     the same number of batches. `world_size` has to divide `lanes`.
/// seed : int, default 0
///     Seed of the order and of random transforms.
/// shuffle : bool or {"blocks", "window", "full", "none"}, default True
///     True is "blocks": neighbors are read together, and blocks of them are mixed, so
///     that storage is read in large pieces. "window" mixes in the same way, but reads the
///     blocks in the order of storage: for records that are stored in random order. "full"
///     is a permutation of all samples.
/// block_records, window_blocks : int, optional
///     For "blocks" and "window": records that are read together, and how many blocks are
///     mixed.
/// lanes : int, optional
///     Parts of the epoch that are read side by side. A part of the order of samples.
/// layout : {"nhwc", "nchw"}, default "nhwc"
///     The order of the axes of images.
/// dtype : {"uint8", "float32", "float16", "bfloat16"} or such a type of numpy, torch or JAX, optional
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
///     decoded. By default 64 Mi pixels and "256MiB"; a server has limits of its own.
/// drop_last : bool, default True
///     Whether the short batch at the end of an epoch is left out. Otherwise it is filled
///     up, so that every rank gets every step, and `Batch.padding` tells with what.
/// pad_last : bool, optional
///     The other word for it: the opposite of `drop_last`.
/// indices : sequence, array or tensor of int, optional
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
/// label_base : {0, 1, "stored"}, default 0
///     The label of the first class in batches, whatever it is in the dataset. "stored" leaves labels as
///     stored (see `Dataset.label_base`). `classes` and `weights` count in the same way, and the label -1 of
///     a record without one stays. A stored label below the dataset's first class is a damaged sample for `on_error`.
/// threads : int, default 0
///     Threads that decode; 0 for as many as this process may use. A server has its own.
/// memory : int or str, optional
///     Bytes, or a size such as "2GiB", for records and batches on their way. A server has its own.
/// page_cache : {"keep", "drop"}, default "keep"
///     Whether the system keeps copies of what was read from local files. "drop" is for a dataset
///     larger than memory that would drive out what others read. A server decides for itself.
/// timeout : float or None, default 300.0
///     The longest wait for a batch in seconds, and for a place at a server that is busy.
/// transport : {"auto", "shm", "tcp"}, optional
///     How batches come from a server. "auto" takes memory shared with a server on this host, without a
///     copy, and TCP otherwise; "shm" wants shared memory or fails. By default what the environment
///     variable FOREBAY_TRANSPORT says, else "auto". `stats` tells which it is.
/// connections : int, default 1
///     Over how many TCP connections each batch comes at once, up to 16: for a network that one of them, or
///     one core, does not fill.
/// spread : int, default 1
///     From how many servers each batch comes at once, for a rank that takes more than one of them makes. `world_size`
///     times this has to divide `lanes`, and this `batch_size`. Batches stay the same. Not with `batch_transform`, `Raw` and
///     ``on_error="skip"``.
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
///     An option, or a combination of them, that cannot work. From the first use on also where the rank cannot be
///     determined: WORLD_SIZE without a rank, or two sources that contradict each other.
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
    /// Opens the streams of other ranks; `None` where options name the rank, and once the loader is closed.
    opener: Mutex<Option<Arc<dyn Opener>>>,
    /// The number of ranks of the server's job.
    job: Option<u64>,
    rank_is_fixed: bool,
    current: Mutex<Arc<Current>>,
    /// The state that was loaded last, as far as the digest goes.
    resumed: Mutex<Option<Resumed>>,
    timeout: Option<Duration>,
    pump: Arc<Pump>,
    waited_ns: AtomicU64,
}

/// The open stream, of one rank.
struct Current {
    opened: Opened,
    ranks: Ranks,
}

/// Batches before a place, and the rank that they were delivered to.
#[derive(Clone, Copy)]
struct Resumed {
    place: Place,
    digest: EpochDigest,
    /// Rank and number of ranks.
    of: (u64, u64),
}

impl Current {
    fn identity(&self) -> Identity<'_> {
        let options = &self.opened.options;
        Identity {
            fingerprint: &self.opened.fingerprint,
            sample_fingerprint: self.opened.sample_fingerprint.as_deref(),
            split: &self.opened.split,
            records: self.opened.records,
            samples: self.opened.samples,
            sampling: options.sampling.identity(),
            label_base: self.opened.label_base,
            seed: options.seed,
            lanes: options.lanes,
            shuffle: options.shuffle,
            rank: options.rank,
            world_size: options.world_size,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn current(&self) -> Arc<Current> {
        Arc::clone(&lock(&self.current))
    }

    /// The stream of the rank that this process is found to be. A loop that is running keeps its own.
    fn ranked(&self, py: Python<'_>) -> PyResult<Arc<Current>> {
        // A lock that was held at a fork stays so.
        let is_settled = self.rank_is_fixed || self.process != std::process::id();
        if is_settled || self.pump.is_running() {
            return Ok(self.current());
        }
        let ranks = self.find_ranks(py)?;
        self.follow(py, ranks)
    }

    /// The rank that this process is found to be now.
    fn find_ranks(&self, py: Python<'_>) -> PyResult<Ranks> {
        if self.rank_is_fixed {
            return Ok(self.current().ranks);
        }
        ranks::of_process(py, self.job, true)?
    }

    /// The stream of `ranks`, opened at the same place if another one was open.
    fn follow(&self, py: Python<'_>, ranks: Ranks) -> PyResult<Arc<Current>> {
        let before = self.current();
        if before.ranks == ranks {
            return Ok(before);
        }
        let Some(opener) = lock(&self.opener).clone() else {
            return Ok(before);
        };
        let waits_for = || format!("an answer from {}", self.name);
        let end = Deadline::after(self.timeout);
        let (opened, source) = patiently(py, end, waits_for, &Cancel::new(), move || {
            opener.open(&ranks)
        })?;
        let batches = opened.batches;
        let of = (opened.options.rank, opened.options.world_size);
        let resumed = lock(&self.resumed)
            .filter(|resumed| resumed.of == of)
            .map(|resumed| (resumed.place, resumed.digest));
        if !py.detach(|| self.pump.supply(source, batches, resumed)) {
            // Another thread's loop was faster.
            return Ok(self.current());
        }
        let after = Arc::new(Current { opened, ranks });
        *lock(&self.current) = Arc::clone(&after);
        before.opened.handle.interrupt();
        Ok(after)
    }

    /// The next batch of a loop, and whether it is the last; `None` at the end of its epoch.
    fn next(&self, py: Python<'_>, generation: u64) -> PyResult<Option<(PyBatch, bool)>> {
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
            Ok(Event::Batch(batch, is_last)) => {
                let current = self.current();
                let starts = current.opened.starts.as_deref();
                let batch = PyBatch::new(py, batch, starts)?;
                Ok(Some((batch, is_last)))
            }
            Ok(Event::EpochEnd) => Ok(None),
            Ok(Event::Failed(failure)) => Err(failure.into()),
            Err(NoEvent::Closed) => Err(closed().into()),
            Err(NoEvent::Stale | NoEvent::NotYet) => Err(Failure::new(
                Kind::State,
                "this loop is over: a newer one or load_state_dict() moved the loader",
            )
            .into()),
        }
    }

    /// The batch that a loop waits for, for messages.
    fn waits_for(&self) -> String {
        let Place { epoch, position } = self.pump.place();
        let current = self.current();
        let options = &current.opened.options;
        format!(
            "the batch at position {position} of epoch {epoch} (rank {} of {}) from {}",
            options.rank, options.world_size, self.name
        )
    }
}

fn closed() -> Failure {
    Failure::new(
        Kind::Closed,
        "the loader is closed: make another one to go on, with load_state_dict(state) if its place is to be kept",
    )
}

impl Drop for PyLoader {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // Nobody waits here: the thread frees its source when it ends.
            self.pump.close();
            self.current().opened.handle.cancel();
        } else {
            // The threads are in another process; freeing what they hold would
            // wait for them.
            std::mem::forget(Arc::clone(&self.pump));
            std::mem::forget(lock(&self.opener).take());
            std::mem::forget(self.current());
        }
    }
}
