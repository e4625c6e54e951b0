//! Clients of the admin and health addresses that never complete a request.

use crate::support;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use forebay_monitor::{Admin, AdminOptions, Health};
use forebay_server::ServerHandle;
use support::{LONG, plain};

const ANY: &str = "127.0.0.1:0";

/// Connections that sent the beginning of a request only.
fn half_open(to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let connect = |_| {
        let mut socket = TcpStream::connect(to).unwrap();
        socket
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: x")
            .unwrap();
        socket
    };
    (0..count).map(connect).collect()
}

fn ask(mut socket: TcpStream, path: &str) -> io::Result<String> {
    socket.set_read_timeout(Some(LONG))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes())?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

fn get(to: SocketAddr, path: &str) -> String {
    ask(TcpStream::connect(to).unwrap(), path).unwrap()
}

/// Connects from a local address that no other test uses.
fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let own = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0));
    bind(&socket, &own).unwrap();
    connect(&socket, &to).unwrap();
    socket.into()
}

/// Whether the server closes these connections before `LONG` has passed.
fn all_end(sockets: Vec<TcpStream>) -> bool {
    sockets.into_iter().all(|mut socket| {
        socket.set_read_timeout(Some(LONG)).unwrap();
        let mut rest = Vec::new();
        match socket.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(e) => e.kind() == io::ErrorKind::ConnectionReset,
        }
    })
}

/// Deadlines longer than a test: only eviction, not expiry, can make room.
fn patient() -> AdminOptions {
    AdminOptions {
        connection_lifetime: 4 * LONG,
        header_timeout: 4 * LONG,
        ..AdminOptions::default()
    }
}

fn admin(server: &ServerHandle, options: AdminOptions) -> Admin {
    Admin::start(ANY.parse().unwrap(), server.status(), options).unwrap()
}

#[test]
fn half_open_requests_do_not_delay_health_checks() {
    let (server, _) = plain();
    let admin = admin(&server, patient());
    let health = Health::start(ANY.parse().unwrap(), server.status()).unwrap();
    let on_admin = half_open(admin.addr(), 200);
    let on_health = half_open(health.addr(), 200);
    for path in ["/healthz", "/readyz"] {
        assert!(
            get(health.addr(), path).starts_with("HTTP/1.1 200"),
            "{path}"
        );
        assert!(
            get(admin.addr(), path).starts_with("HTTP/1.1 200"),
            "{path}"
        );
    }
    assert!(get(admin.addr(), "/metrics").contains("forebay_ready 1"));
    drop((on_admin, on_health));
}

#[test]
fn health_listeners_serve_nothing_else() {
    let (server, _) = plain();
    let health = Health::start(ANY.parse().unwrap(), server.status()).unwrap();
    for path in ["/", "/metrics", "/api/status", "/api/images?name=set"] {
        assert!(
            get(health.addr(), path).starts_with("HTTP/1.1 404"),
            "{path}"
        );
    }
    let status = server.status();
    server.shutdown();
    assert!(!status.is_ready());
    assert!(get(health.addr(), "/readyz").starts_with("HTTP/1.1 503"));
    assert!(get(health.addr(), "/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn half_open_requests_end_at_the_header_deadline() {
    let (server, _) = plain();
    let options = AdminOptions {
        header_timeout: Duration::from_millis(100),
        ..patient()
    };
    let admin = admin(&server, options);
    assert!(all_end(half_open(admin.addr(), 10)));
}

#[test]
fn one_address_does_not_take_the_places_of_others() {
    let (server, _) = plain();
    let admin = admin(&server, patient());
    let mut other = connect_from(2, admin.addr());
    other
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        .unwrap();
    let silent = half_open(admin.addr(), 200);
    // The connection from the other address kept its place, although its request is incomplete.
    other.set_read_timeout(Some(LONG)).unwrap();
    other.write_all(b"Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        ask(connect_from(3, admin.addr()), "/healthz")
            .unwrap()
            .starts_with("HTTP/1.1 200")
    );
    drop(silent);
}
