#!/usr/bin/env python3
"""Writes testdata/formats-golden/litdata with the package `litdata`.

    python3 -m pip install litdata zstd pillow blake3 pyarrow polars
    python3 tools/golden/make_golden_litdata.py

The tests of `forebay-formats` read the files without this package.
"""

import io
import json
import pathlib
import shutil

import blake3
import litdata
import numpy as np
import pyarrow.parquet
import torch
from litdata.streaming.cache import Cache
from litdata.types import Image as ImageRef
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "formats-golden" / "litdata"
ITEMS = 7
# The compression, and how many items are compressed together.
WRAPS = {
    "plain": {},
    "file": {"compression": "zstd", "compression_level": "chunk"},
    "frames": {"compression": "zstd:3", "compression_level": "batch", "compression_batch_size": 2},
    "items": {"compression": "zstd", "compression_level": "sample"},
}


def pixels(number: int) -> np.ndarray:
    return np.arange(8 * 6 * 3, dtype=np.uint8).reshape(6, 8, 3) + np.uint8(number * 20)


def encoded(number: int) -> bytes:
    """A small picture, the same on every machine with the same Pillow."""
    out = io.BytesIO()
    Image.fromarray(pixels(number)).save(out, "PNG" if number == 3 else "JPEG")
    return out.getvalue()


def digest(data: bytes) -> str:
    return blake3.blake3(data).hexdigest()


def arrays(number: int) -> dict[str, np.ndarray]:
    return {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3) + number,
        "flat": np.arange(number + 1, dtype=np.int16),
        "tensor": np.arange(2 * (number + 1), dtype=np.int64).reshape(2, number + 1),
        "vector": np.arange(4, dtype=np.float64) / (number + 1),
        "flags": np.array([[number % 2 == 0, True]]),
    }


def sample(number: int) -> dict[str, object]:
    own = arrays(number)
    return {
        "key": f"k/{number}",
        "image": ImageRef(bytes=encoded(number)),
        "label": number % 3,
        "nested": {"caption": f"picture {number} of ü", "score": number / 8},
        "flag": number % 2 == 1,
        "raw": bytes(range(number)),
        "matrix": own["matrix"],
        "flat": own["flat"],
        "tensor": torch.from_numpy(own["tensor"]),
        "vector": torch.from_numpy(own["vector"]),
        "flags": own["flags"],
    }


def expected(number: int) -> dict[str, object]:
    told = {
        "key": f"k/{number}",
        "label": number % 3,
        "caption": f"picture {number} of ü",
        "score": np.float64(number / 8).tobytes().hex(),
        "flag": number % 2,
        "raw": bytes(range(number)).hex(),
        "image_blake3": digest(encoded(number)),
    }
    for name, array in arrays(number).items():
        told[name] = {"shape": list(array.shape), "bytes": array.tobytes().hex()}
    return told


def write(path: pathlib.Path, samples: list[object], **options: object) -> None:
    path.mkdir(parents=True)
    cache = Cache(input_dir=str(path), **{"chunk_size": 3, **options})
    for number, item in enumerate(samples):
        cache[number] = item
    cache.done()
    cache.merge()
    index = json.loads((path / "index.json").read_text())
    index["updated_at"] = "0"
    (path / "index.json").write_text(json.dumps(index, sort_keys=True) + "\n")


def write_parquet(path: pathlib.Path) -> None:
    """Parquet files of 4 and 3 rows, and the list that LitData makes of them."""
    path.mkdir(parents=True)
    for first, end in [(0, 4), (4, ITEMS)]:
        numbers = range(first, end)
        columns = {
            "key": [f"k/{number}" for number in numbers],
            "image": [encoded(number) for number in numbers],
            "label": [number % 3 for number in numbers],
            "caption": [f"picture {number} of ü" for number in numbers],
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), path / f"part-{first}.parquet")
    litdata.index_parquet_dataset(str(path))
    index = json.loads((path / "index.json").read_text())
    # As the directory was listed, which differs from machine to machine.
    index["chunks"].sort(key=lambda chunk: chunk["filename"])
    index["updated_at"] = "0"
    (path / "index.json").write_text(json.dumps(index, sort_keys=True) + "\n")


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    samples = [sample(number) for number in range(ITEMS)]
    for name, options in WRAPS.items():
        write(ROOT / name, samples, **options)
    # Pixels of Pillow, in a tuple, in two splits.
    for split, count in [("train", 3), ("val", 2)]:
        tuples = [(Image.fromarray(pixels(number)), number % 3) for number in range(count)]
        write(ROOT / "splits" / split, tuples)
    gray = [(Image.fromarray(pixels(number)[:, :, 0]), number) for number in range(2)]
    write(ROOT / "gray", gray)
    write(ROOT / "refused-pickle", [{"image": ImageRef(bytes=encoded(0)), "object": {1, 2}, "label": 0}])
    write(ROOT / "refused-mode", [(Image.fromarray(pixels(0)).convert("CMYK"), 0)])
    write(ROOT / "refused-arrow", [{"image": encoded(number), "label": number} for number in range(3)])
    write_parquet(ROOT / "parquet")
    (ROOT / "expected.json").write_text(json.dumps([expected(number) for number in range(ITEMS)], indent=1) + "\n")


if __name__ == "__main__":
    main()
