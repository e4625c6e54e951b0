"""`forebay.convert`: datasets of other libraries."""

from __future__ import annotations

import collections
import os
import pathlib
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import forebay
import numpy as np
import pytest
from conftest import png


class Folder:
    """A dataset as torchvision's are: pairs by number."""

    classes = ["cat", "dog", "owl"]

    def __init__(self, length: int = 30, bad: int | None = None) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[Any, int]:
        if number == self.bad:
            raise RuntimeError("a file is gone")
        return (np.full((6, 8, 3), number, np.uint8), number % 3)


def dicts(count: int = 5) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"image": png(8, 6, number), "label": number, "caption": str(number), "score": 0.5, "extra": [1, 2]}


def test_pairs_become_images_and_labels(tmp_path: pathlib.Path) -> None:
    summary = forebay.convert(Folder(), tmp_path / "a", format="indexed")
    assert summary.splits == {"train": 30}
    data = forebay.open(tmp_path / "a")
    assert [record.label for record in data] == [number % 3 for number in range(30)]
    assert data[7].key == "00000007"
    loader = forebay.Loader(tmp_path / "a", batch_size=4, transform=forebay.EvalTransform(4), shuffle=True, drop_last=True)
    assert loader.classes == Folder.classes


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_keep_the_order(tmp_path: pathlib.Path, context: str) -> None:
    with warnings.catch_warnings():
        # Python 3.12 and later warn of a fork where there are threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        forebay.convert(Folder(), tmp_path / "many", workers=3, mp_context=context)
    forebay.convert(Folder(), tmp_path / "one")
    one, many = forebay.open(tmp_path / "one"), forebay.open(tmp_path / "many")
    assert one.fingerprint == many.fingerprint


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_raises_is_named(tmp_path: pathlib.Path, workers: int) -> None:
    with pytest.raises(forebay.ConvertError, match="sample 17 of split 'train'.*a file is gone") as caught:
        forebay.convert(Folder(bad=17), tmp_path / "a", workers=workers, mp_context="spawn")
    assert (caught.value.sample, caught.value.split) == (17, "train")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not (tmp_path / "a/forebay.json").exists()


def test_first_samples_tell_the_types(tmp_path: pathlib.Path) -> None:
    data = {"train": dicts(), "test": list(dicts(2))}
    summary = forebay.convert(data, tmp_path / "a", key="caption", format="indexed")
    assert summary.splits == {"train": 5, "test": 2}
    train = forebay.open(tmp_path / "a").split("train")
    assert [record.key for record in train] == ["0", "1", "2", "3", "4"]
    found = train[3].features
    assert (found["caption"], found["score"], found["extra"]) == ([b"3"], [0.5], [1, 2])


@pytest.mark.parametrize(
    ("given", "labels", "classes"),
    [
        (["owl", "cat", "owl"], [1, 0, 1], ["cat", "owl"]),
        ([2.0, 0.0, 1.0], [2, 0, 1], []),
        ([[0, 0, 1], [1, 0, 0], [0, 1, 0]], [2, 0, 1], []),
    ],
)
def test_labels_of_every_form_are_labels(tmp_path: pathlib.Path, given: list[Any], labels: list[int], classes: list[str]) -> None:
    def check(data: Any, path: pathlib.Path) -> None:
        forebay.convert(data, path, format="indexed")
        made = forebay.open(path)
        assert ([record.label for record in made], list(made.classes)) == (labels, classes)

    check([{"image": png(4, 4, n), "label": label} for n, label in enumerate(given)], tmp_path / "a")
    check([(png(4, 4, n), label) for n, label in enumerate(given)], tmp_path / "b")
    datasets = pytest.importorskip("datasets")
    rows = {"image": [{"bytes": png(4, 4, n), "path": None} for n in range(3)], "label": given}
    check(datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()), tmp_path / "c")


def test_a_label_that_is_no_class_is_refused_or_kept_by_its_type(tmp_path: pathlib.Path) -> None:
    data = [{"image": png(4, 4, 1), "label": 0.5}]
    with pytest.raises(forebay.OptionError, match="column 'label': expected classes, found the float 0.5"):
        forebay.convert(data, tmp_path / "a")
    forebay.convert(data, tmp_path / "a", features={"image": "image", "label": "float"})
    assert forebay.open(tmp_path / "a")[0].features["label"] == [0.5]


def test_columns_are_chosen_renamed_and_keyed(tmp_path: pathlib.Path) -> None:
    forebay.convert(
        dicts(), tmp_path / "a", features={"image": "image", "text": "text"}, rename={"caption": "text"},
        key=lambda sample: sample["label"] + 100, split="validation",
    )  # fmt: skip
    data = forebay.open(tmp_path / "a").split("validation")
    assert data[2].key == "102"
    assert data[2].features.keys() == {"image/encoded", "text"}
    Pair = collections.namedtuple("Pair", "image tag")
    forebay.convert([Pair(png(4, 4, 1), "x")], tmp_path / "b")
    assert forebay.open(tmp_path / "b")[0].features["tag"] == [b"x"]
    forebay.convert([png(4, 4, 1)], tmp_path / "c")
    assert forebay.open(tmp_path / "c")[0].image == png(4, 4, 1)


@pytest.mark.parametrize(
    ("data", "options", "error", "said"),
    [
        ([], {}, forebay.OptionError, "no samples"),
        ([{"x": object()}], {}, forebay.OptionError, "column 'x' cannot be told"),
        ("path", {}, forebay.OptionError, "forebay.convert_files"),
        ({"a": dicts(), "b": [{"image": png(4, 4, 1)}]}, {}, forebay.OptionError, "other features"),
        ({"a": dicts()}, {"split": "b"}, forebay.OptionError, "no 'b'"),
        ([(1, 2, 3)], {"features": {"x": "int"}}, forebay.SampleError, "found 3 values"),
        ([{"x": 1}, {"y": 1}], {}, forebay.SampleError, 'column "x": expected int, found nothing'),
        ([{"x": 1}], {"key": "y"}, forebay.SampleError, "no column 'y'"),
        ([{"x": 1}], {"workers": -1}, forebay.OptionError, "workers"),
        ([{"x": 1}], {"workers": 1, "mp_context": "thread"}, forebay.OptionError, "mp_context"),
        ([{"x": 1}], {"format": "zip"}, forebay.OptionError, "format"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    tmp_path: pathlib.Path, data: Any, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        forebay.convert(data, tmp_path / "a", **options)
    assert not (tmp_path / "a/forebay.json").exists()


def test_a_conversion_is_continued(tmp_path: pathlib.Path) -> None:
    with pytest.raises(forebay.ConvertError):
        forebay.convert(Folder(bad=17), tmp_path / "a", shard_records=4)
    summary = forebay.convert(Folder(), tmp_path / "a", shard_records=4, resume=True)
    forebay.convert(Folder(), tmp_path / "b", shard_records=4)
    assert summary.fingerprint == forebay.open(tmp_path / "b").fingerprint


def test_datasets_of_hugging_face(tmp_path: pathlib.Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "fine": datasets.ClassLabel(names=["cat", "dog", "owl"]),
            "caption": datasets.Value("string"),
            "vector": datasets.Sequence(datasets.Value("float32"), length=2),
            "ids": datasets.Sequence(datasets.Value("int32")),
            "tensor": datasets.Array2D((2, 2), "int16"),
        }
    )

    def rows(count: int) -> dict[str, list[Any]]:
        numbers = range(count)
        return {
            "img": [{"bytes": png(8, 6, n), "path": None} for n in numbers],
            "fine": [n % 3 for n in numbers],
            "caption": [None if n == 1 else f"c{n}" for n in numbers],
            "vector": [[n, 0.5] for n in numbers],
            "ids": [list(range(n)) for n in numbers],
            "tensor": [[[n, 1], [2, 3]] for n in numbers],
        }

    both = datasets.DatasetDict(
        train=datasets.Dataset.from_dict(rows(7), features=features),
        test=datasets.Dataset.from_dict(rows(2), features=features),
    )
    summary = forebay.convert(both, tmp_path / "a", workers=2, mp_context="spawn")
    assert summary.splits == {"train": 7, "test": 2}
    train = forebay.open(tmp_path / "a").split("train")
    assert [record.image for record in train] == [png(8, 6, n) for n in range(7)]
    assert [record.label for record in train] == [n % 3 for n in range(7)]
    found = train[3].features
    assert (found["caption"], found["vector"], found["ids"]) == ([b"c3"], [3, 0.5], [0, 1, 2])
    assert found["tensor"] == [np.array([[3, 1], [2, 3]], "<i2").tobytes()]
    assert "caption" not in train[1].features
    assert forebay.Loader(tmp_path / "a", split="train", batch_size=2, transform=forebay.TrainTransform(32)).classes == ["cat", "dog", "owl"]
    with pytest.raises(forebay.OptionError, match="column 'when'"):
        when = datasets.Features({"when": datasets.Value("timestamp[s]")})
        forebay.convert(datasets.Dataset.from_dict({"when": [1]}, features=when), tmp_path / "b")


def test_processes_that_cannot_read_are_explained(tmp_path: pathlib.Path) -> None:
    class Local(Folder):
        """Not to be found by another process."""

    with pytest.raises(forebay.ConvertError, match="cannot be sent to other processes"):
        forebay.convert(Local(), tmp_path / "a", workers=1, mp_context="spawn")
    with pytest.raises(forebay.ConvertError, match="died"):
        forebay.convert(Dying(), tmp_path / "b", workers=1, mp_context="spawn")
    with pytest.raises(forebay.OptionError, match="found 3 values; name the columns"):
        forebay.convert([(png(4, 4, 1), 0, "x")], tmp_path / "c")


class Dying(Folder):
    """Ends the process that reads it."""

    def __getitem__(self, number: int) -> tuple[Any, int]:
        if number > 10:
            os._exit(1)
        return super().__getitem__(number)


KILLED = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
import forebay
from test_convert import Folder

class Slow(Folder):
    def __getitem__(self, number):
        if number >= 2:
            # One write: lines of two processes do not mix.
            os.write(1, b"%d\\n" % os.getpid())
            time.sleep(600)
        return super().__getitem__(number)

if __name__ == "__main__":
    forebay.convert(Slow(100000), {path!r}, workers=2, mp_context={context!r})
"""


def is_running(pid: int) -> bool:
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    # A process that no parent waits for.
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="there is no /proc")
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_end_with_a_killed_parent(tmp_path: pathlib.Path, context: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(KILLED.format(tests=os.path.dirname(__file__), path=str(tmp_path / "a"), context=context))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = {int(parent.stdout.readline()) for _ in range(2)}
        assert len(workers) == 2 and all(is_running(pid) for pid in workers)
        parent.kill()
    end = time.monotonic() + 60
    while any(is_running(pid) for pid in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(is_running(pid) for pid in workers)


def test_messages_name_some_columns(tmp_path: pathlib.Path) -> None:
    splits = {f"split{number}": [{"x": 1}] for number in range(100_000)}
    with pytest.raises(forebay.OptionError, match="split9 and 99990 more") as raised:
        forebay.convert(splits, tmp_path / "a", split="other")
    assert len(str(raised.value)) < 400


INTERRUPTED = """
import sys, time
sys.path.insert(0, {tests!r})
import forebay
from test_convert import Folder

class Slow(Folder):
    def __getitem__(self, number):
        if number == 20:
            print("reading", flush=True)
        time.sleep(0.02 if number < 20 else 0.5)
        return super().__getitem__(number)

forebay.convert(Slow(100000), {path!r}, workers={workers}, mp_context="fork")
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_ends_a_conversion(tmp_path: pathlib.Path, workers: int) -> None:
    code = INTERRUPTED.format(tests=os.path.dirname(__file__), path=str(tmp_path / "a"), workers=workers)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "reading\n"
        # As a terminal does: to all processes of the group.
        os.killpg(child.pid, signal.SIGINT)
        _, error = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGINT and "KeyboardInterrupt" in error
    assert not (tmp_path / "a/forebay.json").exists()
