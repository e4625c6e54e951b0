//! A web server for a directory, with ranges, etags, conditions and faults. It logs its requests.

#![allow(unreachable_pub)]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The fault of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Good,
    Status(u16),
    /// Sends half of the body, and then closes the connection.
    Cut,
    /// Closes the connection without a response.
    Reset,
    /// Delays the body.
    Slow,
}

/// A received request.
#[derive(Debug)]
pub struct Request {
    /// The length of the requested range.
    pub range_bytes: Option<u64>,
}

/// The server's settings and its log of requests.
#[derive(Debug, Default)]
pub struct State {
    /// Every fifth response has a fault, of each kind in turn.
    pub faulty: AtomicBool,
    /// Every response is 503.
    pub away: AtomicBool,
    answers: AtomicU64,
    pub requests: Mutex<Vec<Request>>,
    stopped: AtomicBool,
}

impl State {
    fn mood(&self) -> Mood {
        if self.away.load(Ordering::SeqCst) {
            return Mood::Status(503);
        }
        let number = self.answers.fetch_add(1, Ordering::SeqCst);
        if !self.faulty.load(Ordering::SeqCst) || !number.is_multiple_of(5) {
            return Mood::Good;
        }
        let moods = [
            Mood::Status(500),
            Mood::Cut,
            Mood::Status(503),
            Mood::Reset,
            Mood::Slow,
        ];
        moods[(number / 5) as usize % moods.len()]
    }

    /// The requests since the last call.
    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

pub struct Web {
    pub state: Arc<State>,
    address: SocketAddr,
}

impl Web {
    pub fn start(root: impl Into<PathBuf>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (state, root) = (Arc::<State>::default(), root.into());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (state, root) = (Arc::clone(&shared), root.clone());
                // A closed connection is not an error.
                std::thread::spawn(move || drop(serve(&stream, &root, &state)));
            }
        });
        Self { state, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

fn serve(stream: &TcpStream, root: &Path, state: &State) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut out = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split_whitespace();
        let (method, path) = (
            words.next().unwrap_or_default().to_owned(),
            words.next().unwrap_or_default().to_owned(),
        );
        let (mut range, mut condition) = (None, None);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim_end().split_once(": ") else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "range" => range = Some(value.to_owned()),
                "if-match" => condition = Some(value.to_owned()),
                _ => {}
            }
        }
        let mood = state.mood();
        let file = root.join(path.trim_start_matches('/'));
        let found = std::fs::read(&file).and_then(|body| Ok((body, std::fs::metadata(&file)?)));
        let whole = found.as_ref().map_or(0, |(body, _)| body.len() as u64);
        let range = range.as_deref().and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            let first: u64 = first.parse().ok()?;
            let last = last
                .parse()
                .unwrap_or(u64::MAX)
                .min(whole.saturating_sub(1));
            Some((first, last))
        });
        let range_bytes = range.map(|(first, last)| last + 1 - first.min(last));
        state.requests.lock().unwrap().push(Request { range_bytes });
        let mut head = String::new();
        let (status, body) = match (mood, found) {
            (Mood::Reset, _) => return Ok(()),
            (Mood::Status(status), _) => (status, Vec::new()),
            (_, Err(_)) => (404, Vec::new()),
            (_, Ok((body, meta))) => {
                let etag = format!("\"{:x}-{:x}\"", meta.ino(), meta.mtime_nsec());
                let changed = condition.is_some_and(|condition| condition != etag);
                head = format!("ETag: {etag}\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n");
                match range {
                    _ if changed => (412, Vec::new()),
                    Some((first, last)) => {
                        head += &format!("Content-Range: bytes {first}-{last}/{whole}\r\n");
                        (206, body[first as usize..=last as usize].to_vec())
                    }
                    None => (200, body),
                }
            }
        };
        let len = body.len();
        write!(
            out,
            "HTTP/1.1 {status} x\r\n{head}Content-Length: {len}\r\n\r\n"
        )?;
        if method == "HEAD" {
            continue;
        }
        match mood {
            Mood::Cut => return out.write_all(&body[..len / 2]),
            Mood::Slow => std::thread::sleep(Duration::from_millis(200)),
            _ => {}
        }
        out.write_all(&body)?;
    }
}
