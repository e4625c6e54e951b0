//! `Moto`: `moto_server`, an S3 emulator in Python.

use crate::BUCKET;
use crate::child::{Server, find, skipped};
use crate::http::{Message, ask};
use std::net::SocketAddr;

/// A running `moto_server`, which accepts any credentials.
#[derive(Debug)]
pub struct Moto(Server);

impl Moto {
    /// Starts the server and creates the bucket; `None` if `moto_server` is not installed.
    pub fn start() -> Option<Self> {
        let Some(program) = find("moto_server") else {
            skipped("moto_server");
            return None;
        };
        let server = Server::start(&program, |port| {
            ["-H", "127.0.0.1", "-p", &port.to_string()]
                .map(str::to_owned)
                .to_vec()
        });
        let Some(server) = server else {
            eprintln!("skipped: moto_server did not start");
            return None;
        };
        let request = Message {
            first: format!("PUT /{BUCKET} HTTP/1.1"),
            ..Message::default()
        }
        .with("Host", server.address)
        .with("Content-Length", 0);
        let made = ask(server.address, request).expect("moto_server answers");
        let said = String::from_utf8_lossy(&made.body);
        assert_eq!(made.status(), 200, "{said}");
        Some(Self(server))
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Returns the address as an `http://` URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.0.address)
    }

    /// Returns the number of open multipart uploads.
    ///
    /// # Panics
    /// If the server does not respond.
    pub fn open_uploads(&self) -> usize {
        let request = Message {
            first: format!("GET /{BUCKET}?uploads HTTP/1.1"),
            ..Message::default()
        }
        .with("Host", self.0.address);
        let listed = ask(self.0.address, request).expect("moto_server answers");
        String::from_utf8_lossy(&listed.body)
            .matches("<Upload>")
            .count()
    }

    /// Returns the storage options for this server, without the endpoint.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("aws_access_key_id", "any".to_owned()),
            ("aws_secret_access_key", "any".to_owned()),
            ("aws_region", "us-east-1".to_owned()),
        ]
    }
}
