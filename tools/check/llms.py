#!/usr/bin/env python3
"""Writes docs/llms.txt, the list of pages for language models, from README.md and the map of docs/index.md.

    tools/check/llms.py            writes it
    tools/check/llms.py --check    exits with 1 if it is stale
"""

from __future__ import annotations

import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
FILE = DOCS / "llms.txt"
THIRD_SENTENCE = "It is a command, `forebay`, and a Python package of the same name, for Linux."
ROW = re.compile(r"^\| (\[.*?\]\(.*?\)) \| (.*) \|$")


def text() -> str:
    """The file: what Forebay is in three sentences, and each page with its question."""
    readme = (DOCS / "../README.md").read_text(encoding="utf-8").split("\n\n")
    _, pages = (DOCS / "index.md").read_text(encoding="utf-8").split("\n## All pages\n")
    lines = [readme[0], "", f"> {' '.join(readme[1].split())} {THIRD_SENTENCE}"]
    for line in pages.splitlines():
        if line.startswith("### "):
            lines += ["", line.removeprefix("#"), ""]
        elif row := ROW.match(line):
            lines.append(f"- {row[1]}: {row[2]}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text(), encoding="utf-8")
    elif not FILE.exists() or FILE.read_text(encoding="utf-8") != text():
        sys.exit("error: docs/llms.txt is stale: run tools/check/llms.py")
