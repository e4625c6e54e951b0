//! Behavior of a server when the process runs out of file descriptors, and absence of leaks. The
//! test runs alone in its process, because it changes a limit of the process.

#[path = "it/support/mod.rs"]
mod support;

use std::fs;
use std::net::TcpStream;

use forebay_client::Transport;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{LONG, Raw, connect, epochs, over, plain};

fn count(what: &str) -> usize {
    fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

#[test]
fn running_out_of_descriptors_is_survived_without_leaks() {
    let before = (count("fd"), count("task"));
    let (server, log) = plain();
    let limit = getrlimit(Resource::Nofile);
    let soft = count("fd") as u64 + 20;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(soft),
            ..limit
        },
    )
    .unwrap();
    // Take all descriptors except one, which the client's end of a connection needs. The server's
    // end, in the same process, gets none.
    let mut taken = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        taken.push(file);
    }
    taken.pop().expect("there were twenty");
    let socket = TcpStream::connect(server.addr()).unwrap();
    log.wait_for("cannot accept a connection: Too many open files");
    drop((taken, socket));
    // The limit stays in place, and the server keeps running.
    let began = std::time::Instant::now();
    let client = loop {
        let url = support::url(server.addr());
        match forebay_client::Client::connect(&url, over(Transport::Tcp)) {
            Ok(client) => break client,
            Err(e) => assert!(began.elapsed() < LONG, "{e}"),
        }
    };
    let mut stream = client.open(epochs(1)).unwrap();
    while stream.next_batch().unwrap().is_some() {}
    drop((stream, client));
    setrlimit(Resource::Nofile, limit).unwrap();

    // Hundreds of clients of every kind, then none.
    for i in 0..300 {
        match i % 3 {
            0 => drop(Raw::connect(server.addr())),
            1 => drop(Raw::opened(server.addr(), u64::MAX)),
            _ => {
                let transport = [Transport::Tcp, Transport::Auto][i / 3 % 2];
                let mut stream = connect(server.addr(), transport).open(epochs(1)).unwrap();
                drop(stream.next_batch().unwrap());
            }
        }
    }
    assert_eq!(server.shutdown().connections, 0);
    // The thread of a joined client may remain visible for a moment.
    let began = std::time::Instant::now();
    while (count("fd"), count("task")) != before {
        let now = (count("fd"), count("task"));
        assert!(began.elapsed() < LONG, "{now:?} is not {before:?}");
    }
}
