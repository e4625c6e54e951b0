//! Parts read the census that was recorded with the plan: none lists the source again, and a changed source is refused.

use crate::layout::{academic, copy_tree, kaggle, pictures, tree_below, write_archive};
use crate::support;

use forebay_pack::{
    Cancel, Error, FinishOptions, OnBad, PackOptions, Part, PartSummary, Result, SourceLayout,
    finish, prepare, prepare_part,
};
use forebay_rigs::{BUCKET, FaultProxy, Plan, S3Server};
use forebay_store::{Location, Put, Retry, Store, StoreOptions};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use support::*;

const COUNT: u32 = 2;

fn record(options: &PackOptions) {
    let prepared = prepare(options, &(), &Cancel::new()).unwrap();
    assert!(!prepared.record_plan(&()).unwrap());
}

fn run_part(options: &PackOptions, number: u32) -> Result<PartSummary> {
    let part = Part::new(number, COUNT).unwrap();
    prepare_part(options, &(), &Cancel::new())?.run_part(part, &(), &Cancel::new())
}

fn join(dst: &Path) {
    finish(&FinishOptions::new(dst), None, &(), &Cancel::new()).unwrap();
}

/// The recorded census in a directory.
fn recorded(dst: &Path) -> PathBuf {
    let files = std::fs::read_dir(dst.join(".forebay-pack")).unwrap();
    let mut paths = files.map(|file| file.unwrap().path());
    let is_census = |path: &PathBuf| path.to_str().unwrap().contains("/census-");
    paths.find(is_census).unwrap()
}

/// Packs a source alone and in parts, which have to be equal.
fn pack_both(dir: &Path, name: &str, src: &Path, change: impl Fn(&mut PackOptions)) {
    let whole = dir.join(format!("{name} whole"));
    let mut options = options(src, &whole);
    change(&mut options);
    run(&options).unwrap();
    let dst = dir.join(format!("{name} parts"));
    options.dst = dst.as_path().into();
    record(&options);
    for number in 1..=COUNT {
        run_part(&options, number).unwrap();
    }
    join(&dst);
    assert_same(&whole, &dst);
    assert!(!dst.join(".forebay-pack").exists());
}

#[test]
fn sources_of_every_kind_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let of_labels = dir.join("labelled");
    for name in ["a/0a.jpg", "a/0b.jpg", "b/0c.jpg"] {
        put(
            &of_labels,
            name.as_bytes(),
            &jpeg(20, 20, 3, name.as_bytes()),
        );
    }
    let labels = dir.join("labels.csv");
    let lines = "path,class,x,note,split\na/0a,dog,0.5,one,train\na/0b,cat,1,,val\na/0a,cat,2,three,train\nb/0c,dog,,four,train\n";
    std::fs::write(&labels, lines).unwrap();
    pack_both(dir, "labels", &of_labels, |options| {
        options.labels = Some(labels.clone());
    });
    let of_kaggle = dir.join("kaggle");
    kaggle(&of_kaggle);
    pack_both(dir, "kaggle", &of_kaggle, |_| {});
    let of_tars = dir.join("academic");
    academic(&of_tars);
    pack_both(dir, "academic", &of_tars, |_| {});
    for name in ["a.tar", "b.tar.gz", "c.zip"] {
        let archive = dir.join(name);
        write_archive(&archive, &tree_below(&pictures().join("train"), ""));
        pack_both(dir, name, &archive, |_| {});
    }
    let of_odd = dir.join("odd");
    tree(&of_odd.join("train"), 2, 5);
    put(
        &of_odd,
        b"train/n00000001/\xff odd\n.jpg",
        &jpeg(20, 20, 3, b"odd"),
    );
    put(&of_odd, b"train/n00000001/animation", b"GIF89a and more");
    put(&of_odd, b"train/n00000001/bad.jpg", b"bad");
    put(
        &of_odd,
        b"train/n00000001/deep/er/x.jpg",
        &jpeg(9, 9, 1, b"x"),
    );
    pack_both(dir, "odd", &of_odd, |options| {
        options.on_bad = OnBad::Quarantine(dir.join("quarantine"));
    });
}

#[test]
fn a_part_uses_the_recorded_list_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst, whole) = (
        dir.path().join("src"),
        dir.path().join("dst"),
        dir.path().join("whole"),
    );
    tree(&src.join("train"), 3, 10);
    run(&options(&src, &whole)).unwrap();
    let options = options(&src, &dst);
    record(&options);
    // A part that listed the source would find these.
    put(&src, b"train/n00000001/new.jpg", &jpeg(20, 20, 3, b"new"));
    put(&src, b"train/n00000009/new.jpg", &jpeg(20, 20, 3, b"new"));
    let mut without = options.clone();
    without.src = dir.path().join("missing").as_path().into();
    let error = run_part(&without, 1).unwrap_err().to_string();
    assert!(
        error.contains("there is no such directory or archive"),
        "{error}"
    );
    // Machines may see the source under another path.
    let other = dir.path().join("other");
    symlink(&src, &other).unwrap();
    let mut elsewhere = options.clone();
    elsewhere.src = other.as_path().into();
    run_part(&elsewhere, 1).unwrap();
    run_part(&options, 2).unwrap();
    join(&dst);
    assert_same(&whole, &dst);
}

#[test]
fn files_that_changed_since_the_plan_stop_a_part() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    let image = src.join("train/n00000001/changed.jpg");
    let begin = || {
        let _ = std::fs::remove_dir_all(&src);
        tree(&src.join("train"), 2, 4);
        std::fs::write(&image, jpeg(20, 20, 3, b"first")).unwrap();
    };
    let later = SystemTime::now() + Duration::from_secs(3600);
    let changes: [(&str, &str, &dyn Fn()); 4] = [
        ("removed", "No such file", &|| {
            std::fs::remove_file(&image).unwrap()
        }),
        ("a directory", "No such file", &|| {
            std::fs::rename(src.join("train"), src.join("moved")).unwrap()
        }),
        ("another size", "bytes, now", &|| {
            std::fs::write(&image, b"short").unwrap()
        }),
        ("modified", "was modified since", &|| {
            let file = std::fs::File::options().write(true).open(&image).unwrap();
            file.set_modified(later).unwrap();
        }),
    ];
    for (name, what, change) in changes {
        begin();
        let dst = dir.path().join(name);
        let options = options(&src, &dst);
        record(&options);
        change();
        let errors: Vec<Error> = (1..=COUNT)
            .filter_map(|number| run_part(&options, number).err())
            .collect();
        assert!(!errors.is_empty(), "{name}");
        for error in errors {
            assert!(
                matches!(error, Error::DifferentPart { .. }),
                "{name}: {error}"
            );
            let error = error.to_string();
            assert!(error.contains("train/") && error.contains(what), "{error}");
        }
    }
}

#[test]
fn a_part_with_other_inputs_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    copy_tree(&pictures().join("train"), &src);
    let list = dir.path().join("classes.txt");
    std::fs::copy(pictures().join("LOC_synset_mapping.txt"), &list).unwrap();
    let mut options = options(&src, &dst);
    options.classes = Some(list.clone());
    record(&options);
    let refused = |options: &PackOptions, what: &str| {
        let error = run_part(options, 1).unwrap_err();
        assert!(matches!(error, Error::DifferentPart { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    let mut layout = options.clone();
    layout.layout = SourceLayout::named("classes");
    refused(&layout, "layout: then not given, now classes");
    let mut without = options.clone();
    without.classes = None;
    refused(&without, "now not given");
    let mut seed = options.clone();
    seed.seed = 7;
    refused(&seed, "seed: then 0, now 7");
    let content = std::fs::read(&list).unwrap();
    std::fs::write(&list, [&content[..], b"n99999999 another\n"].concat()).unwrap();
    refused(&options, "classes: then a file with the hash");
    std::fs::write(&list, &content).unwrap();
    run_part(&options, 1).unwrap();
}

#[test]
fn a_damaged_record_is_refused_and_a_lost_one_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst, whole) = (
        dir.path().join("src"),
        dir.path().join("dst"),
        dir.path().join("whole"),
    );
    tree(&src.join("train"), 2, 4);
    run(&options(&src, &whole)).unwrap();
    let options = options(&src, &dst);
    record(&options);
    let path = recorded(&dst);
    let content = std::fs::read(&path).unwrap();
    let mut damaged = content.clone();
    damaged[content.len() / 2] ^= 1;
    for damaged in [&damaged[..], &content[..content.len() - 1], b""] {
        std::fs::write(&path, damaged).unwrap();
        let error = run_part(&options, 1).unwrap_err().to_string();
        assert!(
            error.contains("the census of the parts is damaged"),
            "{error}"
        );
    }
    // Without a record, a part lists the source as if it were the first.
    std::fs::remove_file(&path).unwrap();
    run_part(&options, 1).unwrap();
    std::fs::write(&path, content).unwrap();
    run_part(&options, 2).unwrap();
    join(&dst);
    assert_same(&whole, &dst);
}

/// The parts may have no permission to list the bucket of the source.
#[test]
fn parts_send_no_listing_to_the_store_of_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("files");
    tree(&files.join("train"), 2, 6);
    let archive = dir.path().join("images.tar");
    write_archive(&archive, &tree_below(&files, ""));
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 0, Plan::none());
    let reach = |url: String| {
        let retry = Retry {
            first_wait: Duration::from_millis(1),
            max_wait: Duration::from_millis(5),
            ..Retry::default()
        };
        let start = StoreOptions::new().with_endpoint(url).with_retry(retry);
        let keys = S3Server::keys().into_iter();
        keys.fold(start, |options, (name, value)| options.with(name, value))
    };
    let place = |name: &str| Location::parse(format!("s3://{BUCKET}/{name}")).unwrap();
    let bucket = Store::open(&place(""), &reach(server.url())).unwrap();
    for (path, bytes) in contents(&files) {
        let key = format!("images/{}", path.to_str().unwrap());
        bucket.put(&key, &bytes, Put::Always).unwrap();
    }
    let bytes = std::fs::read(&archive).unwrap();
    bucket.put("images.tar", &bytes, Put::Always).unwrap();
    for name in ["images", "images.tar"] {
        let whole = dir.path().join(format!("{name} whole"));
        let mut options = options(Path::new(""), &whole);
        options.src = place(name);
        options.src_store = reach(server.url());
        run(&options).unwrap();
        let dst = dir.path().join(format!("{name} parts"));
        options.dst = dst.as_path().into();
        record(&options);
        options.src_store = reach(proxy.url());
        proxy.deny(|method, target| method == "GET" && target.contains("list-type="));
        for number in 1..=COUNT {
            run_part(&options, number).unwrap();
        }
        let listed = prepare(&options, &(), &Cancel::new()).unwrap_err();
        let listed = listed.to_string().to_lowercase();
        assert!(listed.contains("denied"), "{listed}");
        join(&dst);
        assert_same(&whole, &dst);
    }
}
