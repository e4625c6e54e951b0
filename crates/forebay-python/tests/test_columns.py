"""Columns: further features of the records in a batch, here and from a server."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import re
from typing import Any

import numpy as np
import pytest

import forebay
import forebay.jax
import forebay.tf
import forebay.torch
from conftest import Serve, forebay_command
from forebay import Boxes, Keypoints, Ragged, TensorBatch, Tensors, Text
from test_loader import SMALL
from test_serving import crc32c

NAMES = ["caption", "age", "score", "ids", "raw", "image", "label"]
TOTAL = 42


def caption(number: int) -> str:
    return "" if number % 7 == 3 else f"été {number} " * (number % 4 + 1)


def ids(number: int) -> list[int]:
    return list(range(number % 5))


@pytest.fixture(scope="module")
def described(packed: dict[str, pathlib.Path], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset with columns: the images of `packed`, with a line of features for each."""
    root = tmp_path_factory.mktemp("described")
    images = packed["indexed"].parent / "images"
    keys = sorted(str(path.relative_to(images)) for path in images.rglob("*.png"))
    lines = [
        {
            "path": key,
            "label": number % 3 + 1,
            "caption": caption(number),
            "age": number - 20,
            "score": number / 4 + 0.25,
            "ids": ids(number),
            "raw": "x" * (number % 3),
        }
        for number, key in enumerate(keys)
    ]
    labels = root / "labels.jsonl"
    labels.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = forebay_command(
        "pack", images, root / "set", "--format", "indexed", "--labels", labels, "--split", "train", "--quiet"
    )
    assert done.returncode == 0, done.stderr
    # Features of bytes are text if the manifest says so.
    manifest = root / "set" / "forebay.json"
    content = json.loads(manifest.read_text())
    content.pop("crc32c")
    columns = [
        {"name": "image", "type": "image", "feature": "image/encoded"},
        {"name": "label", "type": "label", "feature": "image/class/label"},
        {"name": "caption", "type": "text", "feature": "caption"},
        {"name": "age", "type": "int", "feature": "age"},
        {"name": "score", "type": "float", "feature": "score"},
        {"name": "ids", "type": "vector[*,int64]", "feature": "ids"},
        {"name": "raw", "type": "bytes", "feature": "raw"},
    ]
    content["columns"] = columns
    text = json.dumps(content, indent=2)[: -len("\n}")]
    zeroed = f'{text},\n  "crc32c": "00000000"\n}}\n'
    checksum = crc32c(zeroed.encode())
    manifest.write_text(zeroed.replace('"00000000"\n}\n', f'"{checksum:08x}"\n}}\n'))
    return root / "set"


@pytest.fixture(params=["path", "shm", "tcp"])
def source(
    request: pytest.FixtureRequest, described: pathlib.Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> str:
    if request.param == "path":
        return os.fspath(described)
    monkeypatch.setenv("FOREBAY_TRANSPORT", request.param)
    return serve(described)


def loader(source: Any, **options: Any) -> forebay.Loader:
    return forebay.Loader(source, **{"batch_size": 8, "transform": SMALL, "columns": NAMES, **options})


def check(batch: Any, records: list[forebay.Record]) -> None:
    for i, sample in enumerate(np.asarray(batch.samples).tolist()):
        number = int(np.asarray(batch["age"])[i]) + 20
        assert batch["caption"][i] == caption(number)
        assert np.asarray(batch["ids"][i]).tolist() == ids(number)
        assert bytes(np.asarray(batch["raw"][i]).tolist()) == b"x" * (number % 3)
        assert np.asarray(batch["score"])[i] == number / 4 + 0.25
        assert bytes(np.asarray(batch["image"][i]).tolist()) == records[sample].image


def test_batches_have_the_columns_of_their_records(described: pathlib.Path, source: str) -> None:
    records = list(forebay.open(described))
    for transform in (SMALL, forebay.KeepEncoded()):
        options: dict[str, Any] = {"transform": transform, "shuffle": True, "drop_last": False}
        with loader(source, **options) as it, loader(source, columns=None, **options) as plain:
            seen = 0
            for batch, other in zip(it, plain, strict=True):
                assert batch.columns == NAMES and other.columns == []
                assert batch.digest == other.digest
                assert np.array_equal(batch.labels, other.labels)
                if transform is SMALL:
                    assert np.array_equal(batch.images, other.images)
                count = len(batch.samples)
                assert count == 8 or batch.step == 5
                assert batch["age"].dtype == np.int64 and batch["age"].shape == (count,)
                assert batch["score"].dtype == np.float32
                assert np.array_equal(batch["label"], batch.labels)
                assert isinstance(batch["caption"], Text) and isinstance(batch["ids"], Ragged)
                assert batch["caption"] is batch["caption"]
                assert batch["ids"].offsets.dtype == np.int64 and batch["ids"].offsets.shape == (count + 1,)
                check(batch, records)
                seen += count
            assert seen == 42
            assert it.state_dict() == plain.state_dict()


def test_columns_are_views_that_keep_their_batch(described: pathlib.Path) -> None:
    with loader(described) as it:
        first = next(iter(it))
        ages, captions = first["age"], first["caption"]
        assert not ages.flags.owndata and ages.ctypes.data % 64 == 0
        before, texts = ages.copy(), captions.to_list()
        del first
        for _ in it:
            pass
    assert np.array_equal(ages, before) and captions.to_list() == texts
    again = pickle.loads(pickle.dumps(captions))
    assert isinstance(again, Text) and again.to_list() == texts
    assert len(pickle.dumps(captions)) < 10_000, "the pixels are not pickled"


def test_names_of_arrays_and_columns(described: pathlib.Path) -> None:
    with loader(described) as it:
        batch = next(iter(it))
    assert batch["images"] is batch.images and batch["labels"] is batch.labels
    assert batch[0] is batch.images
    with pytest.raises(KeyError, match="no column .captoin.: expected one of caption, age"):
        batch["captoin"]
    with pytest.raises(KeyError, match="no column .lam."):
        batch["lam"]
    with pytest.raises(TypeError):
        batch[1.5]  # type: ignore[index]
    with loader(described, columns=None) as it:
        with pytest.raises(KeyError, match="the loader has none"):
            next(iter(it))["caption"]


def test_wrong_columns_are_refused(source: str) -> None:
    for columns, said in [
        (["captoin"], r'option columns is "captoin": expected columns of the dataset: "image", "label", "caption"'),
        (["age", "age"], "each name once"),
        ("age", "a list of names of columns"),
        ([1], "a list of names of columns"),
        (["labels"], "option columns is 'labels': expected names of columns; every batch has"),
    ]:
        with pytest.raises((forebay.OptionError, TypeError), match=said), loader(source, columns=columns) as it:
            next(iter(it))


def test_datasets_list_their_columns(described: pathlib.Path, packed: dict[str, pathlib.Path]) -> None:
    columns = forebay.open(described).columns
    assert list(columns.items())[:3] == [("image", "image"), ("label", "label"), ("caption", "text")]
    assert columns["ids"] == "vector[*,int64]"
    inferred = forebay.open(packed["tfrecord"]).columns
    assert inferred["image"] == "image" and inferred["image/height"] == "int"
    done = forebay_command("inspect", described)
    assert re.search(r"caption +text +caption", done.stdout), done.stdout


def test_a_mix_has_the_columns_of_its_datasets(described: pathlib.Path) -> None:
    with loader(forebay.Mix([described, described]), columns=["caption", "age"]) as it:
        for batch in it:
            ages = batch["age"].tolist()
            assert batch["caption"].to_list() == [caption(age + 20) for age in ages]


def test_columns_of_a_batch_pickle(described: pathlib.Path) -> None:
    with loader(described) as it:
        batch = next(iter(it))
    again = pickle.loads(pickle.dumps(batch))
    assert again.columns == NAMES
    assert again["caption"].to_list() == batch["caption"].to_list()
    assert again["age"].tolist() == batch["age"].tolist()


def test_maps_keep_columns(described: pathlib.Path) -> None:
    with loader(described) as inner:
        mapped = forebay.Mapped(inner, map_batch=lambda batch: (batch.images[:, ::2], batch.labels))
        batch = next(iter(mapped))
        assert isinstance(batch, TensorBatch) and batch.columns == NAMES
        assert batch["caption"][0] == caption(int(batch["age"][0]) + 20)
        again: Any = TensorBatch(dict(batch), of=batch)
        assert again.columns == NAMES and again["ids"] is batch["ids"]
        rebuilt: Any = TensorBatch({name: array for name, array in batch.items()})
        assert rebuilt.columns == NAMES and rebuilt.epoch == batch.epoch
        pickled = pickle.loads(pickle.dumps(batch))
        assert pickled.columns == NAMES and TensorBatch(dict(pickled)).columns == NAMES
        assert pickled["caption"].to_list() == batch["caption"].to_list()


def test_ragged() -> None:
    column = Ragged(np.arange(6), np.array([0, 2, 2, 6]))
    assert len(column) == 3
    assert [part.tolist() for part in column] == column.to_list() == [[0, 1], [], [2, 3, 4, 5]]
    assert column[-1].tolist() == [2, 3, 4, 5] and [part.tolist() for part in column[:2]] == [[0, 1], []]
    assert np.shares_memory(column[2], column.values)
    for wrong in (3, -4):
        with pytest.raises(IndexError, match="of a column of 3"):
            column[wrong]
    with pytest.raises(TypeError):
        column["a"]
    values, mask = column.padded(-1)
    assert values.tolist() == [[0, 1, -1, -1], [-1] * 4, [2, 3, 4, 5]]
    assert mask.tolist() == [[True, True, False, False], [False] * 4, [True] * 4]
    values, mask = column.padded(length=1)
    assert values.tolist() == [[0], [0], [2]] and mask.tolist() == [[True], [False], [True]]
    assert repr(column) == "Ragged(values=int64[6], offsets=int64[4])"
    nothing = Ragged(np.zeros((0, 3), np.float32), np.array([0, 0]))
    assert nothing.padded()[0].shape == (1, 0, 3) and nothing.padded(length=2)[0].tolist() == [[[0.0] * 3] * 2]
    with pytest.raises(TypeError, match="values, offsets: 1 arrays"):
        Ragged(np.arange(3))


def test_columns_of_several_arrays() -> None:
    corners = np.arange(12, dtype=np.float32).reshape(3, 4)
    boxes = Boxes(corners, np.array([5, 6, 7]), np.array([0, 1, 1, 3]))
    assert boxes[2]["labels"].tolist() == [6, 7] and boxes[2]["boxes"].shape == (2, 4)
    assert boxes[1]["boxes"].shape == (0, 4)
    assert boxes.to_list()[0] == {"boxes": [[0.0, 1.0, 2.0, 3.0]], "labels": [5]}
    points = Keypoints(np.array([[1.0, 2.0]], np.float32), np.array([2]), np.array([0, 1]))
    assert points.to_list() == [{"points": [[1.0, 2.0]], "visibility": [2]}]
    shapes = np.array([[2, 2], [0, 3]])
    tensors = Tensors(np.arange(4, dtype=np.int16), shapes, np.array([0, 4, 4]))
    assert tensors.to_list() == [[[0, 1], [2, 3]], []] and tensors[1].shape == (0, 3)
    text = Text(np.frombuffer("aé".encode(), np.uint8), np.array([0, 1, 3]))
    assert list(text) == ["a", "é"] and text[::-1] == ["é", "a"] and "é" in text and text.index("é") == 1


def test_tensors_of_torch(described: pathlib.Path, source: str) -> None:
    torch = pytest.importorskip("torch")
    records = list(forebay.open(described))
    with forebay.torch.Loader(source, batch_size=8, transform=SMALL, columns=NAMES) as it:
        batch = next(iter(it))
        assert isinstance(batch["age"], torch.Tensor) and batch["age"].dtype == torch.int64
        assert isinstance(batch["ids"].values, torch.Tensor)
        check(batch, records)
        values, mask = batch["ids"].padded(-1)
        assert isinstance(values, torch.Tensor) and int(mask.sum()) == len(batch["ids"].values)
        moved = batch.to("cpu")
        assert moved.columns == NAMES and moved["ids"].to_list() == batch["ids"].to_list()
        from torch.utils import _pytree as pytree

        doubled = pytree.tree_map(lambda tensor: tensor * 2, batch)
        assert (doubled["age"] == batch["age"] * 2).all()
        assert (doubled["ids"].values == batch["ids"].values * 2).all()


def test_arrays_of_jax(described: pathlib.Path, source: str) -> None:
    jax = pytest.importorskip("jax")
    records = list(forebay.open(described))
    with forebay.jax.Loader(source, batch_size=8, transform=SMALL, columns=NAMES) as it:
        batch = next(iter(it))
        assert isinstance(batch["age"], jax.Array) and isinstance(batch["ids"].values, jax.Array)
        check(batch, records)
        values, mask = batch["ids"].padded(-1, length=4)
        assert isinstance(values, jax.Array) and values.shape == mask.shape == (8, 4)
        total = jax.jit(lambda batch: batch["age"].sum() + batch["ids"].values.sum())(batch)
        assert int(total) == int(batch["age"].sum() + batch["ids"].values.sum())


def test_tensors_of_tensorflow(described: pathlib.Path, source: str) -> None:
    tf: Any = pytest.importorskip("tensorflow")
    records = list(forebay.open(described))
    with forebay.tf.Loader(source, batch_size=8, transform=SMALL, columns=NAMES) as it:
        batch = next(iter(it))
        assert isinstance(batch["age"], tf.Tensor) and isinstance(batch["ids"].values, tf.Tensor)
        check(batch, records)
        values, mask = batch["ids"].padded(-1)
        assert isinstance(values, tf.Tensor)
        assert int(tf.reduce_sum(tf.cast(mask, tf.int64))) == int(batch["ids"].values.shape[0])
