#!/usr/bin/env python3
"""Writes testdata/formats-golden/zarr with Zarr's own package, and frames of Blosc with numcodecs.

    python3 -m pip install numpy safetensors h5py pillow zarr
    python3 tools/golden/make_golden_zarr.py

The tests of `forebay-formats` read them without these packages. The rows are those of testdata/formats-golden/arrays/expected.json.
"""

import pathlib
import shutil
import warnings

import numcodecs
import numpy as np
import zarr
from make_golden_arrays import ROOT as ARRAYS
from make_golden_arrays import ROWS, arrays, texts
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

ROOT = ARRAYS.parent / "zarr"


def version_2(path: pathlib.Path, rows: dict[str, np.ndarray]) -> None:
    """Chunks that cut images in all dimensions, one compressor for each array."""
    group = zarr.open_group(path, mode="w", zarr_format=2)
    compressors = {
        "images": numcodecs.Blosc(cname="zstd", shuffle=numcodecs.Blosc.BITSHUFFLE),
        "labels": numcodecs.Zlib(),
        "half": numcodecs.GZip(),
        "score": numcodecs.LZ4(),
        "big": numcodecs.Zstd(),
        "embedding": numcodecs.Blosc(),
    }
    for name, array in rows.items():
        chunks = tuple(max(1, size // 2) for size in array.shape)
        if name == "caption":
            group.create_array(name, shape=array.shape, dtype=str, chunks=chunks)[:] = array.astype(object)
            continue
        options = {"compressors": compressors[name]} if name in compressors else {"compressors": None}
        order = "F" if name == "embedding" else "C"
        separator = "/" if name == "score" else "."
        group.create_array(name, data=array, chunks=chunks, order=order, chunk_key_encoding={"name": "v2", "separator": separator}, **options)


def version_3(store: object, rows: dict[str, np.ndarray], shards: bool) -> None:
    group = zarr.open_group(store, mode="w", zarr_format=3)
    compressors = {
        "images": [BloscCodec(cname="lz4", shuffle="shuffle")],
        "labels": [GzipCodec()],
        "half": [ZstdCodec(checksum=True), Crc32cCodec()],
        "score": [],
    }
    for name, array in rows.items():
        chunks = tuple(max(1, size // 2) for size in array.shape)
        options = {"compressors": compressors[name]} if name in compressors else {}
        if shards:
            # Two chunks each way, beyond the end in all dimensions.
            options["shards"] = tuple(2 * size for size in chunks)
        if name == "caption":
            options.pop("shards", None)
            group.create_array(name, shape=array.shape, dtype=str, chunks=chunks, **options)[:] = array.astype(object)
            continue
        if name == "embedding" and not shards:
            options["filters"] = [TransposeCodec(order=(1, 0))]
        if name == "swapped":
            options["serializer"] = BytesCodec(endian="big")
        group.create_array(name, data=array, chunks=chunks, **options)


def others(rows: dict[str, np.ndarray]) -> None:
    """Groups that tell splits, chunks that are missing, and what is refused."""
    for split, count in [("train", ROWS), ("val", 2)]:
        group = zarr.open_group(ROOT / "splits.zarr", mode="a", zarr_format=3, path=split)
        group.create_array("label", data=rows["labels"][:count])
        group.create_array("image", data=rows["images"][:count])
    group = zarr.open_group(ROOT / "fill.zarr", mode="w", zarr_format=3)
    group.create_array("images", data=rows["images"][..., 0])
    for name, dtype, fill in [("label", "i8", 7), ("nan", "f8", float("nan")), ("one", "f4", 1.5), ("word", "u2", 65535)]:
        group.create_array(name, shape=(ROWS,), dtype=dtype, chunks=(2,), fill_value=fill)
    group["label"][2:4] = [1, 2]
    group.create_array("pair", shape=(ROWS, 3), dtype="i4", chunks=(2, 2), fill_value=-1)[1, 1] = 5
    group = zarr.open_group(ROOT / "refused.zarr", mode="w", zarr_format=2)
    group.create_array("images", data=rows["images"], compressors=None)
    group.create_array("lzma", data=np.arange(ROWS), compressors=numcodecs.LZMA())
    group.create_array("delta", data=np.arange(ROWS), filters=[numcodecs.Delta("i8")], compressors=None)
    group.create_array("complex", data=np.zeros(ROWS, dtype="c8"), compressors=None)


def blosc() -> None:
    (ROOT / "blosc").mkdir()
    # Long enough for several blocks, with a rest.
    numbers = (np.arange(20_003, dtype=np.uint32) * 7) // 64
    numbers[5000:5200] = np.arange(5000, 5200, dtype=np.uint32) * np.uint32(2654435761)
    for cname in ["blosclz", "lz4", "lz4hc", "zlib", "zstd"]:
        for name, shuffle in [("none", 0), ("bytes", 1), ("bits", 2)]:
            frame = numcodecs.Blosc(cname=cname, clevel=5, shuffle=shuffle, blocksize=0 if shuffle else 16384).encode(numbers)
            (ROOT / "blosc" / f"{cname}-{name}.blosc").write_bytes(frame)


def main() -> None:
    warnings.simplefilter("ignore")
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    rows = arrays() | texts()
    version_2(ROOT / "v2.zarr", rows)
    for name, shards in [("v3", False), ("shards", True)]:
        with zarr.storage.ZipStore(ROOT / f"{name}.zarr.zip", mode="w") as store:
            version_3(store, rows, shards)
    others(rows)
    blosc()


if __name__ == "__main__":
    main()
