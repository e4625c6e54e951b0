"""`forebay.Writer`: values of every kind, refusals, and writers that are continued."""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import subprocess
import sys
import tarfile
import textwrap
import threading
import types
from typing import Any

import forebay
import numpy as np
import pytest
from conftest import forebay_command, png

FEATURES = {"image": "image", "label": "label", "caption": "text"}


def sample(number: int) -> dict[str, Any]:
    return {"image": png(40, 30, number), "label": number % 3, "caption": f"é {number}"}


def write(path: pathlib.Path, count: int = 12, **options: Any) -> forebay.WriteSummary:
    options.setdefault("features", FEATURES)
    with forebay.Writer(path, **options) as writer:
        for number in range(count):
            writer.write(key=f"key {number}", split="train" if number < 9 else "validation", **sample(number))
    assert writer.summary is not None
    return writer.summary


def files(path: pathlib.Path) -> dict[str, bytes]:
    found = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


def test_formats_of_other_tools_are_written(tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"format": "webdataset", "classes": ["cat", "dog", "owl"]}
    summary = write(tmp_path / "tars", **options)
    assert pickle.loads(pickle.dumps(summary)) == summary
    with tarfile.open(tmp_path / "tars" / "train-000000.tar") as tar:
        found = {name.split(".", 1)[1]: tar.extractfile(name) for name in tar.getnames()[:3]}
        members = {name: file.read() for name, file in found.items() if file is not None}
        assert members["png"] == png(40, 30, 0)
        assert (members["cls"], members["caption.txt"].decode()) == (b"0", "é 0")
    assert [path.name for path in tmp_path.iterdir()] == ["tars"]
    again = write(tmp_path / "tars", resume=True, **options)
    assert again.already_complete and again.fingerprint == summary.fingerprint
    with pytest.raises(forebay.WriteError, match="other keys, labels or splits"):
        write(tmp_path / "tars", count=11, resume=True, **options)
    with pytest.raises(forebay.DatasetExistsError):
        write(tmp_path / "tars", format="webdataset", resume=True)
    with pytest.raises(forebay.OptionError, match='"webdataset"'):
        write(tmp_path / "b", format="voc")


@pytest.mark.parametrize("options", [{"format": "tfrecord"}, {"format": "indexed", "codec": "zstd:3"}, {"label_base": 1}])
def test_a_dataset_is_written_and_read(tmp_path: pathlib.Path, options: dict[str, Any]) -> None:
    summary = write(tmp_path / "a", classes=["cat", "dog", "owl"], shard_records=4, **options)
    assert summary.splits == {"train": 9, "validation": 3}
    assert (summary.shards, summary.already_complete, summary.resumed_shards) == (4, False, 0)
    data = forebay.open(tmp_path / "a")
    assert data.fingerprint == summary.fingerprint
    record = data.split("train")[5]
    assert (record.key, record.image) == ("key 5", png(40, 30, 5))
    assert record.label == 2 + options.get("label_base", 0)
    loader = forebay.Loader(
        tmp_path / "a", split="train", batch_size=9, transform=forebay.EvalTransform(32), shuffle=False
    )
    assert loader.classes == ["cat", "dog", "owl"]
    (_, labels) = next(iter(loader))
    assert sorted(np.asarray(labels).tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    checked = forebay_command("verify", tmp_path / "a", "--deep")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_bytes_do_not_depend_on_threads(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "one", threads=1, shard_size="4KiB")
    write(tmp_path / "many", threads=5, shard_size=4096)
    assert files(tmp_path / "one") == files(tmp_path / "many")


def test_values_of_every_kind(tmp_path: pathlib.Path) -> None:
    features = {
        "image": "image", "label": "label", "tags": "labels", "age": "int", "weight": "float", "vector": "vector[2]",
        "ids": "vector[*,int64]", "tensor": "tensor[2,*,uint8]", "half": "tensor[2,float16]", "text": "text",
        "raw": "bytes", "boxes": "boxes", "mask": "mask", "keypoints": "keypoints",
    }  # fmt: skip
    values = {
        "image": np.arange(60, dtype=np.uint8).reshape(4, 5, 3),
        "label": np.int32(4),
        "tags": np.array([1, 2]),
        "age": np.int8(-3),
        "weight": np.float64(0.5),
        "vector": np.array([1.5, 2.5]),
        "ids": [],
        "tensor": np.arange(6, dtype=np.uint8).reshape(2, 3)[:, ::-1],
        "half": [0.5, 2],
        "text": "ü",
        "raw": memoryview(b"\xff\x00"),
        "boxes": {"boxes": np.array([[0, 0.25, 0.5, 1]]), "labels": [7]},
        "mask": np.array([[0, 300], [2, 1]], dtype=np.int32),
        "keypoints": [[0.5, 0.25, 1]],
    }
    with forebay.Writer(tmp_path / "a", features=features) as writer:
        writer.write(**values)
        nothing: dict[str, Any] = dict.fromkeys(features)
        writer.write(**{**nothing, "image": np.zeros((4, 5), np.uint8)})
    record = forebay.open(tmp_path / "a")[0]
    assert record.key == "00000000"
    found = record.features
    assert found["image/class/label"] == [4]
    assert found["tags"] == [1, 2]
    assert found["age"] == [-3]
    assert found["weight"] == [0.5]
    assert found["vector"] == [1.5, 2.5]
    assert found["tensor"] == [bytes([2, 1, 0, 5, 4, 3])]
    assert found["tensor/shape"] == [2, 3]
    assert found["half"] == [np.array([0.5, 2], "<f2").tobytes()]
    assert (found["text"], found["raw"]) == (["ü".encode()], [b"\xff\x00"])
    assert found["image/object/bbox/ymin"] == [0.25]
    assert found["image/object/bbox/label"] == [7]
    assert found["keypoints/visibility"] == [1]
    without = forebay.open(tmp_path / "a")[1]
    assert without.label == -1
    assert without.features.keys() == {"image/encoded", "image/class/label"}
    transform = [forebay.CenterCrop((4, 5))]
    loader = forebay.Loader(tmp_path / "a", batch_size=2, transform=transform, shuffle=False)
    (images, _) = next(iter(loader))
    assert np.array_equal(np.asarray(images)[0], values["image"])


def test_columns_come_back_in_batches(tmp_path: pathlib.Path) -> None:
    features = {
        "image": "image", "label": "label", "caption": "text", "vector": "vector[2]", "tags": "labels",
        "tensor": "tensor[2,*,uint8]", "boxes": "boxes",
    }  # fmt: skip
    with forebay.Writer(tmp_path / "a", features=features, label_base=1, format="indexed") as writer:
        for number in range(4):
            writer.write(
                image=png(40, 20, number), label=number, caption=f"é {number}", vector=[number, 0.5], tags=[number],
                tensor=np.full((2, number), number, np.uint8),
                boxes={"boxes": [[0.5, 0, 1, 1]], "labels": [number]},
            )  # fmt: skip
    data: Any = forebay.open(tmp_path / "a")
    assert data.columns == features
    columns = [column for column in features if column not in ("image", "label")]
    options: dict[str, Any] = {"columns": columns, "transform": forebay.KeepEncoded()}
    loader = forebay.Loader(tmp_path / "a", batch_size=4, shuffle=False, **options)
    batch: Any = next(iter(loader))
    assert batch.labels.tolist() == [0, 1, 2, 3]
    assert [batch["caption"][number] for number in range(4)] == [f"é {number}" for number in range(4)]
    assert batch["vector"].tolist() == [[number, 0.5] for number in range(4)]
    assert [batch["tags"][number].tolist() for number in range(4)] == [[0], [1], [2], [3]]
    assert np.array_equal(batch["tensor"][3].reshape(2, 3), np.full((2, 3), 3))
    assert batch["boxes"][2]["boxes"].tolist() == [[20, 0, 40, 20]]
    assert batch["boxes"][2]["labels"].tolist() == [2]


class Tensor:
    """The part of a tensor of torch that is used."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype, self.shape = f"torch.{array.dtype}", array.shape

    def __array__(self) -> Any:
        raise TypeError("a tensor that needs detach() and cpu()")

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def numpy(self) -> Any:
        return self.array


def test_tensors_of_torch(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))
    features = {"image": "image", "tensor": "tensor[2,float32]", "vector": "vector[2]", "mask": "mask"}
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    with forebay.Writer(tmp_path / "a", features=features) as writer:
        writer.write(
            image=Tensor(pixels.transpose(2, 0, 1)),
            tensor=Tensor(np.array([1, 2], np.float32)),
            vector=Tensor(np.array([3, 4], np.float32)),
            mask=Tensor(np.zeros((1, 4, 5), np.int64)),
        )
        with pytest.raises(forebay.SampleError, match=r"\(1, H, W\), found uint8 of shape \(4, 5, 3\)"):
            writer.write(image=Tensor(pixels), tensor=None, vector=None, mask=None)
    with forebay.Writer(tmp_path / "b", features={"image": "image"}) as writer:
        writer.write(image=pixels)
    one, other = forebay.open(tmp_path / "a")[0], forebay.open(tmp_path / "b")[0]
    assert one.image == other.image
    assert (one.features["vector"], one.features["tensor"]) == ([3, 4], [np.array([1, 2], np.float32).tobytes()])


def test_pictures_of_pillow(tmp_path: pathlib.Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    pixels = np.arange(16 * 12 * 3, dtype=np.uint8).reshape(12, 16, 3)
    features = {"image": "image", "mask": "mask"}
    modes = ["RGB", "L", "RGBA", "P", "1", "CMYK"]
    with forebay.Writer(tmp_path / "a", features=features) as writer:
        for mode in modes:
            writer.write(image=pil.fromarray(pixels).convert(mode), mask=pil.fromarray(pixels[:, :, 0]).convert("P"))
        with pytest.raises(forebay.SampleError, match="mode F"):
            writer.write(image=pil.new("F", (2, 2)), mask=None)
        with pytest.raises(forebay.SampleError, match="mask of one channel"):
            writer.write(image=pil.fromarray(pixels), mask=pil.fromarray(pixels))
    records = list(forebay.open(tmp_path / "a"))
    assert len(records) == len(modes)
    assert np.array_equal(np.asarray(pil.open(io.BytesIO(records[0].image))), pixels)
    assert pil.open(io.BytesIO(records[1].image)).mode == "L"
    with forebay.Writer(tmp_path / "b", features={"image": "image"}, image_format="jpeg", quality=80) as writer:
        writer.write(image=pil.fromarray(pixels))
    assert forebay.open(tmp_path / "b")[0].image.startswith(b"\xff\xd8")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("image", b"not an image", "not an image"),
        ("image", "text", "expected bytes, a PIL image or an array"),
        ("image", np.zeros((3, 4, 5), np.uint8), r"found uint8 of shape \(3, 4, 5\)"),
        ("image", np.zeros((4, 5, 3), np.float32), "found float32"),
        ("image", None, "every sample has an image"),
        ("label", 3, "from 0 to 2"),
        ("label", "bird", "none of the 3"),
        ("label", 1.5, "expected an integer"),
        ("label", True, "type bool"),
        ("label", 2**63, "64 bits"),
        ("caption", b"bytes", "expected str"),
        ("boxes", [[0, 0, 300, 200]], "from 0 to 1"),
        ("boxes", [[0, 0, 1]], "rows of xmin"),
        ("boxes", {"boxes": [], "scores": []}, "'boxes', 'scores'"),
        ("boxes", 3, "expected rows"),
        ("tensor", np.zeros(2, np.float64), "expected float32, found float64"),
        ("tensor", np.zeros(3, np.float32), r"expected shape \[2\], found \[3\]"),
        ("tensor", ["a", "b"], "expected numbers of float32"),
        ("weight", "1", "expected a number"),
        ("weight", 1e300, "beyond what a float"),
        ("mask", np.array([[-1]]), "from 0 to 65535"),
        ("mask", np.zeros((2, 2), np.float32), "expected integers"),
        ("other", 1, "no such column"),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path: pathlib.Path, name: str, value: Any, said: str) -> None:
    features = {**FEATURES, "boxes": "boxes", "tensor": "tensor[2,float32]", "weight": "float", "mask": "mask"}
    good = {**sample(0), "label": "dog", "boxes": [], "tensor": [1, 2], "weight": 1, "mask": None}
    with forebay.Writer(tmp_path / "a", features=features, classes=["cat", "dog", "owl"]) as writer:
        writer.write(key="good", **good)
        with pytest.raises(forebay.SampleError, match=said) as caught:
            writer.write(key=b"bad\xff", **{**good, name: value})
        error = caught.value
        assert (error.split, error.sample, error.key, error.column) == ("train", 1, r"bad\xff", name)
        assert isinstance(error, ValueError)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.column) == (str(error), name)
        writer.write(key="good too", **good)
    assert [record.key for record in forebay.open(tmp_path / "a")] == ["good", "good too"]
    assert forebay.open(tmp_path / "a")[0].label == 1


def test_a_missing_column_is_named(tmp_path: pathlib.Path) -> None:
    with forebay.Writer(tmp_path / "a", features=FEATURES) as writer:
        with pytest.raises(forebay.SampleError, match='column "caption": expected text, found nothing'):
            writer.write(image=png(4, 4, 0), label=0)
        with pytest.raises(forebay.SampleError, match="key of type str"):
            writer.write(key=3, **sample(0))  # type: ignore[arg-type]
        with pytest.raises(forebay.SampleError, match="split"):
            writer.write(split="../etc", **sample(0))
        writer.write(**sample(0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"features": {}}, "features"),
        ({"features": {"x": "picture"}}, "'?\"?x\"?'?: column type"),
        ({"features": {"key": "text"}}, "parameter of write"),
        ({"format": "zip"}, "format: expected"),
        ({"codec": "zstd"}, "codec: TFRecord"),
        ({"format": "indexed", "codec": "zip"}, "codec"),
        ({"shard_size": "many"}, "shard_size"),
        ({"shard_size": 0}, "at least one byte"),
        ({"label_base": 2}, "label base"),
        ({"seek_points": "some"}, "seek_points"),
        ({"image_format": "gif"}, "image_format"),
        ({"quality": 90}, "quality: PNG has none"),
        ({"image_format": "jpeg", "quality": 101}, "quality"),
        ({"resume": True, "overwrite": True}, "continued or replaced"),
        ({"classes": "cat"}, "classes"),
    ],
)
def test_senseless_options_are_refused(tmp_path: pathlib.Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(forebay.OptionError, match=said):
        forebay.Writer(tmp_path / "a", **{"features": FEATURES, **options})
    assert not (tmp_path / "a").exists()


def test_an_exception_publishes_nothing_and_can_be_continued(tmp_path: pathlib.Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "a"
    write(whole, shard_records=2)
    with pytest.raises(KeyError), forebay.Writer(path, features=FEATURES, shard_records=2) as writer:
        for number in range(6):
            writer.write(key=f"key {number}", **sample(number))
        raise KeyError("of the caller")
    assert writer.summary is None and not (path / "forebay.json").exists()
    with pytest.raises(forebay.ClosedError):
        writer.write(**sample(0))
    with pytest.raises(forebay.ClosedError):
        writer.close()
    resumed = write(path, shard_records=2, resume=True)
    assert not resumed.already_complete and resumed.resumed_shards == 3
    assert files(path) == files(whole)
    again = write(path, shard_records=2, resume=True)
    assert again.already_complete and again.fingerprint == resumed.fingerprint
    with pytest.raises(forebay.DatasetExistsError, match="overwrite=True") as caught:
        write(path, shard_records=2)
    assert isinstance(caught.value, FileExistsError)
    assert write(path, count=3, overwrite=True).splits == {"train": 3}


CHILD = """
import os, pathlib, sys, time
import forebay
sys.path.insert(0, {tests!r})
from test_writer import FEATURES, sample

with forebay.Writer({path!r}, features=FEATURES, shard_records=2, resume=True) as writer:
    for number in range(12):
        writer.write(key=f"key {{number}}", split="train" if number < 9 else "validation", **sample(number))
        if number == {stop} - 1:
            # Samples that were given more than a second ago are written with the next one.
            time.sleep(1.1)
        if number == {stop}:
            end = time.monotonic() + 20
            # A shard is there before its line in the journal, which counts.
            journal = pathlib.Path({path!r}) / ".forebay-pack/journal"
            while b"train-00002" not in journal.read_bytes() and time.monotonic() < end:
                time.sleep(0.01)
            os.kill(os.getpid(), 9)
"""


def test_a_killed_process_is_continued(tmp_path: pathlib.Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "a"
    write(whole, shard_records=2)
    here = os.path.dirname(__file__)
    code = textwrap.dedent(CHILD).format(tests=here, path=str(path), stop=7)
    killed = subprocess.run([sys.executable, "-c", code], timeout=120)
    assert killed.returncode == -9
    assert not (path / "forebay.json").exists()
    with pytest.raises(forebay.DatasetExistsError, match="resume=True"):
        forebay.Writer(path, features=FEATURES, shard_records=2)
    with pytest.raises(forebay.WriteError, match="differs from this one"):
        forebay.Writer(path, features=FEATURES, shard_records=3, resume=True)
    other = forebay.Writer(path, features=FEATURES, shard_records=2, resume=True)
    assert other.stored["train"] >= 6
    with pytest.raises(forebay.WriteError, match="other keys or labels"):
        for number in range(12):
            other.write(key=f"other {number}", **sample(number))
    other.abandon()
    summary = write(path, shard_records=2, resume=True)
    assert summary.resumed_shards >= 3
    assert files(path) == files(whole)


def test_threads_share_a_writer(tmp_path: pathlib.Path) -> None:
    with forebay.Writer(tmp_path / "a", features=FEATURES) as writer:

        def some(start: int) -> None:
            for number in range(start, start + 20):
                writer.write(key=str(number), **sample(number))

        threads = [threading.Thread(target=some, args=(100 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    keys = {record.key for record in forebay.open(tmp_path / "a")}
    assert keys == {str(100 * n + number) for n in range(4) for number in range(20)}


def test_a_place_has_one_writer(tmp_path: pathlib.Path) -> None:
    with forebay.Writer(tmp_path / "a", features=FEATURES) as writer:
        with pytest.raises(forebay.WriteError, match="process"):
            forebay.Writer(tmp_path / "a", features=FEATURES)
        writer.write(**sample(0))
    (tmp_path / "b").mkdir()
    (tmp_path / "b/thesis.tex").write_text("x")
    with pytest.raises(forebay.WriteError, match="thesis"):
        forebay.Writer(tmp_path / "b", features=FEATURES)
    with pytest.raises(forebay.WriteError, match="no sample was written"), forebay.Writer(
        tmp_path / "c", features=FEATURES
    ):
        pass
    assert write(tmp_path / "c").splits["train"] == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_writer_stays_behind_at_a_fork(tmp_path: pathlib.Path) -> None:
    with forebay.Writer(tmp_path / "a", features=FEATURES) as writer:
        writer.write(**sample(0))
        child = os.fork()
        if child == 0:
            try:
                writer.write(**sample(1))
            except forebay.ForkError:
                del writer
                os._exit(3)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert writer.summary is not None and writer.summary.splits == {"train": 1}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_writer_of_another_format_that_stops_early_leaves_nothing(
    tmp_path: pathlib.Path, error: type[BaseException]
) -> None:
    place = tmp_path / "tars"

    def write(stop: bool, resume: bool = False) -> None:
        features = {"image": "image", "label": "label"}
        with forebay.Writer(place, format="webdataset", features=features, resume=resume) as writer:
            for number in range(3):
                writer.write(image=png(8, 6, number), label=number)
            if stop:
                raise error

    with pytest.raises(error):
        write(stop=True)
    assert list(tmp_path.iterdir()) == []
    write(stop=False, resume=True)
    assert (place / "train-000000.tar").exists()
    assert list(tmp_path.iterdir()) == [place]


def labels_of(path: pathlib.Path) -> list[int | None]:
    data = forebay.open(path)
    return [record.label for split in data.splits for record in data.split(split)]


@pytest.mark.parametrize("format", ["tfrecord", "indexed", "webdataset"])
def test_names_of_classes_are_numbered_at_the_end(tmp_path: pathlib.Path, format: Any) -> None:
    def write_names(names: list[str | None], **options: Any) -> forebay.WriteSummary:
        with forebay.Writer(tmp_path / "out", format=format, features=FEATURES, classes="auto", label_base=1, **options) as writer:
            for number, name in enumerate(names):
                writer.write(**sample(number) | {"label": name})
        assert writer.summary is not None
        return writer.summary

    summary = write_names(["owl", "cat", "dog", "cat"])
    again = write_names(["owl", "cat", "dog", "cat"], resume=True)
    assert again.already_complete and again.fingerprint == summary.fingerprint
    with pytest.raises(forebay.WriteError, match="other keys, labels or splits"):
        write_names(["owl", "cat", "dog"], resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert summary.account["roles"]["label"] == {"source": "label", "form": "text"}
    if format != "webdataset":
        assert labels_of(tmp_path / "out") == [3, 1, 2, 1]
        assert list(forebay.open(tmp_path / "out").classes) == ["cat", "dog", "owl"]
    with pytest.warns(UserWarning, match="without a label"):
        write_names(["owl", "cat", None, "cat"], overwrite=True)


def test_labels_are_integers_whole_floats_or_one_hot(tmp_path: pathlib.Path) -> None:
    with forebay.Writer(tmp_path / "out", features=FEATURES, classes=["a", "b", "c"]) as writer:
        for number, label in enumerate([2, 1.0, [0, 0, 1], np.array([0.0, 1.0, 0.0]), np.int64(2), "b"]):
            writer.write(**sample(number) | {"label": label})
        for label in (0.5, [0, 1, 1], [0, 0.5, 0], "d", [], {"a": 1}):
            with pytest.raises(forebay.SampleError):
                writer.write(**sample(9) | {"label": label})
    assert labels_of(tmp_path / "out") == [2, 1, 2, 1, 2, 1]


def test_a_name_without_classes_says_how_to_number_them(tmp_path: pathlib.Path) -> None:
    with forebay.Writer(tmp_path / "out", features=FEATURES) as writer:
        with pytest.raises(forebay.SampleError, match='classes="auto"'):
            writer.write(**sample(0) | {"label": "cat"})
        writer.write(**sample(0))
    with pytest.raises(forebay.OptionError, match="type label"):
        forebay.Writer(tmp_path / "b", features={"image": "image"}, classes="auto")
