"""Checkpoints that are saved on a fast disk, and drain into a store behind the training.

`save` returns when the checkpoint is safe in a staging area on a fast local disk: forced to disk, with a durable marker.
A thread then brings it where it belongs: an object store, or a directory on a slow or shared disk. It is complete there
once its manifest is, which is published last, so nothing half-written is ever the `latest`. Draining yields to the reads
of loaders in the same process.

A process that ends, or is killed, loses nothing: the next `save` on the same staging area goes on, and so do
``forebay stage drain`` and ``forebay stage recover``.

    for epoch in range(90):
        train(model)
        forebay.checkpoint.save(model.state_dict(), f"s3://bucket/run/epoch-{epoch:03}", format="torch", keep=3)
    forebay.checkpoint.wait()

    last = forebay.checkpoint.latest("s3://bucket/run")
    model.load_state_dict(forebay.checkpoint.load(last))

The number in a checkpoint's name, the last one if there are several, is its step: it says which is the latest and which
are kept. Bytes, arrays, files and directories are saved as they are; torch's objects by torch itself, or as safetensors.
Nothing is pickled by Forebay, and nothing is unpickled.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import json
import os
import pathlib
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, BinaryIO, Literal, cast

from forebay import _checkpoint_content as content
from forebay._errors import CheckpointError, OptionError, TimeoutError
from forebay._forebay import (
    Saved,
    _Checkpoint,
    _checkpoint_area,
    _checkpoint_latest,
    _checkpoint_list,
    _checkpoint_pin,
    _checkpoint_share,
    _CheckpointBuffer,
    _CheckpointDraft,
    _CheckpointRequest,
)

__all__ = [
    "Info",
    "Saved",
    "Writer",
    "configure",
    "latest",
    "list",
    "load",
    "metadata",
    "pending",
    "pin",
    "recover",
    "save",
    "unpin",
    "wait",
    "writer",
]

_Path = str | os.PathLike[str]
_Options = Mapping[str, str] | None


@dataclass
class _Settings:
    """What `configure` sets."""

    stage: str | None = None
    max_bytes: int | None = None
    bandwidth: int | None = None
    keep_local: int = 1
    at_exit: Literal["leave", "wait"] = "leave"


@dataclass
class _Process:
    """What this process has; a forked child begins with a new one."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    buffers: dict[str, _CheckpointBuffer] = field(default_factory=dict)
    # Handles whose failure nobody was told of.
    open: builtins.list[Saved] = field(default_factory=builtins.list)


_settings = _Settings()
_process = _Process()


def _forked() -> None:
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_forked)


def configure(
    *,
    stage: _Path | None = None,
    max_bytes: int | None = None,
    bandwidth: int | None = None,
    share: int = 20,
    keep_local: int = 1,
    at_exit: Literal["leave", "wait"] = "leave",
) -> None:
    """Say how this process stages and drains, before its first save.

    Parameters
    ----------
    stage : str or os.PathLike, optional
        The staging area: a directory on a fast local disk. By default what FOREBAY_STAGING says, else
        ``~/.cache/forebay/stage``. Processes may share one.
    max_bytes : int, optional
        Bytes that all files in the area may take: a `save` that finds it full waits until others are drained. By default
        what the disk has.
    bandwidth : int, optional
        Bytes a second that draining may take.
    share : int, default 20
        What draining gets of the bytes while loaders of this process read from a store, in percent. While nothing is
        read it runs freely.
    keep_local : int, default 1
        How many drained checkpoints of a run stay in the area, for loading. They make room when room is needed.
    at_exit : {"leave", "wait"}, default "leave"
        What happens at the end of the process to what is not drained: it is left in the area, and a message says so, or
        it is waited for.

    Raises
    ------
    OptionError
        An option that cannot work, or a staging area that is in use with other options.
    """
    if not 0 <= share <= 100:
        raise OptionError(f"share={share}: it is a percentage")
    if at_exit not in ("leave", "wait"):
        raise OptionError(f'at_exit={at_exit!r}: it is "leave" or "wait"')
    if keep_local < 0:
        raise OptionError(f"keep_local={keep_local}: it is a number of checkpoints")
    for name, number in {"max_bytes": max_bytes, "bandwidth": bandwidth}.items():
        if number is not None and number < 1:
            raise OptionError(f"{name}={number}: it is a number of bytes")
    with _process.lock:
        if _process.buffers:
            raise OptionError("configure() comes before the first save of a process")
        _settings.stage = None if stage is None else os.fspath(stage)
        _settings.max_bytes, _settings.bandwidth = max_bytes, bandwidth
        _settings.keep_local, _settings.at_exit = keep_local, at_exit
        _checkpoint_share(share)


def _area(stage: _Path | None) -> str:
    """The staging area's path, with one spelling for each."""
    chosen = _settings.stage if stage is None else os.fspath(stage)
    return os.path.abspath(_checkpoint_area() if chosen is None else chosen)


def _options(storage_options: _Options) -> dict[str, str]:
    found = dict(storage_options or {})
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise OptionError(f"storage_options: {name!r} and its value have to be str")
    return found


def _buffer(stage: _Path | None, location: str | None, options: dict[str, str]) -> _CheckpointBuffer:
    """The area, opened; the first time, what was left in it is taken up."""
    area = _area(stage)
    with _process.lock:
        found = _process.buffers.get(area)
        if found is None:
            if not _process.buffers:
                atexit.register(_at_exit)
            found = _CheckpointBuffer(area, _settings.max_bytes, _settings.bandwidth, _settings.keep_local)
            _process.buffers[area] = found
            _process.open += found.recover(location, options)
        return found


def save(
    value: Any,
    location: _Path,
    *,
    format: Literal["torch", "safetensors"] | None = None,
    stage: _Path | None = None,
    keep: int | None = None,
    overwrite: bool = True,
    metadata: Mapping[str, Any] | None = None,
    rank: int = 0,
    world_size: int = 1,
    attempt: str | None = None,
    storage_options: _Options = None,
    timeout: float | None = None,
) -> Saved:
    """Save a checkpoint: returns when it is safe on the fast disk, and drains behind.

    Other threads run meanwhile. What was begun and did not get safe, for whatever reason, leaves nothing.

    Parameters
    ----------
    value : object
        Bytes; the path of a file or of a directory, which is copied; an array, or a dict of names to bytes or to
        arrays; and with `format` what that library takes.
    location : str or os.PathLike
        Where it belongs, as in ``s3://bucket/run/step-1000`` or ``/shared/run/step-1000``.
    format : {"torch", "safetensors"}, optional
        Who writes the object: `torch.save`, or safetensors for a dict of tensors or arrays.
    stage : str or os.PathLike, optional
        The staging area; by default what `configure` says.
    keep : int, optional
        Once this checkpoint is complete, only so many of its run stay: the newest ones up to it. Those that are pinned,
        or being read on this machine, stay as well. By default none is removed.
    overwrite : bool, default True
        Whether another checkpoint in that place is replaced, at the moment that this one is complete.
    metadata : dict, optional
        Kept in the manifest, as JSON: a loader's `state_dict()`, say.
    rank, world_size : int, default 0 of 1
        For a checkpoint that several processes save parts of. It is complete once all are there.
    attempt : str, optional
        With `world_size`: a text that all ranks have, and no other attempt to save this checkpoint has had, such as a
        random one that rank 0 sent to the others. Without it parts of two attempts could be mixed.
    storage_options : dict, optional
        How the store is reached: "endpoint", "region", "anonymous", and what its kind takes. Secrets are not written
        to disk: after a crash they come from the environment, or from the next save into the same bucket.
    timeout : float, optional
        Seconds to wait for room in the staging area.

    Returns
    -------
    Saved
        The handle, for `wait`, `done` and `error`.

    Raises
    ------
    OptionError
        An object that cannot be saved, or options that cannot work.
    CheckpointError
        The staging area is too small, or its disk failed.
    TimeoutError
        There was no room in time.
    """
    with writer(
        location,
        stage=stage,
        keep=keep,
        overwrite=overwrite,
        metadata=metadata,
        rank=rank,
        world_size=world_size,
        attempt=attempt,
        storage_options=storage_options,
        timeout=timeout,
        bytes=content.size_of(value),
    ) as made:
        made._content = content.write(made._draft, value, format)
    return made.saved


class Writer:
    """A checkpoint that is written file by file; made by `writer`, and committed at the end of its ``with``.

    An exception in the ``with`` gives the checkpoint up, and leaves nothing.
    """

    def __init__(self, buffer: _CheckpointBuffer, draft: _CheckpointDraft, request: _CheckpointRequest, location: str) -> None:
        self._buffer, self._draft = buffer, draft
        self._request, self._location = request, location
        self._content = "files"
        self._paths: builtins.list[str] = []
        self._files: builtins.list[content.DraftWriter] = []
        self._saved: Saved | None = None

    def open(self, name: str) -> BinaryIO:
        """Begin a file, to be written from its beginning to its end.

        Parameters
        ----------
        name : str
            Its name: a relative path.

        Returns
        -------
        file object
            For what takes one: ``torch.save(state, writer.open("state.pt"))``. Close it, or leave that to the commit.
        """
        file = content.DraftWriter(self._draft, name)
        self._files.append(file)
        return cast(BinaryIO, file)

    def path(self, name: str) -> str:
        """A path in the staging area for a library that writes to paths.

        Parameters
        ----------
        name : str
            The file's name in the checkpoint: a relative path. It has to be written before the commit.

        Returns
        -------
        str
            Where to write it.
        """
        path = self._draft.path(name)
        self._paths.append(name)
        return os.fspath(path)

    @property
    def saved(self) -> Saved:
        """The handle, once the ``with`` is over.

        Raises
        ------
        CheckpointError
            Before.
        """
        if self._saved is None:
            raise CheckpointError(f"{self._location} is not saved yet", location=self._location)
        return self._saved

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for file in self._files:
                    file.close()
                for name in self._paths:
                    self._draft.adopt(name)
                self._saved = self._buffer.save(self._draft, self._request, self._content)
                with _process.lock:
                    _process.open.append(self._saved)
        finally:
            self._draft.abort()


def writer(
    location: _Path,
    *,
    stage: _Path | None = None,
    keep: int | None = None,
    overwrite: bool = True,
    metadata: Mapping[str, Any] | None = None,
    rank: int = 0,
    world_size: int = 1,
    attempt: str | None = None,
    storage_options: _Options = None,
    timeout: float | None = None,
    bytes: int = 0,
) -> Writer:
    """Begin a checkpoint that is written file by file.

    Use it in a ``with``: what `save` does at its return is done at the end of that.

    Parameters
    ----------
    location, stage, keep, overwrite, metadata, rank, world_size, attempt, storage_options, timeout
        As in `save`.
    bytes : int, default 0
        About how large it will be, to wait for as much room.

    Returns
    -------
    Writer
        With `open` for files and `path` for libraries that write to paths.

    Examples
    --------
    >>> with forebay.checkpoint.writer("s3://bucket/run/step-1000") as made:  # doctest: +SKIP
    ...     torch.save(model.state_dict(), made.open("model.pt"))
    ...     made.open("notes.txt").write(b"first try")
    """
    place, options = _location(location), _options(storage_options)
    try:
        noted = json.dumps(dict(metadata or {}), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OptionError(f"metadata has to be what JSON can say: {error}") from None
    _tell()
    numbers = {"keep": keep, "rank": rank, "world_size": world_size}
    for name, number in numbers.items():
        if number is not None and not 0 <= number < 1 << 31:
            raise OptionError(f"{name}={number}: it is a number from 0")
    request = _CheckpointRequest(
        place,
        options,
        metadata=noted,
        overwrite=overwrite,
        keep=keep,
        rank=rank,
        world_size=world_size,
        attempt=attempt,
    )
    buffer = _buffer(stage, place, options)
    return Writer(buffer, buffer.begin(request, bytes, timeout), request, place)


def _location(location: _Path) -> str:
    return os.fspath(location)


def _tell() -> None:
    """Warns once of saves that failed for good since the last call."""
    with _process.lock:
        failed = [saved for saved in _process.open if saved.state == "failed"]
        _process.open = [saved for saved in _process.open if saved.state in ("on its way", "failing")]
    for saved in failed:
        warnings.warn(f"the checkpoint {saved.location} did not arrive: {saved.error}", RuntimeWarning, stacklevel=4)


def load(
    location: _Path,
    *,
    to: _Path | None = None,
    rank: int | None = None,
    map_location: Any = None,
    stage: _Path | None = None,
    storage_options: _Options = None,
) -> Any:
    """Load a complete checkpoint, every file compared with its checksum.

    It is read from the staging area of this machine where that has it: a checkpoint that is not drained yet, or a copy
    of one that is.

    Parameters
    ----------
    location : str or os.PathLike
        The checkpoint.
    to : str or os.PathLike, optional
        A directory to write its files into, in place of returning them. Files of the same names are replaced.
    rank : int, optional
        Which part, of a checkpoint of several ranks. Left out, the parts of all ranks come as a list.
    map_location : object, optional
        Where torch puts tensors; as in `torch.load`.
    stage : str or os.PathLike, optional
        The staging area; by default what `configure` says.
    storage_options : dict, optional
        As in `save`.

    Returns
    -------
    object
        What was saved: bytes, an array, a dict of arrays, what torch or safetensors load. Files and directories come as
        a dict of names to bytes. With `to`, the directory.

    Raises
    ------
    MissingCheckpointError
        There is no complete checkpoint.
    CorruptCheckpointError
        A file, or the manifest, is not what was saved; `file` names it.
    """
    found = _Checkpoint(_location(location), _options(storage_options), _area(stage))
    parts: builtins.list[dict[str, Any]] = json.loads(found.parts())
    if rank is not None and not 0 <= rank < len(parts):
        raise OptionError(f"rank={rank}: {found.location} has {len(parts)} parts")
    wanted = range(len(parts)) if rank is None else [rank]
    if to is not None:
        root = pathlib.Path(to)
        root.mkdir(parents=True, exist_ok=True)
        for part in wanted:
            below = root if len(wanted) == 1 else root / f"rank-{part:05}"
            for file in parts[part]["files"]:
                found.export(part, file["name"], os.fspath(below / file["name"]))
        return os.fspath(to)
    loaded = [content.read(found, part, parts[part], map_location=map_location) for part in wanted]
    return loaded[0] if len(parts) == 1 or rank is not None else loaded


def metadata(
    location: _Path,
    *,
    rank: int = 0,
    stage: _Path | None = None,
    storage_options: _Options = None,
) -> dict[str, Any]:
    """The metadata that a complete checkpoint was saved with.

    Parameters
    ----------
    location, stage, storage_options
        As in `load`.
    rank : int, default 0
        Whose.

    Returns
    -------
    dict
        As it was saved; empty if nothing was.

    Raises
    ------
    MissingCheckpointError
        There is no complete checkpoint.
    """
    found = _Checkpoint(_location(location), _options(storage_options), _area(stage))
    parts: builtins.list[dict[str, Any]] = json.loads(found.parts())
    if not 0 <= rank < len(parts):
        raise OptionError(f"rank={rank}: {found.location} has {len(parts)} parts")
    return cast("dict[str, Any]", parts[rank].get("metadata", {}))


@dataclass(frozen=True)
class Info:
    """A complete checkpoint of a run.

    Attributes
    ----------
    location : str
        Where it is.
    step : int or None
        The number in its name.
    bytes : int
        The size of all its files.
    world_size : int
        How many ranks saved it.
    metadata : dict
        What it was saved with, by rank 0.
    stored : bool
        Whether it is where it belongs. If not, it is in the staging area and on its way.
    staged : bool
        Whether the staging area has it.
    pinned : bool
        Whether retention leaves it alone.
    error : str or None
        What is wrong with its manifest.
    """

    location: str
    step: int | None
    bytes: int
    world_size: int
    metadata: dict[str, Any]
    stored: bool
    staged: bool
    pinned: bool
    error: str | None


def list(  # noqa: A001
    prefix: _Path, *, stage: _Path | None = None, storage_options: _Options = None
) -> builtins.list[Info]:
    """The complete checkpoints of a run, in the order of their steps; those without a number come first.

    Parameters
    ----------
    prefix : str or os.PathLike
        The run: the directory or prefix that its checkpoints are in.
    stage : str or os.PathLike, optional
        The staging area; what is on its way from there is in the list.
    storage_options : dict, optional
        As in `save`.

    Returns
    -------
    list of Info
        With sizes and metadata; one whose manifest is damaged has an `error`.
    """
    rows = _checkpoint_list(_location(prefix), _options(storage_options), _area(stage))
    return [Info(*row[:4], json.loads(row[4]), *row[5:]) for row in rows]


def latest(prefix: _Path, *, stage: _Path | None = None, storage_options: _Options = None) -> str | None:
    """The complete checkpoint of a run with the highest step.

    One that `save` made safe on this machine counts before it is drained. One that is half there never does.

    Parameters
    ----------
    prefix : str or os.PathLike
        The run: the directory or prefix that its checkpoints are in.
    stage : str or os.PathLike, optional
        The staging area; by default what `configure` says.
    storage_options : dict, optional
        As in `save`.

    Returns
    -------
    str or None
        Its location, for `load`.
    """
    return _checkpoint_latest(_location(prefix), _options(storage_options), _area(stage))


def pin(location: _Path, *, storage_options: _Options = None) -> None:
    """Keep a complete checkpoint: `keep` of later ones does not remove it.

    Parameters
    ----------
    location : str or os.PathLike
        The checkpoint.
    storage_options : dict, optional
        As in `save`.

    Raises
    ------
    MissingCheckpointError
        It is not complete where it belongs.
    """
    _checkpoint_pin(_location(location), _options(storage_options), True)


def unpin(location: _Path, *, storage_options: _Options = None) -> None:
    """Let retention remove a checkpoint again.

    Parameters
    ----------
    location : str or os.PathLike
        The checkpoint.
    storage_options : dict, optional
        As in `save`.
    """
    _checkpoint_pin(_location(location), _options(storage_options), False)


def pending() -> builtins.list[Saved]:
    """What this process has on its way, the oldest first.

    Returns
    -------
    list of Saved
        Handles, also of what it took up from processes before it.
    """
    with _process.lock:
        buffers = [*_process.buffers.values()]
    return [saved for buffer in buffers for saved in buffer.pending()]


def wait(timeout: float | None = None) -> None:
    """Wait until all that this process has on its way is complete where it belongs.

    Parameters
    ----------
    timeout : float, optional
        Seconds for all of them together.

    Raises
    ------
    TimeoutError
        Time is up; draining goes on.
    CheckpointError
        One of them cannot be completed, or has failed for five minutes.
    """
    end = None if timeout is None else time.monotonic() + timeout
    for saved in pending():
        saved.wait(None if end is None else max(0.0, end - time.monotonic()))


def recover(*, stage: _Path | None = None, storage_options: _Options = None) -> builtins.list[Saved]:
    """Take up what processes that are gone have left in a staging area.

    The first `save` of a process does so as well. Checkpoints that were acknowledged are drained; what was not is removed.

    Parameters
    ----------
    stage : str or os.PathLike, optional
        The staging area; by default what `configure` says.
    storage_options : dict, optional
        As in `save`; for all of them.

    Returns
    -------
    list of Saved
        What this process has on its way from there.
    """
    buffer = _buffer(stage, None, {})
    found = buffer.recover(None, _options(storage_options))
    with _process.lock:
        _process.open += found
    return buffer.pending()


def _at_exit() -> None:
    """Leaves what is not drained, or waits for it, and says so."""
    left = pending()
    if left and _settings.at_exit == "wait":
        size = sum(saved.bytes - saved.drained for saved in left)
        print(
            f"forebay: waiting for {len(left)} checkpoint(s), {size / 1e6:.1f} MB, to be drained; Ctrl-C leaves them staged",
            file=sys.stderr,
        )
        try:
            wait()
        except (KeyboardInterrupt, CheckpointError) as error:
            if isinstance(error, CheckpointError):
                print(f"forebay: {error}", file=sys.stderr)
    for area, buffer in _process.buffers.items():
        left = buffer.pending()
        # Unfinished uploads are ended, so that nothing is left in the store that no listing shows.
        with contextlib.suppress(TimeoutError):
            buffer.close()
        if left := [saved for saved in left if not saved.done]:
            names = ", ".join(saved.location for saved in left[:3]) + (", ..." if len(left) > 3 else "")
            print(
                f"forebay: {len(left)} checkpoint(s) are safe in {area} and not yet where they belong: {names}\n"
                f"hint: forebay stage drain --staging {area} brings them there, and so does the next save",
                file=sys.stderr,
            )
