"""Records by number and in order, against the images that were packed."""

from __future__ import annotations

import hashlib
import os
import pathlib
import pickle
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import forebay
from conftest import CLASSES, IMAGES_PER_CLASS

TOTAL = len(CLASSES) * IMAGES_PER_CLASS


def test_what_a_dataset_tells(dataset: pathlib.Path) -> None:
    ds = forebay.open(dataset)
    assert len(ds) == TOTAL
    assert ds.splits == {"train": TOTAL}
    assert ds.classes == CLASSES
    assert ds.label_base == 1
    assert ds.format == dataset.name
    assert ds.path == os.fspath(dataset)
    assert ds.manifest["splits"][0]["name"] == "train"
    assert ds.fingerprint and ds.fingerprint == forebay.open(dataset).fingerprint
    assert repr(ds) == f"Dataset('{dataset}', splits=['train'], records={TOTAL})"


def test_records_are_read_again_where_they_are_unpickled(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ds = forebay.open(dataset)
    records = [ds[3], *ds[5:9]]
    for record, again in zip(records, pickle.loads(pickle.dumps(records)), strict=True):
        for name in ("split", "index", "shard", "key", "label", "image", "data", "features"):
            assert getattr(again, name) == getattr(record, name)
    shutil.copytree(dataset, tmp_path / "moved")
    pickled = pickle.dumps(forebay.open(tmp_path / "moved")[0])
    shutil.rmtree(tmp_path / "moved")
    with pytest.raises(forebay.MissingError, match="moved"):
        pickle.loads(pickled)


def test_iteration_gives_what_was_written(
    dataset: pathlib.Path, tree: dict[str, bytes]
) -> None:
    seen = {}
    for number, record in enumerate(forebay.open(dataset)):
        assert record.index == number
        assert record.split == "train"
        seen[record.key] = record.image
        assert record.label == CLASSES.index(record.key.split("/")[0]) + 1
        features = record.features
        assert features["image/encoded"] == [record.image]
        assert features["image/class/label"] == [record.label]
        assert features["image/class/synset"] == [record.key.split("/")[0].encode()]
        assert features["image/filename"] == [record.key.split("/")[1].encode()]
        width, height = struct.unpack(">II", record.image[16:24])
        assert features["image/width"] == [width]
        assert features["image/height"] == [height]
        assert record.image in record.data
        assert len(record) == len(record.data)
        assert f"key='{record.key}'" in repr(record)
    assert seen == tree


def test_both_formats_hold_the_same_records(packed: dict[str, pathlib.Path]) -> None:
    both = [
        [hashlib.sha256(record.data).digest() for record in forebay.open(path)]
        for path in packed.values()
    ]
    assert both[0] == both[1]


def test_random_access_is_the_iteration(dataset: pathlib.Path) -> None:
    ds = forebay.open(dataset)
    every = [record.data for record in ds]
    for number in [0, 1, 17, TOTAL - 1]:
        assert ds[number].data == every[number]
        assert ds[number - TOTAL].data == every[number]
        assert ds[np.int64(number)].data == every[number]
    for wrong in (TOTAL, -TOTAL - 1, 1 << 70):
        with pytest.raises(IndexError):
            ds[wrong]
    with pytest.raises(TypeError):
        ds["train"]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "cut", [slice(3, 9), slice(None, None, 5), slice(-4, None), slice(None, None, -1), slice(9, 3)]
)
def test_slices_are_views(dataset: pathlib.Path, cut: slice) -> None:
    ds = forebay.open(dataset)
    numbers = list(range(TOTAL))[cut]
    view = ds[cut]
    assert isinstance(view, forebay.Dataset)
    assert len(view) == len(numbers)
    assert [record.index for record in view] == numbers
    assert [view[k].index for k in range(len(view))] == numbers
    assert view.labels.tolist() == ds.labels[cut].tolist()
    assert [record.index for record in view[1:3]] == numbers[1:3]


def test_labels_come_from_the_index(dataset: pathlib.Path) -> None:
    ds = forebay.open(dataset)
    assert ds.labels.dtype == np.int64
    assert ds.labels.tolist() == [record.label for record in ds]


def test_splits_by_name(dataset: pathlib.Path) -> None:
    ds = forebay.open(dataset)
    assert [r.key for r in ds.split("train")] == [r.key for r in ds]
    with pytest.raises(forebay.OptionError, match="train"):
        ds.split("validation")


def test_a_dataset_crosses_processes_and_threads(dataset: pathlib.Path) -> None:
    ds = forebay.open(dataset)
    view = ds[5:30:2]
    again = pickle.loads(pickle.dumps(view))
    assert [r.data for r in again] == [r.data for r in view]
    with ThreadPoolExecutor(4) as pool:
        read = pool.map(lambda k: ds[k].key, range(TOTAL))
    assert list(read) == [r.key for r in ds]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_dataset_survives_a_fork(dataset: pathlib.Path) -> None:
    ds = forebay.open(dataset)
    records = iter(ds)
    first = next(records)
    child = os.fork()
    if child == 0:
        good = ds[7].key == ds[7:8][0].key and next(records).index == 1 and first.image
        os._exit(0 if good else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert next(records).index == 1


def test_a_record_outlives_its_dataset(dataset: pathlib.Path) -> None:
    records = list(forebay.open(dataset))
    keys = [record.key for record in records]
    images = [record.image for record in records]
    assert len(set(keys)) == len(set(images)) == TOTAL


def test_pixels_fit_every_reader(dataset: pathlib.Path) -> None:
    image = forebay.open(dataset)[0].image
    assert isinstance(image, bytes)
    assert image.startswith(b"\x89PNG")
