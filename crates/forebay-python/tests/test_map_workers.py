"""Functions of samples in processes: results, random numbers, states, where functions come from, layouts and options."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest

import forebay
import map_functions
from conftest import Packed, png, python
from test_loader import TOTAL, content, epochs, loader
from test_map import mapped


def arrays(batch: Any) -> list[Any]:
    return [array.tobytes() for array in (batch.images, batch.labels, batch.samples, batch.padding)]


# Results.


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("function", [map_functions.same, map_functions.half])
def test_results_are_those_of_threads(source: str, function: Any, workers: int) -> None:
    options: dict[str, Any] = {"drop_last": False, "pad_last": True, "map_sample": function}
    with mapped(source, **options) as threads, forebay.Mapped(
        loader(source, drop_last=False, pad_last=True), map_sample=function, map_workers=workers
    ) as processes:
        for _ in range(2):
            for before, after in zip(threads, processes, strict=True):
                assert content_of(before) == content_of(after)


def content_of(batch: Any) -> Any:
    return (batch.epoch, batch.step, batch.position, batch.layout, batch.images.dtype, batch.images.shape, batch.labels.dtype,
            batch.failed.tolist(), *arrays(batch))  # fmt: skip


def test_other_arrays_stay_with_the_batch(tmp_path: pathlib.Path) -> None:
    with forebay.Writer(tmp_path / "set", features={"image": "image", "label": "label", "caption": "text"}) as writer:
        for number in range(10):
            writer.write(image=png(40, 40, number), label=number, caption=f"picture {number}")
    options: dict[str, Any] = {"batch_size": 4, "transform": forebay.EvalTransform(32), "drop_last": False}
    columns: dict[str, Any] = {**options, "columns": ["caption"]}
    with forebay.Loader(tmp_path / "set", **columns) as plain, forebay.Mapped(
        forebay.Loader(tmp_path / "set", **columns), map_sample=map_functions.same, map_workers=2
    ) as it:
        for before, after in zip(plain, it, strict=True):
            assert list(after["caption"]) == [f"picture {sample}" for sample in before.samples]
    mixed: dict[str, Any] = {**options, "drop_last": True, "transform": forebay.TrainTransform(32), "batch_transform": forebay.Mixup()}
    with forebay.Loader(tmp_path / "set", **mixed) as plain, forebay.Mapped(
        forebay.Loader(tmp_path / "set", **mixed), map_sample=map_functions.same, map_workers=2
    ) as it:
        for before, after in zip(plain, it, strict=True):
            assert before.labels_b is not None and before.labels_b.tolist() == after.labels_b.tolist()
            assert before.lam is not None and before.lam.tolist() == after.lam.tolist()


def test_arrays_outlive_their_batch_and_the_loader(packed: Packed) -> None:
    """Also when all batches of an epoch are kept, more than there are slots at first."""
    whole = epochs(packed["indexed"], 3)
    with forebay.Mapped(loader(packed["indexed"]), map_sample=map_functions.same, map_workers=2) as it:
        kept = [batch for _ in range(3) for batch in it]
        assert [batch.images.tobytes() for batch in kept] == [batch[6] for batch in whole]
        part = kept[0].images[3:]
        kept.clear()
    assert part.tobytes() == whole[0][6][3 * 32 * 32 * 3 :]


def test_memory_is_used_again(packed: Packed) -> None:
    with forebay.Mapped(loader(packed["indexed"]), map_sample=map_functions.same, map_workers=2) as it:
        sizes = []
        for _ in range(4):
            for _batch in it:
                pass
            assert it._workers is not None
            sizes.append(os.fstat(it._workers._memory.fd).st_size)
        assert sizes[1] == sizes[3], sizes


def test_a_function_of_batches_comes_after_it(packed: Packed) -> None:
    with mapped(packed["indexed"], map_sample=map_functions.half, map_batch=lambda batch: {"mean": batch.images.mean()}) as threads:
        means = [item["mean"] for item in threads]
    with forebay.Mapped(
        loader(packed["indexed"]), map_sample=map_functions.half, map_workers=2,
        map_batch=lambda batch: {"mean": batch.images.mean()},
    ) as it:  # fmt: skip
        assert [item["mean"] for item in it] == means


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_types_of_the_loader(packed: Packed, dtype: Any) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    whole = epochs(packed["indexed"], dtype=dtype)
    with forebay.Mapped(loader(packed["indexed"], dtype=dtype), map_sample=map_functions.same, map_workers=1) as it:
        assert [batch.images.tobytes() for batch in it] == [batch[6] for batch in whole]


def test_contents_of_a_batch_are_complete(packed: Packed) -> None:
    """The digest of an epoch is that of the loader behind."""
    with loader(packed["indexed"]) as plain, forebay.Mapped(
        loader(packed["indexed"]), map_sample=map_functions.same, map_workers=2
    ) as it:
        assert [content(batch)[:3] for batch in plain] == [(batch.epoch, batch.step, batch.position) for batch in it]
        assert plain.epoch_digest() == it.epoch_digest()


# Random numbers and states.


@functools.cache
def drawn(path: pathlib.Path, kind: str, number: int) -> list[list[Any]]:
    """Two epochs of random numbers; each sample comes twice in an epoch."""
    options: dict[str, Any] = {f"map_{kind}": number}
    with forebay.Mapped(loader(path, repeats=2), map_sample=map_functions.draws, **options) as it:
        return [arrays(batch) for _ in range(2) for batch in it]


@pytest.mark.parametrize(("kind", "number"), [("threads", 3), ("workers", 1), ("workers", 3)])
def test_random_numbers_do_not_depend_on_threads_and_processes(packed: Packed, kind: str, number: int) -> None:
    wanted = drawn(packed["indexed"], "threads", 1)
    assert drawn(packed["indexed"], kind, number) == wanted
    rows = np.concatenate([np.frombuffer(images).reshape(-1, 5) for images, *_ in wanted])
    assert len(rows) == 2 * (2 * TOTAL // 8 * 8)
    for column in (0, 1):
        assert len(np.unique(rows[:, column])) == len(rows), "epochs and repetitions draw other numbers"


@pytest.mark.parametrize("kind", ["threads", "workers"])
def test_random_numbers_after_a_resume(packed: Packed, kind: str) -> None:
    wanted = drawn(packed["indexed"], "threads", 1)
    options: dict[str, Any] = {"map_sample": map_functions.draws, f"map_{kind}": 2}
    with forebay.Mapped(loader(packed["indexed"], repeats=2), **options) as it:
        batches = iter(it)
        got = [arrays(next(batches)) for _ in range(7)]
        state = it.state_dict()
    with forebay.Mapped(loader(packed["indexed"], repeats=2), **options) as it:
        it.load_state_dict(state)
        got += [arrays(batch) for _ in range(2) for batch in it]
    assert got[: len(wanted)] == wanted


def test_random_numbers_do_not_depend_on_ranks(packed: Packed) -> None:
    """A sample draws the same, whichever rank it comes to."""

    def rows(world_size: int) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []
        for rank in range(world_size):
            inner = loader(packed["indexed"], batch_size=8 // world_size, rank=rank, world_size=world_size)
            with forebay.Mapped(inner, map_sample=map_functions.draws, map_workers=1) as it:
                found += [tuple(row) for batch in it for row in batch.images.tolist()]
        return sorted(found)

    assert rows(1) == rows(2)


def test_global_generators_are_seeded(packed: Packed) -> None:
    made = []
    for workers in (1, 3):
        with forebay.Mapped(loader(packed["indexed"]), map_sample=map_functions.draws_globally, map_workers=workers) as it:
            made.append([batch.images.tobytes() for batch in it])
    assert made[0] == made[1]
    rows = np.frombuffer(b"".join(made[0])).reshape(-1, 3)
    assert len(np.unique(rows[:, 0])) == len(np.unique(rows[:, 1])) == len(rows)


def test_states_count_what_was_handed_out(packed: Packed) -> None:
    whole = epochs(packed["indexed"], 2)
    with loader(packed["indexed"]) as plain:
        states = [plain.state_dict()] + [plain.state_dict() for _ in range(2) for _ in plain]
    with forebay.Mapped(loader(packed["indexed"]), map_sample=map_functions.same, map_workers=2, ahead=3) as it:
        assert [it.state_dict()] + [it.state_dict() for _ in range(2) for _ in it] == states
        for done in (0, 3, 6):
            it.load_state_dict(states[done])
            batches = iter(it)
            assert [next(batches).images.tobytes() for _ in range(2)] == [batch[6] for batch in whole[done : done + 2]]


# Where functions come from.


SCRIPT = """
    import sys
    import numpy as np
    import forebay

    SCALE = 2

    class Mine(Exception):
        pass

    def scaled(image, label):
        if label == int(sys.argv[2]):
            raise Mine("label")
        return image[:, :, :1].astype(np.float32) * SCALE, label

    {guard}
        inner = forebay.Loader(sys.argv[1], batch_size=8, transform=forebay.TrainTransform(32))
        loader = forebay.Mapped(inner, map_sample=scaled, map_workers=2)
        try:
            print([batch.images.shape for batch in loader][0])
        except forebay.MapError as error:
            print(type(error.__cause__) is Mine, error)
"""


@pytest.mark.parametrize("how", ["file", "module"])
def test_a_function_of_the_script(packed: Packed, tmp_path: pathlib.Path, how: str) -> None:
    path = tmp_path / "train_it.py"
    path.write_text(textwrap.dedent(SCRIPT.format(guard="if __name__ == '__main__':")))
    command = [sys.executable, os.fspath(path)] if how == "file" else [sys.executable, "-m", "train_it"]
    for label, said in ((7, "(8, 32, 32, 1)"), (1, "True map_sample raised Mine('label') at sample")):
        done = subprocess.run(
            [*command, os.fspath(packed["indexed"]), str(label)], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
        assert done.returncode == 0 and done.stdout.startswith(said), (done.stdout, done.stderr)


def test_a_script_without_a_guard(packed: Packed, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train_it.py"
    path.write_text(textwrap.dedent(SCRIPT.format(guard="if True:")))
    done = subprocess.run([sys.executable, path, packed["indexed"], "7"], capture_output=True, text=True, timeout=120)
    assert "put what it runs under if __name__ == '__main__'" in done.stdout, (done.stdout, done.stderr)


def test_functions_that_need_cloudpickle(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = 3

    def shifted(image: Any, label: int) -> Any:
        return image, label + offset

    with monkeypatch.context() as without:
        without.setitem(sys.modules, "cloudpickle", None)
        for function in (shifted, lambda image, label: (image, label)):
            with pytest.raises(forebay.OptionError, match="define it in a module, or install cloudpickle"):
                forebay.Mapped(loader(packed["indexed"]), map_sample=function, map_workers=1)
    pytest.importorskip("cloudpickle")
    with forebay.Mapped(loader(packed["indexed"]), map_sample=shifted, map_workers=1) as it, loader(packed["indexed"]) as plain:
        assert [batch.labels.tolist() for batch in it] == [(batch.labels + 3).tolist() for batch in plain]
    with pytest.raises(forebay.OptionError, match="define it in a module"):
        forebay.Mapped(loader(packed["indexed"]), map_sample=functools.partial(map_functions.same, threading.Lock()), map_workers=1)


def test_a_function_of_a_notebook(packed: Packed) -> None:
    code = (
        "import sys, forebay\n"
        "if sys.argv[2] == 'without': sys.modules['cloudpickle'] = None\n"
        "def same(image, label): return image, label\n"
        "loader = forebay.Loader(sys.argv[1], batch_size=8, transform=forebay.TrainTransform(32))\n"
        "print(sum(1 for _ in forebay.Mapped(loader, map_sample=same, map_workers=1)))\n"
    )
    done = python(code, os.fspath(packed["indexed"]), "without")
    assert "a notebook or an interactive session; define it in a module, or install cloudpickle" in done.stderr
    pytest.importorskip("cloudpickle")
    done = python(code, os.fspath(packed["indexed"]), "with")
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")


def test_a_module_that_workers_cannot_import(packed: Packed, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "in_trainers_only.py"
    module.write_text("import os\nif os.getpid() != %d: raise RuntimeError('of the module')\ndef f(i, l): return i, l\n" % os.getpid())
    monkeypatch.syspath_prepend(os.fspath(tmp_path))
    import in_trainers_only  # type: ignore[import-not-found]

    with forebay.Mapped(loader(packed["indexed"]), map_sample=in_trainers_only.f, map_workers=2) as it:
        with pytest.raises(forebay.MapError, match="cannot import map_sample: RuntimeError.'of the module'") as caught:
            next(iter(it))
        assert isinstance(caught.value.__cause__, RuntimeError) and "in_trainers_only.py" in str(caught.value)


def test_a_worker_has_what_its_function_needs_alone(packed: Packed) -> None:
    with forebay.Mapped(loader(packed["indexed"]), map_sample=map_functions.about_the_process, map_workers=2) as it:
        rows = np.concatenate([batch.images for batch in it])
    assert 1 <= len(set(rows[:, 0])) <= 2 and os.getpid() not in rows[:, 0]
    assert rows[:, 1].max() < 80 * 1024, "KiB of memory, shared pages counted in parts"
    assert not rows[:, 2].any(), "workers import no native code of Forebay"


def test_no_module_of_the_package_hides_one_of_python() -> None:
    """A worker is started by the path of its file, so the directory of the package comes first on its path."""
    names = {path.stem for path in pathlib.Path(forebay.__file__).parent.iterdir()}
    assert not names & set(sys.stdlib_module_names)


# Options and layouts.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"map_workers": 0}, "option map_workers is 0"),
        ({"map_workers": 2, "map_threads": 2}, "map_threads and map_workers"),
        ({"map_workers": 2, "map_timeout": 0}, "option map_timeout is 0"),
        ({"map_timeout": 3}, "map_timeout is an option of map_workers"),
        ({"returns": "nchw"}, "option returns is 'nchw'"),
        ({"map_sample": None, "map_batch": tuple, "map_workers": 2}, "options of map_sample"),
        ({"map_sample": None, "map_batch": tuple, "returns": "chw"}, "options of map_sample"),
    ],
)
def test_options_that_cannot_work(packed: Packed, options: Any, said: str) -> None:
    with pytest.raises(forebay.OptionError, match=said):
        forebay.Mapped(loader(packed["indexed"]), **{"map_sample": map_functions.same, **options})


def test_other_systems_are_refused(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(forebay.OptionError, match="Linux"):
        forebay.Mapped(loader(packed["indexed"]), map_sample=map_functions.same, map_workers=2)


@pytest.mark.parametrize("options", [{"map_threads": 2}, {"map_workers": 2}])
def test_torch_permutes_nothing_that_is_planes(packed: Packed, options: Any) -> None:
    torch = pytest.importorskip("torch")
    whole = epochs(packed["indexed"])
    with forebay.torch.Loader(
        packed["indexed"], batch_size=8, transform=forebay.TrainTransform(32), map_sample=map_functions.planes, **options
    ) as it:
        for (images, _), batch in zip(it, whole, strict=True):
            assert images.shape == (8, 3, 32, 20) and images.is_contiguous()
            given = np.frombuffer(batch[6], np.uint8).reshape(8, 32, 32, 3).transpose(0, 3, 1, 2)[..., :20]
            assert torch.equal(images, torch.from_numpy(given.copy()))
