//! Requests over HTTP, one a connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::LONG;

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn get(addr: SocketAddr, path: &str, host: &str) -> Answer {
    ask(addr, &format!("GET {path} HTTP/1.1\r\nHost: {host}"))
}

/// Sends the head of a request, which needs no empty line at its end.
pub(crate) fn ask(addr: SocketAddr, head: &str) -> Answer {
    let mut socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let request = format!("{head}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.unwrap());
    let head = String::from_utf8(head.to_vec()).unwrap();
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_ascii_lowercase(),
        body: String::from_utf8_lossy(&body[4..]).into_owned(),
        bytes: body[4..].to_vec(),
    }
}
