#!/usr/bin/env python3
"""Counts what the budget limits: lines of code, words of documents, commands and flags.

    tools/check/lines.py        prints the production lines of each crate, and the lines of its files of tests

Production lines of Rust are neither blank nor comments, and lie outside test modules, files of tests, examples, benches,
fuzz targets and generated code. Files that git ignores do not count.
"""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess
import sys

from module_cycles import TOKEN, without_tests

ROOT = pathlib.Path(__file__).resolve().parents[2]

TEST_ITEM = re.compile(r"(\s*)#\[cfg\((any\()?test")
TEST_FOLDERS = ("/tests/", "/examples/", "/benches/", "/fuzz", "generated")
TEST_FILE = re.compile(r"tests?\.rs$")

PYTHON_PACKAGE = "crates/forebay-python/python/"
DECISIONS = "docs/internals/decisions/"
GENERATED_PAGES = {"docs/python.md", "docs/faults.md"}

# Where the commands and flags of the laboratory are defined: a program of its own.
LAB = "crates/forebay-lab/"
COMMAND_LINES = ("crates/forebay-cli/src/", "crates/forebay-lab/src/")

KEPT_STRING = re.compile(r"\blong\s*=\s*$")
ARGUMENT = re.compile(r"#\[arg\(")
LONG = re.compile(r"(?<![\w.])long\s*(?:=\s*\"([^\"]+)\"|(?=[,\s]|$))")
FIELD = re.compile(r"\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?(?:r#)?(\w+)\s*:")
SUBCOMMANDS = re.compile(r"derive\([^)]*\bSubcommand\b[^)]*\)\](?:\s*#\[[^\]]*\])*\s*(?:pub(?:\(\w+\))?\s+)?enum\s+\w+\s*\{(.*?)\n\}", re.DOTALL)
VARIANT = re.compile(r"^    ([A-Z]\w*)\s*(?:[(,{]|$)", re.MULTILINE)
COMMAND_TABLE = re.compile(r"^commands! \{(.*?)^\}", re.DOTALL | re.MULTILINE)


def files(root: pathlib.Path, *patterns: str) -> list[str]:
    """The tracked and new files that match."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return sorted(name for name in set(listed) if (root / name).is_file())


def production_lines(text: str) -> int:
    """Lines of a file of Rust without blanks, comments and test modules."""
    lines, number, at = text.split("\n"), 0, 0
    while at < len(lines):
        if found := TEST_ITEM.match(lines[at]):
            at += 1
            while at < len(lines) and lines[at].strip().startswith("#["):
                at += 1
            if at < len(lines) and not lines[at].rstrip().endswith(";"):
                # rustfmt puts the end of a block below its beginning.
                while at < len(lines) and lines[at].rstrip() != found.group(1) + "}":
                    at += 1
        else:
            line = lines[at].strip()
            number += bool(line) and not line.startswith("//")
        at += 1
    return number


def rust(root: pathlib.Path) -> tuple[dict[str, int], dict[str, int]]:
    """Production lines of each crate, and all lines of its files of tests and examples."""
    code: collections.Counter[str] = collections.Counter()
    tests: collections.Counter[str] = collections.Counter()
    for name in files(root, "*.rs"):
        parts = name.split("/")
        crate = parts[1] if parts[0] == "crates" else parts[0]
        text = (root / name).read_text(encoding="utf-8", errors="replace")
        if any(part in name for part in TEST_FOLDERS) or TEST_FILE.search(name):
            tests[crate] += len(text.splitlines())
        else:
            code[crate] += production_lines(text)
    return dict(code), dict(tests)


def package_lines(root: pathlib.Path) -> int:
    """All lines of the modules of the Python package. Its stubs repeat docstrings, so they do not count."""
    return sum(len((root / name).read_text(encoding="utf-8").splitlines()) for name in files(root, f"{PYTHON_PACKAGE}*.py"))


def python_test_lines(root: pathlib.Path) -> int:
    """All lines of the tests of the Python package and of the tools."""
    names = files(root, "crates/forebay-python/tests/*.py", "tools/tests/*.py")
    return sum(len((root / name).read_text(encoding="utf-8").splitlines()) for name in names)


def words(root: pathlib.Path) -> dict[str, int]:
    """Words of documents, of decisions and of the changelog, as `wc -w` counts them."""
    def count(names: list[str]) -> int:
        return sum(len((root / name).read_text(encoding="utf-8").split()) for name in names)

    pages = files(root, "README.md", "ARCHITECTURE.md", "FORMAT.md", "docs/*.md")
    decisions = [name for name in pages if name.startswith(DECISIONS)]
    return {
        "documents": count([name for name in pages if name not in decisions and name not in GENERATED_PAGES]),
        "decisions": count(decisions),
        "changelog": count(files(root, "CHANGELOG.md")),
    }


def plain(text: str) -> str:
    """Rust without comments, tests and strings; strings that name a flag stay."""
    def shown(match: re.Match[str]) -> str:
        if match.group().startswith("/"):
            return " "
        return match.group() if KEPT_STRING.search(text, max(0, match.start() - 12), match.start()) else '""'

    return without_tests(TOKEN.sub(shown, text))[0]


def declared_flags(text: str) -> set[str]:
    """The long flags that the `#[arg(..)]` of a file declare; `text` is plain."""
    found = set()
    for start in (match.end() for match in ARGUMENT.finditer(text)):
        depth, end = 1, start
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if long := LONG.search(text, start, end - 1):
            field = FIELD.match(text, end + 1)
            if name := long.group(1) or (field and field.group(1).replace("_", "-")):
                found.add(name)
    return found


def declared_commands(text: str) -> list[str]:
    """The commands that a file declares; `text` is plain."""
    tables = [re.findall(r"(\w+)\s*=>", table) for table in COMMAND_TABLE.findall(text)]
    return [name for names in [*tables, *map(VARIANT.findall, SUBCOMMANDS.findall(text))] for name in names]


def command_line(root: pathlib.Path) -> dict[str, int]:
    """Commands and distinct flags, inside and outside of the laboratory, without `--help` and `--version`.

    A group of commands, such as `cache`, is a command as well.
    """
    commands = {False: 0, True: 0}
    flags: dict[bool, set[str]] = {False: set(), True: set()}
    for name in files(root, *(f"{folder}*.rs" for folder in COMMAND_LINES)):
        text = plain((root / name).read_text(encoding="utf-8"))
        commands[name.startswith(LAB)] += len(declared_commands(text))
        flags[name.startswith(LAB)] |= declared_flags(text)
    return {
        "commands": commands[False],
        "flags": len(flags[False]),
        "commands of the lab": commands[True],
        "flags of the lab alone": len(flags[True] - flags[False]),
    }


def main() -> int:
    code, tests = rust(ROOT)
    for crate in sorted(code.keys() | tests.keys(), key=lambda crate: -code.get(crate, 0)):
        print(f"{crate:22} {code.get(crate, 0):7,}  tests/examples files {tests.get(crate, 0):6,}")
    print(f"{'all':22} {sum(code.values()):7,}  tests/examples files {sum(tests.values()):6,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
