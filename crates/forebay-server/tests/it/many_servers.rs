//! Several servers of the same data: streams spread over them, migrate without a gap, and return.

use crate::support;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_batch::digest::fold;
use forebay_client::{Client, ClientOptions, Stream, StreamOptions, Transport};
use forebay_server::{Pixels, ServerHandle, ServerOptions, Synthetic};
use forebay_wire::wire::error::Kind;
use forebay_wire::{Message, wire};
use support::{LONG, Log, epochs, options, over, spec, start};

crate::over_each_transport! {
    a_server_that_stops_hands_over_before_it_ends,
    a_stream_goes_home_when_its_server_is_back,
}

/// Enough samples to interrupt streams in the middle.
const RECORDS: u64 = 4000;

/// A server with a short heartbeat, so that clients reconsider their choice of server quickly.
fn lively(log: &Log, listen: &str) -> ServerHandle {
    let options = ServerOptions {
        listen: listen.parse().unwrap(),
        heartbeat: Duration::from_millis(40),
        ..options(log)
    };
    start(options, Synthetic::new(RECORDS, Pixels::Pattern))
}

fn servers<const N: usize>(log: &Log) -> [ServerHandle; N] {
    [(); N].map(|()| lively(log, "127.0.0.1:0"))
}

fn list(servers: &[&ServerHandle]) -> String {
    let servers: Vec<String> = servers.iter().map(|s| s.addr().to_string()).collect();
    format!("forebay://{}/set", servers.join(","))
}

fn looking(transport: Transport) -> ClientOptions {
    ClientOptions {
        look_every: Duration::from_millis(20),
        // The servers' heartbeats are short, but the machine may be slow.
        silence_timeout: Some(LONG),
        ..over(transport)
    }
}

fn rank(rank: u64, world_size: u64) -> StreamOptions {
    let mut open = epochs(1);
    (open.options.rank, open.options.world_size) = (Some(rank), Some(world_size));
    open
}

/// Takes the next batches and checks their order; true at the end of the epoch.
fn take(stream: &mut Stream, batches: u64) -> bool {
    for _ in 0..batches {
        let (epoch, position) = stream.position();
        let Some(batch) = stream.next_batch().unwrap() else {
            return true;
        };
        assert_eq!((batch.epoch, batch.position), (epoch, position));
        let info = stream.info();
        for (i, &sample) in batch.samples.iter().enumerate() {
            let at = position + info.rank() + i as u64 * info.world_size();
            assert_eq!(sample, at);
            let image = batch.image(i).unwrap();
            let same = |(j, &byte): (usize, &u8)| byte == Synthetic::pixel(sample, j);
            assert!(image.iter().enumerate().all(same));
        }
    }
    false
}

/// Waits for a condition that other threads fulfil.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < LONG, "{what}");
        thread::yield_now();
    }
}

/// The digest of a whole epoch from one server, for one rank.
fn whole() -> u64 {
    let server = lively(&Log::default(), "127.0.0.1:0");
    let client = Client::connect(&list(&[&server]), over(Transport::Tcp)).unwrap();
    let mut stream = client.open(epochs(1)).unwrap();
    assert!(take(&mut stream, u64::MAX));
    let digest = stream.epoch_digest();
    assert!(digest.complete);
    assert_eq!((digest.since, digest.until), (0, RECORDS));
    assert_eq!((digest.batches, digest.samples), (RECORDS / 8, RECORDS));
    digest.value
}

fn a_server_that_stops_hands_over_before_it_ends(transport: Transport) {
    let log = Log::default();
    let [a, b] = servers(&log);
    let patient = ClientOptions {
        look_every: Duration::ZERO,
        ..looking(transport)
    };
    let client = Client::connect(&list(&[&a, &b]), patient).unwrap();
    let mut stream = client.open(epochs(1)).unwrap();
    take(&mut stream, 20);
    let (first, second) = match stream.server() == a.addr().to_string() {
        true => (a, b),
        false => (b, a),
    };
    // The server stops once the stream has left it, which does not depend on the client taking
    // batches.
    let stats = first.shutdown();
    // The client notes its new server just after it left the old one.
    until("the stream has no other server", || {
        stream.server() == second.addr().to_string()
    });
    assert_eq!(
        (stats.handed_over, stats.failed),
        (1, 0),
        "{:#?}",
        log.all()
    );
    assert!(take(&mut stream, u64::MAX));
    let stats = stream.stats();
    assert_eq!(
        (stats.handovers, stats.reconnects, stats.retries),
        (1, 0, 0),
        "{:#?}",
        log.all()
    );
    let digest = stream.epoch_digest();
    assert!(digest.complete && digest.value == whole());
    let used = stream.servers();
    assert_eq!(used.len(), 2, "{used:?}");
    assert_eq!(used[0].batches + used[1].batches, RECORDS / 8);
}

fn a_stream_goes_home_when_its_server_is_back(transport: Transport) {
    let log = Log::default();
    let [a, b] = servers(&log);
    let client = Client::connect(&list(&[&a, &b]), looking(transport)).unwrap();
    let mut stream = client.open(epochs(1)).unwrap();
    take(&mut stream, 3);
    let home: SocketAddr = stream.server().parse().unwrap();
    let (first, _second) = match home == a.addr() {
        true => (a, b),
        false => (b, a),
    };
    first.shutdown();
    take(&mut stream, 3);
    until("no server takes over", || stream.stats().handovers == 1);
    let _again = lively(&log, &home.to_string());
    until("the stream does not return", || {
        stream.stats().handovers == 2
    });
    assert_eq!(stream.server(), home.to_string());
    assert_eq!(stream.stats().reconnects, 0);
    assert!(take(&mut stream, u64::MAX));
    assert_eq!(stream.epoch_digest().value, whole());
}

#[test]
fn ranks_are_spread_evenly() {
    let log = Log::default();
    let servers: [ServerHandle; 3] = servers(&log);
    let url = list(&servers.each_ref());
    let streams: Vec<Stream> = (0..6)
        .map(|number| {
            let client = Client::connect(&url, over(Transport::Auto)).unwrap();
            client.open(rank(number, 6)).unwrap()
        })
        .collect();
    for server in &servers {
        assert_eq!(server.stats().streams, 2, "{:#?}", log.all());
    }
    drop(streams);
}

fn write(path: &Path, servers: &[&ServerHandle]) {
    let lines: String = servers.iter().map(|s| format!("{}\n", s.addr())).collect();
    // Atomically, by renaming, as tools that manage such files do.
    std::fs::write(path.with_extension("new"), lines).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
}

#[test]
fn one_server_then_three_then_two_give_one_epoch() {
    const WORLD: u64 = 4;
    let log = Log::default();
    let [a, b, c] = servers(&log);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("servers");
    write(&path, &[&a]);
    let url = format!("forebay+file://{}/set", path.display());
    let mut streams: Vec<Stream> = (0..WORLD)
        .map(|number| {
            let client = Client::connect(&url, looking(Transport::Auto)).unwrap();
            client.open(rank(number, WORLD)).unwrap()
        })
        .collect();
    for stream in &mut streams {
        take(stream, 10);
        assert_eq!(stream.server(), a.addr().to_string());
    }
    write(&path, &[&a, &b, &c]);
    // Four streams spread evenly, so a server keeps two at most.
    let on = |streams: &[Stream], server: &ServerHandle| {
        let at = server.addr().to_string();
        streams.iter().filter(|s| s.server() == at).count()
    };
    until("no stream moves to the new servers", || {
        on(&streams, &a) <= 2 && on(&streams, &b) + on(&streams, &c) >= 2
    });
    for stream in &mut streams {
        take(stream, 10);
    }
    write(&path, &[&b, &c]);
    until("somebody stays with a server that is not listed", || {
        on(&streams, &b) == 2 && on(&streams, &c) == 2
    });
    let stats = a.shutdown();
    assert_eq!(stats.failed, 0, "{:#?}", log.all());
    let mut value = 0;
    for stream in &mut streams {
        assert!(take(stream, u64::MAX));
        let digest = stream.epoch_digest();
        assert!(digest.complete);
        value = fold(value, digest.value);
        assert_eq!(stream.stats().reconnects, 0, "{:#?}", log.all());
    }
    assert_eq!(value, whole());
}

#[test]
fn all_addresses_of_a_name_are_servers() {
    let log = Log::default();
    let server = lively(&log, "127.0.0.1:0");
    let url = format!("forebay+dns://localhost:{}/set", server.addr().port());
    // If the name resolves to an address of another family first, nothing listens there.
    match Client::connect(&url, over(Transport::Auto)) {
        Ok(client) => {
            assert_eq!(client.server(), server.addr().to_string());
            assert!(take(&mut client.open(epochs(1)).unwrap(), u64::MAX));
        }
        Err(e) => assert!(e.to_string().contains("[::1]"), "{e}"),
    }
}

#[test]
fn a_client_that_does_not_migrate_is_served_until_the_end() {
    let log = Log::default();
    let server = start(
        ServerOptions {
            heartbeat: Duration::from_millis(40),
            drain_timeout: Duration::from_secs(2),
            ..options(&log)
        },
        Synthetic::new(RECORDS, Pixels::Pattern),
    );
    let mut raw = support::Raw::connect(server.addr());
    raw.send(wire::Hello {
        hands_over: true,
        ..support::hello()
    });
    assert!(matches!(raw.read(), Message::Welcome(_)));
    raw.send(wire::Open {
        spec: Some(support::sent(&spec().encode().json)),
        ..wire::Open::default()
    });
    assert!(matches!(raw.read(), Message::Opened(_)));
    let stopper = server.stopper();
    stopper.stop();
    let told = loop {
        match raw.next().unwrap() {
            Message::Ping(ping) if ping.leaving_ms > 0 => break ping.leaving_ms,
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(told <= 1500, "{told}");
    raw.send(wire::Credit {
        bytes: support::BATCH_BYTES,
        ..wire::Credit::default()
    });
    let mut batches = 0;
    let last = loop {
        match raw.next().unwrap() {
            Message::Batch(_) => batches += 1,
            Message::Ping(ping) => raw.send(wire::Ping {
                answer: true,
                ..ping
            }),
            Message::Error(error) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(batches, 1);
    assert_eq!(last.kind(), Kind::Shutdown);
    drop(raw);
    assert_eq!(server.shutdown().handed_over, 0);
}

#[test]
fn servers_come_and_go_all_the_time() {
    // Both servers are repeatedly replaced by new ones at other addresses while two ranks read
    // their epochs.
    let log = Log::default();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("servers");
    let mut running: Vec<ServerHandle> = servers::<2>(&log).into();
    write(&path, &running.iter().collect::<Vec<_>>());
    let url = format!("forebay+file://{}/set", path.display());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ranks = [0, 1].map(|number| {
            let url = &url;
            scope.spawn(move || {
                let client = Client::connect(url, looking(Transport::Auto)).unwrap();
                let mut open = rank(number, 2);
                open.epochs = 8;
                let mut stream = client.open(open).unwrap();
                let mut values = Vec::new();
                for _ in 0..8 {
                    assert!(take(&mut stream, u64::MAX));
                    values.push(stream.epoch_digest().value);
                }
                values
            })
        });
        let over = &over;
        let log = &log;
        let path = &path;
        let replacing = scope.spawn(move || {
            let mut replaced = 0;
            while !over.load(Ordering::SeqCst) {
                running.push(lively(log, "127.0.0.1:0"));
                let old = running.remove(0);
                write(path, &running.iter().collect::<Vec<_>>());
                old.shutdown();
                until("no stream arrives", || {
                    running[1].stats().streams > 0 || over.load(Ordering::SeqCst)
                });
                replaced += 1;
            }
            replaced
        });
        let [a, b] = ranks.map(|rank| rank.join());
        over.store(true, Ordering::SeqCst);
        assert!(replacing.join().unwrap() > 0);
        let whole = whole();
        let (a, b) = (a.unwrap(), b.unwrap());
        for (a, b) in a.into_iter().zip(b) {
            assert_eq!(fold(a, b), whole, "{:#?}", log.all());
        }
    });
}
