//! `forebay rm`.

use crate::support;

use std::fs;

use support::{images, run, text, tree};

#[test]
fn removes_a_dataset_and_leaves_its_neighbors() {
    let dir = tempfile::tempdir().unwrap();
    let (source, root) = (images(), dir.path().join("shards"));
    run(["pack", text(&source), text(&root), "-qq"]).done();
    fs::write(dir.path().join("other"), "kept").unwrap();
    let before = tree(dir.path());

    let refused = run(["rm", text(&root)]).code(2);
    assert!(
        refused.stderr.contains("-r removes everything"),
        "{}",
        refused.stderr
    );
    let shown = run(["rm", "-r", "-n", text(&root)]).done();
    assert!(shown.stdout.contains("would remove"), "{}", shown.stdout);
    assert_eq!(tree(dir.path()), before);

    let ran = run(["rm", "-r", text(&root), "--json"]).done();
    assert_eq!(
        ran.summary()["objects"].as_u64().unwrap() as usize,
        before.len() - 1
    );
    assert!(!root.exists());
    assert_eq!(fs::read(dir.path().join("other")).unwrap(), b"kept");
    run(["rm", "-r", text(&root)]).code(1);
}

#[test]
fn removes_the_manifest_first_and_prints_what_it_removes() {
    let dir = tempfile::tempdir().unwrap();
    let (source, root) = (images(), dir.path().join("shards"));
    run(["pack", text(&source), text(&root), "-qq"]).done();
    let ran = run(["rm", "-r", text(&root)]).done();
    assert!(
        ran.stdout.lines().next().unwrap().ends_with("forebay.json"),
        "{}",
        ran.stdout
    );
}

#[test]
fn removes_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.txt");
    fs::write(&file, "x").unwrap();
    fs::write(dir.path().join("b.txt"), "y").unwrap();
    run(["rm", text(&file)]).done();
    assert!(!file.exists() && dir.path().join("b.txt").exists());
    run(["rm", text(&file)]).code(1);
}

#[test]
fn refuses_roots() {
    for root in ["/", "s3://bucket", "s3://bucket/"] {
        let ran = run(["rm", "-r", "-n", root]);
        assert_ne!(ran.code, 0, "{root}");
    }
    assert!(
        run(["rm", "-r", "-n", "/"])
            .stderr
            .contains("whole file system")
    );
}
