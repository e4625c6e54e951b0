"""The examples do what they say."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"


def example(name: str, *args: object) -> str:
    # One thread: sums of another number of threads may differ in the last bit.
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The directory where the example caches its images, so that they are rendered once."""
    return tmp_path_factory.mktemp("small")


def test_the_small_network_learns(data: pathlib.Path) -> None:
    last = example("train_small.py", "--data", data).splitlines()[-1]
    assert float(last.removeprefix("accuracy ")) >= 0.95


def test_a_stopped_run_ends_with_the_same_network(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    whole, parts = tmp_path / "whole.npz", tmp_path / "parts.npz"
    options = ["--data", data, "--epochs", 2, "--checkpoint"]
    want = example("train_small.py", *options, whole).splitlines()[-1]
    assert "stopped" in example("train_small.py", *options, parts, "--stop-after", 7)
    assert example("train_small.py", *options, parts).splitlines()[-1] == want
    with np.load(whole) as a, np.load(parts) as b:
        assert a.files == b.files
        for name in a.files:
            assert (a[name] == b[name]).all(), name


def test_objects_are_where_their_pixels_are(tmp_path: pathlib.Path) -> None:
    detection, segmentation, sheet = example("objects.py", "--data", tmp_path, "--pictures", 60).splitlines()
    assert int(detection.split()[1]) >= 60
    assert "'disc'" in segmentation
    assert pathlib.Path(sheet.removeprefix("contact sheet: ")).read_bytes().startswith(b"\x89PNG")
