//! Faults that no further try changes: credentials that have expired, a home that cannot be written to. And buckets in which
//! a console made folders.

use std::time::Duration;

use forebay_rigs::{BUCKET, S3Server, Scripted};
use forebay_staging::checkpoint::{Request, Uploader, UploaderOptions};
use forebay_store::{Location, StoreOptions};

use super::{Place, Reach};
use crate::support::{images, run, text, tree};

/// Lists these names below `photos/`, and refuses to give the objects.
fn refusing(names: &[String], code: &'static str) -> (Scripted, Reach) {
    let one = |name: &String| {
        let more = "<Size>900</Size><LastModified>2026-01-01T00:00:00Z</LastModified>";
        format!("<Contents><Key>photos/{name}</Key>{more}</Contents>")
    };
    let all: String = names.iter().map(one).collect();
    let list = format!("<ListBucketResult><Name>b</Name>{all}</ListBucketResult>");
    let server = Scripted::start(move |_, target| match target {
        _ if target.contains("list-type=2") => (200, Vec::new(), list.clone().into_bytes()),
        _ if target.ends_with("forebay.json") => (404, Vec::new(), Vec::new()),
        _ => {
            let body = format!("<Error><Code>{code}</Code><Message>no</Message></Error>");
            (400, Vec::new(), body.into_bytes())
        }
    });
    let url = format!("http://{}", server.address());
    (server, Reach::s3(url, S3Server::keys()))
}

#[test]
fn expired_credentials_end_a_command_at_once() {
    let place = Place::new();
    let names: Vec<String> = (0..400).map(|n| format!("{n}.jpg")).collect();
    let (server, reach) = refusing(&names, "ExpiredToken");
    let from = format!("s3://{BUCKET}/photos");
    let to = place.path("copy");
    let commands = [
        vec!["cp", "-r", &from, text(&to)],
        vec!["pack", &from, text(&to), "--jobs", "2"],
    ];
    for args in commands {
        let ran = reach.run(args.iter().copied());
        let ran = ran.failed_with(&["ExpiredToken"]);
        if args[0] == "cp" {
            ran.explains("hint: ", &["have expired", "new ones"]);
        }
        // A thread reads the rest of its piece of a shard; each object gets one request.
        let asked = server.take().len();
        let most = if args[0] == "cp" { 150 } else { 410 };
        assert!(asked < most, "{args:?}: {asked} requests");
    }
}

#[test]
fn a_drain_ends_at_a_refusal_and_says_it_once() {
    let place = Place::new();
    let (_server, reach) = refusing(&[], "ExpiredToken");
    let area = place.path("area");
    let buffer = Uploader::open(UploaderOptions::new(&area)).unwrap();
    // Nothing goes before the command.
    buffer.close();
    for step in 0..20 {
        let draft = buffer.begin(0, Duration::from_secs(60)).unwrap().unwrap();
        let at = Location::parse(format!("s3://{BUCKET}/run/step-{step}")).unwrap();
        let request = Request::new(at, StoreOptions::new());
        buffer.save(draft, &request).unwrap();
    }
    drop(buffer);
    let drain = ["stage", "--drain", "--staging", text(&area)];
    let ran = reach.run(drain).failed_with(&["ExpiredToken"]);
    let warnings = ran
        .stderr
        .lines()
        .filter(|line| line.starts_with("warning: "));
    assert_eq!(warnings.count(), 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("19 more checkpoints"), "{}", ran.stderr);
}

#[test]
fn a_home_that_cannot_be_written_names_the_staging_area() {
    let place = Place::new();
    let home = place.path("file");
    std::fs::write(&home, "no directory").unwrap();
    let (source, server) = (images(), S3Server::start());
    let reach = Reach::s3(server.url(), server.settings());
    let to = format!("s3://{BUCKET}/packed");
    let mut command = reach.command(["pack", text(&source), &to]);
    command.env("HOME", &home).env_remove("XDG_CACHE_HOME");
    let ran: crate::support::Ran = command.output().unwrap().into();
    let ran = ran.failed_with(&["the staging area"]);
    ran.explains("hint: ", &["--staging", "FOREBAY_STAGING"]);
}

#[test]
fn folders_of_a_bucket_are_no_objects() {
    let place = Place::new();
    let server = S3Server::with_folders();
    let reach = Reach::s3(server.url(), server.settings());
    let (source, at) = (images(), format!("s3://{BUCKET}/photos"));
    reach.run(["cp", "-q", "-r", text(&source), &at]).done();
    std::fs::create_dir_all(server.object_file("photos/empty/folder")).unwrap();
    let listed = reach.run(["ls", "-r", &at]).done();
    let keys: Vec<&str> = listed.stdout.lines().collect();
    let files = tree(&source);
    assert_eq!(keys.len(), files.len(), "{keys:?}");
    let copy = place.path("copy");
    let to = text(&copy);
    for args in [
        vec!["cp", "-q", "-r", &at, to],
        vec!["cp", "-q", "-r", &at, to],
        vec!["cp", "-q", &at, to, "--delete-extra"],
    ] {
        reach.run(args).done();
        assert!(tree(&copy) == files, "the bytes differ");
    }
    let pack = |from: &str, to: &str| {
        let to = place.path(to);
        let ran = reach.run(["pack", from, text(&to), "--shards", "2"]).done();
        assert!(!ran.stderr.contains("warning: "), "{}", ran.stderr);
        tree(&to)
    };
    let (here, there) = (pack(text(&source), "here"), pack(&at, "there"));
    let shards = |all: &std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>| {
        let is_shard = |path: &std::path::Path| path.extension().is_none();
        let shards = all.iter().filter(|(path, _)| is_shard(path));
        shards
            .map(|(path, bytes)| (path.clone(), bytes.clone()))
            .collect::<Vec<_>>()
    };
    assert!(shards(&here) == shards(&there), "the shards differ");
    run(["verify", text(&place.path("there"))]).done();
}
