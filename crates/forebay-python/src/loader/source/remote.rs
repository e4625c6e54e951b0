//! Batches made by a server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_client::{
    CancelCheck, Client, ClientOptions, ClientTls, Interrupter, Notice, Stream, StreamOptions,
    StreamStats, Via,
};
use forebay_loader::Options;
use forebay_options::LoaderOptions;
use forebay_server::counters;
use forebay_wire::{Batch, wire};

use super::{Counters, Handle, LoopTimes, Opened, Opener, Servers, choose};
use crate::failure::{Failure, Kind};
use crate::loader::arguments::{LoaderArgs, transport_from_environment};
use crate::loader::ranks::Ranks;
use crate::patience::SLICE;
use crate::pump::{EpochPosition, Source};
use crate::storage::warn;

/// A practically unlimited timeout for the client: a hundred years.
const ENDLESS: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(super) fn reach(url: &str, args: LoaderArgs) -> Result<Box<dyn Opener>, Failure> {
    let access = args.access.clone();
    if !forebay_client::Url::is_secure_text(url) && access.tls != ClientTls::default() {
        let message = "tls_ca, tls_cert and tls_key are for URLs that begin with forebays://";
        return Err(Failure::new(Kind::Option, message));
    }
    let mut options = ClientOptions {
        credential: access.credential,
        tls: access.tls,
        name: concat!("forebay-python/", env!("CARGO_PKG_VERSION")).to_owned(),
        // The code that takes batches enforces the timeout. A client that timed out first would only have to be called
        // again.
        batch_timeout: ENDLESS,
        transport: transport_from_environment(args.transport)?,
        connections: args.connections,
        registry: args.options.registry.clone(),
        ..ClientOptions::default()
    }
    .with_environment()?;
    // Retries end shortly before the caller's deadline, so that the error says what was wrong with the servers and not only that
    // time is up. The cancel flag ends them when the caller gives up earlier.
    let patience = args.timeout.map_or(ENDLESS, |time| time.mul_f64(0.95));
    (options.server_timeout, options.reconnect_for) = (patience, patience);
    options.notice = Notice::new(|line| warn(line.to_owned()));
    let cancel = args.cancel.clone();
    options.wanted = CancelCheck::new(move || !cancel.is_cancelled());
    if let Some(timeout) = args.timeout {
        options.connect_timeout = options.connect_timeout.min(timeout);
        options.open_timeout = options.open_timeout.min(timeout);
    }
    let client = Client::connect(url, options)?;
    if let (None, Some(missing)) = (client.job(), args.missing) {
        return Err(missing);
    }
    let names = client.splits().iter().map(|split| split.name.as_str());
    let wanted = match (client.job(), &args.given.split) {
        (Some(job), None) => job.split.as_deref(),
        (_, wanted) => wanted.as_deref(),
    };
    let split = choose(wanted, names, &url)?;
    Ok(Box::new(ConnectedServer {
        options: args.options,
        given: args.given,
        client,
        split,
        patience,
    }))
}

/// A connected server.
struct ConnectedServer {
    client: Client,
    split: String,
    /// How long to wait for a lost server.
    patience: Duration,
    options: Options,
    /// The options that the caller gave.
    given: LoaderOptions,
}

impl Opener for ConnectedServer {
    fn job_world(&self) -> Option<u64> {
        self.client.job()?.world_size
    }

    fn open(&self, ranks: &Ranks) -> Result<(Opened, Box<dyn Source>), Failure> {
        let ConnectedServer { client, split, .. } = self;
        let mut options = self.options.clone();
        (options.rank, options.world_size) = (ranks.rank, ranks.world_size);
        let asked = match client.job() {
            // Without a job, all options are sent, so that the defaults of this release apply.
            None => options.to_schema().with_split(split),
            // A job supplies the options that the caller did not give.
            Some(_) => {
                let mut given = self.given.clone();
                // The name of the split in the job, for which the caller may have given an alias.
                given.split = given.split.map(|_| split.clone());
                given.rank = Some(ranks.rank);
                given.world_size = ranks.world_is_known.then_some(ranks.world_size);
                given
            }
        };
        let sample_fingerprint = Some(client.sample_fingerprint().to_owned());
        let stream = client.open(StreamOptions::from(asked))?;
        let resolved = Options::from_request(stream.options(), u64::MAX)?;
        let shared = Arc::new(Shared {
            opened: Instant::now(),
            batch_size: resolved.batch_size,
            cancelled: AtomicBool::new(false),
            now: Mutex::new(Now {
                interrupter: stream.interrupter(),
                stats: stream.stats(),
            }),
        });
        let info = stream.info();
        let opened = Opened {
            fingerprint: stream.fingerprint().to_owned(),
            sample_fingerprint: sample_fingerprint.filter(|known| !known.is_empty()),
            split: split.clone(),
            records: info.records,
            samples: info.samples,
            batches: resolved.batches(info.samples)?,
            options: resolved,
            label_base: Some(info.label_base),
            classes: info.classes.as_slice().into(),
            starts: Some(info.dataset_starts.clone()).filter(|starts| !starts.is_empty()),
            handle: Arc::clone(&shared) as Arc<dyn Handle>,
        };
        let source = Remote {
            stream,
            shared,
            failed: false,
            patience: self.patience,
        };
        Ok((opened, Box::new(source)))
    }
}

struct Remote {
    stream: Stream,
    shared: Arc<Shared>,
    failed: bool,
    patience: Duration,
}

/// How long to wait for the server's counters.
const STATS_PATIENCE: Duration = Duration::from_secs(2);

/// State that is shared with other threads.
struct Shared {
    opened: Instant,
    batch_size: u64,
    cancelled: AtomicBool,
    now: Mutex<Now>,
}

/// State of the stream's current connection.
struct Now {
    interrupter: Interrupter,
    stats: StreamStats,
}

impl Shared {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Remote {
    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        let result = self.stream.next_batch();
        self.shared.now().stats = self.stream.stats();
        self.failed = result.is_err();
        Ok(result?)
    }

    fn seek(&mut self, place: EpochPosition) -> Result<(), Failure> {
        if self.stream.position() == (place.epoch, place.position) && !self.failed {
            return Ok(());
        }
        self.failed = true;
        let began = Instant::now();
        // A server that restarts between two epochs is waited for, as within an epoch.
        while let Err(error) = self.stream.seek(place.epoch, place.position) {
            let is_wanted = !self.shared.cancelled.load(Ordering::SeqCst);
            if !(error.is_passing() && is_wanted && began.elapsed() < self.patience) {
                return Err(error.into());
            }
            std::thread::sleep(SLICE);
        }
        self.failed = false;
        self.shared.now().interrupter = self.stream.interrupter();
        if self.shared.cancelled.load(Ordering::SeqCst) {
            return Err(Failure::new(Kind::Closed, "the loader is closed"));
        }
        Ok(())
    }
}

impl Handle for Shared {
    fn away(&self) -> Option<Failure> {
        let interrupter = self.now().interrupter.clone();
        interrupter.away().map(Failure::from)
    }

    fn interrupt(&self) {
        self.cancel();
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.now().interrupter.interrupt();
    }

    fn transport(&self) -> Option<&'static str> {
        Some(self.now().interrupter.via().name())
    }

    fn servers(&self) -> Option<Servers> {
        let interrupter = self.now().interrupter.clone();
        Some(Servers {
            now: interrupter.server(),
            used: interrupter.servers(),
            stats: interrupter.stats(),
        })
    }

    fn waited(&self, total: Duration) {
        self.now().interrupter.report_waits(total);
    }

    fn counters(&self, loops: LoopTimes) -> Counters {
        let (stats, interrupter) = {
            let now = self.now();
            (now.stats, now.interrupter.clone())
        };
        let receive = wire::Stage {
            name: "receive".to_owned(),
            busy_s: stats.receiving.as_secs_f64(),
            starved_s: stats.starved.as_secs_f64(),
            blocked_s: 0.0,
            threads: 1,
        };
        let Some(mut server) = interrupter.server_stats(STATS_PATIENCE) else {
            // The server is lost or does not answer, so only the counters of this client are known.
            return Counters {
                wire: wire::Stats {
                    stages: vec![receive],
                    images: stats.batches * self.batch_size,
                    batches: stats.batches,
                    payload_bytes: stats.payload_bytes,
                    ..wire::Stats::default()
                },
                bottleneck: None,
            };
        };
        let over_network = interrupter.via() == Via::Tcp;
        let elapsed = self.opened.elapsed();
        let mut all = counters::from_wire(&server, loops.waited, elapsed, over_network);
        (all.handover_s, all.device) = (loops.handover.as_secs_f64(), loops.device);
        all.receive_cpu_s = stats.receiving_cpu.as_secs_f64();
        let bottleneck = all.bottleneck();
        // The stage `trainer` of the server is the thread that sends; that of this stream replaces it.
        server.stages.retain(|stage| stage.name != "trainer");
        server.stages.push(receive);
        server.stages.push(wire::Stage {
            name: "trainer".to_owned(),
            busy_s: all.trainer.busy_s,
            starved_s: all.trainer.starved_s,
            blocked_s: 0.0,
            threads: 1,
        });
        Counters {
            bottleneck: Some(bottleneck),
            wire: server,
        }
    }
}
