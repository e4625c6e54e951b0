//! Connects to a server and opens streams.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_wire::batch::{dtype_from_wire, layout_from_wire};
use forebay_wire::part::{self, MOST_PARTS, Part};
use forebay_wire::{BufferPool, Dtype, wire};

use crate::back_off::while_busy;
use crate::connection::{Connection, dial};
use crate::error::{Error, Result};
use crate::feed::Feed;
use crate::options::{ClientOptions, OpenOptions};
use crate::placement::Unit;
use crate::roster::{self, Roster};
use crate::stream::Stream;
use crate::terms::{self, Terms};
use crate::url::Url;

/// Maximum number of connections per stream.
const MOST_CONNECTIONS: usize = 16;

/// A server that completed the handshake, with its description of the dataset.
pub struct Client {
    url: Url,
    roster: Arc<Roster>,
    options: ClientOptions,
    welcome: wire::Welcome,
    server: String,
    /// The connection of the handshake, used by the first stream.
    connection: Mutex<Option<Connection>>,
}

impl Client {
    /// Connects to the first server of `url` that answers.
    ///
    /// # Errors
    ///
    /// [`Error::Url`], [`Error::Servers`]; [`Error::Connect`] or [`Error::Waited`] of the last
    /// server if none answers; [`Error::Busy`] if none has a free place within
    /// [`ClientOptions::busy_timeout`]; [`Error::Foreign`] if another protocol is spoken there;
    /// [`Error::Remote`] if the server refuses, for instance because it has no such dataset.
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
        if !(1..=MOST_PARTS as usize).contains(&options.spread) {
            return Err(Error::Option {
                name: "spread",
                expected: format!("1 to {MOST_PARTS}"),
                found: options.spread.to_string(),
            });
        }
        let roster = Arc::new(Roster::new(&url));
        // The stream is not known yet, so place the first one.
        let first = Unit {
            run: url.name(),
            number: 0,
            count: 1,
            ranks: 1,
        };
        let connection = while_busy(&options, || {
            roster.try_all(|servers| {
                let servers = roster::order(servers, &first, &[]);
                dial(&servers, &url, &options, &|_| Ok(()), Ok)
            })
        })?;
        Ok(Client {
            url,
            roster,
            options,
            welcome: connection.welcome.clone(),
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

    /// The server's description of itself and the dataset.
    #[must_use]
    pub fn welcome(&self) -> &wire::Welcome {
        &self.welcome
    }

    /// Fingerprint of the dataset, to be saved with the state of a training run.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.welcome.fingerprint
    }

    /// Splits of the dataset, with their sizes.
    #[must_use]
    pub fn splits(&self) -> &[wire::SplitInfo] {
        &self.welcome.splits
    }

    /// The options of the job that the URL names; none where it names a dataset. The rank is this client's, and so is a
    /// world size of 0.
    #[must_use]
    pub fn job(&self) -> Option<&wire::StreamSpec> {
        self.welcome.job.as_ref()?.spec.as_ref()
    }

    /// Opens a stream, which has its own connection and receiving thread.
    ///
    /// # Errors
    ///
    /// [`Error::Remote`] when the server refuses: a split it has not, a spec that
    /// makes no sense, another dataset than the fingerprint's. [`Error::Option`] when a batch is
    /// larger than the options allow. Connection errors as in [`Client::connect`].
    pub fn open(&self, open: impl Into<OpenOptions>) -> Result<Stream> {
        self.open_inner(open.into())
    }

    fn open_inner(&self, mut open: OpenOptions) -> Result<Stream> {
        // A stream may move to another server, which must have the same dataset.
        open.fingerprint
            .get_or_insert_with(|| self.welcome.fingerprint.clone());
        if let Some(job) = self.job() {
            forebay_wire::job::fill(&mut open.spec, job, &open.given);
        }
        let place = (open.epoch, open.position);
        let parts = self.options.spread as u64;
        let mut feeds = Vec::with_capacity(self.options.spread);
        let mut whole = wire::Opened::default();
        for part in 0..parts {
            let (connection, opened) = self.open_part(&open, (part, parts))?;
            let terms = self.terms(&open, (part, parts), &connection, opened)?;
            if part == 0 {
                whole = wire::Opened {
                    spec: Some(terms.spec()),
                    batch_bytes: terms.opened.batch_bytes.saturating_mul(parts),
                    ..terms.opened.clone()
                };
            }
            feeds.push(Feed::start(Arc::new(terms), place, connection, None)?);
        }
        let bytes = usize::try_from(whole.batch_bytes).unwrap_or(usize::MAX);
        let pool = match (&self.options.pool, &feeds[..]) {
            (Some(pool), _) => pool.clone(),
            (None, [feed]) => feed.terms.pool.clone(),
            // One batch for the caller, one to fill.
            (None, _) => BufferPool::new(bytes.saturating_mul(2)),
        };
        Ok(Stream::new(feeds, whole, pool, place))
    }

    /// A connection on which a part of the batches is open, with the server that it belongs to or else with another one.
    fn open_part(&self, open: &OpenOptions, part: Part) -> Result<(Connection, wire::Opened)> {
        let mut placed = open.spec.clone();
        if let ([only], true) = (self.splits(), placed.split.is_empty()) {
            // As the server will fill it in.
            placed.split.clone_from(&only.name);
        }
        part::split(&mut placed, part).map_err(|expected| Error::Option {
            name: "spread",
            expected,
            found: part.1.to_string(),
        })?;
        let run = terms::run(self.url.name(), &placed);
        let unit = terms::unit(&run, &placed, part);
        let open_on = |mut connection: Connection| -> Result<(Connection, wire::Opened)> {
            let checksum = Terms::checksum(&self.options, &connection);
            let opened = connection.open(open, part, checksum, &self.url, &self.options)?;
            Ok((connection, opened))
        };
        // The handshake may have been with another server than the one where this stream belongs.
        let first = roster::home(&self.roster.last()?, &unit).map(|server| server.to_string());
        let kept = {
            let mut kept = self
                .connection
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match &*kept {
                Some(connection) if Some(&connection.server) == first.as_ref() => kept.take(),
                // The last slice: the connection has no further use.
                Some(_) if part.0 + 1 == part.1 => {
                    *kept = None;
                    None
                }
                _ => None,
            }
        };
        if let Some(kept) = kept {
            match open_on(kept) {
                // The server may have closed the idle connection, or is about to stop.
                Err(e) if e.is_passing() => {}
                result => return result,
            }
        }
        while_busy(&self.options, || {
            self.roster.try_all(|servers| {
                let servers = roster::order(servers, &unit, &[]);
                dial(&servers, &self.url, &self.options, &|_| Ok(()), open_on)
            })
        })
    }

    fn terms(
        &self,
        open: &OpenOptions,
        part: Part,
        connection: &Connection,
        opened: wire::Opened,
    ) -> Result<Terms> {
        let options = &self.options;
        let mut spec = opened.spec.clone().unwrap_or_default();
        if part.1 > 1 && spec.world_size < part.1 {
            return Err(Error::Disorder {
                server: connection.server.clone(),
                what: "parts of batches",
                expected: format!("a part of {}", part.1),
                found: "the whole: is the server older than this client?".to_owned(),
            });
        }
        part::whole(&mut spec, part);
        let asked = &open.spec;
        for (what, expected, found) in [
            ("batch_size", asked.batch_size, spec.batch_size),
            ("rank", asked.rank, spec.rank),
            ("world_size", asked.world_size, spec.world_size),
            ("seed", asked.seed, spec.seed),
        ] {
            // Zeroes may be filled in; for the rank and the seed, zero is what was asked for.
            let filled_in = expected == 0 && matches!(what, "batch_size" | "world_size");
            if expected != found && !filled_in {
                return Err(Error::Disorder {
                    server: connection.server.clone(),
                    what,
                    expected: expected.to_string(),
                    found: found.to_string(),
                });
            }
        }
        // A server that does not know of types gives bytes.
        let dtype = |spec: &wire::StreamSpec| {
            let number = spec.output.as_ref().map_or(0, |output| output.dtype);
            dtype_from_wire(number).map_or("unknown", Dtype::name)
        };
        if dtype(asked) != dtype(&spec) {
            return Err(Error::Disorder {
                server: connection.server.clone(),
                what: "dtype",
                expected: dtype(asked).to_owned(),
                found: dtype(&spec).to_owned(),
            });
        }
        let layout = layout_from_wire(spec.layout).ok_or_else(|| Error::Disorder {
            server: connection.server.clone(),
            what: "layout",
            expected: "NHWC or NCHW".to_owned(),
            found: spec.layout.to_string(),
        })?;
        let batch_bytes = opened.batch_bytes.saturating_mul(part.1);
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
        // Each part has its share.
        let (budget, batch_bytes) = (credit / part.1, opened.batch_bytes);
        // What may be queued and what the caller works on, in whole pages.
        let kept = budget.saturating_add(batch_bytes).saturating_add(8 << 20);
        let kept = usize::try_from(kept).unwrap_or(usize::MAX);
        let pool = options
            .pool
            .clone()
            .unwrap_or_else(|| BufferPool::new(kept));
        Ok(Terms {
            url: self.url.clone(),
            roster: Arc::clone(&self.roster),
            options: options.clone(),
            part,
            opened,
            fingerprint: connection.welcome.fingerprint.clone(),
            until: (open.epochs > 0).then(|| open.epoch.saturating_add(open.epochs)),
            budget,
            layout,
            pool,
        })
    }
}
