//! Parameters of a stream that are the same on all of its connections.

use std::sync::Arc;

use forebay_options::{LoaderOptions, StreamInfo};
use forebay_wire::{BufferPool, Layout, Socket};

use crate::connection::{Connection, dial};
use crate::error::{Error, Result};
use crate::options::{ClientOptions, StreamOptions};
use crate::placement::Unit;
use crate::resolver::{self, Resolver, Server};
use crate::sequence::Place;
use crate::url::Url;

pub(crate) struct StreamConfig {
    pub(crate) url: Url,
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) options: ClientOptions,
    /// The stream as the server opened it.
    pub(crate) info: StreamInfo,
    pub(crate) fingerprint: String,
    /// Number of the epoch after the last one; `None` for no limit.
    pub(crate) until: Option<u64>,
    pub(crate) budget: u64,
    pub(crate) layout: Layout,
    pub(crate) pool: BufferPool,
}

/// Identifies the run for placement: streams with the same key are placed together.
pub(crate) fn run(name: &str, options: &LoaderOptions) -> String {
    let split = options.split.as_deref().unwrap_or_default();
    format!("{name}/{split}/{}", options.seed.unwrap_or(0))
}

/// Returns the placement unit of a stream; `run` is the result of [`run`].
pub(crate) fn unit<'a>(run: &'a str, options: &LoaderOptions) -> Unit<'a> {
    Unit {
        run,
        number: options.rank.unwrap_or(0),
        count: options.world_size.unwrap_or(1).max(1),
    }
}

impl StreamConfig {
    pub(crate) fn checksum(options: &ClientOptions, connection: &Connection) -> bool {
        options
            .payload_checksum
            .unwrap_or(!connection.socket.is_same_host() && !connection.socket.is_tls())
    }

    /// Calls `then` with the placement unit of this stream.
    fn unit<T>(&self, then: impl FnOnce(&Unit<'_>) -> T) -> T {
        let options = &self.info.options;
        let run = run(self.url.name(), options);
        then(&unit(&run, options))
    }

    /// Returns the servers in the order in which this stream tries them; those named in `last` come
    /// last.
    pub(crate) fn order(&self, servers: &[Server], last: &[&str]) -> Vec<Server> {
        self.unit(|unit| resolver::order(servers, unit, last))
    }

    /// Returns the server that placement assigns to this stream.
    pub(crate) fn home(&self, servers: &[Server]) -> Option<Server> {
        self.unit(|unit| resolver::home(servers, unit))
    }

    /// Returns the options that open the stream from `place` on.
    pub(crate) fn open_at(&self, (epoch, position): Place) -> StreamOptions {
        StreamOptions {
            options: self.info.options.clone(),
            epoch,
            position,
            epochs: self.until.map_or(0, |until| until.saturating_sub(epoch)),
            fingerprint: Some(self.fingerprint.clone()),
        }
    }

    /// Opens the stream from `place` on, and verifies that it is the same stream as before.
    pub(crate) fn reopen(&self, connection: &mut Connection, place: Place) -> Result<()> {
        let checksum = StreamConfig::checksum(&self.options, connection);
        let info = connection.open(&self.open_at(place), checksum, &self.url, &self.options)?;
        if info != self.info {
            // Class titles are left out of the message, which they would fill.
            let shown = |of: &StreamInfo| {
                let classes = of.classes.len();
                let rest = StreamInfo {
                    classes: Vec::new(),
                    ..of.clone()
                };
                format!("{rest:?} with {classes} classes")
            };
            let what = match info.classes == self.info.classes {
                true => "the opened stream",
                false => "the classes of the opened stream",
            };
            return Err(Error::Sequence {
                server: connection.server.clone(),
                what,
                expected: shown(&self.info),
                found: shown(&info),
            });
        }
        Ok(())
    }

    /// Opens the stream from `place` on, on the first of `servers` that accepts it.
    pub(crate) fn dial(
        &self,
        servers: &[Server],
        place: Place,
        adopt: &dyn Fn(&Socket) -> Result<()>,
    ) -> Result<Connection> {
        dial(
            servers,
            &self.url,
            &self.options,
            adopt,
            |mut connection| {
                self.reopen(&mut connection, place)?;
                Ok(connection)
            },
        )
    }
}
