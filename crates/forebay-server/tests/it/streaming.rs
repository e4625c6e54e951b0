//! A client and a server over loopback: each batch arrives once, in order, unchanged.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_client::{Client, ClientOptions, Error, Polled, RemoteKind, StreamOptions, Transport};
use forebay_server::{Failure, Pixels, Synthetic};
use forebay_wire::{Layout, wire};
use support::{
    BATCH_BYTES, Gate, LONG, Log, Wrapped, connect, epochs, options, over, plain, spec, start, url,
};

crate::over_each_transport! {
    two_epochs_arrive_in_order_with_their_pixels,
    ranks_of_any_world_get_the_epoch_together,
    a_stream_goes_on_from_any_position,
    payload_checksums_can_be_asked_for,
    buffers_are_used_again,
    kept_batches_stay_valid_after_the_stream_and_never_lock_it,
    errors_of_the_source_arrive_with_their_kind_and_place,
    a_source_that_panics_ends_its_stream_and_nothing_else,
    what_cannot_be_served_is_refused_with_a_reason,
    limits_of_the_client_are_kept,
    stats_come_while_a_stream_waits,
    a_deadline_says_who_waits_for_whom_and_is_not_the_end,
    an_interruption_ends_a_wait_at_once,
    a_stream_that_ends_in_mid_epoch_is_no_lost_client,
}

fn a_stream_that_ends_in_mid_epoch_is_no_lost_client(transport: Transport) {
    let (server, log) = plain();
    for turn in 0..40 {
        let client = connect(server.addr(), transport);
        let mut stream = client.open(epochs(100)).unwrap();
        stream.next_batch().unwrap().unwrap();
        // Either another thread interrupts the stream first, as Python's loaders do, or it is dropped.
        if turn % 2 == 0 {
            stream.interrupter().interrupt();
        }
    }
    server.shutdown();
    let is_lost =
        |line: &String| line.contains("without a Close") || line.contains("lost the connection");
    let lost: Vec<String> = log.all().into_iter().filter(is_lost).collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

fn two_epochs_arrive_in_order_with_their_pixels(transport: Transport) {
    let (server, log) = plain();
    let client = connect(server.addr(), transport);
    assert_eq!(client.fingerprint(), "synthetic-100");
    assert_eq!(client.splits()[0].records, 100);
    let mut stream = client.open(epochs(2)).unwrap();
    assert_eq!(stream.batches_per_epoch(), 12);
    for epoch in 0..2 {
        for step in 0..12 {
            let batch = stream.next_batch().unwrap().unwrap();
            assert_eq!(
                (batch.epoch, batch.step, batch.position),
                (epoch, step, step * 8)
            );
            assert_eq!(batch.shape, [8, 8, 8, 3]);
            for (i, &sample) in batch.samples.iter().enumerate() {
                assert_eq!(sample, step * 8 + i as u64);
                assert_eq!(batch.labels[i], Synthetic::label(sample));
                for (j, &byte) in batch.image(i).unwrap().iter().enumerate() {
                    assert_eq!(byte, Synthetic::pixel(sample, j));
                }
            }
            assert_eq!(stream.position(), (epoch, (step + 1) * 8));
        }
        assert!(stream.next_batch().unwrap().is_none());
        assert_eq!(stream.position(), (epoch + 1, 0));
    }
    assert!(
        stream.next_batch().unwrap().is_none(),
        "and stays at the end"
    );
    drop(stream);
    log.wait_for("is done; 24 batches");
    let stats = server.shutdown();
    assert_eq!((stats.batches, stats.images, stats.streams), (24, 192, 1));
    assert_eq!(stats.payload_bytes, 24 * BATCH_BYTES);
    assert_eq!((stats.failed, stats.connections), (0, 0));
}

fn ranks_of_any_world_get_the_epoch_together(transport: Transport) {
    let (server, _) = plain();
    for world_size in [1, 2, 3, 4, 5] {
        let mut seen = Vec::new();
        for rank in 0..world_size {
            let mut open = epochs(1);
            open.options.batch_size = Some(8 / world_size);
            open.options.rank = Some(rank);
            open.options.world_size = Some(world_size);
            open.options.drop_last = Some(false);
            open.options.layout = Some(Layout::Nchw);
            let mut stream = connect(server.addr(), transport).open(open).unwrap();
            assert_eq!(stream.layout(), Layout::Nchw);
            while let Some(batch) = stream.next_batch().unwrap() {
                assert_eq!(batch.shape[1], 3);
                for (i, &sample) in batch.samples.iter().enumerate() {
                    if batch.flags[i] == 0 {
                        seen.push((batch.position + rank + i as u64 * world_size, sample));
                    }
                }
            }
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq((0..100).map(|i| (i, i))));
    }
}

fn a_stream_goes_on_from_any_position(transport: Transport) {
    let (server, _) = plain();
    let client = connect(server.addr(), transport);
    let mut stream = client
        .open(StreamOptions {
            epoch: 5,
            position: 83,
            ..epochs(2)
        })
        .unwrap();
    let first = stream.next_batch().unwrap().unwrap();
    assert_eq!((first.epoch, first.position), (5, 83));
    assert_eq!(first.samples, (83..91).collect::<Vec<_>>());
    assert_eq!(stream.next_batch().unwrap().unwrap().position, 91);
    assert!(stream.next_batch().unwrap().is_none());
    assert_eq!(stream.next_batch().unwrap().unwrap().epoch, 6);
    stream.seek(5, 40).unwrap();
    assert_eq!(stream.position(), (5, 40));
    assert_eq!(stream.next_batch().unwrap().unwrap().samples[0], 40);
    // At the very end only the end of the epoch follows.
    stream.seek(6, 96).unwrap();
    assert!(stream.next_batch().unwrap().is_none());
    assert!(stream.next_batch().unwrap().is_none());
    assert!(matches!(
        stream.seek(7, 0),
        Err(Error::Option { name: "epoch", .. })
    ));
}

fn payload_checksums_can_be_asked_for(transport: Transport) {
    let (server, _) = plain();
    let options = ClientOptions {
        payload_checksum: Some(true),
        ..over(transport)
    };
    let client = Client::connect(&url(server.addr()), options).unwrap();
    let mut stream = client.open(epochs(1)).unwrap();
    let mut batches = 0;
    while stream.next_batch().unwrap().is_some() {
        batches += 1;
    }
    assert_eq!(batches, 12);
}

fn buffers_are_used_again(transport: Transport) {
    let (server, _) = plain();
    let mut stream = connect(server.addr(), transport).open(epochs(4)).unwrap();
    for _ in 0..4 {
        while stream.next_batch().unwrap().is_some() {}
    }
    let pool = stream.pool().stats();
    match transport {
        Transport::Tcp => assert_eq!(pool.taken, 48),
        // In shared memory, batches stay where they were made.
        _ => assert_eq!((pool.taken, stream.stats().shared), (0, 48)),
    }
    assert!(pool.mapped <= 4, "{pool:?}");
    assert_eq!(pool.used_bytes, 0);
}

fn kept_batches_stay_valid_after_the_stream_and_never_lock_it(transport: Transport) {
    let (server, _) = plain();
    let mut stream = connect(server.addr(), transport).open(epochs(1)).unwrap();
    let mut kept = Vec::new();
    while let Some(batch) = stream.next_batch().unwrap() {
        kept.push(batch);
    }
    drop(stream);
    server.shutdown();
    assert_eq!(kept.len(), 12);
    for batch in kept {
        assert_eq!(batch.payload[0], Synthetic::pixel(batch.samples[0], 0));
    }
}

fn errors_of_the_source_arrive_with_their_kind_and_place(transport: Transport) {
    let log = Log::default();
    let source = Wrapped {
        inner: Synthetic::new(100, Pixels::Pattern),
        before: Arc::new(|made| match made {
            3 => Err(Failure::new(
                wire::error::Kind::Data,
                "train-00001-of-00004, record 17, offset 4096: checksum: expected 01, found 02",
            )),
            _ => Ok(()),
        }),
        gate: Gate::default(),
    };
    let server = start(options(&log), source);
    let mut stream = connect(server.addr(), transport).open(epochs(1)).unwrap();
    for _ in 0..3 {
        assert!(stream.next_batch().unwrap().is_some());
    }
    let e = stream.next_batch().unwrap_err();
    let Error::Remote {
        kind: RemoteKind::Data,
        ref message,
        ..
    } = e
    else {
        panic!("{e}");
    };
    assert!(message.contains("train-00001-of-00004, record 17, offset 4096"));
    assert!(e.to_string().starts_with(&server.addr().to_string()), "{e}");
    assert!(matches!(stream.next_batch(), Err(Error::Over)));
    log.wait_for("got an error: train-00001-of-00004");
}

fn a_source_that_panics_ends_its_stream_and_nothing_else(transport: Transport) {
    let log = Log::default();
    let source = Wrapped {
        inner: Synthetic::new(100, Pixels::Pattern),
        before: Arc::new(|made| {
            assert_ne!(made, 1, "on purpose");
            Ok(())
        }),
        gate: Gate::default(),
    };
    let server = start(options(&log), source);
    for _ in 0..2 {
        let mut stream = connect(server.addr(), transport).open(epochs(1)).unwrap();
        assert!(stream.next_batch().unwrap().is_some());
        let e = stream.next_batch().unwrap_err();
        assert!(
            matches!(
                e,
                Error::Remote {
                    kind: RemoteKind::Internal,
                    ..
                }
            ),
            "{e}"
        );
    }
    assert_eq!(server.shutdown().failed, 2);
}

fn what_cannot_be_served_is_refused_with_a_reason(transport: Transport) {
    let (server, _) = plain();
    let refused = |change: fn(&mut StreamOptions)| {
        let mut open = epochs(1);
        change(&mut open);
        match connect(server.addr(), transport).open(open) {
            Err(Error::Remote { kind, message, .. }) => (kind, message),
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("was opened"),
        }
    };
    assert_eq!(
        refused(|o| o.options.split = Some("test".to_owned())).0,
        RemoteKind::NotFound
    );
    assert_eq!(
        refused(|o| o.options.batch_size = Some(101)).0,
        RemoteKind::Invalid
    );
    assert_eq!(
        refused(|o| o.options.batch_size = Some(u64::MAX)).0,
        RemoteKind::Invalid
    );
    assert_eq!(refused(|o| o.options.rank = Some(1)).0, RemoteKind::Invalid);
    let (kind, message) = refused(|o| o.fingerprint = Some("another".to_owned()));
    assert_eq!(kind, RemoteKind::Mismatch);
    assert!(
        message.contains("expected fingerprint another, found synthetic-100"),
        "{message}"
    );
    let unknown = format!("forebay://{}/nothing", server.addr());
    let Err(e) = Client::connect(&unknown, over(transport)) else {
        panic!("was welcomed");
    };
    let Error::Remote {
        kind: RemoteKind::NotFound,
        message,
        ..
    } = &e
    else {
        panic!("{e}");
    };
    assert!(
        message.contains("\"nothing\"") && message.contains("there is set"),
        "{message}"
    );
}

fn limits_of_the_client_are_kept(transport: Transport) {
    let (server, _) = plain();
    for (options, name) in [
        (
            ClientOptions {
                credit_bytes: Some(BATCH_BYTES - 1),
                ..over(transport)
            },
            "credit_bytes",
        ),
        (
            ClientOptions {
                max_batch_bytes: BATCH_BYTES - 1,
                ..over(transport)
            },
            "max_batch_bytes",
        ),
    ] {
        let client = Client::connect(&url(server.addr()), options).unwrap();
        match client.open(spec()) {
            Err(Error::Option { name: found, .. }) => assert_eq!(found, name),
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("was opened"),
        }
    }
    // Credit for exactly one batch suffices for all batches.
    let options = ClientOptions {
        credit_bytes: Some(BATCH_BYTES),
        ..over(transport)
    };
    let client = Client::connect(&url(server.addr()), options).unwrap();
    let mut stream = client.open(epochs(1)).unwrap();
    let mut batches = 0;
    while stream.next_batch().unwrap().is_some() {
        batches += 1;
    }
    assert_eq!(batches, 12);
}

#[test]
fn a_client_gets_no_more_than_its_credit() {
    let made = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&made);
    let log = Log::default();
    let source = Wrapped {
        inner: Synthetic::new(100, Pixels::Pattern),
        before: Arc::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }),
        gate: Gate::default(),
    };
    let server = start(options(&log), source);
    let mut raw = support::Raw::opened(server.addr(), 2 * BATCH_BYTES + BATCH_BYTES / 2);
    for _ in 0..2 {
        assert!(matches!(raw.read(), forebay_wire::Message::Batch(_)));
    }
    // The next message after a ping is its answer, not another batch.
    raw.send(wire::Ping {
        token: 7,
        ..wire::Ping::default()
    });
    assert!(matches!(raw.read(), forebay_wire::Message::Ping(p) if p.token == 7 && p.answer));
    assert_eq!(made.load(Ordering::SeqCst), 2, "not even made");
    raw.send(wire::Credit {
        bytes: BATCH_BYTES / 2,
        ..Default::default()
    });
    assert!(matches!(raw.read(), forebay_wire::Message::Batch(_)));
    assert_eq!(made.load(Ordering::SeqCst), 3);
}

#[test]
fn the_waits_of_a_trainer_are_those_that_it_reports() {
    let server = start(
        options(&Log::default()),
        Synthetic::new(100, Pixels::Pattern),
    );
    let mut raw = support::Raw::opened(server.addr(), 0);
    // The first report has the waits for earlier servers.
    for (waited_us, expected) in [(9_000_000, 0.0), (9_500_000, 0.5), (9_250_000, 0.5)] {
        raw.send(wire::Credit {
            bytes: 1,
            waited_us,
            ..Default::default()
        });
        raw.send(wire::Ping::default());
        assert!(matches!(raw.read(), forebay_wire::Message::Ping(_)));
        let waited = server.status().snapshot().streams[0].starved_s;
        assert!((waited - expected).abs() < 1e-9, "{waited}");
    }
}

fn stats_come_while_a_stream_waits(transport: Transport) {
    let log = Log::default();
    let gate = Gate::closed();
    let source = Wrapped {
        inner: Synthetic::new(100, Pixels::Pattern),
        before: Arc::new(|_| Ok(())),
        gate: gate.clone(),
    };
    let server = start(options(&log), source);
    let mut stream = connect(server.addr(), transport).open(epochs(1)).unwrap();
    let stats = stream.server_stats(LONG).unwrap();
    assert_eq!((stats.batches, stats.bytes_read), (0, 42));
    assert_eq!(stats.stages.last().unwrap().name, "send");
    assert!(matches!(
        stream.poll_batch(Duration::from_millis(1)),
        Ok(Polled::Pending)
    ));
    gate.open();
    while stream.next_batch().unwrap().is_some() {}
    let stats = stream.stats();
    assert_eq!(
        (stats.batches, stats.payload_bytes, stats.reconnects),
        (12, 12 * BATCH_BYTES, 0)
    );
}

fn a_deadline_says_who_waits_for_whom_and_is_not_the_end(transport: Transport) {
    let log = Log::default();
    let gate = Gate::closed();
    let source = Wrapped {
        inner: Synthetic::new(100, Pixels::Pattern),
        before: Arc::new(|_| Ok(())),
        gate: gate.clone(),
    };
    let server = start(options(&log), source);
    let options = ClientOptions {
        batch_timeout: Duration::from_millis(20),
        ..over(transport)
    };
    let client = Client::connect(&url(server.addr()), options).unwrap();
    let mut stream = client.open(epochs(1)).unwrap();
    let e = stream.next_batch().unwrap_err();
    assert!(matches!(e, Error::Waited { .. }));
    let text = e.to_string();
    assert!(
        text.contains("for the batch at epoch 0, position 0"),
        "{text}"
    );
    assert!(
        text.contains(&server.addr().to_string()) && text.contains("is alive"),
        "{text}"
    );
    gate.open();
    loop {
        match stream.next_batch() {
            Ok(Some(batch)) => break assert_eq!(batch.position, 0),
            Ok(None) => panic!("no batch"),
            Err(e) => assert!(matches!(e, Error::Waited { .. }), "{e}"),
        }
    }
}

fn an_interruption_ends_a_wait_at_once(transport: Transport) {
    let log = Log::default();
    let source = Wrapped {
        inner: Synthetic::new(100, Pixels::Pattern),
        before: Arc::new(|_| Ok(())),
        gate: Gate::closed(),
    };
    let server = start(options(&log), source);
    let mut stream = connect(server.addr(), transport).open(epochs(1)).unwrap();
    let interrupter = stream.interrupter();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let e = stream.next_batch().unwrap_err();
            assert!(matches!(e, Error::Interrupted), "{e}");
            let e = stream.next_batch().unwrap_err();
            assert!(matches!(e, Error::Interrupted), "{e}");
        });
        interrupter.interrupt();
        waiting.join().unwrap();
    });
    log.wait_for("connection 1: 127.0.0.1");
    drop(server);
}
