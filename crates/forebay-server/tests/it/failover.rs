//! Failing servers and connections: each batch arrives once, in order, or the client gets an error.

use crate::support;

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_client::{
    Client, ClientOptions, Error, Notice, RemoteKind, Stream, StreamOptions, Transport,
};
use forebay_server::{Pixels, ServerOptions, Synthetic};
use forebay_wire::wire::{self, error::Kind};
use support::{BATCH_BYTES, LONG, Log, epochs, given, options, over, plain, start, url};

crate::over_each_transport! {
    another_server_goes_on_with_the_next_batch,
    a_server_that_comes_back_is_used_again,
    when_all_are_gone_an_error_says_so_at_the_deadline,
    a_server_that_is_away_is_named_and_waited_for,
    another_dataset_is_not_mixed_in,
    interrupting_a_client_that_connects_again_is_quick,
    a_client_that_was_idle_between_greeting_and_opening_is_served,
}

/// Reads a whole epoch of 100 samples and checks each batch.
fn epoch(stream: &mut Stream, epoch: u64) {
    for step in 0..12 {
        let batch = stream.next_batch().unwrap().unwrap();
        assert_eq!((batch.epoch, batch.step), (epoch, step));
        for (i, &sample) in batch.samples.iter().enumerate() {
            assert_eq!(sample, step * 8 + i as u64);
            let image = batch.image(i).unwrap();
            assert!(
                image
                    .iter()
                    .enumerate()
                    .all(|(j, &b)| b == Synthetic::pixel(sample, j))
            );
        }
    }
    assert!(stream.next_batch().unwrap().is_none());
}

/// A proxy that cuts each connection after a number of bytes from the server; the number grows with
/// each connection.
struct Cutter {
    addr: SocketAddr,
    done: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Cutter {
    fn start(server: SocketAddr, cut_after: impl Fn(u64) -> u64 + Send + 'static) -> Cutter {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (done, cuts) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stop, count) = (Arc::clone(&done), Arc::clone(&cuts));
        let thread = thread::spawn(move || {
            for client in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let client = Arc::new(client.unwrap());
                let server = Arc::new(TcpStream::connect(server).unwrap());
                let bytes = cut_after(count.fetch_add(1, Ordering::SeqCst));
                let (up, down) = ((client.clone(), server.clone()), (server, client));
                thread::spawn(move || pass(&up.0, &up.1, u64::MAX));
                thread::spawn(move || pass(&down.0, &down.1, bytes));
            }
        });
        Cutter {
            addr,
            done,
            cuts,
            thread: Some(thread),
        }
    }
}

/// Forwards `bytes` bytes, then closes both connections.
fn pass(from: &TcpStream, to: &TcpStream, bytes: u64) {
    let (mut reader, mut writer) = (from.take(bytes), to);
    let _ = std::io::copy(&mut reader, &mut writer);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Batches of 8 images of 224 x 224: 1.2 MB, which are sent in slices.
fn large(n: u64) -> StreamOptions {
    let mut open = epochs(n);
    open.options = given(r#"{"transform": "train"}"#).or(&open.options);
    open
}

fn parallel(connections: usize) -> ClientOptions {
    ClientOptions {
        connections,
        payload_checksum: Some(true),
        ..over(Transport::Tcp)
    }
}

#[test]
fn batches_come_in_parts_over_several_connections() {
    let (server, log) = plain();
    for connections in [1, 2, 5] {
        let client = Client::connect(&url(server.addr()), parallel(connections)).unwrap();
        let mut stream = client.open(large(2)).unwrap();
        epoch(&mut stream, 0);
        assert_eq!(server.stats().connections, connections as u64);
        epoch(&mut stream, 1);
        // From another position, over as many new connections.
        stream.seek(0, 88).unwrap();
        assert_eq!(stream.next_batch().unwrap().unwrap().position, 88);
        assert!(stream.next_batch().unwrap().is_none());
        epoch(&mut stream, 1);
        assert_eq!(stream.stats().reconnects, 0);
        // A batch that was handed out stays valid, and dropping the stream does not wait for
        // outstanding slices.
        drop(stream);
        let began = Instant::now();
        while server.stats().connections > 0 {
            assert!(began.elapsed() < LONG, "{:#?}", log.all());
        }
    }
    assert_eq!(server.shutdown().failed, 0, "{:#?}", log.all());
    let Err(e) = Client::connect("forebay://127.0.0.1:1/x", parallel(17)) else {
        panic!("17 are too many");
    };
    assert!(
        e.to_string().contains("connections: expected 1 to 16"),
        "{e}"
    );
}

#[test]
fn cuts_of_parallel_connections_lose_no_batch() {
    let (server, _) = plain();
    let cutter = Cutter::start(server.addr(), |n| 200_000 + 150_000 * n);
    let client = Client::connect(&url(cutter.addr), parallel(3)).unwrap();
    let mut stream = client.open(large(2)).unwrap();
    epoch(&mut stream, 0);
    epoch(&mut stream, 1);
    assert!(stream.stats().reconnects >= 2, "{:?}", stream.stats());
}

#[test]
fn joining_an_unknown_stream_is_refused() {
    let (server, _) = plain();
    let mut raw = support::Raw::connect(server.addr());
    raw.send(wire::Hello {
        join: vec![1; 16].into(),
        ..support::hello()
    });
    let (kind, message) = raw.last_word();
    assert_eq!(kind, Kind::Invalid);
    assert!(message.contains("no stream to join"), "{message}");
}

#[test]
fn cuts_of_a_connection_lose_no_batch() {
    let (server, _) = plain();
    // The first cut is within the first batch, each later one at another byte.
    let cutter = Cutter::start(server.addr(), |n| BATCH_BYTES / 2 + 797 * n);
    let mut stream = Client::connect(&url(cutter.addr), over(Transport::Tcp))
        .unwrap()
        .open(epochs(3))
        .unwrap();
    for n in 0..3 {
        epoch(&mut stream, n);
    }
    let reconnects = stream.stats().reconnects;
    assert!(reconnects >= 3, "{reconnects}");
    assert_eq!(cutter.cuts.load(Ordering::SeqCst), reconnects + 1);
    drop(stream);
}

fn another_server_goes_on_with_the_next_batch(transport: Transport) {
    let (a, _) = plain();
    let (b, _) = plain();
    let both = format!("forebay://{},{}/set", a.addr(), b.addr());
    let client = Client::connect(&both, over(transport)).unwrap();
    let mut stream = client.open(epochs(2)).unwrap();
    let (first, second) = match stream.server() == a.addr().to_string() {
        true => (a, b),
        false => (b, a),
    };
    epoch(&mut stream, 0);
    let batch = stream.next_batch().unwrap().unwrap();
    assert_eq!((batch.epoch, batch.position), (1, 0));
    first.shutdown();
    for step in 1..12 {
        let batch = stream.next_batch().unwrap().unwrap();
        assert_eq!((batch.epoch, batch.step), (1, step));
    }
    assert!(stream.next_batch().unwrap().is_none());
    let stats = stream.stats();
    assert_eq!(stats.reconnects + stats.handovers, 1, "{stats:?}");
    assert_eq!(stream.server(), second.addr().to_string());
}

fn a_server_that_comes_back_is_used_again(transport: Transport) {
    let (server, log) = plain();
    let addr = server.addr();
    let mut stream = Client::connect(&url(addr), over(transport))
        .unwrap()
        .open(epochs(2))
        .unwrap();
    assert!(stream.next_batch().unwrap().is_some());
    server.shutdown();
    let again = ServerOptions {
        listen: addr,
        ..options(&log)
    };
    let _server = start(again, Synthetic::new(100, Pixels::Pattern));
    for step in 1..12 {
        assert_eq!(stream.next_batch().unwrap().unwrap().step, step);
    }
    assert!(stream.next_batch().unwrap().is_none());
    epoch(&mut stream, 1);
}

fn when_all_are_gone_an_error_says_so_at_the_deadline(transport: Transport) {
    let (server, _) = plain();
    let options = ClientOptions {
        reconnect_for: Duration::from_millis(100),
        credit_bytes: Some(BATCH_BYTES),
        ..over(transport)
    };
    let client = Client::connect(&url(server.addr()), options).unwrap();
    let mut stream = client.open(epochs(0)).unwrap();
    assert!(stream.next_batch().unwrap().is_some());
    server.shutdown();
    let e = loop {
        match stream.next_batch() {
            // Batches that had arrived are handed out first.
            Ok(batch) => assert!(batch.is_some()),
            Err(e) => break e,
        }
    };
    assert!(matches!(e, Error::GaveUp { attempts: 1.., .. }), "{e}");
    assert!(
        e.to_string().contains("is `forebay serve` running there?"),
        "{e}"
    );
    assert!(matches!(stream.next_batch(), Err(Error::Over)));
}

fn a_server_that_is_away_is_named_and_waited_for(transport: Transport) {
    let (server, log) = plain();
    let addr = server.addr();
    let impatient = ClientOptions {
        batch_timeout: Duration::from_millis(50),
        reconnect_for: LONG,
        credit_bytes: Some(BATCH_BYTES),
        ..over(transport)
    };
    let client = Client::connect(&url(addr), impatient).unwrap();
    let mut stream = client.open(epochs(1)).unwrap();
    let began = Instant::now();
    let mut taken = 0;
    server.shutdown();
    let mut next = |stream: &mut Stream| match stream.next_batch() {
        Ok(batch) => {
            taken += u64::from(batch.is_some());
            Ok(batch.is_some())
        }
        // On a slow machine, the timeout may pass before the client loses the server.
        Err(Error::Waited { .. }) => Ok(true),
        Err(e) => Err(e),
    };
    let e = loop {
        assert!(began.elapsed() < LONG);
        match next(&mut stream) {
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    assert!(
        matches!(&e, Error::Away { server, .. } if *server == addr.to_string()),
        "{e}"
    );
    let text = e.to_string();
    assert!(
        text.contains("for a server to continue the stream: "),
        "{text}"
    );
    let again = ServerOptions {
        listen: addr,
        ..options(&log)
    };
    let _server = start(again, Synthetic::new(100, Pixels::Pattern));
    loop {
        assert!(began.elapsed() < LONG);
        match next(&mut stream) {
            Ok(true) | Err(Error::Away { .. }) => {}
            Ok(false) => break,
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(taken, 12);
}

#[test]
fn a_server_that_starts_later_is_waited_for() {
    // A port that nothing listens on until the client reports a retry.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    let (say, said) = std::sync::mpsc::channel();
    let say = std::sync::Mutex::new(say);
    let options_of_client = ClientOptions {
        notice: Notice::new(move |line| drop(say.lock().unwrap().send(line.to_owned()))),
        server_timeout: LONG,
        ..over(Transport::Tcp)
    };
    thread::scope(|scope| {
        let client = scope.spawn(|| Client::connect(&url(addr), options_of_client));
        let line = said.recv_timeout(LONG).unwrap();
        assert!(
            line.contains(&format!("cannot connect to {addr}: ")),
            "{line}"
        );
        assert!(line.ends_with("; trying again"), "{line}");
        let log = Log::default();
        let here = ServerOptions {
            listen: addr,
            ..options(&log)
        };
        let _server = start(here, Synthetic::new(100, Pixels::Pattern));
        let mut stream = client.join().unwrap().unwrap().open(epochs(1)).unwrap();
        epoch(&mut stream, 0);
    });
    // The client reports retries once, however many there are.
    assert!(said.try_recv().is_err());
}

fn another_dataset_is_not_mixed_in(transport: Transport) {
    let (a, _) = plain();
    let log = Log::default();
    let b = start(options(&log), Synthetic::new(200, Pixels::Pattern));
    let both = format!("forebay://{},{}/set", a.addr(), b.addr());
    // Depending on placement, the client finds the mismatch when it opens the stream on the other server, or when the stream
    // moves there.
    let client = Client::connect(&both, over(transport)).unwrap();
    let (greeted, _other) = match client.server() == a.addr().to_string() {
        true => (a, b),
        false => (b, a),
    };
    let e = match client.open(epochs(0)) {
        Err(e) => e,
        Ok(mut stream) => {
            greeted.shutdown();
            loop {
                match stream.next_batch() {
                    Ok(batch) => drop(batch),
                    Err(e) => break e,
                }
            }
        }
    };
    assert!(
        matches!(
            e,
            Error::Remote {
                kind: RemoteKind::Mismatch,
                ..
            }
        ),
        "{e}"
    );
    let told = e.to_string();
    assert!(
        told.contains("synthetic-100") && told.contains("synthetic-200"),
        "{e}"
    );
}

fn interrupting_a_client_that_connects_again_is_quick(transport: Transport) {
    let (server, _) = plain();
    let mut stream = Client::connect(&url(server.addr()), over(transport))
        .unwrap()
        .open(epochs(0))
        .unwrap();
    assert!(stream.next_batch().unwrap().is_some());
    server.shutdown();
    let began = Instant::now();
    stream.interrupter().interrupt();
    assert!(matches!(stream.next_batch(), Err(Error::Interrupted)));
    drop(stream);
    assert!(began.elapsed() < Duration::from_secs(10));
}

fn a_client_that_was_idle_between_greeting_and_opening_is_served(transport: Transport) {
    let log = Log::default();
    let server = start(
        ServerOptions {
            heartbeat: Duration::from_millis(40),
            idle_timeout: Duration::from_millis(300),
            ..options(&log)
        },
        Synthetic::new(100, Pixels::Pattern),
    );
    let client = Client::connect(
        &url(server.addr()),
        ClientOptions {
            silence_timeout: Some(LONG),
            ..over(transport)
        },
    )
    .unwrap();
    log.wait_for("no message");
    let mut stream = client.open(epochs(1)).unwrap();
    epoch(&mut stream, 0);
}
