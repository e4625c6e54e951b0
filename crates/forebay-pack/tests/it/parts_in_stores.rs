//! Parts that are written into a store: whatever is killed, repeated or written twice, the objects are those of one machine.

mod schedules;

use crate::support;

use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, DatasetFormat, Error, FinishOptions, Observer,
    OutputFormat, PackOptions, Part, PartSummary, Result, ShardDone, Sharding, Summary, convert,
    convert_part, finish, finish_conversion, plan_conversion, prepare, prepare_part,
};
use forebay_rigs::{Azurite, BUCKET, Denied, FaultProxy, Moto, Plan, S3Server};
use forebay_store::{Location, Retry, Store, StoreOptions};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use support::*;

/// A source, a dataset of one machine in `whole`, and a store.
struct Rig {
    dir: tempfile::TempDir,
    server: S3Server,
    src: PathBuf,
    format: DatasetFormat,
    service: Service,
}

/// The destination of the parts.
enum Service {
    /// The S3 server of the rig.
    S3,
    Moto(Moto),
    Azurite(Azurite),
    Directory,
}

impl Service {
    /// Those of other projects that are installed, and a directory.
    fn others() -> impl Iterator<Item = Self> {
        let moto = Moto::start().map(Self::Moto);
        let azurite = Azurite::start().map(Self::Azurite);
        [Some(Self::Directory), moto, azurite].into_iter().flatten()
    }
}

impl Rig {
    fn new(format: DatasetFormat) -> Self {
        Self::at(Service::S3, format)
    }

    fn at(service: Service, format: DatasetFormat) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let src = dir.path().join("src");
        for split in ["train", "val"] {
            tree(&src.join(split), 3, 10);
        }
        put(&src, b"train/n00000001/bad.jpg", b"bad");
        let rig = Self {
            server: S3Server::start(),
            src,
            format,
            service,
            dir,
        };
        run(&rig.options_to(rig.dir.path().join("whole").as_path())).unwrap();
        rig
    }

    fn options_to(&self, dst: impl Into<Location>) -> PackOptions {
        let mut options = options(&self.src, Path::new(""));
        options.dst = dst.into();
        options.format = self.format;
        options
    }

    fn place(&self, name: &str) -> Location {
        let scheme = match &self.service {
            Service::S3 | Service::Moto(_) => "s3",
            Service::Azurite(_) => "az",
            Service::Directory => return Location::from(self.dir.path().join(name).as_path()),
        };
        Location::parse(format!("{scheme}://{BUCKET}/{name}")).unwrap()
    }

    fn address(&self) -> SocketAddr {
        match &self.service {
            Service::S3 | Service::Directory => self.server.address(),
            Service::Moto(moto) => moto.address(),
            Service::Azurite(azurite) => azurite.address(),
        }
    }

    fn url_at(&self, address: SocketAddr) -> String {
        match &self.service {
            Service::Azurite(azurite) => azurite.url_at(address),
            _ => format!("http://{address}"),
        }
    }

    fn reach(&self, url: String) -> StoreOptions {
        let retry = Retry {
            first_wait: Duration::from_millis(1),
            max_wait: Duration::from_millis(20),
            ..Retry::default()
        };
        let start = StoreOptions::new().with_endpoint(url).with_retry(retry);
        let settings = match &self.service {
            Service::S3 | Service::Directory => S3Server::keys(),
            Service::Moto(moto) => moto.settings(),
            Service::Azurite(azurite) => azurite.settings(),
        };
        settings
            .into_iter()
            .fold(start, |options, (name, value)| options.with(name, value))
    }

    fn store(&self, name: &str) -> Store {
        let url = self.url_at(self.address());
        Store::open(&self.place(name), &self.reach(url)).unwrap()
    }

    /// Options of a machine, which has a staging area of its own.
    fn machine(&self, name: &str, machine: &str, url: String) -> PackOptions {
        let mut options = self.options_to(self.place(name));
        if options.dst.is_remote() {
            options.upload.staging_dir = Some(self.dir.path().join("areas").join(machine));
        }
        options.upload.store = self.reach(url);
        options
    }

    fn objects(&self, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let store = self.store(name);
        let listed = store.list("").unwrap().into_iter();
        listed
            .map(|object| {
                let bytes = store.get(&object.key, 64 << 20).unwrap();
                (PathBuf::from(object.key), bytes)
            })
            .collect()
    }

    /// Removes probes for conditional puts that could not be deleted. Readers ignore them.
    fn remove_probes(&self, name: &str) {
        let store = self.store(name);
        let left = store.list("").unwrap().into_iter();
        let left = left.filter(|object| object.key.starts_with(".forebay-probe-"));
        left.for_each(|probe| store.delete(&probe.key).unwrap());
    }

    /// Returns whether an object is a file of one machine, or hidden.
    fn is_of_whole(&self, key: &Path) -> bool {
        let is_hidden = key.to_str().is_some_and(|key| key.starts_with('.'));
        is_hidden || self.dir.path().join("whole").join(key).exists()
    }

    /// Checks that the store has the files of one machine, and nothing else.
    #[track_caller]
    fn assert_whole(&self, name: &str) {
        let (found, whole) = (self.objects(name), contents(&self.dir.path().join("whole")));
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            whole.keys().collect::<Vec<_>>()
        );
        assert!(found == whole, "the bytes differ");
    }
}

fn part(number: u32, count: u32) -> Part {
    Part::new(number, count).unwrap()
}

fn run_part(options: &PackOptions, number: u32, count: u32) -> Result<PartSummary> {
    let cancel = Cancel::new();
    prepare_part(options, &(), &cancel)?.run_part(part(number, count), &(), &cancel)
}

fn record_plan(options: &PackOptions) -> Result<bool> {
    prepare(options, &(), &Cancel::new())?.record_plan(&())
}

fn join(options: &PackOptions) -> Result<Summary> {
    let mut how = FinishOptions::new(options.dst.clone());
    how.upload = options.upload.clone();
    finish(&how, None, &(), &Cancel::new())
}

/// Stops a part after some shards.
struct StopAfter(u64, std::sync::atomic::AtomicU64, Cancel);

impl Observer for StopAfter {
    fn shard_done(&self, _: &ShardDone) {
        if self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 >= self.0 {
            self.2.cancel();
        }
    }
}

fn interrupt_part(options: &PackOptions, number: u32, count: u32, shards: u64) {
    let cancel = Cancel::new();
    let stop = StopAfter(shards, 0.into(), cancel.clone());
    let prepared = prepare_part(options, &(), &cancel).unwrap();
    match prepared.run_part(part(number, count), &stop, &cancel) {
        // A part of few shards may be done first.
        Ok(_) | Err(Error::Interrupted { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn joined_parts_equal_the_pack_of_one_machine() {
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let rig = Rig::new(format);
        let machine = |name| rig.machine("set", name, rig.server.url());
        assert!(!record_plan(&machine("head")).unwrap());
        assert!(record_plan(&machine("head")).unwrap());
        let summaries: Vec<PartSummary> = std::thread::scope(|scope| {
            let parts = (1..=3).map(|number| {
                let options = machine(["a", "b", "c"][number as usize - 1]);
                scope.spawn(move || run_part(&options, number, 3).unwrap())
            });
            let parts: Vec<_> = parts.collect();
            parts.into_iter().map(|part| part.join().unwrap()).collect()
        });
        assert_eq!(summaries.iter().map(|part| part.records).sum::<u64>(), 60);
        assert!(summaries.iter().all(|part| part.uploaded.is_some()));
        let bytes = rig.store("set").head("forebay.json").unwrap();
        assert!(bytes.is_none(), "nothing is published yet");
        // A machine without the files of the others repeats a part: its shards are there.
        let again = run_part(&machine("d"), 2, 3).unwrap();
        assert_eq!(again.resumed_shards, again.shards);
        let joined = join(&machine("head")).unwrap();
        assert_eq!(joined.records(), 60);
        rig.assert_whole("set");
        assert!(run_part(&machine("d"), 1, 3).unwrap().already_complete);
        assert!(join(&machine("head")).unwrap().already_complete);
        assert!(run(&machine("d")).unwrap().already_complete);
        rig.assert_whole("set");
        let areas = rig.dir.path().join("areas");
        let left = contents(&areas).into_keys();
        let left: Vec<_> = left
            .filter(|path| path.to_string_lossy().contains("train-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn missing_shards_are_named_with_their_parts() {
    let rig = Rig::new(DatasetFormat::TfRecord);
    let options = rig.machine("set", "a", rig.server.url());
    let error = join(&options).unwrap_err().to_string();
    assert!(error.contains("no part has been packed"), "{error}");
    run_part(&options, 1, 3).unwrap();
    // With one job, the second shard of the part does not begin.
    let mut one_job = options.clone();
    one_job.jobs = Some(1);
    interrupt_part(&one_job, 3, 3, 1);
    let store = rig.store("set");
    let missing = |expected: &[u32]| {
        let Error::Missing { parts, total, .. } = join(&options).unwrap_err() else {
            panic!("shards are missing")
        };
        assert_eq!(total, 8);
        let expected: Vec<_> = expected.iter().map(|number| part(*number, 3)).collect();
        assert_eq!(parts, expected);
        assert!(store.head("forebay.json").unwrap().is_none());
    };
    missing(&[2, 3]);
    run_part(&options, 3, 3).unwrap();
    run_part(&options, 2, 3).unwrap();
    // A shard that was removed or changed since counts as missing.
    store.delete("train-00001-of-00004").unwrap();
    missing(&[2]);
    run_part(&options, 2, 3).unwrap();
    let object = rig.server.object_file("set/validation-00000-of-00004");
    let content = std::fs::read(&object).unwrap();
    std::fs::write(&object, &content[1..]).unwrap();
    missing(&[2]);
    run_part(&options, 2, 3).unwrap();
    join(&options).unwrap();
    rig.assert_whole("set");
}

#[test]
fn parts_with_other_options_or_sources_are_refused() {
    let rig = Rig::new(DatasetFormat::TfRecord);
    let options = rig.machine("set", "a", rig.server.url());
    run_part(&options, 1, 2).unwrap();
    let mut other = rig.machine("set", "b", rig.server.url());
    other.seed = 7;
    let error = run_part(&other, 2, 2).unwrap_err();
    assert!(matches!(error, Error::DifferentPart { .. }), "{error}");
    assert!(error.to_string().contains("seed: then 0, now 7"), "{error}");
    let error = record_plan(&other).unwrap_err();
    assert!(matches!(error, Error::DifferentPack { .. }), "{error}");
    // The source changes between two parts: a new plan replaces what was written.
    put(
        &rig.src,
        b"train/n00000002/new.jpg",
        &jpeg(20, 20, 3, b"new"),
    );
    let later = SystemTime::now() + Duration::from_secs(60);
    for path in contents(&rig.src).into_keys() {
        let file = File::options().write(true).open(rig.src.join(path));
        file.unwrap().set_modified(later).unwrap();
    }
    let error = run_part(&options, 2, 2).unwrap_err().to_string();
    assert!(error.contains("was modified since"), "{error}");
    assert!(!record_plan(&options).unwrap());
    for number in 1..=2 {
        let summary = run_part(&options, number, 2).unwrap();
        assert_eq!(summary.resumed_shards, 0);
    }
    assert_eq!(join(&options).unwrap().records(), 61);
    // Another dataset is replaced only on request.
    let error = run_part(&other, 1, 2).unwrap_err();
    assert!(matches!(error, Error::OtherDataset { .. }), "{error}");
    other.overwrite = true;
    assert!(!record_plan(&other).unwrap());
    other.overwrite = false;
    let error = join(&options).unwrap_err();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
}

#[test]
fn a_part_whose_plan_was_replaced_is_not_recorded() {
    let rig = Rig::new(DatasetFormat::TfRecord);
    let options = rig.machine("set", "a", rig.server.url());
    let mut other = rig.machine("set", "b", rig.server.url());
    other.seed = 7;
    other.overwrite = true;
    struct Replace<'a>(&'a PackOptions);
    impl Observer for Replace<'_> {
        fn shard_done(&self, _: &ShardDone) {
            record_plan(self.0).unwrap();
        }
    }
    let cancel = Cancel::new();
    let prepared = prepare(&options, &(), &cancel).unwrap();
    let error = prepared
        .run_part(part(1, 8), &Replace(&other), &cancel)
        .unwrap_err();
    assert!(matches!(error, Error::DifferentPart { .. }), "{error}");
    other.overwrite = false;
    for number in 1..=8 {
        run_part(&other, number, 8).unwrap();
    }
    assert_eq!(join(&other).unwrap().records(), 60);
}

#[test]
fn a_pack_without_parts_and_parts_refuse_each_other() {
    let rig = Rig::new(DatasetFormat::TfRecord);
    let alone = rig.machine("set", "a", rig.server.url());
    let cancel = Cancel::new();
    let stop = StopAfter(1, 0.into(), cancel.clone());
    let prepared = prepare(&alone, &(), &cancel).unwrap();
    let error = prepared.run(&stop, &cancel).unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    let parts = rig.machine("set", "b", rig.server.url());
    for error in [
        run_part(&parts, 1, 2).unwrap_err(),
        record_plan(&parts).unwrap_err(),
        join(&parts).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Claimed { .. }), "{error}");
    }
    let mut instead = parts.clone();
    instead.overwrite = true;
    record_plan(&instead).unwrap();
    let error = run(&alone).unwrap_err().to_string();
    assert!(error.contains("holds a pack in parts"), "{error}");
    run_part(&parts, 1, 1).unwrap();
    join(&parts).unwrap();
    rig.assert_whole("set");
}

#[test]
fn objects_of_others_are_refused_and_kept() {
    let rig = Rig::new(DatasetFormat::TfRecord);
    let options = rig.machine("set", "a", rig.server.url());
    let store = rig.store("set");
    let put = |key: &str| store.put(key, b"x", forebay_store::Put::Always).unwrap();
    put("thesis.tex");
    for error in [
        run_part(&options, 1, 1).unwrap_err(),
        record_plan(&options).unwrap_err(),
        join(&options).unwrap_err(),
    ] {
        assert!(error.to_string().contains("thesis.tex"), "{error}");
    }
    assert_eq!(store.list("").unwrap().len(), 1);
    store.delete("thesis.tex").unwrap();
    run_part(&options, 1, 1).unwrap();
    put("train-00000-of-00003");
    let error = join(&options).unwrap_err().to_string();
    assert!(error.contains("train-00000-of-00003"), "{error}");
    store.delete("train-00000-of-00003").unwrap();
    // A record that cannot be read counts as none.
    let record = ".forebay-pack/part-00001-of-00001";
    put(record);
    let error = join(&options).unwrap_err();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
    put(".forebay-pack/plan");
    let error = join(&options).unwrap_err().to_string();
    assert!(error.contains("plan of the parts is damaged"), "{error}");
}

/// A bucket without the permission to list, to write, or to delete: one sentence names the request, and nothing is
/// published, or, if only the deletion of what is temporary fails, the whole dataset.
#[test]
fn missing_permissions_are_named() {
    let lists: Denied = |method, target| method == "GET" && target.contains("list-type");
    let writes: Denied = |method, target| method == "PUT" && target.contains("train-00002");
    let records: Denied = |method, target| method == "PUT" && target.contains("part-0000");
    let deletes: Denied = |method, _| method == "DELETE";
    for (number, (denied, of_part)) in [
        (lists, true),
        (writes, true),
        (records, true),
        (deletes, false),
    ]
    .into_iter()
    .enumerate()
    {
        let rig = Rig::new(DatasetFormat::TfRecord);
        let name = format!("set-{number}");
        let proxy = FaultProxy::new(rig.server.address(), 0, Plan::none());
        let options = rig.machine(&name, "a", proxy.url());
        proxy.deny(denied);
        if of_part {
            let error = run_part(&options, 1, 1).unwrap_err().to_string();
            assert!(error.contains("s3://bucket/set-"), "{error}");
            assert!(error.to_lowercase().contains("denied"), "{error}");
            assert!(join(&options).is_err());
            let published = rig.store(&name).head("forebay.json").unwrap();
            assert!(published.is_none());
        } else {
            run_part(&options, 1, 1).unwrap();
            let error = join(&options).unwrap_err().to_string();
            assert!(error.to_lowercase().contains("denied"), "{error}");
        }
        // With the permissions, the same commands continue.
        proxy.deny(|_, _| false);
        assert!(run_part(&options, 1, 1).unwrap().already_complete != of_part);
        join(&options).unwrap();
        rig.remove_probes(&name);
        rig.assert_whole(&name);
    }
}

/// Credentials may expire at any request: one sentence says so, nothing is published, and the same commands continue.
#[test]
fn permissions_may_end_in_the_middle() {
    let rig = Rig::new(DatasetFormat::INDEXED);
    let mut ended = 0;
    for (number, after) in (0..60).step_by(4).enumerate() {
        let name = format!("set-{number}");
        let proxy = FaultProxy::new(rig.server.address(), 0, Plan::none());
        let proxy = Arc::new(proxy);
        let options = rig.machine(&name, &name, proxy.url());
        let ending = Arc::clone(&proxy);
        proxy.when_done(after, move || ending.deny(|_, _| true));
        let steps: [&dyn Fn() -> Result<()>; 3] = [
            &|| run_part(&options, 1, 2).map(drop),
            &|| run_part(&options, 2, 2).map(drop),
            &|| join(&options).map(drop),
        ];
        for step in steps {
            if let Err(error) = step() {
                let error = error.to_string();
                assert!(error.to_lowercase().contains("denied"), "{error}");
                assert!(error.contains("s3://bucket/set-"), "{error}");
                ended += 1;
                let manifest = rig.store(&name).get("forebay.json", 64 << 20);
                if manifest.is_ok() {
                    // The manifest is published last, so only what is temporary may be left.
                    assert!(rig.objects(&name).keys().all(|key| rig.is_of_whole(key)));
                }
                proxy.deny(|_, _| false);
                step().unwrap();
            }
        }
        rig.remove_probes(&name);
        rig.assert_whole(&name);
    }
    assert!(ended > 10, "{ended}");
}

#[test]
fn converted_parts_equal_the_conversion_of_one_machine() {
    let rig = Rig::new(DatasetFormat::TfRecord);
    let cancel = Cancel::new();
    let at = |dst: Location, format: OutputFormat, area: &str| {
        let whole = Location::from(rig.dir.path().join("whole").as_path());
        let mut options = ConvertOptions::new(ConvertSource::Dataset(whole), dst, format);
        options.sharding = Some(Sharding::Count(3));
        options.jobs = Some(2);
        if options.dst.is_remote() {
            options.upload.staging_dir = Some(rig.dir.path().join("areas").join(area));
            options.upload.store = rig.reach(rig.server.url());
        }
        options
    };
    let webdataset = OutputFormat::Records(
        forebay_pack::RecordFormat::named("webdataset").unwrap(),
        Default::default(),
    );
    for (name, format) in [
        ("indexed", DatasetFormat::INDEXED.into()),
        ("webdataset", webdataset),
    ] {
        let alone = rig.dir.path().join(name);
        convert(&at(alone.as_path().into(), format, ""), &(), &cancel).unwrap();
        let shared = rig.dir.path().join(format!("{name}-parts"));
        for dst in [Location::from(shared.as_path()), rig.place(name)] {
            let options = |area: &str| at(dst.clone(), format, area);
            let join = || finish_conversion(&options("head"), &(), &cancel);
            assert!(join().is_err());
            let plan = || plan_conversion(&options("head"), &(), &cancel).unwrap();
            assert_eq!((plan().was_there, plan().was_there), (false, true));
            assert_eq!(plan().shards, 6);
            let write = |number: u32| {
                let options = options(["a", "b"][number as usize % 2]);
                convert_part(&options, part(number, 4), &(), &cancel).unwrap()
            };
            std::thread::scope(|scope| {
                for number in [1, 4] {
                    scope.spawn(move || write(number));
                }
            });
            write(2);
            let Error::Missing { parts, .. } = join().unwrap_err() else {
                panic!("a part is missing")
            };
            assert_eq!(parts, [part(3, 4)]);
            let mut other = options("b");
            other.sharding = Some(Sharding::Count(5));
            let error = convert_part(&other, part(3, 4), &(), &cancel).unwrap_err();
            assert!(matches!(error, Error::DifferentPart { .. }), "{error}");
            assert!(write(3).shards > 0);
            let pack_finish = {
                let mut how = FinishOptions::new(dst.clone());
                how.upload = options("head").upload;
                finish(&how, None, &(), &cancel).unwrap_err().to_string()
            };
            assert!(pack_finish.contains("conversion in parts"), "{pack_finish}");
            join().unwrap();
            assert!(write(3).already_complete);
            assert!(join().unwrap().already_complete);
            let found = match dst.is_remote() {
                true => rig.objects(name),
                false => contents(&shared),
            };
            let alone = contents(&alone);
            let names = |files: &BTreeMap<PathBuf, _>| files.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&found), names(&alone), "{dst}");
            let mut differing = alone.iter().filter(|(name, bytes)| found[*name] != **bytes);
            assert_eq!(differing.next().map(|(name, _)| name), None, "{dst}");
        }
    }
}
