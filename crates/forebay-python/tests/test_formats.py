"""Conversions to the formats of other packages and back, compared by those packages where they are installed."""

from __future__ import annotations

import gc
import io
import json
import pathlib
import signal
import subprocess
import time
from typing import Any

import numpy as np
import pytest

import forebay
from conftest import forebay_command, png


def convert(*args: str | pathlib.Path) -> None:
    done = forebay_command("convert", *args)
    assert done.returncode == 0, done.stderr


def label_base(root: pathlib.Path) -> int:
    return int(json.loads((root / "forebay.json").read_text())["label_base"])


# The package leaves its files to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_what_convert_writes(packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    wds: Any = pytest.importorskip("webdataset")
    convert(packed["indexed"], tmp_path / "wds", "--format", "webdataset", "--shards", "2")
    base = label_base(packed["indexed"])
    data = forebay.open(packed["indexed"])
    for split in data.splits:
        tars = sorted(str(path) for path in (tmp_path / "wds").glob(f"{split}-*.tar"))
        found = list(wds.WebDataset(tars, shardshuffle=False, empty_check=False))
        records = list(data.split(split))
        assert len(found) == len(records) > 0
        for sample, record in zip(found, records, strict=True):
            name, extension = record.key.rsplit(".", 1)
            assert sample["__key__"] == name
            assert sample[extension.lower()] == record.image
            assert record.label is not None
            assert int(sample["cls"]) == (record.label if record.label < 0 else record.label - base)
            assert json.loads(sample["json"])["image/width"] > 0
    gc.collect()


def test_convert_reads_what_webdataset_writes(tmp_path: pathlib.Path) -> None:
    wds: Any = pytest.importorskip("webdataset")
    samples = [
        {"__key__": f"a/{i:03d}", "png": png(8, 6, i), "cls": i % 3, "txt": f"text {i}", "emb.npy": np.full(4, i, np.float32)}
        for i in range(10)
    ]
    with wds.ShardWriter(str(tmp_path / "train-%06d.tar"), maxcount=4, verbose=0) as writer:
        for sample in samples:
            writer.write(sample)
    convert(f"{tmp_path}/train-{{000000..000002}}.tar", tmp_path / "fbs", "--format", "indexed")
    records = list(forebay.open(tmp_path / "fbs").split("train"))
    assert [record.key for record in records] == [f"a/{i:03d}.png" for i in range(10)]
    assert [record.label for record in records] == [i % 3 for i in range(10)]
    assert [record.image for record in records] == [sample["png"] for sample in samples]


def read_mds(streaming: Any, root: pathlib.Path) -> list[dict[str, Any]]:
    """The samples of a directory, decoded by the package."""
    samples = []
    for info in json.loads((root / "index.json").read_text())["shards"]:
        reader = streaming.base.format.reader_from_json(str(root), "", info)
        reader.validate(False)
        if reader.zip_data is not None:
            data = (root / reader.zip_data.basename).read_bytes()
            plain = streaming.base.compression.decompress(reader.compression, data)
            (root / reader.raw_data.basename).write_bytes(plain)
        samples += [reader[i] for i in range(reader.samples)]
    return samples


def import_streaming() -> Any:
    """The package, if PyTorch, which it needs, is there too."""
    pytest.importorskip("torch")
    return pytest.importorskip("streaming")


@pytest.mark.parametrize("codec", ["none", "zstd:3"])
def test_streaming_reads_what_convert_writes(
    packed: dict[str, pathlib.Path], tmp_path: pathlib.Path, codec: str
) -> None:
    streaming = import_streaming()
    convert(packed["indexed"], tmp_path / "mds", "--format", "mds", "--codec", codec, "--shards", "2")
    base = label_base(packed["indexed"])
    data = forebay.open(packed["indexed"])
    for split in data.splits:
        found = read_mds(streaming, tmp_path / "mds" / split)
        records = list(data.split(split))
        assert len(found) == len(records) > 0
        for sample, record in zip(found, records, strict=True):
            assert sample["key"] == record.key
            assert record.label is not None
            assert sample["label"] == (record.label if record.label < 0 else record.label - base)
            assert sample["image/width"] == sample["image"].size[0]
            from PIL import Image

            expected = np.asarray(Image.open(io.BytesIO(record.image)))
            assert np.array_equal(np.asarray(sample["image"]), expected)


# The package leaves its files to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("codec", ["none", "zstd:3"])
def test_streaming_datasets_are_read_and_converted(
    packed: dict[str, pathlib.Path], tmp_path: pathlib.Path, codec: str
) -> None:
    streaming = import_streaming()
    convert(packed["indexed"], tmp_path / "mds", "--format", "mds", "--codec", codec, "--shards", "2")
    streaming.base.util.clean_stale_shared_memory()
    records = list(forebay.open(packed["indexed"]).split("train"))
    dataset = streaming.StreamingDataset(local=str(tmp_path / "mds" / "train"), shuffle=False, batch_size=1)
    assert len(dataset) == len(records)
    base = label_base(packed["indexed"])
    for number in (0, len(records) - 1):
        sample, record = dataset[number], records[number]
        assert (sample["key"], sample["label"]) == (record.key, (record.label or 0) - base)
        assert sample["image"].size[0] == sample["image/width"]
    # The dataset of the package as a source: its pixels are written.
    samples = ({"key": sample["key"], "image": sample["image"].convert("RGB")} for sample in dataset)
    forebay.convert(samples, tmp_path / "fbs", format="indexed", key="key")
    found = list(forebay.open(tmp_path / "fbs").split("train"))
    assert [record.key for record in found] == [record.key for record in records]
    del dataset, samples
    gc.collect()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_convert_reads_what_streaming_writes(tmp_path: pathlib.Path, compression: str | None) -> None:
    streaming = import_streaming()
    columns = {"image": "png", "label": "int", "caption": "str", "box": "ndarray:float32:4"}
    with streaming.MDSWriter(out=str(tmp_path / "mds"), columns=columns, compression=compression, size_limit=1500) as out:
        for i in range(10):
            box = np.full(4, i, np.float32)
            out.write({"image": png(8, 6, i), "label": i % 3, "caption": f"text {i}", "box": box})
    convert(tmp_path / "mds", tmp_path / "fbs", "--format", "indexed")
    records = list(forebay.open(tmp_path / "fbs").split("train"))
    assert [record.label for record in records] == [i % 3 for i in range(10)]
    assert [record.image for record in records] == [png(8, 6, i) for i in range(10)]


def load_arrays(path: pathlib.Path) -> dict[str, Any]:
    """The arrays of a file, loaded by its own package."""
    if path.name.endswith(".zarr.zip"):
        zarr: Any = pytest.importorskip("zarr")
        group = zarr.open_group(zarr.storage.ZipStore(path), mode="r")
        return {name: array[...] for name, array in group.arrays()}
    if path.suffix == ".h5":
        h5py: Any = pytest.importorskip("h5py")
        with h5py.File(path) as file:
            is_text = {name: h5py.check_string_dtype(array.dtype) is not None for name, array in file.items()}
            return {name: array.asstr()[...] if is_text[name] else array[...] for name, array in file.items()}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    load_file: Any = pytest.importorskip("safetensors.numpy").load_file
    return dict(load_file(path))


@pytest.mark.parametrize("name", ["npz", "safetensors", "zarr", "hdf5"])
def test_arrays_go_to_records_and_back(tmp_path: pathlib.Path, name: str) -> None:
    rng = np.random.default_rng(3)
    arrays: dict[str, Any] = {
        "images": rng.integers(0, 256, (20, 6, 8, 3), dtype=np.uint8),
        "labels": np.arange(20) % 4,
        "embedding": rng.standard_normal((20, 5)),
        "score": rng.random(20, dtype=np.float32),
    }
    src = tmp_path / "src"
    src.mkdir()
    if name != "safetensors":
        arrays["keys"] = np.array([f"k/{i}" for i in range(20)])
        arrays["caption"] = np.array([f"text {i} ü" * (900 if i == 7 else i % 3) for i in range(20)])
    if name == "npz":
        np.savez_compressed(src / "val.npz", **arrays)
    elif name == "zarr":
        zarr: Any = pytest.importorskip("zarr")
        group = zarr.open_group(src / "val.zarr", mode="w")
        for array, values in arrays.items():
            dtype = str if values.dtype.kind == "U" else values.dtype
            group.create_array(array, shape=values.shape, dtype=dtype, chunks=(7, *values.shape[1:]))[...] = values
    elif name == "hdf5":
        h5py: Any = pytest.importorskip("h5py")
        with h5py.File(src / "val.h5", "w") as file:
            for array, values in arrays.items():
                file[array] = values.astype(h5py.string_dtype()) if values.dtype.kind == "U" else values
    else:
        pytest.importorskip("safetensors.numpy").save_file(arrays, src / "val.safetensors")
    convert(src, tmp_path / "fbs", "--format", "indexed")
    records = list(forebay.open(tmp_path / "fbs").split("val"))
    assert [record.label for record in records] == list(arrays["labels"])
    if "keys" in arrays:
        assert [record.key for record in records] == list(arrays["keys"])
    for jobs in "13":
        convert(tmp_path / "fbs", tmp_path / jobs, "--format", name, "--shards", "3", "--jobs", jobs)
    extension = {"zarr": "zarr.zip", "hdf5": "h5"}.get(name, name)
    files = sorted((tmp_path / "1").glob(f"val-*.{extension}"))
    assert [file.name for file in files] == [f"val-0000{i}.{extension}" for i in range(3)]
    for file in files:
        assert file.read_bytes() == (tmp_path / "3" / file.name).read_bytes()
    parts = [load_arrays(file) for file in files]
    for array, values in arrays.items():
        assert np.array_equal(np.concatenate([part[array] for part in parts]), values), array
    # The facts of the conversion bring the same records back.
    convert(tmp_path / "1", tmp_path / "back", "--format", "indexed")
    again = list(forebay.open(tmp_path / "back").split("val"))
    assert [(r.key, r.label, r.image) for r in again] == [(r.key, r.label, r.image) for r in records]


def test_pickled_files_are_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"PK\x03\x04")
    done = forebay_command("convert", tmp_path / "a.pt", tmp_path / "dst", "--format", "indexed")
    assert done.returncode == 2
    assert "would execute what it says" in done.stderr


def contents(root: pathlib.Path) -> dict[str, bytes]:
    """All files of a directory with their bytes."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("format", ["webdataset", "mds", "parquet"])
def test_a_killed_conversion_continues_to_the_same_bytes(tmp_path: pathlib.Path, format: str) -> None:
    source = tmp_path / "source"
    with forebay.Writer(source, format="indexed", features={"image": "image", "label": "label"}) as writer:
        for number in range(240):
            writer.write(key=f"{number:03d}.png", image=png(64, 48, number), label=number % 7)
    options = ["--format", format, "--shards", "40", "--jobs", "1"]
    convert(source, tmp_path / "whole", *options)
    whole = contents(tmp_path / "whole")
    suffix = {"webdataset": ".tar", "mds": ".mds", "parquet": ".parquet"}[format]
    shards = {name for name in whole if name.endswith(suffix)}
    assert len(shards) == 40

    killed = tmp_path / "killed"
    for wanted in (1, 12):
        child = subprocess.Popen(["forebay", "convert", source, killed, *options, "--quiet"])
        while child.poll() is None and len(list(killed.rglob(f"*{suffix}"))) < wanted:
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL, "the conversion ended before it was killed"
        left = {name for name in contents(killed) if name in shards}
        assert wanted <= len(left) < len(shards)
        assert "forebay-conversion.json" not in contents(killed), "it is published last"
    done = forebay_command("convert", source, killed, *options, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    # The journal may lack the shard that was finished just before the kill; it is written again.
    assert summary["resumed_shards"] >= 11
    assert contents(killed) == whole


def test_lmdb_reads_what_convert_writes(packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    lmdb: Any = pytest.importorskip("lmdb")
    convert(packed["indexed"], tmp_path / "lmdb", "--format", "lmdb", "--shards", "2")
    data = forebay.open(packed["indexed"])
    for split in data.splits:
        values = []
        for path in sorted((tmp_path / "lmdb").glob(f"{split}-*.lmdb")):
            with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
                pairs = list(transaction.cursor())
                assert env.stat()["entries"] == len(pairs)
                # Each key is found from the root as well.
                assert all(transaction.get(key) == value for key, value in pairs)
                values += pairs
        records = list(data.split(split))
        assert [key.decode() for key, _ in values] == [f"{i:010}/{record.key}" for i, record in enumerate(records)]
        assert all(record.image in value for record, (_, value) in zip(records, values, strict=True))


def test_convert_reads_what_lmdb_writes(tmp_path: pathlib.Path) -> None:
    lmdb: Any = pytest.importorskip("lmdb")
    images = {f"{i:04}/ü".encode(): png(8, 6, i) for i in range(300)}
    with lmdb.open(str(tmp_path / "train_lmdb"), map_size=1 << 24) as env, env.begin(write=True) as transaction:
        for key in sorted(images, reverse=True):
            transaction.put(key, images[key])
    convert(tmp_path / "train_lmdb", tmp_path / "fbs", "--format", "indexed")
    records = list(forebay.open(tmp_path / "fbs").split("train"))
    assert [record.key.encode() for record in records] == list(images)
    assert [record.image for record in records] == list(images.values())


def test_array_record_reads_what_convert_writes(packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    array_record: Any = pytest.importorskip("array_record.python.array_record_module")
    data = forebay.open(packed["indexed"])
    for codec in ["none", "zstd:3"]:
        out = tmp_path / codec.replace(":", "-")
        convert(packed["indexed"], out, "--format", "arrayrecord", "--shards", "2", "--codec", codec)
        for split in data.splits:
            values = []
            for path in sorted(out.glob(f"{split}-*.array_record")):
                reader = array_record.ArrayRecordReader(str(path))
                values += reader.read_all()
                assert reader.read([reader.num_records() - 1]) == values[-1:]
            records = list(data.split(split))
            assert len(values) == len(records)
            for value, record in zip(values, records, strict=True):
                assert record.image in value and record.key.encode() in value


def test_convert_and_index_read_what_array_record_writes(packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    array_record: Any = pytest.importorskip("array_record.python.array_record_module")
    images = [png(64, 48, i) + bytes(70_000) for i in range(20)]
    for options in ["", "group_size:3,uncompressed"]:
        src = tmp_path / f"{len(options)}.array_record"
        writer = array_record.ArrayRecordWriter(str(src), options)
        for image in images:
            writer.write(image)
        writer.close()
        convert(src, tmp_path / f"fbs-{len(options)}", "--format", "indexed")
        assert [record.image for record in forebay.open(tmp_path / f"fbs-{len(options)}").split("train")] == images
        done = forebay_command("index", src, "--output", tmp_path / f"index-{len(options)}")
        if not options:
            assert done.returncode != 0 and "group_size:1,uncompressed" in done.stderr
            continue
        assert done.returncode == 0, done.stderr
        assert [record.image for record in forebay.open(tmp_path / f"index-{len(options)}").split("train")] == images


def test_convert_reads_what_h5py_writes(tmp_path: pathlib.Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    images = np.random.default_rng(5).integers(0, 256, (50, 6, 8), dtype=np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for split, rows in [("train", slice(0, 40)), ("val", slice(40, 50))]:
            group = file.create_group(split)
            group.create_dataset("images", data=images[rows], chunks=(7, 6, 8), compression="gzip")
            group["labels"] = np.arange(50)[rows] % 5
            group["caption"] = [f"text {i} ü" for i in range(50)[rows]]
    convert(tmp_path / "a.h5", tmp_path / "npz", "--format", "npz", "--shards", "1")
    train, val = load_arrays(tmp_path / "npz/train-00000.npz"), load_arrays(tmp_path / "npz/val-00000.npz")
    assert np.array_equal(np.concatenate([train["images"], val["images"]]), images)
    assert list(val["labels"]) == [i % 5 for i in range(40, 50)]
    assert list(train["caption"]) == [f"text {i} ü" for i in range(40)]


def test_inspect_and_verify_read_files_of_other_tools(tmp_path: pathlib.Path) -> None:
    images = np.zeros((3, 4, 5, 3), np.uint8)
    np.savez(tmp_path / "val.npz", images=images, labels=np.arange(3))
    done = forebay_command("inspect", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NumPy arrays, 1 file, 3 records" in done.stdout
    assert "label" in done.stdout and "val" in done.stdout
    done = forebay_command("verify", tmp_path, "--deep")
    assert done.returncode == 0, done.stderr
    assert "3 images decoded" in done.stdout
    data = bytearray((tmp_path / "val.npz").read_bytes())
    data[data.index(bytes(180)) + 7] ^= 1
    (tmp_path / "val.npz").write_bytes(data)
    done = forebay_command("verify", tmp_path)
    assert done.returncode == 1
    assert "val.npz" in done.stdout and "CRC32" in done.stdout
