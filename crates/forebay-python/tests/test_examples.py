"""The examples do what they say."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

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


NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))

RUN_A_NOTEBOOK = """
import sys
import nbclient, nbformat

book = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(book)
nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
"""


def code_cells(name: str) -> list[dict[str, Any]]:
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: pathlib.Path) -> None:
    text = "".join(line for cell in code_cells(name) for line in cell["source"])
    needed = {"nbclient", "ipykernel", *re.findall(r"^(?:import|from) (PIL|torch)\b", text, re.MULTILINE)}
    for package in sorted(needed):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if "torch" in needed and "FOREBAY_TEST_FULL" not in os.environ:
        pytest.skip("`tools/test full` runs this notebook: it starts torch")
    home = {"HOME": os.fspath(tmp_path), "TMPDIR": os.fspath(tmp_path), "IPYTHONDIR": os.fspath(tmp_path / "ipython")}
    path = os.pathsep.join([os.fspath(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-c", RUN_A_NOTEBOOK, EXAMPLES / name, tmp_path],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **home, "PATH": path},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_outputs(name: str) -> None:
    cells = code_cells(name)
    assert [cell["source"] for cell in cells if cell["outputs"] or cell["execution_count"]] == []
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert f"({name})" in listed
