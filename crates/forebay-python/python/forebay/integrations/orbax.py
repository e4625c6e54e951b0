"""Orbax through the staging area: the directory of a run for its checkpointers, and a handler of trees of arrays.

Owns the format of a tree. Importing this module imports JAX and Orbax.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from forebay._errors import CheckpointError, CorruptCheckpointError, OptionError
from forebay.integrations._orbax_paths import Draft, Run, RunPath, run_path

__all__ = ["Handler", "Restore", "Save", "directory"]

_TREE, _ARRAYS = "tree.json", "arrays"
# Arrays share a file up to this size: the unit that a restore reads and compares with its checksum.
_FILE_BYTES = 256 << 20
_KINDS: dict[type, str] = {dict: "dict", list: "list", tuple: "tuple", type(None): "none"}
# Types of JSON.
_VALUES = (bool, int, float, str)

Bounds = tuple[tuple[int, int], ...]


def directory(
    run: str | os.PathLike[str],
    *,
    stage: str | os.PathLike[str] | None = None,
    keep: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Any:
    """The directory of a run, for `CheckpointManager`; its children are checkpoints, for `Checkpointer` and `AsyncCheckpointer`.

    A save ends with Orbax renaming a temporary directory: this commits a checkpoint of `forebay.checkpoint` that has the files
    of all items, once the part of each process is safe on its fast disk. A checkpoint exists, and Orbax lists it, if it is
    complete in the store, or on the fast disk of this machine: anything else is absent. A killed training loses nothing that
    was saved. `max_to_keep` removes a checkpoint once it is uploaded; ``force=True`` removes the old one before it saves.
    Arrays are saved by `Save`: Orbax's own handlers of arrays refuse this directory, and so do its modes of atomicity but
    the default.

    Parameters
    ----------
    run : str or os.PathLike
        Where the checkpoints belong, as in ``s3://bucket/run``.
    stage, keep, storage_options, timeout
        As in `forebay.checkpoint.save`. The last call for a run counts.

    Returns
    -------
    etils.epath.Path
        The directory.

    Examples
    --------
    >>> run = directory("s3://bucket/run")  # doctest: +SKIP
    >>> with ocp.CheckpointManager(run, options=ocp.CheckpointManagerOptions(max_to_keep=3)) as manager:  # doctest: +SKIP
    ...     manager.save(step, args=Save(state))
    ...     state = manager.restore(manager.latest_step(), args=Restore(state))
    """
    return run_path(run, {"stage": stage, "storage_options": storage_options}, {"keep": keep, "timeout": timeout})


class Handler(ocp.AsyncCheckpointHandler):  # type: ignore[misc]
    """A checkpoint handler for a tree of arrays and scalars, in the `directory` of a run.

    Each process writes those of its shards that no other one has; arrays that are not sharded over processes are written by
    the first one, which has to be Orbax's primary host. With several processes a step has one item of this handler.
    A save copies arrays of devices and numpy to memory, and writes them in a thread. Nothing is pickled.
    """

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(1, "forebay-orbax")

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        for future in self._begin(directory, kwargs["args"]):
            future.result()

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return self._begin(directory, kwargs["args"])

    def _begin(self, directory: Any, args: Save) -> list[Any]:
        run, name, item, _ = _placed(directory)
        draft = run.begin(name)
        if item in draft.items:  # Left by a save that failed.
            draft.abort()
            draft = run.begin(name)
        try:
            if jax.process_count() > 1:
                if draft.items:
                    raise OptionError(f"{item}: with several processes a step has one item of arrays: put them into one tree")
                chosen = multihost_utils.broadcast_one_to_all(np.frombuffer(uuid.uuid4().bytes, np.uint8))
                draft.attempt = bytes(chosen).hex()
            draft.items[item] = False
            leaves: list[Any] = []
            tree = _described(args.item, leaves)
            for leaf in leaves:
                if isinstance(leaf, jax.Array):
                    leaf.copy_to_host_async()
            return [self._threads.submit(_write, run, draft, item, tree, [_Leaf.of(leaf) for leaf in leaves])]
        except BaseException:
            draft.abort()
            raise

    def finalize(self, directory: Any) -> None:
        run, name, item, _ = _placed(directory)
        if not run.draft(name).items.get(item):
            raise CheckpointError(f"the arrays of {directory} are not written", location=run.at(name))

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        found = _Found(directory)
        given = kwargs["args"].item
        if given is None:
            return _built(found.tree, found.restored([None] * len(found.leaves)))
        wanted, structure = jax.tree_util.tree_flatten_with_path(given)
        places = dict(_places(found.tree))
        paths = [tuple(_name(key) for key in path) for path, _ in wanted]
        if wrong := set(paths).symmetric_difference(places):
            first = "/".join(map(str, min(wrong, key=str)))
            raise OptionError(f"the tree to restore is not that of {directory}: only one of them has {first}")
        targets: list[Any] = [None] * len(paths)
        for path, (_, leaf) in zip(paths, wanted, strict=True):
            targets[places[path]] = leaf
        values = found.restored(targets)
        return structure.unflatten([values[places[path]] for path in paths])

    def metadata(self, directory: Any) -> Any:
        """The tree, with a `jax.ShapeDtypeStruct` for each array."""
        found = _Found(directory)
        return _built(found.tree, [leaf.value if leaf.kind == "value" else jax.ShapeDtypeStruct(leaf.shape, leaf.numpy) for leaf in found.leaves])

    def close(self) -> None:
        self._threads.shutdown()


@ocp.args.register_with_handler(Handler, for_save=True)
@dataclasses.dataclass
class Save(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """Saves a tree.

    Parameters
    ----------
    item : tree
        Arrays of JAX and numpy, and numbers, bools and texts, in dicts, lists, tuples and nodes that JAX knows.
    """

    item: Any


@ocp.args.register_with_handler(Handler, for_restore=True)
@dataclasses.dataclass
class Restore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """Restores a tree.

    Parameters
    ----------
    item : tree, optional
        A tree of the same structure that says how: arrays, `jax.ShapeDtypeStruct` or `orbax.checkpoint.ArrayRestoreArgs`, whose
        sharding and dtype count. Each process reads the files that have its shards. Left out, arrays are on the default
        device, and nodes that are no dict, list or tuple come back as dicts.
    """

    item: Any = None


@dataclasses.dataclass
class _Leaf:
    """An array or value of a tree, and where its pieces are: file, offset, and begin and end in each dimension."""

    kind: str
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    value: Any = None
    pieces: list[tuple[int, int, Bounds]] = dataclasses.field(default_factory=list)
    # The content of these pieces, when they are saved.
    content: list[tuple[Bounds, np.ndarray[Any, Any]]] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, value: Any) -> _Leaf:
        """Takes the shards of an array that this process writes to the memory of the host."""
        if type(value) in _VALUES:
            return cls("value", value=value)
        if not isinstance(value, jax.Array | np.ndarray | np.generic):
            raise OptionError(f"an object of type {type(value).__name__} cannot be saved: arrays, numbers, bools and texts can")
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise OptionError("a key of jax.random cannot be saved as it is: save its jax.random.key_data")
        dtype = value.dtype.name if value.dtype.kind == "V" else value.dtype.str
        if value.dtype.hasobject or np.dtype(dtype) != value.dtype:
            raise OptionError(f"an array of dtype {value.dtype} cannot be saved")
        shape = tuple(value.shape)
        if isinstance(value, jax.Array):
            made = cls("jax", dtype, shape)
            if jax.process_index() == 0 or not value.is_fully_addressable:
                shards = [shard for shard in value.addressable_shards if shard.replica_id == 0]
                # A view: while one exists JAX gives the memory to no other array.
                made.content = [(_bounds(shard.index, shape), np.asarray(shard.data)) for shard in shards]
            return made
        made = cls("numpy" if isinstance(value, np.ndarray) else "number", dtype, shape)
        if jax.process_index() == 0:
            made.content = [(tuple((0, size) for size in shape), np.array(value))]
        return made

    @classmethod
    def read(cls, kind: str, dtype: str | None, shape: list[int], value: Any, pieces: list[Any]) -> _Leaf:
        made = cls(kind, dtype, tuple(shape), value)
        made.pieces = [(file, offset, tuple((begin, end) for begin, end in bounds)) for file, offset, bounds in pieces]
        for _, offset, bounds in made.pieces:
            inside = all(0 <= begin <= end <= size for (begin, end), size in zip(bounds, shape, strict=True))
            if not inside or offset < 0:
                raise ValueError(f"a piece at {offset} of {bounds}, of an array of {shape}")
        return made

    @property
    def numpy(self) -> np.dtype[Any]:
        made = np.dtype(self.dtype)
        if self.dtype is None or made.hasobject or self.dtype not in (made.name, made.str):
            raise ValueError(f"dtype {self.dtype}")
        return made

    def restored(self, arrays: dict[Bounds, np.ndarray[Any, Any]], target: Any) -> Any:
        dtype, sharding = getattr(target, "dtype", None), getattr(target, "sharding", None)
        if self.kind == "value":
            return self.value if dtype is None else np.asarray(self.value, dtype)[()]
        if sharding is not None:
            dtype = dtype or self.numpy
            made = jax.make_array_from_callback(
                self.shape, sharding, lambda index: arrays[_bounds(index, self.shape)].astype(dtype, copy=False)
            )
        else:
            (array,) = arrays.values()
            array = array.astype(dtype or array.dtype, copy=False)
            if type(target) in _VALUES:
                return type(target)(array[()])
            as_numpy = isinstance(target, np.ndarray | np.generic) or getattr(target, "restore_type", None) is np.ndarray
            if as_numpy or (target is None and self.kind != "jax"):
                return array[()] if self.kind == "number" else array
            dtype, made = array.dtype, jax.device_put(array)
        if made.dtype != dtype:
            raise OptionError(f"an array of {dtype} cannot be restored: JAX makes it {made.dtype} unless jax_enable_x64 is set")
        return made


class _Found:
    """A tree that was saved."""

    def __init__(self, directory: Any) -> None:
        run, self._name, self._item, _ = _placed(directory)
        self._opened, parts = run.opened(self._name)
        try:
            saved = [json.loads(bytes(self._bytes(rank, _join(self._item, _TREE)))) for rank in range(len(parts))]
            if any(rank["version"] != 1 for rank in saved):
                raise ValueError("it has another version than 1")
            self.tree = saved[0]["tree"]
            self._ranks = [[_Leaf.read(*leaf) for leaf in rank["leaves"]] for rank in saved]
            self.leaves = self._ranks[0]
            if sorted(number for _, number in _places(self.tree)) != list(range(len(self.leaves))):
                raise ValueError("its leaves are not those of the structure")
            sizes = [{file["name"]: file["bytes"] for file in part["files"]} for part in parts]
            for number, leaf in enumerate(self.leaves):
                left = 0 if leaf.kind == "value" else math.prod(leaf.shape)
                for rank, leaves in enumerate(self._ranks):
                    for file, offset, bounds in leaves[number].pieces:
                        left -= _count(bounds)
                        if offset + _count(bounds) * leaf.numpy.itemsize > sizes[rank][self._file(file)]:
                            raise ValueError(f"a piece of leaf {number} is beyond the end of its file")
                if left:
                    raise ValueError(f"leaf {number} lacks {left} elements")
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            place = run.at(self._name)
            raise CorruptCheckpointError(f"{place}: {_TREE} is invalid: {error}", location=place, file=_TREE) from None

    def _file(self, number: int) -> str:
        return _join(self._item, f"{_ARRAYS}-{number}")

    def _bytes(self, rank: int, name: str) -> np.ndarray[Any, Any]:
        return np.asarray(self._opened.read(rank, name))

    def restored(self, targets: list[Any]) -> list[Any]:
        """The leaves as `targets` say, of the shards of this process."""
        arrays: list[dict[Bounds, np.ndarray[Any, Any]]] = []
        files: dict[tuple[int, int], list[tuple[int, int, Bounds]]] = {}
        for number, (leaf, target) in enumerate(zip(self.leaves, targets, strict=True)):
            arrays.append({})
            if leaf.kind == "value":
                continue
            shape = getattr(target, "shape", None)
            if shape is not None and tuple(shape) != leaf.shape:
                raise OptionError(f"an array of shape {leaf.shape} cannot be restored into one of {shape}")
            sharding = getattr(target, "sharding", None)
            indices = sharding.addressable_devices_indices_map(leaf.shape).values() if sharding else [(slice(None),) * len(leaf.shape)]
            arrays[number] = {_bounds(index, leaf.shape): np.empty(0) for index in indices}
            for bounds in arrays[number]:
                arrays[number][bounds] = np.zeros([end - begin for begin, end in bounds], leaf.numpy)
            for rank, leaves in enumerate(self._ranks):
                for file, offset, bounds in leaves[number].pieces:
                    if any(_count(_common(bounds, wanted)) for wanted in arrays[number]):
                        files.setdefault((rank, file), []).append((number, offset, bounds))
        for (rank, file), pieces in sorted(files.items()):
            content = self._bytes(rank, self._file(file))
            for number, offset, bounds in pieces:
                dtype = self.leaves[number].numpy
                piece = content[offset : offset + _count(bounds) * dtype.itemsize].view(dtype)
                piece = piece.reshape([end - begin for begin, end in bounds])
                for wanted, array in arrays[number].items():
                    common = _common(bounds, wanted)
                    if _count(common):
                        array[_within(common, wanted)] = piece[_within(common, bounds)]
        return [leaf.restored(held, target) for leaf, held, target in zip(self.leaves, arrays, targets, strict=True)]


def _placed(directory: Any) -> tuple[Run, str, str, bool]:
    if not isinstance(directory, RunPath):
        raise OptionError(f"{directory} is below no directory of a run: make one by forebay.integrations.orbax.directory")
    return directory.place()


def _join(item: str, name: str) -> str:
    return f"{item}/{name}" if item else name


def _name(key: Any) -> str | int:
    """The name of a child in its node."""
    for kind in ("key", "idx", "name"):
        if isinstance(name := getattr(key, kind, None), str | int):
            return name
    raise OptionError(f"the key {key} of a tree cannot be saved: texts and integers can")


def _described(node: Any, leaves: list[Any]) -> Any:
    """The structure of a tree as JSON: the number of a leaf, or the kind of a node, and names and structures of its children."""
    children = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda below: below is not node)[0]
    if children and not children[0][0]:
        leaves.append(node)
        return len(leaves) - 1
    return [_KINDS.get(type(node), "node"), [[_name(path[0]), _described(child, leaves)] for path, child in children]]


def _built(tree: Any, values: list[Any]) -> Any:
    if isinstance(tree, int):
        return values[tree]
    kind, children = tree
    made = {name: _built(child, values) for name, child in children}
    return None if kind == "none" else {"list": list, "tuple": tuple}[kind](made.values()) if kind in ("list", "tuple") else made


def _places(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """The path and number of each leaf."""
    if isinstance(tree, int):
        yield path, tree
        return
    for name, child in tree[1]:
        yield from _places(child, (*path, name))


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    return tuple(one.indices(size)[:2] for one, size in zip(index, shape, strict=True))


def _count(bounds: Bounds) -> int:
    return math.prod(max(0, end - begin) for begin, end in bounds)


def _common(first: Bounds, second: Bounds) -> Bounds:
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))


def _within(bounds: Bounds, outer: Bounds) -> tuple[slice, ...]:
    return tuple(slice(begin - start, end - start) for (begin, end), (start, _) in zip(bounds, outer, strict=True))


def _write(run: Run, draft: Draft, item: str, tree: Any, leaves: list[_Leaf]) -> None:
    try:
        writer = run.writer(draft, sum(array.nbytes for leaf in leaves for _, array in leaf.content))
        count, file = 0, writer.open(_join(item, f"{_ARRAYS}-0"))
        for leaf in leaves:
            for bounds, array in leaf.content:
                if file.tell() >= _FILE_BYTES:
                    file.close()
                    count, file = count + 1, writer.open(_join(item, f"{_ARRAYS}-{count + 1}"))
                leaf.pieces.append((count, file.tell(), bounds))
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            leaf.content = []
        said = {"version": 1, "tree": tree, "leaves": [[leaf.kind, leaf.dtype, leaf.shape, leaf.value, leaf.pieces] for leaf in leaves]}
        writer.open(_join(item, _TREE)).write(json.dumps(said).encode())
        draft.items[item] = True
        if jax.process_index() > 0:  # The first process has Orbax's files too, and commits at the end.
            run.commit(draft)
    except BaseException:
        draft.abort()
        raise
