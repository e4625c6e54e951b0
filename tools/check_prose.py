#!/usr/bin/env python3
"""Refuses wording that plain technical English avoids, in documents, comments and docstrings.

    tools/check_prose.py             exits with 1 if a file has more findings than tools/prose_limits.txt allows
    tools/check_prose.py --list F    prints the findings of the files F, or of all files without F
    tools/check_prose.py --lower     lowers the limits to what the files have now

Older files may keep the findings that the limits list; the limits only ever go down, and a file that is not listed has
none. The rules: no pronoun without a noun of the field behind it (whoever, nobody, somebody), no dialect (anew, of ever),
and no description that begins with a relative clause (`/// What opens a file`).
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMITS = ROOT / "tools/prose_limits.txt"

WORDS = re.compile(
    r"\b(whoever|nobody|somebody|anew|by now|likewise|of ever|lets? it go|what is there|(?:is|are) (?:told|asked|brought))\b"
    r"|\bcannot be\.",
    re.IGNORECASE,
)
FRAGMENT = re.compile(r"^\s*(?://[/!] |\"\"\")(?:What|Who|Whoever|Of|Where|That) ")
COMMENT = {".rs": re.compile(r"//.*"), ".py": re.compile(r"#.*|\"\"\".*"), ".pyi": re.compile(r"#.*|\"\"\".*")}
GENERATED = re.compile(r"/generated/|^docs/python\.md$|^CHANGELOG\.md$|^tools/(tests/test_)?check_prose\.py$")


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
        if WORDS.search(prose) or FRAGMENT.search(line):
            found.append((number, line.strip()))
    return found


def limits() -> dict[str, int]:
    """The findings that each file may have."""
    rows = [line.split() for line in LIMITS.read_text(encoding="utf-8").splitlines() if line]
    return {name: int(count) for count, name in rows}


def main(arguments: list[str]) -> int:
    chosen = arguments[1:] if arguments[:1] == ["--list"] and arguments[1:] else files()
    found = {name: findings(name, (ROOT / name).read_text(encoding="utf-8")) for name in chosen}
    if arguments[:1] == ["--list"]:
        for name, rows in found.items():
            for number, line in rows:
                print(f"{name}:{number}: {line}")
        return 0
    allowed = limits() if LIMITS.exists() else {}
    if arguments == ["--lower"]:
        rows = [(min(len(rows), allowed.get(name, len(rows) if not allowed else 0)), name) for name, rows in found.items()]
        LIMITS.write_text("".join(f"{count} {name}\n" for count, name in rows if count), encoding="utf-8")
        return 0
    worse = {name: rows for name, rows in found.items() if len(rows) > allowed.get(name, 0)}
    for name, rows in worse.items():
        print(f"{name}: {len(rows)} findings, {allowed.get(name, 0)} allowed", file=sys.stderr)
        for number, line in rows:
            print(f"    {number}: {line}", file=sys.stderr)
    if not worse:
        print(f"prose: {sum(map(len, found.values()))} findings in {len(found)} files, none above its limit")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
