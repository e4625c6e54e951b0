"""Functions of samples in processes: failures, and that nothing is left."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import forebay
import map_functions
from conftest import Packed
from map_functions import At
from test_loader import epochs, loader
from test_waiting import HEARS


def children(parent: int) -> set[int]:
    """The template and the workers of a process."""
    found = [parent]
    seen: set[int] = set()
    while found:
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{found.pop()}/task").iterdir():
                new = {int(pid) for pid in (task / "children").read_text().split()} - seen
                seen |= new
                found += new
    return seen


def workers_of(parent: int) -> set[int]:
    return {pid for pid in children(parent) if b"_map_worker.py" in command_of(pid)}


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def memory_files() -> int:
    """Files of shared memory that this process has open."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += "forebay-map" in os.readlink(f"/proc/self/fd/{fd}")
    return found


def sample_of(source: Any, step: int, row: int) -> int:
    with loader(source) as plain:
        return int([batch.samples[row] for batch in plain][step])


# Failures.


def failing(source: Any, action: str, sample: int, armed: pathlib.Path | None = None, **options: Any) -> forebay.Mapped:
    return forebay.Mapped(loader(source), map_sample=At(action, sample, armed), **{"map_workers": 2, **options})


def test_an_error_has_the_traceback_and_can_be_taken_up(packed: Packed, tmp_path: pathlib.Path) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    whole, sample = epochs(packed["indexed"]), sample_of(packed["indexed"], 2, 3)
    with failing(packed["indexed"], "raises", sample, armed) as it:
        batches = iter(it)
        assert [next(batches).images.tobytes() for _ in range(2)] == [batch[6] for batch in whole[:2]]
        for _ in range(2):
            with pytest.raises(forebay.MapError, match=f"map_sample raised KeyError.'of mine'. at sample {sample} of.* step 2") as caught:
                next(batches)
        error = caught.value
        assert isinstance(error.__cause__, KeyError)
        assert (error.sample, error.epoch, error.step, error.position) == (sample, 0, 2, 16)
        assert "in raises" in str(error) and "_map_worker.py" not in str(error)
        before = workers_of(os.getpid())
        armed.unlink()
        it.load_state_dict(it.state_dict())
        assert [batch.images.tobytes() for batch in it] == [batch[6] for batch in whole[2:]]
        # Workers of earlier tests may end meanwhile; one that replaces another would be new.
        assert workers_of(os.getpid()) <= before, "an exception costs no process"


@pytest.mark.parametrize(
    ("action", "said", "cause"),
    [
        ("raises_unpicklable", "Unpicklable.'of mine'", None),
        ("exits", "SystemExit.3", SystemExit),
        ("cuts", r"an image of \(31, 32, 3\) uint8 after one of \(32, 32, 3\) uint8: a batch holds one kind", ValueError),
        ("converts", "float32 after one of .* uint8", ValueError),
        ("returns_objects", "object", (TypeError, ValueError)),
    ],
)
def test_errors_of_a_function(packed: Packed, action: str, said: str, cause: Any) -> None:
    sample = sample_of(packed["indexed"], 1, 5)
    with failing(packed["indexed"], action, sample) as it, pytest.raises(forebay.MapError, match=said) as caught:
        list(it)
    assert caught.value.sample == sample
    assert isinstance(caught.value.__cause__, cause) if cause else caught.value.__cause__ is None


def test_objects_as_the_first_result(packed: Packed) -> None:
    sample = sample_of(packed["indexed"], 0, 0)
    # With one batch ahead, none is made beside the first one.
    with failing(packed["indexed"], "returns_objects", sample, ahead=1) as it, pytest.raises(forebay.MapError, match="of object"):
        next(iter(it))


@pytest.mark.parametrize(("action", "how"), [("is_killed", "was killed by SIGKILL"), ("ends", "ended with exit code 3")])
def test_a_process_that_is_lost(packed: Packed, tmp_path: pathlib.Path, action: str, how: str) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    whole, sample = epochs(packed["indexed"]), sample_of(packed["indexed"], 1, 2)
    with failing(packed["indexed"], action, sample, armed) as it:
        batches = iter(it)
        with pytest.raises(forebay.MapError, match=rf"pid \d+ {how}, at sample {sample} of split 'train'") as caught:
            list(batches)
        assert caught.value.sample == sample
        assert within(1, lambda: not workers_of(os.getpid()))
        armed.unlink()
        # Other processes go on.
        state = it.state_dict()
        it.load_state_dict(state)
        done = state["position"] // 8
        assert [batch.images.tobytes() for batch in it] == [batch[6] for batch in whole[done:]]


def test_a_process_that_is_killed_from_outside(packed: Packed) -> None:
    with forebay.Mapped(loader(packed["indexed"], repeats=20), map_sample=map_functions.slow, map_workers=2) as it:
        batches = iter(it)
        next(batches)
        pids = workers_of(os.getpid())
        assert len(pids) == 3
        victim = max(pids)
        os.kill(victim, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(forebay.MapError, match=f"pid {victim} was killed by SIGKILL"):
            for _ in batches:
                pass
        assert time.monotonic() - begun < 2


def test_a_template_that_is_killed(packed: Packed) -> None:
    with forebay.Mapped(loader(packed["indexed"], repeats=20), map_sample=map_functions.slow, map_workers=2) as it:
        batches = iter(it)
        next(batches)
        pids = workers_of(os.getpid())
        os.kill(min(pids), signal.SIGKILL)
        with pytest.raises(forebay.MapError, match="the process that starts the workers"):
            for _ in batches:
                pass
        assert within(1, lambda: not any(map(alive, pids)))


def test_a_function_that_hangs(packed: Packed) -> None:
    sample = sample_of(packed["indexed"], 1, 2)
    with failing(packed["indexed"], "hangs", sample, map_timeout=1.5) as it:
        with pytest.raises(forebay.MapError, match=rf"did not return within 1.5 s in pid \d+ at sample {sample} "):
            list(it)
        assert within(1, lambda: not workers_of(os.getpid()))


@pytest.mark.parametrize("action", ["forks", "starts_a_process"])
def test_a_function_may_start_processes(packed: Packed, action: str) -> None:
    whole = epochs(packed["indexed"])
    with failing(packed["indexed"], action, sample_of(packed["indexed"], 1, 2)) as it:
        assert [batch.images.tobytes() for batch in it] == [batch[6] for batch in whole]


def test_output_goes_where_the_trainer_has_it(packed: Packed) -> None:
    code = (
        "import sys, forebay\n"
        "from map_functions import At\n"
        "loader = forebay.Loader(sys.argv[1], batch_size=8, transform=forebay.TrainTransform(32))\n"
        "print(sum(1 for _ in forebay.Mapped(loader, map_sample=At('prints', int(sys.argv[2])), map_workers=2)))\n"
    )
    done = script(code, packed, sample_of(packed["indexed"], 1, 2))
    assert (done.returncode, done.stdout, done.stderr) == (0, "to stdout\n5\n", "to stderr\n")


def script(code: str, packed: Packed, *args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    path = pathlib.Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.fspath(path), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, "-c", code, os.fspath(packed["indexed"]), *map(str, args)],
        capture_output=True, text=True, timeout=120, env=env, **options,
    )  # fmt: skip


# Ends.


TRAINER = HEARS + """
import sys, time, forebay, map_functions
loader = forebay.Loader(sys.argv[1], batch_size=8, transform=forebay.TrainTransform(32), repeats=1000)
loader = forebay.Mapped(loader, map_sample=getattr(map_functions, sys.argv[2]), map_workers=2)
batches = iter(loader)
if sys.argv[2] == "slow":
    next(batches)
print("looping", flush=True)
for batch in batches:
    pass
"""


@contextlib.contextmanager
def trainer(packed: Packed, *arguments: str, code: str = TRAINER) -> Any:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        [sys.executable, "-c", code, os.fspath(packed["indexed"]), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline() == "looping\n"
            assert within(30, lambda: len(workers_of(process.pid)) == 3)
            yield process, workers_of(process.pid)
        finally:
            process.kill()


@pytest.mark.parametrize("function", ["slow", "hangs"])
def test_kill_9_of_the_trainer(packed: Packed, function: str) -> None:
    with trainer(packed, function) as (process, pids):
        # Workers are in the function.
        time.sleep(0.3)
        process.kill()
        assert within(1, lambda: not any(map(alive, pids)))


def test_kill_9_of_the_trainer_with_a_forked_child(packed: Packed) -> None:
    """The child must not hold the pipes on which workers depend."""
    code = TRAINER.replace('print("looping"', 'import os; child = os.fork(); child or time.sleep(60); print("looping"')
    code = "import warnings; warnings.simplefilter('ignore')\n" + code
    with trainer(packed, "hangs", code=code) as (process, pids):
        child = next(pid for pid in children(process.pid) if pid not in pids)
        process.kill()
        try:
            assert within(1, lambda: not any(map(alive, pids)))
            assert alive(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_ctrl_c(packed: Packed) -> None:
    with trainer(packed, "slow") as (process, pids):
        os.killpg(process.pid, signal.SIGINT)
        _, text = process.communicate(timeout=30)
        assert process.returncode in (-signal.SIGINT, 130, 1)
        assert text.count("Traceback") == 1 and "KeyboardInterrupt" in text, text
        assert within(1, lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("function", ["slow", "hangs"])
def test_a_session_ends_in_the_midst_of_a_loop(packed: Packed, function: str) -> None:
    code = TRAINER.replace("for batch in batches:", "sys.stdin.readline()\nsys.exit()\nfor batch in batches:")
    with trainer(packed, function, code=code) as (process, pids):
        begun = time.monotonic()
        _, text = process.communicate("\n", timeout=30)
        assert (process.returncode, text) == (0, "")
        assert time.monotonic() - begun < 8
        assert within(1, lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("end", ["close", "collect"])
def test_no_process_and_no_file_is_left(packed: Packed, end: str) -> None:
    gc.collect()
    files = memory_files()
    it: Any = forebay.Mapped(loader(packed["indexed"], repeats=20), map_sample=map_functions.slow, map_workers=2)
    assert not workers_of(os.getpid()), "processes start with the first loop"
    batches = iter(it)
    batch = next(batches)
    pids = workers_of(os.getpid())
    assert len(pids) == 3 and memory_files() > files
    if end == "close":
        it.close()
        assert not any(map(alive, pids))
        with pytest.raises(forebay.ClosedError):
            next(batches)
    del batches, it
    gc.collect()
    assert batch.images.shape == (8, 32, 32, 3)
    del batch
    assert within(5, lambda: (gc.collect(), not any(map(alive, pids)) and memory_files() == files)[1])


def test_close_ends_a_function_that_hangs(packed: Packed) -> None:
    it = forebay.Mapped(loader(packed["indexed"]), map_sample=map_functions.hangs, map_workers=2)
    batches = iter(it)
    assert within(30, lambda: len(workers_of(os.getpid())) == 3)
    begun = time.monotonic()
    it.close()
    assert time.monotonic() - begun < 5 and not workers_of(os.getpid())
    with pytest.raises(forebay.ClosedError):
        next(batches)
