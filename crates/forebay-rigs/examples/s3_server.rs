//! Runs the S3 rig as a process, for `tools/peers/bench_store.py` and `tools/peers/bench_link.py`:
//! prints its URL, and exits when its standard input is closed.
//!
//! With a latency in milliseconds and a bandwidth in MB/s as arguments, each request is delayed by
//! the latency, and all responses share the bandwidth.

use forebay_rigs::{Link, S3Server};
use std::io::Read;
use std::time::Duration;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let server = match &args[..] {
        [] => S3Server::start(),
        [latency, bandwidth] => {
            let latency = latency.parse().expect("a latency in milliseconds");
            let bandwidth: u64 = bandwidth.parse().expect("a bandwidth in MB/s");
            S3Server::behind(Link::new(
                Duration::from_millis(latency),
                bandwidth * 1_000_000,
            ))
        }
        _ => panic!("expected no argument, or LATENCY_MS BANDWIDTH_MB"),
    };
    println!("{}", server.url());
    // Returns when the parent process has ended.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
