//! Connecting and opening: refusals, other versions and protocols, servers that do not answer.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use forebay_client::{CancelCheck, Client, ClientOptions, Credential, Error, RemoteKind, Token};
use forebay_wire::wire::error::Kind;
use forebay_wire::{Error as WireError, frame, wire};

use crate::support::{LONG, Peer, at_once, failed, opened, serve, spec, welcome};

/// A server that answers `Hello` with an error.
fn refusal(kind: Kind, message: &str) -> Error {
    let message = message.to_owned();
    let (url, peer) = serve(move |listener| {
        let (mut peer, hello) = Peer::accept(&listener);
        assert_eq!((hello.version_min, hello.version_max), (2, 2));
        assert_eq!(hello.dataset, "set");
        peer.send(wire::Error {
            kind: kind.into(),
            message,
        });
        peer.see_off();
    });
    let e = failed(&url, at_once());
    peer.join().unwrap();
    e
}

#[test]
fn refusals_arrive_with_their_kind() {
    for (sent, expected, passing) in [
        (Kind::Version, RemoteKind::Version, false),
        (Kind::NotFound, RemoteKind::NotFound, false),
        (Kind::Mismatch, RemoteKind::Mismatch, false),
        (Kind::Internal, RemoteKind::Internal, false),
        (Kind::Busy, RemoteKind::Busy, true),
        (Kind::Shutdown, RemoteKind::Shutdown, true),
        (Kind::Timeout, RemoteKind::Timeout, true),
    ] {
        let e = refusal(sent, "because");
        assert_eq!(e.is_passing(), passing, "{e}");
        let Error::Remote { kind, message, .. } = e else {
            panic!("{e:?}");
        };
        assert_eq!((kind, message.as_str()), (expected, "because"));
    }
    let text = refusal(Kind::Internal, "").to_string();
    assert!(text.contains("(Internal)"), "{text}");
}

#[test]
fn messages_of_a_server_are_escaped() {
    let words = format!(
        "no set \x1b]0;owned\x07\x1b[2J\r\nerror: {}",
        "x".repeat(100_000)
    );
    let text = refusal(Kind::NotFound, &words).to_string();
    assert!(!text.contains(char::is_control), "{text:?}");
    assert!(text.contains("no set \\u{1b}]0;owned") && text.len() < 10_000);
}

#[test]
fn a_refused_token_is_sent_once_and_never_shown() {
    let (url, peer) = serve(|listener| {
        let (mut peer, hello) = Peer::accept(&listener);
        peer.send(wire::Error {
            kind: Kind::Unauthorized.into(),
            message: "unknown".to_owned(),
        });
        peer.see_off();
        (hello.token, listener)
    });
    let token = "marked-0123456789abcdef";
    let options = ClientOptions {
        credential: Some(Credential::Token(Token::new(token, "a test").unwrap())),
        server_timeout: LONG,
        ..at_once()
    };
    let e = failed(&url, options);
    let unauthorized = RemoteKind::Unauthorized;
    assert!(matches!(&e, Error::Remote { kind, .. } if *kind == unauthorized));
    assert!(!e.is_passing() && !format!("{e} {e:?}").contains("marked"));
    let (sent, listener) = peer.join().unwrap();
    assert_eq!(sent, token);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

#[test]
fn other_versions_of_the_protocol_are_refused() {
    for version in [0, 1, 3] {
        let (url, peer) = serve(move |listener| {
            let (mut peer, _) = Peer::accept(&listener);
            peer.send(wire::Welcome {
                version,
                ..welcome()
            });
            peer.see_off();
        });
        let e = failed(&url, at_once());
        assert!(
            matches!(e, Error::Protocol { .. }) && !e.is_passing(),
            "{e}"
        );
        let found = format!("found {version}");
        assert!(e.to_string().contains(&found), "{e}");
        peer.join().unwrap();
    }
    let (url, peer) = serve(|listener| {
        let (mut peer, _) = Peer::accept(&listener);
        let mut bytes = Vec::new();
        frame::encode(&welcome().into(), 0, &mut bytes).unwrap();
        bytes[4] = 9;
        peer.socket.write_all(&bytes).unwrap();
        peer.see_off();
    });
    let e = failed(&url, at_once());
    let Error::Protocol { source, .. } = &e else {
        panic!("{e}");
    };
    assert!(matches!(source, WireError::Version { found: 9, .. }), "{e}");
    peer.join().unwrap();
}

#[test]
fn servers_of_other_protocols_are_named_at_once() {
    let http = "it speaks HTTP";
    for (bytes, part) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], http),
        (b"HTTP", http),
        (b"<!DOCTYPE HTML>", http),
        (
            b"\x15\x03\x01\0\x02\x02\x28",
            "use forebays:// instead of forebay://",
        ),
        (b"SSH-2.0-x\r\n", "found 53 53 48 2d"),
    ] {
        let (url, peer) = serve(move |listener| {
            let (mut socket, _) = listener.accept().unwrap();
            let _ = socket.read(&mut [0; 64]);
            socket.write_all(bytes).unwrap();
            // Stays open and silent.
            let _ = socket.read_to_end(&mut Vec::new());
        });
        // With this timeout, a client that waited for more bytes would outlast the test.
        let options = ClientOptions {
            connect_timeout: 10 * LONG,
            ..at_once()
        };
        let text = failed(&url, options).to_string();
        assert!(text.contains(part), "{text}");
        peer.join().unwrap();
    }
    let text = match Client::connect("http://127.0.0.1:7070/set", ClientOptions::default()) {
        Err(e @ Error::Url { .. }) => e.to_string(),
        _ => panic!("it is no URL of a server"),
    };
    assert!(text.contains("expected forebay://HOST:PORT/NAME"), "{text}");
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    // The system accepts the connection, but no one reads from it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("forebay://{}/set", listener.local_addr().unwrap());
    let options = ClientOptions {
        connect_timeout: Duration::from_millis(30),
        ..at_once()
    };
    let e = failed(&url, options);
    assert!(matches!(e, Error::Waited { .. }) && e.is_passing(), "{e}");
    assert!(e.to_string().contains("for the answer to Hello"), "{e}");
}

#[test]
fn a_server_that_never_opens_the_stream_is_given_up() {
    // The client tries the connection of its handshake, and then a new one.
    let (url, peer) = serve(|listener| {
        for _ in 0..2 {
            let (mut peer, _) = Peer::accept(&listener);
            peer.send(welcome());
            peer.see_off();
        }
    });
    let options = ClientOptions {
        open_timeout: Duration::from_millis(30),
        ..at_once()
    };
    let client = Client::connect(&url, options).unwrap();
    let e = client.open(spec()).err().unwrap();
    assert!(matches!(e, Error::Waited { .. }) && e.is_passing(), "{e}");
    assert!(e.to_string().contains("for the stream to open"), "{e}");
    peer.join().unwrap();
}

#[test]
fn an_opened_stream_has_to_be_the_requested_one() {
    let (url, peer) = serve(|listener| {
        let (mut peer, _) = Peer::accept(&listener);
        peer.send(welcome());
        let (forebay_wire::Message::Open(open), 0) = peer.reader.read().unwrap() else {
            panic!("no Open");
        };
        let mut answer = opened(&open, 96);
        let spec = answer.spec.as_mut().unwrap();
        spec.options = spec.options.replace("\"batch_size\":8", "\"batch_size\":4");
        peer.send(answer);
        peer.see_off();
    });
    let client = Client::connect(&url, at_once()).unwrap();
    let e = client.open(spec()).err().unwrap();
    let Error::Sequence {
        what,
        expected,
        found,
        ..
    } = &e
    else {
        panic!("{e}");
    };
    let seen = (*what, expected.as_str(), found.as_str());
    assert_eq!(seen, ("batch_size", "8", "4"));
    peer.join().unwrap();
}

#[test]
fn a_server_that_never_starts_is_an_error_in_time() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    let connect = |options| failed(&format!("forebay://{addr}/set"), options);
    let e = connect(ClientOptions {
        server_timeout: Duration::from_millis(200),
        ..at_once()
    });
    assert!(matches!(e, Error::Absent { attempts: 2.., .. }), "{e}");
    let text = e.to_string();
    assert!(
        text.contains(&format!("cannot connect to {addr}: ")),
        "{text}"
    );
    assert!(text.contains("attempts failed in "), "{text}");
    let e = connect(at_once());
    assert!(matches!(e, Error::Connect { .. }), "{e}");
    let unwanted = connect(ClientOptions {
        wanted: CancelCheck::new(|| false),
        server_timeout: LONG,
        ..at_once()
    });
    assert!(matches!(unwanted, Error::Interrupted), "{unwanted}");
}
