"""Python functions between a loader and the trainer: order, errors, states, ends."""

from __future__ import annotations

import gc
import json
import multiprocessing
import pathlib
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import forebay
import map_functions
from conftest import python
from test_loader import TOTAL, content, epochs, loader
from test_waiting import HEARS


def negative(batch: Any) -> tuple[Any, Any]:
    images, labels = batch
    return 255 - images, labels


def mapped(source: Any, *, map_threads: int = 1, ahead: int = 2, **options: Any) -> forebay.Mapped:
    functions = {name: options.pop(name, None) for name in ("map_batch", "map_sample")}
    if functions == {"map_batch": None, "map_sample": None}:
        functions["map_batch"] = lambda batch: batch
    return forebay.Mapped(
        loader(source, **options), **functions, map_threads=map_threads, ahead=ahead
    )


def ahead_threads() -> int:
    return sum(thread.name == "forebay-ahead" for thread in threading.enumerate())


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_come_in_order_whatever_the_threads(source: str, threads: int) -> None:
    whole = epochs(source, 2, drop_last=False)
    with mapped(source, map_threads=threads, drop_last=False) as it:
        assert len(it) == len(whole) // 2
        assert [content(batch) for _ in range(2) for batch in it] == whole


def test_a_function_of_batches(source: str) -> None:
    with loader(source) as plain, mapped(source, map_batch=negative) as it:
        for before, after in zip(plain, it, strict=True):
            images, labels = after
            assert isinstance(after, forebay.TensorBatch) and len(after) == len(list(after)) == 2
            assert images is after.images and labels is after.labels
            assert (images == 255 - before.images).all()
            assert labels.tolist() == before.labels.tolist()
            assert after.samples.tolist() == before.samples.tolist()
            assert after.padding.tolist() == before.padding.tolist()
            assert after.failed.tolist() == before.failed.tolist()
            assert (after.epoch, after.step, after.position, after.layout) == (
                before.epoch, before.step, before.position, before.layout,
            )  # fmt: skip


def test_what_is_no_pair_comes_as_it_is(source: str) -> None:
    with mapped(source, map_batch=lambda batch: {"mean": batch.images.mean()}) as it:
        assert [set(item) for item in it] == [{"mean"}] * len(it)


def test_a_function_of_samples_is_spared_padding(source: str) -> None:
    seen: list[int] = []

    def half(image: Any, label: int) -> tuple[Any, Any]:
        seen.append(label)
        return image[::2, ::2].astype(np.float32) / 255, float(label)

    options: dict[str, Any] = {"drop_last": False, "pad_last": True, "shuffle": False}
    with loader(source, **options) as plain, mapped(source, map_sample=half, **options) as it:
        for before, after in zip(plain, it, strict=True):
            real = ~before.padding
            assert after.images.shape == (8, 16, 16, 3) and after.images.dtype == np.float32
            assert (after.images[real] == before.images[real, ::2, ::2] / np.float32(255)).all()
            assert after.labels[real].tolist() == before.labels[real].tolist()
            assert not after.images[~real].any() and not after.labels[~real].any() and (before.labels[~real] == -100).all()
    assert len(seen) == TOTAL


def test_both_functions_one_after_the_other(source: str) -> None:
    with mapped(source, map_sample=lambda i, n: (i, n + 10), map_batch=negative) as it, loader(
        source
    ) as plain:
        for before, after in zip(plain, it, strict=True):
            assert after.labels.tolist() == (before.labels + 10).tolist()
            assert (after.images == 255 - before.images).all()


@pytest.mark.parametrize("ahead", [1, 4])
def test_a_state_counts_what_was_handed_out(source: str, ahead: int) -> None:
    """Also while everything of the epoch is prepared already."""
    whole = epochs(source, 2)
    with loader(source) as plain:
        states = [plain.state_dict()] + [plain.state_dict() for _ in range(2) for _ in plain]
    with mapped(source, ahead=ahead) as it:
        got = [it.state_dict()] + [it.state_dict() for _ in range(2) for _ in it]
        assert got == states
        assert (it.epoch, it.position) == (2, 0)
    for done, state in enumerate(json.loads(json.dumps(got))):
        with mapped(source, ahead=ahead) as it:
            it.load_state_dict(state)
            rest = [content(batch) for _ in range(2) for batch in it]
            assert rest[: len(whole) - done] == whole[done:][: len(rest)]
        if done < 2:
            with loader(source) as plain:
                plain.load_state_dict(state)
                assert content(next(iter(plain))) == whole[done]


def test_a_loop_left_early_gives_way_to_the_next_epoch(source: str) -> None:
    whole = epochs(source, 3)
    with mapped(source, ahead=10) as it:
        steps = len(it)
        never = iter(it)
        first = iter(it)
        assert content(next(first)) == whole[0], "a batch that was prepared and not taken is not lost"
        second = iter(it)
        for old in (never, first):
            with pytest.raises(forebay.StateError, match="newer"):
                next(old)
        assert [content(batch) for batch in second] == whole[steps : 2 * steps]
        assert list(second) == []
        assert it.epoch == 2
        it.set_epoch(1)
        assert [content(batch) for batch in it] == whole[steps : 2 * steps]
        assert list(second) == []


def test_set_epoch_keeps_a_restored_place(source: str) -> None:
    whole = epochs(source, 1)
    with mapped(source) as it:
        batches = iter(it)
        next(batches), next(batches)
        state = it.state_dict()
        it.load_state_dict(state)
        it.set_epoch(0)
        assert [content(batch) for batch in it] == whole[2:]
        with pytest.raises(forebay.StateError):
            it.load_state_dict({**state, "seed": 77})
        with pytest.raises(forebay.OptionError):
            forebay.Mapped(loader(source))


def test_an_error_tells_where_and_can_be_taken_up(source: str) -> None:
    armed = True

    def picky(batch: Any) -> Any:
        if armed and batch.step == 2:
            raise ZeroDivisionError("of mine")
        return batch

    whole = epochs(source)
    with mapped(source, map_batch=picky, map_threads=2, ahead=4) as it:
        batches = iter(it)
        assert [content(next(batches)) for _ in range(2)] == whole[:2]
        for _ in range(2):
            with pytest.raises(forebay.MapError, match="of mine.*step 2 of epoch 0") as caught:
                next(batches)
        error = caught.value
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert (error.epoch, error.step, error.position, error.sample) == (0, 2, 16, None)
        assert vars(pickle.loads(pickle.dumps(error))) == vars(error)
        armed = False
        it.load_state_dict(it.state_dict())
        assert [content(batch) for batch in it] == whole[2:]


def test_an_error_names_the_sample(source: str) -> None:
    with loader(source) as plain:
        wanted = int(next(iter(plain)).samples[3])
    calls = 0

    def fails(image: Any, label: int) -> Any:
        nonlocal calls
        calls += 1
        return (image, label) if calls != 4 else (image[1:], label)

    with mapped(source, map_sample=fails) as it:
        with pytest.raises(forebay.MapError, match="one kind") as caught:
            next(iter(it))
    assert caught.value.sample == wanted and f"sample {wanted} " in str(caught.value)


def test_errors_of_the_loader_come_through(packed: dict[str, pathlib.Path]) -> None:
    class Broken:
        def __init__(self, inner: forebay.Loader) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def __len__(self) -> int:
            return len(self.inner)

        def __iter__(self) -> Any:
            yield next(iter(self.inner))
            raise forebay.ImageError("broken", sample=3)

    with loader(packed["indexed"]) as inner:
        batches = iter(forebay.Mapped(Broken(inner), map_batch=negative))
        next(batches)
        with pytest.raises(forebay.ImageError, match="broken"):
            next(batches)


def test_threads_share_a_loop(source: str) -> None:
    whole = epochs(source, batch_size=2)
    with mapped(source, batch_size=2, map_threads=2, ahead=4) as it:
        batches = iter(it)
        with ThreadPoolExecutor(4) as pool:
            parts = pool.map(lambda _: [content(batch) for batch in batches], range(4))
            got = [batch for part in parts for batch in part]
    assert sorted(got) == sorted(whole)


def test_loops_that_nobody_holds_leave_no_threads(source: str) -> None:
    before = ahead_threads()
    it = mapped(source)
    for _ in range(5):
        for _batch in it:
            break
    running = [thread for thread in threading.enumerate() if thread.name == "forebay-ahead"]
    del it, _batch
    gc.collect()
    for thread in running:
        thread.join(60)
    assert ahead_threads() <= before


def test_close_wakes_who_waits_and_ends_threads(source: str) -> None:
    go, entered = threading.Event(), threading.Event()

    def slow(batch: Any) -> Any:
        entered.set()
        go.wait(60)
        return batch

    it = mapped(source, map_batch=slow)
    batches = iter(it)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(lambda: next(batches))
        assert entered.wait(60)
        closing = pool.submit(it.close)
        with pytest.raises(forebay.ClosedError):
            waiting.result(timeout=60)
        go.set()
        closing.result(timeout=60)
    assert it.closed
    for use in (lambda: iter(it), lambda: it.set_epoch(0), lambda: next(batches)):
        with pytest.raises(forebay.ClosedError):
            use()
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(it)


def test_ctrl_c_while_a_function_works(source: str) -> None:
    code = HEARS + (
        "import sys, os, threading, forebay\n"
        "go = threading.Event()\n"
        "def slow(batch):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    go.wait()\n"
        "    return batch\n"
        "loader = forebay.Loader(sys.argv[1], batch_size=2, transform=forebay.TrainTransform(32))\n"
        "loader = forebay.Mapped(loader, map_batch=slow)\n"
        "batches = iter(loader)\n"
        "try:\n"
        "    next(batches)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "go.set()\n"
        "print(next(batches).step)\n"
    )
    done = python(code, source)
    assert done.stdout == "interrupted\n0\n", done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["Loader", "Mapped"])
@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "import gc; gc.freeze()"])
def test_a_session_ends_with_a_loader_alive(source: str, kind: str, end: str) -> None:
    """In the midst of a loop, held by a global, as a notebook leaves it."""
    code = (
        "import sys, forebay\n"
        "loader = forebay.Loader(sys.argv[1], batch_size=2, transform=forebay.TrainTransform(32))\n"
        "if sys.argv[2] == 'Mapped':\n"
        "    loader = forebay.Mapped(loader, map_batch=lambda batch: batch, map_threads=2)\n"
        "batches = iter(loader)\n"
        "batch = next(batches)\n"
        "print(batch.step, flush=True)\n" + end
    )
    done = python(code, source, kind)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_is_refused_with_the_remedy(source: str) -> None:
    code = (
        "import os, sys, warnings, forebay\n"
        "warnings.simplefilter('ignore')\n"
        "inner = forebay.Loader(sys.argv[1], batch_size=4, transform=forebay.TrainTransform(32))\n"
        "loader = forebay.Mapped(inner, map_batch=lambda batch: batch)\n"
        "batches = iter(loader)\n"
        "batch = next(batches)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    uses = (lambda: next(batches), lambda: iter(loader), loader.close, loader.state_dict,\n"
        "            lambda: loader.set_epoch(1))\n"
        "    for use in uses:\n"
        "        try:\n"
        "            use()\n"
        "        except forebay.ForkError as error:\n"
        "            print(error)\n"
        "    assert batch.images.any()\n"
        "    del batch, batches, loader, inner\n"
        "    sys.exit(7)\n"
        "_, status = os.waitpid(child, 0)\n"
        "assert os.waitstatus_to_exitcode(status) == 7, status\n"
        "print(sum(1 for _ in batches))\n"
    )
    done = python(code, source)
    assert done.returncode == 0, done.stderr
    *refusals, left = done.stdout.splitlines()
    assert len(refusals) == 5 and all("spawn" in line for line in refusals), done.stdout
    assert left == "9"




def _first(source: str) -> bytes:
    with mapped(source, map_batch=negative) as it:
        return bytes(next(iter(it)).images.tobytes())


def test_spawned_processes_make_their_own(source: str) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        there = pool.map(_first, [source] * 2, chunksize=1)
    assert there == [_first(source)] * 2


def test_which_functions_get_the_info(packed: dict[str, pathlib.Path]) -> None:
    seen: list[Any] = []

    def needs(image: Any, label: int, place: Any) -> Any:
        seen.append(place)
        return image, label

    def has_one(image: Any, label: int, info: Any = None) -> Any:
        seen.append(info)
        return image, label

    def has_another(image: Any, label: int, scale: Any = 1) -> Any:
        seen.append(scale)
        return image, label

    def takes_any(*arguments: Any) -> Any:
        seen.append(len(arguments))
        return arguments

    for function in (needs, has_one, has_another, takes_any):
        with mapped(packed["indexed"], map_sample=function) as it:
            batch = list(it)[0]
        if function in (needs, has_one):
            assert isinstance(seen[0], forebay.SampleInfo)
            assert (seen[0].sample, seen[0].epoch, seen[0].position) == (batch.samples[0], 0, 0)
        else:
            assert set(seen) == {1 if function is has_another else 2}
        seen.clear()


def test_random_numbers_follow_from_the_place(packed: dict[str, pathlib.Path]) -> None:
    """The same with any number of threads, and others each time that a sample comes."""
    made = []
    for threads in (1, 3):
        with mapped(packed["indexed"], map_sample=map_functions.draws, map_threads=threads, repeats=2) as it:
            made.append([batch.images.tobytes() for _ in range(2) for batch in it])
    assert made[0] == made[1]
    rows = np.frombuffer(b"".join(made[0])).reshape(-1, 5)
    assert len(rows) == 2 * (2 * TOTAL // 8 * 8)
    for column in (0, 1):
        assert len(np.unique(rows[:, column])) == len(rows), "epochs and repetitions draw other numbers"


@pytest.mark.parametrize(
    ("shape", "returns", "layout"),
    [
        ((20, 16, 3), None, "nhwc"),
        ((3, 20, 16), None, "nchw"),
        ((1, 20, 16), None, "nchw"),
        ((3, 20, 3), None, None),
        ((20, 16, 9), None, None),
        ((3, 20, 3), "hwc", "nhwc"),
        ((3, 20, 3), "chw", "nchw"),
        ((9, 20, 16), "chw", "nchw"),
        ((20, 16), None, "nhwc"),
        ((20, 16), "chw", None),
    ],
)
def test_layouts_are_recognised_or_declared(packed: dict[str, pathlib.Path], shape: Any, returns: Any, layout: str | None) -> None:
    it = forebay.Mapped(
        loader(packed["indexed"]), map_sample=lambda image, label: (np.zeros(shape), label), returns=returns
    )
    with it:
        if layout is None:
            with pytest.raises(forebay.MapError, match="give returns='hwc' or 'chw'"):
                next(iter(it))
        else:
            assert next(iter(it)).layout == layout


def test_a_function_of_batches_keeps_the_layout_of_samples(packed: dict[str, pathlib.Path]) -> None:
    with mapped(
        packed["indexed"], map_sample=lambda image, label: (image.transpose(2, 0, 1), label), map_batch=tuple
    ) as it:
        assert next(iter(it)).layout == "nchw"
    with pytest.raises(forebay.OptionError, match="option returns is 'nchw'"):
        forebay.Mapped(loader(packed["indexed"]), map_sample=tuple, returns="nchw")  # type: ignore[arg-type]
    with pytest.raises(forebay.OptionError, match="options of map_sample"):
        forebay.Mapped(loader(packed["indexed"]), map_batch=tuple, returns="chw")
