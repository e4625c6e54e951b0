//! Batches in shared memory: when it is used, and that neither side can harm the other through it.
#![cfg(target_os = "linux")]

#[path = "it/support/mod.rs"]
mod support;

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_batch::digest;
use forebay_client::{Batch, BufferPool, Client, ClientOptions, Error, Stream, Transport, Via};
use forebay_server::{Pixels, ServerOptions, Synthetic};
use forebay_wire::wire::error::Kind;
use forebay_wire::{
    FrameLimits, FrameReader, FrameWriter, LocalListener, LocalSocket, Message, Socket, TcpSocket,
    wire,
};
use support::{
    BATCH_BYTES, LONG, Log, connect, epochs, hello, options, over, plain, spec, start, url,
};

fn check(batch: &Batch) {
    for (i, &sample) in batch.samples.iter().enumerate() {
        let image = batch.image(i).unwrap();
        let right = |(j, &byte): (usize, &u8)| byte == Synthetic::pixel(sample, j);
        assert!(image.iter().enumerate().all(right), "sample {sample}");
    }
}

fn whole_epoch(stream: &mut Stream) {
    let mut batches = 0;
    while let Some(batch) = stream.next_batch().unwrap() {
        check(&batch);
        batches += 1;
    }
    assert_eq!(batches, 12);
}

/// Serializes the tests that measure the whole process with those that would disturb them.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts mappings of batch memory and open files of this process.
fn traces() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (maps.matches("forebay-batch").count(), files)
}

#[test]
fn the_best_transport_is_picked_and_told() {
    let _turn = alone();
    let (server, log) = plain();
    for (transport, via) in [
        (Transport::Auto, Via::Shm),
        (Transport::Shm, Via::Shm),
        (Transport::Tcp, Via::Tcp),
    ] {
        let mut stream = connect(server.addr(), transport).open(epochs(1)).unwrap();
        assert_eq!(stream.via(), via);
        whole_epoch(&mut stream);
        let shared = if via == Via::Shm { 12 } else { 0 };
        assert_eq!(stream.stats().shared, shared);
    }
    log.wait_for(&format!("from process {}", std::process::id()));
    let log = Log::default();
    let without = ServerOptions {
        shared_memory_bytes: 0,
        ..options(&log)
    };
    let server = start(without, Synthetic::new(100, Pixels::Pattern));
    let mut stream = connect(server.addr(), Transport::Auto)
        .open(epochs(1))
        .unwrap();
    assert_eq!(stream.via(), Via::Tcp);
    whole_epoch(&mut stream);
    let Err(e) = Client::connect(&url(server.addr()), over(Transport::Shm)) else {
        panic!("there is none");
    };
    assert!(matches!(e, Error::NotLocal { .. }), "{e}");
    assert!(e.to_string().contains("the server offers none"), "{e}");
}

#[test]
fn a_client_that_keeps_all_slots_blocks_no_other() {
    let _turn = alone();
    let (server, _) = plain();
    let mut greedy = connect(server.addr(), Transport::Shm)
        .open(epochs(0))
        .unwrap();
    let mut kept = Vec::new();
    while kept.len() < 60 {
        kept.extend(greedy.next_batch().unwrap());
    }
    let shared = greedy.stats().shared;
    assert!((1..60).contains(&shared), "{shared} of 60 in slots");
    let mut other = connect(server.addr(), Transport::Shm)
        .open(epochs(1))
        .unwrap();
    whole_epoch(&mut other);
    assert_eq!(other.stats().shared, 12);
    // No slot was reused while its batch was held.
    kept.iter().for_each(check);
    drop(kept);
    let before = greedy.stats();
    while greedy.stats().batches < before.batches + 24 {
        if let Some(batch) = greedy.next_batch().unwrap() {
            check(&batch);
        }
    }
    assert!(greedy.stats().shared > before.shared, "slots came back");
}

#[test]
fn memory_is_bounded_by_the_options_of_the_server() {
    let _turn = alone();
    let log = Log::default();
    let little = ServerOptions {
        shared_memory_bytes: 2 * 4096,
        ..options(&log)
    };
    let server = start(little, Synthetic::new(100, Pixels::Pattern));
    let mut stream = connect(server.addr(), Transport::Shm)
        .open(epochs(0))
        .unwrap();
    let kept: Vec<Batch> = (0..10)
        .map(|_| stream.next_batch().unwrap().unwrap())
        .collect();
    kept.iter().for_each(check);
    assert_eq!(traces().0, 2 * 2, "two slots, each mapped on both sides");
}

#[test]
fn batches_outlive_their_stream_and_server() {
    let _turn = alone();
    let (server, _) = plain();
    let before = traces();
    let mut stream = connect(server.addr(), Transport::Shm)
        .open(epochs(0))
        .unwrap();
    let mut kept: Vec<Batch> = (0..6)
        .map(|_| stream.next_batch().unwrap().unwrap())
        .collect();
    drop(server);
    kept.iter().for_each(check);
    drop(stream);
    kept.iter().for_each(check);
    // The memory is writable.
    kept[0].payload.fill(3);
    assert!(kept[0].payload.iter().all(|&byte| byte == 3));
    drop(kept);
    let began = Instant::now();
    // Files of a joined thread may remain visible for a moment.
    while traces().0 > before.0 || traces().1 >= before.1 {
        assert!(began.elapsed() < LONG, "{:?} is not {before:?}", traces());
    }
}

#[test]
fn checksums_of_shared_memory_are_verified() {
    let _turn = alone();
    let (server, _) = plain();
    let options = ClientOptions {
        payload_checksum: Some(true),
        ..over(Transport::Shm)
    };
    let client = Client::connect(&url(server.addr()), options).unwrap();
    whole_epoch(&mut client.open(epochs(1)).unwrap());
    let e = told(|lie| {
        let payload = vec![7; BATCH_BYTES as usize];
        let header = wire::Batch {
            payload_crc32c: Some(1),
            ..lie.batch()
        };
        lie.send_in_slot(header, &payload);
    });
    assert!(
        e.to_string().contains("checksum of the payload is wrong"),
        "{e}"
    );
}

/// A client of the local socket that sends arbitrary messages.
fn raw_local(
    addr: SocketAddr,
    change: fn(&mut wire::Hello),
) -> (FrameReader<Socket>, FrameWriter<Socket>) {
    let mut raw = support::Raw::connect(addr);
    let asks = wire::Hello {
        local: true,
        ..hello()
    };
    raw.send(asks.clone());
    let Message::Welcome(welcome) = raw.read() else {
        panic!("no Welcome");
    };
    let offered = welcome.local.expect("on this host there is shared memory");
    let socket = Socket::from(LocalSocket::connect(&offered.name, LONG).unwrap());
    socket.set_timeouts(LONG, LONG).unwrap();
    let mut writer = FrameWriter::new(socket.clone());
    let mut greeting = wire::Hello {
        local_key: offered.key,
        ..asks
    };
    change(&mut greeting);
    writer.write(&greeting.into(), &[]).unwrap();
    let limits = FrameLimits::from_server(1 << 30);
    (FrameReader::new(socket, limits), writer)
}

/// Reads the server's final message.
fn last_word(reader: &mut FrameReader<Socket>) -> (Kind, String) {
    loop {
        if let (Message::Error(error), _) = reader.read().unwrap() {
            return (error.kind(), error.message);
        }
    }
}

#[test]
fn invalid_keys_and_releases_end_the_connection() {
    let _turn = alone();
    let (server, _) = plain();
    // A client that the server did not refer to the local socket: without a key, and with a wrong
    // key.
    for change in [
        (|hello| hello.local_key.clear()) as fn(&mut wire::Hello),
        |hello| hello.local_key = vec![0; 16].into(),
    ] {
        let (mut reader, _writer) = raw_local(server.addr(), change);
        let (kind, message) = last_word(&mut reader);
        assert_eq!(kind, Kind::Protocol);
        assert!(
            message.contains("for clients that the server itself sent"),
            "{message}"
        );
    }
    let (mut reader, mut writer) = raw_local(server.addr(), |_| ());
    assert!(matches!(reader.read().unwrap().0, Message::Welcome(w) if w.local.is_none()));
    let open = wire::Open {
        spec: Some(support::sent(&spec().encode().json)),
        credit_bytes: 2 * BATCH_BYTES,
        ..wire::Open::default()
    };
    writer.write(&open.into(), &[]).unwrap();
    assert!(matches!(reader.read().unwrap().0, Message::Opened(_)));
    let mut slots = Vec::new();
    while slots.len() < 2 {
        if let (Message::Batch(batch), 0) = reader.read().unwrap() {
            let shared = batch.shared.unwrap();
            assert_eq!((shared.bytes, shared.capacity), (BATCH_BYTES, 4096));
            assert!(reader.get_ref().take_file().is_some());
            slots.push(shared.slot);
        }
    }
    let release = |slot| wire::Credit {
        released: vec![slot],
        ..wire::Credit::default()
    };
    writer.write(&release(slots[0]).into(), &[]).unwrap();
    writer.write(&release(slots[0]).into(), &[]).unwrap();
    let (kind, message) = last_word(&mut reader);
    assert_eq!(kind, Kind::Protocol);
    assert!(
        message.contains("was released, but the client does not hold it"),
        "{message}"
    );
}

/// A server that violates the shared-memory protocol.
struct Lie {
    socket: Socket,
    writer: FrameWriter<Socket>,
    pool: BufferPool,
}

impl Lie {
    /// The first batch of the stream.
    fn batch(&self) -> wire::Batch {
        let samples: Vec<u64> = (0..8).collect();
        wire::Batch {
            shape: vec![8, 8, 8, 3],
            labels: vec![0; 8],
            digest: digest::batch(0, 0, 1, &samples, &[]),
            samples,
            flags: vec![0; 8].into(),
            ..wire::Batch::default()
        }
    }

    fn send(&mut self, shared: wire::SharedPayload, file: Option<OwnedFd>, payload: &[u8]) {
        if let Some(file) = file {
            self.socket.local().unwrap().attach(file);
        }
        let header = wire::Batch {
            shared: Some(shared),
            ..self.batch()
        };
        let _ = self.writer.write(&header.into(), payload);
    }

    /// A valid slot of 4,096 bytes.
    fn slot(&self) -> OwnedFd {
        let pool = BufferPool::with_slots(1, 4096, 0);
        pool.take(4096).take_slot_file().unwrap()
    }

    fn send_in_slot(&mut self, mut header: wire::Batch, payload: &[u8]) {
        let mut buffer = self.pool.take(payload.len());
        buffer.copy_from_slice(payload);
        header.shared = Some(announced(0, payload.len() as u64));
        self.socket
            .local()
            .unwrap()
            .attach(buffer.take_slot_file().unwrap());
        let _ = self.writer.write(&header.into(), &[]);
    }
}

fn announced(slot: u32, bytes: u64) -> wire::SharedPayload {
    wire::SharedPayload {
        slot,
        bytes,
        capacity: 4096,
        gone: vec![],
    }
}

/// The error of a client without retries when the server violates the protocol after opening the
/// stream.
fn told(act: impl FnOnce(&mut Lie) + Send + 'static) -> Error {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let local = LocalListener::bind().unwrap();
    let addr = tcp.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let welcome = |name: Option<&str>| wire::Welcome {
            version: 2,
            heartbeat_ms: 10_000,
            local: name.map(|name| wire::LocalSocket {
                name: name.to_owned(),
                key: vec![1].into(),
            }),
            ..Default::default()
        };
        let door = TcpSocket::new(tcp.accept().unwrap().0).unwrap();
        let mut reader = FrameReader::new(door.clone(), FrameLimits::from_client());
        reader.read().unwrap();
        let mut writer = FrameWriter::new(door);
        writer
            .write(&welcome(Some(local.name())).into(), &[])
            .unwrap();
        let began = Instant::now();
        let socket = loop {
            match local.accept() {
                Ok(socket) => break Socket::from(socket.unwrap()),
                Err(_) => assert!(began.elapsed() < LONG),
            }
        };
        let mut reader = FrameReader::new(socket.clone(), FrameLimits::from_client());
        let mut writer = FrameWriter::new(socket.clone());
        reader.read().unwrap();
        writer.write(&welcome(None).into(), &[]).unwrap();
        let (Message::Open(open), _) = reader.read().unwrap() else {
            panic!("no Open");
        };
        let opened = wire::Opened {
            spec: open.spec,
            records: 100,
            samples: 100,
            batches_per_epoch: 12,
            batch_bytes: BATCH_BYTES,
            ..Default::default()
        };
        writer.write(&opened.into(), &[]).unwrap();
        let pool = BufferPool::with_slots(100, 1 << 20, 0);
        act(&mut Lie {
            socket,
            writer,
            pool,
        });
        while reader.read().is_ok() {}
    });
    let options = ClientOptions {
        reconnect_for: Duration::ZERO,
        ..over(Transport::Shm)
    };
    let client = Client::connect(&url(addr), options).unwrap();
    let mut stream = client.open(spec()).unwrap();
    let e = loop {
        if let Err(e) = stream.next_batch() {
            break e;
        }
    };
    drop((stream, client));
    thread.join().unwrap();
    e
}

#[test]
fn false_announcements_of_slots_are_detected() {
    let _turn = alone();
    let lies = |act: fn(&mut Lie), what: &str| {
        let e = told(act);
        assert!(matches!(e, Error::Sequence { .. }), "{e}");
        assert!(e.to_string().contains(what), "{e}");
    };
    lies(
        |lie| {
            let known = wire::SharedPayload {
                capacity: 0,
                ..announced(5, BATCH_BYTES)
            };
            lie.send(known, None, &[]);
        },
        "announced and is free, found slot 5",
    );
    lies(
        |lie| lie.send(announced(0, BATCH_BYTES), None, &[]),
        "no file with slot 0",
    );
    lies(
        |lie| {
            let file = File::open("/dev/zero").unwrap();
            lie.send(announced(0, BATCH_BYTES), Some(file.into()), &[]);
        },
        "is no memory",
    );
    lies(
        |lie| {
            let file = lie.pool.take(8192).take_slot_file();
            lie.send(announced(0, BATCH_BYTES), file, &[]);
        },
        "has 8192 bytes where 4096 were announced",
    );
    lies(
        |lie| {
            let slot = lie.slot();
            let huge = wire::SharedPayload {
                capacity: 1 << 60,
                ..announced(0, BATCH_BYTES)
            };
            lie.send(huge, Some(slot), &[]);
        },
        "slots of at most",
    );
    lies(
        |lie| {
            let slot = lie.slot();
            lie.send(
                announced(0, BATCH_BYTES),
                Some(slot),
                &[0; BATCH_BYTES as usize],
            );
        },
        "found both",
    );
    // A size that contradicts the stream is rejected before anything is mapped.
    lies(
        |lie| lie.send(announced(0, 5000), None, &[]),
        "bytes of a batch",
    );
}

#[test]
fn a_slot_in_use_is_not_accepted_again() {
    let _turn = alone();
    let e = told(|lie| {
        let mut batch = lie.batch();
        lie.send_in_slot(batch.clone(), &[7; BATCH_BYTES as usize]);
        // The first batch is in the client's queue or with its caller.
        batch.position = 8;
        batch.step = 1;
        batch.samples = (8..16).collect();
        batch.digest = digest::batch(8, 0, 1, &batch.samples, &[]);
        batch.shared = Some(announced(0, BATCH_BYTES));
        let file = lie.slot();
        lie.socket.local().unwrap().attach(file);
        let _ = lie.writer.write(&batch.into(), &[]);
    });
    assert!(e.to_string().contains("each slot once"), "{e}");
}
