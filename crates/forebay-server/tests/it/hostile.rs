//! Clients that send garbage, incomplete or oversized messages, or nothing, or that vanish: none
//! affects another client.

use crate::support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Client, ClientOptions, Error, Polled, Transport};
use forebay_server::{Pixels, Server, ServerHandle, ServerOptions, Synthetic};
use forebay_wire::wire::error::Kind;
use forebay_wire::{Message, TcpSocket, frame, wire};
use support::{
    BATCH_BYTES, Gate, LONG, Log, Raw, Wrapped, connect, epochs, hello, options, over, plain,
    resident_bytes, sent, start, url,
};

mod stream;

const SHORT: Duration = Duration::from_millis(400);

/// Checks that a well-behaved client gets a whole epoch.
fn still_serves(server: &ServerHandle) {
    let mut stream = connect(server.addr(), Transport::Tcp)
        .open(epochs(1))
        .unwrap();
    let mut batches = 0;
    while stream.next_batch().unwrap().is_some() {
        batches += 1;
    }
    assert_eq!(batches, 12);
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn garbage_is_answered_and_forgotten() {
    let (server, _) = plain();
    let mut state = 0x1234_5678_9abc_def1;
    let mut good = Vec::new();
    frame::encode(&hello().into(), 0, &mut good).unwrap();
    for i in 0..200 {
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        let len = random(&mut state) as usize % 3000;
        let mut bytes: Vec<u8> = (0..len).map(|_| random(&mut state) as u8).collect();
        match i % 4 {
            // Garbage from the first byte.
            0 => {}
            // Garbage after a handshake.
            1 => bytes.splice(0..0, good.clone()).for_each(drop),
            // A corrupted handshake.
            2 => {
                bytes = good.clone();
                let at = random(&mut state) as usize % bytes.len();
                bytes[at] ^= 1 << (random(&mut state) % 8);
            }
            // A truncated handshake.
            _ => bytes = good[..random(&mut state) as usize % good.len()].to_vec(),
        }
        // The server may have closed before everything is written.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    still_serves(&server);
    let stats = server.shutdown();
    assert_eq!((stats.accepted, stats.connections), (201, 0));
    assert!(stats.failed >= 150, "{stats:?}");
}

#[test]
fn other_protocols_get_an_explanation() {
    let (server, log) = plain();
    // HTTP clients get an HTTP answer at once, however short the request is.
    for request in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.0",
        "POST",
    ] {
        let mut socket = TcpStream::connect(server.addr()).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 400 "), "{answer}");
        assert!(answer.contains("forebay://HOST:PORT/NAME"), "{answer}");
    }
    log.wait_for("was refused: it speaks HTTP");
    // Others get an error frame.
    let mut raw = Raw::connect(server.addr());
    raw.socket.clone().write_all(b"SSH-").unwrap();
    let (kind, message) = raw.last_word();
    assert_eq!(kind, Kind::Protocol);
    assert!(message.contains("found 53 53 48 2d"), "{message}");
}

/// Options with nested JSON objects as the value of `transform`.
fn nested(levels: usize) -> String {
    let (open, close) = (r#"{"a":"#.repeat(levels), "}".repeat(levels));
    format!(r#"{{"transform":{open}1{close}}}"#)
}

#[test]
fn options_that_nest_deep_are_refused() {
    let (server, _) = plain();
    // At the maximum depth, parsing does not overflow the stack of the thread; the options are only invalid.
    for (levels, part) in [
        (31, "missing field `kind`"),
        (32, "nest deeper than 32 levels at offset 168"),
        (125, "nest deeper than 32 levels"),
        (100_000, "nest deeper than 32 levels"),
    ] {
        let mut raw = Raw::welcomed(server.addr());
        raw.send(wire::Open {
            spec: Some(sent(&nested(levels))),
            ..Default::default()
        });
        let (kind, message) = raw.last_word();
        assert_eq!(kind, Kind::Invalid);
        assert!(message.contains(part), "{message}");
    }
    still_serves(&server);
}

#[test]
fn incompatible_versions_are_refused_with_both_ranges() {
    let (server, _) = plain();
    let mut raw = Raw::connect(server.addr());
    raw.send(wire::Hello {
        version_min: 7,
        version_max: 9,
        ..hello()
    });
    let (kind, message) = raw.last_word();
    assert_eq!(kind, Kind::Version);
    assert!(message.contains("client speaks 7 to 9") && message.contains("server 2 to 2"));
    // Version 1 encoded the options in other messages.
    let mut raw = Raw::connect(server.addr());
    raw.send(wire::Hello {
        version_min: 1,
        version_max: 1,
        ..hello()
    });
    assert_eq!(raw.last_word().0, Kind::Version);
    // A newer client that also speaks an old version is served.
    let mut raw = Raw::connect(server.addr());
    raw.send(wire::Hello {
        version_max: 9,
        ..hello()
    });
    assert!(matches!(raw.read(), Message::Welcome(w) if w.version == 2));
}

#[test]
fn invalid_options_are_refused_by_name() {
    let (server, _) = plain();
    let refused = |spec: Option<wire::StreamSpec>, part: &str| {
        let mut raw = Raw::welcomed(server.addr());
        raw.send(wire::Open {
            spec,
            ..Default::default()
        });
        let (kind, message) = raw.last_word();
        assert_eq!(kind, Kind::Invalid, "{message}");
        assert!(
            message.contains(part) && message.len() < 3000,
            "{part}: {message}"
        );
    };
    refused(None, "no spec");
    refused(Some(sent("")), "EOF");
    refused(Some(sent("[]")), "the options of a loader");
    refused(Some(sent("{} {}")), "trailing");
    refused(Some(sent(r#"{"colour": 1}"#)), "unknown field `colour`");
    refused(
        Some(sent(r#"{"seed": 1, "seed": 2}"#)),
        "seed is given twice",
    );
    refused(
        Some(sent(r#"{"batch_size": -1}"#)),
        "option batch_size is -1",
    );
    refused(
        Some(sent(r#"{"batch_size": 0, "transform": "train"}"#)),
        "batch_size",
    );
    refused(
        Some(sent(r#"{"batch_size": 1000000, "transform": "train"}"#)),
        "batches of 1000000 samples",
    );
    refused(
        Some(sent(
            r#"{"transform": {"kind": "train", "size": 4294967295}}"#,
        )),
        "pixels a side",
    );
    refused(Some(sent(r#"{"transform": ["Grayscale"]}"#)), "transform");
    let deep = format!("{{\"transform\": {}", "[".repeat(500_000));
    refused(Some(sent(&deep)), "nest deeper");
    let wide = format!("{{\"classes\": [{}3.5]}}", "1,".repeat(400_000));
    refused(Some(sent(&wide)), "option classes is [1,1");
    let beyond = wire::StreamSpec {
        index_gaps: vec![u64::MAX, 1],
        ..sent(r#"{"transform": "train"}"#)
    };
    refused(Some(beyond), "indices");
    let twice = wire::StreamSpec {
        index_gaps: vec![1],
        ..sent(r#"{"indices": [1], "transform": "train"}"#)
    };
    refused(Some(twice), "indices is given twice");
}

#[test]
fn messages_out_of_turn_are_refused() {
    let (server, _) = plain();
    let mut raw = Raw::connect(server.addr());
    raw.send(wire::Credit::default());
    assert!(
        raw.last_word()
            .1
            .contains("expected Hello first, found Credit")
    );
    let mut raw = Raw::welcomed(server.addr());
    raw.send(hello());
    assert!(raw.last_word().1.contains("unexpected message Hello"));
    let mut raw = Raw::opened(server.addr(), 0);
    raw.send(wire::Open::default());
    assert!(raw.last_word().1.contains("a second Open"));
    // Messages that only servers send are rejected before they are parsed.
    let mut raw = Raw::welcomed(server.addr());
    raw.send(wire::EpochEnd::default());
    assert!(raw.last_word().1.contains("a message that clients send"));
    still_serves(&server);
}

#[test]
fn oversized_frames_are_refused_unread() {
    let (server, _) = plain();
    let head = |len: u32, payload: u64| {
        let mut head = Vec::from(*b"FBRY\x01\x03\0\0");
        head.extend(len.to_le_bytes());
        head.extend(payload.to_le_bytes());
        head.extend([0; 4]);
        head
    };
    for (len, payload) in [((1 << 20) + 1, 0), (u32::MAX, 0), (8, 1), (8, u64::MAX)] {
        let mut raw = Raw::welcomed(server.addr());
        raw.socket.clone().write_all(&head(len, payload)).unwrap();
        let (kind, message) = raw.last_word();
        assert_eq!(kind, Kind::Protocol);
        assert!(message.contains("is more than the limit of"), "{message}");
    }
    // The size limit before the handshake is lower.
    let mut raw = Raw::connect(server.addr());
    let mut bytes = head(20 << 10, 0);
    bytes[5] = 1;
    raw.socket.clone().write_all(&bytes).unwrap();
    assert!(raw.last_word().1.contains("limit of 16384"));
    still_serves(&server);
}

#[test]
fn the_handshake_deadline_holds_for_slow_bytes() {
    let log = Log::default();
    let server = start(
        ServerOptions {
            handshake_timeout: SHORT,
            ..options(&log)
        },
        Synthetic::new(100, Pixels::Pattern),
    );
    // Nothing at all, and half of a frame header.
    for bytes in [&b""[..], b"FBRY\x01\x01"] {
        let mut raw = Raw::connect(server.addr());
        raw.socket.clone().write_all(bytes).unwrap();
        let (kind, message) = raw.last_word();
        assert_eq!(kind, Kind::Timeout);
        assert!(
            message.contains("no complete Hello within 400ms"),
            "{message}"
        );
    }
    // One byte at a time, of a message that is never complete.
    let mut raw = Raw::connect(server.addr());
    let mut socket = raw.socket.clone();
    let mut bytes = Vec::from(*b"FBRY\x01\x01\0\0");
    bytes.extend(16_000u32.to_le_bytes());
    bytes.resize(16_000, 0);
    socket.set_read_timeout(Duration::from_millis(2)).unwrap();
    let mut written = 0;
    let error = loop {
        socket.write_all(&bytes[written..=written]).unwrap();
        written += 1;
        match raw.next() {
            Ok(Message::Error(error)) => break error,
            Ok(other) => panic!("{other:?}"),
            Err(e) => assert!(e.is_timeout(), "{e}"),
        }
    };
    assert_eq!(error.kind(), Kind::Timeout);
    assert!(written < 1000, "{written}");
    still_serves(&server);
}

#[test]
fn a_message_has_a_deadline_after_the_handshake_too() {
    let log = Log::default();
    let server = start(
        ServerOptions {
            idle_timeout: SHORT,
            ..options(&log)
        },
        Synthetic::new(100, Pixels::Pattern),
    );
    let raw = Raw::welcomed(server.addr());
    raw.socket.clone().write_all(b"FBRY").unwrap();
    log.wait_for("was disconnected: a message was not complete within 400ms");
}

#[test]
fn a_message_begun_with_the_last_one_has_a_deadline() {
    let log = Log::default();
    let server = start(
        ServerOptions {
            idle_timeout: SHORT,
            ..options(&log)
        },
        Synthetic::new(100, Pixels::Pattern),
    );
    let mut raw = Raw::welcomed(server.addr());
    let mut bytes = Vec::new();
    let ping = wire::Ping {
        token: 7,
        ..wire::Ping::default()
    };
    frame::encode(&ping.into(), 0, &mut bytes).unwrap();
    bytes.extend(b"FBRY");
    raw.socket.clone().write_all(&bytes).unwrap();
    let answer = wire::Ping {
        answer: true,
        ..ping
    };
    assert_eq!(raw.next().unwrap(), Message::Ping(answer));
    log.wait_for("was disconnected: a message was not complete within 400ms");
}

#[test]
fn invalid_addresses_and_names_are_refused() {
    let log = Log::default();
    let server = Server::bind(options(&log)).unwrap();
    let taken = ServerOptions {
        listen: server.local_addr(),
        ..options(&log)
    };
    let text = Server::bind(taken).err().unwrap().to_string();
    assert!(text.contains("the port is taken"), "{text}");
    let open = |allow_remote| ServerOptions {
        listen: "0.0.0.0:0".parse().unwrap(),
        allow_remote,
        ..options(&log)
    };
    let text = Server::bind(open(false)).err().unwrap().to_string();
    assert!(text.contains("refusing to listen on 0.0.0.0"), "{text}");
    assert!(Server::bind(open(true)).is_ok());
    let nowhere = ServerOptions {
        listen: "203.0.113.1:0".parse().unwrap(),
        ..open(true)
    };
    let text = Server::bind(nowhere).err().unwrap().to_string();
    assert!(text.contains("cannot listen on 203.0.113.1:0"), "{text}");
    let mut server = server;
    for name in ["", "a/b", "a b", "ä", &"a".repeat(256)] {
        let source = Arc::new(Synthetic::new(1, Pixels::Pattern));
        assert!(server.add_source(name, source).is_err(), "{name}");
    }
    let source = Arc::new(Synthetic::new(1, Pixels::Pattern));
    server.add_source("a-1.b_2", source.clone()).unwrap();
    assert!(server.add_source("a-1.b_2", source).is_err());
}

/// `FOREBAY_GARBAGE=10000` sets the number of garbage connections; the test then prints the good
/// client's rate before and meanwhile.
#[test]
fn garbage_connections_do_not_affect_a_good_client() {
    let count = std::env::var("FOREBAY_GARBAGE").map_or(300, |n| n.parse().unwrap());
    let log = Log::default();
    let server = start(
        ServerOptions {
            observer: Arc::new(|_: &forebay_server::Event<'_>| {}),
            ..options(&log)
        },
        Synthetic::new(100_000, Pixels::Pattern),
    );
    let addr = server.addr();
    let mut stream = connect(addr, forebay_client::Transport::Tcp)
        .open(support::spec())
        .unwrap();
    let mut batches = 0_u64;
    let mut take = |until: &dyn Fn() -> bool| {
        let (began, before) = (std::time::Instant::now(), batches);
        while !until() {
            if stream.next_batch().unwrap().is_some() {
                batches += 1;
            }
        }
        (batches - before) as f64 / began.elapsed().as_secs_f64()
    };
    let began = std::time::Instant::now();
    let alone = take(&|| began.elapsed() > Duration::from_millis(300));
    let before = resident_bytes();
    let meanwhile = std::thread::scope(|scope| {
        let garbage = scope.spawn(move || {
            let mut state = 0x1234_5678_9abc_def1;
            let mut held = std::collections::VecDeque::new();
            for i in 0..count {
                let mut stream = TcpStream::connect(addr).unwrap();
                let len = random(&mut state) as usize % 20_000;
                let bytes: Vec<u8> = (0..len).map(|_| random(&mut state) as u8).collect();
                // Half of a frame header and silence, nothing, or garbage; a hundred of them stay
                // open for a while.
                let sent = match i % 3 {
                    0 => &b"FBRY\x01\x01\0\0"[..],
                    1 => &[],
                    _ => &bytes,
                };
                let _ = stream.write_all(sent);
                held.push_back(stream);
                if held.len() > 100 {
                    held.pop_front();
                }
            }
        });
        take(&|| garbage.is_finished())
    });
    println!("{alone:.0} batches/s alone, {meanwhile:.0} with {count} garbage connections");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more than before");
    assert!(batches > 0);
}

#[test]
fn silent_connections_make_room_for_others() {
    let log = Log::default();
    let server = start(
        ServerOptions {
            max_connections: 4,
            max_connections_per_address: Some(3),
            ..options(&log)
        },
        Synthetic::new(100, Pixels::Pattern),
    );
    let silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(server.addr()).unwrap())
        .collect();
    still_serves(&server);
    log.wait_for("was evicted before");
    // Connections with a complete handshake stay; the next one from the same address is rejected.
    let known: Vec<Raw> = (0..3).map(|_| Raw::welcomed(server.addr())).collect();
    let mut late = Raw::connect(server.addr());
    late.send(hello());
    let (kind, message) = late.last_word();
    assert_eq!(kind, Kind::Busy);
    assert!(
        message.contains("3 connections from 127.0.0.1"),
        "{message}"
    );
    drop((silent, known));
}
