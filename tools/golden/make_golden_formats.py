#!/usr/bin/env python3
"""Writes testdata/formats-golden with the packages of other tools: `webdataset` and `mosaicml-streaming`.

    python3 -m pip install webdataset mosaicml-streaming pillow blake3
    python3 tools/golden/make_golden_formats.py

The tests of `forebay-formats` read the files without these packages.
"""

import io
import json
import pathlib
import shutil

import blake3
import numpy as np
import webdataset
from PIL import Image
from streaming.base.format.mds.writer import MDSWriter

ROOT = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "formats-golden"
SAMPLES = 7


def image(number: int) -> bytes:
    """A small picture, the same on every machine with the same Pillow."""
    pixels = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(6, 8, 3) + np.uint8(number * 20)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG" if number == 3 else "JPEG")
    return out.getvalue()


def digest(data: bytes) -> str:
    return blake3.blake3(data).hexdigest()


def write_webdataset(root: pathlib.Path) -> None:
    root.mkdir(parents=True)
    expected = []
    pattern = str(root / "golden-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=4, mtime=0, verbose=0) as sink:
        for number in range(SAMPLES):
            encoded, numbers = image(number), np.arange(number + 1, dtype=np.float32) / 2
            ending = "png" if number == 3 else "jpg"
            sample = {
                "__key__": f"dir.v1/{number:04d}",
                ending: encoded,
                "cls": number % 3,
                "txt": f"picture {number} of ü",
                "json": {"number": number, "tags": ["a", "b"]},
                "emb.npy": numbers,
            }
            sink.write(sample)
            expected.append(
                {
                    "key": f"dir.v1/{number:04d}.{ending}",
                    "label": number % 3,
                    "image_blake3": digest(encoded),
                    "txt": sample["txt"],
                    "json": sample["json"],
                    "shape": list(numbers.shape),
                    "emb": [float(value) for value in numbers],
                }
            )
    (root / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def write_mds(root: pathlib.Path) -> None:
    columns = {
        "key": "str",
        "image": "jpeg",
        "label": "int",
        "caption": "str",
        "small": "int16",
        "score": "float32",
        "fixed": "ndarray:float32:2,3",
        "ragged": "ndarray:uint8",
        "any": "ndarray",
    }
    samples, expected = [], []
    for number in range(SAMPLES):
        arrays = {
            "fixed": np.arange(6, dtype=np.float32).reshape(2, 3) + number,
            "ragged": np.arange(2 * (number + 1), dtype=np.uint8).reshape(2, number + 1),
            "any": np.arange(number + 1, dtype=np.int16),
        }
        sample = {
            "key": f"k/{number}",
            # Bytes are stored as they are.
            "image": image(number),
            "label": number % 3,
            "caption": f"picture {number} of ü",
            "small": number - 3,
            "score": number / 4,
        }
        samples.append(sample | arrays)
        told = {name: sample[name] for name in ("key", "label", "caption", "small", "score")}
        told["image_blake3"] = digest(sample["image"])
        for name, array in arrays.items():
            told[name] = {"shape": list(array.shape), "blake3": digest(array.tobytes())}
        expected.append(told)
    for name, compression in [("plain", None), ("zstd", "zstd:7")]:
        with MDSWriter(out=str(root / name), columns=columns, compression=compression, size_limit=2500) as out:
            for sample in samples:
                out.write(sample)
    (root / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    write_webdataset(ROOT / "webdataset")
    write_mds(ROOT / "mds")


if __name__ == "__main__":
    main()
