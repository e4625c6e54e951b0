//! Server processes are killed, stopped and started again at random times. The trainer gets the batches of an in-process
//! loader, byte for byte, each once and in order.
//!
//! `FOREBAY_TEST_KILLS` is the number of kills (24 by default), and `FOREBAY_TEST_SEED` the seed of their times.

use crate::support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_client::{Batch, Client, ClientOptions, Error, Stream, StreamOptions, Transport};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_shard::Dataset;
use support::{forebay, images, run, text};
use tempfile::TempDir;

const BATCH: u64 = 4;
const LONG: Duration = Duration::from_secs(60);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Xorshift, which is random enough to spread times.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn packed() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("shards");
    run(["pack", text(&images()), text(&root), "--format", "indexed"]).done();
    (dir, root)
}

/// A server process with its own directory and port, which it keeps after a restart.
struct Served {
    root: PathBuf,
    port: String,
    child: Child,
    _stdout: BufReader<ChildStdout>,
}

impl Served {
    fn start(root: &Path, port: &str) -> Served {
        let mut command = forebay();
        command
            .args(["serve", text(root), "--listen"])
            .arg(format!("127.0.0.1:{port}"));
        Served::run(command, root)
    }

    fn run(mut command: Command, root: &Path) -> Served {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut url = String::new();
        stdout.read_line(&mut url).unwrap();
        let (_, rest) = url.rsplit_once(':').expect("its URL comes first");
        Served {
            root: root.to_owned(),
            port: rest.split('/').next().unwrap().to_owned(),
            child,
            _stdout: stdout,
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.unwrap().success());
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn terminate(&mut self) {
        self.signal("TERM");
        assert!(self.child.wait().unwrap().success());
    }

    fn again(&mut self) {
        *self = Served::start(&self.root.clone(), &self.port.clone());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn options() -> Options {
    let mut options = Options::new(BATCH, Transform::Train(TrainTransform::new(32)));
    options.seed = 11;
    options
}

/// Returns the fields that identify a batch.
fn content(batch: &Batch) -> (u64, u64, u64, Vec<u64>, Vec<i64>, Vec<u8>) {
    let Batch {
        epoch,
        step,
        digest,
        samples,
        labels,
        payload,
        ..
    } = batch;
    (
        *epoch,
        *step,
        *digest,
        samples.clone(),
        labels.clone(),
        payload.to_vec(),
    )
}

fn open(url: &str, transport: Transport, epochs: u64) -> Stream {
    let client = ClientOptions {
        transport,
        reconnect_for: LONG,
        look_every: Duration::from_millis(50),
        ..ClientOptions::default()
    };
    let open = StreamOptions {
        epochs,
        ..StreamOptions::from(options().to_schema().with_split("train"))
    };
    Client::connect(url, client).unwrap().open(open).unwrap()
}

fn dying(transport: Transport, kills: u64, dice: &mut Dice) {
    let (_dir, root) = packed();
    let mut loader = Loader::new(
        Dataset::open(&root).unwrap().split("train").unwrap(),
        options(),
    )
    .unwrap();
    let mut servers = [Served::start(&root, "0"), Served::start(&root, "0")];
    let url = format!(
        "forebay://{},{}/shards",
        servers[0].address(),
        servers[1].address()
    );
    let per_epoch = loader.batches_per_epoch();
    let epochs = (kills * 4).div_ceil(per_epoch) + 2;
    let mut stream = open(&url, transport, epochs);
    let mut left = kills;
    let mut next = dice.below(4);
    for epoch in 0..epochs {
        let mut batches = 0;
        while let Some(batch) = stream.next_batch().unwrap() {
            let expected = loader
                .next_batch()
                .unwrap()
                .expect("as many batches as in process");
            assert_eq!(content(&batch), content(&expected), "{transport}");
            batches += 1;
            if next > 0 || left == 0 {
                next = next.saturating_sub(1);
                continue;
            }
            next = dice.below(5);
            left -= 1;
            let at = stream.server();
            let mine = usize::from(servers[0].address() != at);
            // A random time: the server may be reading, decoding or sending.
            std::thread::sleep(Duration::from_micros(dice.below(8000)));
            match dice.below(6) {
                0 => {
                    servers[0].kill();
                    servers[1].kill();
                    servers[1].again();
                    servers[0].again();
                }
                1 => {
                    servers[mine].terminate();
                    servers[mine].again();
                }
                2 => {
                    // Killed while the stream migrates away from it, or just after.
                    servers[mine].signal("TERM");
                    servers[mine].kill();
                    servers[mine].again();
                }
                _ => {
                    servers[mine].kill();
                    servers[mine].again();
                }
            }
        }
        assert!(loader.next_batch().unwrap().is_none());
        assert_eq!(batches, per_epoch);
        let (here, there) = (loader.epoch_digest(), stream.epoch_digest());
        assert_eq!((here, here.epoch, here.complete), (there, epoch, true));
    }
    assert_eq!(left, 0, "the epochs were too short");
    let stats = stream.stats();
    assert!(stats.reconnects + stats.handovers > 0, "{stats:?}");
    assert_eq!(
        stream
            .servers()
            .iter()
            .map(|used| used.batches)
            .sum::<u64>(),
        epochs * per_epoch
    );
}

#[test]
fn killed_servers_lose_or_repeat_no_batch() {
    let kills = number("FOREBAY_TEST_KILLS", 24);
    let seed = number("FOREBAY_TEST_SEED", 1);
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    dying(Transport::Tcp, kills / 2, &mut dice);
    #[cfg(target_os = "linux")]
    dying(Transport::Shm, kills - kills / 2, &mut dice);
}

/// Tests a server that hangs: its connections stay open, and the kernel accepts new ones for it.
fn hanging(transport: Transport) {
    let (_dir, root) = packed();
    let split = Dataset::open(&root).unwrap().split("train").unwrap();
    let mut loader = Loader::new(split, options()).unwrap();
    let servers = [Served::start(&root, "0"), Served::start(&root, "0")];
    let [a, b] = servers.each_ref().map(Served::address);
    let client = ClientOptions {
        transport,
        reconnect_for: LONG,
        // A working server sends something at least every 1.5 seconds.
        silence_timeout: Some(Duration::from_secs(2)),
        batch_timeout: Duration::from_millis(300),
        ..ClientOptions::default()
    };
    let all = format!("forebay://{a},{b}/shards");
    let connected = Client::connect(&all, client.clone()).unwrap();
    let mut stream = connected
        .open(options().to_schema().with_split("train"))
        .unwrap();
    let mut hangs: Option<String> = None;
    let (mut named, mut taken) = (false, 0);
    let began = Instant::now();
    while taken < 9 {
        assert!(
            began.elapsed() < LONG,
            "{taken} batches, {:?}",
            stream.stats()
        );
        match stream.next_batch() {
            Ok(batch) => {
                let expected = loader.next_batch().unwrap();
                let [batch, expected] = [batch, expected].map(|batch| batch.as_ref().map(content));
                assert_eq!(batch, expected, "{transport}");
                // Batches that have arrived before are used first.
                taken += usize::from(hangs.is_none() || hangs != Some(stream.server()));
            }
            Err(Error::Waited { server, what, .. }) => {
                assert!(what.starts_with("the batch at epoch"), "{what}");
                named |= Some(server) == hangs;
            }
            Err(e) => panic!("{transport}: {e}"),
        }
        if hangs.is_none() && taken == 3 {
            let server = stream.server();
            servers[usize::from(server != a)].signal("STOP");
            hangs = Some(server);
        }
    }
    assert!(named, "no error named the server that was waited for");
    assert!(stream.stats().reconnects > 0, "{:?}", stream.stats());
    // A new trainer does not wait for the hanging server either, and its error names the server.
    let hangs = hangs.unwrap();
    let client = ClientOptions {
        connect_timeout: Duration::from_millis(300),
        ..client
    };
    let e = Client::connect(&format!("forebay://{hangs}/shards"), client).err();
    let e = e.expect("no server answers").to_string();
    assert!(e.contains(&hangs) && e.contains("Hello"), "{e}");
}

#[test]
fn a_hanging_server_is_named_and_replaced() {
    std::thread::scope(|scope| {
        scope.spawn(|| hanging(Transport::Tcp));
        #[cfg(target_os = "linux")]
        scope.spawn(|| hanging(Transport::Shm));
    });
}

/// Set for the test below when it runs again, in a network namespace.
#[cfg(target_os = "linux")]
const WITHIN: &str = "FOREBAY_TEST_WITHIN";

#[cfg(target_os = "linux")]
#[test]
fn a_connection_cut_within_a_batch_changes_nothing() {
    const NAME: &str = "killed_servers::a_connection_cut_within_a_batch_changes_nothing";
    if std::env::var_os(WITHIN).is_some() {
        return cut_link();
    }
    let alone = |words: &[&str]| Command::new("unshare").arg("--net").args(words).output();
    match alone(&[
        "ip", "link", "add", "near", "type", "veth", "peer", "name", "far",
    ]) {
        Ok(tried) if tried.status.success() => {}
        Ok(tried) => {
            let why = String::from_utf8_lossy(&tried.stderr);
            return eprintln!("skipped: no network of its own can be had here: {why}");
        }
        Err(e) => return eprintln!("skipped: no network of its own can be had here: {e}"),
    }
    let this = std::env::current_exe().unwrap();
    let ran = Command::new("unshare")
        .arg("--net")
        .arg(this)
        .args(["--exact", NAME, "--nocapture"])
        .env(WITHIN, "1")
        .output()
        .unwrap();
    let said = [&ran.stdout[..], &ran.stderr].concat();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// Runs in its own network namespace, with the server in another one.
#[cfg(target_os = "linux")]
fn cut_link() {
    fn must(words: &[&str]) {
        let ran = Command::new(words[0]).args(&words[1..]).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{words:?}: {said}");
    }
    /// Keeps the network namespace of the server.
    struct Holder(Child);
    impl Drop for Holder {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let holder = Command::new("unshare")
        .args(["--net", "sleep", "600"])
        .spawn();
    let holder = Holder(holder.unwrap());
    let pid = holder.0.id().to_string();
    let network = format!("/proc/{pid}/ns/net");
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    let began = Instant::now();
    while std::fs::read_link(&network).unwrap() == own {
        assert!(began.elapsed() < LONG);
        std::thread::yield_now();
    }
    let there = format!("--net={network}");
    let veth = ["type", "veth", "peer", "name", "far", "netns", &pid];
    must(&[&["ip", "link", "add", "near"], &veth[..]].concat());
    must(&["ip", "address", "add", "10.77.0.1/24", "dev", "near"]);
    must(&["ip", "link", "set", "near", "up"]);
    must(&[
        "nsenter",
        &there,
        "ip",
        "address",
        "add",
        "10.77.0.2/24",
        "dev",
        "far",
    ]);
    must(&["nsenter", &there, "ip", "link", "set", "far", "up"]);
    // Slow enough that the link is cut within a batch, which is likely even without a shaper.
    let slow = ["tc", "qdisc", "add", "dev", "far", "root", "tbf"];
    let rate = ["rate", "100mbit", "burst", "64kb", "latency", "50ms"];
    let _ = Command::new("nsenter")
        .arg(&there)
        .args(slow)
        .args(rate)
        .output();

    let (_dir, root) = packed();
    let mut options = options();
    options.transform = Transform::Train(TrainTransform::new(256));
    let split = Dataset::open(&root).unwrap().split("train").unwrap();
    let mut loader = Loader::new(split, options.clone()).unwrap();
    let program = forebay().get_program().to_owned();
    let mut command = Command::new("nsenter");
    command.arg(&there).arg(program);
    command.args([
        "serve",
        text(&root),
        "--listen",
        "10.77.0.2:0",
        "--insecure",
    ]);
    let server = Served::run(command, &root);
    let client = ClientOptions {
        silence_timeout: Some(Duration::from_secs(2)),
        reconnect_for: LONG,
        ..ClientOptions::default()
    };
    let url = format!("forebay://10.77.0.2:{}/shards", server.port);
    let connected = Client::connect(&url, client).unwrap();
    let mut stream = connected
        .open(options.to_schema().with_split("train"))
        .unwrap();
    assert_eq!(
        stream.via().name(),
        "tcp",
        "another network is another host"
    );
    let watcher = stream.interrupter();
    let mut after = 0;
    std::thread::scope(|scope| {
        for taken in 1.. {
            let (batch, expected) = (stream.next_batch(), loader.next_batch());
            let [batch, expected] =
                [batch.unwrap(), expected.unwrap()].map(|batch| batch.as_ref().map(content));
            assert_eq!(batch, expected);
            if taken == 3 {
                must(&["ip", "link", "set", "near", "down"]);
                let watcher = &watcher;
                scope.spawn(move || {
                    // The link is down until the connection was given up and a new one could not be made.
                    let began = Instant::now();
                    while watcher.stats().retries == 0 && began.elapsed() < LONG {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    must(&["ip", "link", "set", "near", "up"]);
                });
            }
            after += usize::from(stream.stats().reconnects > 0);
            if after == 6 {
                break;
            }
        }
    });
    let stats = stream.stats();
    assert!(stats.retries > 0 && stats.reconnects > 0, "{stats:?}");
}
