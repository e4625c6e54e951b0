//! Health, readiness and metrics over HTTP, on an address of their own.
//!
//! The only room of the server with a runtime: one thread, apart from those that serve. It reads what the
//! others count, and can change nothing.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Sleep;

use crate::error::{Error, Result};
use crate::server::Status;

/// Connections at once: those beyond wait. Descriptors are for trainers.
const MAX_CONNECTIONS: usize = 32;
/// How long a connection lasts, whatever is done with it.
const LIFETIME: Duration = Duration::from_secs(10);

/// The endpoints `/healthz`, `/readyz` and `/metrics`, until dropped.
pub struct Admin {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Admin {
    /// Listens on `address`.
    ///
    /// # Errors
    ///
    /// [`Error::PortTaken`], [`Error::Listen`], [`Error::System`].
    pub fn start(address: SocketAddr, status: Status) -> Result<Admin> {
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => Error::PortTaken { address },
            _ => Error::Listen { address, source },
        };
        let listener = std::net::TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let bound = listener.local_addr().map_err(refused)?;
        let system = |source| Error::System {
            doing: "starting the thread for metrics",
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("forebay-admin".to_owned())
            .spawn(move || {
                let serving = async move {
                    let listener = Bounded {
                        listener: TcpListener::from_std(listener)?,
                        places: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
                    };
                    // Connections end with the runtime: nobody waits for a client that keeps one open.
                    tokio::select! {
                        served = async { axum::serve(listener, router(status)).await } => served,
                        _ = stopped => Ok(()),
                    }
                };
                // The listener was bound; what fails later is a client's connection.
                let _ = runtime.block_on(serving);
                runtime.shutdown_background();
            })
            .map_err(system)?;
        Ok(Admin {
            address: bound,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens; the port is the real one.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

fn router(status: Status) -> Router {
    let ready = status.clone();
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(move || async move {
                if ready.is_ready() {
                    (StatusCode::OK, "ready\n")
                } else {
                    (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
                }
            }),
        )
        .route(
            "/metrics",
            get(move || async move {
                (
                    [(CONTENT_TYPE, "text/plain; version=0.0.4")],
                    status.metrics(),
                )
            }),
        )
}

/// A listener with a place for so many connections.
struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl axum::serve::Listener for Bounded {
    type Io = Limited;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Limited, SocketAddr) {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let limited = Limited {
                        stream,
                        ends: Box::pin(tokio::time::sleep(LIFETIME)),
                        _place: place,
                    };
                    return (limited, peer);
                }
                // No descriptors, most likely: they come back.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that has a place, for a while.
struct Limited {
    stream: TcpStream,
    ends: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl AsyncRead for Limited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buf) {
            return Poll::Ready(read);
        }
        ready!(self.ends.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Limited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, buf) {
            return Poll::Ready(written);
        }
        ready!(self.ends.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
