//! The S3 rig as a process, for `tools/bench_store.py`: prints its URL, and ends when its standard
//! input is closed.

use forebay_rigs::S3Server;
use std::io::Read;

fn main() {
    let server = S3Server::start();
    println!("{}", server.url());
    // Returns when the parent process has ended.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
