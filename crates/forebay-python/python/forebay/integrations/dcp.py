"""Storage for `torch.distributed.checkpoint`: checkpoints of sharded models through the staging area.

Owns the files of torch's own writer and reader. Importing this module imports torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from forebay import checkpoint
from forebay._errors import MissingCheckpointError, OptionError

__all__ = ["StorageReader", "StorageWriter"]

# Items whose distance is up to this share a read, up to this size: a request to a store takes as long as some of its bytes.
_GAP_BYTES = 1 << 20
_RANGE_BYTES = 64 << 20


class StorageWriter(FileSystemWriter):  # type: ignore[misc]
    """A writer for `torch.distributed.checkpoint.save` and `async_save`: `forebay.checkpoint` with torch's own files.

    A save returns when the part of each rank is safe on its fast disk. The checkpoint is complete, and the latest of its run,
    once all parts are in the store; until then nothing shows it. A killed training loses nothing that was saved. A writer has
    one save in flight. If a save fails on one rank, the parts of others are removed once a later save of that
    checkpoint, or a later checkpoint, is complete; `forebay.checkpoint.wait` names them until then.

    Parameters
    ----------
    path : str or os.PathLike, optional
        Where the checkpoint belongs, as in ``s3://bucket/run/step-1000``; or `checkpoint_id` of each save says it.
    stage, keep, metadata, storage_options, timeout
        As in `forebay.checkpoint.save`.
    thread_count : int, default 1
        Threads of each rank that write, with a file each.
    cache_staged_state_dict : bool, default True
        Keep the memory that `async_save` copies the state to for the next save of a state with the same tensors, which then
        holds training up for less than half of the time. It is pinned where CUDA is available.

    Raises
    ------
    OptionError
        A save without collectives, whose ranks know nothing of each other.

    Examples
    --------
    >>> writer = StorageWriter(keep=3)  # doctest: +SKIP
    >>> dcp.async_save(state, storage_writer=writer, checkpoint_id=f"s3://bucket/run/step-{step}")  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "",
        *,
        stage: str | os.PathLike[str] | None = None,
        keep: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, str] | None = None,
        timeout: float | None = None,
        thread_count: int = 1,
        cache_staged_state_dict: bool = True,
    ) -> None:
        super().__init__("/", sync_files=False, thread_count=thread_count, cache_staged_state_dict=cache_staged_state_dict)
        self.path = os.fspath(path)
        self.fs: Any = _Files()
        self._options: dict[str, Any] = {
            "stage": stage, "keep": keep, "metadata": metadata, "storage_options": storage_options, "timeout": timeout,
        }  # fmt: skip
        self._made: checkpoint.Writer | None = None
        self._saver = threading.current_thread()
        self._outline: object = None
        self._is_saved = True

    def stage(self, state_dict: Any) -> Any:
        if self._saver is threading.current_thread():
            self._abort()  # A save by this thread failed on another rank.
        if not self.cache_staged_state_dict:
            return super().stage(state_dict)
        # The memory of a save that is running, or that failed, is not written to again.
        outline = _outline(state_dict)
        if not self._is_saved or outline != self._outline:
            self.state_dict_cache = None
            try:
                self.state_dict_cache = _create_cpu_state_dict(state_dict, pin_memory=torch.cuda.is_available())
            except RuntimeError:  # There are limits of pinned memory.
                self.state_dict_cache = _create_cpu_state_dict(state_dict)
        self._outline, self._is_saved = outline, False
        return _copy_state_dict(state_dict, self.state_dict_cache, type_check=False)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        saver = self._saver
        if self._made is not None and saver is not threading.current_thread():
            saver.join(1)  # The thread of a save that failed ends.
            if saver.is_alive():
                raise OptionError(f"a save to {self.path} is running: wait for it, or use a writer for each save in flight")
        self._abort()
        super().reset(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise OptionError("use_collectives=False: the ranks of a checkpoint in a store have to know each other")
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        attempt = uuid.uuid4().hex
        return [
            dataclasses.replace(plan, storage_data=_Part(f"__{rank}_", rank, len(plans), attempt)) for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: Any, planner: Any) -> Any:
        part: _Part = plan.storage_data
        self._saver = threading.current_thread()
        self._made = self.fs.made = checkpoint.writer(
            self.path, rank=part.rank, world_size=part.world_size, attempt=part.attempt, **self._options
        )
        try:
            results = super().write_data(plan, planner)
        except BaseException:
            self._abort()
            raise
        if part.rank > 0:  # Rank 0 writes the metadata too, once it has the results of all.
            self._commit()
        return results

    def finish(self, metadata: Any, results: list[Any]) -> None:
        try:
            super().finish(metadata, results)
        except BaseException:
            self._abort()
            raise
        self._commit()

    def _commit(self) -> None:
        made, self._made = cast(checkpoint.Writer, self._made), None
        with made:
            pass
        self._is_saved = True

    def _abort(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.__exit__(InterruptedError, InterruptedError(), None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class StorageReader(FileSystemReader):  # type: ignore[misc]
    """A reader for `torch.distributed.checkpoint.load` of what `StorageWriter` wrote, on any number of ranks.

    Each rank reads the bytes of its items alone, neighbors together, and compares them with the CRC-32 of their zip archives,
    which torch writes; a file that is needed as a whole, or whose items have no valid CRC-32, is compared with its checksum
    as a whole. The fast disk of this machine is read first, where it has the checkpoint. As always, torch unpickles the
    metadata of a checkpoint: load none that comes from strangers.

    Parameters
    ----------
    path : str or os.PathLike, optional
        The checkpoint; or `checkpoint_id` of each load says it.
    stage, storage_options
        As in `forebay.checkpoint.load`.

    Raises
    ------
    MissingCheckpointError
        There is no complete checkpoint.
    CorruptCheckpointError
        A file is not what was saved.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "",
        *,
        stage: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("/")
        self.path = os.fspath(path)
        self.fs: Any = _Files(stage, storage_options)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        self.fs.forget()
        return super().read_metadata(*args, **kwargs)

    def read_data(self, plan: Any, planner: Any) -> Any:
        def place(item: Any) -> tuple[str, int, int]:
            held = self.storage_data[item.storage_index]
            return held.relative_path, held.offset, held.length

        # In the order of the files, so that each range is read once.
        items = sorted(plan.items, key=place)
        self.fs.wanted = {}
        for name, offset, length in map(place, items):
            self.fs.wanted.setdefault(self.fs.concat_path(self.path, name), set()).add((offset, length))
        return super().read_data(dataclasses.replace(plan, items=items), planner)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _outline(state: Any) -> object:
    """Describes the tensors of a state. A copy can take those of any state with the same outline."""
    if isinstance(state, dict):
        return {name: _outline(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [_outline(value) for value in state]
    if not isinstance(state, torch.Tensor):
        return None
    if hasattr(state, "local_shards"):
        return object()  # Each copy of a ShardedTensor has memory of its own.
    layout = (getattr(state, "device_mesh", None), getattr(state, "placements", None))
    return (state.dtype, state.shape, getattr(state, "_local_tensor", state).shape, layout)


@dataclasses.dataclass(frozen=True)
class _Part:
    """The part of a rank in one attempt to save. Torch's writer names its files by `prefix`."""

    prefix: str
    rank: int
    world_size: int
    attempt: str


class _Files:
    """The files of a checkpoint, as torch's storage wants a file system."""

    def __init__(self, stage: str | os.PathLike[str] | None = None, storage_options: Mapping[str, str] | None = None) -> None:
        self.made: checkpoint.Writer | None = None
        # Offset and length of the items that a load reads, by path.
        self.wanted: dict[str, set[tuple[int, int]]] = {}
        self._stage, self._options = stage, storage_options
        self._found: tuple[str, Any, dict[str, tuple[int, int]]] | None = None

    @contextlib.contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[io.IOBase]:
        location, name = path.rsplit("/", 1)
        if mode == "wb":
            # Torch renames its metadata at the end, which is no step here: a checkpoint is complete or absent.
            with cast(checkpoint.Writer, self.made).open(name.removesuffix(".tmp")) as file:
                yield cast(io.IOBase, file)
            return
        if self._found is None or self._found[0] != location:
            found, parts = checkpoint._opened(location, None, self._stage, self._options)
            files = {file["name"]: (rank, file["bytes"]) for rank, part in enumerate(parts) for file in part["files"]}
            self._found = location, found, files
        _, found, files = self._found
        if name not in files:
            raise MissingCheckpointError(f"{location} has no file {name}: torch.distributed.checkpoint did not save it", location=location)
        rank, size = files[name]
        items = self.wanted.get(path, {(0, size)})
        if sum(length for _, length in items) >= size:
            items = {(0, size)}

        def read(offset: int, length: int) -> memoryview:
            if length >= size:
                return np.asarray(found.read(rank, name)).data
            return np.asarray(found.read_range(rank, name, offset, length)).data

        yield _Ranges(size, items, read)

    def concat_path(self, path: str, suffix: str) -> str:
        return f"{path}/{suffix}"

    def forget(self) -> None:
        """Look again for the checkpoint, which may have been replaced."""
        self._found = None

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return os.fspath(path).rstrip("/")

    def rename(self, path: str, new_path: str) -> None:
        pass

    def mkdir(self, path: str) -> None:
        pass

    def exists(self, path: str) -> bool:
        return False


class _Bytes(io.RawIOBase):
    """A file of bytes in memory, which are not copied."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._at = size, 0
        # The bytes that are in memory, and where they begin.
        self._held, self._start = memoryview(b""), 0

    @classmethod
    def of(cls, held: memoryview) -> _Bytes:
        made = cls(len(held))
        made._held = held
        return made

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        begin = self._at - self._start
        piece = self._held[begin : begin + len(buffer)] if begin >= 0 else self._held[:0]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _Ranges(_Bytes):
    """A file of which only `items`, pairs of offset and length, are read, each when it is needed. One range is in memory."""

    def __init__(self, size: int, items: set[tuple[int, int]], read: Callable[[int, int], memoryview]) -> None:
        super().__init__(size)
        self._items, self._ranges, self._read = items, _merged(items), read

    def readinto(self, buffer: Any, /) -> int:
        if not self._start <= self._at < self._start + len(self._held):
            for start, end in self._ranges:
                if start <= self._at < end:
                    self._load(start, end)
                    break
        return super().readinto(buffer)

    def _load(self, start: int, end: int) -> None:
        self._held, self._start = memoryview(b""), start
        held = self._read(start, end - start)
        if end - start < self._size:
            inside = [(at - start, length) for at, length in self._items if start <= at and at + length <= end]
            if not all(_is_sound(held[at : at + length]) for at, length in inside):
                # The checksum of the whole file tells damage from items without a CRC-32.
                held, self._start = self._read(0, self._size), 0
                self._ranges = [(0, self._size)]
        self._held = held


def _merged(items: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges to read, as begin and end: neighbors share one, up to a size."""
    ranges: list[tuple[int, int]] = []
    for offset, length in sorted(items):
        new = offset + length
        start, end = ranges[-1] if ranges else (offset, 0)
        if ranges and (offset < end or (offset - end <= _GAP_BYTES and new - start <= _RANGE_BYTES)):
            ranges[-1] = start, max(end, new)
        else:
            ranges.append((offset, new))
    return ranges


def _is_sound(item: memoryview) -> bool:
    """Whether the item is a zip archive, and its bytes are those of its CRC-32."""
    try:
        with zipfile.ZipFile(cast(Any, _Bytes.of(item))) as archive:
            return archive.testzip() is None
    except Exception:
        return False
