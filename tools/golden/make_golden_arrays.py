#!/usr/bin/env python3
"""Writes testdata/formats-golden/arrays with the packages of other tools: NumPy, safetensors and h5py.

    python3 -m pip install numpy safetensors h5py pillow
    python3 tools/golden/make_golden_arrays.py

The tests of `forebay-formats` read the files without these packages. expected.json has the pixels and values of each row.
"""

import io
import json
import pathlib
import shutil

import h5py
import numpy as np
from PIL import Image
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "formats-golden" / "arrays"
ROWS = 5


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        "images": rng.integers(0, 256, (ROWS, 4, 6, 3), dtype=np.uint8),
        "labels": np.array([2, 0, -1, 1, 2], dtype=np.int32),
        "half": (np.arange(ROWS) / 4).astype(np.float16),
        "score": (np.arange(ROWS) / 8).astype(np.float32),
        "flag": np.arange(ROWS) % 2 == 0,
        "count": np.arange(ROWS, dtype=np.uint8) + 250,
        "big": np.array([0, 1, 2**63, 2**64 - 1, 5], dtype=np.uint64),
        "embedding": rng.standard_normal((ROWS, 3)),
    }


def texts() -> dict[str, np.ndarray]:
    return {
        "keys": np.array([f"k/{i}" for i in range(ROWS)]),
        "caption": np.array(["", "one", "zwei ü", "三", "five words in a row"]),
        "code": np.array([b"a", b"", b"ccc", b"\xff\x01", b"e"]),
        "swapped": np.arange(ROWS, dtype=">i2") - 2,
    }


def expected(rows: dict[str, np.ndarray]) -> dict[str, list[object]]:
    """Numbers as the hexadecimal digits of their little-endian bytes, texts as they are."""
    found: dict[str, list[object]] = {}
    for name, array in rows.items():
        if array.dtype.kind == "U":
            found[name] = [str(value) for value in array]
        elif array.dtype.kind == "S":
            found[name] = [bytes(value).hex() for value in array]
        else:
            found[name] = [np.ascontiguousarray(row).astype(array.dtype.newbyteorder("<")).tobytes().hex() for row in array]
    return found


def write_hdf5(arrays: dict[str, np.ndarray]) -> None:
    text = h5py.string_dtype()
    as_stored = {name: array.astype(text) if array.dtype.kind == "U" else array for name, array in arrays.items()}
    with h5py.File(ROOT / "plain.h5", "w") as file:
        for name, array in as_stored.items():
            file.create_dataset(name, data=array)
    for name, version in [("chunked.h5", "earliest"), ("latest.h5", "latest")]:
        with h5py.File(ROOT / name, "w", libver=version) as file:
            for name, array in as_stored.items():
                options = {} if array.dtype == object or name in ("keys", "caption") else {"compression": "gzip", "shuffle": True, "fletcher32": True}
                file.create_dataset(name, data=array, chunks=(2, *array.shape[1:]), maxshape=(None, *array.shape[1:]), **options)
    with h5py.File(ROOT / "splits.hdf5", "w") as file:
        for split, count in [("train", ROWS), ("val", 2)]:
            group = file.create_group(split)
            group["label"] = arrays["labels"][:count]
            images = group.create_dataset("image", (count,), dtype=h5py.vlen_dtype(np.uint8))
            for i in range(count):
                out = io.BytesIO()
                Image.fromarray(arrays["images"][i]).save(out, "PNG")
                images[i] = np.frombuffer(out.getvalue(), np.uint8)
    with h5py.File(ROOT / "refused.h5", "w") as file:
        file["images"] = arrays["images"]
        file["pair"] = np.zeros(ROWS, dtype=[("a", "<i4"), ("b", "<f4")])
        file["when"] = np.zeros(ROWS, dtype="M8[s]").astype(h5py.opaque_dtype("M8[s]"))
        file["list"] = np.array([1, 2, 3])
        file.create_dataset("lzf", data=np.zeros((ROWS, 64)), compression="lzf")


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    all_arrays, numbers = arrays() | texts(), arrays()
    np.savez(ROOT / "stored.npz", **all_arrays)
    np.savez_compressed(ROOT / "deflated.npz", **all_arrays)
    (ROOT / "npy").mkdir()
    for name, array in all_arrays.items():
        np.save(ROOT / "npy" / f"{name}.npy", array)
    save_file(numbers, ROOT / "numbers.safetensors", metadata={"format": "np"})
    # The names of Keras' and MedMNIST's files, gray images and channels first.
    gray, planar = numbers["images"][..., 0], np.ascontiguousarray(numbers["images"].transpose(0, 3, 1, 2))
    np.savez(ROOT / "splits.npz", x_train=gray, y_train=numbers["labels"][:, None], x_test=gray[:2], y_test=numbers["labels"][:2, None])
    np.savez(ROOT / "planar.npz", data=planar, targets=numbers["labels"])
    refused = {
        "object": np.array([None] * ROWS, dtype=object),
        "complex": np.zeros(ROWS, dtype=np.complex64),
        "fortran": np.asfortranarray(np.zeros((ROWS, 3))),
        "mean": np.zeros(3),
        "record": np.zeros(ROWS, dtype=[("a", "<i4"), ("b", "<f4")]),
    }
    for name, array in refused.items():
        np.savez(ROOT / f"refused_{name}.npz", images=gray, **{name: array})
    write_hdf5(all_arrays)
    (ROOT / "expected.json").write_text(json.dumps(expected(all_arrays), indent=1) + "\n")


if __name__ == "__main__":
    main()
