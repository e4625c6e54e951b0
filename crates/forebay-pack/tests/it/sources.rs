//! Realistic sources, as directories and archives: which files are packed, left out and reported.

use crate::layout;
use crate::support;

use forebay_pack::{
    Action, Cancel, ClassOrder, ConvertOptions, ConvertSource, DatasetFormat, Error, Finding,
    OutputFormat, PackOptions, Reason, RecordFormat, RecordInput, SplitSummary, Summary, convert,
};
use layout::*;
use std::path::{Path, PathBuf};
use support::*;

const NFC: &str = "caf\u{e9}";
const NFD: &str = "cafe\u{301}";

fn image(text: &str) -> Vec<u8> {
    jpeg(10, 20, 3, text.as_bytes())
}

/// Returns files with these names: images, or texts for the extensions of texts.
fn files(names: &[&str]) -> Vec<(String, Vec<u8>)> {
    let content = |name: &str| match name.ends_with(".txt") || name.ends_with(".db") {
        true => b"text".to_vec(),
        false => image(name),
    };
    let names = names.iter();
    names
        .map(|name| ((*name).to_owned(), content(name)))
        .collect()
}

/// Writes the same files as a directory, a tar, a compressed tar and a zip.
fn sources(dir: &Path, files: &[(String, Vec<u8>)]) -> Vec<PathBuf> {
    let tree = dir.join("tree");
    for (name, content) in files {
        put(&tree, name.as_bytes(), content);
    }
    let mut all = vec![tree];
    for name in ["a.tar", "a.tar.gz", "a.zip"] {
        write_archive(&dir.join(name), files);
        all.push(dir.join(name));
    }
    all
}

fn pack(src: &Path, more: impl Fn(&mut PackOptions)) -> (Summary, PathBuf) {
    let mut dst = src.as_os_str().to_owned();
    dst.push(".packed");
    let dst = PathBuf::from(dst);
    let mut options = options(src, &dst);
    options.overwrite = dst.exists();
    more(&mut options);
    (run(&options).unwrap(), dst)
}

/// Packs the files in each form of a source, which must give the same result.
fn pack_all(names: &[&str], check: impl Fn(&Summary, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    for src in sources(dir.path(), &files(names)) {
        let (summary, dst) = pack(&src, |_| {});
        assert!(summary.warnings.is_empty(), "{:?}", summary.warnings);
        check(&summary, &dst);
    }
}

fn splits(summary: &Summary) -> Vec<(&str, u64)> {
    splits_of(&summary.splits)
}

fn splits_of(splits: &[SplitSummary]) -> Vec<(&str, u64)> {
    let splits = splits.iter();
    splits.map(|s| (s.name.as_str(), s.records)).collect()
}

fn report(dst: &Path) -> Vec<(String, Action, Reason, u32)> {
    let text = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap_or_default();
    let findings = text
        .lines()
        .map(|line| serde_json::from_str::<Finding>(line).unwrap());
    let mut found: Vec<_> = findings
        .map(|f| (f.path, f.action, f.reason, f.files))
        .collect();
    found.sort();
    found
}

fn files_of(summary: &Summary, action: Action) -> u64 {
    let all = summary
        .findings
        .iter()
        .filter(|((found, _), _)| *found == action);
    all.map(|(_, files)| files).sum()
}

#[test]
fn directories_beside_splits_become_splits() {
    let dev = [
        "dev/x/0.jpg",
        "dev/y/0.jpg",
        "test/x/0.jpg",
        "train/x/0.jpg",
        "train/y/0.jpg",
    ];
    pack_all(&dev, |summary, dst| {
        assert_eq!(splits(summary), [("dev", 2), ("test", 1), ("train", 2)]);
        assert_eq!((summary.skipped(), summary.classes), (0, 2));
        assert!(records(dst, "dev").contains_key(&b"x/0.jpg"[..]));
    });
    let suffixes = [
        "train-clean/x/0.jpg",
        "train-other/x/0.jpg",
        "val/x/0.jpg",
        "val/y/0.jpg",
    ];
    pack_all(&suffixes, |summary, dst| {
        let expected = [("train-clean", 1), ("train-other", 1), ("validation", 2)];
        assert_eq!(splits(summary), expected);
        assert_eq!(summary.skipped(), 0);
        assert_eq!(records(dst, "train-clean").len(), 1);
    });
    let flat = ["dev/0.jpg", "test/0.jpg", "train/0.jpg"];
    pack_all(&flat, |summary, _| {
        assert_eq!(splits(summary), [("dev", 1), ("test", 1), ("train", 1)]);
        assert_eq!(summary.classes, 0);
    });
}

#[test]
fn images_outside_of_splits_and_classes_are_reported() {
    let names = [
        "docs/a.txt",
        "docs/b/c.txt",
        "extra/deep/1.jpg",
        "extra/deep/2.jpg",
        "extra/notes.txt",
        "train/x/0.jpg",
        "val/x/0.jpg",
    ];
    pack_all(&names, |summary, dst| {
        assert_eq!(splits(summary), [("train", 1), ("validation", 1)]);
        assert_eq!(summary.skipped(), 2);
        assert_eq!(files_of(summary, Action::Ignored), 3);
        let outside = |path: &str, action, files| (path.to_owned(), action, Reason::Outside, files);
        let expected = [
            outside("docs", Action::Ignored, 2),
            outside("extra", Action::Ignored, 1),
            outside("extra", Action::Skipped, 2),
        ];
        assert_eq!(report(dst), expected);
        let said = summary.skipped_examples[0].to_string();
        assert!(said.contains("extra") && said.contains("2 files"), "{said}");
    });
}

#[test]
fn files_of_operating_systems_are_ignored_and_counted() {
    let names = [
        "$RECYCLE.BIN/1.jpg",
        ".git/x/1.txt",
        "@eaDir/a/thumb.jpg",
        "Thumbs.db",
        "__MACOSX/a/._0.jpg",
        "__MACOSX/a/._1.jpg",
        "a/._0.jpg",
        "a/0.jpg",
        "a/@eaDir/0.jpg/thumb.jpg",
        "b/.ipynb_checkpoints/0-checkpoint.jpg",
        "b/deep/0.jpg",
        "b/deep/desktop.ini.txt",
        "lost+found/x.txt",
    ];
    pack_all(&names, |summary, dst| {
        assert_eq!(splits(summary), [("train", 2)]);
        assert_eq!((summary.classes, summary.skipped()), (2, 0));
        assert_eq!(files_of(summary, Action::Ignored), names.len() as u64 - 2);
        let system = |path: &str, files| (path.to_owned(), Action::Ignored, Reason::System, files);
        let found = report(dst);
        for expected in [
            system("__MACOSX", 2),
            system("a/._0.jpg", 1),
            system("a/@eaDir", 1),
            (".git".to_owned(), Action::Ignored, Reason::Hidden, 1),
        ] {
            assert!(found.contains(&expected), "{expected:?} in {found:?}");
        }
    });
    // In a flat directory, each file is reported once.
    pack_all(&["0.jpg", "Thumbs.db", ".x.txt"], |summary, _| {
        assert_eq!(splits(summary), [("train", 1)]);
        assert_eq!(files_of(summary, Action::Ignored), 2);
    });
}

#[test]
fn splits_without_labels_cause_no_findings() {
    let names = [
        "test/9.jpg",
        "train/x/0.jpg",
        "train/y/0.jpg",
        "val/x/0.jpg",
        "val/y/0.jpg",
    ];
    pack_all(&names, |summary, dst| {
        assert_eq!(
            splits(summary),
            [("test", 1), ("train", 2), ("validation", 2)]
        );
        assert!(summary.findings.is_empty());
        assert_eq!(records(dst, "test")[&b"9.jpg"[..]].label, -1);
    });
    pack_all(&["0.jpg", "1.jpg", "2.jpg"], |summary, _| {
        assert_eq!(splits(summary), [("train", 3)]);
        assert!(summary.findings.is_empty());
    });
}

#[test]
fn numeric_class_names_cause_a_warning_or_numeric_order() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..12).map(|n| format!("{n}/0.jpg")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for src in sources(dir.path(), &files(&names)) {
        let label = |dst: &Path, key: &[u8]| records(dst, "train")[key].label;
        let (summary, dst) = pack(&src, |options| options.label_base = 0);
        let [warning] = &summary.warnings[..] else {
            panic!("{:?}", summary.warnings);
        };
        assert!(
            warning.contains("10 has the label 2, and 2 has 4"),
            "{warning}"
        );
        assert!(warning.contains("class_order natural"), "{warning}");
        assert_eq!((label(&dst, b"2/0.jpg"), label(&dst, b"10/0.jpg")), (4, 2));
        let (summary, _) = pack(&src, |options| options.class_order = Some(ClassOrder::Text));
        assert!(summary.warnings.is_empty());
        let (summary, dst) = pack(&src, |options| {
            options.label_base = 0;
            options.class_order = Some(ClassOrder::Natural);
        });
        assert!(summary.warnings.is_empty());
        assert_eq!((label(&dst, b"2/0.jpg"), label(&dst, b"10/0.jpg")), (2, 10));
        // With another label base it is another pack, also for parts.
        let mut other = options(&src, &dst);
        other.label_base = 0;
        let error = run(&other).unwrap_err();
        assert!(matches!(error, Error::OtherDataset { .. }), "{error}");
    }
    pack_all(&["01/0.jpg", "02/0.jpg", "10/0.jpg"], |_, _| {});
    pack_all(&["1/0.jpg", "10/0.jpg", "2b/0.jpg"], |_, _| {});
}

#[test]
fn names_in_lists_match_in_any_unicode_form() {
    let dir = tempfile::tempdir().unwrap();
    let img = [format!("img/{NFD}.jpg"), "img/plain.jpg".to_owned()];
    let img: Vec<&str> = img.iter().map(String::as_str).collect();
    let list = dir.path().join("labels.csv");
    let text = format!("path,label\nimg/{NFC}.jpg,c\nimg/plain.jpg,p\n");
    std::fs::write(&list, text).unwrap();
    for src in sources(dir.path(), &files(&img)) {
        let mut list = list.clone();
        if src.is_dir() {
            // A list in the source does not count as a file that was left out, and findings about it are kept.
            list = src.join("labels.csv");
            std::fs::copy(dir.path().join("labels.csv"), &list).unwrap();
        }
        let (summary, dst) = pack(&src, |options| options.labels = Some(list.clone()));
        assert_eq!((summary.records(), summary.skipped()), (2, 0));
        let said = &summary.warnings[..];
        assert!(said.len() == 1 && said[0].contains("Unicode"), "{said:?}");
        // The key has the Unicode form of the file name.
        let key = format!("img/{NFD}.jpg");
        assert!(records(&dst, "train").contains_key(key.as_bytes()));
    }
}

#[test]
fn an_exact_name_precedes_another_unicode_form() {
    let dir = tempfile::tempdir().unwrap();
    let img = [format!("{NFC}.jpg"), format!("{NFD}.jpg")];
    let both: Vec<&str> = img.iter().map(String::as_str).collect();
    let list = dir.path().join("labels.csv");
    for src in sources(dir.path(), &files(&both)) {
        std::fs::write(&list, format!("path,label\n{NFC}.jpg,c\n")).unwrap();
        let labelled = |options: &mut PackOptions| options.labels = Some(list.clone());
        let (summary, dst) = pack(&src, labelled);
        assert_eq!((summary.records(), summary.skipped()), (1, 1));
        assert!(records(&dst, "train").contains_key(img[0].as_bytes()));
        std::fs::write(&list, format!("path,label\n{NFD}.jpg,c\n{NFC}.jpg,d\n")).unwrap();
        let (summary, _) = pack(&src, labelled);
        assert_eq!((summary.records(), summary.skipped()), (2, 0));
        assert!(summary.warnings.is_empty(), "{:?}", summary.warnings);
    }
}

#[test]
fn classes_match_lists_and_splits_in_any_unicode_form() {
    let dir = tempfile::tempdir().unwrap();
    let names = [format!("train/{NFD}/0.jpg"), format!("val/{NFC}/0.jpg")];
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let list = dir.path().join("list.txt");
    std::fs::write(&list, format!("other\n{NFC}\n")).unwrap();
    for src in sources(dir.path(), &files(&names)) {
        let (summary, _) = pack(&src, |_| {});
        assert_eq!((summary.classes, summary.warnings.len()), (1, 1));
        let (summary, dst) = pack(&src, |options| options.classes = Some(list.clone()));
        assert_eq!((summary.classes, summary.warnings.len()), (2, 1));
        for (split, class) in [("train", NFD), ("validation", NFC)] {
            let key = format!("{class}/0.jpg");
            assert_eq!(records(&dst, split)[key.as_bytes()].label, 2);
        }
    }
    let one = [format!("{NFD}/0.jpg"), format!("{NFC}/0.jpg")];
    let one: Vec<&str> = one.iter().map(String::as_str).collect();
    let src = &sources(&dir.path().join("one"), &files(&one))[0];
    // Without a list, both forms are separate classes.
    assert_eq!(pack(src, |_| {}).0.classes, 2);
}

#[test]
fn a_label_file_in_the_source_is_not_a_left_out_file() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    for (name, content) in files(&["img/0.jpg", "img/1.jpg"]) {
        put(&src, name.as_bytes(), &content);
    }
    let lines = ";path;class\n0;img/0.jpg;a\n1;img/1.jpg;b\n";
    let utf16: Vec<u8> = format!("\u{feff}{lines}")
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    for content in [lines.as_bytes(), &utf16] {
        put(&src, b"labels.csv", content);
        let (summary, _) = pack(&src, |options| {
            options.labels = Some(src.join("labels.csv"))
        });
        assert_eq!((summary.records(), summary.classes), (2, 2));
        assert!(summary.findings.is_empty() && summary.warnings.is_empty());
    }
}

#[test]
fn zips_from_windows_have_paths() {
    let dir = tempfile::tempdir().unwrap();
    let names = [
        "train\\cat\\1.jpg",
        "train\\dog\\2.jpg",
        "val\\cat\\3.jpg",
        "x\\..\\..\\4.jpg",
    ];
    let src = dir.path().join("a.zip");
    write_archive(&src, &files(&names));
    let (summary, dst) = pack(&src, |_| {});
    assert_eq!(splits(&summary), [("train", 2), ("validation", 1)]);
    assert!(records(&dst, "train").contains_key(&b"cat/1.jpg"[..]));
    let unsafe_name = (
        "x/../../4.jpg".to_owned(),
        Action::Skipped,
        Reason::UnsafeName,
        1,
    );
    assert_eq!(report(&dst), [unsafe_name]);
}

#[test]
fn concatenated_tars_are_packed_and_other_bytes_reported() {
    let dir = tempfile::tempdir().unwrap();
    let tar = |names: &[&str]| tar_of(&files(names));
    let joined = [tar(&["a/0.jpg", "b/1.jpg"]), tar(&["a/2.jpg", "b/3.jpg"])].concat();
    for (name, tail, skipped) in [("a.tar", &b""[..], 0), ("b.tar", b"more", 1)] {
        let bytes = [&joined[..], tail].concat();
        for (name, bytes) in [
            (name.to_owned(), bytes.clone()),
            (format!("{name}.gz"), gzip(&bytes)),
        ] {
            let src = dir.path().join(&name);
            std::fs::write(&src, bytes).unwrap();
            let (summary, dst) = pack(&src, |_| {});
            assert_eq!(
                (summary.records(), summary.skipped()),
                (4, skipped),
                "{name}"
            );
            if skipped > 0 {
                assert_eq!(
                    report(&dst),
                    [(name.clone(), Action::Skipped, Reason::BehindEnd, 1)]
                );
                let said = summary.skipped_examples[0].to_string();
                assert!(said.contains(&format!("offset {}", joined.len())), "{said}");
            }
        }
    }
}

#[test]
fn conversions_read_concatenated_tars() {
    let dir = tempfile::tempdir().unwrap();
    let joined = [tar_of(&files(&["0.jpg"])), tar_of(&files(&["1.jpg"]))].concat();
    for (number, format) in [DatasetFormat::INDEXED.into(), OutputFormat::Mapped]
        .into_iter()
        .enumerate()
    {
        for (tail, skipped) in [(&b""[..], 0), (b"more", 1)] {
            let src = dir.path().join("a.tar");
            std::fs::write(&src, [&joined[..], tail].concat()).unwrap();
            let input = Box::new(RecordInput::new(src.as_path()));
            let source = ConvertSource::Records(RecordFormat::WEBDATASET, input);
            let dst = dir.path().join(format!("{number}-{skipped}"));
            let options = ConvertOptions::new(source, dst.as_path(), format);
            let summary = convert(&options, &(), &Cancel::new()).unwrap();
            assert_eq!(splits_of(&summary.splits), [("train", 2)]);
            let account = summary.account.as_ref().unwrap();
            assert_eq!(account.problems.len(), skipped);
            let said = summary.notes.join("\n");
            let place = format!("offset {}", joined.len());
            assert_eq!(
                said.contains("a.tar") && said.contains(&place),
                skipped > 0,
                "{said}"
            );
        }
    }
}
