//! The staging area: submitted files arrive at their destinations, also after failures and crashes.

use forebay_staging::{AreaOptions, Item, StagingArea};
use forebay_store::{Cancel, Error, Location};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("there")).unwrap();
        Self { dir }
    }

    fn area(&self) -> PathBuf {
        self.dir.path().join("area")
    }

    fn there(&self, key: &str) -> PathBuf {
        self.dir.path().join("there").join(key)
    }

    fn options(&self) -> AreaOptions {
        let mut options = AreaOptions::new(self.area());
        options.max_bytes = Some(1 << 20);
        options
    }

    fn paused(&self) -> AreaOptions {
        let mut options = self.options();
        options.paused = true;
        options
    }

    fn location(&self) -> Location {
        Location::from(self.dir.path().join("there"))
    }

    fn hand_in(&self, area: &StagingArea, key: &str, bytes: &[u8]) -> Result<(), Error> {
        let room = area.reserve(bytes.len() as u64, &Cancel::new())?;
        let mut file = area.create(&key.replace('/', "-"))?;
        file.write_all(bytes).unwrap();
        let sealed = file.seal()?;
        let item = Item {
            file: sealed.path,
            destination: self.location(),
            key: key.to_owned(),
            crc32c: Some(sealed.crc32c),
        };
        area.submit(item, room)
    }

    fn is_there(&self, key: &str) -> bool {
        self.there(key).exists()
    }

    fn sessions(&self) -> usize {
        StagingArea::look(&self.area()).unwrap().sessions.len()
    }
}

#[test]
fn files_arrive_and_the_area_is_empty() {
    let place = Place::new();
    let area = StagingArea::open(&place.options()).unwrap();
    for number in 0..20u8 {
        let key = format!("a/b{number}");
        place.hand_in(&area, &key, &vec![number; 1000]).unwrap();
    }
    area.wait(&Cancel::new()).unwrap();
    for number in 0..20u8 {
        assert_eq!(
            std::fs::read(place.there(&format!("a/b{number}"))).unwrap(),
            vec![number; 1000]
        );
    }
    let progress = area.progress();
    assert_eq!((progress.stored_files, progress.stored_bytes), (20, 20_000));
    area.close().unwrap();
    assert_eq!(place.sessions(), 0);
}

#[test]
fn reserve_waits_while_the_area_is_full() {
    let place = Place::new();
    let area = StagingArea::open(&place.paused()).unwrap();
    place.hand_in(&area, "first", &vec![1; 600 << 10]).unwrap();
    // A second `StagingArea` in the same directory, as in another process.
    let other = StagingArea::open(&place.options()).unwrap();
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = &other;
        scope.spawn(move || {
            let room = other.reserve(700 << 10, &Cancel::new()).unwrap();
            sender.send(room.bytes()).unwrap();
        });
        let small = area.reserve(400 << 10, &Cancel::new()).unwrap();
        assert!(receiver.try_recv().is_err(), "there was no room");
        area.resume();
        area.wait(&Cancel::new()).unwrap();
        // 400 of 1,024 KiB are taken.
        assert!(receiver.try_recv().is_err(), "there is no room yet");
        drop(small);
        assert_eq!(receiver.recv().unwrap(), 700 << 10);
    });
}

#[test]
fn waits_for_room_end_if_cancelled_or_hopeless() {
    let place = Place::new();
    let area = StagingArea::open(&place.paused()).unwrap();
    let error = area.reserve((1 << 20) + 1, &Cancel::new()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::AreaTooSmall {
                needed_bytes: 1_048_577,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.hint().is_some());
    let all = area.reserve(1 << 20, &Cancel::new()).unwrap();
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| area.reserve(1, &cancel));
        cancel.cancel();
        assert!(matches!(
            waiting.join().unwrap(),
            Err(Error::Cancelled { .. })
        ));
    });
    drop(all);
    // The files of a process that has ended are not uploaded by others, so a wait for room would never end.
    place.hand_in(&area, "left", &vec![0; 512 << 10]).unwrap();
    drop(area);
    let area = StagingArea::open(&place.options()).unwrap();
    let error = area.reserve(600 << 10, &Cancel::new()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::AreaTooSmall {
                left_bytes: 524_288,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("stage --drain"), "{error}");
    let recovered = StagingArea::recover(&place.options(), &Cancel::new()).unwrap();
    assert_eq!(
        (recovered.stored_files, recovered.stored_bytes),
        (1, 512 << 10)
    );
    area.reserve(600 << 10, &Cancel::new()).unwrap();
    assert!(place.is_there("left"));
}

#[test]
fn a_failure_is_returned_once_and_keeps_the_file() {
    let place = Place::new();
    // A file exists where the upload needs a directory, so no retry helps.
    std::fs::write(place.there("in-the-way"), "x").unwrap();
    let area = StagingArea::open(&place.paused()).unwrap();
    place.hand_in(&area, "good", b"1").unwrap();
    place.hand_in(&area, "in-the-way/bad", b"22").unwrap();
    place.hand_in(&area, "alone", b"4444").unwrap();
    area.resume();
    let error = area.wait(&Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::Undelivered { .. }), "{error}");
    assert!(place.is_there("good") && place.is_there("alone"));
    // The next call returns the error, once.
    assert!(matches!(
        area.reserve(1, &Cancel::new()),
        Err(Error::Undelivered { .. })
    ));
    drop(area.reserve(1, &Cancel::new()).unwrap());
    let status = area.status().unwrap();
    assert!(status.sessions[0].owner.is_some());
    let left: Vec<_> = status.sessions[0]
        .left
        .iter()
        .map(|left| (left.len, left.error.is_some()))
        .collect();
    assert_eq!(left, [(2, true)]);
    std::fs::remove_file(place.there("in-the-way")).unwrap();
    drop(area);
    // The next session retries the failed upload.
    StagingArea::recover(&place.options(), &Cancel::new()).unwrap();
    assert!(place.is_there("in-the-way/bad"));
}

#[test]
fn a_named_session_continues_and_has_one_owner() {
    let place = Place::new();
    let mut options = place.paused();
    options.session = Some("mine".into());
    options.title = "what it is for".into();
    let area = StagingArea::open(&options).unwrap();
    place.hand_in(&area, "k", b"bytes").unwrap();
    assert!(matches!(
        StagingArea::open(&options),
        Err(Error::Locked { .. })
    ));
    drop(area);
    let seen = StagingArea::look(&place.area()).unwrap();
    assert_eq!(seen.sessions[0].title, "what it is for");
    assert_eq!(
        (seen.sessions[0].held_bytes, seen.sessions[0].owner.as_ref()),
        (5, None)
    );
    let area = StagingArea::open(&options).unwrap();
    assert_eq!(area.files(), [PathBuf::from("k")].into());
    assert!(!place.is_there("k"));
    area.resume();
    area.wait(&Cancel::new()).unwrap();
    assert!(place.is_there("k"));
    area.remove().unwrap();
    assert_eq!(place.sessions(), 0);
}

#[test]
fn only_regular_files_of_the_session_are_accepted() {
    let place = Place::new();
    let area = StagingArea::open(&place.options()).unwrap();
    let secret = place.dir.path().join("secret");
    std::fs::write(&secret, "x").unwrap();
    let link = area.data_dir().join("link");
    std::os::unix::fs::symlink(&secret, &link).unwrap();
    let hard = area.data_dir().join("hard");
    std::fs::hard_link(&secret, &hard).unwrap();
    for file in [
        secret,
        link,
        hard,
        area.data_dir(),
        area.data_dir().join("../../x"),
    ] {
        let item = Item {
            file: file.clone(),
            destination: place.location(),
            key: "k".into(),
            crc32c: None,
        };
        let room = area.reserve(1, &Cancel::new()).unwrap();
        assert!(area.submit(item, room).is_err(), "{}", file.display());
    }
    assert!(area.create("../x").is_err());
}

const CHILD: &str = "FOREBAY_TEST_STAGE_CHILD";
/// The environment variable with the number of kills in the test below.
const KILLS: &str = "FOREBAY_TEST_KILLS";

fn content(number: u64) -> Vec<u8> {
    (0..20_000 + number * 997 % 50_000)
        .map(|at| (at * 31 + number * 7) as u8)
        .collect()
}

/// The child process of the test below: submits files, and prints the number of each file once it is durable. Does nothing
/// without the environment variable.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let dir = Path::new(&dir);
    let area = StagingArea::open(&AreaOptions::new(dir.join("area"))).unwrap();
    let mut out = std::io::stdout();
    for number in 0.. {
        let bytes = content(number);
        let room = area.reserve(bytes.len() as u64, &Cancel::new()).unwrap();
        let mut file = area.create(&number.to_string()).unwrap();
        file.write_all(&bytes).unwrap();
        let sealed = file.seal().unwrap();
        let item = Item {
            file: sealed.path,
            destination: Location::from(dir.join("there")),
            key: format!("{number}"),
            crc32c: Some(sealed.crc32c),
        };
        area.submit(item, room).unwrap();
        writeln!(out, "safe {number}").unwrap();
    }
}

#[test]
fn no_submitted_file_is_lost_by_a_kill() {
    let kills = std::env::var(KILLS)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(6);
    for kill in 0..kills {
        let place = Place::new();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["stage::child", "--exact", "--test-threads=1", "--nocapture"])
            .env(CHILD, place.dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut safe = BTreeMap::new();
        // Kills the child after this many submitted files; the progress of their uploads is random.
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some(number) = line
                .strip_prefix("safe ")
                .and_then(|text| text.parse::<u64>().ok())
            {
                safe.insert(number, content(number));
            }
            if safe.len() as u64 > kill * 3 % 40 {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            if let Some(number) = line
                .strip_prefix("safe ")
                .and_then(|text| text.parse::<u64>().ok())
            {
                safe.insert(number, content(number));
            }
        }
        assert!(!safe.is_empty());
        StagingArea::recover(&place.options(), &Cancel::new()).unwrap();
        for (number, bytes) in &safe {
            assert!(
                std::fs::read(place.there(&number.to_string())).unwrap() == *bytes,
                "{number}"
            );
        }
        assert_eq!(place.sessions(), 0, "kill {kill}");
        // The destination has no partly written files either.
        for entry in std::fs::read_dir(place.there("")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let number: u64 = name.parse().unwrap_or_else(|_| panic!("{name} was left"));
            assert!(
                std::fs::read(place.there(&name)).unwrap() == content(number),
                "{name}"
            );
        }
    }
}
