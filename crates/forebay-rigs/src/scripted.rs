//! `Scripted`: a server whose answers a test chooses, and which keeps what it receives.

use crate::http::{Listener, Message};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// An answer: status, headers, body.
pub type Reply = (u16, Vec<(&'static str, String)>, Vec<u8>);

/// Answers requests on loopback as a test says.
#[derive(Debug)]
pub struct Scripted {
    listener: Listener,
    received: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    /// Answers each request by `reply`, which gets the method and the request's path with its query.
    pub fn start(reply: impl Fn(&str, &str) -> Reply + Send + Sync + 'static) -> Self {
        let received = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&received);
        let listener = Listener::answering(move |request| {
            let head = String::from_utf8_lossy(&request.head()).into_owned();
            kept.lock().unwrap_or_else(|e| e.into_inner()).push(head);
            let (status, headers, body) = reply(request.method(), request.target());
            headers
                .into_iter()
                .fold(Message::answer(status), |answer, (name, value)| {
                    answer.with(name, value)
                })
                .with_body(body)
        });
        Self { listener, received }
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The heads of the requests that it received since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.received.lock().unwrap_or_else(|e| e.into_inner()))
    }
}
