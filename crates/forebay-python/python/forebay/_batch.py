"""Batches of arrays of torch, JAX, TensorFlow or numpy, and how these libraries walk them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeAlias, TypeVar

from forebay._columns import Column

Array = TypeVar("Array")

# Arrays that a batch may have, in the order in which it lists them.
_NAMES = ("images", "labels", "samples", "datasets", "padding", "failed", "labels_b", "lam")

# Epoch, step, position and layout of a batch.
_Place: TypeAlias = tuple[int | None, int | None, int | None, str | None]
_NOWHERE: _Place = (None, None, None, None)


class _Name(str):
    """The name of an array, with the place of its batch; or the name of a column.

    Packages that rebuild a batch as `type(batch)({name: f(array) for name, array in batch.items()})`
    hand these names back, and the place with them.
    """

    place: _Place | None = None

    def __reduce__(self) -> Any:
        return str, (str(self),)


class TensorBatch(Generic[Array]):
    """Images, labels and masks as arrays of one library, and the place of the batch in the epoch.

    The pair `(images, labels)`: `images, labels = batch` works, `len(batch)` is 2, and `batch[0]` is the
    images. `batch["padding"]` is an array by its name, and `dict(batch)` has all of them. So are the columns that the
    loader's option `columns` names: `batch["caption"]`.

    JAX, PyTorch and TensorFlow treat it as a tree of its arrays: `jax.jit`, `jax.tree.map`,
    `torch.utils._pytree.tree_map` and `tf.function` accept it. The tree does not include `epoch`, `step` and
    `position`, so functions compile once for all steps; these three are None in a batch that was made from a tree.

    Parameters
    ----------
    pair : iterable or mapping
        The images and the labels; or arrays by name, as in `dict(batch)`.
    of : Batch, optional
        The batch that they were made of. It supplies all other arrays, and the place in the epoch.
    padding, failed, labels_b, lam, samples, datasets : array, optional
        By default those of `of`.
    layout : {"nhwc", "nchw"}, optional
        By default that of `of`.
    """

    __slots__ = ("__weakref__", "_arrays", "_place")

    _arrays: dict[str, Any]
    _place: _Place

    def __init__(
        self,
        pair: Iterable[Array] | Mapping[str, Any],
        *,
        of: Any = None,
        padding: Any = None,
        failed: Any = None,
        labels_b: Any = None,
        lam: Any = None,
        samples: Any = None,
        datasets: Any = None,
        layout: str | None = None,
    ) -> None:
        given = {
            "padding": padding,
            "failed": failed,
            "labels_b": labels_b,
            "lam": lam,
            "samples": samples,
            "datasets": datasets,
        }
        place = _place_of(of)
        if isinstance(pair, Mapping | TensorBatch):
            for name, array in pair.items():
                place = getattr(name, "place", None) or place
                if name not in _NAMES and not isinstance(name, _Name):
                    raise TypeError(f"a batch has no array {str(name)!r}: expected one of {', '.join(_NAMES)}")
                given[str(name)] = array
        else:
            given["images"], given["labels"] = pair
        self._arrays = {}
        for name in _NAMES:
            array = given.get(name)
            if array is None:
                array = getattr(of, name, None)
            if array is not None:
                self._arrays[name] = array
        further = [name for name in given if name not in _NAMES]
        for name in further + [name for name in _columns_of(of) if name not in given]:
            self._arrays[_Name(name)] = given[name] if name in given else of[name]
        self._place = place if layout is None else (*place[:3], layout)
        _register()

    @classmethod
    def _made(cls, arrays: dict[str, Any], place: _Place) -> Any:
        """Makes a batch of any values: libraries put None and placeholders where arrays were."""
        self = cls.__new__(cls)
        self._arrays = arrays
        self._place = place
        return self

    def _with(self, function: Callable[[Any], Any], ragged: bool = True) -> Any:
        """Applies `function` to each array, those of ragged columns only if `ragged`; the place stays."""
        made = {
            name: (array._with(function) if ragged else array) if isinstance(array, Column) else function(array)
            for name, array in self._arrays.items()
        }
        return self._made(made, self._place)

    # The pair.

    def __iter__(self) -> Iterator[Array]:
        return iter((self.images, self.labels))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> Any:
        return self._arrays[key] if isinstance(key, str) else (self.images, self.labels)[key]

    # Arrays by name.

    def __contains__(self, key: object) -> bool:
        return key in self._arrays if isinstance(key, str) else any(key is side for side in self)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an array by its name, or `default` if the batch has none of that name."""
        return self._arrays.get(name, default)

    def keys(self) -> Iterable[str]:
        """Return the names of the arrays."""
        return self._arrays.keys()

    def values(self) -> Iterable[Any]:
        """Return the arrays."""
        return self._arrays.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return pairs of a name and an array."""
        items = []
        for key, array in self._arrays.items():
            name = _Name(key)
            name.place = self._place
            items.append((name, array))
        return items

    @property
    def columns(self) -> list[str]:
        """The names of the columns that the loader's option `columns` asked for."""
        return [str(name) for name in self._arrays if name not in _NAMES]

    @property
    def images(self) -> Array:
        """The first of the pair: (N, H, W, 3) or (N, 3, H, W), as the loader says."""
        images: Array = self._arrays["images"]
        return images

    @property
    def labels(self) -> Array:
        """The second of the pair: (N,)."""
        labels: Array = self._arrays["labels"]
        return labels

    @property
    def samples(self) -> Any:
        """The number of each sample in its split: int64 of shape (N,), as `padding`."""
        return self._arrays.get("samples")

    @property
    def datasets(self) -> Any:
        """The number of each sample's dataset in the `Mix`: int64 of shape (N,), as `padding`; None without one."""
        return self._arrays.get("datasets")

    @property
    def padding(self) -> Any:
        """Which samples are padding: bool of shape (N,), where and what the images are.

        Only the last batch of an epoch has any, and only with `drop_last=False`.
        """
        return self._arrays.get("padding")

    @property
    def failed(self) -> Any:
        """Which samples could not be read or decoded, and were replaced: bool of shape (N,), as `padding`.

        Only with `on_error="skip"` or `on_error="zero"`.
        """
        return self._arrays.get("failed")

    @property
    def labels_b(self) -> Any:
        """The label of each sample's partner: int64 of shape (N,), as `padding`; None without `batch_transform`."""
        return self._arrays.get("labels_b")

    @property
    def lam(self) -> Any:
        """The share of each sample itself: float32 of shape (N,), as `padding`; None without `batch_transform`.

        The rest is its partner's: the loss is `lam * loss(labels) + (1 - lam) * loss(labels_b)`.
        """
        return self._arrays.get("lam")

    @property
    def layout(self) -> str | None:
        """The order of the axes of `images`: "nhwc" or "nchw"."""
        return self._place[3]

    @property
    def epoch(self) -> int | None:
        """The epoch, from 0."""
        return self._place[0]

    @property
    def step(self) -> int | None:
        """The number of the batch in its epoch, from 0; the same on every rank."""
        return self._place[1]

    @property
    def position(self) -> int | None:
        """How many samples of the epoch all ranks together were given before this batch."""
        return self._place[2]

    def __repr__(self) -> str:
        sides = ", ".join(str(getattr(side, "shape", type(side).__name__)) for side in self)
        return f"{type(self).__name__}({sides}, epoch={self.epoch}, step={self.step})"

    def __reduce__(self) -> Any:
        return _unpickled, (type(self), dict(self._arrays), self._place)

    # The protocol of tf.nest.

    def __tf_flatten__(self) -> tuple[Any, tuple[Any, ...]]:
        arrays, static = _flatten(self)
        return static, tuple(arrays)

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, components: Any) -> Any:
        return _unflatten(cls, metadata, components)


class TorchBatch(TensorBatch[Array]):
    """A `TensorBatch` of tensors of PyTorch.

    Lightning, Accelerate, transformers and PyTorch's DataLoader move, slice, gather and concatenate all of its
    tensors. They treat it as a mapping from names to tensors; a loop over it still gives the pair.
    """

    __slots__ = ()

    def to(self, device: Any, non_blocking: bool = False) -> TorchBatch[Any]:
        """Move all tensors to a device.

        Encoded images, a list of tensors, stay on the CPU.

        Parameters
        ----------
        device : torch.device or str
            The device.
        non_blocking : bool, default False
            Whether to return before copies from pinned memory end.

        Returns
        -------
        TorchBatch
            The batch on the device.
        """
        if type(device).__name__ == "dtype":
            raise TypeError(f"to({device}) failed: expected a device; convert batch.images to another type instead")
        moved: TorchBatch[Any] = self._with(
            lambda tensor: tensor.to(device, non_blocking=non_blocking) if hasattr(tensor, "to") else tensor
        )
        return moved

    def pin_memory(self) -> TorchBatch[Any]:
        """Copy tensors on the CPU into pinned memory, which allows asynchronous copies to a GPU.

        Returns
        -------
        TorchBatch
            The batch in pinned memory.
        """

        def pinned(tensor: Any) -> Any:
            return tensor.pin_memory() if getattr(getattr(tensor, "device", None), "type", None) == "cpu" else tensor

        made: TorchBatch[Any] = self._with(pinned)
        return made

    # The default conversion of PyTorch's DataLoader computes `{key: f(batch[key]) for key in batch}` and passes it to
    # `update` of a copy. The iterator yields the pair, so images and labels serve as keys of themselves.

    def _name(self, key: Any) -> str:
        for name in ("images", "labels"):
            if self._arrays.get(name) is key:
                return name
        if not isinstance(key, str) or (key not in _NAMES and key not in self._arrays):
            known = [*_NAMES, *self.columns]
            raise KeyError(f"a batch has no array {key!r}: expected one of {', '.join(known)}")
        return str(key)

    def __getitem__(self, key: Any) -> Any:
        return key if any(key is side for side in self) else super().__getitem__(key)

    def __setitem__(self, key: Any, array: Any) -> None:
        self._arrays[self._name(key)] = array

    def __delitem__(self, key: str) -> None:
        del self._arrays[key]

    def update(self, arrays: Mapping[Any, Any]) -> None:
        """Replace arrays by name."""
        for name, array in [(self._name(key), array) for key, array in arrays.items()]:
            self._arrays[name] = array


# Accelerate walks tuples, lists and mappings only, and a walk over a tuple would see the pair alone. TensorBatch itself
# is no mapping: TensorFlow would take the pair for its keys.
MutableMapping.register(TorchBatch)


def _columns_of(of: Any) -> list[str]:
    return list(getattr(of, "columns", None) or [])


def _place_of(of: Any) -> _Place:
    if of is None:
        return _NOWHERE
    epoch, step, position, layout = (getattr(of, name, None) for name in ("epoch", "step", "position", "layout"))
    return epoch, step, position, layout


def _unpickled(cls: type[TensorBatch[Any]], arrays: dict[str, Any], place: _Place) -> Any:
    _register()
    return cls._made({name if name in _NAMES else _Name(name): array for name, array in arrays.items()}, place)


# Batches as trees. The static part is the same for each batch of a loader, or functions would be compiled per step.


def _flatten(batch: TensorBatch[Any]) -> tuple[list[Any], tuple[tuple[tuple[str, Any], ...], str | None]]:
    arrays: list[Any] = []
    names: list[tuple[str, Any]] = []
    for name, array in batch._arrays.items():
        # A column stands for its arrays. Text has none that a library could take.
        if isinstance(array, Column):
            arrays.extend(array._leaves())
            names.append((str(name), type(array)))
        else:
            arrays.append(array)
            names.append((str(name), None))
    return arrays, (tuple(names), batch.layout)


def _paths(names: Iterable[tuple[str, Any]]) -> list[str]:
    """The name of each array of a tree."""
    paths = []
    for name, column in names:
        paths += [name] if column is None else [f"{name}.{part}" for part in column._leaf_names()]
    return paths


def _unflatten(cls: type[TensorBatch[Any]], static: Any, arrays: Iterable[Any]) -> Any:
    names, layout = static
    rest = iter(arrays)
    made = {}
    for name, column in names:
        value = next(rest) if column is None else column._from_leaves(rest)
        if column is None or value is not None:
            made[name if name in _NAMES else _Name(name)] = value
    return cls._made(made, (None, None, None, layout))


def _for_torch(torch: Any) -> bool:
    pytree = getattr(getattr(torch, "utils", None), "_pytree", None)
    if not hasattr(pytree, "register_pytree_node"):
        return False
    for cls in (TensorBatch, TorchBatch):
        pytree.register_pytree_node(  # type: ignore[union-attr]
            cls,
            _flatten,
            lambda arrays, static, cls=cls: _unflatten(cls, static, arrays),
            serialized_type_name=f"{cls.__module__}.{cls.__name__}",
        )
    return True


def _for_jax(jax: Any) -> bool:
    util = getattr(jax, "tree_util", None)
    if not hasattr(util, "register_pytree_with_keys"):
        return False
    for cls in (TensorBatch, TorchBatch):

        def with_keys(batch: TensorBatch[Any]) -> Any:
            arrays, static = _flatten(batch)
            return [(util.GetAttrKey(name), array) for name, array in zip(_paths(static[0]), arrays, strict=True)], static  # type: ignore[union-attr]

        util.register_pytree_with_keys(  # type: ignore[union-attr]
            cls, with_keys, lambda static, arrays, cls=cls: _unflatten(cls, static, arrays), _flatten
        )
    return True


# Libraries in which batches are not registered yet.
_walkers: dict[str, Callable[[Any], bool]] = {"torch": _for_torch, "jax": _for_jax}


def _register() -> None:
    """Registers batches in the libraries that are imported already; imports none."""
    for name in [name for name in _walkers if name in sys.modules]:
        if register := _walkers.pop(name, None):
            if not register(sys.modules[name]):
                # Another thread is importing it; retry with the next batch.
                _walkers[name] = register
