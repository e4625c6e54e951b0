//! Connecting, and opening streams.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_wire::{BufferPool, Dtype, Layout, wire};

use crate::connection::{Connection, dial};
use crate::error::{Error, Result};
use crate::options::{ClientOptions, OpenOptions};
use crate::queue::Queue;
use crate::receiver::Terms;
use crate::sequence::Sequence;
use crate::stream::Stream;
use crate::url::Url;

/// Most connections of a stream.
const MOST_CONNECTIONS: usize = 16;

/// A server that answered, and what it said about its dataset.
pub struct Client {
    url: Url,
    options: ClientOptions,
    welcome: wire::Welcome,
    server: String,
    /// The connection of the handshake, for the first stream.
    connection: Mutex<Option<Connection>>,
}

impl Client {
    /// Connects to the first server of `url` that answers.
    ///
    /// # Errors
    ///
    /// [`Error::Url`]; [`Error::Connect`] or [`Error::Waited`] of the last server when none
    /// answers; [`Error::Remote`] when it refuses, for instance because it has no
    /// such dataset.
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
        let connection = dial(&url, &options, 0, &|_| Ok(()))?;
        Ok(Client {
            url,
            options,
            welcome: connection.welcome.clone(),
            server: connection.server.clone(),
            connection: Mutex::new(Some(connection)),
        })
    }

    /// Where batches come from.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The server that answered.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// What the server said about itself and the dataset.
    #[must_use]
    pub fn welcome(&self) -> &wire::Welcome {
        &self.welcome
    }

    /// Fingerprint of the dataset, to be kept with the state of a run.
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

    /// Opens a stream. Each has a connection and a receiving thread of its own.
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
        let kept = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // A stream that is moved by arithmetic must not change its dataset.
        open.fingerprint
            .get_or_insert_with(|| self.welcome.fingerprint.clone());
        if let Some(job) = self.job() {
            forebay_wire::job::fill(&mut open.spec, job, &open.given);
        }
        let fresh = || dial(&self.url, &self.options, 0, &|_| Ok(()));
        let open_on = |mut connection: Connection| {
            let checksum = Terms::checksum(&self.options, &connection);
            let opened = connection.open(&open, checksum, &self.url, &self.options)?;
            Ok((connection, opened))
        };
        let (connection, opened) = match kept {
            // The server may have given up on a client that was idle for long.
            Some(kept) => match open_on(kept) {
                Err(Error::Lost { .. } | Error::Silent { .. }) => open_on(fresh()?)?,
                Err(Error::Remote {
                    kind: wire::error::Kind::Timeout,
                    ..
                }) => open_on(fresh()?)?,
                result => result?,
            },
            None => open_on(fresh()?)?,
        };
        let terms = self.terms(&open, &connection, opened)?;
        let sequence = Sequence::new(&terms.opened, open.epoch, open.position).map_err(|d| {
            Error::Disorder {
                server: connection.server.clone(),
                what: d.what,
                expected: d.expected,
                found: d.found,
            }
        })?;
        let queue = Queue::new(connection.server.clone());
        queue.adopt(&connection.socket)?;
        Stream::start(Arc::new(terms), Arc::new(queue), sequence, connection)
    }

    fn terms(
        &self,
        open: &OpenOptions,
        connection: &Connection,
        opened: wire::Opened,
    ) -> Result<Terms> {
        let options = &self.options;
        let spec = opened.spec.clone().unwrap_or_default();
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
            Dtype::from_wire(number).map_or("unknown", Dtype::name)
        };
        if dtype(asked) != dtype(&spec) {
            return Err(Error::Disorder {
                server: connection.server.clone(),
                what: "dtype",
                expected: dtype(asked).to_owned(),
                found: dtype(&spec).to_owned(),
            });
        }
        let layout = Layout::from_wire(spec.layout).ok_or_else(|| Error::Disorder {
            server: connection.server.clone(),
            what: "layout",
            expected: "NHWC or NCHW".to_owned(),
            found: spec.layout.to_string(),
        })?;
        let batch_bytes = opened.batch_bytes;
        if batch_bytes > options.max_batch_bytes {
            return Err(Error::Option {
                name: "max_batch_bytes",
                expected: format!("{batch_bytes} or more, which is one batch"),
                found: options.max_batch_bytes.to_string(),
            });
        }
        let budget = match options.credit_bytes {
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
        // What may be queued and what the caller works on, in whole pages.
        let kept = budget.saturating_add(batch_bytes).saturating_add(8 << 20);
        let kept = usize::try_from(kept).unwrap_or(usize::MAX);
        let pool = options
            .pool
            .clone()
            .unwrap_or_else(|| BufferPool::new(kept));
        Ok(Terms {
            url: self.url.clone(),
            options: options.clone(),
            opened,
            fingerprint: connection.welcome.fingerprint.clone(),
            until: (open.epochs > 0).then(|| open.epoch.saturating_add(open.epochs)),
            budget,
            layout,
            pool,
        })
    }
}
