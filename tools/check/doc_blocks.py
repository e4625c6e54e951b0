#!/usr/bin/env python3
"""Type-checks the Python blocks of the documents; tests/test_docs.py of the package runs them.

    .venv/bin/python tools/check/doc_blocks.py --check     runs mypy over all blocks
    .venv/bin/python tools/check/doc_blocks.py             prints where they are

A page's blocks form one module, in order: a later block may use what an earlier one defined. A block that begins
with `# NAME.py`, for the reader to save under that name, is a module of its own. Names
that a reader brings along, such as `model`, are declared in `READERS_NAMES`. docs/python.md is
generated from docstrings, whose examples are checked there.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GENERATED = {"docs/python.md"}

# What a reader has before the first block of a page, and the blocks do not define.
READERS_NAMES = {
    "docs/checkpoints.md": [
        "broadcast_from_rank_0", "loader", "model", "optimizer", "rank", "shard", "torch", "train", "trainer", "uuid",
        "world_size",
    ],
    "docs/how-to/bad-labels.md": ["model", "torch"],
    "docs/how-to/resume.md": ["model", "optimizer", "torch"],
    "docs/how-to/validate-exactly.md": ["model", "torch"],
    "docs/serving.md": ["torch"],
    "docs/transforms.md": ["model", "torch", "torchvision"],
    "docs/writing.md": ["datasets", "samples", "torch_dataset", "torchvision"],
}  # fmt: skip


def pages() -> list[str]:
    """The documents with Python blocks, relative to the root."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md"), *ROOT.glob("crates/*/*.md")]
    names = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return [name for name in names if name not in GENERATED and blocks(name)]


def blocks(page: str) -> list[tuple[int, str]]:
    """Line and code of each Python block of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.finditer(r"^([ ]*)```python\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(2)) + 1, dedented(block[2], block[1])) for block in found]


def dedented(code: str, indent: str) -> str:
    """The block without the indentation of the list item that holds it."""
    return re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)


def modules(page: str) -> list[str]:
    """The blocks of a page as modules, each line where it is on the page."""
    names = READERS_NAMES.get(page, [])
    first = "import typing, forebay; " + "; ".join(f"{name}: typing.Any" for name in names)
    made = [[first]]
    for line, code in blocks(page):
        if re.match(r"# \w+\.py\n", code):
            made.append([first])
        made[-1] += [""] * (line - 1 - len(made[-1])) + code.splitlines()
    return ["\n".join(lines) + "\n" for lines in made if len(lines) > 1]


def check() -> int:
    """Runs mypy over the modules of all pages, each under the name of its page."""
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for page in pages():
            name = re.sub(r"\W", "_", page.removesuffix(".md"))
            for number, code in enumerate(modules(page)):
                path = pathlib.Path(directory) / (f"{name}_{number}.py" if number else f"{name}.py")
                path.write_text(code, encoding="utf-8")
                paths.append(str(path))
        # Values of an expression are shown to the reader, and one page may use a name for two things.
        options = ["--allow-redefinition", "--ignore-missing-imports", "--follow-imports=silent", "--check-untyped-defs"]
        # Recipes are shown without annotations, and derive from classes of packages that are not installed here.
        options += [f"--allow-{what}" for what in ("untyped-defs", "incomplete-defs", "untyped-calls", "untyped-decorators")]
        options += ["--allow-subclassing-any"]
        return subprocess.run([sys.executable, "-m", "mypy", *options, *paths], check=False).returncode


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(check())
    for page in pages():
        for line, code in blocks(page):
            print(f"{page}:{line}: {len(code.splitlines())} lines")
