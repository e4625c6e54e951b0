#!/usr/bin/env python3
"""Writes testdata/formats-golden/lmdb with the package of the library.

    python3 -m pip install lmdb
    python3 tools/golden/make_golden_lmdb.py

The tests of `forebay-formats` read the files without this package.
"""

import pathlib
import pickle
import shutil

import lmdb

ROOT = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "formats-golden" / "lmdb"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def write(path: pathlib.Path, values: dict[bytes, bytes], subdir: bool) -> None:
    with lmdb.open(str(path), map_size=1 << 22, subdir=subdir) as env, env.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, value)
    # Only the file of data is the database.
    lock = path / "lock.mdb" if subdir else path.with_name(path.name + "-lock")
    lock.unlink()


def datum(label: int, pixels: bytes) -> bytes:
    """Caffe's message: channels, height, width, data, label."""
    negative = b"\xff" * 9 + b"\x01"
    encoded = negative if label == -1 else bytes([label])
    return bytes([8, 3, 16, 1, 24, 2, 34, len(pixels)]) + pixels + b"\x28" + encoded


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    (ROOT / "refused").mkdir(parents=True)
    images = {}
    for i in range(120):
        size = 5000 if i % 7 == 0 else 100 + i
        images[b"%08d" % i] = PNG + bytes([i]) * (size - len(PNG))
    write(ROOT / "images_val_lmdb", images, subdir=True)
    datums = {b"%05d" % i: datum(i - 1, bytes([i, i + 1, i + 10, i + 11, i + 20, i + 21])) for i in range(3)}
    write(ROOT / "caffe.mdb", datums, subdir=False)
    write(ROOT / "refused/pickled.lmdb", {b"0": pickle.dumps((b"image", 1))}, subdir=False)
    write(ROOT / "refused/other.lmdb", {b"0": b"some text"}, subdir=False)
    write(ROOT / "refused/empty.lmdb", {}, subdir=False)
    path = ROOT / "refused/named.lmdb"
    with lmdb.open(str(path), map_size=1 << 22, subdir=False, max_dbs=2) as env:
        with env.begin(write=True, db=env.open_db(b"images")) as transaction:
            transaction.put(b"0", PNG)
    path.with_name(path.name + "-lock").unlink()


if __name__ == "__main__":
    main()
