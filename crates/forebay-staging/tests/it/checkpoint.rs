//! Checkpoints in object stores: real servers, network faults and an outage.

use forebay_rigs::{BUCKET, FaultProxy, Moto, Plan, S3Server};
use forebay_staging::checkpoint::{
    Checkpoint, Error, Request, Saved, Uploader, UploaderOptions, latest, list, pin,
};
use forebay_store::{Cancel, Location, StoreOptions};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Timeout: no operation here takes this long unless it hangs.
const LONG: Duration = Duration::from_secs(120);

type Files = BTreeMap<String, Vec<u8>>;

struct Rig {
    area: tempfile::TempDir,
    options: StoreOptions,
    run: String,
}

impl Rig {
    fn new(url: String, settings: Vec<(&'static str, String)>) -> Self {
        let options = StoreOptions::new().with_endpoint(url);
        let options = settings
            .into_iter()
            .fold(options, |options, (name, value)| options.with(name, value));
        let area = tempfile::tempdir().unwrap();
        Self {
            area,
            options,
            run: format!("s3://{BUCKET}/runs/a"),
        }
    }

    fn place(&self, name: &str) -> Location {
        Location::parse(format!("{}/{name}", self.run)).unwrap()
    }

    fn buffer(&self) -> Uploader {
        Uploader::open(UploaderOptions::new(self.area.path())).unwrap()
    }

    fn request(&self, name: &str) -> Request {
        Request::new(self.place(name), self.options.clone())
    }

    fn save(&self, buffer: &Uploader, files: &Files, request: &Request) -> Saved {
        let draft = buffer.begin(0, LONG).unwrap().unwrap();
        for (name, bytes) in files {
            let mut file = draft.create(name).unwrap();
            file.write_all(bytes).unwrap();
            draft.finish(file).unwrap();
        }
        buffer.save(draft, request).unwrap()
    }

    fn load(&self, name: &str, area: Option<&Path>) -> Result<Files, Error> {
        let found = Checkpoint::open(&self.place(name), &self.options, area)?;
        let mut files = Files::new();
        for file in &found.manifest().parts[0].files {
            let mut bytes = vec![0; file.bytes as usize];
            found.read(0, file, &mut bytes, &Cancel::new())?;
            files.insert(file.name.clone(), bytes);
        }
        Ok(files)
    }

    fn steps(&self) -> Vec<u64> {
        let run = Location::parse(&self.run).unwrap();
        let found = list(&run, &self.options, None).unwrap();
        found.into_iter().filter_map(|found| found.step).collect()
    }
}

fn done(saved: &Saved) {
    match saved.wait_for(LONG) {
        Some(Ok(())) => {}
        other => panic!("{}: {other:?}, {:?}", saved.location(), saved.error()),
    }
}

/// Returns a file that is uploaded in several parts, a small one and an empty one.
fn files(seed: u8) -> Files {
    let large = (0..10_u32 << 20)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed)
        .collect();
    [
        ("large", large),
        ("deep/small", vec![seed; 100]),
        ("empty", Vec::new()),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

/// Saves, loads, replaces, pins and retires checkpoints; every server has to pass.
fn whole_life(rig: &Rig) {
    let buffer = rig.buffer();
    let keep = |name: &str| Request {
        keep: Some(2),
        ..rig.request(name)
    };
    for step in 1..=3_u8 {
        done(&rig.save(&buffer, &files(step), &keep(&format!("step-{step}"))));
    }
    assert_eq!(rig.steps(), [2, 3]);
    let run = Location::parse(&rig.run).unwrap();
    let last = latest(&run, &rig.options, None).unwrap();
    assert_eq!(last.as_deref(), Some("s3://bucket/runs/a/step-3"));
    assert_eq!(rig.load("step-3", None).unwrap(), files(3));
    assert_eq!(rig.load("step-3", Some(rig.area.path())).unwrap(), files(3));
    assert!(matches!(
        rig.load("step-1", None),
        Err(Error::Missing { .. })
    ));
    // A save replaces a checkpoint, or is refused and leaves it as it is.
    done(&rig.save(&buffer, &files(9), &rig.request("step-3")));
    assert_eq!(rig.load("step-3", None).unwrap(), files(9));
    let refused = Request {
        overwrite: false,
        ..rig.request("step-3")
    };
    let refused = rig.save(&buffer, &files(8), &refused);
    assert!(
        matches!(refused.wait_for(LONG), Some(Err(error)) if matches!(*error, Error::Exists { .. }))
    );
    pin(&rig.place("step-2"), &rig.options, true).unwrap();
    let one = Request {
        keep: Some(1),
        ..rig.request("step-4")
    };
    done(&rig.save(&buffer, &files(4), &one));
    assert_eq!(rig.steps(), [2, 4]);
    // A checkpoint of two ranks.
    let parts: Vec<Saved> = (0..2)
        .map(|rank| {
            let request = Request {
                rank,
                world_size: 2,
                attempt: Some("try".to_owned()),
                ..rig.request("step-5")
            };
            rig.save(&buffer, &files(rank as u8), &request)
        })
        .collect();
    parts.iter().for_each(done);
    let found = Checkpoint::open(&rig.place("step-5"), &rig.options, None).unwrap();
    assert_eq!(found.manifest().world_size(), 2);
    assert!(found.verify(&Cancel::new(), &|_| {}).unwrap().is_empty());
}

#[test]
fn in_a_server_that_checks_signatures() {
    let server = S3Server::start();
    let rig = Rig::new(server.url(), server.settings());
    whole_life(&rig);
    assert_eq!(server.open_uploads(), 0);
    // A byte that changed in the server is detected, and the error names the file.
    let found = Checkpoint::open(&rig.place("step-4"), &rig.options, None).unwrap();
    let key = format!("runs/a/step-4/{}", found.manifest().key(0, "large"));
    let path = server.object_file(&key);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[9 << 20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    match rig.load("step-4", None) {
        Err(Error::Corrupt { file, .. }) => assert_eq!(file, "large"),
        other => panic!("{:?}", other.map(|_| ())),
    }
    // No file in the staging area contains the secret key.
    let secret = server
        .settings()
        .into_iter()
        .find(|(name, _)| *name == "aws_secret_access_key")
        .unwrap()
        .1;
    let mut left = vec![rig.area.path().to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|kind| kind == "json") {
                assert!(!std::fs::read_to_string(&path).unwrap().contains(&secret));
            }
        }
    }
}

#[test]
fn in_moto() {
    if let Some(server) = Moto::start() {
        whole_life(&Rig::new(server.url(), server.settings()));
    }
}

#[test]
fn through_a_bad_network_and_an_outage() {
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 11, Plan::rough(0.2));
    let rig = Rig::new(proxy.url(), server.settings());
    let buffer = rig.buffer();
    done(&rig.save(&buffer, &files(1), &rig.request("step-1")));
    proxy.set_outage(true);
    let saved = rig.save(&buffer, &files(2), &rig.request("step-2"));
    assert_eq!(rig.load("step-2", Some(rig.area.path())).unwrap(), files(2));
    assert!(!saved.is_done());
    proxy.set_outage(false);
    done(&saved);
    proxy.set_plan(Plan::none());
    assert_eq!(rig.load("step-1", None).unwrap(), files(1));
    assert_eq!(rig.load("step-2", None).unwrap(), files(2));
}

#[test]
fn uploads_of_other_processes_stay_open() {
    let server = S3Server::start();
    let rig = Rig::new(server.url(), server.settings());
    for key in [
        "runs/a/step-1/other.bin",
        "runs/a/step-1",
        "runs/a/step-2/data-x/a",
    ] {
        server.begin_upload(key);
    }
    let buffer = rig.buffer();
    for step in ["step-1", "step-2", "step-3"] {
        let mut request = rig.request(step);
        request.keep = Some(1);
        done(&rig.save(&buffer, &files(1), &request));
    }
    assert_eq!(server.open_uploads(), 3);
}
