//! Invariants of each parser of untrusted bytes: no panic, no endless loop, and accepted input is consistent. The fuzz targets
//! call these functions, and so do the tests below, which need no fuzzer. Parsers of files get a scratch directory in which
//! they write the file.

pub use crate::class_list::fuzzing::classes;
pub use crate::images::fuzzing::{boxes, labels, mat, tar, zip};

use crate::images::fuzzing::seal_tar;
use crate::records::{OnBadRecord, RecordFormat, RecordInput, decompress_blosc, riegeli_hash};
use forebay_shard::ExampleView;
use std::path::Path;

/// Reads a tar of samples, as it is and with corrected header checksums.
pub fn webdataset(bytes: &[u8], scratch: &Path) {
    let mut sealed = bytes.to_vec();
    seal_tar(&mut sealed);
    let dir = scratch.join("webdataset");
    std::fs::create_dir_all(&dir).unwrap();
    for bytes in [bytes, &sealed] {
        std::fs::write(dir.join("train-000000.tar"), bytes).unwrap();
        read_records(RecordFormat::WEBDATASET, &dir);
    }
}

/// Input: the length of an MDS index in two bytes, the index, and a shard. Reads them as they are, and with the size and the
/// number of samples of the shard corrected in the index.
pub fn mds(bytes: &[u8], scratch: &Path) {
    let Some((len, rest)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
    let (index, shard) = rest.split_at(len);
    let dir = scratch.join("mds");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("index.json"), index).unwrap();
    std::fs::write(dir.join("shard.00000.mds"), shard).unwrap();
    read_records(RecordFormat::MDS, &dir);
    let Ok(mut index) = forebay_shard::json::from_slice::<serde_json::Value>(index) else {
        return;
    };
    if let (Some(count), Some(first)) = (shard.first_chunk(), index.pointer_mut("/shards/0"))
        && first.is_object()
    {
        first["samples"] = u32::from_le_bytes(*count).into();
        let file = serde_json::json!({"basename": "shard.00000.mds", "bytes": shard.len()});
        first["raw_data"] = file;
        std::fs::write(dir.join("index.json"), index.to_string()).unwrap();
        read_records(RecordFormat::MDS, &dir);
    }
}

/// Input: the length of a LitData index in two bytes, the index, and a chunk. Reads them as they are, and with the size and the
/// number of samples of the chunk corrected in the index.
pub fn litdata(bytes: &[u8], scratch: &Path) {
    let Some((len, rest)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
    let (index, chunk) = rest.split_at(len);
    let dir = scratch.join("litdata");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("index.json"), index).unwrap();
    std::fs::write(dir.join("chunk-0-0.bin"), chunk).unwrap();
    read_records(RecordFormat::LITDATA, &dir);
    let Ok(mut index) = forebay_shard::json::from_slice::<serde_json::Value>(index) else {
        return;
    };
    // The number of frames follows their magic and version.
    let counts = [
        chunk.first_chunk(),
        chunk.get(12..).and_then(<[u8]>::first_chunk),
    ];
    for count in counts.into_iter().flatten() {
        let count = u32::from_le_bytes(*count);
        let info = serde_json::json!({"filename": "chunk-0-0.bin", "chunk_bytes": chunk.len(), "chunk_size": count});
        if let Some(object) = index.as_object_mut() {
            object.insert("chunks".to_owned(), serde_json::json!([info]));
        }
        std::fs::write(dir.join("index.json"), index.to_string()).unwrap();
        read_records(RecordFormat::LITDATA, &dir);
    }
}

/// Writes a file below the scratch directory and reads the records of the directory.
fn read_file(format: RecordFormat, scratch: &Path, path: &str, bytes: &[u8]) {
    let dir = scratch.join(format.name());
    let path = dir.join(path);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).unwrap();
    }
    std::fs::write(&path, bytes).unwrap();
    read_records(format, &dir);
}

/// Reads an archive of NumPy arrays, and parses the header of an array.
pub fn npz(bytes: &[u8], scratch: &Path) {
    read_file(RecordFormat::NPZ, scratch, "a.npz", bytes);
    let dir = scratch.join("npy");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("images.npy"), bytes).unwrap();
    read_records(RecordFormat::NPZ, &dir);
}

/// Reads a safetensors file.
pub fn safetensors(bytes: &[u8], scratch: &Path) {
    read_file(RecordFormat::SAFETENSORS, scratch, "a.safetensors", bytes);
}

/// Input: the length of a first block in two bytes, the block, and the beginning of the second block. Reads them as they are,
/// and with corrected hashes of their chunks.
pub fn array_record(bytes: &[u8], scratch: &Path) {
    const BLOCK: usize = 1 << 16;
    let Some((len, rest)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let (first, second) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
    let mut file = first.to_vec();
    file.resize(BLOCK, 0);
    file.extend_from_slice(&second[..second.len().min(BLOCK)]);
    file.resize(2 * BLOCK, 0);
    read_file(RecordFormat::ARRAY_RECORD, scratch, "a.array_record", &file);
    for block in file.chunks_exact_mut(BLOCK) {
        seal_chunks(block);
    }
    read_file(RecordFormat::ARRAY_RECORD, scratch, "a.array_record", &file);
}

/// Corrects the hashes of the chunks that are completely inside a block.
fn seal_chunks(block: &mut [u8]) {
    let mut at = 24;
    while let Some(header) = block.get(at..at + 40) {
        let size: [u8; 8] = header[8..16].try_into().unwrap();
        let size = usize::try_from(u64::from_le_bytes(size)).unwrap();
        let end = (at + 40).saturating_add(size);
        let Some(data) = block.get(at + 40..end) else {
            break;
        };
        let sum = riegeli_hash(data).to_le_bytes();
        block[at + 16..at + 24].copy_from_slice(&sum);
        let sum = riegeli_hash(&block[at + 8..at + 40]).to_le_bytes();
        block[at..at + 8].copy_from_slice(&sum);
        at = end;
    }
}

/// Reads a zip of a Zarr hierarchy. Also reads the metadata of an array, after its length in two bytes, and its first chunk.
pub fn zarr(bytes: &[u8], scratch: &Path) {
    read_file(RecordFormat::ZARR, scratch, "a.zarr.zip", bytes);
    let Some((len, rest)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
    let (metadata, chunk) = rest.split_at(len);
    let dir = scratch.join("array.zarr");
    for (version, name) in [("zarr.json", "c/0/0/0/0"), (".zarray", "0.0.0.0")] {
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("c/0/0/0")).unwrap();
        std::fs::write(dir.join(version), metadata).unwrap();
        std::fs::write(dir.join(name), chunk).unwrap();
        read_records(RecordFormat::ZARR, &dir);
    }
}

/// Reads a Blosc frame, as it is and with its length corrected in the header.
pub fn blosc(bytes: &[u8]) {
    const MOST: usize = 1 << 20;
    let mut sized = bytes.to_vec();
    if let Some(len) = sized.get_mut(12..16) {
        len.copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    }
    for frame in [bytes, &sized] {
        match decompress_blosc(frame, MOST) {
            Ok(found) => assert!(found.len() <= MOST),
            Err(error) => assert!(!error.is_empty()),
        }
    }
}

/// Reads an LMDB database.
pub fn lmdb(bytes: &[u8], scratch: &Path) {
    read_file(RecordFormat::LMDB, scratch, "a.lmdb", bytes);
}

/// Reads an HDF5 file.
#[cfg(feature = "formats")]
pub fn hdf5(bytes: &[u8], scratch: &Path) {
    read_file(RecordFormat::HDF5, scratch, "a.h5", bytes);
}

/// Reads a Parquet file.
#[cfg(feature = "formats")]
pub fn parquet(bytes: &[u8], scratch: &Path) {
    read_file(RecordFormat::PARQUET, scratch, "a.parquet", bytes);
}

/// Reads COCO annotations for two images; one file has the annotations of all three tasks.
pub fn coco(bytes: &[u8], scratch: &Path) {
    let dir = scratch.join("coco");
    let images = dir.join("train2017");
    std::fs::create_dir_all(dir.join("annotations")).unwrap();
    std::fs::create_dir_all(&images).unwrap();
    for name in ["a.jpg", "b.jpg"] {
        std::fs::write(images.join(name), b"\xff\xd8\xff\xd9").unwrap();
    }
    for task in ["instances", "person_keypoints", "captions"] {
        let path = format!("annotations/{task}_train2017.json");
        std::fs::write(dir.join(path), bytes).unwrap();
    }
    read_records(RecordFormat::COCO, &dir);
}

/// Reads a Pascal VOC annotation; the same bytes are also the list of its split.
pub fn voc(bytes: &[u8], scratch: &Path) {
    let dir = scratch.join("voc");
    for name in ["Annotations", "JPEGImages", "ImageSets/Main"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    std::fs::write(dir.join("JPEGImages/a.jpg"), b"\xff\xd8\xff\xd9").unwrap();
    std::fs::write(dir.join("Annotations/a.xml"), bytes).unwrap();
    for list in [&b"a\n"[..], bytes] {
        std::fs::write(dir.join("ImageSets/Main/train.txt"), list).unwrap();
        read_records(RecordFormat::VOC, &dir);
    }
}

/// Reads OpenImages boxes for two images: with the same bytes as the class list, and without a class list.
pub fn open_images(bytes: &[u8], scratch: &Path) {
    let dir = scratch.join("open_images");
    std::fs::create_dir_all(dir.join("train")).unwrap();
    for name in ["train/a.jpg", "train/b.jpg"] {
        std::fs::write(dir.join(name), b"\xff\xd8\xff\xd9").unwrap();
    }
    let classes = dir.join("class-descriptions-boxable.csv");
    std::fs::write(dir.join("train-annotations-bbox.csv"), bytes).unwrap();
    std::fs::write(&classes, bytes).unwrap();
    read_records(RecordFormat::OPEN_IMAGES, &dir);
    std::fs::remove_file(&classes).unwrap();
    read_records(RecordFormat::OPEN_IMAGES, &dir);
}

/// Reads a list of two images in each text format.
pub fn image_list(bytes: &[u8], scratch: &Path) {
    for name in ["metadata.csv", "metadata.jsonl", "metadata.tsv"] {
        let dir = scratch.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        for image in ["a.jpg", "b.jpg"] {
            std::fs::write(dir.join(image), b"\xff\xd8\xff\xd9").unwrap();
        }
        std::fs::write(dir.join(name), bytes).unwrap();
        read_records(RecordFormat::IMAGE_LIST, &dir);
    }
}

/// Reads all records under both policies: each must be an Example, and errors must have messages.
fn read_records(format: RecordFormat, dir: &Path) {
    for policy in [OnBadRecord::Fail, OnBadRecord::Skip] {
        let mut input = RecordInput::new(dir);
        input.on_bad_record = policy;
        input.features.without_images = policy == OnBadRecord::Skip;
        let source = match format.open(&input) {
            Ok(source) => source,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        for file in source.splits.iter().flat_map(|split| &split.files) {
            let mut reader = file.read(0..file.records()).unwrap();
            for number in 0..=file.records() {
                match reader.next_record() {
                    Ok(Some(record)) => {
                        assert_eq!(record.number, number);
                        ExampleView::parse(record.bytes).unwrap();
                    }
                    Ok(None) => assert_eq!(number, file.records()),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(unreachable_pub)] // the items are public in forebay-rigs, which owns the file
#[path = "../../forebay-rigs/src/corpus.rs"]
mod replaying;

#[cfg(test)]
mod tests {
    use super::replaying::replay_corpus;
    use std::path::Path;

    /// Few mutations per entry, because most entries write a file for each.
    fn replay(target: &str, entry: impl Fn(&[u8], &Path)) {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");
        // Uses a file system in memory if there is one, because thousands of small files are written.
        let memory = Path::new("/dev/shm");
        let scratch = match memory.is_dir() {
            true => tempfile::tempdir_in(memory).unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        replay_corpus(&Path::new(corpus).join(target), 200, |bytes| {
            entry(bytes, scratch.path());
        });
    }

    #[test]
    fn tars() {
        replay("tar", super::tar);
    }

    #[test]
    fn webdatasets() {
        replay("webdataset", super::webdataset);
    }

    #[test]
    fn mds_shards() {
        replay("mds", super::mds);
    }

    #[test]
    fn litdata_chunks() {
        replay("litdata", super::litdata);
    }

    #[test]
    fn zips() {
        replay("zip", super::zip);
    }

    #[test]
    fn matlab_files() {
        replay("mat", |bytes, _| super::mat(bytes));
    }

    #[test]
    fn files_of_labels() {
        replay("labels", super::labels);
    }

    #[test]
    fn annotations() {
        replay("boxes", |bytes, _| super::boxes(bytes));
    }

    #[test]
    fn lists_of_classes() {
        replay("classes", |bytes, _| super::classes(bytes));
    }

    #[test]
    fn arrays_of_numpy() {
        replay("npz", super::npz);
    }

    #[test]
    fn tensors() {
        replay("safetensors", super::safetensors);
    }

    #[test]
    fn files_of_array_record() {
        replay("array_record", super::array_record);
    }

    #[test]
    fn hierarchies_of_arrays() {
        replay("zarr", super::zarr);
    }

    #[test]
    fn frames_of_blosc() {
        replay("blosc", |bytes, _| super::blosc(bytes));
    }

    #[test]
    fn lists_of_images() {
        replay("image_list", super::image_list);
    }

    #[test]
    fn databases() {
        replay("lmdb", super::lmdb);
    }

    #[test]
    #[cfg(feature = "formats")]
    fn hdf5_files() {
        replay("hdf5", super::hdf5);
    }

    #[test]
    #[cfg(feature = "formats")]
    fn parquet_files() {
        replay("parquet", super::parquet);
    }

    #[test]
    fn annotations_of_coco() {
        replay("coco", super::coco);
    }

    #[test]
    fn boxes_of_open_images() {
        replay("open_images", super::open_images);
    }

    #[test]
    fn annotations_of_voc() {
        replay("voc", super::voc);
    }
}
