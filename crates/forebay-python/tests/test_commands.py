"""Commands as functions: the same engine, accounts as results, typed errors, progress, Ctrl-C."""

from __future__ import annotations

import filecmp
import inspect
import json
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import forebay
from conftest import CLASSES, IMAGES_PER_CLASS, forebay_command, png

SAMPLES = len(CLASSES) * IMAGES_PER_CLASS


@pytest.fixture(scope="module")
def images(packed: dict[str, pathlib.Path]) -> pathlib.Path:
    return packed["indexed"].parent / "images"


def test_pack_writes_what_the_command_writes(packed: dict[str, pathlib.Path], images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = forebay.pack(images, tmp_path / "packed", format="indexed", shards=3, split="train", seed=5, jobs=2)
    assert (done.splits, done.shards, done.already_complete) == ({"train": SAMPLES}, 3, False)
    assert done.location == str(tmp_path / "packed")
    assert done.account["read"] == SAMPLES
    assert done.account["packed"]["train"] == {"samples": SAMPLES, "labelled": SAMPLES}
    assert done.fingerprint == forebay.open(done.location).fingerprint
    names = [path.name for path in packed["indexed"].glob("train-*")]
    assert len(names) == 3
    assert filecmp.cmpfiles(packed["indexed"], tmp_path / "packed", [*names, "forebay.json"], shallow=False)[0] == [*names, "forebay.json"]
    again = forebay.pack(images, tmp_path / "packed", format="indexed", shards=3, split="train", seed=5)
    assert again.already_complete and again.fingerprint == done.fingerprint


def test_inspect_and_verify_give_the_summaries_of_the_commands(dataset: pathlib.Path) -> None:
    for function in (forebay.inspect, forebay.verify):
        summary = function(dataset)
        command = json.loads(forebay_command(function.__name__, dataset, "--json").stdout.splitlines()[-1])
        for result in (summary, command):
            result.pop("seconds", None)
        assert summary == {key: value for key, value in command.items() if key != "type"}
        assert summary.records == SAMPLES == pickle.loads(pickle.dumps(summary)).records
        with pytest.raises(AttributeError):
            _ = summary.no_such_value


def test_files_are_converted_indexed_and_exported(
    dataset: pathlib.Path, tree: dict[str, bytes], tmp_path: pathlib.Path
) -> None:
    made = forebay.convert_files(dataset, tmp_path / "wds", format="webdataset")
    assert (made.splits, made.account["read"]) == ({"train": SAMPLES}, SAMPLES)
    indexed = forebay.index(tmp_path / "wds", output=tmp_path / "index", seek_points="off")
    assert indexed.records == SAMPLES
    assert len(forebay.open(tmp_path / "index").split("train")) == SAMPLES
    exported = forebay.export(dataset, tmp_path / "files")
    assert exported.files == SAMPLES
    assert {key: (tmp_path / "files" / key).read_bytes() for key in tree} == tree
    with pytest.raises(forebay.OptionError, match=r"output is missing.*output DIR names"):
        forebay.index(tmp_path / "wds")


def test_damage_is_an_error_with_the_summary(packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    forebay.convert_files(packed["tfrecord"], tmp_path / "copy", format="tfrecord")
    shard = sorted((tmp_path / "copy").glob("train-*[0-9]"))[0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(forebay.CommandError, match="damage") as raised:
        forebay.verify(tmp_path / "copy")
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.command, error.exit_code, error.summary.damage > 0) == ("verify", 1, True)
    with pytest.raises(forebay.CommandError, match="nowhere") as raised:
        forebay.inspect(tmp_path / "nowhere")
    assert raised.value.summary is None


def test_inputs_that_are_left_out_are_warned_of(tmp_path: pathlib.Path) -> None:
    for name, content in {"a/1.png": png(32, 32, 1), "a/2.png": png(32, 32, 2), "b/3.png": b"no image"}.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    with pytest.warns(UserWarning, match="some of the input of pack was left out: not an image: 1") as warned:
        done = forebay.pack(tmp_path / "in", tmp_path / "out", split="train")
    assert done.splits == {"train": 2}
    assert warned[0].filename == __file__
    with pytest.raises(forebay.CommandError, match=r"3\.png.*on_bad skip leaves such files out"):
        forebay.pack(tmp_path / "in", tmp_path / "other", split="train", on_bad="fail")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"job": 2}, "job: pack has no such option; it has blake3, .*jobs"),
        ({"jobs": "many"}, "many"),
        ({"jobs": [1, 2]}, "jobs"),
        ({"format": "tar"}, "invalid value 'tar'"),
        ({"overwrite": "yes"}, "overwrite: expected True or False, found 'yes'"),
        ({"finish": True}, "finish: pack has no such option"),
    ],
)
def test_options_that_cannot_work_are_named(
    options: dict[str, Any], message: str, images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(forebay.OptionError, match=message) as raised:
        forebay.pack(images, tmp_path / "out", **options)
    assert "--" not in str(raised.value) or "'--" in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_progress_is_told_and_may_stop_the_command(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    told: list[dict[str, Any]] = []
    forebay.pack(images, tmp_path / "out", split="train", progress=told.append)
    assert {"census", "writing"} <= {event["stage"] for event in told}
    assert all(event.keys() == {"stage", "position", "total", "items", "unit", "bytes"} for event in told)

    def refuse(event: dict[str, Any]) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        forebay.pack(images, tmp_path / "stopped", split="train", progress=refuse)
    assert forebay.pack(images, tmp_path / "stopped", split="train").splits == {"train": SAMPLES}


def test_a_bar_is_that_of_tqdm(images: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    forebay.pack(images, tmp_path / "out", split="train", progress=True)
    assert "writing" in capsys.readouterr().err


def test_other_threads_run_while_a_command_does(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ticks = 0
    over = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not over.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    forebay.pack(images, tmp_path / "out", split="train", jobs=1)
    over.set()
    thread.join()
    assert ticks > 0


def test_ctrl_c_stops_a_command_where_the_same_call_continues(tmp_path: pathlib.Path) -> None:
    picture = png(200, 200, 7)
    for number in range(600):
        path = tmp_path / f"in/a/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    code = (
        "import forebay, sys\n"
        "def tell(event):\n"
        "    if event['stage'] == 'writing': print('writing', flush=True)\n"
        "print(forebay.pack(sys.argv[1], sys.argv[2], split='train', shards=8, jobs=1, max_side=16, progress=tell).splits)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "in"), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < 30
    assert "KeyboardInterrupt" in errors and process.returncode == -signal.SIGINT
    assert not (tmp_path / "out/forebay.json").exists()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "{'train': 600}", done.stderr


def test_help_shows_every_option_with_its_meaning() -> None:
    for function in (forebay.pack, forebay.convert_files, forebay.verify, forebay.inspect, forebay.index, forebay.export):
        doc = inspect.getdoc(function) or ""
        for name in inspect.signature(function).parameters:
            assert f"{name} : " in doc, f"{function.__name__}: {name}"
        assert not re.search(r"(?<!-)--[a-z]", doc), function
        assert ">>> forebay." in doc
