"""The data loader for DLIO in integrations/dlio: its settings here, and a run of DLIO where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import forebay
from conftest import CLASSES, IMAGES_PER_CLASS

PLUGIN = pathlib.Path(__file__).parents[3] / "integrations/dlio"
TRAIN = len(CLASSES) * IMAGES_PER_CLASS


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(PLUGIN)
    yield importlib.import_module("forebay_dlio.settings")
    for name in [name for name in sys.modules if name.split(".")[0] == "forebay_dlio"]:
        del sys.modules[name]


def workload(settings: Any, **changed: Any) -> Any:
    values = {
        "data_folder": "data/", "format": "jpeg", "split": "train", "side": 16, "batch_size": 4, "rank": 0,
        "world_size": 1, "read_threads": 2, "shuffle": False, "seed": 5,
    }  # fmt: skip
    return settings.Workload(**{**values, **changed})


def test_the_dataset_is_beside_the_data_or_named(settings: Any) -> None:
    assert settings.dataset("data/jpeg/", {}) == "data/jpeg-forebay"
    assert settings.dataset("data/jpeg", {"FOREBAY_DLIO_DATASET": "s3://bucket/x"}) == "s3://bucket/x"


def test_decoded_formats_are_decoded_and_others_stay_encoded(settings: Any, packed: dict[str, pathlib.Path]) -> None:
    with forebay.Loader(packed["indexed"], **settings.options(workload(settings))) as loader:
        images = list(settings.batches(loader))
        assert len(images) == len(loader)
        assert all(batch.shape == (4, 16, 16, 3) and batch.dtype == np.uint8 for batch in images)
        again = list(settings.batches(loader))
    assert all((a == b).all() for a, b in zip(images, again, strict=True)), "without a shuffle epochs are the same"
    with forebay.Loader(packed["indexed"], **settings.options(workload(settings, format="tfrecord"))) as loader:
        stored = list(settings.batches(loader))
        assert all(batch.ndim == 1 for batch in stored)
    dataset = forebay.open(packed["indexed"])
    want = sum(len(dataset[number].image) for number in range(len(stored) * 4))
    assert sum(len(batch) for batch in stored) == want


def test_ranks_divide_the_samples(settings: Any, packed: dict[str, pathlib.Path]) -> None:
    seen: list[int] = []
    for rank in range(2):
        options = settings.options(workload(settings, rank=rank, world_size=2, batch_size=1, shuffle=True))
        with forebay.Loader(packed["indexed"], **options) as loader:
            seen += [int(sample) for batch in loader for sample in batch.samples]
    assert len(seen) == len(set(seen)) > 0


def test_a_dataset_with_other_samples_is_refused(settings: Any, packed: dict[str, pathlib.Path]) -> None:
    with forebay.Loader(packed["indexed"], **settings.options(workload(settings))) as loader:
        settings.check(loader, loader.epoch_samples, "here")
        with pytest.raises(ValueError, match=rf"{loader.epoch_samples} samples, expected 3 \(here\); pack or index"):
            settings.check(loader, 3, "here")


@pytest.mark.skipif(importlib.util.find_spec("dlio_benchmark") is None, reason="dlio_benchmark is not installed")
@pytest.mark.parametrize("workload_name", ["resnet50", "jpeg"])
def test_dlio_runs_with_both_readers(workload_name: str, tmp_path: pathlib.Path) -> None:
    words = [sys.executable, os.fspath(PLUGIN / "compare.py"), os.fspath(tmp_path), "--workload", workload_name, "--rounds", "1"]
    words += ["--samples", "40", "--batch-size", "10", "--threads", "1", "--epochs", "1"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "HOME": os.fspath(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        f"{workload_name}, {reader} reader" for reader in ("DLIO's", "Forebay's")
    ]
    for reader in "df":
        folder = tmp_path / f"{workload_name}-{reader}-0"
        assert json.loads((folder / "summary.json").read_text())["epochs"] == 1
    assert "ForebayDataLoader" in (folder / "dlio.log").read_text()
