//! Decompression bombs: small files that expand to gigabytes. Each must be refused with its path, in bounded memory.

use super::parquet::tests::{image, write_images};
use super::{RecordFormat, RecordInput};
use ::parquet::basic::{Compression, ZstdLevel};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable that passes the format and the file to the child process.
const BOMB: &str = "FOREBAY_TEST_BOMB";
const MOST_MIB: u64 = 700;

/// Run in a child process: reads all records of a file, and prints the errors and the peak memory of the process.
#[test]
fn child() {
    let Ok(bomb) = std::env::var(BOMB) else {
        return;
    };
    let (format, path) = bomb.split_once(':').unwrap();
    let input = RecordInput::new(Path::new(path));
    let read = RecordFormat::named(format).unwrap().open(&input);
    let read = read.and_then(|source| {
        for file in source.splits.iter().flat_map(|split| &split.files) {
            let mut reader = file.read(0..file.records())?;
            while let Some(_record) = reader.next_record()? {}
        }
        Ok(())
    });
    println!("{}", read.unwrap_err());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    println!("peak {} kB", peak.unwrap().trim_end_matches("kB").trim());
}

/// Reads a bomb in a child process. Returns its output and its peak memory in MiB.
fn read(format: &str, path: &Path) -> (String, u64) {
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new(this);
    command.args(["--exact", "records::bombs::child", "--nocapture"]);
    let output = command.env(BOMB, format!("{format}:{}", path.display()));
    let output = output.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let peak = text.lines().find_map(|line| line.strip_prefix("peak "));
    let peak = peak.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    let peak: u64 = peak.trim_end_matches(" kB").parse().unwrap();
    (text, peak >> 10)
}

fn hostile(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../../testdata/hostile").join(name)
}

/// Writes a Zarr array whose only chunk is 1 GiB of zeros.
fn zarr(dir: &Path) -> PathBuf {
    let root = dir.join("a.zarr");
    std::fs::create_dir_all(root.join("images")).unwrap();
    let shape = [1, 16384, 21845, 3];
    let array = json!({
        "zarr_format": 2, "shape": shape, "chunks": shape, "dtype": "|u1", "order": "C",
        "compressor": {"id": "zstd", "level": 1}, "filters": null, "fill_value": 0,
    });
    std::fs::write(root.join("images/.zarray"), array.to_string()).unwrap();
    let frame = std::fs::File::create(root.join("images/0.0.0.0")).unwrap();
    let mut encoder = zstd::stream::write::Encoder::new(frame, 1).unwrap();
    let zeros = vec![0; 1 << 20];
    (0..1024).for_each(|_| encoder.write_all(&zeros).unwrap());
    encoder.finish().unwrap();
    root
}

/// Writes three deflated arrays with rows of 200 MiB each.
fn npz(dir: &Path) -> PathBuf {
    let path = dir.join("a.npz");
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    let deflated = zip::CompressionMethod::Deflated;
    let options = zip::write::SimpleFileOptions::default().compression_method(deflated);
    let options = options.compression_level(Some(1));
    let (height, width) = (200, 1 << 20);
    for name in ["images", "masks", "depths"] {
        zip.start_file(format!("{name}.npy"), options).unwrap();
        let mut head = Vec::new();
        let shape = [1, height, width / 3, 3];
        let number = forebay_shard::schema::NumberType::Uint8;
        super::npy::NpyHeader::encode(number, &shape, &mut head).unwrap();
        zip.write_all(&head).unwrap();
        let row = vec![0; (width / 3 * 3) as usize];
        (0..height).for_each(|_| zip.write_all(&row).unwrap());
    }
    zip.finish().unwrap();
    path
}

#[test]
fn bombs_are_read_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1).unwrap());
    let values = dir.path().join("values.parquet");
    write_images(&values, zstd, &[vec![image(400 << 20); 4]]);
    for (format, path, said) in [
        ("parquet", values, "row group 0, row 0"),
        ("hdf5", hostile("row.h5"), "array \"images\""),
        ("hdf5", hostile("chunk.h5"), "dataset \"images\""),
        ("zarr", zarr(dir.path()), "has chunks of"),
        ("npz", npz(dir.path()), "array"),
    ] {
        let (text, peak) = read(format, &path);
        assert!(text.contains(said), "{text}");
        assert!(peak < MOST_MIB, "{format}: {peak} MiB\n{text}");
    }
}
