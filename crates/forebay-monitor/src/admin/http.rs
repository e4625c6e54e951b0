//! An HTTP listener with a thread and a runtime of its own.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::thread;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::listener::{Bounded, Deadlines};
use forebay_server::{Error, Result};

/// A thread that answers HTTP requests until it is dropped.
pub(super) struct Listening {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Listening {
    /// Listens on `address` and serves the router that `serve` returns for the bound address. The
    /// same thread also runs the future that `serve` returns with the router.
    pub(super) fn start<Beside>(
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
                    let listener = Bounded::new(TcpListener::from_std(listener)?, deadlines);
                    // Connections end with the runtime, so an idle keep-alive connection does not
                    // delay the shutdown.
                    tokio::select! {
                        served = async { axum::serve(listener, router).await } => served,
                        () = beside => Ok(()),
                        _ = stopped => Ok(()),
                    }
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

    pub(super) fn addr(&self) -> SocketAddr {
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
