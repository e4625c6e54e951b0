"""Records that stay in the files of other packages: loaders give the batches of a conversion."""

from __future__ import annotations

import json
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import forebay
from conftest import forebay_command

FORMATS = ["webdataset", "mds", "parquet"]


def run(*args: str | pathlib.Path) -> None:
    done = forebay_command(*args)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def places(packed: dict[str, pathlib.Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """For each format an index of its files, and the dataset that they were written from."""
    root = tmp_path_factory.mktemp("in-place")
    places = {"indexed": packed["indexed"]}
    for name in FORMATS:
        run("convert", packed["indexed"], root / name, "--format", name, "--shards", "2")
        run("index", root / name, "--output", root / f"{name}-index", "--seek-points", "auto")
        places[name] = root / f"{name}-index"
    return places


def epoch(source: Any, **options: Any) -> list[tuple[np.ndarray[Any, Any], list[int], list[int]]]:
    chosen: dict[str, Any] = {"split": "train", "batch_size": 4, "transform": forebay.TrainTransform(32), "seed": 5}
    batches = []
    with forebay.Loader(source, **chosen | options) as loader:
        for batch in loader:
            batches.append((np.array(batch.images), list(batch.labels), list(batch.samples)))
    return batches


@pytest.mark.parametrize("name", FORMATS)
def test_an_epoch_is_that_of_the_dataset(places: dict[str, pathlib.Path], name: str) -> None:
    expected, found = epoch(places["indexed"]), epoch(places[name])
    assert len(expected) == len(found) > 2
    for one, other in zip(expected, found, strict=True):
        assert np.array_equal(one[0], other[0])
        assert one[1:] == other[1:]
    fingerprints = {forebay.open(places[key]).sample_fingerprint for key in ("indexed", name)}
    assert len(fingerprints) == 1 and None not in fingerprints


@pytest.mark.parametrize("name", FORMATS)
def test_a_run_continues_in_place(places: dict[str, pathlib.Path], name: str) -> None:
    options: dict[str, Any] = {"split": "train", "batch_size": 4, "transform": forebay.TrainTransform(32), "seed": 5}
    with forebay.Loader(places["indexed"], **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = [np.array(batch.images) for batch in batches]
    with forebay.Loader(places[name], **options) as loader:
        loader.load_state_dict(state)
        found = [np.array(batch.images) for batch in loader]
    assert len(expected) == len(found) > 0
    assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))


def test_servers_read_in_place(places: dict[str, pathlib.Path], serve: Callable[[pathlib.Path], str]) -> None:
    found = epoch(serve(places["webdataset"]))
    expected = epoch(places["webdataset"])
    assert len(expected) == len(found)
    assert all(np.array_equal(one[0], other[0]) for one, other in zip(expected, found, strict=True))


def test_a_changed_file_is_an_error_that_names_it(places: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    location = pathlib.Path(json.loads((places["webdataset"] / "forebay.json").read_text())["source"]["location"])
    copy = tmp_path / "tars"
    copy.mkdir()
    for tar in location.glob("*.tar"):
        (copy / tar.name).write_bytes(tar.read_bytes())
    run("index", copy, "--output", tmp_path / "index")
    for tar in copy.glob("train-*.tar"):
        data = bytearray(tar.read_bytes())
        at = max(data.find(b"\xff\xd8\xff"), data.find(b"\x89PNG"))
        assert at > 0
        data[at + 60] ^= 1
        tar.write_bytes(data)
    with pytest.raises(forebay.CorruptRecordError, match=r"train-00000\d\.tar"):
        epoch(tmp_path / "index")
    for tar in copy.glob("train-*.tar"):
        tar.unlink()
    with pytest.raises(forebay.MissingError, match=r"train-000000\.tar"):
        epoch(tmp_path / "index")


def test_files_without_an_index_are_indexed_once(
    places: dict[str, pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    location = json.loads((places["webdataset"] / "forebay.json").read_text())["source"]["location"]
    with pytest.warns(UserWarning, match="read once"):
        found = epoch(location)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = epoch(location)
    expected = epoch(places["webdataset"])
    for one, two, three in zip(expected, found, again, strict=True):
        assert np.array_equal(one[0], two[0]) and np.array_equal(one[0], three[0])
    with pytest.warns(UserWarning, match="read once"):
        assert forebay.open(f"{location}/train-{{000000..000001}}.tar").splits.keys() == {"train"}
    with pytest.raises(forebay.MissingError, match="not a dataset"):
        epoch(tmp_path)
