"""The exceptions of Forebay: a class for each kind a caller may want to act on.

All derive from `Error`, carry what is known about the place as attributes (None
where it is not known), and survive pickling, so that they cross processes.
"""

from __future__ import annotations

import builtins
from typing import Any


class Error(Exception):
    """Base of every exception that Forebay raises on purpose.

    Parameters
    ----------
    message : str
        What went wrong, and where.
    **place : object
        Set as attributes; each class names the ones it has.
    """

    def __init__(self, message: str = "", **place: object) -> None:
        super().__init__(message)
        # In __dict__, which is what pickle carries besides the arguments.
        self.__dict__.update(place)


class OptionError(Error, ValueError):
    """An option, or a combination of options, that cannot work."""


class UnknownOptionError(OptionError, TypeError):
    """An option that does not exist; the message has the one that was meant, or what takes its place."""


class ShardError(Error):
    """A shard, an index or a manifest that cannot be read.

    Attributes
    ----------
    path : str or None
        The file.
    record : int or None
        Number of the record in its shard, from 0.
    offset : int or None
        Byte offset in the file.
    """

    path: str | None = None
    record: int | None = None
    offset: int | None = None


class CorruptRecordError(ShardError):
    """Bytes of a shard, an index or a record that are not what was written."""


class MismatchError(ShardError):
    """Files that do not belong together: a manifest, a sidecar or a state of another dataset."""


class MissingError(ShardError, FileNotFoundError):
    """A dataset, or a part of one, that is not there."""

    # Not OSError's, which would take the arguments as an error number and a text.
    __str__ = Exception.__str__


class StorageError(ShardError):
    """A store that refuses, fails, or could not be reached for longer than it may be away.

    The message says what was tried, how often and how long. Attributes as `ShardError`.
    """


class CommandError(Error):
    """A command that failed, such as `forebay.verify` of a damaged dataset.

    Attributes
    ----------
    command : str
        Its name.
    exit_code : int
        What it exits with on the command line.
    summary : Summary or None
        What it did and found, if it came so far.
    """

    command: str | None = None
    exit_code: int | None = None
    summary: dict[str, Any] | None = None


class ImageError(Error):
    """An image that cannot be decoded, or that exceeds the limits.

    Attributes
    ----------
    path : str or None
        The shard.
    record : int or None
        Number of the record in its shard, from 0.
    sample : int or None
        Number of the record in its split, from 0.
    key : str or None
        Key of the record: its path below the split when it was packed.
    offset : int or None
        Byte offset in the shard.
    """

    path: str | None = None
    record: int | None = None
    sample: int | None = None
    key: str | None = None
    offset: int | None = None


class MapError(Error):
    """A Python function between a loader and the trainer raised, which is the `__cause__`, or its process ended or hung.

    Attributes
    ----------
    sample : int or None
        Number of the record in its split, from 0; None where the function was given a batch.
    epoch : int or None
        The epoch, from 0.
    step : int or None
        Number of the batch in its epoch, from 0.
    position : int or None
        How many samples of the epoch all ranks together were given before the batch.
    """

    sample: int | None = None
    epoch: int | None = None
    step: int | None = None
    position: int | None = None


class StateError(Error):
    """A state that does not fit this loader, or an iterator whose epoch is over."""


class ClosedError(Error, ValueError):
    """Use of a loader after `close()`."""


class ForkError(Error, RuntimeError):
    """Use of a loader in a process forked from the one that made it.

    Threads and connections do not survive a fork. Make the loader in the process
    that uses it, or start processes with the method ``spawn``.
    """


class ServerError(Error, ConnectionError):
    """A server that cannot be reached, went away, or cannot go on.

    Attributes
    ----------
    server : str or None
        Address of the server, `host:port`.
    kind : str or None
        What the server said: "busy", "not_found", "protocol", ...; None when
        nothing was said.
    """

    server: str | None = None
    kind: str | None = None

    __str__ = Exception.__str__


class AuthError(ServerError, PermissionError):
    """A token or a certificate that is missing, or that the other side does not accept.

    The message never holds the token itself.

    Attributes
    ----------
    server : str or None
        Address of the server, `host:port`.
    kind : str or None
        "unauthorized" where the server said so.
    """

    __str__ = Exception.__str__


class CheckpointError(Error):
    """A checkpoint that cannot be saved, drained or read.

    Attributes
    ----------
    location : str or None
        The checkpoint.
    file : str or None
        The file in it.
    """

    location: str | None = None
    file: str | None = None


class CorruptCheckpointError(CheckpointError):
    """A checkpoint with a file, or a manifest, that is not what was saved."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """A checkpoint that is not there, or not complete."""

    __str__ = Exception.__str__


class CheckpointExistsError(CheckpointError, FileExistsError):
    """Another checkpoint is in the place of one that was to replace nothing."""

    __str__ = Exception.__str__


class WriteError(Error):
    """A dataset that cannot be written.

    Attributes
    ----------
    path : str or None
        The destination, or the file.
    """

    path: str | None = None


class SampleError(WriteError, ValueError):
    """A sample that cannot be written: it does not fit the features of its writer.

    Attributes
    ----------
    split : str or None
        The split.
    sample : int or None
        Number of the sample in its split, from 0.
    key : str or None
        Its key.
    column : str or None
        The column; None where it is about the whole sample.
    """

    split: str | None = None
    sample: int | None = None
    key: str | None = None
    column: str | None = None


class DatasetExistsError(WriteError, FileExistsError):
    """A destination that holds a dataset, or an unfinished one. Attributes as `WriteError`."""

    __str__ = Exception.__str__


class ConvertError(Error):
    """A dataset that raised while it was converted; `__cause__` is what.

    Attributes
    ----------
    split : str or None
        The split.
    sample : int or None
        Number of the sample in its split, from 0.
    """

    split: str | None = None
    sample: int | None = None


class TimeoutError(Error, builtins.TimeoutError):
    """A wait that took longer than was allowed; the message says who waited for what."""

    __str__ = Exception.__str__
