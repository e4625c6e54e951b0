"""Directories of safetensors through the staging area, as `save_pretrained` writes them and `from_pretrained` reads them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import checkpoint

safetensors = pytest.importorskip("safetensors")
from safetensors.numpy import save_file  # noqa: E402

RUNS = pathlib.Path(__file__).parent / "safetensors_runs.py"
KILLS = 200 if "FOREBAY_TEST_FULL" in os.environ else 10
LONG = 60.0


@pytest.fixture(autouse=True)
def staging(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("FOREBAY_STAGING", os.fspath(tmp_path / "fast"))
    return tmp_path / "fast"


@pytest.mark.parametrize("local", [True, False])
def test_shards_of_a_model_come_back(tmp_path: pathlib.Path, local: bool) -> None:
    torch = pytest.importorskip("torch")
    hub = pytest.importorskip("huggingface_hub")
    weights = {f"layer.{number}": torch.arange(1000.0 * number, 1000.0 * (number + 1), dtype=torch.bfloat16) for number in range(5)}
    with checkpoint.writer(tmp_path / "run" / "step-1") as made:
        root = made.directory()
        hub.save_torch_state_dict(weights, root, max_shard_size=4500)
        pathlib.Path(root, "more").mkdir()
        pathlib.Path(root, "more", "config.json").write_text("{}")
        made.open("trainer.json").write(b"[1]")
    made.saved.wait(LONG)
    stage = None if local else tmp_path / "another machine"
    loaded = checkpoint.load(tmp_path / "run" / "step-1", format="safetensors", stage=stage, map_location="cpu")
    assert loaded.keys() == weights.keys() and all(torch.equal(loaded[name], weights[name]) for name in weights)
    to = pathlib.Path(checkpoint.load(tmp_path / "run" / "step-1", to=tmp_path / "model", stage=stage))
    shards = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(os.listdir(to)) == [*shards, "model.safetensors.index.json", "more", "trainer.json"]
    for name, shard in json.loads((to / "model.safetensors.index.json").read_text())["weight_map"].items():
        with safetensors.safe_open(to / shard, framework="pt") as file:
            assert torch.equal(file.get_tensor(name), weights[name])
    # A directory that is there already.
    checkpoint.save(to, tmp_path / "run" / "step-2")
    assert checkpoint.load(tmp_path / "run" / "step-2", format="safetensors").keys() == weights.keys()


def test_a_directory_that_cannot_be_saved_leaves_nothing(tmp_path: pathlib.Path, staging: pathlib.Path) -> None:
    def link(root: pathlib.Path) -> None:
        (root / "link").symlink_to("/etc/passwd")

    def pipe(root: pathlib.Path) -> None:
        os.mkfifo(root / "pipe")

    def twice(root: pathlib.Path) -> None:
        (root / "same").write_text("x")

    def fail(root: pathlib.Path) -> None:
        raise ZeroDivisionError("the model cannot be saved")

    for write, why in ((link, "link"), (pipe, "pipe"), (twice, "same"), (fail, "cannot be saved")):
        with pytest.raises((forebay.OptionError, ZeroDivisionError), match=why), checkpoint.writer(tmp_path / "run" / "step-1") as made:
            made.open("same").write(b"x")
            root = pathlib.Path(made.directory())
            (root / "large").write_bytes(bytes(1000))
            write(root)
        assert not [path for path in staging.rglob("*") if path.name in ("large", "same", "link")]
    assert checkpoint.latest(tmp_path / "run") is None


def test_tensors_that_are_missing_or_ambiguous_are_refused(tmp_path: pathlib.Path) -> None:
    def saved(name: str, files: dict[str, Any]) -> pathlib.Path:
        with checkpoint.writer(tmp_path / "run" / name) as made:
            root = pathlib.Path(made.directory())
            for file, value in files.items():
                if isinstance(value, str):
                    (root / file).write_text(value)
                else:
                    save_file({key: np.ones(2, np.float32) for key in value}, root / file)
        return tmp_path / "run" / name

    index = "model.safetensors.index.json"
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"config.json": "{}"}, forebay.OptionError, "no safetensors file"),
        ({"a.safetensors": ["x"], "b.safetensors": ["x", "y"]}, forebay.OptionError, "x in b.safetensors"),
        ({"a.safetensors": ["x"], index: '{"weight_map": {"x": "a", "y": "b"}}'}, forebay.CorruptCheckpointError, "y of"),
        ({"a.safetensors": ["x"], index: "[" * 100_000}, forebay.CorruptCheckpointError, "no index"),
        ({"a.safetensors": ["x"], index: "[]"}, forebay.CorruptCheckpointError, "no index"),
    ]
    for number, (files, kind, why) in enumerate(cases):
        with pytest.raises(kind, match=why):
            checkpoint.load(saved(f"step-{number}", files), format="safetensors")
    with pytest.raises(forebay.OptionError, match="format"):
        checkpoint.load(tmp_path / "run" / "step-1", format="pickle")  # type: ignore[arg-type]


def test_kills_lose_no_step_of_a_model(tmp_path: pathlib.Path) -> None:
    done = subprocess.run([sys.executable, str(RUNS), f"{tmp_path}/run", str(KILLS)], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.startswith(f"{KILLS} kills")
