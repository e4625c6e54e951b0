//! `Web`: a static file server.

use crate::http::{Listener, Message, range_of};
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

/// Serves the files of a directory on loopback.
#[derive(Debug)]
pub struct Web(Listener);

impl Web {
    /// Starts a server for the files in `dir`, with or without support for range requests.
    pub fn start(dir: &Path, ranges: bool) -> Self {
        let dir = dir.to_path_buf();
        Self(Listener::answering(move |request| {
            answer(&dir, request, ranges)
        }))
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Returns the address as an `http://` URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }
}

fn answer(dir: &Path, request: &Message, ranges: bool) -> Message {
    if !matches!(request.method(), "GET" | "HEAD") {
        return Message::answer(405);
    }
    let path: PathBuf = Path::new(request.path().trim_start_matches('/'))
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    let Ok(bytes) = std::fs::read(dir.join(path)) else {
        return Message::answer(404);
    };
    let len = bytes.len() as u64;
    let sum = bytes.iter().fold(7u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    let etag = format!("\"{sum:016x}\"");
    if request
        .header("if-match")
        .is_some_and(|wanted| wanted != etag)
    {
        return Message::answer(412);
    }
    let answer = match range_of(request, len).filter(|_| ranges) {
        None => Message::answer(200).with_body(bytes),
        Some(Err(())) => Message::answer(416),
        Some(Ok(range)) => Message::answer(206)
            .with(
                "Content-Range",
                format!("bytes {}-{}/{len}", range.start, range.end - 1),
            )
            .with_body(&bytes[range.start as usize..range.end as usize]),
    };
    let sent = answer.body.len();
    answer
        .with("Content-Length", sent)
        .with("ETag", etag)
        .with("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
}
