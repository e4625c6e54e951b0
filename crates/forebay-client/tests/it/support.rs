//! Servers that follow a script, over loopback.

use std::net::{Shutdown, TcpListener};
use std::thread;
use std::time::Duration;

use forebay_batch::digest;
use forebay_client::{Client, ClientOptions, Error, LoaderOptions, Stream, StreamOptions};
use forebay_wire::{FrameLimits, FrameReader, FrameWriter, Message, Socket, TcpSocket, wire};

/// Longer than any step of a test, so a test that reaches it fails.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) const BATCH_BYTES: u64 = 8 * 8 * 8 * 3;

/// Batches of 8 images of 8x8 pixels.
pub(crate) fn spec() -> LoaderOptions {
    let options =
        r#"{"batch_size": 8, "world_size": 1, "transform": {"kind": "train", "size": 8}}"#;
    serde_json::from_str(options).unwrap()
}

/// Options of a client that neither waits for servers nor reconnects, with credit for two batches.
pub(crate) fn at_once() -> ClientOptions {
    ClientOptions {
        server_timeout: Duration::ZERO,
        reconnect_for: Duration::ZERO,
        credit_bytes: Some(2 * BATCH_BYTES),
        ..ClientOptions::default()
    }
}

/// The error of a client that cannot connect.
pub(crate) fn failed(url: &str, options: ClientOptions) -> Error {
    match Client::connect(url, options) {
        Ok(_) => panic!("was welcomed"),
        Err(e) => e,
    }
}

/// Opens a stream of one epoch.
pub(crate) fn open(url: &str, options: ClientOptions) -> Stream {
    let open = StreamOptions {
        epochs: 1,
        ..StreamOptions::from(spec())
    };
    Client::connect(url, options).unwrap().open(open).unwrap()
}

/// Runs `script` as the server at the returned URL.
pub(crate) fn serve<T: Send + 'static>(
    script: impl FnOnce(TcpListener) -> T + Send + 'static,
) -> (String, thread::JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("forebay://{}/set", listener.local_addr().unwrap());
    (url, thread::spawn(move || script(listener)))
}

/// The server's side of a connection.
pub(crate) struct Peer {
    pub(crate) socket: Socket,
    pub(crate) reader: FrameReader<Socket>,
    pub(crate) writer: FrameWriter<Socket>,
}

impl Peer {
    pub(crate) fn new(socket: Socket) -> Peer {
        socket.set_timeouts(LONG, LONG).unwrap();
        Peer {
            reader: FrameReader::new(socket.clone(), FrameLimits::from_client()),
            writer: FrameWriter::new(socket.clone()),
            socket,
        }
    }

    /// Accepts the next connection and reads its `Hello`.
    pub(crate) fn accept(listener: &TcpListener) -> (Peer, wire::Hello) {
        let socket = TcpSocket::new(listener.accept().unwrap().0).unwrap();
        let mut peer = Peer::new(socket.into());
        let hello = peer.hello();
        (peer, hello)
    }

    pub(crate) fn hello(&mut self) -> wire::Hello {
        match self.reader.read().unwrap() {
            (Message::Hello(hello), 0) => hello,
            other => panic!("{other:?}"),
        }
    }

    /// Accepts the next connection up to an open stream of epochs of `samples` samples.
    pub(crate) fn opened(listener: &TcpListener, samples: u64) -> (Peer, wire::Open) {
        let (mut peer, _) = Peer::accept(listener);
        peer.send(welcome());
        let open = peer.open(samples);
        (peer, open)
    }

    /// Reads `Open` and answers it.
    pub(crate) fn open(&mut self, samples: u64) -> wire::Open {
        let (Message::Open(open), 0) = self.reader.read().unwrap() else {
            panic!("no Open");
        };
        self.send(opened(&open, samples));
        open
    }

    /// Sends a message. The client may be gone.
    pub(crate) fn send(&mut self, message: impl Into<Message>) {
        let _ = self.writer.write(&message.into(), &[]);
    }

    /// Sends the batch at `position` of epoch 0. Returns its digest.
    pub(crate) fn send_batch(&mut self, position: u64) -> u64 {
        let batch = batch(position);
        let digest = batch.digest;
        let _ = self.writer.write(&batch.into(), &payload(position));
        digest
    }

    /// Sends the batches of epoch 0 from `position` on, and its end.
    pub(crate) fn send_epoch(&mut self, position: u64, samples: u64) {
        let mut end = wire::EpochEnd::default();
        for position in (position..samples).step_by(8) {
            end.digest = digest::fold(end.digest, self.send_batch(position));
            end.batches += 1;
        }
        self.send(end);
    }

    /// Ends the connection for the client, which may still send.
    pub(crate) fn hang_up(&self) {
        self.socket.shutdown(Shutdown::Write);
    }

    /// Reads until the client leaves. Returns whether it said `Close`.
    pub(crate) fn see_off(&mut self) -> bool {
        let mut closed = false;
        while let Ok((message, _)) = self.reader.read() {
            closed |= matches!(message, Message::Close(_));
        }
        closed
    }
}

/// A welcome that allows for a slow machine.
pub(crate) fn welcome() -> wire::Welcome {
    wire::Welcome {
        version: 2,
        heartbeat_ms: 10_000,
        ..wire::Welcome::default()
    }
}

pub(crate) fn opened(open: &wire::Open, samples: u64) -> wire::Opened {
    wire::Opened {
        spec: open.spec.clone(),
        records: samples,
        samples,
        batches_per_epoch: samples / 8,
        batch_bytes: BATCH_BYTES,
        ..wire::Opened::default()
    }
}

pub(crate) fn payload(position: u64) -> Vec<u8> {
    vec![7 + position as u8; BATCH_BYTES as usize]
}

/// The batch at `position` of epoch 0, without a checksum.
pub(crate) fn batch(position: u64) -> wire::Batch {
    let samples: Vec<u64> = (position..position + 8).collect();
    wire::Batch {
        epoch: 0,
        step: position / 8,
        position,
        shape: vec![8, 8, 8, 3],
        labels: vec![0; 8],
        digest: digest::batch(position.., &samples, &[]),
        samples,
        flags: vec![0; 8].into(),
        ..wire::Batch::default()
    }
}

/// The error of a client without retries when the server does this after the stream was opened.
pub(crate) fn told(act: impl FnOnce(&mut Peer) + Send + 'static) -> Error {
    let (url, peer) = serve(|listener| {
        let (mut peer, _) = Peer::opened(&listener, 96);
        act(&mut peer);
        peer.see_off();
    });
    let mut stream = open(&url, at_once());
    let e = stream.next_batch().unwrap_err();
    drop(stream);
    peer.join().unwrap();
    e
}
