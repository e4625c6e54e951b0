#!/usr/bin/env python3
"""Writes testdata/formats-golden/array_record with ArrayRecord's own package.

    python3 -m pip install array_record pillow
    python3 tools/golden/make_golden_array_record.py

The tests of `forebay-formats` read the files without it. They are gzipped, since most of each is padding. records.bin.gz has the
records: the length of each in four bytes, and its bytes.
"""

import gzip
import io
import pathlib
import shutil
import struct
import tempfile

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "formats-golden" / "array_record"
# Some cross one or several blocks of 64 KiB.
SIZES = [10, 0, 70_000, 200_000, 5, 31, 65_000]
OPTIONS = {
    "default": "",
    "plain": "group_size:1,uncompressed",
    "groups": "group_size:3,uncompressed",
    "brotli": "group_size:2,brotli:6",
    "snappy": "group_size:3,snappy",
    "transposed": "group_size:2,transpose:true,uncompressed",
    "empty": "",
}


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def example(image: bytes, label: int, key: bytes, blob: bytes) -> bytes:
    """A tensorflow.Example."""
    of_bytes = {"image": image, "filename": key, "blob": blob}
    features = {name: field(1, field(1, value)) for name, value in of_bytes.items()}
    features["label"] = field(3, field(1, varint(label)))
    entries = (field(1, field(1, name.encode()) + field(2, value)) for name, value in sorted(features.items()))
    return field(1, b"".join(entries))


def png(seed: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (6, 4), (seed * 30, 7, seed)).save(out, "PNG")
    return out.getvalue()


def keep(name: str, content: bytes) -> None:
    (ROOT / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    records = [example(png(i), i % 3, f"k/{i}".encode(), bytes([i]) * size) for i, size in enumerate(SIZES)]
    keep("records.bin", b"".join(struct.pack("<I", len(record)) + record for record in records))
    with tempfile.TemporaryDirectory() as scratch:
        for name, options in OPTIONS.items():
            path = pathlib.Path(scratch) / f"{name}.array_record"
            writer = ArrayRecordWriter(str(path), options)
            for record in records if name != "empty" else []:
                writer.write(record)
            writer.close()
            if name not in ("empty", "transposed"):
                assert ArrayRecordReader(str(path)).read_all() == records
            keep(path.name, path.read_bytes())


if __name__ == "__main__":
    main()
