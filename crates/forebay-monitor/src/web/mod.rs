//! Shared by everything that answers HTTP: a listener with a thread and a runtime of its own, pages without external
//! resources, headers, and the check that a request names this machine.

mod access;
mod listener;
mod page;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri, uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use forebay_server::{Error, Result};

pub(crate) use access::Access;
pub(crate) use listener::Deadlines;
pub(crate) use page::Page;

pub(crate) const JSON: &str = "application/json";
/// Timeout for the head of a request.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// A thread that answers HTTP requests until it is dropped.
pub(crate) struct Listening {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Listening {
    /// Listens on `address` and serves the router that `serve` returns for the bound address. The
    /// same thread also runs the future that `serve` returns with the router.
    pub(crate) fn start<Beside>(
        name: &str,
        address: SocketAddr,
        deadlines: Deadlines,
        serve: impl FnOnce(SocketAddr) -> (Router, Beside),
    ) -> Result<Listening>
    where
        Beside: Future<Output = ()> + Send + 'static,
    {
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => Error::PortTaken { address },
            _ => Error::Listen { address, source },
        };
        let listener = std::net::TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let bound = listener.local_addr().map_err(refused)?;
        let system = |source| Error::System {
            doing: "starting a thread for HTTP",
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system)?;
        let (router, beside) = serve(bound);
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let serving = async move {
                    let listener = TcpListener::from_std(listener)?;
                    // Connections end with the runtime, so an idle keep-alive connection does not
                    // delay the shutdown.
                    tokio::select! {
                        () = listener::serve(listener, deadlines, router) => {}
                        () = beside => {}
                        _ = stopped => {}
                    }
                    io::Result::Ok(())
                };
                // The listener is bound; later errors concern single connections.
                let _ = runtime.block_on(serving);
                runtime.shutdown_background();
            })
            .map_err(system)?;
        Ok(Listening {
            address: bound,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}

/// Headers of all responses whose content changes from second to second.
pub(crate) fn headers(kind: &'static str) -> [(HeaderName, HeaderValue); 3] {
    [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            HeaderName::from_static("x-content-type-options"),
            HeaderValue::from_static("nosniff"),
        ),
    ]
}

/// Rejects requests whose `Host` does not name this machine. This prevents DNS rebinding: a web page from elsewhere whose
/// name resolves to 127.0.0.1 after it was loaded could otherwise read the responses.
pub(crate) async fn local_only(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST);
    let named = host.is_none_or(|host| host.to_str().is_ok_and(names_this_machine));
    if !named {
        let text =
            "this address serves this machine only: request it by localhost or an IP address\n";
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

/// Returns the value of a query parameter, if present and without escapes; served names need none.
pub(crate) fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
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
    fn only_loopback_hosts_name_this_machine() {
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
