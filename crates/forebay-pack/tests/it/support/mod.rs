//! Small image trees for the tests, and functions that examine the results.

use forebay_pack::{Cancel, PackOptions, Result, Sharding, SourceComparison, Summary, pack};
use forebay_shard::{Dataset, ExampleView, LocalFiles};
use forebay_store::StoreOptions;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Starts the comparison of a dataset with its source, both in directories.
pub(crate) fn comparison(dst: &Path, src: &Path) -> SourceComparison {
    let files = Arc::new(LocalFiles::within_limits());
    let store = StoreOptions::default();
    SourceComparison::open(dst, files, src, &store, &(), &Cancel::new()).unwrap()
}

/// Returns a very small gray JPEG, with `payload` in comments.
pub(crate) fn jpeg(width: u16, height: u16, channels: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff, 0xd8];
    let mut segment = |marker: u8, content: &[u8]| {
        out.extend([0xff, marker]);
        out.extend((content.len() as u16 + 2).to_be_bytes());
        out.extend(content);
    };
    segment(0xdb, &[[0].as_slice(), &[1; 64]].concat());
    let [w1, w0] = width.to_be_bytes();
    let [h1, h0] = height.to_be_bytes();
    let mut frame = vec![8, h1, h0, w1, w0, channels];
    frame.extend((1..=channels).flat_map(|id| [id, 0x11, 0]));
    segment(0xc0, &frame);
    // Each table has one code of one bit: no difference, and the end of the block.
    for class in [0x00, 0x10] {
        let mut table = [0; 18];
        (table[0], table[1]) = (class, 1);
        segment(0xc4, &table);
    }
    let comment: Vec<u8> = payload.iter().copied().filter(|b| *b != 0xff).collect();
    for part in comment.chunks(60_000) {
        segment(0xfe, part);
    }
    let mut scan = vec![channels];
    scan.extend((1..=channels).flat_map(|id| [id, 0]));
    scan.extend([0, 63, 0]);
    segment(0xda, &scan);
    let blocks = usize::from(width.div_ceil(8)) * usize::from(height.div_ceil(8));
    out.resize(
        out.len() + (2 * blocks * usize::from(channels)).div_ceil(8),
        0,
    );
    out.extend([0xff, 0xd9]);
    out
}

pub(crate) fn png(width: u32, height: u32) -> Vec<u8> {
    forebay_image::encode_png(&vec![128; (width * height * 3) as usize], width, height)
}

/// Reads a file of the repository's test data.
pub(crate) fn testdata(path: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    std::fs::read(root.join(path)).unwrap()
}

/// Returns a JPEG that can be decoded.
pub(crate) fn picture(width: u32, height: u32) -> Vec<u8> {
    let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| [x, y, x + y]));
    let image = forebay_image::RgbImage {
        width,
        height,
        data: pixels.map(|value| value as u8).collect(),
    };
    forebay_image::encode_jpeg(&image, 92, false).unwrap()
}

/// Returns pseudorandom bytes, always the same for a seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Writes a file, and creates its parent directories.
pub(crate) fn put(root: &Path, path: &[u8], content: &[u8]) {
    let path = root.join(OsStr::from_bytes(path));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Creates `classes` directories with `images` JPEGs of different sizes each.
pub(crate) fn tree(root: &Path, classes: usize, images: usize) {
    for class in 0..classes {
        for image in 0..images {
            let seed = (class * 1000 + image) as u64;
            let content = jpeg(
                300 + image as u16,
                200 + class as u16,
                3,
                &noise(seed, 500 + (seed as usize * 37) % 6000),
            );
            put(
                root,
                format!("n{class:08}/n{class:08}_{image}.JPEG").as_bytes(),
                &content,
            );
        }
    }
}

/// Returns options with several small shards.
pub(crate) fn options(src: &Path, dst: &Path) -> PackOptions {
    let mut options = PackOptions::new(src, dst);
    options.sharding = Sharding::Count(4);
    options.jobs = Some(2);
    options
}

pub(crate) fn run(options: &PackOptions) -> Result<Summary> {
    pack(options, &(), &Cancel::new())
}

/// Returns every file below a directory with its content.
pub(crate) fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.insert(
                    path.strip_prefix(root).unwrap().to_path_buf(),
                    std::fs::read(&path).unwrap(),
                );
            }
        }
    }
    found
}

/// Checks that two directories contain the same files with the same bytes.
#[track_caller]
pub(crate) fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (contents(one), contents(other));
    assert_eq!(
        one.keys().collect::<Vec<_>>(),
        other.keys().collect::<Vec<_>>()
    );
    for (path, content) in &one {
        assert!(other[path] == *content, "{} differs", path.display());
    }
}

/// The values of a record that the tests compare.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub image: Vec<u8>,
    pub label: i64,
    pub synset: Option<String>,
    pub text: Option<String>,
    pub filename: Vec<u8>,
    pub format: String,
    pub colorspace: String,
    pub size: (i64, i64, i64),
}

/// Returns the records of a split by key. Checks that index and records agree.
pub(crate) fn records(root: &Path, split: &str) -> BTreeMap<Vec<u8>, Seen> {
    let dataset = Dataset::open(root).unwrap();
    let split = dataset.split(split).unwrap();
    let mut found = BTreeMap::new();
    let mut record = Vec::new();
    for number in 0..split.len() {
        split.read(number, &mut record).unwrap();
        let example = ExampleView::parse(&record).unwrap();
        let bytes = |name| example.bytes(name).unwrap().map(<[u8]>::to_vec);
        let text = |name| bytes(name).map(|b| String::from_utf8(b).unwrap());
        let int = |name| example.int64(name).unwrap().unwrap();
        let seen = Seen {
            image: bytes("image/encoded").unwrap(),
            label: int("image/class/label"),
            synset: text("image/class/synset"),
            text: text("image/class/text"),
            filename: bytes("image/filename").unwrap(),
            format: text("image/format").unwrap(),
            colorspace: text("image/colorspace").unwrap(),
            size: (
                int("image/width"),
                int("image/height"),
                int("image/channels"),
            ),
        };
        assert_eq!(split.label(number), Some(seen.label));
        assert!(
            found.insert(split.key(number).unwrap(), seen).is_none(),
            "a key is there twice"
        );
    }
    found
}
