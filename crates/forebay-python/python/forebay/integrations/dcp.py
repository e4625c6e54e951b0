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
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from forebay import checkpoint
from forebay._errors import MissingCheckpointError, OptionError

__all__ = ["StorageReader", "StorageWriter"]


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
    ) -> None:
        super().__init__("/", sync_files=False, thread_count=thread_count)
        self.path = os.fspath(path)
        self.fs: Any = _Files()
        self._options: dict[str, Any] = {
            "stage": stage, "keep": keep, "metadata": metadata, "storage_options": storage_options, "timeout": timeout,
        }  # fmt: skip
        self._made: checkpoint.Writer | None = None
        self._saver = threading.current_thread()

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

    def _abort(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.__exit__(InterruptedError, InterruptedError(), None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class StorageReader(FileSystemReader):  # type: ignore[misc]
    """A reader for `torch.distributed.checkpoint.load` of what `StorageWriter` wrote, on any number of ranks.

    Each file that holds something of a rank's state is read as a whole, and compared with its checksum. The fast disk of this machine is read first, where it has the checkpoint. As
    always, torch unpickles the metadata of a checkpoint: load none that comes from strangers.

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

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


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
        self._stage, self._options = stage, storage_options
        self._found: tuple[str, Any, dict[str, int]] | None = None

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
            self._found = location, found, {file["name"]: rank for rank, part in enumerate(parts) for file in part["files"]}
        _, found, ranks = self._found
        if name not in ranks:
            raise MissingCheckpointError(f"{location} has no file {name}: torch.distributed.checkpoint did not save it", location=location)
        yield _Bytes(np.asarray(found.read(ranks[name], name)).data)

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

    def __init__(self, held: memoryview) -> None:
        super().__init__()
        self._held, self._at = held, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._held)}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        piece = self._held[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
