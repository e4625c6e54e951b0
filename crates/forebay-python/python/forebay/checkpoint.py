"""Checkpoints that are saved on a fast disk, and drain into a store behind the training.

`save` returns when the checkpoint is safe in a staging area on a fast local disk: forced to disk, with a durable marker.
A thread then uploads it to its destination: an object store, or a directory on a slow or shared disk. It is complete there
once its manifest is, which is published last, so nothing half-written is ever the `latest`. Draining yields to the reads
of loaders in the same process.

A process that ends, or is killed, loses nothing: the next `save` on the same staging area goes on, and so does
``forebay stage --drain``.

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

import builtins
import json
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from forebay import _checkpoint_content as content
from forebay._checkpoint_process import (
    Options,
    Path,
    area_of,
    buffer_of,
    checked,
    configure,
    pending,
    recover,
    tell,
    wait,
)
from forebay._checkpoint_writer import Writer
from forebay._errors import MissingCheckpointError, OptionError
from forebay._forebay import (
    Saved,
    _bytes,
    _Checkpoint,
    _checkpoint_latest,
    _checkpoint_list,
    _checkpoint_pin,
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


def save(
    value: Any,
    location: Path,
    *,
    format: Literal["torch", "safetensors"] | None = None,
    stage: Path | None = None,
    keep: int | None = None,
    overwrite: bool = True,
    metadata: Mapping[str, Any] | None = None,
    rank: int = 0,
    world_size: int = 1,
    attempt: str | None = None,
    storage_options: Options = None,
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
        Number of checkpoints of the run to keep once this one is complete: the newest ones up to it. Those that are pinned,
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


def writer(
    location: Path,
    *,
    stage: Path | None = None,
    keep: int | None = None,
    overwrite: bool = True,
    metadata: Mapping[str, Any] | None = None,
    rank: int = 0,
    world_size: int = 1,
    attempt: str | None = None,
    storage_options: Options = None,
    timeout: float | None = None,
    bytes: int | str = 0,
) -> Writer:
    """Begin a checkpoint that is written file by file.

    Use it in a ``with``: what `save` does at its return is done at the end of that.

    Parameters
    ----------
    location, stage, keep, overwrite, metadata, rank, world_size, attempt, storage_options, timeout
        As in `save`.
    bytes : int or str, default 0
        Bytes, or a size such as "20GiB": about how large it will be, to wait for as much room.

    Returns
    -------
    Writer
        With `open` for files, and `path` and `directory` for libraries that write to paths.

    Examples
    --------
    >>> with forebay.checkpoint.writer("s3://bucket/run/step-1000") as made:  # doctest: +SKIP
    ...     torch.save(model.state_dict(), made.open("model.pt"))
    ...     made.open("notes.txt").write(b"first try")
    """
    place, options = os.fspath(location), checked(storage_options)
    try:
        noted = json.dumps(dict(metadata or {}), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OptionError(f"metadata has to be what JSON can say: {error}") from None
    tell()
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
    buffer = buffer_of(stage, place, options)
    return Writer(buffer, buffer.begin(request, _bytes("bytes", bytes) or 0, timeout), request, place)


def load(
    location: Path,
    *,
    to: Path | None = None,
    format: Literal["safetensors"] | None = None,
    rank: int | None = None,
    map_location: Any = None,
    stage: Path | None = None,
    storage_options: Options = None,
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
    format : {"safetensors"}, optional
        The tensors of all safetensors files, in place of the files: of shards that `save_pretrained` wrote, say. They are
        torch's if torch is imported, else numpy's.
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
    found, parts = _opened(location, rank, stage, storage_options)
    wanted = range(len(parts)) if rank is None else [rank]
    if to is not None:
        root = pathlib.Path(to)
        root.mkdir(parents=True, exist_ok=True)
        for part in wanted:
            below = root if len(wanted) == 1 else root / f"rank-{part:05}"
            for file in parts[part]["files"]:
                found.export(part, file["name"], os.fspath(below / file["name"]))
        return os.fspath(to)
    loaded = [content.read(found, part, parts[part], format=format, map_location=map_location) for part in wanted]
    return loaded[0] if len(parts) == 1 or rank is not None else loaded


def metadata(
    location: Path,
    *,
    rank: int = 0,
    stage: Path | None = None,
    storage_options: Options = None,
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
    _, parts = _opened(location, rank, stage, storage_options)
    return cast("dict[str, Any]", parts[rank].get("metadata", {}))


def _opened(
    location: Path, rank: int | None, stage: Path | None, storage_options: Options
) -> tuple[_Checkpoint, builtins.list[dict[str, Any]]]:
    """A complete checkpoint and its parts, that of `rank` among them."""
    if location is None:
        raise MissingCheckpointError("there is no checkpoint to load: None, which is what latest() gives where there is none yet")
    found = _Checkpoint(os.fspath(location), checked(storage_options), area_of(stage))
    parts: builtins.list[dict[str, Any]] = json.loads(found.parts())
    if rank is not None and not 0 <= rank < len(parts):
        raise OptionError(f"rank={rank}: {found.location} has {len(parts)} parts")
    return found, parts


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
        Whether it is at its destination. If not, it is in the staging area and will be uploaded.
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
    prefix: Path, *, stage: Path | None = None, storage_options: Options = None
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
    rows = _checkpoint_list(os.fspath(prefix), checked(storage_options), area_of(stage))
    return [Info(*row[:4], json.loads(row[4]), *row[5:]) for row in rows]


def latest(prefix: Path, *, stage: Path | None = None, storage_options: Options = None) -> str | None:
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
    return _checkpoint_latest(os.fspath(prefix), checked(storage_options), area_of(stage))


def pin(location: Path, *, storage_options: Options = None) -> None:
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
        It is not complete at its destination.
    """
    _checkpoint_pin(os.fspath(location), checked(storage_options), True)


def unpin(location: Path, *, storage_options: Options = None) -> None:
    """Let retention remove a checkpoint again.

    Parameters
    ----------
    location : str or os.PathLike
        The checkpoint.
    storage_options : dict, optional
        As in `save`.
    """
    _checkpoint_pin(os.fspath(location), checked(storage_options), False)
