"""A training that is killed and run again makes the steps of one that ran through, in each framework of docs/frameworks.md."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from conftest import Packed
from test_loader import TOTAL
from trainer_runs import EPOCHS, RUNS, SAVE_STEPS

HERE = pathlib.Path(__file__).resolve().parent
STEPS = TOTAL // 8


def train(name: str, dataset: pathlib.Path, directory: pathlib.Path, kill: int = 0) -> list[list[int]]:
    """The samples of each step of a run."""
    directory.mkdir(exist_ok=True)
    log = directory / "log"
    log.unlink(missing_ok=True)
    words = [sys.executable, os.fspath(HERE / "trainer_runs.py"), name, os.fspath(dataset), os.fspath(directory), str(kill)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr
    return [[int(sample) for sample in line.split()] for line in log.read_text().splitlines()]


@pytest.mark.skipif("FOREBAY_TEST_FULL" not in os.environ, reason="`tools/test full` runs it: three trainings for each framework")
@pytest.mark.parametrize("name", RUNS)
def test_a_killed_training_goes_on_with_the_next_batch(packed: Packed, tmp_path: pathlib.Path, name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    whole = train(name, packed["indexed"], tmp_path / "whole")
    assert len(whole) == EPOCHS * STEPS and whole[:STEPS] != whole[STEPS : 2 * STEPS]
    # Killed in the second epoch, and again in the third.
    begin, rest = 0, tmp_path / "parts"
    for kill in (STEPS + 3, 4):
        part = train(name, packed["indexed"], rest, kill)
        assert part == whole[begin : begin + kill]
        begin += kill - (begin + kill) % SAVE_STEPS
        assert begin % STEPS, "a checkpoint in the middle of an epoch"
    assert train(name, packed["indexed"], rest) == whole[begin:]


def table() -> dict[str, list[str]]:
    """The rows of the table of docs/frameworks.md, by the name of the package."""
    page = (HERE.parents[2] / "docs/frameworks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[.*?\]\(#.*?\) \| ([a-z]+) ([0-9.]+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    return {package: cells for package, *cells in rows}


def test_the_table_of_frameworks_lists_the_tested_ones() -> None:
    rows = table()
    assert {package for package, (_, _, resumes) in rows.items() if resumes == "yes"} == set(RUNS)
    for package, (version, _, _) in rows.items():
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        numbers = [[int(number) for number in re.findall(r"\d+", text)[:2]] for text in (version, installed)]
        assert numbers[0] <= numbers[1], f"{package} {version} is listed, and {installed} is installed"
