//! TLS over a blocking socket that one thread reads while another writes.
//!
//! rustls has one state for both directions. It is locked while bytes are encrypted or decrypted,
//! but never during socket IO, so neither direction can block the other. This module owns the
//! buffers of ciphertext; the caller owns the socket and its options.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Foreign;
use rustls::Connection;

/// Ciphertext bytes per read for large reads, which wait for all of them; this saves wake-ups.
const LARGE: usize = 256 << 10;
/// Upper bound of the part of a record that may have been received before a read begins. A large read requests the wanted
/// plaintext length minus this bound, so it never waits for bytes beyond that plaintext.
const RECORD: usize = 32 << 10;
/// Ciphertext bytes per read for messages: one whole record, so that idle connections use little
/// memory.
const SMALL: usize = 18 << 10;
/// Plaintext bytes per encryption, so that they stay in the core's cache on their way to the
/// socket.
const WRITTEN: usize = 64 << 10;

/// TLS state of one connection.
pub(crate) struct Session {
    state: Mutex<State>,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Vec<u8>>,
}

struct State {
    tls: Connection,
    /// The first bytes from the peer, to recognize its protocol if it is not TLS.
    first: [u8; 4],
    first_len: usize,
    /// A fatal error of the TLS protocol, detected here or reported by the peer.
    failed: Option<rustls::Error>,
}

/// Received ciphertext that is not decrypted yet.
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
    // rustls leaves its state consistent or failed; the other fields are buffers.
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

    /// Returns the name of the cipher suite, once negotiated.
    pub(crate) fn cipher(&self) -> Option<String> {
        let state = lock(&self.state);
        let suite = state.tls.negotiated_cipher_suite()?;
        Some(format!("{:?}", suite.suite()))
    }

    /// Returns whether a read would succeed without a system call.
    pub(crate) fn has_pending(&self) -> bool {
        let incoming = lock(&self.incoming);
        if incoming.start < incoming.end {
            return true;
        }
        // Plaintext, or the peer's `close_notify`.
        lock(&self.state).tls.reader().fill_buf().is_ok()
    }

    /// Returns the first four bytes from the peer, if that many have arrived.
    pub(crate) fn first_bytes(&self) -> Option<[u8; 4]> {
        let state = lock(&self.state);
        (state.first_len == state.first.len()).then_some(state.first)
    }

    /// Sends pending protocol bytes: handshake messages or an alert. Assumes that the peer reads
    /// them.
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

    /// Reads with at most one system call. `Ok(0)` is the end of the connection; `WouldBlock` means
    /// that the received bytes contain no plaintext yet. `replies` receives the bytes to send in
    /// return.
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
            // With or without `close_notify`: framing already distinguishes a truncated connection
            // from a complete one.
            return Ok(0);
        }
        incoming.end = received;
        match self.decrypt(&mut incoming, buf, replies)? {
            Some(n) => Ok(n),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Advances the handshake: reads the peer's next bytes and sends the answer.
    pub(crate) fn advance(&self, socket: &mut dyn Read, replies: &mut dyn Write) -> io::Result<()> {
        match self.read_some(&mut [], socket, replies) {
            Ok(0) if self.is_handshaking() => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(e) if is_own(&e) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// As [`Session::read_some`], repeated until there is plaintext.
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

    /// Decrypts received bytes into `buf`; `None` if they contain no plaintext yet.
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
            // Returns decrypted plaintext first, because rustls accepts no more ciphertext before.
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
                // Bytes after the peer's `close_notify` are ignored.
                incoming.start = incoming.end;
            }
            let result = state.tls.process_new_packets();
            // A peer that speaks plain frames or HTTP would misread an alert as an answer of its
            // own protocol.
            let speaks_clear = state.first == crate::frame::MAGIC
                || Foreign::of(state.first) == Some(Foreign::HttpRequest);
            let is_due = result.is_err() || state.tls.is_handshaking();
            if state.tls.wants_write() && is_due && !speaks_clear {
                let mut out = Vec::new();
                self.take_outgoing(&mut state, &mut out)?;
                // During the handshake no other thread writes.
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
            // The end of the handshake, or the answer to a key update. If another thread is writing, the next write sends it.
            self.take_outgoing(&mut state, &mut out)?;
            drop(state);
            send(&mut out, replies)?;
        }
        Ok((filled > 0).then_some(filled))
    }

    /// Encrypts and sends the beginning of `buf`.
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

    /// Sends `close_notify`, unless another thread is writing.
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

/// Sends all of `out`. An error is final, since part of it may have been sent.
fn send(out: &mut Vec<u8>, socket: &mut dyn Write) -> io::Result<()> {
    let result = socket.write_all(out);
    out.clear();
    result
}

/// Returns whether `WouldBlock` comes from this module rather than from a timeout of the system.
fn is_own(e: &io::Error) -> bool {
    e.kind() == ErrorKind::WouldBlock && e.raw_os_error().is_none()
}

/// Converts an error of rustls to an IO error.
fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}
