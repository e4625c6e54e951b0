//! HTTP endpoints for operators and monitoring, on addresses of their own: [`Admin`] serves the
//! dashboard, its report, health, readiness and metrics; [`Health`] serves health and readiness
//! alone.
//!
//! Each runs on one thread with its own runtime, apart from the threads that serve batches. Both only read counters and cannot
//! change the server.

mod images;
mod overview;

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::get;
use forebay_cache::Cache;
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;

use crate::environment::Environment;
use crate::history::{History, TICK};
use crate::report::ReportBuilder;
use crate::web::{Deadlines, HEADER_TIMEOUT, JSON, Listening, Page, headers, local_only};
use forebay_server::{Result, ServerStatus};
use images::Album;

pub use overview::Overview;

/// Options of the admin endpoints.
#[derive(Debug, Clone)]
pub struct AdminOptions {
    /// Whether clients may request previews of the images that are sent.
    pub images: bool,
    /// The cache that datasets are read through, for its counters.
    pub cache: Option<Arc<Cache>>,
    /// Lifetime of a connection after its first request, active or not.
    pub connection_lifetime: Duration,
    /// Timeout for the head of the first request.
    pub header_timeout: Duration,
}

impl Default for AdminOptions {
    fn default() -> Self {
        AdminOptions {
            images: false,
            cache: None,
            connection_lifetime: Duration::from_secs(10),
            header_timeout: HEADER_TIMEOUT,
        }
    }
}

/// The dashboard and the data it shows: `/`, `/api/status`, `/api/images`, `/healthz`, `/readyz`
/// and `/metrics`, until dropped.
pub struct Admin(Listening);

/// `/healthz` and `/readyz` alone, until dropped: for probes, on an address that reveals nothing
/// else and is unaffected by load on the dashboard.
pub struct Health(Listening);

/// State shared by all requests.
struct AdminState {
    status: ServerStatus,
    options: AdminOptions,
    history: Mutex<History>,
    album: Album,
    /// One permit: previews are rendered one at a time, however many are requested.
    painter: Arc<Semaphore>,
    cores: u64,
    started: SystemTime,
    /// Whether the address is reachable from this machine only.
    is_local: bool,
}

impl Admin {
    /// Listens on `address`.
    ///
    /// # Errors
    ///
    /// [`Error::PortTaken`](forebay_server::Error::PortTaken), [`Error::Listen`](forebay_server::Error::Listen),
    /// [`Error::System`](forebay_server::Error::System).
    pub fn start(
        address: SocketAddr,
        status: ServerStatus,
        options: AdminOptions,
    ) -> Result<Admin> {
        let deadlines = Deadlines {
            header: options.header_timeout,
            lifetime: options.connection_lifetime,
        };
        let serve = |bound: SocketAddr| {
            let room = Arc::new(AdminState {
                status,
                options,
                history: Mutex::default(),
                album: Album::default(),
                painter: Arc::new(Semaphore::new(1)),
                cores: thread::available_parallelism().map_or(0, |cores| cores.get() as u64),
                started: SystemTime::now(),
                is_local: bound.ip().is_loopback(),
            });
            let router = router(Arc::clone(&room));
            (router, async move { remember(&room).await })
        };
        Listening::start("forebay-admin", address, deadlines, serve).map(Admin)
    }

    /// The bound address, with the actual port.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.0.addr()
    }
}

impl Health {
    /// Listens on `address`.
    ///
    /// # Errors
    ///
    /// As [`Admin::start`].
    pub fn start(address: SocketAddr, status: ServerStatus) -> Result<Health> {
        let deadlines = Deadlines {
            header: HEADER_TIMEOUT,
            // A probe sends a single request.
            lifetime: HEADER_TIMEOUT,
        };
        let serve = |_| (health(status), std::future::pending());
        Listening::start("forebay-health", address, deadlines, serve).map(Health)
    }

    /// The bound address, with the actual port.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.0.addr()
    }
}

impl AdminState {
    fn environment(&self) -> Environment {
        Environment::look(self.options.cache.as_deref())
    }

    fn report(&self) -> String {
        let snapshot = self.status.snapshot();
        let environment = self.environment();
        let events = self.status.events();
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let builder = ReportBuilder {
            snapshot: &snapshot,
            environment: &environment,
            history: &history,
            events: &events,
            images: self.options.images,
            cores: self.cores,
            started: self.started,
            now: SystemTime::now(),
        };
        // Only numbers and strings: serialization cannot fail.
        serde_json::to_string(&builder.report()).unwrap_or_default()
    }
}

/// Records a snapshot of the server every second, without end.
async fn remember(room: &AdminState) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let snapshot = room.status.snapshot();
        let cpu_s = room
            .environment()
            .process
            .map_or(0.0, |process| process.cpu_s);
        let mut history = room.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.record(Instant::now(), &snapshot, cpu_s);
    }
}

/// The dashboard: a single page without external resources, whose previews are `data:` URLs.
static PAGE: LazyLock<Page> = LazyLock::new(|| {
    Page::new(
        include_str!("page/index.html"),
        include_str!("page/style.css"),
        include_str!("page/script.js"),
        "data:",
        "'none'",
    )
});

fn router(room: Arc<AdminState>) -> Router {
    let mut watched = Router::new()
        .route("/", get(|| async { PAGE.response() }))
        .route("/api/status", get(status))
        .route("/api/images", get(images::images));
    if room.is_local {
        watched = watched.route_layer(middleware::from_fn(local_only));
    }
    let health = health(room.status.clone());
    Router::new()
        .route("/metrics", get(metrics))
        .merge(watched)
        .with_state(room)
        .merge(health)
}

/// `/healthz`: whether the process works; `/readyz`: whether it accepts trainers.
fn health(status: ServerStatus) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(status)
}

async fn status(State(room): State<Arc<AdminState>>) -> impl IntoResponse {
    (headers(JSON), room.report())
}

async fn ready(State(status): State<ServerStatus>) -> (StatusCode, &'static str) {
    match status.is_ready() {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
    }
}

async fn metrics(State(room): State<Arc<AdminState>>) -> impl IntoResponse {
    let page = crate::metrics::render(&room.status.snapshot(), &room.environment());
    (headers("text/plain; version=0.0.4"), page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dashboard_is_self_contained() {
        PAGE.assert_self_contained();
    }
}
