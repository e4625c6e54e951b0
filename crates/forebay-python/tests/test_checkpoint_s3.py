"""Checkpoints in an object store that speaks S3, where `moto_server` is installed."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest

import forebay
from conftest import forebay_command, python
from forebay import checkpoint

LONG = 120.0
SECRET = "marked-secret-0123456789"


@pytest.fixture(autouse=True)
def credentials(s3_endpoint: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_STAGING", os.fspath(tmp_path / "fast"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)


def test_save_load_latest_and_retention(tmp_path: pathlib.Path) -> None:
    empty = tmp_path / "empty"
    run = "s3://bucket/run-a"
    value = {"large": os.urandom(20 << 20), "deep/small": b"x", "empty": b""}
    assert checkpoint.latest(run) is None
    for step in (1, 2, 3):
        checkpoint.save(value, f"{run}/step-{step}", keep=2, metadata={"step": step}).wait(LONG)
    assert [info.step for info in checkpoint.list(run, stage=empty)] == [2, 3]
    last = checkpoint.latest(run)
    assert last == f"{run}/step-3"
    assert checkpoint.load(last, stage=empty) == value
    assert checkpoint.load(last) == value
    checkpoint.save(b"other", last).wait(LONG)
    assert checkpoint.load(last, stage=empty) == b"other"
    refused = checkpoint.save(b"third", last, overwrite=False)
    with pytest.raises(forebay.CheckpointExistsError):
        refused.wait(LONG)
    checkpoint.pin(f"{run}/step-2")
    with pytest.warns(RuntimeWarning, match="did not arrive"):
        fourth = checkpoint.save(b"4", f"{run}/step-4", keep=1)
    fourth.wait(LONG)
    # The one that was refused is still in the staging area.
    assert [info.step for info in checkpoint.list(run, stage=empty)] == [2, 4]


def test_ranks() -> None:
    place = "s3://bucket/run-b/step-1"
    parts = [
        checkpoint.save({"s": b"%d" % rank}, place, rank=rank, world_size=2, attempt="one") for rank in range(2)
    ]
    for part in parts:
        part.wait(LONG)
    assert checkpoint.load(place) == [{"s": b"0"}, {"s": b"1"}]


def test_a_killed_process_is_succeeded_and_nothing_is_told(tmp_path: pathlib.Path) -> None:
    empty = tmp_path / "empty"
    code = (
        "import os, forebay\n"
        "forebay.checkpoint.save(os.urandom(20 << 20), 's3://bucket/run-c/step-1',\n"
        "    storage_options={'aws_secret_access_key': os.environ.pop('AWS_SECRET_ACCESS_KEY')})\n"
        "print(forebay.checkpoint.pending(), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = python(code)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert SECRET not in killed.stdout + killed.stderr
    for path in (tmp_path / "fast").rglob("*.json"):
        assert SECRET not in path.read_text()
    done = forebay_command("stage", "--drain")
    assert done.returncode == 0, done.stderr
    assert checkpoint.latest("s3://bucket/run-c", stage=empty) == "s3://bucket/run-c/step-1"
    assert forebay_command("verify", "s3://bucket/run-c/step-1").returncode == 0


AWAY = """
import os
import forebay
from forebay import checkpoint

saved = checkpoint.save(b"safe", "s3://bucket/run-d/step-1", storage_options={"endpoint": "http://127.0.0.1:1"})
try:
    saved.wait(1.0)
except forebay.TimeoutError:
    assert checkpoint.load("s3://bucket/run-d/step-1") == b"safe"
    print("in time:", saved.error, flush=True)
    os._exit(0)
"""


def test_a_server_that_is_away() -> None:
    # In a process of its own: the upload stays pending.
    done = python(AWAY)
    assert done.returncode == 0 and done.stdout.startswith("in time:"), done.stderr
    assert SECRET not in done.stdout + done.stderr
