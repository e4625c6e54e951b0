//! Tests of the queue: credit, interruption and migration.

use std::net::{TcpListener, TcpStream};
use std::thread;

use forebay_options::StreamInfo;
use forebay_wire::{
    BufferPool, Dtype, EncodedImages, FrameLimits, FrameReader, Layout, Message, TcpSocket,
};

use super::*;
use crate::connection::Connection;
use crate::sequence::Sequence;
use crate::url::Authority;

/// Longer than any wait that ends.
const LONG: Duration = Duration::from_secs(30);

/// A connected socket and its other end.
pub(super) fn sockets() -> (Socket, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (
        TcpSocket::new(near).unwrap().into(),
        listener.accept().unwrap().0,
    )
}

/// The stream of an epoch of `records` samples in batches of two.
pub(super) fn sequence(records: u64, batch_bytes: u64) -> Sequence {
    let options = serde_json::from_str(r#"{"batch_size": 2, "world_size": 1}"#).unwrap();
    let info = StreamInfo {
        records,
        samples: records,
        batch_bytes,
        ..StreamInfo::new(options)
    };
    Sequence::new(&info, 0, 0).unwrap()
}

fn queue(next: Place) -> Queue {
    Queue::new("server".to_owned(), next, Counters::default())
}

fn push(queue: &Queue, bytes: usize) {
    queue.push_batch(batch(bytes), &Received::default());
}

fn batch(bytes: usize) -> Batch {
    Batch {
        epoch: 0,
        step: 0,
        position: 0,
        payload: BufferPool::new(0).take(bytes),
        encoded: Some(Box::new(EncodedImages {
            offsets: vec![0, bytes as u64],
            widths: vec![1],
            heights: vec![1],
        })),
        dtype: Dtype::Uint8,
        mixed: None,
        columns: Vec::new(),
        shape: [1, 0, 0, 0],
        layout: Layout::Nhwc,
        labels: vec![0],
        samples: vec![0],
        flags: vec![0],
        digest: 0,
    }
}

/// Connects a new connection to the queue and returns the reader of its other end.
fn connect(queue: &Queue, budget: u64) -> FrameReader<TcpStream> {
    let (near, far) = sockets();
    let writer = FrameWriter::new(near);
    queue
        .connected("server", writer, Vec::new(), budget)
        .unwrap();
    FrameReader::new(far, FrameLimits::from_client())
}

fn credit(reader: &mut FrameReader<TcpStream>) -> u64 {
    match reader.read().unwrap() {
        (Message::Credit(credit), 0) => credit.bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn credit_has_the_waits_of_the_trainer() {
    let queue = queue((0, 0));
    let mut reader = connect(&queue, 100);
    let mut waited = || match reader.read().unwrap() {
        (Message::Credit(credit), 0) => credit.waited_us,
        other => panic!("{other:?}"),
    };
    assert_eq!(waited(), 0);
    queue.report_waits(Duration::from_millis(1500));
    push(&queue, 10);
    pop(&queue);
    assert_eq!(waited(), 1_500_000);
}

fn pop(queue: &Queue) {
    assert!(matches!(
        queue.pop(Duration::ZERO),
        Ok(Some(Item::Batch(_)))
    ));
}

#[test]
fn batches_of_any_size_overdraw_the_credit_once() {
    let queue = queue((0, 0));
    let mut far = connect(&queue, 100);
    assert_eq!(credit(&mut far), 100);
    assert!(!queue.expect(101, false, (0, 1)));
    assert!(queue.expect(60, true, (0, 1)));
    push(&queue, 60);
    assert!(queue.expect(250, true, (0, 1)));
    push(&queue, 250);
    assert!(!queue.expect(1, true, (0, 1)));
    assert!(!queue.expect(0, true, (0, 1)));
    pop(&queue);
    assert_eq!(credit(&mut far), 60);
    assert!(!queue.expect(1, true, (0, 1)), "150 are owed");
    pop(&queue);
    assert_eq!(credit(&mut far), 250);
    assert!(queue.expect(100, false, (0, 1)));
    assert!(!queue.expect(1, true, (0, 1)));
}

#[test]
fn a_stream_that_was_interrupted_holds_no_memory() {
    let pool = BufferPool::new(0);
    let with_memory = || Batch {
        payload: pool.take(1),
        ..batch(1)
    };
    let queue = queue((0, 0));
    queue.push_batch(with_memory(), &Received::default());
    assert!(pool.stats().used_bytes > 0);
    queue.interrupt();
    queue.push_batch(with_memory(), &Received::default());
    assert_eq!(pool.stats().used_bytes, 0);
    assert!(matches!(
        queue.pop(Duration::ZERO),
        Err(Some(Error::Interrupted))
    ));
}

#[test]
fn bytes_queued_beyond_the_budget_grant_no_credit() {
    let queue = queue((0, 0));
    let mut far = connect(&queue, 100);
    assert_eq!(credit(&mut far), 100);
    for bytes in [90, 250] {
        assert!(queue.expect(bytes, true, (0, 1)));
        push(&queue, bytes as usize);
    }
    // The 240 bytes owed by the old server do not affect the next one.
    let mut far = connect(&queue, 100);
    assert_eq!(credit(&mut far), 0);
    assert!(!queue.expect(1, true, (0, 1)));
    pop(&queue);
    assert!(!queue.expect(1, true, (0, 1)));
    pop(&queue);
    assert_eq!(credit(&mut far), 100);
    assert!(queue.expect(100, false, (0, 1)));
}

/// A connection to another server, as a search offers it.
pub(super) fn prepared() -> Connection {
    let (socket, _) = sockets();
    let authority = Authority {
        host: "127.0.0.1".to_owned(),
        port: 1,
    };
    Connection {
        server: "next".to_owned(),
        place: authority.into(),
        reader: FrameReader::new(socket.clone(), FrameLimits::from_server(100)),
        writer: FrameWriter::new(socket.clone()),
        socket,
        welcome: wire::Welcome::default(),
        silence: Duration::ZERO,
        more: Vec::new(),
    }
}

#[test]
fn offers_for_an_earlier_position_are_never_taken() {
    let sequence = sequence(8, 30);
    let queue = queue((0, 8));
    let mut far = connect(&queue, 100);
    assert_eq!(credit(&mut far), 100);
    let first = queue.connection();
    let end = (0, 8);
    assert!(queue.begin_migration().is_some());
    assert_eq!(queue.freeze(first, &sequence), Some(end));
    assert!(matches!(far.read().unwrap(), (Message::Ping(_), 0)));
    queue.offer(first, end, prepared());
    queue.migrated(first, false);
    assert!(queue.begin_migration().is_none(), "one is offered");
    // The end of the epoch arrives from the old server before the switch.
    assert!(queue.take_offer((1, 0), Duration::ZERO).is_none());
    assert!(queue.begin_migration().is_some());
    // An offer for a migration that was cancelled is ignored.
    queue.push_end(0, (1, 0));
    assert_eq!(queue.freeze(first, &sequence), Some((1, 6)));
    queue.offer(first, end, prepared());
    assert!(queue.take_offer((1, 6), Duration::ZERO).is_none());
    // An offer for the current position is taken.
    assert_eq!(queue.freeze(first, &sequence), Some((1, 6)));
    queue.offer(first, (1, 6), prepared());
    assert!(queue.take_offer((1, 4), Duration::ZERO).is_none());
    assert!(queue.take_offer((1, 6), Duration::ZERO).is_some());
}

#[test]
fn credit_freed_during_a_migration_goes_to_the_next_server() {
    let sequence = sequence(9, 30);
    let queue = queue((0, 0));
    let mut far = connect(&queue, 100);
    assert_eq!(credit(&mut far), 100);
    assert!(queue.expect(30, false, (0, 2)));
    push(&queue, 30);
    // 70 bytes allow two more batches.
    let first = queue.connection();
    assert_eq!(queue.freeze(first, &sequence), Some((0, 6)));
    assert!(matches!(far.read().unwrap(), (Message::Ping(_), 0)));
    assert!(queue.take_offer((0, 2), Duration::ZERO).is_none());
    pop(&queue);
    // No other server was found: the credit returns.
    queue.thaw(first);
    assert_eq!(credit(&mut far), 30);
    assert_eq!(queue.freeze(first, &sequence), Some((0, 8)));
    // The epoch ends before the credit is used up.
    assert!(queue.expect(30, false, (0, 8)));
    push(&queue, 30);
    queue.thaw(first);
    assert_eq!(queue.freeze(first, &sequence), Some((0, 8)));
    pop(&queue);
    let mut next = connect(&queue, 100);
    assert_eq!(credit(&mut next), 100);
    assert_eq!(queue.freeze(first, &sequence), None, "it is gone");
    queue.thaw(first);
    assert!(queue.expect(100, false, (1, 0)));
}

#[test]
fn waits_end_when_there_is_nothing_to_wait_for() {
    let began = Instant::now();
    let finished = queue((0, 0));
    finished.close(Ok(()));
    assert_eq!(finished.ask_stats(LONG), None);
    assert!(matches!(finished.pop(LONG), Ok(None)));
    let failed = queue((0, 0));
    failed.close(Err(Error::Over));
    assert_eq!(failed.ask_stats(LONG), None);
    assert!(matches!(failed.pop(LONG), Err(Some(Error::Over))));
    let interrupted = queue((0, 0));
    assert!(!interrupted.pause(Duration::ZERO));
    interrupted.interrupt();
    assert!(interrupted.pause(LONG));
    assert!(interrupted.take_offer((0, 0), LONG).is_none());
    assert!(began.elapsed() < LONG);
}

#[test]
fn an_interrupted_stream_accepts_no_connection() {
    let queue = queue((0, 0));
    let (socket, _peer) = sockets();
    queue.adopt(&socket).unwrap();
    queue.interrupt();
    for adopted in [queue.adopt(&socket), queue.adopt_spare(&socket)] {
        assert!(matches!(adopted, Err(Error::Interrupted)));
    }
    assert!(queue.begin_migration().is_none());
    assert_eq!(queue.freeze(queue.connection(), &sequence(8, 30)), None);
}

#[test]
fn an_interruption_takes_effect_before_the_server_is_told() {
    let queue = queue((0, 0));
    let mut far = connect(&queue, 100);
    assert_eq!(credit(&mut far), 100);
    thread::scope(|scope| {
        let sending = lock(&queue.writer);
        scope.spawn(|| queue.interrupt());
        assert!(queue.pause(LONG));
        drop(sending);
    });
    assert!(matches!(far.read().unwrap(), (Message::Close(_), 0)));
}

#[test]
fn a_wait_in_vain_tells_whether_the_server_is_lost() {
    let queue = queue((0, 0));
    let waited = || queue.waited("a batch".to_owned(), Instant::now());
    assert!(matches!(
        waited(),
        Error::Waited {
            last_sign: None,
            ..
        }
    ));
    let _far = connect(&queue, 100);
    assert!(matches!(
        waited(),
        Error::Waited {
            last_sign: Some(_),
            ..
        }
    ));
    queue.disconnected();
    queue.lost(Instant::now(), &Error::Over);
    assert!(matches!(waited(), Error::Away { .. }));
    assert!(queue.dialling(|| queue.is_dialling() && queue.away().is_some()));
    assert!(!queue.is_dialling());
    let _far = connect(&queue, 100);
    assert!(matches!(waited(), Error::Waited { .. }));
}

#[test]
fn the_end_of_the_search_without_a_server_is_of_its_connection() {
    let queue = queue((0, 0));
    let _first = connect(&queue, 100);
    let (first, server) = queue.begin_migration().unwrap();
    assert_eq!(server, "server");
    let mut second = connect(&queue, 100);
    assert_eq!(credit(&mut second), 100);
    queue.migrated(first, true);
    assert!(!queue.is_nowhere(), "the connection was replaced meanwhile");
    let (current, _) = queue.begin_migration().unwrap();
    queue.migrated(current, true);
    assert!(queue.is_nowhere());
    // Its answer wakes the receiving thread.
    assert!(matches!(second.read().unwrap(), (Message::Ping(_), 0)));
}
