//! `Scripted`: a server whose responses a test defines, and which records the requests.

use crate::http::{Listener, Message};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// A response: status, headers, body.
pub type Reply = (u16, Vec<(&'static str, String)>, Vec<u8>);

/// A server on loopback that sends the responses that a test defines.
#[derive(Debug)]
pub struct Scripted {
    listener: Listener,
    received: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    /// Starts a server that answers each request with `reply`, called with the method and the path
    /// with its query.
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

    /// Returns the heads of the requests that arrived since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.received.lock().unwrap_or_else(|e| e.into_inner()))
    }
}
