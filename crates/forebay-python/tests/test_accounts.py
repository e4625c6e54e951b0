"""Faults x formats: what `pack`, `convert`, `forebay.Writer` and `forebay.convert` make of each fault, in each format.

A fault is a row, a format a column. Each cell is a small source, generated here, and what has to become of it: samples,
labels, the exit code, and whether anything is said. A cell that cannot occur says why. docs/faults.md is the table:
UPDATE_DOCS=1 writes it.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import tempfile
import unicodedata
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import forebay
from account_sources import FORMATS, PICTURES, CannotOccur, Files, Sample, Splits, png, tfrecord
from conftest import forebay_command
from forebay._forebay import _main

ROOT = pathlib.Path(__file__).resolve().parents[3]
# These are packed, and those written by Python; all others are converted.
PACKED = ("directory", "archive")
PYTHON = ("forebay.Writer", "forebay.convert")
# Annotations of boxes: their images have no labels.
WITHOUT_LABELS = ("coco", "voc", "openimages")
# Their images are files that a list or annotations name.
LISTED = ("list", *WITHOUT_LABELS)
# Their files have an end. HDF5 and LMDB may have more in theirs, and images are read up to their own.
WITH_END = ("tfrecord", "webdataset", "mds", "litdata", "parquet", "arrayrecord", "safetensors", "npz", "archive")
# Their boxes are in pixels; OpenImages has fractions of the image.
IN_PIXELS = ("coco", "voc")
# Their files are splits by their names.
WITH_SPLITS = ("tfrecord", "webdataset", "parquet", "arrayrecord")
NAMES = ["cat", "dog", "cat", "owl"]


def samples(labels: list[Any] | None = None) -> list[Sample]:
    made: list[Sample] = [{"key": f"{n}.png", "image": PICTURES[n]} for n in range(4)]
    for sample, label in zip(made, labels or [], strict=False):
        sample["label"] = label
    return made


def with_image(image: bytes | None) -> Files:
    """One bad image among four, of four classes' worth of labels that every format can hold."""
    made = samples()
    made[1]["image"] = image
    return [made]


@dataclass
class Fault:
    """A row: the source, and what has to become of it."""

    title: str
    files: Files
    exit: int | tuple[int, ...] = 0
    labels: list[int | None] | None = None
    classes: list[str] | None = None
    packed: int | None = 4
    # Part of what is said; nothing may be said where it is empty and the exit code is 0.
    says: str = ""
    options: list[str] = field(default_factory=list)
    # Changes the source when it is there.
    after: Callable[[pathlib.Path], None] | None = None
    # Only these formats: the others cannot have it, for this reason.
    only: tuple[str, ...] = ()
    reason: str = ""


def one_hot(at: int) -> list[int]:
    return [int(n == at) for n in range(3)]


def twice() -> Files:
    made = samples()
    made[2]["key"] = made[1]["key"]
    return [made]


def odd_keys() -> Files:
    """Keys with dots, spaces, a backslash and an accent."""
    made = samples([1, 0, 1, 2])
    for sample, stem in zip(made, ["a b", "1.5x", "c\\d", "caf\u00e9"], strict=True):
        sample["key"] = f"{stem}.png"
    return [made]


def data_file(source: pathlib.Path) -> pathlib.Path:
    """The largest file of a source that holds samples."""
    root = source.parent if source.suffix == ".csv" else source
    files = [source] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
    images = [path for path in files if path.suffix == ".png"]
    return max(images or files, key=lambda path: (path.stat().st_size, path.name))


def add_behind(source: pathlib.Path) -> None:
    path = data_file(source)
    path.write_bytes(path.read_bytes() + b"more" * 300)


def cut(source: pathlib.Path) -> None:
    path = data_file(source)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])


def remove_one(source: pathlib.Path) -> None:
    data_file(source).unlink()


def decompose_names(source: pathlib.Path) -> None:
    """Rename files as macOS writes their names."""
    root = source if source.is_dir() else source.parent
    for path in list(root.rglob("caf*.png")):
        path.rename(path.with_name(unicodedata.normalize("NFD", path.name)))


def add_system_files(source: pathlib.Path) -> None:
    root = source if source.is_dir() else source.parent
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "__MACOSX/._0.png", "@eaDir/0.png/SYNO.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def of_sizes(*sizes: tuple[int, int]) -> Files:
    """Pictures of other sizes than the annotations say, which is 8 x 6."""
    made = samples()
    for number, (sample, size) in enumerate(zip(made, sizes, strict=True)):
        sample["image"] = png(20 * number, *size)
    return [made]


def reordered() -> Files:
    first, second = samples([1, 0, 1, 2])[:2], samples([1, 0, 1, 2])[2:]
    return [first, [dict(reversed(sample.items())) for sample in second]]


FAULTS = {
    "ordinary": Fault("integers as labels", [samples([1, 0, 1, 2])], labels=[1, 0, 1, 2]),
    "text": Fault("names of classes as labels", [samples(NAMES)], labels=[0, 1, 0, 2], classes=["cat", "dog", "owl"]),
    "float": Fault("whole floats as labels", [samples([1.0, 0.0, 1.0, 2.0])], labels=[1, 0, 1, 2]),
    "half": Fault("floats that are no classes", [samples([0.5, 0.25, 0.5, 0.75])], exit=1, says="--no-labels"),
    "one-hot": Fault("one-hot lists as labels", [samples([one_hot(1), one_hot(0), one_hot(1), one_hot(2)])], labels=[1, 0, 1, 2]),
    "numbers": Fault("names of classes that are numbers", [samples(["9", "10", "9", "11"])], labels=[2, 0, 2, 1], says="--class-order natural"),
    "one-absent": Fault("one sample without a label", [samples(["cat", "dog", "cat", None])], exit=3, says="without a label"),
    "none": Fault("no labels at all", [samples()]),
    "image-empty": Fault("an image without bytes", with_image(b""), exit=3, packed=3),
    "image-null": Fault("a sample without an image", with_image(None), exit=3, packed=3),
    "image-html": Fault("a page of HTML as an image", with_image(b"<html>not found</html>"), exit=3, packed=3),
    "image-cut": Fault("an image that is cut short", with_image(PICTURES[1][:30]), exit=3, packed=3),
    "all-bad": Fault("no sample with an image", [[sample | {"image": b"<html>"} for sample in samples()]], exit=1),
    "key-twice": Fault("two samples of one key", twice(), exit=3, packed=3),
    "zero": Fault("zero samples", [[]], exit=1),
    "column-missing": Fault(
        "the label is missing in a file", [samples([1, 0])[:2], samples([1, 0, 1])[2:3], samples()[3:]], exit=(1, 3), packed=None
    ),
    "split-unlabelled": Fault(
        "a split without labels", Splits(["train", "test"], [samples([1, 0])[:2], samples()[2:]]), labels=[None, None, 1, 0],
        only=WITH_SPLITS, reason="files are no splits by their names",
    ),  # fmt: skip
    "dictionary": Fault("dictionaries as labels", [samples([{"id": 1}, {"id": 0}, {"id": 1}, {"id": 2}])], exit=1, says="label"),
    "keys": Fault("keys with dots, spaces, backslashes and accents", odd_keys(), labels=[1, 0, 1, 2]),
    "names-decomposed": Fault(
        "file names in another Unicode form", odd_keys(), labels=[1, 0, 1, 2], says="Unicode form", after=decompose_names,
        only=LISTED, reason="no list names its files",
    ),  # fmt: skip
    "behind": Fault(
        "bytes behind the end", [samples([1, 0, 1, 2])], exit=(1, 3), packed=None, after=add_behind,
        only=WITH_END, reason="its files, or those of images, may have bytes behind their contents",
    ),  # fmt: skip
    "cut": Fault("a file that is cut short", [samples([1, 0, 1, 2])], exit=(1, 3), packed=None, after=cut),
    "gone": Fault("a file that is gone", [samples([1, 0])[:2], samples([1, 0, 1, 2])[2:]], exit=(1, 3), packed=None, after=remove_one),
    "listed-gone": Fault(
        "a listed image that is gone", [samples([1, 0, 1, 2])], exit=3, packed=3, after=remove_one, only=LISTED, reason="no list names its files",
    ),  # fmt: skip
    "size-scaled": Fault(
        "annotations of another size of the image", of_sizes((8, 6), (16, 12), (24, 18), (8, 6)), says="scale",
        only=IN_PIXELS, reason="samples have no boxes in pixels",
    ),  # fmt: skip
    "size-differs": Fault(
        "annotations of another image", of_sizes((8, 6), (16, 6), (8, 6), (8, 6)), exit=3, packed=3,
        only=IN_PIXELS, reason="samples have no boxes in pixels",
    ),  # fmt: skip
    "system": Fault("files of systems beside the data", [samples([1, 0, 1, 2])], labels=[1, 0, 1, 2], after=add_system_files),
    "columns-reordered": Fault("columns in another order in the second file", reordered(), labels=[1, 0, 1, 2]),
}


# What a format makes of a fault by its own definition.
FORMATS_DIFFER: dict[tuple[str, str], dict[str, Any]] = {
    # The text of a member is the name of a class, whatever it looks like.
    (FAULTS["half"].title, "webdataset"): {"exit": 0, "says": "", "classes": ["0.25", "0.5", "0.75"]},
    # A cell with a point is no class, in a list of integers and names.
    (FAULTS["half"].title, "list"): {"says": "is not an integer"},
    # Text that is a number is one.
    (FAULTS["numbers"].title, "webdataset"): {"says": "", "labels": [9, 10, 9, 11]},
    (FAULTS["numbers"].title, "list"): {"says": "", "labels": [9, 10, 9, 11]},
    # Members of one name are one sample, which has the image twice.
    (FAULTS["key-twice"].title, "webdataset"): {"packed": 2},
    # Names are cut at their first dots, so `1.5x` is a sample `1` without an image.
    (FAULTS["keys"].title, "webdataset"): {"exit": 3, "packed": 3, "labels": None},
    # All splits of `datasets` have the same columns.
    (FAULTS["split-unlabelled"].title, "parquet"): {"exit": 1, "says": "the same columns"},
}


COLUMNS = (*FORMATS, *PYTHON)


def account_of(dataset: pathlib.Path) -> dict[str, Any]:
    account: dict[str, Any] = json.loads((dataset / "forebay.json").read_text())["account"]
    return account


def expected(fault: Fault, name: str) -> Fault:
    """The row as one format defines it."""
    change = FORMATS_DIFFER.get((fault.title, name))
    if name in PYTHON and fault.exit == 3 and fault.packed != 4:
        # A sample that does not fit is an exception, and the program decides.
        change = {"exit": 1}
    elif name in PYTHON and fault.title == FAULTS["half"].title:
        change = {"says": "label"}
    return replace(fault, **change) if change else fault


@dataclass
class Outcome:
    """The outcome of a cell."""

    reason: str = ""
    problem: str = ""
    code: int = 0


def run(row: str, name: str, root: pathlib.Path) -> Outcome:
    fault = expected(FAULTS[row], name)
    try:
        if fault.only and name not in fault.only:
            raise CannotOccur(fault.reason)
        if name in PYTHON and fault.after is not None:
            raise CannotOccur("a program has no files")
        source = FORMATS[name](root, fault.files) if name in FORMATS else root
    except CannotOccur as reason:
        return Outcome(reason=str(reason))
    if fault.after is not None:
        fault.after(source)
    out = root.parent / f"{root.name}-out"
    if name in PYTHON:
        done = written(name, [sample for file in fault.files for sample in file], out)
    elif name in PACKED:
        done = command("pack", source, out, "--format", "indexed", "--no-shuffle", "--label-base", "0", "--split", "train")
    else:
        done = command("convert", source, out, "--from", name, "--format", "indexed", *fault.options)
    problem = check(fault, name, done.returncode, done.stdout + done.stderr, done.stderr, out)
    return Outcome(problem=problem and f"{row} x {name}: {problem}\n{done.stdout}{done.stderr}", code=done.returncode)


def written(name: str, rows: list[Sample], out: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Writes samples by Python. Exceptions are exit code 1, problems of the account 3."""
    said: list[str] = []
    code = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            rows = [{name: value for name, value in row.items() if name != "split"} for row in rows]
            if name == "forebay.convert":
                summary = forebay.convert(rows, out, format="indexed")
            else:
                labels = [row["label"] for row in rows if row.get("label") is not None]
                features = {"image": "image"} | ({"label": "label"} if any("label" in row for row in rows) else {})
                classes: Any = "auto" if any(isinstance(label, str) for label in labels) else None
                with forebay.Writer(out, features=features, format="indexed", classes=classes) as writer:
                    for row in rows:
                        writer.write(**row)
                assert writer.summary is not None
                summary = writer.summary
            code = 3 if summary.account.get("problems") else 0
        except forebay.Error as error:
            code, said = 1, [str(error)]
    said += [f"warning: {warning.message}" for warning in caught]
    return subprocess.CompletedProcess([], code, "", "\n".join(said))


def check(fault: Fault, name: str, code: int, said: str, stderr: str, out: pathlib.Path) -> str:
    """Returns the difference from the expected outcome of a cell; empty if there is none."""
    if "panicked" in said:
        return "it panicked"
    expects = fault.exit if isinstance(fault.exit, tuple) else (fault.exit,)
    if code not in expects:
        return f"exit code {code}, expected one of {expects}"
    if fault.says not in said:
        return f"{fault.says!r} is not said"
    if code == 1:
        return "something was published" if (out / "forebay.json").exists() else ""
    if code == 0 and not fault.says and "warning" in stderr:
        return "there is a warning about ordinary data"
    account = account_of(out)
    packed = sum(split["samples"] for split in account["packed"].values())
    left_out = sum(account.get("left_out", {}).values())
    ignored = sum(account.get("ignored", {}).values())
    if account["read"] != packed + left_out + ignored + account.get("outside", 0):
        return f"the account does not add up: {account}"
    if fault.packed is not None and packed != fault.packed:
        return f"{packed} samples, expected {fault.packed}"
    data = forebay.open(out)
    records = [record for split in data.splits for record in data.split(split)]
    labels = [record.label if record.label is not None and record.label >= 0 else None for record in records]
    if fault.labels is not None and name in PACKED:
        # Records of directories are in the order of their classes.
        if sorted(labels, key=str) != sorted(fault.labels, key=str):
            return f"labels {labels}, expected {fault.labels}"
    elif fault.labels is not None and name not in WITHOUT_LABELS and labels != fault.labels:
        return f"labels {labels}, expected {fault.labels}"
    if fault.classes is not None and list(data.classes) != fault.classes:
        return f"classes {list(data.classes)}, expected {fault.classes}"
    verified = command("verify", out)
    return "" if verified.returncode == 0 else f"verify: {verified.stderr}"


def command(*args: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process, which starts it in no time, and keeps what it prints."""
    said = []
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        kept = [os.dup(number) for number in (1, 2)]
        try:
            for number, file in ((1, out), (2, err)):
                os.dup2(file.fileno(), number)
            code = _main(["forebay", *map(str, args)])
        finally:
            for number, own in zip((1, 2), kept, strict=True):
                os.dup2(own, number)
                os.close(own)
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess([], code, *said)


def cell(row: str, name: str, base: pathlib.Path) -> Outcome:
    """One cell, in a process that runs nothing else meanwhile."""
    root = base / f"{row}-{name}"
    root.mkdir()
    return run(row, name, root)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Outcome]:
    """Every cell, several at once."""
    base = tmp_path_factory.mktemp("matrix")
    places = list(itertools.product(FAULTS, COLUMNS))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor((os.cpu_count() or 1) + 1, mp_context=context) as processes:
        rows, names = zip(*places, strict=True)
        found = processes.map(cell, rows, names, itertools.repeat(base), chunksize=8)
        return dict(zip(places, found, strict=True))


@pytest.mark.parametrize("row", FAULTS)
def test_fault_in_every_format(row: str, cells: dict[tuple[str, str], Outcome]) -> None:
    problems = [cells[row, name].problem for name in COLUMNS if cells[row, name].problem]
    assert not problems, "\n".join(problems)


def test_every_format_has_a_column() -> None:
    done = forebay_command("convert", "--help")
    listed = re.search(r"Format of SRC: ([a-z0-9, ]+)", " ".join(done.stdout.split()))
    assert listed is not None, done.stdout
    names = {name.strip() for name in listed.group(1).split(",")}
    missing = {name for name in names if name not in ("dataset", "")} - set(FORMATS)
    assert not missing, f"these formats have no column: {missing}"


def test_every_cell_that_cannot_occur_says_why(cells: dict[tuple[str, str], Outcome]) -> None:
    run_cells = [place for place, outcome in cells.items() if not outcome.reason]
    # Packages that are missing take their columns with them, but not all of the matrix.
    assert len(run_cells) > len(cells) / 3
    assert all(len(outcome.reason) > 10 for outcome in cells.values() if outcome.reason)


TABLE_HEAD = """# Faults of sources

For people whose sources have faults: the outcome of each in each format, as the tests find it.
**0** all is packed and nothing is said, but for a warning where labels could be meant otherwise;
**3** the rest is packed, and the account and the report name what is not; **1** an error that names
the fault, and nothing is written. A dot stands where the fault cannot occur. In Python, 1 is an
exception and 3 a warning. This page is generated.
"""


def table(cells: dict[tuple[str, str], Outcome]) -> str:
    """The outcomes, in parts of columns that fit a page."""
    text = TABLE_HEAD
    for names in (COLUMNS[:10], COLUMNS[10:]):
        text += f"\n| | {' | '.join(names)} |\n| --- |{' --- |' * len(names)}\n"
        for row, fault in FAULTS.items():
            # If both codes are right, the version of a format's package decides which one it is.
            codes = [str(cells[row, name].code) if isinstance(fault.exit, int) else "1 or 3" for name in names]
            shown = ["." if cells[row, name].reason else code for name, code in zip(names, codes, strict=True)]
            text += f"| {fault.title} | {' | '.join(shown)} |\n"
    return text


def test_table_of_documents(cells: dict[tuple[str, str], Outcome]) -> None:
    if missing := {name for (_, name), outcome in cells.items() if "not installed" in outcome.reason}:
        pytest.skip(f"the packages of {', '.join(sorted(missing))} are not installed")
    page = ROOT / "docs" / "faults.md"
    if os.environ.get("UPDATE_DOCS") == "1":
        page.write_text(table(cells))
    assert page.read_text() == table(cells), "UPDATE_DOCS=1 with this test writes docs/faults.md"


def test_splits_that_are_not_selected_are_counted(tmp_path: pathlib.Path) -> None:
    for number, place in enumerate(["train/a", "train/b", "val/a", "val/b"]):
        (tmp_path / "src" / place).mkdir(parents=True)
        (tmp_path / "src" / place / "1.png").write_bytes(PICTURES[number])
    done = forebay_command("pack", tmp_path / "src", tmp_path / "out", "--split", "val")
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    account = account_of(tmp_path / "out")
    assert (account["read"], account["outside"]) == (4, 2)
    assert account["roles"]["split"] == {"source": "val is validation"}


def test_verify_compares_the_account(tmp_path: pathlib.Path) -> None:
    (tmp_path / "src").mkdir()
    done = forebay_command("convert", tfrecord(tmp_path / "src", [samples([1, 0, 1, 2])]), tmp_path / "out", "--format", "indexed")
    assert done.returncode == 0, done.stderr
    assert account_of(tmp_path / "out")["packed"] == {"train": {"samples": 4, "labelled": 4}}
