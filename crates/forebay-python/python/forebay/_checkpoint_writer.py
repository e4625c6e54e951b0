"""`Writer`: a checkpoint that is written file by file."""

from __future__ import annotations

import os
import pathlib
from types import TracebackType
from typing import BinaryIO, cast

from forebay._checkpoint_content import DraftWriter
from forebay._checkpoint_process import remember
from forebay._errors import CheckpointError, OptionError
from forebay._forebay import Saved, _CheckpointBuffer, _CheckpointDraft, _CheckpointRequest


class Writer:
    """A checkpoint that is written file by file; made by `writer`, and committed at the end of its ``with``.

    An exception in the ``with`` gives the checkpoint up, and leaves nothing.
    """

    def __init__(self, buffer: _CheckpointBuffer, draft: _CheckpointDraft, request: _CheckpointRequest, location: str) -> None:
        self._buffer, self._draft = buffer, draft
        self._request, self._location = request, location
        self._content = "files"
        self._paths: list[str] = []
        # Drafts that are never committed: their files are moved into this one.
        self._directories: list[tuple[_CheckpointDraft, pathlib.Path]] = []
        self._files: list[DraftWriter] = []
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
        file = DraftWriter(self._draft, name)
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

    def directory(self) -> str:
        """A directory in the staging area for a library that writes several files.

        All files below it are files of the checkpoint, named by their paths in it.

        Returns
        -------
        str
            Where to write them: ``model.save_pretrained(writer.directory())``.
        """
        draft = self._buffer.begin(self._request, 0, None)
        root = draft.path("any").parent
        self._directories.append((draft, root))
        return os.fspath(root)

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
                for _, root in self._directories:
                    self._paths += [self._moved(root, path) for path in sorted(root.rglob("*")) if path.is_symlink() or not path.is_dir()]
                for name in self._paths:
                    self._draft.adopt(name)
                self._saved = self._buffer.save(self._draft, self._request, self._content)
                remember([self._saved])
        finally:
            for file in self._files:
                file.abandon()
            for draft in (self._draft, *(draft for draft, _ in self._directories)):
                draft.abort()

    def _moved(self, root: pathlib.Path, path: pathlib.Path) -> str:
        """Moves a file below a directory into the checkpoint; returns its name."""
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or not path.is_file():
            raise OptionError(f"{name} cannot be saved: it is neither file nor directory")
        os.replace(path, self._draft.path(name))
        return name


# Where users find it.
Writer.__module__ = "forebay.checkpoint"
