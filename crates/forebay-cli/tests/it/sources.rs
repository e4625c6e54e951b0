//! Packs directories as users have them, and checks the exit code and what is printed.

use crate::support;

use std::path::Path;
use support::{images, run, text};

/// Creates a directory with copies of an image.
fn tree(root: &Path, names: &[&str]) {
    let class = std::fs::read_dir(images().join("train")).unwrap().next();
    let image = std::fs::read_dir(class.unwrap().unwrap().path())
        .unwrap()
        .next();
    let image = image.unwrap().unwrap().path();
    for name in names {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::copy(&image, path).unwrap();
    }
}

/// Packs a source. Returns stderr and stdout.
fn pack(root: &Path, more: &[&str], code: i32) -> (String, String) {
    let out = root.with_extension("out");
    let mut args = vec![
        "pack",
        text(root),
        text(&out),
        "--format",
        "tfrecord",
        "--overwrite",
    ];
    args.extend(more);
    let ran = run(args).code(code);
    (ran.stderr, ran.stdout)
}

#[test]
fn ordinary_directories_give_no_warnings() {
    for names in [
        &["0.jpg", "1.jpg", "2.jpg"][..],
        &[
            "train/x/0.jpg",
            "train/y/0.jpg",
            "val/x/0.jpg",
            "test/9.jpg",
        ],
        &["train/x/0.jpg", "dev/x/0.jpg", "test/x/0.jpg"],
        &[
            "a/0.jpg",
            "b/0.jpg",
            "__MACOSX/a/._0.jpg",
            "@eaDir/x.jpg",
            "Thumbs.db",
        ],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("src");
        tree(&root, names);
        let (stderr, stdout) = pack(&root, &[], 0);
        assert_eq!(stderr, "", "{stdout}");
    }
}

#[test]
fn images_beside_splits_end_with_a_warning_and_exit_code_3() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("src");
    tree(
        &root,
        &["train/x/0.jpg", "val/x/0.jpg", "extra/1.jpg", "extra/2.jpg"],
    );
    let (stderr, _) = pack(&root, &[], 3);
    let said = "warning: 2 files could not be packed and were left out:";
    assert!(stderr.contains(said), "{stderr}");
    assert!(
        stderr.contains("extra: outside of") && stderr.contains("2 files"),
        "{stderr}"
    );
}

#[test]
fn numeric_classes_are_reported_with_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("src");
    tree(&root, &["1/0.jpg", "2/0.jpg", "10/0.jpg"]);
    let (stderr, _) = pack(&root, &[], 0);
    assert!(
        stderr.contains("10 has the label 2, and 2 has 3"),
        "{stderr}"
    );
    assert!(stderr.contains("--class-order natural"), "{stderr}");
    for order in ["natural", "text"] {
        let (stderr, _) = pack(&root, &["--class-order", order], 0);
        assert_eq!(stderr, "");
    }
    let list = dir.path().join("classes.txt");
    std::fs::write(&list, "10\n2\n1\n").unwrap();
    pack(&root, &["--classes", text(&list)], 0);
    pack(
        &root,
        &["--classes", text(&list), "--class-order", "text"],
        2,
    );
}
