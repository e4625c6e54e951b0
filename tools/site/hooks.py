"""Hooks of MkDocs that make a site of the documents as they are, for GitHub and for the site alike.

The navigation is the map of docs/index.md. Files outside docs/ that a page links to are copied to `repository/`.
"""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
STYLE = ROOT / "tools/site/extra.css"
OUTSIDE = pathlib.PurePath("repository")

CODE_OR_LINK = re.compile(r"^```.*?^```$|^    .*?$|(?P<text>\[[^\]]*\]\()(?!\w+:)(?P<file>[^()\s#]+)(?P<rest>[^()\s]*\))|`[^`\n]*`", re.M | re.S)
FENCE_OF_FILE = re.compile(r"^```(\w+) (\S+)$", re.M)
ROW = re.compile(r"^\| \[[^\]]*\]\((.*?)\)", re.M)
REQUEST = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def place(file: pathlib.Path) -> str:
    """The path of a file on the site, as MkDocs names sources."""
    inside = file.is_relative_to(DOCS)
    return (file.relative_to(DOCS) if inside else OUTSIDE / file.relative_to(ROOT)).as_posix()


def source(place: str) -> pathlib.Path:
    """The file that is at a path of the site."""
    path = pathlib.PurePath(place)
    return ROOT / path.relative_to(OUTSIDE) if path.is_relative_to(OUTSIDE) else DOCS / path


def linked(page: pathlib.Path, text: str) -> list[pathlib.Path]:
    """The files that a page links to."""
    found = [match["file"] for match in CODE_OR_LINK.finditer(text) if match["file"]]
    return [pathlib.Path(os.path.normpath(page.parent / file)) for file in found]


def outside() -> set[pathlib.Path]:
    """The files outside docs/ that pages link to, and those that these pages link to."""
    found: set[pathlib.Path] = set()
    pages = list(DOCS.glob("**/*.md"))
    while pages:
        page = pages.pop()
        for file in linked(page, page.read_text(encoding="utf-8")):
            if not file.is_relative_to(DOCS) and file not in found:
                found.add(file)
                pages += [file] if file.suffix == ".md" else []
    return found


def navigation() -> list[Any]:
    """The sections of the map of docs/index.md; pages of one folder form a section within theirs."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    made: list[Any] = ["index.md"]
    for section in index.partition("\n## All pages\n")[2].split("\n### ")[1:]:
        entries: list[Any] = []
        folders: dict[str, list[str]] = {}
        for link in ROW.findall(section):
            page = pathlib.Path(os.path.normpath(DOCS / link))
            name = page.parent.name
            if name not in ("migration", "format", "decisions"):
                entries.append(place(page))
                continue
            if name not in folders:
                entries.append({name.capitalize(): folders.setdefault(name, [])})
            below = page.parent.glob("[0-9]*.md") if name == "decisions" else []
            folders[name] += [place(page), *map(place, sorted(below))]
        made.append({section.partition("\n")[0]: entries})
    return made


def on_config(config: Any) -> None:
    config.nav = navigation()
    config.extra_css = [STYLE.name]


def on_files(files: Any, config: Any) -> None:
    from mkdocs.structure.files import File, InclusionLevel

    files.append(File.generated(config, STYLE.name, abs_src_path=os.fspath(STYLE)))
    for file in sorted(outside()):
        files.append(File.generated(config, place(file), abs_src_path=os.fspath(file), inclusion=InclusionLevel.NOT_IN_NAV))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    at = source(page.file.src_uri)
    here = pathlib.PurePath(page.file.src_uri).parent
    if "decisions" in here.parts:
        page.meta["search"] = {"boost": 0.2}

    def rewritten(match: re.Match[str]) -> str:
        if not match["file"]:
            return match[0]
        target = place(pathlib.Path(os.path.normpath(at.parent / match["file"])))
        return match["text"] + os.path.relpath(target, here) + match["rest"]

    return FENCE_OF_FILE.sub(r'```\1 title="\2"', CODE_OR_LINK.sub(rewritten, markdown))


def on_post_page(output: str, page: Any, **_: Any) -> None:
    """Refuses a page that would ask another host for something."""
    from mkdocs.exceptions import PluginError

    if found := REQUEST.search(output):
        raise PluginError(f"{page.file.src_uri} loads {found[0]}")
