//! TLS over a blocking socket that one thread reads while another writes.
//!
//! rustls has one state for both directions. It is locked while bytes are encrypted or
//! decrypted, never while the system is waited for, so that neither direction can hold
//! up the other. Owns the buffers of ciphertext; the socket and its options are the
//! caller's.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Foreign;
use rustls::Connection;

/// Ciphertext that is read at once, for large reads. They wait for all of it, which saves wake-ups.
const LARGE: usize = 256 << 10;
/// More than the part of a record that may be here already when a read begins: so many bytes fewer than the
/// plaintext that is wanted are surely to come.
const RECORD: usize = 32 << 10;
/// The same for messages: room for one whole record, so that idle connections stay small.
const SMALL: usize = 18 << 10;
/// Plaintext that is encrypted at once, so that it stays in a core's cache on its way to the socket.
const WRITTEN: usize = 64 << 10;

/// The TLS of one connection.
pub(crate) struct Session {
    state: Mutex<State>,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Vec<u8>>,
}

struct State {
    tls: Connection,
    /// The first bytes that the peer sent, to tell what it speaks if it is not TLS.
    first: [u8; 4],
    first_len: usize,
    /// The peer sent what no TLS peer sends, or said so of this side. Nothing follows it.
    failed: Option<rustls::Error>,
}

/// Ciphertext that was received and not decrypted yet.
#[derive(Default)]
struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // rustls leaves its state consistent or failed; the rest are buffers.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(crate) fn new(tls: Connection) -> Self {
        Session {
            state: Mutex::new(State {
                tls,
                first: [0; 4],
                first_len: 0,
                failed: None,
            }),
            incoming: Mutex::default(),
            outgoing: Mutex::default(),
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        lock(&self.state).tls.is_handshaking()
    }

    /// Name of the cipher suite, once it is agreed on.
    pub(crate) fn cipher(&self) -> Option<String> {
        let state = lock(&self.state);
        let suite = state.tls.negotiated_cipher_suite()?;
        Some(format!("{:?}", suite.suite()))
    }

    /// Whether a read would get something without asking the system.
    pub(crate) fn has_pending(&self) -> bool {
        let incoming = lock(&self.incoming);
        if incoming.start < incoming.end {
            return true;
        }
        // Plaintext, or the peer's farewell.
        lock(&self.state).tls.reader().fill_buf().is_ok()
    }

    /// What the peer spoke first, if that is four bytes by now.
    pub(crate) fn first_bytes(&self) -> Option<[u8; 4]> {
        let state = lock(&self.state);
        (state.first_len == state.first.len()).then_some(state.first)
    }

    /// Sends what the state wants to send: parts of the handshake, an alert. The peer is expected to take it.
    pub(crate) fn flush(&self, socket: &mut dyn Write) -> io::Result<()> {
        let mut out = lock(&self.outgoing);
        self.take_outgoing(&mut lock(&self.state), &mut out)?;
        send(&mut out, socket)
    }

    fn take_outgoing(&self, state: &mut State, out: &mut Vec<u8>) -> io::Result<()> {
        while state.tls.wants_write() {
            state.tls.write_tls(out)?;
        }
        Ok(())
    }

    /// Asks the system at most once. `Ok(0)` is the end of the connection; `WouldBlock` means that what came holds no
    /// plaintext yet. `replies` takes what the peer must be sent in return.
    pub(crate) fn read_some(
        &self,
        buf: &mut [u8],
        socket: &mut dyn Read,
        replies: &mut dyn Write,
    ) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        let had_some = incoming.start < incoming.end;
        if let Some(n) = self.decrypt(&mut incoming, buf, replies)? {
            return Ok(n);
        }
        if had_some {
            return Err(ErrorKind::WouldBlock.into());
        }
        let room = match buf.len() {
            len if len >= LARGE => (len - RECORD).min(LARGE),
            _ => SMALL,
        };
        if incoming.bytes.len() < room {
            incoming.bytes.resize(room, 0);
        }
        incoming.start = 0;
        incoming.end = 0;
        let received = socket.read(&mut incoming.bytes[..room])?;
        if received == 0 {
            // With or without a farewell: frames tell a connection that was cut from one that is done.
            return Ok(0);
        }
        incoming.end = received;
        match self.decrypt(&mut incoming, buf, replies)? {
            Some(n) => Ok(n),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// A step of the handshake: what the peer sends next, and the answer to it.
    pub(crate) fn advance(&self, socket: &mut dyn Read, replies: &mut dyn Write) -> io::Result<()> {
        match self.read_some(&mut [], socket, replies) {
            Ok(0) if self.is_handshaking() => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(e) if is_own(&e) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// As [`Session::read_some`], until there is plaintext.
    pub(crate) fn read(
        &self,
        buf: &mut [u8],
        socket: &mut dyn Read,
        replies: &mut dyn Write,
    ) -> io::Result<usize> {
        loop {
            match self.read_some(buf, socket, replies) {
                Err(e) if is_own(&e) => {}
                result => return result,
            }
        }
    }

    /// Decrypts what was received into `buf`; none if that gave no plaintext.
    fn decrypt(
        &self,
        incoming: &mut Incoming,
        buf: &mut [u8],
        replies: &mut dyn Write,
    ) -> io::Result<Option<usize>> {
        let mut state = lock(&self.state);
        if let Some(error) = &state.failed {
            return Err(invalid(error.clone()));
        }
        let mut filled = 0;
        loop {
            // What is decrypted already, first: the state takes nothing more before.
            while filled < buf.len() {
                match state.tls.reader().read(&mut buf[filled..]) {
                    Ok(0) => return Ok(Some(filled)),
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e),
                }
            }
            if incoming.start == incoming.end
                || (filled == buf.len() && !state.tls.is_handshaking())
            {
                break;
            }
            let mut left = &incoming.bytes[incoming.start..incoming.end];
            let missing = state.first.len() - state.first_len;
            if missing > 0 {
                let n = missing.min(left.len());
                let at = state.first_len;
                state.first[at..at + n].copy_from_slice(&left[..n]);
                state.first_len += n;
            }
            let taken = state.tls.read_tls(&mut left)?;
            incoming.start += taken;
            if taken == 0 {
                // After the peer's farewell nothing counts.
                incoming.start = incoming.end;
            }
            let result = state.tls.process_new_packets();
            // A peer that speaks frames or HTTP in clear would take an alert for an answer of its own protocol.
            let speaks_clear = state.first == crate::frame::MAGIC
                || Foreign::of(state.first) == Some(Foreign::HttpRequest);
            let is_due = result.is_err() || state.tls.is_handshaking();
            if state.tls.wants_write() && is_due && !speaks_clear {
                let mut out = Vec::new();
                self.take_outgoing(&mut state, &mut out)?;
                // Before the handshake is done nobody else writes.
                let sent = send(&mut out, replies);
                if result.is_ok() {
                    sent?;
                }
            }
            if let Err(error) = result {
                state.failed = Some(error.clone());
                return Err(invalid(error));
            }
        }
        if state.tls.wants_write()
            && let Ok(mut out) = self.outgoing.try_lock()
        {
            // The end of the handshake, or the answer to new keys. Whoever writes now sends it along.
            self.take_outgoing(&mut state, &mut out)?;
            drop(state);
            send(&mut out, replies)?;
        }
        Ok((filled > 0).then_some(filled))
    }

    /// Encrypts and sends the first part of `buf`.
    pub(crate) fn write(&self, buf: &[u8], socket: &mut dyn Write) -> io::Result<usize> {
        let mut out = lock(&self.outgoing);
        let n = {
            let mut state = lock(&self.state);
            let n = state.tls.writer().write(&buf[..buf.len().min(WRITTEN)])?;
            self.take_outgoing(&mut state, &mut out)?;
            n
        };
        send(&mut out, socket)?;
        Ok(n)
    }

    /// Says goodbye, unless somebody is writing.
    pub(crate) fn close(&self, socket: &mut dyn Write) {
        let Ok(mut out) = self.outgoing.try_lock() else {
            return;
        };
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        state.tls.send_close_notify();
        if self.take_outgoing(&mut state, &mut out).is_ok() {
            drop(state);
            let _ = send(&mut out, socket);
        }
    }
}

/// Sends all of `out`. An error is final: a part of it may be sent.
fn send(out: &mut Vec<u8>, socket: &mut dyn Write) -> io::Result<()> {
    let result = socket.write_all(out);
    out.clear();
    result
}

/// Whether it is this module that has nothing yet, and not the system, whose timeout passed.
fn is_own(e: &io::Error) -> bool {
    e.kind() == ErrorKind::WouldBlock && e.raw_os_error().is_none()
}

/// What rustls found, as an error of reading.
fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}
