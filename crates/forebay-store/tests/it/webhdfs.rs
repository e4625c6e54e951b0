//! HDFS over HTTP.

use crate::conformance::{self, noise};
use forebay_rigs::{Form, Hadoop, Scripted, WebHdfs};
use forebay_store::{Cancel, Error, ErrorKind, Location, Put, Store, StoreOptions, Transfer};

fn open(server: &WebHdfs, path: &str) -> Store {
    let location = Location::parse(format!("{}/{path}", server.url())).unwrap();
    Store::open(&location, &StoreOptions::new()).unwrap()
}

#[test]
fn a_name_node_passes_the_conformance_suite() {
    let server = WebHdfs::start(Form::NameNode);
    conformance::check(&open(&server, "a/prefix"));
    conformance::check(&open(&server, ""));
    let temporary = server
        .files()
        .into_iter()
        .filter(|file| file.contains("forebay-tmp"));
    assert_eq!(temporary.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn a_gateway_passes_the_conformance_suite() {
    let server = WebHdfs::start(Form::Gateway);
    conformance::check_with(&open(&server, "a/prefix"), false);
}

#[test]
fn a_secure_cluster_takes_a_delegation_token() {
    let server = WebHdfs::start(Form::Secure("MARKED+/="));
    let location = Location::parse(format!("{}/x", server.url())).unwrap();
    let options = StoreOptions::new().with("delegation_token", "MARKED+/=");
    let store = Store::open(&location, &options).unwrap();
    store.put("a", b"bytes", Put::Always).unwrap();
    assert_eq!(store.get("a", 5).unwrap(), b"bytes");
    let nowhere = options.clone().with("namenodes", "127.0.0.1:1");
    for options in [
        nowhere,
        StoreOptions::new(),
        options.with("delegation_token", "MARKED"),
    ] {
        let error = Store::open(&location, &options)
            .unwrap()
            .get("a", 5)
            .unwrap_err();
        let shown = format!("{error} {error:?} {:?} {options:?}", error.hint());
        assert!(!shown.contains("MARKED"), "{shown}");
        let says = ["WEBHDFS_DELEGATION_TOKEN", "cannot connect to 127.0.0.1"];
        assert!(says.iter().any(|text| shown.contains(text)), "{shown}");
    }
}

#[test]
fn the_active_of_several_name_nodes_is_found() {
    let server = WebHdfs::start(Form::NameNode);
    let location = Location::parse("webhdfs://cluster/x").unwrap();
    // Nothing listens at the first.
    let nodes = format!("127.0.0.1:1, {}, {}", server.standby(), server.address());
    let options = StoreOptions::new().with("namenodes", nodes);
    let store = Store::open(&location, &options).unwrap();
    store.put("a", b"bytes", Put::IfAbsent).unwrap();
    assert_eq!(store.get("a", 5).unwrap(), b"bytes");
    assert_eq!(store.list("").unwrap().len(), 1);
}

#[test]
fn files_of_other_tools_are_read_and_replaced() {
    let server = WebHdfs::start(Form::NameNode);
    let store = open(&server, "x");
    store.put("a", b"first", Put::Always).unwrap();
    let before = store.head("a").unwrap().unwrap();
    // Same length, same checksum attribute, other bytes: damage.
    server.tamper("/x/a", Some(b"other".to_vec()), 0);
    let damaged = store.get("a", 5);
    assert!(
        matches!(damaged, Err(Error::Checksum { .. })),
        "{damaged:?}"
    );
    // A file that was written since.
    server.tamper("/x/a", None, 1000);
    let changed = store.read_at_if(&before, 0, &mut [0; 2]);
    assert!(matches!(changed, Err(Error::Changed { .. })), "{changed:?}");
}

#[test]
fn locks_of_killed_writers_are_removed() {
    let server = WebHdfs::start(Form::NameNode);
    let store = open(&server, "x");
    let first = store.put("a", b"first", Put::Always).unwrap();
    store.put(".a.lock.forebay-tmp", b"", Put::Always).unwrap();
    server.tamper("/x/.a.lock.forebay-tmp", None, 300_000);
    let next = Put::IfMatch(first.etag.unwrap());
    store.put("a", b"second", next.clone()).unwrap();
    assert_eq!(store.get("a", 9).unwrap(), b"second");
    assert_eq!(server.files(), ["/x/a"]);
    let stale = store.put("a", b"third", next);
    assert!(matches!(stale, Err(Error::Changed { .. })), "{stale:?}");
    assert_eq!(server.files(), ["/x/a"]);
}

#[test]
fn uploads_of_killed_processes_are_removed() {
    let server = WebHdfs::start(Form::NameNode);
    let store = open(&server, "x");
    for name in [
        "a",
        "b",
        ".a.0123.forebay-tmp",
        ".a.b.0123.forebay-tmp",
        ".b.9.forebay-tmp",
    ] {
        store.put(name, b"x", Put::Always).unwrap();
    }
    store.abort_uploads_of("a").unwrap();
    let left = server.files();
    assert_eq!(
        left,
        [
            "/x/.a.b.0123.forebay-tmp",
            "/x/.b.9.forebay-tmp",
            "/x/a",
            "/x/b"
        ]
    );
    let listed: Vec<String> = store.list("").unwrap().into_iter().map(|o| o.key).collect();
    assert_eq!(listed, ["a", "b"]);
}

#[test]
fn refusals_are_told_apart() {
    let server = WebHdfs::start(Form::NameNode);
    let store = open(&server, "");
    store.put("a/b", b"x", Put::Always).unwrap();
    let kind = |error: Error| match error {
        Error::Request { kind, why, .. } => (Some(kind), why),
        error => (None, error.to_string()),
    };
    let (denied, why) = kind(store.get("forbidden/x", 1).unwrap_err());
    assert_eq!(denied, Some(ErrorKind::Denied), "{why}");
    assert!(why.contains("Permission denied: user=tester"), "{why}");
    let (refused, why) = kind(store.put("a:b", b"x", Put::Always).unwrap_err());
    assert_eq!(refused, Some(ErrorKind::Refused), "{why}");
    assert!(why.contains("Invalid path name"), "{why}");
    // A directory is no file, and is not replaced by one.
    assert_eq!(store.head("a").unwrap(), None);
    assert!(matches!(store.get("a", 1), Err(Error::NotFound { .. })));
    assert!(store.put("a", b"x", Put::IfAbsent).is_err());
    assert_eq!(server.files(), ["/a/b"]);
}

#[test]
fn another_server_is_not_taken_for_hdfs() {
    for (status, body) in [
        (200, "<html>"),
        (404, "not here"),
        (200, "{}"),
        (200, "null"),
    ] {
        let server = Scripted::start(move |_, _| (status, Vec::new(), body.as_bytes().to_vec()));
        let location = Location::parse(format!("webhdfs://{}/x", server.address())).unwrap();
        let store = Store::open(&location, &StoreOptions::new()).unwrap();
        for error in [
            store.list("").unwrap_err(),
            store.head("a").unwrap_err(),
            store.put("a", b"x", Put::Always).unwrap_err(),
        ] {
            let shown = error.to_string();
            assert!(
                shown.contains("not that of WebHDFS"),
                "{status} {body}: {shown}"
            );
        }
    }
}

#[test]
fn a_listing_that_repeats_a_page_ends() {
    let page = r#"{"DirectoryListing":{"partialListing":{"FileStatuses":{"FileStatus":[
        {"pathSuffix":"a","type":"FILE","length":1,"modificationTime":5,"fileId":2}]}},"remainingEntries":1}}"#;
    let server = Scripted::start(move |_, _| (200, Vec::new(), page.as_bytes().to_vec()));
    let location = Location::parse(format!("webhdfs://{}/x", server.address())).unwrap();
    let store = Store::open(&location, &StoreOptions::new()).unwrap();
    let error = store.list("").unwrap_err().to_string();
    assert!(error.contains("does not end"), "{error}");
}

#[test]
fn a_part_that_broke_off_begins_the_upload_again() {
    let server = WebHdfs::start(Form::NameNode);
    server.break_appends(1);
    let store = open(&server, "x");
    let dir = tempfile::tempdir().unwrap();
    let bytes = noise(11_000_001, 7);
    std::fs::write(dir.path().join("file"), &bytes).unwrap();
    let cancel = Cancel::new();
    let transfer = Transfer {
        part_bytes: 5 << 20,
        ..Transfer::new(&cancel)
    };
    store
        .upload_file("a", &dir.path().join("file"), &transfer)
        .unwrap();
    assert!(store.get("a", 11_000_001).unwrap() == bytes);
    assert_eq!(server.files(), ["/x/a"]);
}

/// Files of Hadoop's own client are read here, and the other way round.
#[test]
fn files_are_exchanged_with_hadoops_client() {
    let Some(hadoop) = Hadoop::find() else { return };
    for form in [Form::NameNode, Form::Gateway] {
        let server = WebHdfs::start(form);
        let store = open(&server, "data");
        let dir = tempfile::tempdir().unwrap();
        let bytes = noise(11_000_001, 8);
        let local = dir.path().join("local");
        std::fs::write(&local, &bytes).unwrap();
        let local = local.to_str().unwrap();
        let name = "a b/\u{fc}+&%=~.bin";
        let path = format!("/data/{name}");
        hadoop.run(&server.url(), &["-mkdir", "-p", "/data/a b"]);
        hadoop.run(&server.url(), &["-put", local, &path]);
        hadoop.run(&server.url(), &["-appendToFile", local, &path]);
        let twice = [bytes.as_slice(), &bytes].concat();
        conformance::check_reads(&store, name, &twice);
        for n in 0..5 {
            store
                .put(&format!("many/{n}"), &bytes[..n], Put::IfAbsent)
                .unwrap();
        }
        let cancel = Cancel::new();
        let transfer = Transfer {
            part_bytes: 5 << 20,
            ..Transfer::new(&cancel)
        };
        store.upload_file(name, local.as_ref(), &transfer).unwrap();
        let back = dir.path().join("back");
        hadoop.run(&server.url(), &["-get", &path, back.to_str().unwrap()]);
        assert!(std::fs::read(back).unwrap() == bytes);
        if form == Form::NameNode {
            let listed = hadoop.run(&server.url(), &["-ls", "-R", "/data"]);
            let sizes: Vec<&str> = listed
                .lines()
                .filter(|line| line.starts_with('-'))
                .filter_map(|line| line.split_whitespace().nth(4))
                .collect();
            assert_eq!(sizes, ["11000001", "0", "1", "2", "3", "4"], "{listed}");
        }
        hadoop.run(&server.url(), &["-mv", "/data/many", "/data/other"]);
        hadoop.run(&server.url(), &["-rm", "-skipTrash", "/data/other/4"]);
        let left: Vec<String> = store.list("").unwrap().into_iter().map(|o| o.key).collect();
        assert_eq!(left, [name, "other/0", "other/1", "other/2", "other/3"]);
    }
}

/// An answer that lacks its end may say that the file was not renamed.
#[test]
fn a_rename_without_a_whole_answer_is_tried_again() {
    let server = WebHdfs::start(Form::Gateway);
    server.cut_renames(1);
    let store = open(&server, "x");
    store.put("a", b"bytes", Put::Always).unwrap();
    assert_eq!(store.get("a", 5).unwrap(), b"bytes");
    assert_eq!(server.files(), ["/x/a"]);
}
