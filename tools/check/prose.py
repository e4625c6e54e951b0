#!/usr/bin/env python3
"""Refuses wording that plain technical English avoids, in documents, comments and docstrings.

    tools/check/prose.py [FILE...]    prints the findings of the files, by default of all, and exits with 1 if there are any

The rules: no pronoun without a noun of the field behind it (whoever, nobody, somebody), no dialect (anew, of ever),
no description that begins with a relative clause (`/// What opens a file`), and no flag of the command line in a text of a
library, which programs show too: `OptionName` spells it as its users do.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

WORDS = re.compile(
    r"\b(whoever|nobody|somebody|anew|by now|likewise|of ever|lets? it go|what is there|(?:is|are) (?:told|asked|brought))\b"
    r"|\bcannot be\.",
    re.IGNORECASE,
)
FRAGMENT = re.compile(r"^\s*(?://[/!] |\"\"\")(?:What|Who|Whoever|Of|Where|That) ")
COMMENT = {".rs": re.compile(r"//.*"), ".py": re.compile(r"#.*|\"\"\".*"), ".pyi": re.compile(r"#.*|\"\"\".*")}
LIBRARY = re.compile(r"^crates/forebay-(?!cli|lab|python|rigs|bench)[a-z]+/src/(?!.*tests)")
FLAG = re.compile(r"[\s\"]--[a-z]")
NO_TEXT = re.compile(r"^\s*//.*|`[^`]*`|\.args?\(.*|\$\(.*?\)")
GENERATED = re.compile(r"/generated/|^docs/python\.md$|^CHANGELOG\.md$|^tools/(check/|tests/test_)prose\.py$")


def files() -> list[str]:
    """All tracked and new files that hold prose."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    wanted = (".md", *COMMENT)
    return sorted(name for name in listed if name.endswith(wanted) and not GENERATED.search(name) and (ROOT / name).exists())


def findings(name: str, text: str) -> list[tuple[int, str]]:
    """Line number and line of each finding in the prose of a file."""
    comment = COMMENT.get(pathlib.PurePath(name).suffix)
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = comment.search(line) if comment else None
        prose = line if comment is None else match.group() if match else ""
        is_flag = LIBRARY.match(name) and FLAG.search(NO_TEXT.sub("", line))
        if WORDS.search(prose) or FRAGMENT.search(line) or is_flag:
            found.append((number, line.strip()))
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    chosen = parser.parse_args(arguments).files or files()
    found = [(name, *row) for name in chosen for row in findings(name, (ROOT / name).read_text(encoding="utf-8"))]
    for name, number, line in found:
        print(f"{name}:{number}: {line}", file=sys.stderr)
    if not found:
        print(f"prose: no findings in {len(chosen)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
