//! Clients that leave, stall or vanish after the handshake, and servers that stop.

use super::*;

#[test]
fn a_client_that_answers_no_ping_is_disconnected() {
    let log = Log::default();
    let server = start(
        ServerOptions {
            heartbeat: Duration::from_millis(10),
            idle_timeout: SHORT,
            ..options(&log)
        },
        Synthetic::new(100, Pixels::Pattern),
    );
    let raw = Raw::opened(server.addr(), 0);
    log.wait_for("was disconnected: no message for 400ms");
    drop(raw);
    assert_eq!(server.shutdown().failed, 1);
}

#[test]
fn a_client_that_waits_long_is_kept_alive_by_pings() {
    let log = Log::default();
    let gate = Gate::closed();
    let source = Wrapped {
        inner: Synthetic::new(100, Pixels::Pattern),
        before: Arc::new(|_| Ok(())),
        gate: gate.clone(),
    };
    let server = start(
        ServerOptions {
            heartbeat: Duration::from_millis(20),
            idle_timeout: Duration::from_millis(400),
            ..options(&log)
        },
        source,
    );
    let options = ClientOptions {
        silence_timeout: Some(Duration::from_millis(400)),
        reconnect_for: Duration::ZERO,
        ..Default::default()
    };
    let client = Client::connect(&url(server.addr()), options).unwrap();
    let mut stream = client.open(epochs(1)).unwrap();
    // Longer than either side tolerates without a ping.
    let polled = stream.poll_batch(Duration::from_millis(900)).unwrap();
    assert!(matches!(polled, Polled::Pending));
    gate.open();
    assert!(stream.next_batch().unwrap().is_some());
}

#[test]
fn a_client_that_vanishes_within_a_batch_is_noticed() {
    let log = Log::default();
    let server = start(options(&log), Synthetic::new(10_000, Pixels::Arbitrary));
    for _ in 0..5 {
        let mut raw = Raw::welcomed(server.addr());
        raw.send(wire::Open {
            spec: Some(sent(r#"{"batch_size": 64, "transform": "train"}"#)),
            credit_bytes: u64::MAX,
            ..Default::default()
        });
        assert!(matches!(raw.read(), Message::Opened(_)));
        // The client reads part of the first batch, then disappears.
        raw.socket.clone().read_exact(&mut [0; 5000]).unwrap();
    }
    for connection in 1..=5 {
        log.wait_for(&format!("connection {connection}: 127.0.0.1"));
    }
    let stats = server.shutdown();
    assert_eq!((stats.failed, stats.connections), (5, 0));
}

#[test]
fn a_client_that_stops_reading_is_disconnected() {
    let log = Log::default();
    let server = start(
        ServerOptions {
            stall_timeout: SHORT,
            ..options(&log)
        },
        Synthetic::new(10_000, Pixels::Arbitrary),
    );
    let mut raw = Raw::welcomed(server.addr());
    raw.send(wire::Open {
        spec: Some(sent(r#"{"batch_size": 256, "transform": "train"}"#)),
        credit_bytes: u64::MAX,
        ..Default::default()
    });
    assert!(matches!(raw.read(), Message::Opened(_)));
    log.wait_for("read nothing for 400ms");
    drop(raw);
    assert_eq!(server.shutdown().batches, 0);
}

#[test]
fn too_many_connections_are_told_that_the_server_is_busy() {
    let log = Log::default();
    let server = start(
        ServerOptions {
            max_connections: 2,
            ..options(&log)
        },
        Synthetic::new(100, Pixels::Pattern),
    );
    let (first, second) = (Raw::welcomed(server.addr()), Raw::welcomed(server.addr()));
    let at_once = ClientOptions {
        server_timeout: Duration::ZERO,
        ..ClientOptions::default()
    };
    for _ in 0..20 {
        match Client::connect(&url(server.addr()), at_once.clone()) {
            Err(Error::Remote {
                kind: forebay_client::RemoteKind::Busy,
                message,
                ..
            }) => {
                assert!(message.contains("2 connections"), "{message}");
            }
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("was welcomed"),
        }
    }
    // A client retries as long as its timeout allows, and reports this in the error.
    let patient = ClientOptions {
        server_timeout: Duration::from_millis(300),
        ..ClientOptions::default()
    };
    match Client::connect(&url(server.addr()), patient) {
        Err(e @ Error::Busy { attempts, .. }) => {
            let text = e.to_string();
            assert!(attempts > 1 && text.contains("was busy for"), "{text}");
            assert!(text.contains("2 connections"), "{text}");
        }
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("was welcomed"),
    }
    let unwanted = ClientOptions {
        wanted: forebay_client::CancelCheck::new(|| false),
        ..ClientOptions::default()
    };
    let ended = Client::connect(&url(server.addr()), unwanted);
    assert!(matches!(ended, Err(Error::Interrupted)));
    // The connection that becomes free is usable, including for a stream.
    let refused = server.stats().refused;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let client = Client::connect(&url(server.addr()), over(Transport::Tcp)).unwrap();
            client
                .open(epochs(1))
                .unwrap()
                .next_batch()
                .unwrap()
                .is_some()
        });
        let began = std::time::Instant::now();
        while server.stats().refused < refused + 2 {
            assert!(began.elapsed() < LONG);
            std::thread::yield_now();
        }
        drop(first);
        assert!(waits.join().unwrap());
    });
    drop(second);
    assert!(server.shutdown().refused >= 20);
}

#[test]
fn a_stop_finishes_the_batch_and_notifies_clients() {
    let (server, log) = plain();
    let mut raw = Raw::opened(server.addr(), u64::MAX);
    let idle = Raw::welcomed(server.addr());
    assert!(matches!(raw.read(), Message::Batch(_)));
    server.stopper().stop();
    // Only whole frames up to the final message, on both connections.
    assert_eq!(raw.last_word().0, Kind::Shutdown);
    let mut idle = idle;
    assert_eq!(idle.last_word().0, Kind::Shutdown);
    drop((raw, idle));
    let addr = server.addr();
    let stats = server.shutdown();
    assert_eq!(
        (stats.connections, stats.failed),
        (0, 0),
        "{:#?}",
        log.all()
    );
    assert!(log.all().contains(&"stopped".to_owned()));
    let options = ClientOptions {
        server_timeout: Duration::ZERO,
        ..ClientOptions::default()
    };
    let Err(e) = Client::connect(&url(addr), options) else {
        panic!("a stopped server answers");
    };
    assert!(
        e.to_string().contains("is `forebay serve` running there?"),
        "{e}"
    );
}

#[test]
fn a_stop_does_not_wait_for_clients_that_do_not_read() {
    let log = Log::default();
    let server = start(
        ServerOptions {
            drain_timeout: SHORT,
            ..options(&log)
        },
        Synthetic::new(10_000, Pixels::Arbitrary),
    );
    let mut raw = Raw::welcomed(server.addr());
    raw.send(wire::Open {
        spec: Some(sent(r#"{"batch_size": 256, "transform": "train"}"#)),
        credit_bytes: u64::MAX,
        ..Default::default()
    });
    assert!(matches!(raw.read(), Message::Opened(_)));
    let began = std::time::Instant::now();
    assert_eq!(server.shutdown().connections, 0);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_stop_ends_streams_that_wait_for_credit_or_for_data() {
    let log = Log::default();
    let source = Wrapped {
        inner: Synthetic::new(100, Pixels::Pattern),
        before: Arc::new(|_| Ok(())),
        gate: Gate::closed(),
    };
    let server = start(options(&log), source);
    let mut for_credit = Raw::opened(server.addr(), 0);
    let mut for_data = Raw::opened(server.addr(), BATCH_BYTES);
    server.stopper().stop();
    assert_eq!(for_credit.last_word().0, Kind::Shutdown);
    assert_eq!(for_data.last_word().0, Kind::Shutdown);
    drop((for_credit, for_data));
    assert_eq!(server.shutdown().connections, 0);
}

#[test]
fn a_server_is_stopped_by_a_flag_too() {
    let log = Log::default();
    let server = Server::bind(options(&log)).unwrap();
    let flag = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flag = &flag;
        let running = scope.spawn(move || server.run_until(flag));
        log.wait_for("listening on");
        flag.store(true, std::sync::atomic::Ordering::Release);
        running.join().unwrap();
    });
    log.wait_for("stopped");
}

#[test]
fn sockets_closed_before_accept_are_ignored() {
    let (server, _) = plain();
    for _ in 0..100 {
        let socket = TcpSocket::new(TcpStream::connect(server.addr()).unwrap()).unwrap();
        socket.shutdown(Shutdown::Both);
    }
    still_serves(&server);
}
