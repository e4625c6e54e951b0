//! Packing from a store gives the same result as packing the same files from a directory. The tests use a directory as
//! the store, which does the same listings and ranged reads as a server.

use super::*;
use crate::options::DatasetFormat;
use crate::plan::Plan;
use crate::prepare::Prepared;
use crate::report::Summary;
use forebay_store::{Location, Store, StoreOptions};
use std::collections::BTreeMap;
use std::time::Duration;

/// Returns the files below a directory, by path.
fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_path_buf();
                out.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    out
}

fn store(root: &Path) -> Store {
    Store::open(&Location::from(root), &StoreOptions::default()).unwrap()
}

fn prepare_from_store(options: &PackOptions) -> Result<Prepared> {
    let source = Source::open_store(
        &store(options.src.local_path()?),
        &options.source(),
        &(),
        &Cancel::new(),
    )?;
    let census = Census::of(source, (None, false), options, &(), &Cancel::new())?;
    let plan = Plan::make(&census, options)?;
    Ok(Prepared {
        bad: crate::bad_count::BadCount::new(crate::options::MaxBad::default(), 0),
        options: options.clone(),
        dst: options.dst.local_path()?.to_path_buf(),
        census,
        plan,
        census_time: Duration::ZERO,
        is_recorded: false,
    })
}

fn both(options: &PackOptions, dir: &Path) -> [Summary; 2] {
    let mut local = options.clone();
    local.dst = Location::from(dir.join("local"));
    let mut remote = options.clone();
    remote.dst = Location::from(dir.join("remote"));
    let summaries = [
        crate::pack(&local, &(), &Cancel::new()).unwrap(),
        prepare_from_store(&remote)
            .unwrap()
            .run(&(), &Cancel::new())
            .unwrap(),
    ];
    assert_eq!(tree(&dir.join("local")), tree(&dir.join("remote")));
    summaries
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images")
}

/// Copies some classes of the repository's images to `root`.
fn copy_images(root: &Path, classes: usize) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = tree(&testdata().join("train")).into_keys().collect();
    files.sort();
    let mut names: Vec<PathBuf> = files
        .iter()
        .map(|f| f.parent().unwrap().to_path_buf())
        .collect();
    names.dedup();
    names.truncate(classes);
    files.retain(|file| names.iter().any(|name| file.starts_with(name)));
    for file in &files {
        std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        std::fs::copy(testdata().join("train").join(file), root.join(file)).unwrap();
    }
    files
}

#[test]
fn splits_and_classes_give_the_same_shards() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = PackOptions::new(testdata().as_path(), dir.path().join("x").as_path());
    options.sharding = crate::Sharding::Count(3);
    both(&options, dir.path());
}

#[test]
fn findings_about_odd_files_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    let files = copy_images(&src, 2);
    let class = src.join(files[0].parent().unwrap());
    // An image without an extension, one of an unsupported format, a text file, a hidden file, and an empty file.
    std::fs::copy(src.join(&files[0]), class.join("picture")).unwrap();
    std::fs::write(class.join("animation"), b"GIF89a and more").unwrap();
    std::fs::write(class.join("notes.txt"), b"text").unwrap();
    std::fs::write(class.join(".hidden.jpg"), b"x").unwrap();
    std::fs::write(class.join("empty.jpg"), b"").unwrap();
    std::fs::write(class.join("broken.jpg"), b"\xff\xd8\xff no image").unwrap();
    std::fs::create_dir(class.join(".cache")).unwrap();
    std::fs::write(class.join(".cache/x.jpg"), b"x").unwrap();
    std::fs::create_dir_all(class.join("deep/er")).unwrap();
    std::fs::copy(src.join(&files[0]), class.join("deep/er/again.JPEG")).unwrap();
    std::fs::write(src.join("outside.jpg"), b"x").unwrap();
    let names: BTreeSet<String> = files
        .iter()
        .map(|file| file.parent().unwrap().display().to_string())
        .collect();
    let list: String = names
        .iter()
        .rev()
        .map(|name| format!("{name} words of it\n"))
        .collect();
    std::fs::write(src.join("classes.txt"), list).unwrap();
    let mut options = PackOptions::new(src.as_path(), dir.path().join("x").as_path());
    options.format = DatasetFormat::INDEXED;
    let [local, remote] = both(&options, dir.path());
    assert_eq!(local.records(), files.len() as u64 + 2);
    assert_eq!(local.records(), remote.records());
    options.on_bad = OnBad::Quarantine(dir.path().join("bad"));
    options.overwrite = true;
    both(&options, dir.path());
    assert!(!tree(&dir.path().join("bad")).is_empty());
}

#[test]
fn findings_about_unrelated_files_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    let image = testdata()
        .join("train")
        .join(&copy_images(&src.join("train"), 2)[0]);
    copy_images(&src.join("dev"), 1);
    for name in [
        "@eaDir/thumb.jpg",
        "train/__MACOSX/._1.jpg",
        "extra/1.jpg",
        "extra/notes.txt",
        ".cache/deep/1.jpg",
    ] {
        std::fs::create_dir_all(src.join(name).parent().unwrap()).unwrap();
        std::fs::copy(&image, src.join(name)).unwrap();
    }
    let options = PackOptions::new(src.as_path(), dir.path().join("x").as_path());
    let [local, remote] = both(&options, dir.path());
    assert_eq!((local.skipped(), remote.skipped()), (1, 1));
    let splits = remote.splits.iter().map(|split| split.name.as_str());
    assert_eq!(splits.collect::<Vec<_>>(), ["dev", "train"]);
    assert_eq!(local.findings, remote.findings);
}

#[test]
fn annotations_are_read_from_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    let files = copy_images(&src.join("ILSVRC/Data/CLS-LOC/train"), 2);
    for file in &files {
        let xml = src
            .join("ILSVRC/Annotations/CLS-LOC/train")
            .join(file)
            .with_extension("xml");
        std::fs::create_dir_all(xml.parent().unwrap()).unwrap();
        let image = std::fs::read(testdata().join("train").join(file)).unwrap();
        let probe = forebay_image::probe(&image, &forebay_image::Limits::default()).unwrap();
        let (width, height) = (probe.width, probe.height);
        let size = format!("<size><width>{width}</width><height>{height}</height></size>");
        let bounds = "<xmin>10</xmin><ymin>5</ymin><xmax>60</xmax><ymax>45</ymax>";
        let object = format!("<object><bndbox>{bounds}</bndbox></object>");
        std::fs::write(xml, format!("<annotation>{size}{object}</annotation>")).unwrap();
    }
    let options = PackOptions::new(src.as_path(), dir.path().join("x").as_path());
    both(&options, dir.path());
    let manifest = std::fs::read_to_string(dir.path().join("remote/forebay.json")).unwrap();
    assert!(
        manifest.contains("image/object/bbox/xmin"),
        "boxes are there"
    );
}

#[test]
fn an_object_that_changes_stops_the_pack() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    let files = copy_images(&src, 1);
    let options = PackOptions::new(src.as_path(), dir.path().join("dst").as_path());
    let prepared = prepare_from_store(&options).unwrap();
    // The object changes but keeps its size, so the ETag shows the change and a listing does not.
    let path = src.join(&files[0]);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.reverse();
    std::fs::write(src.join("new"), bytes).unwrap();
    std::fs::rename(src.join("new"), &path).unwrap();
    let error = prepared.run(&(), &Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::SourceChanged(_)), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = prepared.run(&(), &Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::SourceChanged(_)), "{error}");
    assert!(!dir.path().join("dst/forebay.json").exists());
}

/// Builds a tar of files by path.
fn tar_of(files: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder
            .append_data(&mut header, path, bytes.as_slice())
            .unwrap();
    }
    builder.into_inner().unwrap()
}

fn zip_of(files: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<u8> {
    use std::io::Write;
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (number, (path, bytes)) in files.iter().enumerate() {
        let method = match number % 2 {
            0 => zip::CompressionMethod::Stored,
            _ => zip::CompressionMethod::Deflated,
        };
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        writer.start_file(path.to_str().unwrap(), options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

#[test]
fn archives_in_a_store_give_the_same_shards() {
    use forebay_formats::images::Archive;
    let dir = tempfile::tempdir().unwrap();
    let files = tree(&testdata());
    let tar = tar_of(&files);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gz, &tar).unwrap();
    let archives = [
        ("all.tar", tar.clone()),
        ("all.tar.gz", gz.finish().unwrap()),
        ("all.tar.zst", zstd::encode_all(tar.as_slice(), 1).unwrap()),
        ("all.zip", zip_of(&files)),
    ];
    for (name, bytes) in archives {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let mut options = PackOptions::new(
            path.as_path(),
            dir.path().join(format!("{name}-local")).as_path(),
        );
        crate::pack(&options, &(), &Cancel::new()).unwrap();
        options.dst = Location::from(dir.path().join(format!("{name}-store")));
        let archive = Archive::Object(store(dir.path()), name.to_owned());
        let source = Source::of_archive(&archive, &options.source(), &(), &Cancel::new()).unwrap();
        let census = Census::of(source, (None, false), &options, &(), &Cancel::new()).unwrap();
        let prepared = Prepared {
            bad: crate::bad_count::BadCount::new(crate::options::MaxBad::default(), 0),
            dst: options.dst.local_path().unwrap().to_path_buf(),
            plan: Plan::make(&census, &options).unwrap(),
            options: options.clone(),
            census,
            census_time: Duration::ZERO,
            is_recorded: false,
        };
        prepared.run(&(), &Cancel::new()).unwrap();
        assert_eq!(
            tree(&dir.path().join(format!("{name}-local"))),
            tree(&dir.path().join(format!("{name}-store"))),
            "{name}"
        );
        // A truncated archive is an error.
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(std::fs::metadata(&path).unwrap().len() / 2)
            .unwrap();
        let cut = Source::of_archive(&archive, &options.source(), &(), &Cancel::new());
        assert!(cut.is_err() || name == "all.tar", "{name}");
    }
}

#[test]
fn ilsvrc_archives_are_found_in_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    copy_images(&images, 2);
    let mut inner: BTreeMap<PathBuf, BTreeMap<PathBuf, Vec<u8>>> = BTreeMap::new();
    for (path, bytes) in tree(&images) {
        let (class, name) = (path.parent().unwrap(), path.file_name().unwrap());
        inner
            .entry(class.to_path_buf())
            .or_default()
            .insert(name.into(), bytes);
    }
    let list: String = inner
        .keys()
        .rev()
        .map(|name| format!("{} words\n", name.display()))
        .collect();
    let train: BTreeMap<PathBuf, Vec<u8>> = inner
        .iter()
        .map(|(class, files)| (class.with_extension("tar"), tar_of(files)))
        .collect();
    let src = dir.path().join("src");
    std::fs::create_dir(&src).unwrap();
    std::fs::write(src.join("ILSVRC2012_img_train.tar"), tar_of(&train)).unwrap();
    std::fs::write(src.join("LOC_synset_mapping.txt"), list).unwrap();
    let options = PackOptions::new(src.as_path(), dir.path().join("x").as_path());
    let [local, remote] = both(&options, dir.path());
    assert_eq!(local.records(), remote.records());
}

#[test]
fn tars_beyond_the_limit_of_open_files_are_read_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    let files = copy_images(&images, 2);
    let image = std::fs::read(images.join(&files[0])).unwrap();
    let src = dir.path().join("src");
    std::fs::create_dir(&src).unwrap();
    let tar = |number: u32| src.join(format!("n{number:08}.tar"));
    for number in 0..70 {
        let files = ["a.jpg", "b.jpg"].map(|name| (PathBuf::from(name), image.clone()));
        std::fs::write(tar(number), tar_of(&files.into())).unwrap();
    }
    let mut options = PackOptions::new(src.as_path(), dir.path().join("x").as_path());
    options.sharding = crate::Sharding::Count(3);
    let [local, remote] = both(&options, dir.path());
    assert_eq!((local.records(), remote.records()), (140, 140));
    options.dst = Location::from(dir.path().join("changed"));
    let prepared = prepare_from_store(&options).unwrap();
    let changed = tar_of(&[(PathBuf::from("a.jpg"), image)].into());
    std::fs::write(tar(69), changed).unwrap();
    let error = prepared.run(&(), &Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::SourceChanged(_)), "{error}");
    assert!(error.to_string().contains("n00000069.tar"), "{error}");
    assert!(!dir.path().join("changed/forebay.json").exists());
}
