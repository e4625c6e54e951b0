//! The command line and object stores: servers that speak the protocols of S3, Google and Azure, and a proxy in front of
//! them where something goes wrong.

mod costs;
mod foreign;
mod parts;
mod permanent;

use crate::support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_rigs::{Azurite, FaultProxy, Form, Gcs, Moto, Plan, S3Server, WebHdfs};

use support::{Ran, forebay, images, run, text, tree};

/// Number of kills in each test; a variable sets more.
const KILLS: &str = "FOREBAY_TEST_KILLS";
/// Nothing here takes this long unless it hangs.
const LONG: Duration = Duration::from_secs(120);

/// The variables by which servers are reached.
#[derive(Clone, Default)]
struct Reach(Vec<(String, String)>);

impl Reach {
    fn s3(url: String, settings: Vec<(&'static str, String)>) -> Self {
        Self::default().and("AWS_ENDPOINT_URL", url, settings)
    }

    fn and(mut self, endpoint: &str, url: String, settings: Vec<(&'static str, String)>) -> Self {
        self.0.push((endpoint.to_owned(), url));
        let named = settings.into_iter();
        let named = named.map(|(name, value)| (name.to_ascii_uppercase(), value));
        self.0.extend(named);
        self
    }

    fn command<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = forebay();
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["AWS_", "GOOGLE_", "AZURE_"]
                .iter()
                .any(|start| name.starts_with(start))
            {
                command.env_remove(name);
            }
        }
        // No user's profiles.
        command.env("HOME", env!("CARGO_TARGET_TMPDIR"));
        let variables = self.0.iter().map(|(name, value)| (name, value));
        command.envs(variables).args(args);
        command
    }

    fn run<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Ran {
        self.command(args)
            .output()
            .expect("the binary starts")
            .into()
    }
}

/// A directory with a pack of the project's pictures in `whole`.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        run(pack(&place.path("whole")).iter()).done();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A dataset in a store has exactly the files of one in a directory.
    #[track_caller]
    fn assert_is_at(&self, whole: &str, reach: &Reach, place: &str) {
        let fetched = self.path("fetched");
        let _ = std::fs::remove_dir_all(&fetched);
        reach.run(["cp", "-q", place, text(&fetched)]).done();
        assert_eq!(names(&fetched), names(&self.path(whole)));
        assert!(
            tree(&fetched) == tree(&self.path(whole)),
            "the bytes differ"
        );
    }
}

fn names(root: &Path) -> Vec<PathBuf> {
    tree(root).into_keys().collect()
}

fn pack(to: &Path) -> Vec<String> {
    pack_to(text(to))
}

fn pack_to(to: &str) -> Vec<String> {
    let source = images();
    let how = ["--format", "tfrecord", "--shards", "3", "--jobs", "2"];
    let args = ["pack", text(&source), to].into_iter().chain(how);
    args.map(str::to_owned).collect()
}

/// Arguments with a staging area of their own.
fn staged<'a>(args: &'a [String], area: &'a Path) -> Vec<&'a str> {
    let args = args.iter().map(String::as_str);
    args.chain(["--staging", text(area), "--json"]).collect()
}

fn kills() -> u64 {
    std::env::var(KILLS)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(3)
}

#[track_caller]
fn assert_nothing_is_staged(area: &Path) {
    let status = run(["stage", "--staging", text(area), "--json"]).done();
    let left = &status.summary()["left_files"];
    assert_eq!(*left, 0, "{}", status.stdout);
}

#[test]
fn images_go_into_a_store_and_are_converted_there() {
    let place = Place::new();
    let server = S3Server::start();
    let reach = Reach::s3(server.url(), server.settings());
    let (area, to) = (place.path("area"), "s3://bucket/data/set");
    let args = pack_to(to);
    let packed = reach.run(staged(&args, &area)).done().summary();
    assert_eq!(packed["root"], to);
    assert!(packed["uploaded"].is_object(), "{packed}");
    place.assert_is_at("whole", &reach, to);
    let again = reach.run(staged(&args, &area)).done().summary();
    assert_eq!(again["already_complete"], true);
    let verified = reach.run(["verify", to, "--deep", "--json"]).done();
    assert_eq!(verified.summary()["damage"], 0);
    let source = images();
    let against = reach.run(["verify", to, "--compare-source", text(&source), "--json"]);
    let against = against.done().summary();
    assert!(
        against["against"]["verbatim"].as_u64() > Some(20),
        "{against}"
    );
    let pictures = "s3://bucket/pictures";
    reach
        .run(["cp", "-q", "-r", text(&source), pictures])
        .done();
    for set in [to, text(&place.path("whole"))] {
        let proved = reach.run(["verify", set, "--compare-source", pictures, "--json"]);
        assert_eq!(proved.done().summary()["against"], against["against"]);
    }
    let listed = reach.run(["ls", to]).done();
    assert!(listed.stdout.contains("fingerprint"), "{}", listed.stdout);

    let local = place.path("indexed");
    let indexed = ["--format", "indexed", "--shards", "2"];
    let convert = ["convert", text(&place.path("whole")), text(&local)].map(str::to_owned);
    run(convert.iter().map(String::as_str).chain(indexed)).done();
    let other = "s3://bucket/data/indexed";
    let convert: Vec<String> = ["convert", to, other]
        .into_iter()
        .chain(indexed)
        .map(str::to_owned)
        .collect();
    reach.run(staged(&convert, &area)).done();
    place.assert_is_at("indexed", &reach, other);
    reach.run(["verify", other, "-q"]).done();
    // Pictures come out of it, and shards are made of pictures that lie there.
    let exported = place.path("exported");
    reach.run(["export", other, text(&exported), "-q"]).done();
    let before = place.path("before");
    run(["export", text(&local), text(&before), "-q"]).done();
    assert_eq!(tree(&exported), tree(&before));
    assert_eq!(server.open_uploads(), 0);
    assert_nothing_is_staged(&area);
}

/// Runs a command and kills it after each of several numbers of requests; each time the same command finishes the work.
fn survives_kills(
    server: &S3Server,
    args: impl Fn(&str) -> Vec<String>,
    check: impl Fn(&Reach, &str),
    area: &Path,
) {
    // How many requests a whole run makes.
    let proxy = FaultProxy::new(server.address(), 1, Plan::none());
    let reach = Reach::s3(proxy.url(), server.settings());
    reach.run(staged(&args("s3://bucket/first"), area)).done();
    let requests = proxy.requests();
    for kill in 0..kills() {
        let proxy = FaultProxy::new(server.address(), kill, Plan::none());
        let reach = Reach::s3(proxy.url(), server.settings());
        let to = format!("s3://bucket/kill-{kill}");
        let args = args(&to);
        let mut child = reach
            .command(staged(&args, area))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Spread over the run, its last requests included. The progress of its threads varies.
        let after = requests * (kill + 1) / (kills() + 1);
        while proxy.requests() < after && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Half a dataset is none.
        let listed = reach.run(["verify", "-q", &to]);
        assert!(matches!(listed.code, 0 | 1), "{}", listed.stderr);
        reach.run(staged(&args, area)).done();
        check(&reach, &to);
        assert_eq!(server.open_uploads(), 0);
        assert_nothing_is_staged(area);
    }
}

#[test]
fn a_pack_that_is_killed_is_finished_by_the_same_command() {
    let place = Place::new();
    let server = S3Server::start();
    let check = |reach: &Reach, to: &str| place.assert_is_at("whole", reach, to);
    survives_kills(&server, pack_to, check, &place.path("area"));
}

#[test]
fn a_killed_conversion_is_finished_by_the_same_command() {
    let place = Place::new();
    let server = S3Server::start();
    let reach = Reach::s3(server.url(), server.settings());
    let (whole, indexed) = (place.path("whole"), place.path("indexed"));
    reach
        .run(["cp", "-q", text(&whole), "s3://bucket/whole"])
        .done();
    let format = ["--format", "indexed", "--shards", "3"];
    let convert = ["convert", text(&whole), text(&indexed)];
    run(convert.into_iter().chain(format)).done();
    let args = |to: &str| {
        let convert = ["convert", "s3://bucket/whole", to].into_iter();
        convert.chain(format).map(str::to_owned).collect()
    };
    let check = |reach: &Reach, to: &str| place.assert_is_at("indexed", reach, to);
    survives_kills(&server, args, check, &place.path("area"));
}

#[test]
fn each_kind_of_store_is_packed_into() {
    let place = Place::new();
    let google = Gcs::start();
    let (moto, azurite) = (Moto::start(), Azurite::start());
    let mut kinds = vec![(
        Reach::default().and("GOOGLE_BASE_URL", google.url(), google.settings()),
        "gs://bucket/a/set",
    )];
    if let Some(server) = &moto {
        let reach = Reach::s3(server.url(), server.settings());
        kinds.push((reach, "s3://bucket/a/set"));
    }
    if let Some(server) = &azurite {
        let start = Reach::default();
        let reach = start.and("AZURE_STORAGE_ENDPOINT", server.url(), server.settings());
        kinds.push((reach, "az://bucket/a/set"));
    }
    let hdfs = WebHdfs::start(Form::NameNode);
    let on_hdfs = format!("{}/a/set", hdfs.url());
    kinds.push((Reach::default(), &on_hdfs));
    for (reach, to) in kinds {
        let args = pack_to(to);
        let area = place.path("area");
        reach.run(staged(&args, &area)).done();
        reach.run(["verify", to, "-q"]).done();
        place.assert_is_at("whole", &reach, to);
        let again = reach.run(staged(&args, &area)).done().summary();
        assert_eq!(again["already_complete"], true, "{to}");
    }
}

#[test]
fn datasets_go_from_each_kind_of_store_to_each() {
    let place = Place::new();
    let (s3, google) = (S3Server::start(), Gcs::start());
    let azurite = Azurite::start();
    let mut reach =
        Reach::s3(s3.url(), s3.settings()).and("GOOGLE_BASE_URL", google.url(), google.settings());
    if let Some(server) = &azurite {
        reach = reach.and("AZURE_STORAGE_ENDPOINT", server.url(), server.settings());
    }
    let whole = place.path("whole");
    let hdfs = WebHdfs::start(Form::NameNode);
    let on_hdfs = format!("{}/data", hdfs.url());
    let kinds: Vec<&str> = [
        Some("s3://bucket"),
        Some("gs://bucket"),
        Some(on_hdfs.as_str()),
        azurite.as_ref().map(|_| "az://bucket"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let scratch = place.path("scratch");
    for from in &kinds {
        let source = format!("{from}/from-here");
        reach.run(["cp", "-q", text(&whole), &source]).done();
        for to in &kinds {
            let target = format!("{to}/from-{}", &from[..2]);
            let copy = ["--json", "--scratch", text(&scratch)];
            let command = |name| [name, source.as_str(), target.as_str()];
            let copied = reach.run(command("cp").into_iter().chain(copy)).done();
            assert_eq!(copied.summary()["published"], 1, "{source} to {target}");
            let again = reach.run(command("cp").into_iter().chain(copy)).done();
            assert_eq!(again.summary()["objects"], 0, "{}", again.stdout);
            place.assert_is_at("whole", &reach, &target);
        }
    }
    // Objects that left the source are deleted at the destination only on request.
    let (from, to) = ("s3://bucket/from-here", "gs://bucket/from-s3");
    let extra = place.path("extra");
    std::fs::write(&extra, b"x").unwrap();
    reach
        .run(["cp", "-q", text(&extra), "gs://bucket/from-s3/extra"])
        .done();
    reach.run(["cp", "-q", from, to]).done();
    let kept = reach.run(["ls", "-r", "--json", to]).done();
    assert!(kept.stdout.contains("extra"), "{}", kept.stdout);
    reach.run(["cp", "--delete-extra", from, to]).done();
    place.assert_is_at("whole", &reach, to);
    let left = std::fs::read_dir(&scratch).into_iter().flatten().count();
    assert_eq!(left, 0);
}

#[test]
fn wrong_keys_are_told_at_once_and_not_shown() {
    let place = Place::new();
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 2, Plan::none());
    let mut settings = server.settings();
    for (name, value) in &mut settings {
        if *name == "aws_secret_access_key" {
            "MARKED-AND-WRONG".clone_into(value);
        }
    }
    let reach = Reach::s3(proxy.url(), settings);
    let (whole, area) = (place.path("whole"), place.path("area"));
    let pack = pack_to("s3://bucket/set");
    let commands: [Vec<&str>; 6] = [
        vec!["ls", "s3://bucket/set"],
        vec!["verify", "s3://bucket/set"],
        vec!["cp", text(&whole), "s3://bucket/set"],
        vec!["cp", "--delete-extra", "s3://bucket/set", text(&area)],
        vec!["cat", "s3://bucket/set", "0"],
        staged(&pack, &area),
    ];
    for command in commands {
        let before = proxy.requests();
        let ran = reach.run(command.clone()).code(1);
        ran.explains("error: ", &["403"]);
        assert!(ran.stderr.contains("hint: "), "{}", ran.stderr);
        assert!(ran.stderr.contains("credentials"), "{}", ran.stderr);
        let told = format!("{}{}", ran.stdout, ran.stderr);
        assert!(!told.contains("MARKED"), "{told}");
        let made = proxy.requests() - before;
        assert!(made <= 3, "{command:?} made {made} requests");
    }
    for (name, bytes) in tree(place.0.path()) {
        let found = String::from_utf8_lossy(&bytes).contains("MARKED");
        assert!(!found, "{}", name.display());
    }
}

#[test]
fn a_missing_bucket_is_told_from_a_missing_dataset() {
    let server = Gcs::start();
    let reach = Reach::default().and("GOOGLE_BASE_URL", server.url(), server.settings());
    for command in ["verify", "inspect", "ls"] {
        let ran = reach.run([command, "gs://no-such-bucket-4711/set"]).code(1);
        ran.explains("error: ", &["there is no such bucket"]);
    }
    let ran = reach.run(["verify", "gs://bucket/set"]).code(1);
    ran.explains("error: ", &["is not a dataset", "no object of that name"]);
}

/// Starts a command in whose way the store goes away, and sends it Ctrl-C when it has noticed.
#[track_caller]
fn interrupted(reach: &Reach, proxy: &FaultProxy, after: u64, args: &[&str]) -> Ran {
    let before = proxy.turned_away();
    proxy.set_outage_after(after);
    let mut child = reach
        .command(args.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while proxy.turned_away() < before + 3 {
        assert!(begin.elapsed() < LONG, "{args:?} never noticed");
        assert_eq!(child.try_wait().unwrap(), None, "{args:?}");
        std::thread::yield_now();
    }
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
    let ran = Ran::from(child.wait_with_output().unwrap());
    proxy.set_outage(false);
    ran
}

#[test]
fn ctrl_c_ends_the_wait_for_a_store_that_is_away() {
    let place = Place::new();
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 3, Plan::none());
    let reach = Reach::s3(proxy.url(), server.settings());
    let (whole, area, to) = (place.path("whole"), place.path("area"), "s3://bucket/set");
    reach.run(["cp", "-q", text(&whole), to]).done();
    let fetched = place.path("fetched");
    let exported = place.path("exported");
    let pack = pack_to("s3://bucket/packed");
    let convert = ["convert", to, "s3://bucket/indexed", "--format", "indexed"];
    let convert = convert.map(str::to_owned);
    let commands: [Vec<&str>; 6] = [
        vec!["cp", to, text(&fetched)],
        vec!["cp", text(&whole), "s3://bucket/other"],
        vec!["verify", to],
        vec!["export", to, text(&exported)],
        staged(&pack, &area),
        staged(&convert, &area),
    ];
    for command in commands {
        let before = proxy.requests();
        // The store is there for so long, so that the outage begins in the middle of the work.
        let after = match command[0] {
            "pack" | "convert" => 6,
            _ => 3,
        };
        let ran = interrupted(&reach, &proxy, after, &command).code(130);
        assert!(proxy.requests() - before <= after, "{command:?}");
        assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
        // The same command goes on.
        reach.run(command).done();
    }
    assert_eq!(server.open_uploads(), 0);
}
