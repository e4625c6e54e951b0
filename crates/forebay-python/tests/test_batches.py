"""Batches keep every array wherever a package rebuilds them.

The functions below follow the rules of packages that move, slice or gather a batch. Tests with the packages themselves are
in test_frameworks.py.
"""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import forebay
import forebay.torch
from test_loader import SMALL, TOTAL

PLACE = ("epoch", "step", "position", "layout")
Function = Callable[[Any], Any]


def leaf(value: Any) -> bool:
    return hasattr(value, "shape")


def tuples_first(function: Function, data: Any) -> Any:
    """Accelerate: tuples and lists from a generator, namedtuples from arguments, then mappings."""
    if isinstance(data, tuple | list):
        made = (tuples_first(function, value) for value in data)
        return type(data)(*made) if hasattr(data, "_fields") else type(data)(made)
    if isinstance(data, Mapping):
        return type(data)({key: tuples_first(function, value) for key, value in data.items()})  # type: ignore[call-arg]
    return function(data) if leaf(data) else data


def mappings_first(function: Function, data: Any) -> Any:
    """Lightning and transformers: dataclasses, mappings, then sequences from a list."""
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        made = copy.copy(data)
        for field in dataclasses.fields(data):
            setattr(made, field.name, mappings_first(function, getattr(data, field.name)))
        return made
    if leaf(data):
        return function(data)
    if isinstance(data, Mapping):
        return type(data)(dict((key, mappings_first(function, value)) for key, value in data.items()))  # type: ignore[call-arg]
    if isinstance(data, Sequence) and not isinstance(data, str):
        out = [mappings_first(function, value) for value in data]
        return type(data)(*out) if hasattr(data, "_fields") else type(data)(out)  # type: ignore[call-arg]
    return data


def joined(data: list[Any]) -> Any:
    """Accelerate's `concatenate`: by index or key of the first batch."""
    if isinstance(data[0], tuple | list):
        return type(data[0])(joined([each[i] for each in data]) for i in range(len(data[0])))
    if isinstance(data[0], Mapping):
        return type(data[0])({key: joined([each[key] for each in data]) for key in data[0].keys()})  # type: ignore[call-arg]
    return np.concatenate(data)


def first_shape(data: Any) -> int:
    """Accelerate's `find_batch_size`."""
    if isinstance(data, tuple | list):
        return first_shape(data[0])
    if isinstance(data, Mapping):
        return first_shape(data[next(iter(data.keys()))])
    return int(data.shape[0])


def batches(packed: dict[str, pathlib.Path], **options: Any) -> list[Any]:
    """An epoch of whole batches, mixed, with padding at its end, as numpy arrays."""
    mixed = {"batch_transform": forebay.Mixup(alpha=0.4), "drop_last": False, "pad_last": True, **options}
    with forebay.Loader(packed["indexed"], batch_size=8, transform=SMALL, **mixed) as loader:
        return [forebay.torch.TorchBatch(batch.numpy(), of=batch) for batch in loader]


def same(a: Any, b: Any, function: Function = lambda array: array) -> None:
    """`a` has all arrays that `b` has, after `function`."""
    assert type(a) is type(b) and list(a.keys()) == list(b.keys())
    for name in b.keys():
        assert np.array_equal(getattr(a, name), function(getattr(b, name))), name


def test_a_pair_with_names(packed: dict[str, pathlib.Path]) -> None:
    last = batches(packed)[-1]
    images, labels = last
    assert images is last.images is last[0] is last["images"]
    assert labels is last.labels is last[1] is last["labels"] and last[:] == (images, labels)
    assert len(last) == 2 and last.datasets is None
    assert set(dict(last)) == {"images", "labels", "samples", "padding", "failed", "labels_b", "lam"}
    assert dict(last)["padding"] is last.padding and last.padding.sum() == 48 - TOTAL
    assert (last.epoch, last.step, last.position, last.layout) == (0, 5, 40, "nhwc")
    assert "padding" in last and "datasets" not in last and images in last and 0 not in last
    assert last.get("padding") is last.padding and last.get("datasets", 3) == 3 and last[np.int64(1)] is labels
    for missing, error in (("pixels", KeyError), (2, IndexError), (None, TypeError)):
        with pytest.raises(error):
            last[missing]
    with pytest.raises(TypeError, match="no array 'pixel_values': expected one of images, labels"):
        forebay.TensorBatch({"pixel_values": images, "labels": labels})


@pytest.mark.parametrize("walk", [tuples_first, mappings_first])
def test_rebuilding_keeps_every_array(packed: dict[str, pathlib.Path], walk: Callable[[Function, Any], Any]) -> None:
    for batch in batches(packed):
        for function in (np.copy, lambda array: array[2:5], lambda array: np.concatenate([array, array])):
            made = walk(function, batch)
            same(made, batch, function)
            assert [getattr(made, name) for name in PLACE] == [getattr(batch, name) for name in PLACE]
            nested = walk(function, {"pair": (batch, [batch])})
            same(nested["pair"][1][0], batch, function)
        assert first_shape(batch) == 8


def test_batches_are_joined(packed: dict[str, pathlib.Path]) -> None:
    whole = batches(packed)
    made = joined(whole)
    assert made.images.shape[0] == len(whole) * 8
    assert sorted(made.samples[~made.padding].tolist()) == list(range(TOTAL))
    # No step has all of them.
    assert made.step is None


def test_copies_and_pickles(packed: dict[str, pathlib.Path]) -> None:
    batch = batches(packed)[-1]
    plain = forebay.TensorBatch(tuple(batch), of=batch)
    for one in (batch, plain):
        for made in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one)), type(one)(dict(one), of=one)):
            same(made, one)
            assert [getattr(made, name) for name in PLACE] == [getattr(one, name) for name in PLACE]
    with pytest.raises(KeyError, match="no array 'pixels': expected one of images, labels"):
        copy.copy(batch)["pixels"] = batch.images
    other = copy.copy(batch)
    other["images"] = batch.images + 1
    del other["lam"]
    assert other.lam is None and batch.lam is not None and (other.images != batch.images).all()
    assert pickle.loads(pickle.dumps(dict(batch.items()))).keys() == dict(batch).keys()
    pair = type(batch)(value for value in (1, 2))
    assert tuple(pair) == (1, 2) and pair.padding is None


def of(packed: dict[str, pathlib.Path], **options: Any) -> forebay.torch.Loader:
    defaults = {"batch_size": 8, "transform": SMALL, "drop_last": False, "pad_last": True}
    return forebay.torch.Loader(packed["indexed"], **{**defaults, **options})


def test_tensors_move_together(packed: dict[str, pathlib.Path]) -> None:
    torch = pytest.importorskip("torch")
    mixing = {"batch_transform": forebay.CutMix(alpha=1.0)}
    with of(packed, **mixing) as loader:
        for batch in loader:
            assert all(isinstance(array, torch.Tensor) for array in batch.values())
            assert batch.samples.dtype == torch.int64 and batch.padding.dtype == torch.bool
            moved = batch.to(torch.device("meta"), non_blocking=True)
            assert {tensor.device.type for tensor in moved.values()} == {"meta"}
            assert list(moved.keys()) == list(batch.keys()) and moved.step == batch.step
            same(batch.to("cpu"), batch)
    with pytest.raises(TypeError, match="expected a device"):
        batch.to(torch.float16)
    with of(packed, transform=forebay.KeepEncoded(), shuffle=True) as loader:
        moved = next(iter(loader)).to("meta")
        assert moved.images[0].device.type == "cpu" and moved.padding.device.type == "meta"


@pytest.mark.parametrize("kind", ["_pytree", "_cxx_pytree"])
def test_a_tree_of_torch(packed: dict[str, pathlib.Path], kind: str) -> None:
    torch = pytest.importorskip("torch")
    if kind == "_cxx_pytree":
        pytest.importorskip("optree")
    tree = pytest.importorskip(f"torch.utils.{kind}")
    with of(packed) as loader:
        specs = []
        for batch in loader:
            same(tree.tree_map(torch.clone, batch), batch)
            leaves, spec = tree.tree_flatten(batch)
            assert len(leaves) == len(list(batch.keys()))
            specs.append(spec)
            halved = tree.tree_map(lambda tensor: tensor[:4], batch)
            assert halved.padding.shape == (4,) and halved.step is None and halved.layout == "nchw"
    # The same for every step, so that nothing is compiled twice.
    assert all(spec == specs[0] for spec in specs)


def test_the_default_conversion_of_a_data_loader(packed: dict[str, pathlib.Path]) -> None:
    torch = pytest.importorskip("torch")
    with of(packed) as loader, of(packed) as plain:
        data = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None)
        assert len(data) == 6
        for made, want in zip(data, plain, strict=True):
            same(made, want)
            assert made.step == want.step


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_a_pickled_batch_is_a_copy_of_its_arrays(packed: dict[str, pathlib.Path], dtype: Any) -> None:
    options: dict[str, Any] = {"batch_transform": forebay.Mixup(), "dtype": dtype, "drop_last": False}
    with forebay.Loader(packed["indexed"], batch_size=8, transform=SMALL, **options) as loader:
        batch = list(loader)[-1]
    for again in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
        assert isinstance(again, forebay.TensorBatch)
        for name in ("images", "labels", "samples", "padding", "failed", "labels_b", "lam"):
            array, original = getattr(again, name), getattr(batch, name)
            assert array.dtype == original.dtype and np.array_equal(array, original)
            assert not np.shares_memory(array, original)
        assert [getattr(again, name) for name in PLACE] == [getattr(batch, name) for name in PLACE]
