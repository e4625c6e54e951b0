//! One connection: connect, handshake, open a stream.

use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_options::StreamInfo;
use forebay_wire::frame::PROTOCOL_VERSIONS;
use forebay_wire::text::printable_start;
use forebay_wire::transport::random_bytes;
use forebay_wire::{
    Error as WireError, FrameLimits, FrameReader, FrameWriter, Kind, LocalSocket, Message, Peer,
    Socket, TcpSocket, Token, wire,
};

use crate::error::{Error, Result};
use crate::options::{ClientOptions, StreamOptions, Transport};
use crate::resolver::Server;
use crate::tls::{self, Trust};
use crate::url::Url;
use crate::wire_options;

/// Timeout for sending a small message. The server always reads, so this is ample.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bounds of the silence timeout, whatever heartbeat the server announces.
const SILENCE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));

/// Connect timeout for the first round if there are several servers; servers that exceed it are
/// retried with the full timeout.
const HURRY: Duration = Duration::from_secs(2);

/// A connection with a completed handshake.
pub(crate) struct Connection {
    /// Name of the server in messages.
    pub(crate) server: String,
    /// The server's address and certificate name, which additional connections must match.
    pub(crate) place: Server,
    pub(crate) socket: Socket,
    pub(crate) reader: FrameReader<Socket>,
    pub(crate) writer: FrameWriter<Socket>,
    pub(crate) welcome: wire::Welcome,
    /// Silence timeout of the server.
    pub(crate) silence: Duration,
    /// Additional connections of the same stream, which carry slices of its batches.
    pub(crate) more: Vec<Connection>,
}

/// Connects to `servers` in order and returns the first result of `then` that succeeds. Returns
/// permanent errors at once, and otherwise the last transient one. `adopt` receives each socket
/// before any wait on it, so that it can be interrupted.
pub(crate) fn dial<T>(
    servers: &[Server],
    url: &Url,
    options: &ClientOptions,
    adopt: &dyn Fn(&Socket) -> Result<()>,
    mut then: impl FnMut(Connection) -> Result<T>,
) -> Result<T> {
    let access = Access::of(url, options)?;
    let hurried = ClientOptions {
        connect_timeout: options.connect_timeout.min(HURRY),
        ..options.clone()
    };
    let mut last = None;
    let mut slow = Vec::new();
    // The second round retries slow servers with the full timeout.
    for round in 0..2 {
        let (servers, options) = match round {
            0 if servers.len() > 1 => (servers, &hurried),
            0 => (servers, options),
            _ => (&slow[..], options),
        };
        let mut late = Vec::new();
        for server in servers {
            let greeted = greet(server, url.name(), options, &access, adopt);
            match greeted.and_then(&mut then) {
                Ok(made) => return Ok(made),
                Err(e) if e.is_passing() => {
                    if round == 0 && servers.len() > 1 && e.is_late() {
                        late.push(server.clone());
                    }
                    // Prefers the error of a busy server, then that of one that does not run yet:
                    // both are worth a retry.
                    let worth = |e: &Error| u8::from(e.is_absent()) + 2 * u8::from(e.is_busy());
                    if worth(&e) >= last.as_ref().map_or(0, worth) {
                        last = Some(e);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        slow = late;
    }
    Err(last.unwrap_or_else(|| Error::Connect {
        server: url.to_string(),
        source: std::io::Error::new(std::io::ErrorKind::NotFound, "it names no server"),
    }))
}

/// Credentials of this client, and the certificates that it trusts.
struct Access {
    token: Option<Token>,
    trust: Option<Trust>,
}

impl Access {
    fn of(url: &Url, options: &ClientOptions) -> Result<Access> {
        Ok(Access {
            token: match &options.credential {
                Some(credential) => Some(credential.token()?),
                None => None,
            },
            trust: Trust::of(url, options)?,
        })
    }
}

fn connect(server: &Server, timeout: Duration) -> Result<TcpStream> {
    let failed = Error::connecting(server);
    let addresses: Vec<SocketAddr> = match server.address {
        Some(address) => vec![address],
        None => (server.authority.host.as_str(), server.authority.port)
            .to_socket_addrs()
            .map_err(&failed)?
            .collect(),
    };
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeout) {
            // On one machine, the system may connect a socket to itself if nothing listens on the
            // port.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                last = std::io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(failed(last))
}

/// Returns the random bytes by which a server recognizes the connections of this process. A forked child gets its own.
fn process_key() -> Vec<u8> {
    static KEY: Mutex<Option<(u32, Vec<u8>)>> = Mutex::new(None);
    let process = std::process::id();
    let mut key = KEY.lock().unwrap_or_else(PoisonError::into_inner);
    match &*key {
        Some((of, bytes)) if *of == process => bytes.clone(),
        _ => {
            // Without random numbers the server cannot distinguish the processes of this host;
            // nothing else needs the key.
            let bytes = random_bytes().map_or_else(|_| Vec::new(), Vec::from);
            *key = Some((process, bytes.clone()));
            bytes
        }
    }
}

fn greet(
    server: &Server,
    name: &str,
    options: &ClientOptions,
    access: &Access,
    adopt: &dyn Fn(&Socket) -> Result<()>,
) -> Result<Connection> {
    let stream = connect(server, options.connect_timeout)?;
    let hello = wire::Hello {
        version_min: *PROTOCOL_VERSIONS.start(),
        version_max: *PROTOCOL_VERSIONS.end(),
        client: options.name.clone(),
        dataset: name.to_owned(),
        process: process_key().into(),
        hands_over: true,
        ..wire::Hello::default()
    };
    let (connection, hello) = greet_tcp(stream, server, hello, options, access, adopt)?;
    match options.transport {
        Transport::Tcp => Ok(connection),
        Transport::Shm => go_local(&connection, hello, options, adopt),
        // Shared memory is optional here. If the TCP connection has failed too, the next use of it
        // reports that.
        Transport::Auto => match go_local(&connection, hello, options, adopt) {
            Ok(local) => Ok(local),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(_) => adopt(&connection.socket).map(|()| connection),
        },
    }
}

/// Performs the handshake over TCP. Also returns the `Hello` that was sent, which says whether the
/// server seems to be on this host.
fn greet_tcp(
    stream: TcpStream,
    place: &Server,
    mut hello: wire::Hello,
    options: &ClientOptions,
    access: &Access,
    adopt: &dyn Fn(&Socket) -> Result<()>,
) -> Result<(Connection, wire::Hello)> {
    let server = place.to_string();
    let mut socket = TcpSocket::new(stream).map_err(Error::connecting(&server))?;
    if let Some(trust) = &access.trust {
        socket = trust.begin(socket, &place.authority)?;
    }
    let socket = Socket::from(socket);
    if let Some(token) = &access.token {
        if access.trust.is_none() && !socket.is_same_host() {
            return Err(Error::TokenInClear { server });
        }
        token.expose().clone_into(&mut hello.token);
    }
    let stays = hello.join.is_empty() && options.transport != Transport::Tcp;
    hello.local = stays && socket.is_same_host();
    let connection = say_hello(socket, place, hello.clone(), options, adopt)?;
    Ok((connection, hello))
}

/// Replaces a TCP connection by a local one with shared memory, to the same server.
fn go_local(
    connection: &Connection,
    hello: wire::Hello,
    options: &ClientOptions,
    adopt: &dyn Fn(&Socket) -> Result<()>,
) -> Result<Connection> {
    let server = &connection.server;
    let refused = |why: String| Error::NotLocal {
        server: server.clone(),
        why,
    };
    if !hello.local {
        return Err(refused("it is on another host".to_owned()));
    }
    let offered = connection.welcome.local.clone();
    let offered = offered.ok_or_else(|| refused("the server offers none".to_owned()))?;
    let socket = LocalSocket::connect(&offered.name, options.connect_timeout).map_err(|e| {
        refused(format!(
            "cannot reach its local socket, perhaps because it runs in another container: {e}"
        ))
    })?;
    let hello = wire::Hello {
        local_key: offered.key,
        ..hello
    };
    say_hello(socket.into(), &connection.place, hello, options, adopt)
}

fn say_hello(
    socket: Socket,
    place: &Server,
    hello: wire::Hello,
    options: &ClientOptions,
    adopt: &dyn Fn(&Socket) -> Result<()>,
) -> Result<Connection> {
    let server = place.to_string();
    adopt(&socket)?;
    // The connect timeout applies again: the system accepts connections for a process that hangs,
    // so only the handshake shows that the server responds.
    let patience = options.connect_timeout;
    socket
        .set_timeouts(patience, WRITE_TIMEOUT)
        .map_err(Error::connecting(&server))?;
    let reader = FrameReader::new(
        socket.clone(),
        FrameLimits::from_server(options.max_batch_bytes),
    );
    let reader = match socket.local() {
        // Payloads do not follow the messages, so messages can be read ahead.
        Some(_) => reader.read_ahead(),
        None => reader,
    };
    tls::shake_hands(&socket, &server, patience)?;
    let mut connection = Connection {
        server: server.clone(),
        place: place.clone(),
        reader,
        writer: FrameWriter::new(socket.clone()),
        socket,
        welcome: wire::Welcome::default(),
        silence: patience,
        more: Vec::new(),
    };
    // A server that refuses may close the connection before it reads `Hello`; its answer can still be read.
    let written = connection.writer.write(&hello.into(), &[]);
    let answer = connection.answer("Welcome", "the answer to Hello", patience);
    let Message::Welcome(welcome) = answer.map_err(|e| match written {
        Err(source) if !matches!(e, Error::Remote { .. }) => Error::Lost {
            server,
            what: "the answer to Hello".to_owned(),
            source,
        },
        _ => e,
    })?
    else {
        unreachable!("answer() gives what was expected");
    };
    if !PROTOCOL_VERSIONS.contains(&welcome.version) {
        let (first, last) = (PROTOCOL_VERSIONS.start(), PROTOCOL_VERSIONS.end());
        let what = format!(
            "version: expected {first} to {last}, found {}",
            welcome.version
        );
        let source = WireError::Invalid {
            kind: Kind::Welcome,
            what,
        };
        return Err(Error::Protocol {
            server: connection.server.clone(),
            source,
        });
    }
    let promised = Duration::from_millis(welcome.heartbeat_ms.into()) * 3;
    connection.silence = options
        .silence_timeout
        .unwrap_or(promised.clamp(SILENCE.0, SILENCE.1));
    connection.welcome = welcome;
    Ok(connection)
}

impl Connection {
    /// Reads until the message named `expected` arrives, for at most `limit`; answers pings
    /// meanwhile.
    fn answer(&mut self, expected: &'static str, what: &str, limit: Duration) -> Result<Message> {
        let began = Instant::now();
        loop {
            let left = limit.saturating_sub(began.elapsed());
            let waited = || Error::Waited {
                server: self.server.clone(),
                what: what.to_owned(),
                waited: began.elapsed(),
                last_sign: None,
            };
            // After the handshake the server sends heartbeats.
            let patience = left.min(self.silence);
            if patience.is_zero() || self.socket.set_read_timeout(patience).is_err() {
                return Err(waited());
            }
            let message = match self.reader.read() {
                Ok((message, _)) => message,
                Err(e) if e.is_timeout() && began.elapsed() >= limit => return Err(waited()),
                Err(e) => return Err(broken(&self.server, what, self.silence, e)),
            };
            match message {
                Message::Error(error) => return Err(remote(&self.server, error)),
                Message::Ping(ping) if !ping.answer => {
                    let pong = wire::Ping {
                        answer: true,
                        ..ping
                    };
                    self.writer
                        .write(&pong.into(), &[])
                        .map_err(|e| broken(&self.server, what, self.silence, e))?;
                }
                Message::Ping(_) => {}
                message if message.kind().to_string() == expected => return Ok(message),
                message => {
                    let found = message.kind();
                    return Err(Error::Protocol {
                        server: self.server.clone(),
                        source: WireError::Unexpected { expected, found },
                    });
                }
            }
        }
    }

    /// Opens additional connections that join this stream with its `key`, to the same address,
    /// since a name may resolve to several servers.
    fn dial_more(&self, key: &[u8], url: &Url, options: &ClientOptions) -> Result<Vec<Connection>> {
        let failed = Error::connecting(&self.server);
        let Ok(Peer::Address(address)) = self.socket.peer() else {
            return Ok(Vec::new());
        };
        let hello = wire::Hello {
            version_min: self.welcome.version,
            version_max: self.welcome.version,
            client: options.name.clone(),
            dataset: url.name().to_owned(),
            join: key.to_vec().into(),
            ..wire::Hello::default()
        };
        let access = Access::of(url, options)?;
        let dial = |_| {
            let stream = TcpStream::connect_timeout(&address, options.connect_timeout);
            let stream = stream.map_err(&failed)?;
            let hello = hello.clone();
            let (connection, _) =
                greet_tcp(stream, &self.place, hello, options, &access, &|_| Ok(()))?;
            let silence = connection.silence;
            connection
                .socket
                .set_read_timeout(silence)
                .map_err(&failed)?;
            Ok(connection)
        };
        (1..options.connections).map(dial).collect()
    }

    /// Opens the stream without credit, because the size of its batches is not known yet.
    pub(crate) fn open(
        &mut self,
        open: &StreamOptions,
        checksum: bool,
        url: &Url,
        options: &ClientOptions,
    ) -> Result<StreamInfo> {
        let what = "the stream to open";
        let request = wire::Open {
            spec: Some(wire_options::write(&open.options)),
            epoch: open.epoch,
            position: open.position,
            credit_bytes: 0,
            fingerprint: open.fingerprint.clone().unwrap_or_default(),
            payload_checksum: checksum,
            epochs: open.epochs,
            connections: match self.socket.local() {
                Some(_) => 1,
                None => u32::try_from(options.connections).unwrap_or(u32::MAX),
            },
        };
        let request = Message::from(request);
        let (bytes, most) = (
            request.encoded_len(),
            FrameLimits::from_client().header_bytes,
        );
        if bytes > most as usize {
            return Err(Error::Option {
                name: "options",
                expected: format!(
                    "at most {most} bytes: shorter lists of indices or weights, or a loader in process"
                ),
                found: format!("{bytes} bytes"),
            });
        }
        let written = self.writer.write(&request, &[]);
        match self.answer("Opened", what, options.open_timeout) {
            Ok(Message::Opened(mut opened)) => {
                // The key is valid for this connection only.
                let key = std::mem::take(&mut opened.join);
                if options.connections > 1 && !key.is_empty() {
                    self.more = self.dial_more(&key, url, options)?;
                }
                wire_options::info(opened).map_err(Error::unknown_options(&self.server, what))
            }
            Ok(_) => unreachable!("answer() gives what was expected"),
            Err(e @ Error::Remote { .. }) => Err(e),
            Err(e) => match written {
                Err(source) => Err(broken(&self.server, what, self.silence, source)),
                Ok(()) => Err(e),
            },
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.socket.shutdown(Shutdown::Both);
    }
}

/// Converts an error of the connection while it waits for `what`.
pub(crate) fn broken(server: &str, what: &str, silence: Duration, source: WireError) -> Error {
    if let Some(what) = tls::refusal(&source) {
        let server = server.to_owned();
        return Error::Tls { server, what };
    }
    let (server, what) = (server.to_owned(), what.to_owned());
    if let Some(foreign) = source.foreign() {
        return Error::foreign(server, foreign);
    }
    if source.is_timeout() {
        Error::Silent {
            server,
            what,
            silence,
        }
    } else if source.is_disconnect() {
        Error::Lost {
            server,
            what,
            source,
        }
    } else {
        Error::Protocol { server, source }
    }
}

/// Maximum length of a server's message, in characters.
const MOST_WORDS: usize = 4096;

/// Converts an error that the server sent; its text is untrusted.
pub(crate) fn remote(server: &str, error: wire::Error) -> Error {
    let kind = error.kind();
    Error::Remote {
        server: server.to_owned(),
        kind,
        message: if error.message.is_empty() {
            format!("the server failed without a message ({kind:?})")
        } else {
            printable_start(&error.message, MOST_WORDS).into_owned()
        },
    }
}
