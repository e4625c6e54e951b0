//! Server processes that are killed, stopped and started again at random moments: the trainer's batches are those of a
//! loader in process, byte for byte, each once and in order.
//!
//! `FOREBAY_TEST_KILLS` says how many servers die (24 by default), `FOREBAY_TEST_SEED` when.

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use forebay_client::{Batch, Client, ClientOptions, OpenOptions, Stream, Transport};
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

/// Xorshift: moments have to be scattered, no more.
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

/// A server process at a place of its own, which it keeps.
struct Served {
    root: PathBuf,
    port: String,
    child: Child,
    _stdout: BufReader<ChildStdout>,
}

impl Served {
    fn start(root: &Path, port: &str) -> Served {
        let mut child = forebay()
            .args(["serve", text(root), "--listen"])
            .arg(format!("127.0.0.1:{port}"))
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

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn terminate(&mut self) {
        let pid = self.child.id().to_string();
        let status = std::process::Command::new("kill")
            .args(["-s", "TERM", &pid])
            .status();
        assert!(status.unwrap().success());
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

/// What tells a batch apart.
fn content(batch: &Batch) -> (u64, u64, u64, Vec<u64>, Vec<i64>, Vec<u8>) {
    let Batch {
        epoch,
        step,
        digest,
        samples,
        labels,
        images,
        ..
    } = batch;
    (
        *epoch,
        *step,
        *digest,
        samples.clone(),
        labels.clone(),
        images.to_vec(),
    )
}

fn open(url: &str, transport: Transport, epochs: u64) -> Stream {
    let client = ClientOptions {
        transport,
        reconnect_for: LONG,
        look_every: Duration::from_millis(50),
        ..ClientOptions::default()
    };
    let open = OpenOptions {
        epochs,
        ..OpenOptions::from(options().to_spec("train"))
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
            // Anywhere in what it does: it reads, decodes or sends.
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
                    // Killed while the stream goes over from it, or just after.
                    let pid = servers[mine].child.id().to_string();
                    let _ = std::process::Command::new("kill")
                        .args(["-s", "TERM", &pid])
                        .status();
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
fn servers_die_at_any_moment_and_no_batch_is_lost_or_repeated() {
    let kills = number("FOREBAY_TEST_KILLS", 24);
    let seed = number("FOREBAY_TEST_SEED", 1);
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    dying(Transport::Tcp, kills / 2, &mut dice);
    #[cfg(target_os = "linux")]
    dying(Transport::Shm, kills - kills / 2, &mut dice);
}

#[test]
fn what_a_trainer_notices_is_measured() {
    let (_dir, root) = packed();
    let small = ["--batch-size", "4", "--side", "16", "--json"];
    let bench = |what: &str, more: &[&str]| {
        let ran = run(["bench", what, text(&root)]
            .iter()
            .chain(&small)
            .chain(more));
        ran.done()
            .events()
            .into_iter()
            .find(|event| event["type"] == "bench")
            .unwrap()
    };
    let failover = bench("failover", &["--runs", "1"]);
    let rows = failover["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{failover}");
    for row in rows {
        assert!(row["median"].as_f64() <= row["max"].as_f64(), "{failover}");
    }
    let replaced = failover["notes"].to_string();
    assert!(
        replaced.contains("1 times a lost server was replaced, 1 times one handed over"),
        "{replaced}"
    );
    let fairness = bench(
        "fairness",
        &["--seconds", "0.2", "--slow", "20", "--active", "3"],
    );
    assert_eq!(
        fairness["rows"][0]["rates"].as_array().unwrap().len(),
        3,
        "{fairness}"
    );
    assert_eq!(
        fairness["rows"][1]["rates"].as_array().unwrap().len(),
        2,
        "{fairness}"
    );
    let clients = bench(
        "clients",
        &["--seconds", "0.2", "--idle", "5", "--active", "2"],
    );
    for row in clients["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        assert!(
            row["median"].as_f64().unwrap() > 0.0 || name.contains("processor"),
            "{clients}"
        );
    }
}
