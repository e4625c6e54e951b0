"""Staging and draining of checkpoints in a process: settings, staging areas, and the end of the process.

Owns the handles of saves whose outcome has not been reported. Draining is native code; `forebay.checkpoint` writes the
content.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from forebay._errors import CheckpointError, OptionError, TimeoutError
from forebay._forebay import Saved, _bytes, _checkpoint_area, _checkpoint_share, _CheckpointBuffer

Path = str | os.PathLike[str]
Options = Mapping[str, str] | None


@dataclass
class _Settings:
    """The settings of `configure`."""

    stage: str | None = None
    max_bytes: int | None = None
    bandwidth: int | None = None
    keep_local: int = 1
    at_exit: Literal["leave", "wait"] = "leave"


@dataclass
class _Process:
    """State of this process. A forked child starts with a new one."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    buffers: dict[str, _CheckpointBuffer] = field(default_factory=dict)
    # Handles whose failure has not been reported.
    open: list[Saved] = field(default_factory=list)


_settings = _Settings()
_process = _Process()


def _forked() -> None:
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_forked)


def configure(
    *,
    stage: Path | None = None,
    max_bytes: int | str | None = None,
    bandwidth: int | str | None = None,
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
    max_bytes : int or str, optional
        Bytes, or a size such as "200GiB", that all files in the area may take: a `save` that finds it full waits until others are drained. By default
        what the disk has.
    bandwidth : int or str, optional
        Bytes, or a size such as "100MB", a second that draining may take.
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
    most, pace = _bytes("max_bytes", max_bytes), _bytes("bandwidth", bandwidth)
    for name, number in {"max_bytes": most, "bandwidth": pace}.items():
        if number == 0:
            raise OptionError(f"option {name} is 0: expected 1 or more bytes, or None")
    with _process.lock:
        if _process.buffers:
            raise OptionError("configure() comes before the first save of a process")
        _settings.stage = None if stage is None else os.fspath(stage)
        _settings.max_bytes, _settings.bandwidth = most, pace
        _settings.keep_local, _settings.at_exit = keep_local, at_exit
        _checkpoint_share(share)


def area_of(stage: Path | None) -> str:
    """Returns the absolute path of the staging area."""
    chosen = _settings.stage if stage is None else os.fspath(stage)
    return os.path.abspath(_checkpoint_area() if chosen is None else chosen)


def checked(storage_options: Options) -> dict[str, str]:
    """Returns the options of a store; raises `OptionError` unless names and values are str."""
    found = dict(storage_options or {})
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str):
            kind = type(value).__name__
            raise OptionError(f'storage_options: {name!r} is of type {kind}: expected str, such as "true" or "30"')
    return found


def buffer_of(stage: Path | None, location: str | None, options: dict[str, str]) -> _CheckpointBuffer:
    """Returns the opened staging area. The first call per area recovers the checkpoints left in it."""
    area = area_of(stage)
    with _process.lock:
        found = _process.buffers.get(area)
        if found is None:
            if not _process.buffers:
                atexit.register(_at_exit)
            found = _CheckpointBuffer(area, _settings.max_bytes, _settings.bandwidth, _settings.keep_local)
            _process.buffers[area] = found
            _process.open += found.recover(location, options)
        return found


def remember(saved: Iterable[Saved]) -> None:
    """Keeps handles, so that `tell` can report failures."""
    with _process.lock:
        _process.open += saved


def tell() -> None:
    """Warns of each save that failed permanently since the last call."""
    with _process.lock:
        failed = [saved for saved in _process.open if saved.state == "failed"]
        _process.open = [saved for saved in _process.open if saved.state in ("on its way", "failing")]
    for saved in failed:
        warnings.warn(f"the checkpoint {saved.location} did not arrive: {saved.error}", RuntimeWarning, stacklevel=4)


def pending() -> list[Saved]:
    """The unfinished saves of this process, the oldest first.

    Returns
    -------
    list of Saved
        Handles, also of what it took up from processes before it.
    """
    with _process.lock:
        buffers = [*_process.buffers.values()]
    return [saved for buffer in buffers for saved in buffer.pending()]


def wait(timeout: float | None = None) -> None:
    """Wait until all checkpoints of this process are complete at their destinations.

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


def recover(*, stage: Path | None = None, storage_options: Options = None) -> list[Saved]:
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
    buffer = buffer_of(stage, None, {})
    found = buffer.recover(None, checked(storage_options))
    remember(found)
    return buffer.pending()


def _at_exit() -> None:
    """Waits for undrained checkpoints or leaves them staged, as `at_exit` says, and prints a message."""
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
        # Aborts unfinished uploads: their parts would stay in the store without appearing in listings.
        with contextlib.suppress(TimeoutError):
            buffer.close()
        if left := [saved for saved in left if not saved.done]:
            names = ", ".join(saved.location for saved in left[:3]) + (", ..." if len(left) > 3 else "")
            print(
                f"forebay: {len(left)} checkpoint(s) are safe in {area} and not uploaded yet: {names}\n"
                f"hint: forebay stage --drain --staging {area} brings them there, and so does the next save",
                file=sys.stderr,
            )


for _function in (configure, pending, recover, wait):
    # Their public module.
    _function.__module__ = "forebay.checkpoint"
