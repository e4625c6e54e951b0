//! Servers that violate the rules of shared memory.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::time::Instant;

use forebay_client::{BufferPool, ClientOptions, Error, Transport};
use forebay_wire::{LocalListener, Socket, wire};

use crate::support::{BATCH_BYTES, LONG, Peer, at_once, batch, open, serve, welcome};

struct Lie {
    peer: Peer,
    pool: BufferPool,
}

impl Lie {
    fn attach(&self, file: OwnedFd) {
        self.peer.socket.local().unwrap().attach(file);
    }

    fn send(&mut self, shared: wire::SharedPayload, file: Option<OwnedFd>, payload: &[u8]) {
        if let Some(file) = file {
            self.attach(file);
        }
        let header = wire::Batch {
            shared: Some(shared),
            ..batch(0)
        };
        let _ = self.peer.writer.write(&header.into(), payload);
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
        self.attach(buffer.take_slot_file().unwrap());
        self.peer.send(header);
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

/// Accepts a client over TCP and refers it to a local socket.
fn local(listener: &TcpListener) -> Peer {
    let local = LocalListener::bind().unwrap();
    let (mut door, _) = Peer::accept(listener);
    door.send(wire::Welcome {
        local: Some(wire::LocalSocket {
            name: local.name().to_owned(),
            key: vec![1].into(),
        }),
        ..welcome()
    });
    let began = Instant::now();
    let socket = loop {
        match local.accept() {
            Ok(socket) => break Socket::from(socket.unwrap()),
            Err(_) => assert!(began.elapsed() < LONG),
        }
    };
    let mut peer = Peer::new(socket);
    assert_eq!(peer.hello().local_key[..], [1]);
    peer.send(welcome());
    peer
}

/// The error of a client without retries when the server does this after the stream was opened.
fn told(act: impl FnOnce(&mut Lie) + Send + 'static) -> Error {
    let (url, script) = serve(|listener| {
        let mut peer = local(&listener);
        peer.open(96);
        let pool = BufferPool::with_slots(100, 1 << 20, 0);
        let mut lie = Lie { peer, pool };
        act(&mut lie);
        lie.peer.see_off();
    });
    let options = ClientOptions {
        transport: Transport::Shm,
        ..at_once()
    };
    let mut stream = open(&url, options);
    let e = loop {
        if let Err(e) = stream.next_batch() {
            break e;
        }
    };
    drop(stream);
    script.join().unwrap();
    e
}

#[test]
fn checksums_of_shared_memory_are_verified() {
    let e = told(|lie| {
        let header = wire::Batch {
            payload_crc32c: Some(1),
            ..batch(0)
        };
        lie.send_in_slot(header, &[7; BATCH_BYTES as usize]);
    });
    assert!(
        e.to_string().contains("checksum of the payload is wrong"),
        "{e}"
    );
}

#[test]
fn false_announcements_of_slots_are_detected() {
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
    let e = told(|lie| {
        lie.send_in_slot(batch(0), &[7; BATCH_BYTES as usize]);
        // The first batch is in the client's queue or with its caller.
        let second = wire::Batch {
            shared: Some(announced(0, BATCH_BYTES)),
            ..batch(8)
        };
        lie.attach(lie.slot());
        lie.peer.send(second);
    });
    assert!(e.to_string().contains("each slot once"), "{e}");
}
