"""Exceptions: one base, a class for each kind, places as attributes, picklable."""

from __future__ import annotations

import builtins
import copy
import json
import os
import pathlib
import pickle
import shutil

import pytest

import forebay

CLASSES = [
    value
    for value in vars(forebay).values()
    if isinstance(value, type) and issubclass(value, forebay.Error)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_pickles_with_its_place(kind: type[forebay.Error]) -> None:
    error = kind("shard x: record 3", path="x", record=3, offset=77)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == "shard x: record 3"
        assert vars(again) == {"path": "x", "record": 3, "offset": 77}


def test_errors_are_also_what_python_code_expects() -> None:
    assert issubclass(forebay.TimeoutError, builtins.TimeoutError)
    assert issubclass(forebay.MissingError, FileNotFoundError)
    assert issubclass(forebay.ServerError, ConnectionError)
    assert issubclass(forebay.OptionError, ValueError)


def test_a_missing_dataset(tmp_path: pathlib.Path) -> None:
    transform = forebay.TrainTransform(32)
    for use in (forebay.open, lambda path: forebay.Loader(path, transform=transform)):
        with pytest.raises(forebay.MissingError, match="forebay.json") as caught:
            use(tmp_path / "nothing")
        assert caught.value.path is not None and "nothing" in caught.value.path


def test_a_flipped_byte_names_shard_record_and_offset(
    packed: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(packed["tfrecord"], broken)
    shard = broken / "train-00001-of-00003"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(forebay.CorruptRecordError) as caught:
        list(forebay.open(broken))
    error = caught.value
    assert error.path == os.fspath(shard)
    assert error.record is not None and error.offset is not None
    assert 0 <= error.offset < len(data)
    assert os.fspath(shard) in str(error) and str(error.record) in str(error)
    with pytest.raises(forebay.CorruptRecordError) as caught, forebay.Loader(
        broken, batch_size=7, transform=forebay.EvalTransform(32, resize=40)
    ) as loader:
        for _ in loader:
            pass
    assert caught.value.path == os.fspath(shard)


def test_a_manifest_that_is_none(packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(packed["indexed"], broken)
    manifest = broken / "forebay.json"
    manifest.write_text(manifest.read_text()[:-20])
    with pytest.raises(forebay.ShardError, match="forebay.json"):
        forebay.open(broken)


def test_a_manifest_of_other_shards(
    packed: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(packed["indexed"], broken)
    manifest = broken / "forebay.json"
    content = json.loads(manifest.read_text())
    content["splits"][0]["shards"][0]["records"] += 1
    manifest.write_text(json.dumps(content))
    with pytest.raises(forebay.ShardError):
        list(forebay.open(broken))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": 8, "rank": 2, "world_size": 2},
        {"batch_size": 8, "world_size": 0},
        {"batch_size": 8, "split": "no-such-split"},
        {"batch_size": 8, "layout": "chwn"},
        {"batch_size": 8, "shuffle": "sometimes"},
        {"batch_size": 8, "label_base": 2},
        {"batch_size": 8, "label_base": True},
        {"batch_size": 8, "label_base": "one"},
        {"batch_size": 8, "timeout": -1.0},
        {"batch_size": 10_000},
        {"resize_like": "bicubic"},
        {"max_pixels": 0},
        {"max_image_bytes": 0},
    ],
)
def test_impossible_options(source: str, options: dict[str, object]) -> None:
    with pytest.raises(forebay.OptionError):
        forebay.Loader(source, **{"transform": forebay.TrainTransform(32), **options})  # type: ignore[arg-type]


def test_impossible_transforms() -> None:
    with pytest.raises(forebay.OptionError, match="scale"):
        forebay.TrainTransform(224, scale=(0.5, 0.1))
    with pytest.raises(forebay.OptionError, match="resize"):
        forebay.EvalTransform(224, resize=100)


def test_an_unknown_dataset_and_nobody_listening(source: str) -> None:
    if not source.startswith("forebay://"):
        return
    with pytest.raises(forebay.Error, match="no-such"):
        forebay.Loader(source.rsplit("/", 1)[0] + "/no-such", batch_size=8, transform=forebay.TrainTransform(32))
    with pytest.warns(UserWarning, match="trying again"), pytest.raises(forebay.ServerError) as caught:
        forebay.Loader("forebay://127.0.0.1:1/x", batch_size=8, timeout=0.5, transform=forebay.TrainTransform(32))
    assert caught.value.server == "127.0.0.1:1"
    with pytest.raises(forebay.OptionError):
        forebay.Loader("forebay://no-dataset:7070", batch_size=8)
