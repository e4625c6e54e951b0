"""Checkpoints: safe at once, complete later, whole or refused."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import forebay
from conftest import forebay_command, python
from forebay import checkpoint
from test_waiting import HEARS

# Nothing takes this long unless it hangs.
LONG = 60.0


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    """The destination of a run's checkpoints."""
    return tmp_path / "slow" / "run"


@pytest.fixture
def stage(tmp_path: pathlib.Path) -> pathlib.Path:
    """The fast disk."""
    return tmp_path / "fast"


@pytest.fixture(autouse=True)
def own_area(stage: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FOREBAY_STAGING", os.fspath(stage))
    yield
    for saved in checkpoint.pending():
        if saved.state == "on its way":
            saved.wait(LONG)


@pytest.fixture
def away(tmp_path: pathlib.Path) -> Iterator[Callable[[], None]]:
    """The slow disk is not there, until the function is called."""
    wall = tmp_path / "slow"
    wall.write_text("")
    yield lambda: wall.unlink()
    wall.unlink() if wall.is_file() else None


def files_of(place: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


VALUES: list[tuple[str, Any]] = [
    ("bytes", b"some bytes"),
    ("nothing", b""),
    ("bytearray", bytearray(b"x" * 3_000_000)),
    ("view", memoryview(b"0123456789")[::2]),
    ("files", {"a": b"one", "deep/b": bytearray(b"two"), "c": memoryview(b"")}),
    ("array", np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
    ("fortran", np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3))),
    ("scalar", np.array(7.5)),
    ("strided", np.arange(10)[::3]),
    ("empty", np.zeros((0, 5), np.uint8)),
    ("structured", np.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", "<f8")])),
    ("arrays", {"w": np.ones((3, 3), np.float16), "b": np.arange(3), "t": np.array(True)}),
]


def same(value: Any, loaded: Any) -> bool:
    if isinstance(value, dict):
        return list(loaded) == sorted(value) and all(same(value[k], loaded[k]) for k in value)
    if isinstance(value, np.ndarray):
        assert isinstance(loaded, np.ndarray) and loaded.flags.writeable
        return loaded.dtype == value.dtype and loaded.shape == value.shape and bool((loaded == value).all())
    return bool(bytes(value) == loaded)


@pytest.mark.parametrize(("name", "value"), VALUES, ids=[name for name, _ in VALUES])
def test_what_is_saved_comes_back(name: str, value: Any, run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    saved = checkpoint.save(value, run / "step-1", metadata={"step": 1, "name": name})
    assert same(value, checkpoint.load(run / "step-1"))
    saved.wait(LONG)
    assert saved.done and saved.error is None and saved.drained == saved.bytes
    assert (run / "step-1" / "forebay-checkpoint.json").is_file()
    elsewhere = tmp_path / "other area"
    assert same(value, checkpoint.load(run / "step-1", stage=elsewhere))
    assert checkpoint.metadata(run / "step-1") == {"step": 1, "name": name}


def test_files_and_directories(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "model"
    (source / "sub").mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "sub" / "weights.bin").write_bytes(os.urandom(100_000))
    checkpoint.save(source, run / "step-1").wait(LONG)
    checkpoint.save(str(source / "config.json"), run / "step-2").wait(LONG)
    there = checkpoint.load(run / "step-1", to=tmp_path / "out")
    assert there == os.fspath(tmp_path / "out")
    for path in files_of(source):
        assert (tmp_path / "out" / path.relative_to(source)).read_bytes() == path.read_bytes()
    assert checkpoint.load(run / "step-2") == {"config.json": b"{}"}
    with pytest.raises(forebay.CheckpointError, match="nowhere"):
        checkpoint.save(tmp_path / "nowhere", run / "step-3")


def test_a_writer_takes_what_libraries_write(run: pathlib.Path, stage: pathlib.Path) -> None:
    with checkpoint.writer(run / "step-1", metadata={"x": [1, None]}) as made:
        np.save(made.open("array.npy"), np.arange(5))
        np.savez(made.open("arrays.npz"), a=np.arange(3))
        pathlib.Path(made.path("notes.txt")).write_text("hello")
        with io.TextIOWrapper(io.BufferedWriter(made.open("text"))) as text:
            text.write("lines\n")
        with pytest.raises(forebay.CheckpointError):
            made.saved  # noqa: B018
    made.saved.wait(LONG)
    loaded = checkpoint.load(run / "step-1")
    assert np.load(io.BytesIO(loaded["array.npy"])).tolist() == [0, 1, 2, 3, 4]
    assert np.load(io.BytesIO(loaded["arrays.npz"]))["a"].tolist() == [0, 1, 2]
    assert loaded["notes.txt"] == b"hello" and loaded["text"] == b"lines\n"
    with pytest.raises(ZeroDivisionError), checkpoint.writer(run / "step-2") as made:
        made.open("a").write(b"half")
        raise ZeroDivisionError
    assert checkpoint.latest(run) == os.fspath(run / "step-1")
    with pytest.raises(forebay.OptionError, match="two files"), checkpoint.writer(run / "step-2") as made:
        made.open("a")
        made.open("a")
    for bad in ("../a", "/a", "", "a//b"):
        with pytest.raises(forebay.OptionError), checkpoint.writer(run / "step-2") as made:
            made.open(bad)
    assert not [path for path in files_of(stage) if path.name == "a"]


class _Evil:
    def __reduce__(self) -> Any:
        return (print, ("pickled",))


@pytest.mark.parametrize(
    "value",
    [_Evil(), {"a": _Evil()}, {}, [1, 2], 7, None, np.array([_Evil()], dtype=object), {"a": b"", "b": np.ones(1)}, {1: b""}],
)
def test_nothing_is_pickled(value: Any, run: pathlib.Path, stage: pathlib.Path) -> None:
    with pytest.raises(forebay.OptionError):
        checkpoint.save(value, run / "step-1")
    # The mark of a staging directory may be there, nothing else.
    assert checkpoint.latest(run) is None
    assert [path.name for path in files_of(stage) if path.name != ".forebay-stage"] == []


def test_an_array_of_objects_is_not_unpickled(run: pathlib.Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([_Evil()], dtype=object), allow_pickle=True)
    with checkpoint.writer(run / "step-1") as made:
        made._content = "array"
        made.open("data.npy").write(file.getvalue())
    with pytest.raises(forebay.CorruptCheckpointError, match="unpickled"):
        checkpoint.load(run / "step-1")


def test_torch_writes_its_own(run: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    state = {"w": torch.arange(6.0).reshape(2, 3), "nested": {"lr": 0.1, "t": torch.ones(1_000_000)}}
    checkpoint.save(state, run / "step-1", format="torch").wait(LONG)
    loaded = checkpoint.load(run / "step-1")
    assert torch.equal(loaded["w"], state["w"]) and torch.equal(loaded["nested"]["t"], state["nested"]["t"])
    with pytest.raises(forebay.OptionError, match="format"):
        checkpoint.save({"w": torch.ones(1)}, run / "step-2")


def test_safetensors_of_arrays(run: pathlib.Path) -> None:
    pytest.importorskip("safetensors")
    value = {"w": np.ones((2, 2), np.float32), "b": np.arange(3)}
    checkpoint.save(value, run / "step-1", format="safetensors").wait(LONG)
    if "torch" not in sys.modules:
        assert same({k: value[k] for k in sorted(value)}, checkpoint.load(run / "step-1"))
    with pytest.raises(forebay.OptionError):
        checkpoint.save(b"x", run / "step-2", format="safetensors")


def test_options_that_cannot_work(run: pathlib.Path) -> None:
    for options in (
        {"keep": 0},
        {"rank": 1},
        {"world_size": 2},
        {"rank": 2, "world_size": 2, "attempt": "x"},
        {"format": "pickle"},
        {"metadata": {"x": {1, 2}}},
        {"metadata": {"x": float("nan")}},
        {"storage_options": {"anonymous": "perhaps"}},
        {"storage_options": {"endpoint": 7}},
    ):
        with pytest.raises(forebay.OptionError):
            checkpoint.save(b"x", run / "step-1", **options)
    for place in ("", "s3://bucket", "s3://key:secret@bucket/run/step-1", "ftp://host/run/step-1"):
        with pytest.raises(forebay.OptionError) as caught:
            checkpoint.save(b"x", place).wait(LONG)
        assert "secret" not in str(caught.value)
    with pytest.raises(forebay.OptionError, match="before the first save"):
        checkpoint.configure(stage=run)


def test_latest_list_and_retention(run: pathlib.Path) -> None:
    assert checkpoint.latest(run) is None and checkpoint.list(run) == []
    for step in (8, 9, 10, 11):
        checkpoint.save(b"%d" % step, run / f"step-{step}", metadata={"step": step}).wait(LONG)
    checkpoint.save(b"best", run / "best").wait(LONG)
    # Half of one, as a writer leaves it that died in the midst of draining.
    half = run / "step-12" / "data-0123"
    half.mkdir(parents=True)
    (half / "data").write_bytes(b"half")
    assert checkpoint.latest(run) == os.fspath(run / "step-11")
    with pytest.raises(forebay.MissingCheckpointError) as caught:
        checkpoint.load(run / "step-12")
    assert caught.value.location == os.fspath(run / "step-12")
    checkpoint.pin(run / "step-8")
    checkpoint.save(b"13", run / "step-13", keep=2).wait(LONG)
    found = {pathlib.Path(info.location).name: info for info in checkpoint.list(run)}
    assert list(found) == ["best", "step-8", "step-11", "step-13"]
    assert found["step-8"].pinned and found["step-11"].metadata == {"step": 11}
    assert [info.step for info in found.values()] == [None, 8, 11, 13]
    assert all(info.stored and info.error is None for info in found.values())
    checkpoint.unpin(run / "step-8")
    checkpoint.save(b"14", run / "step-14", keep=1).wait(LONG)
    assert [info.step for info in checkpoint.list(run)] == [None, 14]


def test_damage_names_the_file(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    value = {"a": b"first file", "b": os.urandom(1000)}
    checkpoint.save(value, run / "step-1").wait(LONG)
    elsewhere = tmp_path / "other"
    victim = next(path for path in files_of(run) if path.name == "b")
    good = victim.read_bytes()
    flipped = bytearray(good)
    flipped[500] ^= 1
    for bad in (bytes(flipped), good[:-1], good + b"x", b""):
        victim.write_bytes(bad)
        with pytest.raises(forebay.CorruptCheckpointError, match="b") as caught:
            checkpoint.load(run / "step-1", stage=elsewhere)
        assert caught.value.file == "b" and caught.value.location == os.fspath(run / "step-1")
        with pytest.raises(forebay.CorruptCheckpointError):
            checkpoint.load(run / "step-1", stage=elsewhere, to=tmp_path / "out")
        assert not (tmp_path / "out" / "b").exists()
        # The fast disk has a whole copy.
        assert checkpoint.load(run / "step-1") == value
    victim.unlink()
    with pytest.raises(forebay.CorruptCheckpointError, match="b"):
        checkpoint.load(run / "step-1", stage=elsewhere)
    victim.write_bytes(good)
    manifest = run / "step-1" / "forebay-checkpoint.json"
    text = manifest.read_text()
    for bad_text in (text[:-5], text.replace('"bytes": 1000', '"bytes": 1001'), "{}", "[" * 100_000):
        manifest.write_text(bad_text)
        with pytest.raises(forebay.CorruptCheckpointError, match="forebay-checkpoint.json"):
            checkpoint.load(run / "step-1", stage=elsewhere)
        assert checkpoint.latest(run, stage=elsewhere) is None
        assert checkpoint.list(run, stage=elsewhere)[0].error


def test_a_store_that_is_away(run: pathlib.Path, stage: pathlib.Path, away: Callable[[], None]) -> None:
    saved = checkpoint.save(b"safe", run / "step-1")
    with pytest.raises(forebay.TimeoutError, match="step-1") as caught:
        saved.wait(2.0)
    assert not saved.done and saved.state in ("on its way", "failing")
    assert checkpoint.load(run / "step-1") == b"safe"
    status = forebay_command("stage", "--json", "--staging", stage)
    events = [json.loads(line) for line in status.stdout.splitlines()]
    assert [event["state"] for event in events[:-1]] == ["draining"] and events[-1]["left"] == 1
    away()
    saved.wait(LONG)
    assert saved.error is None and checkpoint.latest(run) == os.fspath(run / "step-1")
    assert "fast" not in str(caught.value)


def test_replacing(run: pathlib.Path) -> None:
    checkpoint.save(b"old", run / "best").wait(LONG)
    refused = checkpoint.save(b"new", run / "best", overwrite=False)
    with pytest.raises(forebay.CheckpointExistsError) as caught:
        refused.wait(LONG)
    assert refused.state == "failed" and isinstance(refused.error, FileExistsError)
    assert caught.value.location == os.fspath(run / "best")
    with pytest.warns(RuntimeWarning, match="best"):
        checkpoint.save(b"new", run / "best").wait(LONG)
    assert checkpoint.load(run / "best") == b"new"
    assert len(files_of(run)) == 2


def test_ranks(run: pathlib.Path) -> None:
    parts = [
        checkpoint.save(
            {"shard": b"%d" % rank}, run / "step-5", rank=rank, world_size=3, attempt="try-1", metadata={"rank": rank}
        )
        for rank in (0, 2)
    ]
    with pytest.raises(forebay.TimeoutError):
        parts[0].wait(0.5)
    assert checkpoint.latest(run) is None
    parts.append(checkpoint.save({"shard": b"1"}, run / "step-5", rank=1, world_size=3, attempt="try-1"))
    for part in parts:
        part.wait(LONG)
    assert checkpoint.latest(run) == os.fspath(run / "step-5")
    assert checkpoint.load(run / "step-5") == [{"shard": b"0"}, {"shard": b"1"}, {"shard": b"2"}]
    assert checkpoint.load(run / "step-5", rank=2) == {"shard": b"2"}
    assert checkpoint.metadata(run / "step-5", rank=2) == {"rank": 2}
    assert checkpoint.list(run)[0].world_size == 3
    with pytest.raises(forebay.OptionError):
        checkpoint.load(run / "step-5", rank=3)


# Saves one checkpoint after the other and says which are safe. Each is a function of its number.
SAVER = """
import hashlib, os, sys
import forebay
run = sys.argv[1]
for step in range(int(sys.argv[2]), 10_000):
    seed = b"%d" % step
    value = {f"part-{i}": hashlib.sha256(seed + b"%d" % i).digest() * 4096 for i in range(4)}
    forebay.checkpoint.save(value, f"{run}/step-{step}", keep=3)
    print(step, flush=True)
"""


def expected(step: int) -> dict[str, bytes]:
    return {f"part-{i}": hashlib.sha256(b"%d%d" % (step, i)).digest() * 4096 for i in range(4)}


def test_kill_9_at_any_moment_loses_nothing(run: pathlib.Path, stage: pathlib.Path) -> None:
    moments = random.Random(7)
    first, last = 1, 0
    for _ in range(6):
        wanted = moments.randrange(1, 6)
        with subprocess.Popen(
            [sys.executable, "-c", SAVER, os.fspath(run), str(first)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(wanted):
                last = int(process.stdout.readline())
            # Somewhere in the next save, or in a drain.
            threading.Event().wait(moments.random() / 20)
            process.kill()
            rest = process.stdout.read().split()
            last = int(rest[-1]) if rest else last
        # What was acknowledged is there, whole, and nothing else is complete.
        place = checkpoint.latest(run)
        assert place is not None
        step = int(place.rsplit("-", 1)[1])
        assert step in (last, last + 1), "the last one may have become safe without a word"
        assert checkpoint.load(place) == expected(step)
        for info in checkpoint.list(run):
            assert info.error is None and info.step is not None
            assert checkpoint.load(info.location) == expected(info.step)
        first = step + 1
    done = forebay_command("stage", "--drain", "--json", "--staging", stage)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["left"] == 0
    steps = [info.step for info in checkpoint.list(run, stage=stage / "none")]
    assert first - 1 in steps
    for step_there in steps:
        assert step_there is not None
        assert checkpoint.load(run / f"step-{step_there}", stage=stage / "none") == expected(step_there)
    status = forebay_command("stage", "--staging", stage)
    assert status.returncode == 0 and "Nothing in" in status.stdout


def test_the_next_save_takes_up_what_was_left(run: pathlib.Path, away: Callable[[], None]) -> None:
    code = (
        "import sys, os, forebay\n"
        "forebay.checkpoint.save(b'left', sys.argv[1] + '/step-1')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert python(code, os.fspath(run)).returncode == -signal.SIGKILL
    away()
    code = (
        "import sys, forebay\n"
        "forebay.checkpoint.save(b'next', sys.argv[1] + '/step-2')\n"
        "forebay.checkpoint.wait(60)\n"
        "assert not forebay.checkpoint.pending()\n"
    )
    done = python(code, os.fspath(run))
    assert done.returncode == 0, done.stderr
    assert [info.step for info in checkpoint.list(run)] == [1, 2]
    assert all(info.stored for info in checkpoint.list(run))


@pytest.mark.parametrize("mode", ["leave", "wait"])
def test_the_end_of_a_process(run: pathlib.Path, away: Callable[[], None], mode: str) -> None:
    code = (
        "import sys, os, threading, forebay\n"
        "forebay.checkpoint.configure(at_exit=sys.argv[2])\n"
        "forebay.checkpoint.save(b'last', sys.argv[1] + '/step-1')\n"
        "wall = os.path.dirname(sys.argv[1])\n"
        "if sys.argv[2] == 'wait':\n"
        "    import atexit\n"
        # Handlers run in reverse: the store is back after the wait has begun.
        "    threading.Timer(1.0, os.unlink, (wall,)).start()\n"
    )
    done = python(code, os.fspath(run), mode)
    assert done.returncode == 0, done.stderr
    if mode == "leave":
        assert "safe in" in done.stderr and "forebay stage --drain --staging" in done.stderr
        assert checkpoint.load(run / "step-1") == b"last"
        away()
    else:
        assert "waiting for 1 checkpoint" in done.stderr and "safe in" not in done.stderr
        assert checkpoint.list(run)[0].stored


def test_ctrl_c_ends_a_wait(run: pathlib.Path, away: Callable[[], None]) -> None:
    code = HEARS + (
        "import sys, forebay\n"
        "saved = forebay.checkpoint.save(b'x', sys.argv[1] + '/step-1')\n"
        "def tell(frame, event, called):\n"
        "    if event == 'c_call' and called.__name__ == 'wait':\n"
        "        sys.setprofile(None)\n"
        "        print('waiting', flush=True)\n"
        "try:\n"
        "    sys.setprofile(tell)\n"
        "    saved.wait()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, os.fspath(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=60)
    assert output == "interrupted\n" and process.returncode == 0, error
    away()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_is_refused_and_a_child_saves_on_its_own(run: pathlib.Path) -> None:
    code = (
        "import os, sys, warnings, forebay\n"
        "warnings.simplefilter('ignore')\n"
        "saved = forebay.checkpoint.save(b'parent', sys.argv[1] + '/step-1')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        saved.wait()\n"
        "    except forebay.ForkError as error:\n"
        "        print('spawn' in str(error), flush=True)\n"
        "    assert not forebay.checkpoint.pending()\n"
        "    forebay.checkpoint.save(b'child', sys.argv[1] + '/step-2').wait(60)\n"
        "    os._exit(7)\n"
        "_, status = os.waitpid(child, 0)\n"
        "assert os.waitstatus_to_exitcode(status) == 7, status\n"
        "saved.wait(60)\n"
    )
    done = python(code, os.fspath(run))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"
    assert [info.step for info in checkpoint.list(run)] == [1, 2]


def _save(job: tuple[str, int]) -> None:
    run, number = job
    checkpoint.save(b"%d" % number, f"{run}/best").wait(LONG)
    checkpoint.save(b"%d" % number, f"{run}/step-{number}", keep=2).wait(LONG)


def test_processes_share_an_area(run: pathlib.Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(_save, [(os.fspath(run), number) for number in range(6)], chunksize=1)
    assert checkpoint.load(run / "best") in [b"%d" % number for number in range(6)]
    place = checkpoint.latest(run)
    assert place == os.fspath(run / "step-5") and checkpoint.load(place) == b"5"


def test_other_threads_run_while_it_waits(run: pathlib.Path, away: Callable[[], None]) -> None:
    saved = checkpoint.save(b"x", run / "step-1")
    counted = 0

    def count() -> None:
        nonlocal counted
        while not saved.done:
            counted += 1
            if counted == 100:
                away()
            threading.Event().wait(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    saved.wait(LONG)
    thread.join(LONG)
    assert counted >= 100


def test_checkpoints_from_the_command_line(run: pathlib.Path) -> None:
    checkpoint.save({"a": b"x" * 1000}, run / "step-1").wait(LONG)
    listed = forebay_command("inspect", run)
    assert listed.returncode == 0 and "step-1" in listed.stdout
    verified = forebay_command("verify", run / "step-1", "--json")
    assert verified.returncode == 0 and json.loads(verified.stdout)["files"] == 1
    victim = next(path for path in files_of(run) if path.name == "a")
    victim.write_bytes(b"y" * 1000)
    verified = forebay_command("verify", run / "step-1")
    assert verified.returncode == 1 and "a: its CRC32C" in verified.stderr, verified.stderr
    missing = forebay_command("verify", run / "step-2")
    assert missing.returncode == 1 and "hint:" in missing.stderr


def test_a_draft_that_nobody_holds_is_removed(run: pathlib.Path, stage: pathlib.Path) -> None:
    made = checkpoint.writer(run / "step-1")
    made.open("a").write(b"x")
    del made
    gc.collect()
    assert not [path for path in files_of(stage) if path.name == "a"]
