//! Builds sources of every layout from the images of testdata.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use crate::support::{contents, put};

/// Returns the small ImageNet of testdata: `train/` and `val/` with class directories, and a list.
pub fn pictures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images")
}

/// Returns the label of a class of testdata, counted from 1.
pub fn label_of(class: &str) -> i64 {
    let list = std::fs::read_to_string(pictures().join("LOC_synset_mapping.txt")).unwrap();
    let position = list.lines().position(|line| line.starts_with(class));
    position.unwrap() as i64 + 1
}

/// Returns class, name and bytes of each validation image, in the order of their names.
pub fn validation() -> Vec<(String, String, Vec<u8>)> {
    let mut all: Vec<_> = contents(&pictures().join("val"))
        .into_iter()
        .map(|(path, bytes)| {
            let text = path.to_str().unwrap();
            let (class, name) = text.split_once('/').unwrap();
            (class.to_owned(), name.to_owned(), bytes)
        })
        .collect();
    all.sort_by(|a, b| a.1.cmp(&b.1));
    all
}

/// Returns all files below a directory, with a prefix before their paths.
pub fn tree_below(root: &Path, prefix: &str) -> Vec<(String, Vec<u8>)> {
    let files = contents(root).into_iter();
    files
        .map(|(path, bytes)| (format!("{prefix}{}", path.to_str().unwrap()), bytes))
        .collect()
}

pub fn copy_tree(from: &Path, to: &Path) {
    for (path, bytes) in contents(from) {
        put(to, path.to_str().unwrap().as_bytes(), &bytes);
    }
}

/// Builds a tar with the tar crate.
pub fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder
            .append_data(&mut header, name, content.as_slice())
            .unwrap();
    }
    builder.into_inner().unwrap()
}

/// Builds a zip with the zip crate, in which every other file is deflated.
pub fn zip_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (number, (name, content)) in files.iter().enumerate() {
        let method = match number % 2 {
            0 => zip::CompressionMethod::Stored,
            _ => zip::CompressionMethod::Deflated,
        };
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        writer.start_file(name.as_str(), options).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Writes an archive of the kind given by its extension.
pub fn write_archive(path: &Path, files: &[(String, Vec<u8>)]) {
    let name = path.to_str().unwrap();
    let bytes = if name.ends_with(".zip") {
        zip_of(files)
    } else if name.ends_with("gz") {
        gzip(&tar_of(files))
    } else if name.ends_with(".zst") {
        zstd::encode_all(tar_of(files).as_slice(), 1).unwrap()
    } else {
        tar_of(files)
    };
    File::create(path).unwrap().write_all(&bytes).unwrap();
}

/// Writes `class/file` as `file` in `class.tar`.
pub fn write_tar_of_tars(path: &Path, files: &[(String, Vec<u8>)]) {
    let mut classes: BTreeMap<String, Vec<(String, Vec<u8>)>> = BTreeMap::new();
    for (name, bytes) in files {
        let (class, file) = name.split_once('/').unwrap();
        let members = classes.entry(format!("{class}.tar")).or_default();
        members.push((file.to_owned(), bytes.clone()));
    }
    let tars: Vec<_> = classes
        .into_iter()
        .map(|(name, members)| (name, tar_of(&members)))
        .collect();
    write_archive(path, &tars);
}

/// Returns an annotation of an 800 x 600 image with boxes as xmin, ymin, xmax, ymax. The file name in it is not used.
pub fn annotation(boxes: &[[i32; 4]]) -> String {
    let objects: String = boxes
        .iter()
        .map(|[xmin, ymin, xmax, ymax]| {
            format!(
                "\t<object>\n\t\t<name>n00000000</name>\n\t\t<bndbox>\n\t\t\t<xmin>{xmin}</xmin>\n\t\t\t<ymin>{ymin}</ymin>\n\t\t\t<xmax>{xmax}</xmax>\n\t\t\t<ymax>{ymax}</ymax>\n\t\t</bndbox>\n\t</object>\n"
            )
        })
        .collect();
    format!(
        "<annotation>\n\t<folder>x</folder>\n\t<filename>%s</filename>\n\t<size>\n\t\t<width>800</width>\n\t\t<height>600</height>\n\t\t<depth>3</depth>\n\t</size>\n{objects}</annotation>\n"
    )
}

/// Boxes for an image of 400 x 300 pixels: ordinary, with swapped corners and partly outside, and without area.
pub const BOXES: &[[i32; 4]] = &[[80, 60, 400, 450], [600, 540, 200, -30], [40, 0, 40, 300]];

/// Builds Kaggle's directories and lists. Returns the number of images.
pub fn kaggle(root: &Path) -> usize {
    let data = root.join("ILSVRC/Data/CLS-LOC");
    copy_tree(&pictures().join("train"), &data.join("train"));
    let mut solution = "ImageId,PredictionString\n".to_owned();
    for (class, name, bytes) in validation() {
        put(&data.join("val"), name.as_bytes(), &bytes);
        let stem = name.strip_suffix(".JPEG").unwrap();
        solution += &format!("{stem},{class} 1 2 3 4 \n");
    }
    for (number, (_, _, bytes)) in validation().into_iter().take(2).enumerate() {
        let name = format!("ILSVRC2012_test_{:08}.JPEG", number + 1);
        put(&data.join("test"), name.as_bytes(), &bytes);
    }
    let list = std::fs::read(pictures().join("LOC_synset_mapping.txt")).unwrap();
    put(root, b"LOC_synset_mapping.txt", &list);
    put(root, b"LOC_val_solution.csv", solution.as_bytes());
    put(
        root,
        b"LOC_train_solution.csv",
        b"ImageId,PredictionString\n",
    );
    let annotations = root.join("ILSVRC/Annotations/CLS-LOC");
    put(
        &annotations,
        b"train/n09193705/n09193705_11.xml",
        annotation(BOXES).as_bytes(),
    );
    put(
        &annotations,
        b"train/n11939491/n11939491_1.xml",
        b"<annotation><object>",
    );
    put(
        &annotations,
        b"val/ILSVRC2012_val_00000001.xml",
        annotation(&[]).as_bytes(),
    );
    put(
        root,
        b"ILSVRC/ImageSets/CLS-LOC/train_cls.txt",
        b"n09193705/n09193705_11 1\n",
    );
    48 + 12 + 2
}

/// Builds the archives of the academic distribution. The ids of its development kit are those of testdata/meta-scipy.
pub fn academic(root: &Path) {
    std::fs::create_dir_all(root).unwrap();
    let train = tree_below(&pictures().join("train"), "");
    write_tar_of_tars(&root.join("ILSVRC2012_img_train.tar"), &train);
    let images: Vec<_> = validation()
        .into_iter()
        .map(|(_, name, bytes)| (name, bytes))
        .collect();
    write_archive(&root.join("ILSVRC2012_img_val.tar"), &images);
    let test = vec![(
        "test/ILSVRC2012_test_00000001.JPEG".to_owned(),
        images[0].1.clone(),
    )];
    write_archive(&root.join("ILSVRC2012_img_test_v10102019.tar"), &test);
    let id = |class: &str| match class {
        "n09428293" => 1,
        "n02782093" => 2,
        "n07747607" => 3,
        "n11939491" => 4,
        "n09332890" => 5,
        "n09193705" => 6,
        other => panic!("{other}"),
    };
    let truth: String = validation()
        .iter()
        .map(|(class, _, _)| format!("{}\n", id(class)))
        .collect();
    let meta = std::fs::read(pictures().join("../meta-scipy/meta.mat")).unwrap();
    let kit = [
        ("ILSVRC2012_devkit_t12/readme.txt", b"read me".to_vec()),
        ("ILSVRC2012_devkit_t12/data/meta.mat", meta),
        (
            "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt",
            truth.into_bytes(),
        ),
    ];
    write_archive(
        &root.join("ILSVRC2012_devkit_t12.tar.gz"),
        &kit.map(|(name, bytes)| (name.to_owned(), bytes)),
    );
    let boxes = vec![(
        "./n09193705/n09193705_11.xml".to_owned(),
        annotation(BOXES).into_bytes(),
    )];
    write_archive(&root.join("ILSVRC2012_bbox_train_v2.tar.gz"), &boxes);
}
