//! Connects to a server and opens streams.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_options::{LoaderOptions, StreamInfo};
use forebay_wire::{BufferPool, Dtype};

use crate::back_off::until_served;
use crate::connection::{Connection, dial};
use crate::error::{Error, Result};
use crate::options::{ClientOptions, StreamOptions};
use crate::placement::Unit;
use crate::queue::Counters;
use crate::remote::RemoteSplit;
use crate::resolver::{self, Resolver};
use crate::server_stream::ServerStream;
use crate::stream::Stream;
use crate::stream_config::{self, StreamConfig};
use crate::url::Url;
use crate::wire_options;

/// Maximum number of connections per stream.
const MOST_CONNECTIONS: usize = 16;

/// A client of one dataset or job, created by a completed handshake with a server.
pub struct Client {
    url: Url,
    resolver: Arc<Resolver>,
    options: ClientOptions,
    fingerprint: String,
    sample_fingerprint: String,
    splits: Vec<RemoteSplit>,
    label_base: u32,
    job: Option<LoaderOptions>,
    server: String,
    /// The connection of the handshake, used by the first stream.
    connection: Mutex<Option<Connection>>,
}

impl Client {
    /// Connects to the first server of `url` that answers.
    ///
    /// # Errors
    ///
    /// [`Error::Url`], [`Error::Servers`]; [`Error::Absent`] if no server runs, or [`Error::Busy`] if none has a free place,
    /// within [`ClientOptions::server_timeout`]; [`Error::Connect`] or [`Error::Waited`] of the last server if none answers;
    /// [`Error::Foreign`] if the peer speaks another protocol; [`Error::Remote`] if the server refuses, for instance because it
    /// has no such dataset.
    pub fn connect(url: &str, options: ClientOptions) -> Result<Client> {
        let url: Url = url.parse()?;
        for (name, value) in [
            ("connect_timeout", options.connect_timeout),
            ("open_timeout", options.open_timeout),
            ("batch_timeout", options.batch_timeout),
        ] {
            if value.is_zero() {
                return Err(Error::Option {
                    name,
                    expected: "more than zero".to_owned(),
                    found: "0".to_owned(),
                });
            }
        }
        if !(1..=MOST_CONNECTIONS).contains(&options.connections) {
            return Err(Error::Option {
                name: "connections",
                expected: format!("1 to {MOST_CONNECTIONS}"),
                found: options.connections.to_string(),
            });
        }
        let resolver = Arc::new(Resolver::new(&url));
        // The stream is not known yet, so choose the server as for rank 0 of 1.
        let first = Unit {
            run: url.name(),
            number: 0,
            count: 1,
        };
        let connection = until_served(&options, || {
            resolver.try_all(|servers| {
                let servers = resolver::order(servers, &first, &[]);
                dial(&servers, &url, &options, &|_| Ok(()), Ok)
            })
        })?;
        let welcome = connection.welcome.clone();
        let job = welcome.job.map(|job| wire_options::read(job.spec));
        let job = job
            .transpose()
            .map_err(Error::unknown_options(&connection.server, "the job"))?;
        Ok(Client {
            url,
            resolver,
            options,
            job,
            fingerprint: welcome.fingerprint,
            sample_fingerprint: welcome.sample_fingerprint,
            splits: welcome.splits.into_iter().map(RemoteSplit::new).collect(),
            label_base: welcome.label_base,
            server: connection.server.clone(),
            connection: Mutex::new(Some(connection)),
        })
    }

    /// The URL of the servers.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The server that answered.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Fingerprint of the dataset, to be saved with the state of a training run.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Fingerprint of the keys, labels and order of the samples; empty if it is unknown.
    #[must_use]
    pub fn sample_fingerprint(&self) -> &str {
        &self.sample_fingerprint
    }

    /// The label of the first class, as stored. The labels of batches begin with
    /// [`StreamInfo::label_base`].
    #[must_use]
    pub fn label_base(&self) -> u32 {
        self.label_base
    }

    /// Splits of the dataset, with their sizes.
    #[must_use]
    pub fn splits(&self) -> &[RemoteSplit] {
        &self.splits
    }

    /// Returns the options of the job that the URL names; `None` if it names a dataset. A client chooses its rank, and the
    /// world size if the job does not set it.
    #[must_use]
    pub fn job(&self) -> Option<&LoaderOptions> {
        self.job.as_ref()
    }

    /// Opens a stream, which has its own connection and receiving thread.
    ///
    /// # Errors
    ///
    /// [`Error::Remote`] if the server refuses: an unknown split, invalid options, or a dataset with another fingerprint.
    /// [`Error::Option`] if a batch is larger than the options allow. Connection errors as in [`Client::connect`].
    pub fn open(&self, open: impl Into<StreamOptions>) -> Result<Stream> {
        self.open_inner(open.into())
    }

    fn open_inner(&self, mut open: StreamOptions) -> Result<Stream> {
        // A stream may move to another server, which must have the same dataset.
        open.fingerprint
            .get_or_insert_with(|| self.fingerprint.clone());
        // The server fills in the job's options itself, and compares given ones with them, so `open.options` is sent as given;
        // `asked` is for the checks below.
        let asked = match self.job() {
            Some(job) => open.options.clone().or(job),
            None => open.options.clone(),
        };
        let place = (open.epoch, open.position);
        let (connection, info) = self.open_placed(&open, &asked)?;
        let config = Arc::new(self.config(&open, &asked, &connection, info)?);
        let stream = ServerStream::start(config, place, connection, Counters::default())?;
        Ok(Stream::new(stream, place))
    }

    /// Opens the stream on its own server or on the next one that accepts it.
    fn open_placed(
        &self,
        open: &StreamOptions,
        asked: &LoaderOptions,
    ) -> Result<(Connection, StreamInfo)> {
        let mut placed = asked.clone();
        if let ([only], None) = (self.splits(), &placed.split) {
            // The server would fill in the same default.
            placed.split = Some(only.name.clone());
        }
        let run = stream_config::run(self.url.name(), &placed);
        let unit = stream_config::unit(&run, &placed);
        let open_on = |mut connection: Connection| -> Result<(Connection, StreamInfo)> {
            let checksum = StreamConfig::checksum(&self.options, &connection);
            let info = connection.open(open, checksum, &self.url, &self.options)?;
            Ok((connection, info))
        };
        // The handshake may have been with another server than the one that placement assigns to this stream.
        let first = resolver::home(&self.resolver.last()?, &unit).map(|server| server.to_string());
        let kept = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(kept) = kept.filter(|kept| Some(&kept.server) == first.as_ref()) {
            match open_on(kept) {
                // The server may have closed the idle connection, or is about to stop.
                Err(e) if e.is_passing() => {}
                result => return result,
            }
        }
        until_served(&self.options, || {
            self.resolver.try_all(|servers| {
                let servers = resolver::order(servers, &unit, &[]);
                dial(&servers, &self.url, &self.options, &|_| Ok(()), open_on)
            })
        })
    }

    fn config(
        &self,
        open: &StreamOptions,
        asked: &LoaderOptions,
        connection: &Connection,
        info: StreamInfo,
    ) -> Result<StreamConfig> {
        let options = &self.options;
        let opened = &info.options;
        for (what, expected, found) in [
            ("batch_size", asked.batch_size, opened.batch_size),
            // Rank and seed default to 0.
            ("rank", asked.rank.or(Some(0)), opened.rank.or(Some(0))),
            ("seed", asked.seed.or(Some(0)), opened.seed.or(Some(0))),
            ("world_size", asked.world_size, opened.world_size),
        ] {
            if expected.is_some() && expected != found {
                let shown = |number: Option<u64>| {
                    number.map_or_else(|| "none".to_owned(), |n| n.to_string())
                };
                return Err(Error::Sequence {
                    server: connection.server.clone(),
                    what,
                    expected: shown(expected),
                    found: shown(found),
                });
            }
        }
        if asked.dtype.is_some() && asked.dtype != opened.dtype {
            let shown = |dtype: Option<Dtype>| dtype.map_or("none", Dtype::name).to_owned();
            return Err(Error::Sequence {
                server: connection.server.clone(),
                what: "dtype",
                expected: shown(asked.dtype),
                found: shown(opened.dtype),
            });
        }
        let layout = opened.layout.unwrap_or_default();
        let batch_bytes = info.batch_bytes;
        if batch_bytes > options.max_batch_bytes {
            return Err(Error::Option {
                name: "max_batch_bytes",
                expected: format!("{batch_bytes} or more, which is one batch"),
                found: options.max_batch_bytes.to_string(),
            });
        }
        let credit = match options.credit_bytes {
            Some(bytes) if bytes < batch_bytes => {
                return Err(Error::Option {
                    name: "credit_bytes",
                    expected: format!("{batch_bytes} or more, which is one batch"),
                    found: bytes.to_string(),
                });
            }
            Some(bytes) => bytes,
            None => batch_bytes.saturating_mul(3),
        };
        // Queued batches and the batch that the caller holds, with slack for whole pages.
        let kept = credit.saturating_add(batch_bytes).saturating_add(8 << 20);
        let kept = usize::try_from(kept).unwrap_or(usize::MAX);
        let pool = BufferPool::new(kept).with_registry(options.registry.clone());
        Ok(StreamConfig {
            url: self.url.clone(),
            resolver: Arc::clone(&self.resolver),
            options: options.clone(),
            info,
            fingerprint: connection.welcome.fingerprint.clone(),
            until: (open.epochs > 0).then(|| open.epoch.saturating_add(open.epochs)),
            budget: credit,
            layout,
            pool,
        })
    }
}
