"""Columns of a batch whose samples differ in length: values of all samples in one array, and where each begins."""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from forebay._errors import ServerError

Array = TypeVar("Array")


class Column(Generic[Array]):
    """A column that is made of several arrays. The last one is `offsets`."""

    __slots__ = ("__weakref__", "_ends", "_parts")

    # Names of the arrays.
    _names: tuple[str, ...] = ()

    _parts: tuple[Any, ...]
    _ends: list[int] | None

    def __init__(self, *parts: Array) -> None:
        if len(parts) != len(self._names):
            raise TypeError(f"{type(self).__name__}() takes {', '.join(self._names)}: {len(parts)} arrays were given")
        self._parts = parts
        self._ends = None

    @property
    def offsets(self) -> Array:
        """Start of the values of each sample, and the end of the last one: int64 of shape (N + 1,)."""
        offsets: Array = self._parts[-1]
        return offsets

    def __len__(self) -> int:
        return int(self.offsets.shape[0]) - 1  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = operator.index(index)
        count = len(self)
        if not -count <= i < count:
            raise IndexError(f"sample {i} of a column of {count}")
        i %= count
        if self._ends is None:
            self._ends = _on_host(self.offsets).tolist()
        return self._sample(i, self._ends[i], self._ends[i + 1])

    def _sample(self, number: int, start: int, end: int) -> Any:
        raise NotImplementedError

    def to_list(self) -> list[Any]:
        """Return the values of all samples as Python objects."""
        return [_plain(value) for value in self]

    def _with(self, function: Callable[[Any], Any]) -> Any:
        """Applies `function` to each array."""
        made = type(self).__new__(type(self))
        made._parts = tuple(function(part) for part in self._parts)
        made._ends = None
        return made

    # The arrays that trees of JAX, PyTorch and TensorFlow see.

    def _leaves(self) -> tuple[Any, ...]:
        return self._parts

    @classmethod
    def _leaf_names(cls) -> tuple[str, ...]:
        return cls._names

    @classmethod
    def _from_leaves(cls, rest: Iterator[Any]) -> Any:
        made = cls.__new__(cls)
        made._parts = tuple(next(rest) for _ in cls._leaf_names())
        made._ends = None
        return made

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        """Move all tensors of PyTorch to a device; other arrays stay."""
        return self._with(lambda part: part.to(device, non_blocking=non_blocking) if _is_tensor(part) else part)

    def pin_memory(self) -> Any:
        """Copy tensors of PyTorch on the CPU into pinned memory; other arrays stay."""
        return self._with(lambda part: part.pin_memory() if _is_tensor(part) and part.device.type == "cpu" else part)

    def __reduce__(self) -> Any:
        return type(self), self._parts

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={_described(part)}" for name, part in zip(self._names, self._parts, strict=True))
        return f"{type(self).__name__}({parts})"


class Ragged(Column[Array]):
    """A column of lists: `column[i]` has the values of sample `i`, a view of `values`.

    Parameters
    ----------
    values : array
        The values of all samples, one after the other.
    offsets : array
        Where each sample begins in `values`, and the end of the last one: int64 of shape (N + 1,).
    """

    __slots__ = ()
    _names = ("values", "offsets")

    @property
    def values(self) -> Array:
        """The values of all samples, one after the other."""
        values: Array = self._parts[0]
        return values

    def _sample(self, number: int, start: int, end: int) -> Any:
        return self.values[start:end]  # type: ignore[index]

    def padded(self, fill: Any = 0, length: int | None = None) -> tuple[Array, Array]:
        """Return the values as one array of a row for each sample, and which of them are values.

        Parameters
        ----------
        fill : number, default 0
            What short rows end with.
        length : int, optional
            Length of a row; longer samples are cut. By default that of the longest sample.

        Returns
        -------
        tuple of array
            Values of shape (N, length, ...), and a mask, bool of shape (N, length).
        """
        made: tuple[Array, Array] = _padded(self.values, self.offsets, fill, length)
        return made


class Tensors(Column[Array]):
    """A column of tensors that differ in shape: `column[i]` is that of sample `i`, a view of `values`.

    Parameters
    ----------
    values : array
        The numbers of all tensors, one after the other, each in row-major order.
    shapes : array
        The shape of each tensor: int64 of shape (N, dimensions).
    offsets : array
        Where each tensor begins in `values`, and the end of the last one: int64 of shape (N + 1,).
    """

    __slots__ = ()
    _names = ("values", "shapes", "offsets")

    @property
    def values(self) -> Array:
        """The numbers of all tensors, one after the other."""
        values: Array = self._parts[0]
        return values

    @property
    def shapes(self) -> Array:
        """The shape of each tensor: int64 of shape (N, dimensions)."""
        shapes: Array = self._parts[1]
        return shapes

    def _sample(self, number: int, start: int, end: int) -> Any:
        shape = _on_host(self.shapes[number]).tolist()  # type: ignore[index]
        values = self.values[start:end]  # type: ignore[index]
        if hasattr(values, "reshape"):
            return values.reshape(shape)
        import tensorflow as tf

        return tf.reshape(values, shape)


class Boxes(Column[Array]):
    """A column of boxes with labels: `column[i]` is `{"boxes": (n, 4), "labels": (n,)}` of sample `i`, views.

    That is what torchvision's detectors take as a target: ``targets = list(batch["boxes"])``.

    Parameters
    ----------
    boxes : array
        The corners of all boxes as x, y, x, y in pixels: float32 of shape (boxes, 4).
    labels : array
        The class of each box, counted as the labels of the batch are: int64 of shape (boxes,).
    offsets : array
        Where the boxes of each sample begin, and the end of the last one: int64 of shape (N + 1,).
    """

    __slots__ = ()
    _names = ("boxes", "labels", "offsets")

    @property
    def boxes(self) -> Array:
        """The corners of all boxes as x, y, x, y in pixels: float32 of shape (boxes, 4)."""
        boxes: Array = self._parts[0]
        return boxes

    @property
    def labels(self) -> Array:
        """The class of each box: int64 of shape (boxes,)."""
        labels: Array = self._parts[1]
        return labels

    def _sample(self, number: int, start: int, end: int) -> Any:
        return {"boxes": self.boxes[start:end], "labels": self.labels[start:end]}  # type: ignore[index]


class Keypoints(Column[Array]):
    """A column of keypoints: `column[i]` is `{"points": (n, 2), "visibility": (n,)}` of sample `i`, views.

    Parameters
    ----------
    points : array
        All points as x, y in pixels: float32 of shape (points, 2).
    visibility : array
        0 for a point that is not labeled, 1 for a hidden one, 2 for a visible one: int64 of shape (points,).
    offsets : array
        Where the points of each sample begin, and the end of the last one: int64 of shape (N + 1,).
    """

    __slots__ = ()
    _names = ("points", "visibility", "offsets")

    @property
    def points(self) -> Array:
        """All points as x, y in pixels: float32 of shape (points, 2)."""
        points: Array = self._parts[0]
        return points

    @property
    def visibility(self) -> Array:
        """0 for a point that is not labeled, 1 for a hidden one, 2 for a visible one: int64 of shape (points,)."""
        visibility: Array = self._parts[1]
        return visibility

    def _sample(self, number: int, start: int, end: int) -> Any:
        return {"points": self.points[start:end], "visibility": self.visibility[start:end]}  # type: ignore[index]


class _Encoded(Column[Any]):
    """A column of encoded values, each decoded when it is read."""

    __slots__ = ()
    _names = ("values", "offsets")

    @property
    def values(self) -> Any:
        """The UTF-8 of all samples, one after the other: uint8."""
        return self._parts[0]

    def _sample(self, number: int, start: int, end: int) -> Any:
        # Shared memory may change after the loader has checked it.
        return self.values[start:end].tobytes().decode("utf-8", errors="replace")

    def _with(self, function: Callable[[Any], Any]) -> Any:
        # No library has tensors of text: the arrays stay what they are.
        return self

    def _leaves(self) -> tuple[Any, ...]:
        return ()

    @classmethod
    def _leaf_names(cls) -> tuple[str, ...]:
        return ()

    @classmethod
    def _from_leaves(cls, rest: Iterator[Any]) -> Any:
        # A tree has arrays only.
        return None

    def __reduce__(self) -> Any:
        # Without the pixels, which are in the same memory.
        return type(self), tuple(part.copy() for part in self._parts)


class Text(_Encoded, Sequence[str]):
    """A column of text: a sequence of `str`, each made when it is read. Its arrays stay on the CPU.

    Parameters
    ----------
    values : array
        The UTF-8 of all samples, one after the other: uint8.
    offsets : array
        Where each sample begins in `values`, and the end of the last one: int64 of shape (N + 1,).
    """

    __slots__ = ()

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)


class Json(_Encoded, Sequence[Any]):
    """A column of lists of text, polygons or JSON: a sequence of Python values, each parsed when it is read.

    Its arrays stay on the CPU.

    Parameters
    ----------
    values : array
        The JSON of all samples, one after the other: uint8, UTF-8.
    offsets : array
        Where each sample begins in `values`, and the end of the last one: int64 of shape (N + 1,).
    """

    __slots__ = ()

    def _sample(self, number: int, start: int, end: int) -> Any:
        text = super()._sample(number, start, end)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            # A server checks what it sends; only a broken one gets here.
            raise ServerError(f"sample {number} of a column is not the JSON that a loader makes: {error}") from error

    def to_list(self) -> list[Any]:
        """Return the values of all samples."""
        return list(self)


def _library(array: Any) -> str:
    return type(array).__module__.split(".")[0]


def _is_tensor(array: Any) -> bool:
    return _library(array) == "torch"


def _on_host(array: Any) -> Any:
    """The array in numpy."""
    if _is_tensor(array):
        return array.cpu().numpy()
    numpy = sys.modules.get("numpy")
    return array if numpy is not None and isinstance(array, numpy.ndarray) else array.__array__()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value if isinstance(value, str) else _on_host(value).tolist()


def _described(array: Any) -> str:
    shape = list(getattr(array, "shape", ()))
    return f"{str(getattr(array, 'dtype', type(array).__name__)).replace('torch.', '')}{shape}"


def _padded(values: Any, offsets: Any, fill: Any, length: int | None) -> Any:
    import numpy as np

    ends = _on_host(offsets)
    lengths = np.diff(ends)
    longest = int(lengths.max(initial=0)) if length is None else operator.index(length)
    if longest < 0:
        raise ValueError(f"length is {longest}: expected 0 or more")
    at = np.arange(longest)
    mask = at < lengths[:, None]
    # The index of each value of a row; any index where there is no value.
    index = np.minimum(ends[:-1, None] + at, max(int(ends[-1]) - 1, 0))
    library = _library(values)
    if library == "torch":
        import torch

        mask = torch.from_numpy(mask).to(values.device)
        made = values.new_full((*mask.shape, *values.shape[1:]), fill)
        made[mask] = values[torch.from_numpy(index).to(values.device)[mask]]
        return made, mask
    if library in ("jax", "jaxlib"):
        import jax.numpy as jnp

        if not values.shape[0]:
            return jnp.full((*mask.shape, *values.shape[1:]), fill, values.dtype), jnp.asarray(mask)
        wide = mask.reshape(*mask.shape, *(1 for _ in values.shape[1:]))
        return jnp.where(wide, values[index], jnp.asarray(fill, values.dtype)), jnp.asarray(mask)
    if library == "tensorflow":
        import tensorflow as tf

        shape = (*mask.shape, *values.shape[1:])
        made = tf.fill(shape, tf.cast(fill, values.dtype))
        where = np.argwhere(mask)
        return tf.tensor_scatter_nd_update(made, where, tf.gather(values, index[mask])), tf.constant(mask)
    made = np.full((*mask.shape, *values.shape[1:]), fill, values.dtype)
    made[mask] = values[index[mask]]
    return made, mask
