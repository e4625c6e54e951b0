//! The viewer: a page that shows the records of any source, without copying it.
//!
//! [`Viewer::start`] listens, fills a table of the records in the background, and answers the page. `source` reads records,
//! `table` and `scan` hold what is known of all of them, `query` selects and sorts, `picture` decodes, and `api` answers
//! requests. Only small facts of each record stay in memory.

mod api;
mod describe;
mod images;
mod lookalikes;
mod picture;
mod query;
mod record;
mod scan;
mod source;
mod table;
mod values;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_options::LoaderOptions;
use forebay_server::{Error, Result};
use tokio::sync::Semaphore;

use crate::web::{Access, Deadlines, HEADER_TIMEOUT, Listening};
use api::ViewState;
use query::LastResult;
use scan::Catalog;

pub use source::ViewSource;

/// Pictures that are made at once at least, since most of the time may be spent waiting for a store.
const MIN_PICTURES: usize = 6;
/// Lifetime of a connection. A page stays open for long, and slow stores delay single answers.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Options of a viewer.
#[derive(Debug, Clone, Default)]
pub struct ViewOptions {
    /// The options of a loader whose samples the page shows at first; by default those of training.
    pub loader: LoaderOptions,
    /// Whether records are read only once the page asks for it. Choose this for a source in a store.
    pub is_remote: bool,
}

/// A page with the records of a source, until dropped.
pub struct Viewer {
    listening: Listening,
    catalog: Arc<Catalog>,
    access: Access,
}

impl Viewer {
    /// Listens on `address`, and reads what indexes say of the records in the background.
    ///
    /// # Errors
    ///
    /// [`Error::PortTaken`], [`Error::Listen`], [`Error::System`], also for more than 67,108,864 records.
    pub fn start(address: SocketAddr, source: ViewSource, options: ViewOptions) -> Result<Viewer> {
        let failed = |doing| move |source| Error::System { doing, source };
        if source.len() > source::MAX_RECORDS {
            let what = format!(
                "{} records, and at most {} are shown: view one of its splits or files",
                source.len(),
                source::MAX_RECORDS
            );
            let what = std::io::Error::other(what);
            return Err(failed("making a table of the records")(what));
        }
        let access = Access::random().map_err(failed("making a random token"))?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / 2).max(1);
        let catalog = Arc::new(Catalog::new(source));
        let serve = |bound: SocketAddr| {
            let state = Arc::new(ViewState {
                catalog: Arc::clone(&catalog),
                last: LastResult::default(),
                pictures: Arc::new(Semaphore::new(cores.max(MIN_PICTURES))),
                passes: Arc::new(Semaphore::new(2)),
                threads,
                loader: options.loader,
                session: access.session.clone(),
            });
            let router = access.protect(api::router(state), bound);
            (router, std::future::pending())
        };
        let deadlines = Deadlines {
            header: HEADER_TIMEOUT,
            lifetime: LIFETIME,
        };
        let listening = Listening::start("forebay-view", address, deadlines, serve)?;
        let indexing = Arc::clone(&catalog);
        let name = thread::Builder::new().name("forebay-index".to_owned());
        let spawned = name.spawn(move || {
            indexing.index();
            if !options.is_remote {
                indexing.start(threads);
            }
        });
        spawned.map_err(failed("starting a thread for the index"))?;
        Ok(Viewer {
            listening,
            catalog,
            access,
        })
    }

    /// Returns the bound address, with the actual port.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.listening.addr()
    }

    /// Returns the address of the page, with the token if one is needed.
    #[must_use]
    pub fn url(&self) -> String {
        self.access.url(self.addr())
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.catalog.stop();
    }
}
