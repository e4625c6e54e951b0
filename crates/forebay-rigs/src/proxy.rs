//! `FaultProxy`: a proxy between a client and a server that injects faults determined by a seed.

use crate::http::{Listener, Message, ask, read_message};
use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Fault {
    /// The response is 500; the server never sees the request.
    Error500,
    /// The response is 503 `SlowDown`; the server never sees the request.
    SlowDown,
    /// The response is 429 with `Retry-After: 1`; the server never sees the request.
    TooMany,
    /// The connection closes before the server sees the request.
    CutRequest,
    /// The server executes the request, and the connection closes without a response.
    CutAnswer,
    /// The connection closes in the middle of the response's body.
    CutBody,
    /// The response claims a longer body than it has, and the connection closes at its end.
    WrongLength,
    /// The response lacks its last bytes but has a consistent length, as from a proxy that lost the
    /// connection to its server.
    Truncated,
    /// A byte of a downloaded object is changed.
    FlipAnswer,
    /// A byte of an uploaded object is changed.
    FlipRequest,
    /// The response arrives in small pieces, over half a second.
    Slow,
    /// No response arrives; the connection stays open until the client closes it.
    Hang,
}

/// The faults to inject, and their rate.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Fraction of requests with a fault, 0 to 1.
    pub rate: f64,
    /// The faults to choose from, with equal probability.
    pub faults: Vec<Fault>,
}

impl Plan {
    /// Returns a plan without faults.
    pub fn none() -> Self {
        Self {
            rate: 0.0,
            faults: Vec::new(),
        }
    }

    /// Returns a plan in which this fraction of requests has one of these faults.
    pub fn of(rate: f64, faults: &[Fault]) -> Self {
        Self {
            rate,
            faults: faults.to_vec(),
        }
    }

    /// Returns a plan with typical faults of bad networks and servers, without changed bytes and hanging connections.
    pub fn rough(rate: f64) -> Self {
        use Fault::*;
        Self::of(
            rate,
            &[
                Error500,
                SlowDown,
                CutRequest,
                CutAnswer,
                CutBody,
                WrongLength,
                Truncated,
                Slow,
            ],
        )
    }
}

/// A proxy in front of one server. The same seed and the same order of requests give the same
/// faults.
#[derive(Debug)]
pub struct FaultProxy {
    shared: Arc<Shared>,
    listener: Listener,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    seed: u64,
    plan: Mutex<Plan>,
    requests: AtomicU64,
    outage: AtomicBool,
    /// Value of the request counter at which an outage begins.
    outage_at: AtomicU64,
    turned_away: AtomicU64,
    counts: Mutex<BTreeMap<Fault, u64>>,
    most_at_once: Mutex<(u64, u64)>,
    moment: Mutex<Option<Moment>>,
    denied: Mutex<Option<Denied>>,
}

/// Whether requests with this method and target are denied.
pub type Denied = fn(&str, &str) -> bool;

/// An action to run after the server executed a request and before the client gets the response.
struct Moment {
    number: u64,
    then: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Moment").field(&self.number).finish()
    }
}

impl FaultProxy {
    /// Starts a proxy for the server at `upstream`.
    pub fn new(upstream: SocketAddr, seed: u64, plan: Plan) -> Self {
        let shared = Arc::new(Shared {
            upstream,
            seed,
            plan: Mutex::new(plan),
            requests: AtomicU64::new(0),
            outage: AtomicBool::new(false),
            outage_at: AtomicU64::new(u64::MAX),
            turned_away: AtomicU64::new(0),
            counts: Mutex::default(),
            most_at_once: Mutex::default(),
            moment: Mutex::default(),
            denied: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let listener = Listener::start(move |stream| serving.serve(stream));
        Self { shared, listener }
    }

    /// Returns the address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Returns the address as an `http://` URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Sets the faults from now on.
    pub fn set_plan(&self, plan: Plan) {
        *self.shared.plan.lock().expect("no panic holds it") = plan;
    }

    /// Answers requests with 403 from now on, if this function of their method and target says so.
    pub fn deny(&self, denied: Denied) {
        *self.shared.denied.lock().expect("no panic holds it") = Some(denied);
    }

    /// Begins or ends an outage, during which connections are closed at once.
    pub fn set_outage(&self, outage: bool) {
        self.shared.outage_at.store(u64::MAX, Ordering::SeqCst);
        self.shared.outage.store(outage, Ordering::SeqCst);
    }

    /// Begins an outage after this many more requests.
    pub fn set_outage_after(&self, requests: u64) {
        let at = self.requests() + requests;
        self.shared.outage_at.store(at, Ordering::SeqCst);
    }

    /// Skips the next `requests` requests, and calls `then` during the following one, when the
    /// server has executed it and the client has not yet received the response.
    pub fn when_done(&self, requests: u64, then: impl FnOnce() + Send + 'static) {
        let moment = Moment {
            number: self.requests() + requests,
            then: Box::new(then),
        };
        *self.shared.moment.lock().expect("no panic holds it") = Some(moment);
    }

    /// Returns the number of connections that outages closed.
    pub fn turned_away(&self) -> u64 {
        self.shared.turned_away.load(Ordering::SeqCst)
    }

    /// Returns the number of requests so far, including those with faults.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Returns how often each fault was injected.
    pub fn counts(&self) -> BTreeMap<Fault, u64> {
        self.shared
            .counts
            .lock()
            .expect("no panic holds it")
            .clone()
    }

    /// Returns the highest number of concurrent requests so far.
    pub fn most_at_once(&self) -> u64 {
        self.shared
            .most_at_once
            .lock()
            .expect("no panic holds it")
            .1
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut stream = BufReader::new(stream);
        loop {
            if self.is_away() {
                return;
            }
            let Ok(Some(request)) = read_message(&mut stream, None) else {
                return;
            };
            if self.is_away() {
                return;
            }
            self.enter();
            let goes_on = self.pass(request, stream.get_mut());
            self.most_at_once.lock().expect("no panic holds it").0 -= 1;
            if !goes_on {
                return;
            }
        }
    }

    /// Returns whether there is an outage.
    fn is_away(&self) -> bool {
        let away = self.outage.load(Ordering::SeqCst)
            || self.requests.load(Ordering::SeqCst) >= self.outage_at.load(Ordering::SeqCst);
        self.turned_away
            .fetch_add(u64::from(away), Ordering::SeqCst);
        away
    }

    fn enter(&self) {
        let mut at_once = self.most_at_once.lock().expect("no panic holds it");
        at_once.0 += 1;
        at_once.1 = at_once.1.max(at_once.0);
    }

    /// Forwards one request and its response. Returns `false` if the connection has to be closed.
    fn pass(&self, mut request: Message, client: &mut TcpStream) -> bool {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let fault = self.choose(number, &request);
        if let Some(fault) = fault {
            *self
                .counts
                .lock()
                .expect("no panic holds it")
                .entry(fault)
                .or_default() += 1;
        }
        let method = request.method().to_owned();
        let denied = *self.denied.lock().expect("no panic holds it");
        if denied.is_some_and(|denied| denied(&method, request.target())) {
            return send(client, &method, error(403, "AccessDenied"));
        }
        match fault {
            Some(Fault::Error500) => {
                return send(client, &method, error(500, "InternalError"));
            }
            Some(Fault::SlowDown) => return send(client, &method, error(503, "SlowDown")),
            Some(Fault::TooMany) => {
                let answer = error(429, "TooManyRequests").with("Retry-After", 1);
                return send(client, &method, answer);
            }
            Some(Fault::CutRequest) => return false,
            Some(Fault::Hang) => {
                // Waits until the client closes the connection.
                let _ = client.set_read_timeout(Some(Duration::from_secs(120)));
                let _ = std::io::Read::read(client, &mut [0]);
                return false;
            }
            Some(Fault::FlipRequest) => flip(&mut request.body, self.seed ^ number),
            _ => {}
        }
        let Ok(mut answer) = ask(self.upstream, request) else {
            return false;
        };
        let moment = self
            .moment
            .lock()
            .expect("no panic holds it")
            .take_if(|moment| moment.number <= number);
        if let Some(moment) = moment {
            (moment.then)();
        }
        if answer.header("content-length").is_none() && method != "HEAD" && answer.status() != 204 {
            let len = answer.body.len();
            answer
                .headers
                .retain(|(name, _)| !name.eq_ignore_ascii_case("transfer-encoding"));
            answer.set("Content-Length", len);
        }
        answer
            .headers
            .retain(|(name, _)| !name.eq_ignore_ascii_case("connection"));
        let len = answer.body.len();
        match fault {
            Some(Fault::CutAnswer) => false,
            Some(Fault::CutBody) => {
                let _ = client.write_all(&answer.head());
                let _ = client.write_all(answer.body.get(..len / 2).unwrap_or_default());
                false
            }
            Some(Fault::WrongLength) if method != "HEAD" => {
                answer.set("Content-Length", len + 1 + len / 2);
                let _ = client.write_all(&answer.head());
                let _ = client.write_all(&answer.body);
                false
            }
            Some(Fault::Truncated) if method != "HEAD" && len > 0 => {
                answer.body.truncate(len - 1 - len / 3);
                let len = answer.body.len();
                answer.set("Content-Length", len);
                send(client, &method, answer)
            }
            Some(Fault::FlipAnswer) => {
                flip(&mut answer.body, self.seed ^ number);
                send(client, &method, answer)
            }
            Some(Fault::Slow) => {
                let _ = client.write_all(&answer.head());
                for piece in answer.body.chunks((len / 8).max(1)) {
                    std::thread::sleep(Duration::from_millis(50));
                    if client.write_all(piece).is_err() {
                        return false;
                    }
                }
                true
            }
            _ => send(client, &method, answer),
        }
    }

    fn choose(&self, number: u64, request: &Message) -> Option<Fault> {
        let plan = self.plan.lock().expect("no panic holds it").clone();
        let random = mix(self
            .seed
            .wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        if (random >> 11) as f64 / (1u64 << 53) as f64 >= plan.rate {
            return None;
        }
        let fault = *plan
            .faults
            .get(mix(random) as usize % plan.faults.len().max(1))?;
        // Only bytes of objects are changed, not protocol text, which clients do not verify.
        let is_object = !request.target().contains('?') || request.query("partNumber").is_some();
        match fault {
            Fault::FlipRequest if request.method() != "PUT" || request.body.is_empty() => None,
            Fault::FlipAnswer if request.method() != "GET" || !is_object => None,
            fault => Some(fault),
        }
    }
}

fn send(client: &mut TcpStream, method: &str, answer: Message) -> bool {
    client.write_all(&answer.head()).is_ok()
        && (method == "HEAD" || client.write_all(&answer.body).is_ok())
}

fn error(status: u16, code: &str) -> Message {
    let body = format!("<Error><Code>{code}</Code><Message>made by the proxy</Message></Error>");
    Message::answer(status)
        .with("Content-Type", "application/xml")
        .with("Content-Length", body.len())
        .with_body(body)
}

fn flip(body: &mut [u8], random: u64) {
    let at = mix(random) as usize % body.len().max(1);
    if let Some(byte) = body.get_mut(at) {
        *byte ^= 1 << (random % 8);
    }
}

/// A step of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
