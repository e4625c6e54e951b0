#!/usr/bin/env python3
"""Refuses growth: compares each row of tools/check/budget.toml with today's count.

    tools/check/budget.py            prints the table, and exits with 1 if a row exceeds its budget
    tools/check/budget.py --lower    lowers the rows to today's numbers; none rises
    tools/check/budget.py --set      sets every row to today's number, higher or lower

The budget of a row is its number and what allowances add to it. Comments of the file stay as they are.
tools/check/lines.py says what counts.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import tomllib
from collections.abc import Callable

import lines

FILE = "tools/check/budget.toml"
REMEDY = f"delete, or raise the row in {FILE} with a reason"
ROW = re.compile(r'^("(?P<quoted>[^"]+)"|(?P<bare>[\w-]+))(?P<equals>\s*=\s*)(?P<number>[\d_]+)(?P<rest>\s*(?:#.*)?)$')
TABLE = re.compile(r"^\[(?P<name>\w+)\]\s*$")


def counted(root: pathlib.Path) -> dict[str, dict[str, int]]:
    """Today's number of each row, by table of the file."""
    crates, _ = lines.rust(root)
    words = lines.words(root)
    return {
        "rust": dict(sorted(crates.items())),
        "python": {"package": lines.package_lines(root)},
        "words": words,
        "command_line": lines.command_line(root),
    }


def unlimited(root: pathlib.Path) -> dict[str, int]:
    """The numbers that the table shows without a budget."""
    _, tests = lines.rust(root)
    return {"test lines of Rust": sum(tests.values()), "test lines of Python": lines.python_test_lines(root)}


def used(budget: dict, table: str, row: str) -> int:
    """Returns how much allowances add to a row."""
    return sum(entry.get("used", {}).get(f"{table}.{row}", 0) for entry in budget.get("allowance", []))


def size(entry: dict) -> int:
    """The lines or words of an allowance."""
    return entry["lines"] if "lines" in entry else entry["words"]


def violations(budget: dict, now: dict[str, dict[str, int]]) -> list[str]:
    """Each row and allowance that is exceeded or missing, as a sentence."""
    found = []
    for table, rows in now.items():
        for row, number in rows.items():
            if row not in budget.get(table, {}):
                found.append(f"{table}.{row} has no row: add it to {FILE} with a reason")
                continue
            limit = budget[table][row] + used(budget, table, row)
            if number > limit:
                found.append(f"{table}.{row} is {number:,}, {number - limit:,} over its budget of {limit:,}: {REMEDY}")
    for entry in budget.get("allowance", []):
        taken = sum(entry.get("used", {}).values())
        if taken > size(entry):
            found.append(f"allowance \"{entry['name']}\": {taken:,} used of {size(entry):,}")
        if taken and not entry.get("reason"):
            found.append(f"allowance \"{entry['name']}\" is used without a reason")
        for name in entry.get("used", {}):
            table, _, row = name.partition(".")
            if row not in budget.get(table, {}):
                found.append(f"allowance \"{entry['name']}\": no row is called {name}")
    return found


def report(budget: dict, now: dict[str, dict[str, int]], shown: dict[str, int]) -> list[str]:
    """The lines of the table."""
    rows = [("row", "now", "budget", "difference")]

    def add(name: str, number: int, limit: int) -> None:
        rows.append((name, f"{number:,}", f"{limit:,}", f"{number - limit:+,}" if number != limit else "0"))

    for table, numbers in now.items():
        limits = {row: budget.get(table, {}).get(row, 0) + used(budget, table, row) for row in numbers}
        for row in sorted(numbers, key=lambda row: -numbers[row]) if table == "rust" else numbers:
            add(f"{table}.{row}", numbers[row], limits[row])
        if table == "rust":
            add("rust, all crates", sum(numbers.values()), sum(limits.values()))
    rows += [(name, f"{number:,}", "", "") for name, number in shown.items()]
    width = max(len(row[0]) for row in rows)
    text = [f"{name:{width}} {number:>9} {limit:>9} {difference:>10}".rstrip() for name, number, limit, difference in rows]
    for entry in budget.get("allowance", []):
        if taken := sum(entry.get("used", {}).values()):
            unit = "lines" if "lines" in entry else "words"
            text.append(f"allowance \"{entry['name']}\": {taken:,} of {size(entry):,} {unit} used")
    return text


def rewritten(text: str, now: dict[str, dict[str, int]], choose: Callable[[int, int], int]) -> str:
    """The file with other numbers: `choose` gets the number of a row and today's. Rows of what is gone are left out."""
    budget = tomllib.loads(text)
    table, made = "", []
    for line in text.splitlines():
        if found := TABLE.match(line):
            table = found["name"]
        elif line.startswith("[["):
            table = ""
        elif table in now and (found := ROW.match(line)):
            row = found["quoted"] or found["bare"]
            if row not in now[table]:
                continue
            today = max(0, now[table][row] - used(budget, table, row))
            number = choose(budget[table][row], today)
            if number != budget[table][row]:
                line = f"{found[1]}{found['equals']}{number}{found['rest']}"
        made.append(line)
    return "\n".join(made) + "\n"


def quoted(row: str) -> str:
    """The name of a row as TOML has it."""
    return row if re.fullmatch(r"[\w-]+", row) else f'"{row}"'


def with_new_rows(text: str, now: dict[str, dict[str, int]]) -> str:
    """The file with a row for each number that has none, at the end of its table."""
    budget = tomllib.loads(text)
    made = text.splitlines()
    for table, rows in now.items():
        new = [row for row in rows if row not in budget.get(table, {})]
        if not new:
            continue
        if f"[{table}]" not in made:
            made += ["", f"[{table}]"]
        at = made.index(f"[{table}]") + 1
        while at < len(made) and ROW.match(made[at]):
            at += 1
        made[at:at] = [f"{quoted(row)} = {rows[row]}" for row in new]
    return "\n".join(made) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--lower", action="store_true", help="lower the rows to today's numbers")
    change.add_argument("--set", action="store_true", help="set every row to today's number")
    args = parser.parse_args(arguments)
    path = lines.ROOT / FILE
    text = path.read_text(encoding="utf-8")
    now = counted(lines.ROOT)
    if args.lower:
        text = rewritten(text, now, min)
    if args.set:
        text = with_new_rows(rewritten(text, now, lambda _, today: today), now)
    if args.lower or args.set:
        path.write_text(text, encoding="utf-8")
    budget = tomllib.loads(text)
    print("\n".join(report(budget, now, unlimited(lines.ROOT))))
    found = violations(budget, now)
    for sentence in found:
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
