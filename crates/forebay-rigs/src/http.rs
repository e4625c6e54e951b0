//! The parts of HTTP/1.1 that the rigs need: whole messages, in memory, over blocking sockets.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Size limit of a message head.
const HEAD_BYTES: usize = 64 << 10;

/// A request or a response.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    /// The first line, without its line break.
    pub(crate) first: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn answer(status: u16) -> Self {
        let reason = match status {
            200 => "OK",
            204 => "No Content",
            206 => "Partial Content",
            404 => "Not Found",
            412 => "Precondition Failed",
            _ => "Status",
        };
        Self {
            first: format!("HTTP/1.1 {status} {reason}"),
            ..Self::default()
        }
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(have, _)| have.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn set(&mut self, name: &str, value: impl ToString) {
        self.headers
            .retain(|(have, _)| !have.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_string()));
    }

    pub(crate) fn method(&self) -> &str {
        self.first.split(' ').next().unwrap_or_default()
    }

    pub(crate) fn target(&self) -> &str {
        self.first.split(' ').nth(1).unwrap_or_default()
    }

    /// Returns the path of the target, decoded.
    pub(crate) fn path(&self) -> String {
        decode(self.target().split('?').next().unwrap_or_default())
    }

    /// Returns a value of the target's query, decoded; empty for a name without a value.
    pub(crate) fn query(&self, name: &str) -> Option<String> {
        let (_, query) = self.target().split_once('?')?;
        query.split('&').find_map(|pair| {
            let (have, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(have) == name).then(|| decode(value))
        })
    }

    pub(crate) fn status(&self) -> u16 {
        self.first
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0)
    }

    /// Returns the encoded head.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut head = format!("{}\r\n", self.first);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

/// Reads a message. For a response, `is_answer_to` is the method of its request. Returns `None` at
/// the end of the connection.
pub(crate) fn read_message(
    stream: &mut BufReader<TcpStream>,
    is_answer_to: Option<&str>,
) -> io::Result<Option<Message>> {
    let mut message = Message::default();
    let mut read = 0;
    loop {
        let mut line = String::new();
        let n = stream
            .by_ref()
            .take(HEAD_BYTES as u64)
            .read_line(&mut line)?;
        read += n;
        if n == 0 && message.first.is_empty() {
            return Ok(None);
        }
        if n == 0 || read > HEAD_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if message.first.is_empty() {
            message.first = line.to_owned();
        } else if let Some((name, value)) = line.split_once(':') {
            let value = value.trim().to_owned();
            message.headers.push((name.to_owned(), value));
        }
    }
    if message.header("expect").is_some() {
        stream
            .get_mut()
            .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let no_body = is_answer_to == Some("HEAD") || matches!(message.status(), 204 | 304);
    if no_body {
        return Ok(Some(message));
    }
    if message.header("transfer-encoding").is_some() {
        message.body = read_chunked(stream)?;
    } else if let Some(len) = message.header("content-length") {
        let len = len.parse().map_err(|_| io::ErrorKind::InvalidData)?;
        stream.by_ref().take(len).read_to_end(&mut message.body)?;
        if message.body.len() as u64 != len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    } else if is_answer_to.is_some() {
        stream.read_to_end(&mut message.body)?;
    }
    Ok(Some(message))
}

fn read_chunked(stream: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let size = line.trim().split(';').next().unwrap_or_default();
        let size = u64::from_str_radix(size, 16).map_err(|_| io::ErrorKind::InvalidData)?;
        stream.by_ref().take(size).read_to_end(&mut body)?;
        line.clear();
        stream.read_line(&mut line)?;
        if size == 0 {
            return Ok(body);
        }
    }
}

/// Sends one request on a new connection, and returns the response.
pub(crate) fn ask(server: SocketAddr, mut request: Message) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    // `read_message` has decoded the chunks of a chunked body, so it is sent with its length.
    let had_body = request.header("content-length").is_some()
        || request.header("transfer-encoding").is_some()
        || !request.body.is_empty();
    request.headers.retain(|(name, _)| {
        !["connection", "transfer-encoding", "expect"]
            .iter()
            .any(|gone| name.eq_ignore_ascii_case(gone))
    });
    if had_body {
        let len = request.body.len();
        request.set("Content-Length", len);
    }
    request.set("Connection", "close");
    stream.write_all(&request.head())?;
    stream.write_all(&request.body)?;
    let method = request.method().to_owned();
    let mut stream = BufReader::new(stream);
    loop {
        let answer = read_message(&mut stream, Some(&method))?;
        match answer {
            Some(answer) if answer.status() == 100 => {}
            Some(answer) => return Ok(answer),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A listening socket with a thread per connection. It is closed when dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub(crate) fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let address = listener.local_addr().expect("a bound socket");
        let ended = Arc::new(AtomicBool::new(false));
        let serve = Arc::new(serve);
        let flag = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if flag.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(stream) = stream else { continue };
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(stream));
            }
        });
        Self {
            address,
            ended,
            thread: Some(thread),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers each request of each connection with `answer`.
    pub(crate) fn answering(answer: impl Fn(&Message) -> Message + Send + Sync + 'static) -> Self {
        Self::start(move |stream| {
            let _ = stream.set_nodelay(true);
            let mut stream = BufReader::new(stream);
            while let Ok(Some(request)) = read_message(&mut stream, None) {
                let mut reply = answer(&request);
                let is_head = request.method() == "HEAD";
                if reply.header("content-length").is_none() && reply.status() != 204 {
                    let len = reply.body.len();
                    reply.set("Content-Length", len);
                }
                let socket = stream.get_mut();
                if socket.write_all(&reply.head()).is_err()
                    || (!is_head && socket.write_all(&reply.body).is_err())
                {
                    break;
                }
            }
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // This connection ends the blocking `accept` call.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = text
            .get(at + 1..at + 3)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (byte, hex) {
            (b'%', Some(value)) => {
                out.push(value);
                at += 3;
            }
            (b'+', _) => {
                out.push(b' ');
                at += 1;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Returns the requested range of a body of `len` bytes; an error if the range is not satisfiable.
pub(crate) fn range_of(request: &Message, len: u64) -> Option<Result<std::ops::Range<u64>, ()>> {
    let (from, to) = request
        .header("range")?
        .strip_prefix("bytes=")?
        .split_once('-')?;
    let range = match (from.parse::<u64>(), to.parse::<u64>()) {
        (Ok(from), Ok(to)) => from..(to + 1).min(len),
        (Ok(from), Err(_)) => from..len,
        (Err(_), Ok(suffix)) => len.saturating_sub(suffix)..len,
        _ => return None,
    };
    Some(if range.start < range.end {
        Ok(range)
    } else {
        Err(())
    })
}
