//! Files of other tools in stores.

use super::*;

/// A Zarr store is a directory of small objects, which are listed and read where they are.
#[test]
fn arrays_are_read_in_a_store() {
    let place = Place::new();
    let s3 = S3Server::start();
    let reach = Reach::s3(s3.url(), s3.settings());
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats-golden/zarr");
    for name in ["v2.zarr", "shards.zarr.zip"] {
        let (source, there) = (golden.join(name), format!("s3://bucket/{name}"));
        let mut copy = vec!["cp", "-q"];
        copy.extend(source.is_dir().then_some("-r"));
        copy.extend([text(&source), &there]);
        reach.run(copy).done();
        let [local, remote] = ["local", "remote"].map(|end| place.path(&format!("{name}-{end}")));
        for (source, dst) in [(text(&source), &local), (&there, &remote)] {
            let args = ["convert", source, text(dst), "--format", "tfrecord", "-q"];
            // One of the labels is -1, and the others are classes.
            reach.run(args).code(3);
        }
        let [local, remote] = [local, remote].map(|dst| {
            let mut files = tree(&dst);
            files.retain(|path, _| !path.ends_with("forebay.json"));
            files
        });
        assert!(local == remote, "{name}");
    }
}

/// TFRecords without a manifest are listed in a store, indexed and converted there, as a local copy of them is.
#[test]
fn tfrecords_of_other_tools_are_read_in_a_store() {
    let place = Place::new();
    let s3 = S3Server::start();
    let reach = Reach::s3(s3.url(), s3.settings());
    let foreign = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tfrecord-foreign");
    for name in ["tfds", "gzip"] {
        let there = format!("s3://bucket/{name}");
        reach
            .run(["cp", "-q", "-r", text(&foreign.join(name)), &there])
            .done();
    }
    let convert = |source: &str, dst: &Path| {
        let args = ["convert", source, text(dst), "--format", "tfrecord", "-q"];
        reach.run(args).done();
        let mut files = tree(dst);
        // It says from where the records are.
        files.retain(|path, _| !path.ends_with("forebay.json"));
        files
    };
    let expected = convert(text(&foreign.join("tfds")), &place.path("of-files"));
    let there = "s3://bucket/tfds";
    assert!(convert(there, &place.path("of-store")) == expected);
    let index = place.path("index");
    reach
        .run(["index", there, "--output", text(&index), "-q"])
        .done();
    reach.run(["verify", text(&index), "-q"]).done();
    assert!(convert(text(&index), &place.path("of-index")) == expected);
    let ran = reach.run([
        "index",
        "s3://bucket/gzip",
        "--output",
        text(&place.path("no")),
    ]);
    assert_ne!(ran.code, 0);
    assert!(
        ran.stderr.contains("compressed as a whole (gzip)"),
        "{}",
        ran.stderr
    );
}

/// Files of other tools go into a store, and their records are read there: by an index in a directory, and by one beside them.
#[test]
fn records_of_other_tools_are_read_in_a_store() {
    let place = Place::new();
    let (s3, google, azurite) = (S3Server::start(), Gcs::start(), Azurite::start());
    let mut reach =
        Reach::s3(s3.url(), s3.settings()).and("GOOGLE_BASE_URL", google.url(), google.settings());
    let mut stores = vec!["s3://bucket", "gs://bucket"];
    if let Some(server) = &azurite {
        reach = reach.and("AZURE_STORAGE_ENDPOINT", server.url(), server.settings());
        stores.push("az://bucket");
    }
    let whole = place.path("whole");
    let mut all = vec![];
    let mut formats = vec!["webdataset", "mds", "arrayrecord"];
    if cfg!(feature = "formats") {
        formats.push("parquet");
    }
    let each = stores
        .iter()
        .flat_map(|store| formats.iter().map(move |format| (store, format)));
    for (store, format) in each {
        let name = format!("{}-{format}", &store[..2]);
        let there = format!("{store}/of-others/{format}");
        let area = place.path("area");
        let convert = ["convert", text(&whole), &there, "--format", format].map(str::to_owned);
        reach.run(staged(&convert, &area)).done();
        let index = place.path(&format!("{name}-index"));
        let args = ["index", &there, "--output", text(&index), "--json"];
        let indexed = reach.run(args).done().summary();
        assert_eq!(indexed["command"], "index");
        let verified = reach
            .run(["verify", text(&index), "--deep", "--json"])
            .done();
        assert_eq!(verified.summary()["damage"], 0);
        // The same records as those of the dataset that the files were written from.
        let back = place.path(&format!("{name}-back"));
        let args = [
            "convert",
            text(&index),
            text(&back),
            "--format",
            "tfrecord",
            "-q",
        ];
        reach.run(args).done();
        let exported = place.path(&format!("{name}-exported"));
        reach
            .run(["export", text(&back), text(&exported), "-q"])
            .done();
        all.push(tree(&exported));
    }
    let exported = place.path("exported");
    run(["export", text(&whole), text(&exported), "-q"]).done();
    for found in all {
        assert!(found == tree(&exported), "the images differ");
    }
    let beside = "s3://bucket/of-others/index";
    let area = place.path("area");
    let index = ["index", "s3://bucket/of-others/mds", "--output", beside].map(str::to_owned);
    reach.run(index.iter().map(String::as_str)).done();
    reach.run(["verify", beside, "-q"]).done();
    let cache = place.path("cache");
    let warm = ["cache", beside, "--cache-dir", text(&cache)];
    reach.run(warm).failed_with(&["is an index"]);
    for store in stores {
        assert_replaced_object_is_found(&place, &reach, store);
    }
    assert_nothing_is_staged(&area);
}

/// An object that was replaced is another version of it, although its length is the same.
#[track_caller]
fn assert_replaced_object_is_found(place: &Place, reach: &Reach, store: &str) {
    let own = |name: &str| place.path(&format!("{}-{name}", &store[..2]));
    let (copy, there) = (own("copy"), format!("{store}/of-others/webdataset"));
    reach.run(["cp", "-q", "-r", &there, text(&copy)]).done();
    let tar = copy.join("train-000000.tar");
    let mut bytes = std::fs::read(&tar).unwrap();
    let mut starts = bytes.windows(3);
    let at = starts.position(|at| at == [0xff, 0xd8, 0xff]).unwrap();
    bytes[at + 200] ^= 1;
    std::fs::write(&tar, &bytes).unwrap();
    let index = own("webdataset-index");
    reach.run(["verify", text(&index), "-q"]).done();
    let again = ["cp", "-r", "-q", "--overwrite", text(&copy), &there];
    reach.run(again).done();
    let converted = own("converted");
    let args = [
        "convert",
        text(&index),
        text(&converted),
        "--format",
        "indexed",
    ];
    let words = ["train-000000.tar", "was replaced", "index it again"];
    reach.run(args).failed_with(&words);
    let verified = reach.run(["verify", text(&index)]);
    assert_ne!(verified.code, 0);
    for word in words {
        assert!(verified.stdout.contains(word), "{}", verified.stdout);
    }
}
