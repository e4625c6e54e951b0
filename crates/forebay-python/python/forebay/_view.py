"""The page of `forebay view` for a notebook. Owns its process; the command owns the page."""

from __future__ import annotations

import html
import os
import subprocess
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any

from forebay._command import child, run, words_of
from forebay._errors import CommandError, OptionError
from forebay._options import count


class View:
    """A page with the samples of a dataset, or a contact sheet, which notebooks show. Made by `Dataset.view`.

    Examples
    --------
    >>> forebay.open("packed/").view()  # doctest: +SKIP
    """

    def __init__(self, url: str | None, height: int, process: subprocess.Popen[str] | None, sheet: bytes | None) -> None:
        self._url, self._height, self._sheet = url, height, sheet
        self._end = weakref.finalize(self, _end, process) if process else None

    @property
    def url(self) -> str | None:
        """The address of the page, for browsers on this machine. None for a contact sheet."""
        return self._url

    def close(self) -> None:
        """End the page."""
        if self._end is not None:
            self._end()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<forebay.View: {self._url or 'a contact sheet'}>"

    def _repr_html_(self) -> str | None:
        if self._url is None:
            return None
        url = html.escape(self._url)
        frame = f'<iframe src="{url}" width="100%" height="{self._height}" style="border: 0" title="Samples of the dataset"></iframe>'
        hint = "is served on this machine. From another one, use <code>view(contact_sheet=True)</code>."
        return f'{frame}<p><a href="{url}" target="_blank">{url}</a> {hint}</p>'

    def _repr_png_(self) -> bytes | None:
        return self._sheet


def view(
    path: str,
    splits: list[str],
    part: tuple[int, int, int] | None,
    *,
    height: int = 800,
    contact_sheet: bool = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> View:
    """See `Dataset.view`."""
    count("height", height, 100, "so that samples can be seen")
    if contact_sheet:
        if len(splits) == 1:
            options.setdefault("split", splits[0])
        if part:
            start, step, length = part
            if len(splits) > 1 or not length:
                raise OptionError("contact_sheet=True: expected records of one split, as split(name)[:100] has")
            options.setdefault("indices", f"{start}-{start + length - 1}" if step == 1 else range(start, start + step * length, step))
        with tempfile.TemporaryDirectory() as directory:
            picture = os.path.join(directory, "sheet.png")
            run("inspect", (path,), False, storage_options, {"contact_sheet": picture, **options})
            with open(picture, "rb") as file:
                return View(None, height, None, file.read())
    words = ["view", "-q", *words_of("view", options)]
    words += [f"--storage-option={key}={value}" for key, value in (storage_options or {}).items()]
    process = child([*words, "--", path], subprocess.PIPE)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    if url:
        return View(url, height, process, None)
    said = process.communicate()[1].splitlines()
    said = [line.partition(": ")[2] for line in said if line.startswith(("error: ", "hint: "))]
    raise CommandError("; ".join(said) or "view failed", command="view", exit_code=process.returncode)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate()
