//! Checks of the network: connections to servers.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use forebay_client::Authority;

use super::{Context, Finding, Target};
use crate::quantity;

const PATIENCE: Duration = Duration::from_secs(5);

/// Resolves the name of each server, and connects to it.
pub(super) fn server(context: &Context<'_>) -> Vec<Finding> {
    match &context.target {
        Some(Target::Server(url)) => url.servers().iter().map(reach).collect(),
        _ => Vec::new(),
    }
}

fn reach(server: &Authority) -> Finding {
    let name = format!("{}:{}", server.host, server.port);
    let begin = Instant::now();
    let addresses = match (server.host.as_str(), server.port).to_socket_addrs() {
        Ok(addresses) => addresses.collect::<Vec<_>>(),
        Err(error) => {
            let what = format!("\"{name}\" cannot be resolved: {error}");
            return Finding::problem(what, "check the name and the DNS of this machine");
        }
    };
    let mut last = None;
    for address in &addresses {
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(_) => {
                let took = quantity::duration(begin.elapsed());
                return Finding::ok(format!("{name} answers at {address} after {took}"));
            }
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(|| "it has no address".to_owned(), |error| error.to_string());
    Finding::problem(
        format!("no connection to \"{name}\": {why}"),
        "check that forebay serve runs there and listens beyond loopback, and the firewall",
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::Level;
    use super::*;

    #[test]
    fn an_unreachable_server_is_a_problem() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = |port| Authority {
            host: "127.0.0.1".to_owned(),
            port,
        };
        let port = listener.local_addr().unwrap().port();
        assert_eq!(reach(&server(port)).level, Level::Ok);
        drop(listener);
        let gone = reach(&server(port));
        assert_eq!(gone.level, Level::Problem);
        assert!(gone.message.contains("no connection"), "{gone:?}");
    }
}
