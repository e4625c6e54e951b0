//! Invalid or unusual files are left out or packed, and reported in either case.

use crate::layout;
use crate::support;

use forebay_pack::{
    Action, Cancel, Census, Error, Finding, Observer, OnBad, Plan, Reason, Sharding, prepare,
};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use support::*;

fn report(dst: &Path) -> Vec<Finding> {
    let text = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn every_kind_of_finding_is_in_the_report() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 3);
    let good = jpeg(50, 40, 3, b"good");
    put(&src, b"n00000000/empty.jpg", b"");
    put(&src, b"n00000000/text.jpg", b"this is text");
    put(&src, b"n00000000/short.jpg", b"\xff");
    put(&src, b"n00000000/gif.png", b"GIF89a and so on");
    put(&src, b"n00000000/photo.avif", b"\0\0\0\x1cftypavif");
    put(&src, b"n00000000/cut.jpg", &good[..12]);
    put(&src, b"n00000000/bomb.png", &{
        let mut bytes = png(4, 4);
        bytes[16..24].copy_from_slice(&[0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0]);
        bytes
    });
    put(&src, b"n00000000/really_a_png.JPEG", &png(7, 8));
    put(&src, b"n00000000/really_a_jpeg.png", &good);
    put(&src, b"n00000000/notes.txt", b"notes");
    put(&src, b"n00000000/.DS_Store", b"hidden");
    put(&src, b"n00000000/.cache/a.jpg", &good);
    put(&src, b"stray.jpg", &good);
    put(&src, b"readme.md", b"text");
    let class = src.join("n00000001");
    symlink("nowhere.jpg", class.join("dangling.jpg")).unwrap();
    symlink("self.jpg", class.join("self.jpg")).unwrap();
    symlink("..", class.join("up")).unwrap();
    symlink("../n00000000/really_a_jpeg.png", class.join("link.jpg")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        class.join("pipe.jpg"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();

    let summary = run(&options(&src, &dst)).unwrap();
    let mut found: Vec<_> = report(&dst)
        .into_iter()
        .map(|f| (f.path, f.action, f.reason))
        .collect();
    found.sort();
    let skipped = |path: &str, reason| (path.to_owned(), Action::Skipped, reason);
    let ignored = |path: &str, reason| (path.to_owned(), Action::Ignored, reason);
    let kept = |path: &str, reason| (path.to_owned(), Action::Kept, reason);
    let mut expected = vec![
        skipped("n00000000/empty.jpg", Reason::Empty),
        skipped("n00000000/text.jpg", Reason::NotAnImage),
        skipped("n00000000/short.jpg", Reason::BadHeader),
        skipped("n00000000/gif.png", Reason::OtherFormat),
        skipped("n00000000/photo.avif", Reason::OtherFormat),
        skipped("n00000000/cut.jpg", Reason::BadHeader),
        skipped("n00000000/bomb.png", Reason::BadHeader),
        kept("n00000000/really_a_png.JPEG", Reason::NameMismatch),
        kept("n00000000/really_a_jpeg.png", Reason::NameMismatch),
        ignored("n00000000/notes.txt", Reason::NotAnImage),
        ignored("n00000000/.DS_Store", Reason::System),
        ignored("n00000000/.cache", Reason::Hidden),
        skipped("stray.jpg", Reason::Outside),
        ignored("readme.md", Reason::Outside),
        skipped("n00000001/dangling.jpg", Reason::DanglingLink),
        skipped("n00000001/self.jpg", Reason::LinkLoop),
        ignored("n00000001/pipe.jpg", Reason::SpecialFile),
        ignored("n00000001/up", Reason::LinkLoop),
    ];
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(
        summary.findings.iter().map(|(_, count)| count).sum::<u64>(),
        found.len() as u64
    );
    assert_eq!(
        summary.report.as_deref(),
        Some(dst.join("pack/report.jsonl").as_path())
    );
    let records = records(&dst, "train");
    assert_eq!(
        records[b"n00000000/really_a_png.JPEG".as_slice()].format,
        "PNG"
    );
    assert_eq!(records[b"n00000001/link.jpg".as_slice()].image, good);
    assert_eq!(summary.records(), records.len() as u64);
}

#[test]
fn loops_of_links_do_not_repeat_images() {
    let dir = tempfile::tempdir().unwrap();
    let (src, outside) = (dir.path().join("in/src"), dir.path().join("outside"));
    tree(&src, 2, 2);
    put(&outside, b"more/x.jpg", &jpeg(50, 40, 3, b"more"));
    let link = |to: &Path, at: &str| symlink(to, src.join(at)).unwrap();
    // Links to the directory itself, to the source, to directories above, and to each other.
    for (to, at) in [
        (".", "n00000000/self"),
        ("..", "n00000000/source"),
        ("../..", "n00000000/above"),
        ("/", "n00000000/root"),
        (".", "source"),
        ("..", "above"),
    ] {
        link(Path::new(to), at);
    }
    link(&outside.join("back"), "n00000001/there");
    symlink(&src, outside.join("back")).unwrap();
    symlink(src.join("n00000000"), outside.join("more/again")).unwrap();
    // Links to other directories are followed: within a class, and as a class.
    link(&outside.join("more"), "n00000001/more");
    link(&outside.join("more"), "n00000009");
    let dst = dir.path().join("dst");
    run(&options(&src, &dst)).unwrap();
    let keys: Vec<String> = records(&dst, "train")
        .into_keys()
        .map(|key| String::from_utf8(key).unwrap())
        .collect();
    let mut expected: Vec<String> = [0, 1]
        .iter()
        .flat_map(|c| [0, 1].map(|i| format!("n{c:08}/n{c:08}_{i}.JPEG")))
        .collect();
    // Links to a class from another directory do not form a loop.
    for more in ["n00000001/more", "n00000009"] {
        expected.push(format!("{more}/x.jpg"));
        expected.extend([0, 1].map(|i| format!("{more}/again/n00000000_{i}.JPEG")));
    }
    expected.sort();
    assert_eq!(keys, expected);
    let mut loops: Vec<String> = report(&dst)
        .into_iter()
        .filter(|finding| finding.reason == Reason::LinkLoop)
        .map(|finding| finding.path)
        .collect();
    loops.sort();
    assert!(
        loops
            .iter()
            .all(|path| path.contains("/again/") || !path.contains("more"))
    );
    loops.retain(|path| !path.contains("again"));
    let own = ["above", "root", "self", "source"].map(|name| format!("n00000000/{name}"));
    let top = ["above", "n00000001/there", "source"].map(str::to_owned);
    let mut expected = [own.as_slice(), &top].concat();
    expected.sort();
    assert_eq!(loops, expected);
}

#[test]
fn odd_images_are_kept_if_they_can_be_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    let plain = picture(50, 40);
    let end = plain.len() - 2;
    let good = [
        ("plain.jpg", plain.clone(), None),
        ("cmyk.jpg", testdata("dirty/cmyk.jpg"), Some(Reason::Cmyk)),
        ("ycck.jpg", testdata("dirty/ycck.jpg"), Some(Reason::Cmyk)),
        (
            "trailing.jpg",
            [plain.as_slice(), b"\0 more"].concat(),
            Some(Reason::TrailingBytes),
        ),
        ("endless.jpg", plain[..end].to_vec(), Some(Reason::NoEnd)),
        (
            "trailing.png",
            [png(5, 6).as_slice(), b"more"].concat(),
            Some(Reason::TrailingBytes),
        ),
        ("jpeg.gif", plain.clone(), Some(Reason::NameMismatch)),
        ("no ending\nbut a line", plain.clone(), None),
    ];
    for (name, content, _) in &good {
        put(&src, format!("a/{name}").as_bytes(), content);
    }
    let large = picture(200, 160);
    put(&src, b"a/half.jpg", &large[..large.len() / 2]);
    let image = png(40, 40);
    put(&src, b"a/half.png", &image[..image.len() / 2]);
    let summary = run(&options(&src, &dst)).unwrap();
    assert_eq!(
        (summary.records(), summary.skipped()),
        (good.len() as u64, 2)
    );
    let records = records(&dst, "train");
    let mut expected = vec![
        ("a/half.jpg".to_owned(), Action::Skipped, Reason::NoEnd),
        ("a/half.png".to_owned(), Action::Skipped, Reason::NoEnd),
    ];
    for (name, content, reason) in good {
        let key = format!("a/{name}");
        assert!(records[key.as_bytes()].image == content, "{name}");
        expected.extend(reason.map(|reason| (key, Action::Kept, reason)));
    }
    expected.sort();
    let mut found: Vec<_> = report(&dst)
        .into_iter()
        .map(|f| (f.path, f.action, f.reason))
        .collect();
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn bad_images_are_quarantined_without_replacing_files() {
    let dir = tempfile::tempdir().unwrap();
    let (src, aside) = (dir.path().join("src"), dir.path().join("aside"));
    tree(&src, 2, 10);
    let bad: &[(&str, &[u8])] = &[
        ("n00000000/empty.jpg", b""),
        ("n00000000/text.jpg", b"this is text"),
        ("n00000001/deep/gif.png", b"GIF89a and so on"),
        ("n00000001/deep/by name.gif", b"GIF89a found by the census"),
    ];
    for (path, content) in bad {
        put(&src, path.as_bytes(), content);
    }
    put(&src, b"n00000001/\xff odd\n.jpg", b"bad too");
    put(&aside, b"n00000000/text.jpg", b"somebody else's");
    let skipped = run(&options(&src, &dir.path().join("skip"))).unwrap();
    let archive = dir.path().join("src.tar");
    let mut tar = tar::Builder::new(std::fs::File::create(&archive).unwrap());
    tar.append_dir_all("", &src).unwrap();
    tar.into_inner().unwrap();
    let packed = dir.path().join("src.tar.gz");
    let gz = std::fs::File::create(&packed).unwrap();
    let mut gz = flate2::write::GzEncoder::new(gz, flate2::Compression::fast());
    std::io::Write::write_all(&mut gz, &std::fs::read(&archive).unwrap()).unwrap();
    gz.finish().unwrap();
    let zip = dir.path().join("src.zip");
    std::fs::write(&zip, zip_tree(&src)).unwrap();
    let sources = [
        (&src, "directory"),
        (&archive, "archive"),
        (&packed, "compressed"),
        (&zip, "zip"),
    ];
    for (source, name) in sources {
        // The tar finds the copies of the directory in place; the last two sources make new copies of all files.
        if ["compressed", "zip"].contains(&name) {
            std::fs::remove_dir_all(&aside).unwrap();
            put(&aside, b"n00000000/text.jpg", b"somebody else's");
        }
        let dst = dir.path().join(name);
        let mut options = options(source, &dst);
        options.on_bad = OnBad::Quarantine(aside.clone());
        let summary = run(&options).unwrap();
        assert_eq!((summary.records(), summary.skipped()), (20, 5));
        assert_eq!(summary.fingerprint, skipped.fingerprint);
        let quarantined = |f: &Finding| f.action == Action::Quarantined;
        assert_eq!(report(&dst).iter().filter(|f| quarantined(f)).count(), 5);
        let found = contents(&aside);
        assert_eq!(found.len(), 6, "{:?}", found.keys());
        assert_eq!(found[Path::new("n00000000/empty.jpg")], b"");
        assert_eq!(found[Path::new("n00000000/text.jpg")], b"somebody else's");
        assert_eq!(found[Path::new("n00000000/text.jpg.1")], b"this is text");
        for (path, content) in &bad[2..] {
            assert_eq!(found[Path::new(path)], *content);
        }
    }
    for inside in ["src/aside", "directory/aside"] {
        let mut options = options(&src, &dir.path().join("directory"));
        options.on_bad = OnBad::Quarantine(dir.path().join(inside));
        let error = run(&options).unwrap_err().to_string();
        assert!(error.contains("the quarantine lies in"), "{error}");
    }
}

/// Returns all files of a tree as a zip archive, including files whose names are not UTF-8.
fn zip_tree(src: &Path) -> Vec<u8> {
    // The zip crate only accepts UTF-8, so a placeholder is replaced in the finished archive.
    let files: Vec<_> = contents(src)
        .into_iter()
        .map(|(path, content)| {
            let mut name = path.as_os_str().as_bytes().to_vec();
            for byte in name.iter_mut().filter(|byte| **byte == 0xff) {
                *byte = 1;
            }
            (String::from_utf8(name).unwrap(), content)
        })
        .collect();
    let mut zip = layout::zip_of(&files);
    let odd: Vec<_> = files
        .iter()
        .filter(|(name, _)| name.contains('\u{1}'))
        .collect();
    for (name, _) in odd {
        let places: Vec<_> = (0..zip.len() - name.len())
            .filter(|at| zip[*at..].starts_with(name.as_bytes()))
            .collect();
        assert_eq!(places.len(), 2, "before the file and in the directory");
        for at in places {
            for byte in zip[at..at + name.len()]
                .iter_mut()
                .filter(|byte| **byte == 1)
            {
                *byte = 0xff;
            }
        }
    }
    zip
}

#[test]
fn unreadable_zip_members_are_skipped_others_quarantined() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, dst, aside) = (
        dir.path().join("src.zip"),
        dir.path().join("dst"),
        dir.path().join("aside"),
    );
    let files: Vec<(String, Vec<u8>)> = [
        // Members are alternately stored and deflated.
        ("a/good.jpg", picture(40, 30)),
        ("a/also good.jpg", picture(30, 40)),
        ("a/stored.jpg", b"stored, and no image".to_vec()),
        (
            "a/deflated.jpg",
            b"deflated, and no image either".repeat(20),
        ),
        ("a/damaged.jpg", b"this one will be damaged".to_vec()),
    ]
    .map(|(name, content)| (name.to_owned(), content))
    .into();
    let mut zip = layout::zip_of(&files);
    let damaged = files[4].1.as_slice();
    let at = zip
        .windows(damaged.len())
        .position(|bytes| bytes == damaged)
        .unwrap();
    zip[at] ^= 1;
    std::fs::write(&archive, zip).unwrap();
    let mut options = options(&archive, &dst);
    options.on_bad = OnBad::Quarantine(aside.clone());
    let summary = run(&options).unwrap();
    assert_eq!((summary.records(), summary.skipped()), (2, 3));
    let copies = contents(&aside);
    assert_eq!(copies.len(), 2, "{:?}", copies.keys());
    for (name, content) in &files[2..4] {
        assert!(copies[Path::new(name)] == *content, "{name}");
    }
    let mut found: Vec<_> = report(&dst)
        .into_iter()
        .map(|f| (f.path, f.action, f.reason))
        .collect();
    found.sort();
    let line = |name: &str, action, reason| (format!("a/{name}.jpg"), action, reason);
    assert_eq!(
        found,
        [
            line("damaged", Action::Skipped, Reason::Unreadable),
            line("deflated", Action::Quarantined, Reason::NotAnImage),
            line("stored", Action::Quarantined, Reason::NotAnImage),
        ]
    );
}

#[test]
fn on_bad_fail_stops_at_the_first_bad_image() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst, clean) = (
        dir.path().join("src"),
        dir.path().join("dst"),
        dir.path().join("clean"),
    );
    tree(&src, 2, 20);
    put(&src, b"n00000001/bad.jpg", b"bad");
    put(&src, b"n00000001/by name.gif", b"GIF89a");
    let mut strict = options(&src, &dst);
    strict.on_bad = OnBad::Fail;
    let error = run(&strict).unwrap_err();
    assert!(
        matches!(&error, Error::BadImage(finding) if finding.path == "n00000001/by name.gif"),
        "{error}"
    );
    std::fs::remove_file(src.join("n00000001/by name.gif")).unwrap();
    let error = run(&strict).unwrap_err();
    assert!(
        matches!(&error, Error::BadImage(finding) if finding.path == "n00000001/bad.jpg"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("skip"));
    assert!(!dst.join("forebay.json").exists());
    // With the default policy, the pack continues where it stopped.
    let summary = run(&options(&src, &dst)).unwrap();
    assert_eq!((summary.records(), summary.skipped()), (40, 1));
    run(&options(&src, &clean)).unwrap();
    assert_same(&dst, &clean);
}

/// Changes the source when the plan is complete.
struct Meddler<F: Fn() + Sync>(F);

impl<F: Fn() + Sync> Observer for Meddler<F> {
    fn planned(&self, _census: &Census, _plan: &Plan) {
        (self.0)();
    }
}

#[test]
fn a_directory_in_place_of_a_file_is_a_changed_source() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 5);
    let meddler = Meddler(|| {
        let file = src.join("n00000000/n00000000_3.JPEG");
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
    });
    let prepared = prepare(&options(&src, &dst), &meddler, &Cancel::new()).unwrap();
    let error = prepared.run(&(), &Cancel::new()).unwrap_err();
    let Error::SourceChanged(found) = &error else {
        panic!("{error}")
    };
    assert_eq!(found.reason, Reason::Vanished);
    assert!(error.to_string().contains("directory now"), "{error}");
    assert!(!dst.join("forebay.json").exists());
}

#[test]
fn a_source_that_disappears_stops_the_pack() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 4, 60);
    let mut one = options(&src, &dst);
    one.sharding = Sharding::Count(1);
    let prepared = prepare(&one, &(), &Cancel::new()).unwrap();
    for class in 0..4 {
        std::fs::remove_dir_all(src.join(format!("n{class:08}"))).unwrap();
    }
    let error = prepared.run(&(), &Cancel::new()).unwrap_err().to_string();
    assert!(error.contains("vanished after the census"), "{error}");
    assert!(!dst.join("forebay.json").exists());
}
