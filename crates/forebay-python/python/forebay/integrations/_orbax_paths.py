"""Paths below the directory of a run, as Orbax uses them: complete checkpoints, and drafts that a rename commits."""

from __future__ import annotations

import dataclasses
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from etils import epath

from forebay import _command, checkpoint
from forebay._checkpoint_process import area_of
from forebay._errors import CheckpointError, CommandError, CorruptCheckpointError, MissingCheckpointError, OptionError

_TEMPORARY = ".orbax-checkpoint-tmp"


@dataclasses.dataclass
class Draft:
    """A checkpoint that is being written. Orbax's own files stay in memory until the commit, since it writes them repeatedly."""

    name: str
    files: dict[str, bytes | None] = dataclasses.field(default_factory=dict)  # None is a directory.
    items: dict[str, bool] = dataclasses.field(default_factory=dict)  # Whether all arrays of an item are written.
    attempt: str | None = None
    writer: checkpoint.Writer | None = None
    is_over: bool = False

    def abort(self) -> None:
        """Ends the draft; what is not committed is removed."""
        self.is_over = True
        self.files.clear()
        if self.writer is not None:
            self.writer.__exit__(InterruptedError, InterruptedError(), None)


class Run:
    """The checkpoints of a run: complete ones, and the draft of the save that is in flight."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.options: dict[str, Any] = {}
        self.limits: dict[str, Any] = {}
        self._draft: Draft | None = None
        self.has_saved = False  # Whether this process saved one: from then on an unreachable store stops no save.
        self._doomed: set[str] = set()  # Names of checkpoints that could not be removed yet.
        self._lock = threading.Lock()

    def at(self, name: str) -> str:
        return f"{self.location}/{name}"

    def begin(self, name: str) -> Draft:
        """The draft of a checkpoint. Another one is of a save that failed, and is given up."""
        with self._lock:
            old = self._draft
            if old is not None and old.name == name and not old.is_over:
                return old
            made = self._draft = Draft(name)
        if old is not None:
            old.abort()
        return made

    def draft_files(self, name: str) -> dict[str, bytes | None]:
        return draft.files if (draft := self._draft) is not None and draft.name == name else {}

    def draft(self, name: str) -> Draft:
        if self._draft is None or self._draft.name != name:
            raise CheckpointError(f"the save of {self.at(name)} was given up", location=self.at(name))
        return self._draft

    def writer(self, draft: Draft, size: int = 0) -> checkpoint.Writer:
        place = self.at(draft.name)
        with self._lock:
            if draft.is_over:
                raise CheckpointError(f"the save of {place} was given up", location=place)
            if draft.writer is None:
                ranks = {"rank": jax.process_index(), "world_size": jax.process_count()} if draft.attempt else {}
                draft.writer = checkpoint.writer(place, attempt=draft.attempt, bytes=size, **ranks, **self.options, **self.limits)
            return draft.writer

    def commit(self, draft: Draft) -> None:
        try:
            with self.writer(draft) as made:
                for name, content in draft.files.items():
                    if content is not None:
                        made.open(name).write(content)
        finally:
            draft.abort()
        self.has_saved = True
        self._doomed.discard(draft.name)
        for name in sorted(self._doomed):
            self.remove(name)

    def remove(self, name: str) -> None:
        self._doomed.add(name)
        options = {"recursive": True, "staging": area_of(self.options["stage"])}
        try:
            self.opened(name)  # Other files in that place stay.
            _command.run("rm", [self.at(name)], False, self.options["storage_options"], options)
        except MissingCheckpointError:
            pass
        except (CheckpointError, CommandError, OptionError):
            return  # It is pinned, being read, or not uploaded yet: the next save tries again.
        self._doomed.discard(name)

    def opened(self, name: str) -> tuple[Any, list[dict[str, Any]]]:
        """A complete checkpoint and its parts."""
        return checkpoint._opened(self.at(name), None, **self.options)

    def files(self, name: str) -> dict[str, int]:
        """The files of a complete checkpoint, and the ranks that have them."""
        parts = self.opened(name)[1]
        return {file["name"]: rank for rank in reversed(range(len(parts))) for file in parts[rank]["files"]}


_RUNS: dict[tuple[str, ...], Run] = {}  # By the parts of their paths.


def run_path(run: str | os.PathLike[str], options: dict[str, Any], limits: dict[str, Any]) -> RunPath:
    """The directory of a run."""
    location = os.fspath(run).rstrip("/")
    scheme, _, rest = location.rpartition("://")
    if not scheme:
        location = rest = os.path.abspath(location)
    made = RunPath(f"forebay+{scheme or 'file'}:", rest.lstrip("/"))
    known = _RUNS.setdefault(made.parts, Run(location))
    known.options, known.limits = options, limits
    return made


class _Kept(io.BytesIO):
    """A file in memory, whose content is handed over when it is closed."""

    def __init__(self, keep: Callable[[bytes], None]) -> None:
        super().__init__()
        self._keep = keep

    def close(self) -> None:
        if not self.closed:
            self._keep(self.getvalue())
        super().close()


@epath.register_path_cls
class RunPath(epath.Path):  # type: ignore[misc]
    """A path below the directory of a run. Its first name is a checkpoint's; a temporary one is a draft of it."""

    def place(self) -> tuple[Run, str, str, bool]:
        """The run, the checkpoint, the path in it, and whether it is a draft."""
        for count in range(len(self.parts), 1, -1):
            if (run := _RUNS.get(self.parts[:count])) is not None:
                name, *names = [part.split(_TEMPORARY)[0] for part in self.parts[count:]] or [""]
                return run, name, "/".join(names), _TEMPORARY in "".join(self.parts[count : count + 1])
        raise OptionError(f"{self} is below no directory of a run: make one by forebay.integrations.orbax.directory")

    def __str__(self) -> str:
        if not self.parts or not self.parts[0].startswith("forebay+"):
            return "/".join(self.parts) or "."
        return f"{self.parts[0]}//{'/' * (self.parts[0] == 'forebay+file:')}{'/'.join(self.parts[1:])}"

    def __fspath__(self) -> str:
        raise OptionError(f"{self} is no path of this machine: arrays are saved there by forebay.integrations.orbax.Save")

    def as_posix(self) -> str:
        # Orbax's own handlers of arrays write to it, which has to fail: no file can be below this one.
        return f"/dev/null/{self}"

    def _exists(self) -> tuple[bool, bool]:
        """Whether it exists, and whether it is a directory."""
        run, name, inner, is_draft = self.place()
        if not name:
            return True, True
        try:
            files = run.draft(name).files if is_draft else run.files(name)
        except CheckpointError as error:
            if not (is_draft or isinstance(error, MissingCheckpointError)):
                if isinstance(error, CorruptCheckpointError) or not run.has_saved:
                    raise
                warnings.warn(f"{self} counts as absent: {error}", RuntimeWarning, stacklevel=3)
            return False, False
        if is_draft and inner in files:
            return True, files[inner] is None
        is_dir = any(file.startswith(f"{inner}/") for file in files) or not (inner or is_draft)
        return is_dir or inner in files, is_dir

    def _refusal(self) -> OptionError:
        return OptionError(f"{self} cannot be written: the directory of a run has checkpoints alone, made by a rename, as Orbax does by default")

    def exists(self) -> bool:
        return self._exists()[0]

    def is_dir(self) -> bool:
        return self._exists()[1]

    def iterdir(self) -> Iterator[Any]:
        run, name, inner, is_draft = self.place()
        if not name:
            infos = checkpoint.list(run.location, **run.options)
            names = [info.location.rstrip("/").rsplit("/", 1)[1] for info in infos if info.error is None]
        else:
            below = f"{inner}/" if inner else ""
            files = run.draft(name).files if is_draft else run.files(name)
            names = [file[len(below) :].split("/")[0] for file in files if file.startswith(below)]
        return iter([self / name for name in dict.fromkeys(names) if name])

    def resolve(self, strict: bool = False) -> Any:
        return self

    def open(self, mode: str = "r", encoding: str | None = None, errors: str | None = None, **options: Any) -> Any:
        run, name, inner, is_draft = self.place()
        if not self.exists() and "w" not in mode:
            raise FileNotFoundError(f"{self} does not exist")
        if is_draft:
            if jax.process_index() > 0:
                raise OptionError(f"{self} cannot be written: the first process alone writes files that are not of `Save`")
            # Orbax writes metadata in the background: that of a save that was given up is dropped.
            files = run.draft_files(name) if "w" in mode else run.draft(name).files
            file = _Kept(lambda content: files.__setitem__(inner, content)) if "w" in mode else io.BytesIO(files[inner] or b"")
        elif "w" in mode:
            raise self._refusal()
        else:
            file = io.BytesIO(np.asarray(run.opened(name)[0].read(run.files(name)[inner], inner)).tobytes())
        return file if "b" in mode else io.TextIOWrapper(file, encoding or "utf-8", errors)

    def unlink(self, missing_ok: bool = False) -> None:
        run, name, inner, is_draft = self.place()
        if not is_draft or run.draft(name).files.pop(inner, None) is None:
            raise FileNotFoundError(f"{self} does not exist")

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        run, name, inner, is_draft = self.place()
        if name and not is_draft:
            raise self._refusal()
        if name:
            (run.draft(name) if inner else run.begin(name)).files[inner] = None

    def rmtree(self, missing_ok: bool = False) -> None:
        run, name, inner, is_draft = self.place()
        if not name or inner:
            raise OptionError(f"{self} cannot be removed: a checkpoint is removed as a whole")
        if is_draft:
            run.draft(name).abort()
        else:
            run.remove(name)

    def rename(self, target: Any) -> Any:
        run, name, inner, is_draft = self.place()
        if not is_draft or target.place() != (run, name, inner, bool(inner)):
            raise OptionError(f"{self} cannot be renamed to {target}")
        if not inner:
            run.commit(run.draft(name))
        return target
