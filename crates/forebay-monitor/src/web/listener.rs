//! Limits on admin connections: a small number, a short lifetime, and eviction instead of waiting.
//!
//! At the limit, the listener accepts a new connection and closes another one: the oldest that has
//! not sent a complete request, or else the oldest. If the limit of one address is reached, only
//! connections from that address are closed.

use std::net::IpAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::map_request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use forebay_server::origin;

/// Simultaneous connections. File descriptors are reserved for trainers.
const MAX_CONNECTIONS: usize = 64;
/// Simultaneous connections from one address; a browser opens six.
const MAX_PER_ADDRESS: usize = 16;

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadlines {
    /// Time from the start of the connection until the head of the first request must be complete.
    pub(crate) header: Duration,
    /// Time from then on until the connection is closed, active or not.
    pub(crate) lifetime: Duration,
}

/// Serves connections, a bounded number of them, until the future is dropped.
pub(super) async fn serve(listener: TcpListener, deadlines: Deadlines, router: Router) {
    let mut guests = Guests::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (ask, asked) = watch::channel(false);
                let task = tokio::spawn(serve_one(stream, deadlines, router.clone(), ask));
                guests.admit(Guest {
                    from: origin(peer.ip()),
                    asked,
                    task: task.abort_handle(),
                });
            }
            // Most likely out of file descriptors: retry once some are closed.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Serves a connection until its deadline; sets `ask` once the head of a request is complete.
async fn serve_one(
    stream: TcpStream,
    deadlines: Deadlines,
    router: Router,
    ask: watch::Sender<bool>,
) {
    let mut asked = ask.subscribe();
    let deadline = async {
        let head = async { asked.wait_for(|asked| *asked).await.is_ok() };
        if let Ok(true) = tokio::time::timeout(deadlines.header, head).await {
            tokio::time::sleep(deadlines.lifetime).await;
        }
    };
    let router = router.layer(map_request(move |request: Request| {
        ask.send_replace(true);
        std::future::ready(request)
    }));
    let server = auto::Builder::new(TokioExecutor::new()).http1_only();
    let io = TokioIo::new(stream);
    // The deadline is checked first: a client that sends without pause must not outrun it.
    tokio::select! {
        biased;
        () = deadline => {}
        // An error concerns this connection only.
        _ = server.serve_connection(io, TowerToHyperService::new(router)) => {}
    }
}

/// The connections that are open, in order of arrival.
#[derive(Default)]
struct Guests(Vec<Guest>);

struct Guest {
    from: IpAddr,
    /// Whether the client sent a complete request head.
    asked: watch::Receiver<bool>,
    task: AbortHandle,
}

impl Guests {
    /// Registers a connection. At the limit, evicts another one: the oldest without a complete request, or
    /// else the oldest.
    fn admit(&mut self, guest: Guest) {
        let Guests(guests) = self;
        guests.retain(|guest| !guest.task.is_finished());
        let own = |other: &Guest| other.from == guest.from;
        let full_here = guests.iter().filter(|other| own(other)).count() >= MAX_PER_ADDRESS;
        if full_here || guests.len() >= MAX_CONNECTIONS {
            let candidates = guests.iter().enumerate();
            let candidates = candidates.filter(|(_, other)| !full_here || own(other));
            let victim = candidates.min_by_key(|(at, other)| (*other.asked.borrow(), *at));
            if let Some((at, _)) = victim {
                guests.remove(at).task.abort();
            }
        }
        guests.push(guest);
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn admit(guests: &mut Guests, runtime: &Runtime, from: IpAddr) -> watch::Sender<bool> {
        let (ask, asked) = watch::channel(false);
        let task = runtime.spawn(std::future::pending::<()>()).abort_handle();
        guests.admit(Guest { from, asked, task });
        ask
    }

    /// Ends all connections, and returns how many the table has after the next one.
    fn left(mut guests: Guests, connections: Runtime) -> usize {
        drop(connections);
        admit(&mut guests, &runtime(), address(0));
        guests.0.len()
    }

    #[test]
    fn silent_connections_lose_their_places_first() {
        let runtime = runtime();
        let mut guests = Guests::default();
        let mut held: Vec<_> = (0..MAX_PER_ADDRESS)
            .map(|_| admit(&mut guests, &runtime, address(1)))
            .collect();
        held[0].send_replace(true);
        let other = admit(&mut guests, &runtime, address(2));
        held.push(admit(&mut guests, &runtime, address(1)));
        let lost = |ask: &watch::Sender<bool>| ask.is_closed();
        let gone: Vec<usize> = (0..held.len()).filter(|&i| lost(&held[i])).collect();
        assert_eq!(gone, [1], "the oldest silent one from there");
        // If all have sent a request, the oldest is evicted.
        for ask in &held {
            ask.send_replace(true);
        }
        held.push(admit(&mut guests, &runtime, address(1)));
        assert!(lost(&held[0]));
        assert!(!lost(&other), "other addresses keep theirs");
        assert_eq!(left(guests, runtime), 1);
    }

    #[test]
    fn many_addresses_share_all_places() {
        let runtime = runtime();
        let mut guests = Guests::default();
        for last in 0..=u8::MAX {
            admit(&mut guests, &runtime, address(last));
        }
        assert_eq!(guests.0.len(), MAX_CONNECTIONS);
        assert_eq!(left(guests, runtime), 1);
    }
}
