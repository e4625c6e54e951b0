//! Streams: batches that break the rules, lost connections, the end of an epoch.

use std::io::Write;
use std::time::Duration;

use forebay_client::{ClientOptions, Error};
use forebay_wire::{Error as WireError, FrameWriter, wire};

use crate::support::{
    BATCH_BYTES, LONG, Peer, at_once, batch, open, payload, serve, told, welcome,
};

/// As [`at_once`], but reconnects, with credit for every batch of a test.
fn patient() -> ClientOptions {
    ClientOptions {
        reconnect_for: LONG,
        credit_bytes: Some(8 * BATCH_BYTES),
        ..at_once()
    }
}

#[test]
fn wrong_batches_of_a_server_are_detected() {
    let sends = |change: fn(&mut wire::Batch), what: &str| {
        let e = told(move |peer| {
            let mut header = batch(0);
            change(&mut header);
            let _ = peer.writer.write(&header.into(), &payload(0));
        });
        assert!(matches!(e, Error::Sequence { .. }), "{e}");
        assert!(e.to_string().contains(what), "{e}");
    };
    sends(|b| b.position = 8, "position: expected 0, found 8");
    sends(|b| b.epoch = 1, "epoch: expected 0, found 1");
    sends(|b| b.step = 1, "step: expected 0, found 1");
    sends(|b| b.samples[3] = 4, "digest");
    let e = told(|peer| peer.send(wire::EpochEnd::default()));
    assert!(e.to_string().contains("found the end of epoch 0"), "{e}");
}

#[test]
fn batches_of_a_wrong_length_are_refused() {
    for len in [0, BATCH_BYTES - 1, BATCH_BYTES + 1] {
        let e = told(move |peer| {
            let payload = vec![7; len as usize];
            let _ = peer.writer.write(&batch(0).into(), &payload);
        });
        let Error::Sequence { what, found, .. } = &e else {
            panic!("{e}");
        };
        assert_eq!(
            (*what, found.as_str()),
            ("bytes of a batch", &*len.to_string())
        );
    }
    // A length above the limit is refused before anything is allocated.
    let e = told(|peer| {
        let mut bytes = Vec::new();
        forebay_wire::frame::encode(&batch(0).into(), 1 << 40, &mut bytes).unwrap();
        peer.socket.write_all(&bytes).unwrap();
    });
    let Error::Protocol { source, .. } = &e else {
        panic!("{e}");
    };
    assert!(matches!(source, WireError::TooLarge { .. }), "{e}");
}

#[test]
fn corruption_in_transit_is_detected() {
    let of_payload = told(|peer| {
        let header = wire::Batch {
            payload_crc32c: Some(1),
            ..batch(0)
        };
        let _ = peer.writer.write(&header.into(), &payload(0));
    });
    let of_message = told(|peer| {
        let mut bytes = Vec::new();
        forebay_wire::frame::encode(&batch(0).into(), BATCH_BYTES, &mut bytes).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        peer.socket.write_all(&bytes).unwrap();
    });
    for e in [of_payload, of_message] {
        let Error::Protocol { source, .. } = &e else {
            panic!("{e}");
        };
        assert!(matches!(source, WireError::Checksum { .. }), "{e}");
        assert!(e.is_passing(), "it may be had again");
    }
}

#[test]
fn messages_that_do_not_belong_to_a_stream_end_it() {
    let e = told(|peer| peer.send(welcome()));
    let Error::Protocol { source, .. } = &e else {
        panic!("{e}");
    };
    assert!(matches!(source, WireError::Unexpected { .. }), "{e}");
}

#[test]
fn batches_beyond_the_credit_are_refused() {
    let (url, peer) = serve(|listener| {
        let (mut peer, _) = Peer::opened(&listener, 96);
        for position in [0, 8, 16] {
            peer.send_batch(position);
        }
        peer.see_off();
    });
    let mut stream = open(&url, at_once());
    // The client leaves before any batch is taken from the stream.
    peer.join().unwrap();
    for position in [0, 8] {
        assert_eq!(stream.next_batch().unwrap().unwrap().position, position);
    }
    let e = stream.next_batch().unwrap_err();
    assert!(matches!(e, Error::Sequence { what: "credit", .. }), "{e}");
    assert!(matches!(stream.next_batch(), Err(Error::Over)));
}

#[test]
fn a_silent_server_is_noticed() {
    let (url, peer) = serve(|listener| Peer::opened(&listener, 96).0.see_off());
    let options = ClientOptions {
        silence_timeout: Some(Duration::from_millis(50)),
        ..at_once()
    };
    let mut stream = open(&url, options);
    let e = stream.next_batch().unwrap_err();
    peer.join().unwrap();
    assert!(matches!(e, Error::Silent { .. }), "{e}");
    assert!(
        e.to_string()
            .contains("waiting for the batch at epoch 0, position 0"),
        "{e}"
    );
}

/// Sends the first bytes of a batch, and hangs up.
fn cut(peer: &mut Peer, position: u64, sent: usize) {
    let mut bytes = Vec::new();
    FrameWriter::new(&mut bytes)
        .write(&batch(position).into(), &payload(position))
        .unwrap();
    peer.socket.write_all(&bytes[..sent]).unwrap();
    peer.hang_up();
}

#[test]
fn a_server_that_dies_within_a_batch_is_lost() {
    let e = told(|peer| cut(peer, 0, 1000));
    assert!(matches!(e, Error::Lost { .. }), "{e}");
    assert!(
        e.to_string().contains("of 1536 bytes of its payload"),
        "{e}"
    );
}

#[test]
fn a_stream_lost_within_a_batch_continues_with_it() {
    // Within the head, the message and the payload.
    for sent in [5, 30, BATCH_BYTES as usize] {
        let (url, peer) = serve(move |listener| {
            let (mut first, open) = Peer::opened(&listener, 32);
            assert_eq!((open.epoch, open.position, open.epochs), (0, 0, 1));
            first.send_batch(0);
            cut(&mut first, 8, sent);
            let (mut second, open) = Peer::opened(&listener, 32);
            second.send_epoch(open.position, 32);
            (open, second.see_off())
        });
        let mut stream = open(&url, patient());
        for position in [0, 8, 16, 24] {
            let batch = stream.next_batch().unwrap().unwrap();
            assert_eq!(batch.position, position);
            assert_eq!(batch.payload[..], payload(position));
        }
        assert!(stream.next_batch().unwrap().is_none());
        let stats = stream.stats();
        assert_eq!((stats.batches, stats.reconnects), (4, 1));
        assert_eq!((stats.handovers, stats.retries), (0, 0));
        assert!(stream.epoch_digest().complete);
        let (again, said_close) = peer.join().unwrap();
        assert_eq!((again.epoch, again.position, again.epochs), (0, 8, 1));
        assert!(said_close);
    }
}

#[test]
fn a_corrupt_batch_is_requested_again() {
    let (url, peer) = serve(|listener| {
        let (mut first, _) = Peer::opened(&listener, 16);
        first.send_batch(0);
        let header = wire::Batch {
            payload_crc32c: Some(1),
            ..batch(8)
        };
        let _ = first.writer.write(&header.into(), &payload(8));
        let (mut second, open) = Peer::opened(&listener, 16);
        second.send_epoch(open.position, 16);
        second.see_off();
        open.position
    });
    let mut stream = open(&url, patient());
    for position in [0, 8] {
        let batch = stream.next_batch().unwrap().unwrap();
        assert_eq!(batch.payload[..], payload(position));
    }
    assert!(stream.next_batch().unwrap().is_none());
    assert_eq!(stream.stats().batches, 2, "the corrupt one does not count");
    assert_eq!(peer.join().unwrap(), 8);
}

#[test]
fn another_stream_is_not_mixed_in_after_a_loss() {
    let (url, peer) = serve(|listener| {
        let (mut first, _) = Peer::opened(&listener, 32);
        first.send_batch(0);
        first.hang_up();
        let (mut second, _) = Peer::opened(&listener, 40);
        second.send_batch(8);
        second.see_off();
    });
    let mut stream = open(&url, patient());
    assert!(stream.next_batch().unwrap().is_some());
    let e = stream.next_batch().unwrap_err();
    let what = "the opened stream";
    assert!(
        matches!(&e, Error::Sequence { what: found, .. } if *found == what),
        "{e}"
    );
    drop(stream);
    peer.join().unwrap();
}

#[test]
fn the_end_of_the_last_epoch_ends_the_stream() {
    let (url, peer) = serve(|listener| {
        let (mut peer, _) = Peer::opened(&listener, 16);
        peer.send_epoch(0, 16);
        peer.see_off()
    });
    let mut stream = open(&url, at_once());
    for position in [0, 8] {
        assert_eq!(stream.next_batch().unwrap().unwrap().position, position);
    }
    for _ in 0..2 {
        assert!(stream.next_batch().unwrap().is_none());
        assert_eq!(stream.position(), (1, 0));
    }
    assert!(peer.join().unwrap(), "the client said Close");
}

#[test]
fn an_epoch_that_does_not_add_up_is_an_error() {
    for (change, field) in [
        (
            (|end| end.batches = 1) as fn(&mut wire::EpochEnd),
            "batches of the epoch",
        ),
        (|end| end.digest ^= 1, "digest of the epoch"),
        (|end| end.epoch = 1, "epoch"),
    ] {
        let (url, peer) = serve(move |listener| {
            let (mut peer, _) = Peer::opened(&listener, 16);
            let digests = [0, 8].map(|position| peer.send_batch(position));
            let mut end = wire::EpochEnd {
                epoch: 0,
                batches: 2,
                digest: digests.into_iter().fold(0, forebay_batch::digest::fold),
            };
            change(&mut end);
            peer.send(end);
            peer.see_off();
        });
        let mut stream = open(&url, at_once());
        for _ in 0..2 {
            assert!(stream.next_batch().unwrap().is_some());
        }
        let e = stream.next_batch().unwrap_err();
        assert!(
            matches!(&e, Error::Sequence { what, .. } if *what == field),
            "{e}"
        );
        peer.join().unwrap();
    }
}
