//! What people and programs see of a server, over HTTP, on addresses of their own: [`Admin`] has the dashboard, the report that
//! it shows, health, readiness and metrics; [`Health`] has health and readiness alone.
//!
//! Each has a runtime on one thread, apart from those that serve. It reads what the others count, and can change nothing.

mod http;
mod images;
mod listener;
mod page;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri, uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use forebay_cache::Cache;
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;

use crate::error::Result;
use crate::history::{History, TICK};
use crate::report::Desk;
use crate::server::Status;
use crate::surroundings::Surroundings;
use http::Listening;
use images::Album;
use listener::Deadlines;

/// What is shown, and for how long somebody may look.
#[derive(Debug, Clone)]
pub struct AdminOptions {
    /// Whether those who look may see small pictures of what is sent.
    pub images: bool,
    /// The cache that datasets are read through, to show how it does.
    pub cache: Option<Arc<Cache>>,
    /// How long a connection lasts from its first request on, whatever is done with it.
    pub connection_lifetime: Duration,
    /// How long the head of the first request may take.
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

/// The dashboard and what is behind it: `/`, `/api/status`, `/api/images`, `/healthz`, `/readyz` and `/metrics`, until
/// dropped.
pub struct Admin(Listening);

/// `/healthz` and `/readyz` alone, until dropped: for probes, on an address that reveals nothing else and that no load on the
/// dashboard's slows down.
pub struct Health(Listening);

/// What all requests see.
struct Room {
    status: Status,
    options: AdminOptions,
    history: Mutex<History>,
    album: Album,
    /// One picture at a time is made, whatever is asked for.
    painter: Arc<Semaphore>,
    cores: u64,
    started: SystemTime,
    /// Whether only this machine reaches the address.
    is_local: bool,
}

impl Admin {
    /// Listens on `address`.
    ///
    /// # Errors
    ///
    /// [`Error::PortTaken`](crate::Error::PortTaken), [`Error::Listen`](crate::Error::Listen),
    /// [`Error::System`](crate::Error::System).
    pub fn start(address: SocketAddr, status: Status, options: AdminOptions) -> Result<Admin> {
        let deadlines = Deadlines {
            header: options.header_timeout,
            lifetime: options.connection_lifetime,
        };
        let serve = |bound: SocketAddr| {
            let room = Arc::new(Room {
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

    /// Where it listens; the port is the real one.
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
    pub fn start(address: SocketAddr, status: Status) -> Result<Health> {
        let deadlines = Deadlines {
            header: HEADER_TIMEOUT,
            // Probes ask once.
            lifetime: HEADER_TIMEOUT,
        };
        let serve = |_| (health(status), std::future::pending());
        Listening::start("forebay-health", address, deadlines, serve).map(Health)
    }

    /// Where it listens; the port is the real one.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.0.addr()
    }
}

impl Room {
    fn surroundings(&self) -> Surroundings {
        Surroundings::look(self.options.cache.as_deref())
    }

    fn report(&self) -> String {
        let survey = self.status.survey();
        let around = self.surroundings();
        let events = self.status.witness().journal.read();
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let desk = Desk {
            survey: &survey,
            around: &around,
            history: &history,
            events: &events,
            images: self.options.images,
            cores: self.cores,
            started: self.started,
            now: SystemTime::now(),
        };
        // Numbers and texts: there is nothing that JSON could not say.
        serde_json::to_string(&desk.report()).unwrap_or_default()
    }
}

/// Looks at the server once a second, for ever.
async fn remember(room: &Room) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let survey = room.status.survey();
        let cpu_s = room
            .surroundings()
            .process
            .map_or(0.0, |process| process.cpu_s);
        let mut history = room.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.record(Instant::now(), &survey, cpu_s);
    }
}

const JSON: &str = "application/json";
/// How long the head of a request may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);

fn router(room: Arc<Room>) -> Router {
    let watched = Router::new()
        .route("/", get(|| async { page::response() }))
        .route("/api/status", get(status))
        .route("/api/images", get(images::images))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&room), for_us));
    let health = health(room.status.clone());
    Router::new()
        .route("/metrics", get(metrics))
        .merge(watched)
        .with_state(room)
        .merge(health)
}

/// Whether the process works, and whether it takes trainers.
fn health(status: Status) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(status)
}

async fn status(State(room): State<Arc<Room>>) -> impl IntoResponse {
    (headers(JSON), room.report())
}

async fn ready(State(status): State<Status>) -> (StatusCode, &'static str) {
    match status.is_ready() {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
    }
}

async fn metrics(State(room): State<Arc<Room>>) -> impl IntoResponse {
    let page = crate::metrics::render(&room.status.survey(), &room.surroundings());
    (headers("text/plain; version=0.0.4"), page)
}

/// What every answer that changes from second to second says.
fn headers(kind: &'static str) -> [(HeaderName, HeaderValue); 3] {
    [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            HeaderName::from_static("x-content-type-options"),
            HeaderValue::from_static("nosniff"),
        ),
    ]
}

/// On an address that only this machine reaches, the page is for those who name this machine. Otherwise a web page from
/// elsewhere, whose own name was made to mean 127.0.0.1 after it was loaded, could read what is here.
async fn for_us(State(room): State<Arc<Room>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST);
    let named = host.is_none_or(|host| host.to_str().is_ok_and(names_this_machine));
    if room.is_local && !named {
        let text =
            "this address is for this machine alone: call it by localhost or its IP address\n";
        return (StatusCode::MISDIRECTED_REQUEST, text).into_response();
    }
    next.run(request).await
}

fn names_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<uri::Authority>() else {
        return false;
    };
    let name = authority.host();
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The value of a parameter of a request, if it is there and plain: names that are served need no escapes.
fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let mut pairs = uri
        .query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    pairs.find_map(|(key, value)| (key == name).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_its_own() {
        for host in [
            "localhost",
            "LOCALHOST:7071",
            "127.0.0.1:7071",
            "127.9.9.9",
            "[::1]:7071",
            "[::1]",
        ] {
            assert!(names_this_machine(host), "{host}");
        }
        for host in [
            "example.org",
            "example.org:7071",
            "localhost.example.org",
            "10.0.0.1:7071",
            "",
            "a b",
        ] {
            assert!(!names_this_machine(host), "{host}");
        }
    }

    #[test]
    fn parameters_are_found() {
        let uri: Uri = "/api/images?a=b&name=image-net_1.0".parse().unwrap();
        assert_eq!(parameter(&uri, "name"), Some("image-net_1.0"));
        assert_eq!(parameter(&uri, "none"), None);
        assert_eq!(parameter(&"/".parse().unwrap(), "name"), None);
    }
}
