#!/usr/bin/env python3
"""TensorFlow reads what Forebay wrote, and every feature is equal.

    python tools/check/tf_interop.py [DIRECTORY]

Run it with an interpreter that has TensorFlow. DIRECTORY holds TFRecords and
expected.json as `cargo run -p forebay-shard --example interop_shards` writes
them; without it they are written to a temporary one. Where the command
`forebay` is on the PATH, it also packs testdata/images, and TensorFlow reads
and decodes each image from the shards; then the odd images of testdata/dirty
as RGB JPEG, and all of them smaller. The exit status is 0 if all is equal.
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPRESSION = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}


def read(path: pathlib.Path, compression: str = "none") -> list:
    """The records of a file, checksums verified by TensorFlow."""
    dataset = tf.data.TFRecordDataset(str(path), COMPRESSION[compression])
    return [record.numpy() for record in dataset]


def features(record: bytes) -> list:
    """Features as expected.json has them, sorted by name."""
    example = tf.train.Example.FromString(record)
    out = []
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind == "bytes_list":
            values = [value.hex() for value in feature.bytes_list.value]
        elif kind == "float_list":
            floats = feature.float_list.value
            values = [struct.unpack("<I", struct.pack("<f", value))[0] for value in floats]
        else:
            values = list(feature.int64_list.value)
        out.append({"name": name, "kind": kind.removesuffix("_list"), "values": values})
    return sorted(out, key=lambda feature: feature["name"])


def check_written(directory: pathlib.Path) -> None:
    """Compares every feature of every record in a directory."""
    for file in json.loads((directory / "expected.json").read_text())["files"]:
        records = read(directory / file["name"], file["compression"])
        assert len(records) == len(file["records"]), file["name"]
        for number, (record, expected) in enumerate(zip(records, file["records"])):
            found = features(record)
            expected = sorted(expected, key=lambda feature: feature["name"])
            assert found == expected, f"{file['name']}: record {number} differs"
        print(f"{file['name']}: {len(records)} records equal")


def check_packed(forebay: str, directory: pathlib.Path) -> None:
    """Packs the images of the project and reads them with TensorFlow."""
    images = ROOT / "testdata" / "images"
    command = [forebay, "pack", str(images), str(directory), "--format", "tfrecord"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    manifest = json.loads((directory / "forebay.json").read_text())
    sources = {}
    for path in images.rglob("*"):
        if path.is_file():
            sources.setdefault(path.read_bytes(), path)
    spec = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/height": tf.io.FixedLenFeature([], tf.int64),
        "image/width": tf.io.FixedLenFeature([], tf.int64),
    }
    count = 0
    for split in manifest["splits"]:
        for shard in split["shards"]:
            for record in read(directory / shard["name"]):
                sample = tf.io.parse_single_example(record, spec)
                encoded = sample["image/encoded"].numpy()
                source = sources[encoded]
                pixels = tf.io.decode_image(encoded, channels=3, expand_animations=False)
                assert pixels.shape[:2] == (sample["image/height"], sample["image/width"]), source
                base = manifest["label_base"]
                name = manifest["classes"][int(sample["image/class/label"]) - base]["name"]
                assert name == source.parent.name, source
                count += 1
    assert count == sum(split["records"] for split in manifest["splits"])
    assert count > 0
    print(f"packed images: {count} records equal")


def check_remade(forebay: str, directory: pathlib.Path) -> None:
    """Packs odd images as RGB JPEG, and others smaller: TensorFlow decodes what the features say."""
    source = directory / "source" / "odd"
    source.mkdir(parents=True)
    for path in (ROOT / "testdata" / "dirty").glob("*.jpg"):
        shutil.copy(path, source)
    picture = tf.constant([[[x * 5, y * 7, 90] for x in range(50)] for y in range(36)], tf.uint8)
    (source / "png.JPEG").write_bytes(tf.io.encode_png(picture).numpy())
    (source / "jpeg.JPEG").write_bytes(tf.io.encode_jpeg(picture).numpy())
    spec = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/format": tf.io.FixedLenFeature([], tf.string),
        "image/colorspace": tf.io.FixedLenFeature([], tf.string),
        "image/channels": tf.io.FixedLenFeature([], tf.int64),
        "image/height": tf.io.FixedLenFeature([], tf.int64),
        "image/width": tf.io.FixedLenFeature([], tf.int64),
    }
    for name, options in (("converted", []), ("smaller", ["--resize-short", "20"])):
        packed = directory / name
        command = [forebay, "pack", str(source.parent), str(packed), "--format", "tfrecord"]
        subprocess.run([*command, "--transcode-nonstandard", *options], check=True, stdout=subprocess.DEVNULL)
        count = 0
        for shard in packed.glob("train-*"):
            for record in read(shard):
                sample = tf.io.parse_single_example(record, spec)
                pixels = tf.io.decode_jpeg(sample["image/encoded"])
                size = [int(sample[f"image/{side}"]) for side in ("height", "width", "channels")]
                assert list(pixels.shape) == size and size[2] == 3, size
                assert not options or min(size[:2]) == 20, size
                words = sample["image/format"].numpy(), sample["image/colorspace"].numpy()
                assert words == (b"JPEG", b"RGB"), words
                count += 1
        assert count == len(list(source.iterdir())), count
        print(f"{name} images: {count} records decode as RGB JPEG")


def main() -> None:
    print(f"TensorFlow {tf.__version__}")
    if len(sys.argv) > 1:
        check_written(pathlib.Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary) / "shards"
        cargo = ["cargo", "run", "-q", "-p", "forebay-shard", "--example", "interop_shards", "--"]
        subprocess.run([*cargo, str(directory)], check=True, cwd=ROOT)
        check_written(directory)
        forebay = shutil.which("forebay")
        if forebay is None:
            print("packed images: skipped, there is no command forebay on the PATH")
        else:
            check_packed(forebay, pathlib.Path(temporary) / "packed")
            check_remade(forebay, pathlib.Path(temporary) / "remade")


if __name__ == "__main__":
    main()
