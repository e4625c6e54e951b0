#!/usr/bin/env python3
"""Runs a command and keeps what it printed, which draw.py turns into a picture.

    tools/pictures/record.py quickstart forebay quickstart
    tools/pictures/record.py explain forebay bench explain DATASET --json

`quickstart` runs in a terminal of 100 columns, in the root of the repository, and keeps each line with its colors and the time at
which it appeared. `explain` runs in the current directory and keeps the table and the prices. Both write into
docs/pictures/data/. A recording that names a directory of this machine is refused. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "docs/pictures/data"
COLUMNS, ROWS = 100, 50
ABSOLUTE = re.compile(r"(?<![\w:/.])/(?:home|root|tmp|work|mnt|data|usr|var|opt)\b")
SYNCHRONIZED = re.compile(r"\x1b\[\?\w+")


def machine() -> str:
    """The processor and the number of its cores."""
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor")
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} virtual {'core' if cores == 1 else 'cores'}"


def settled(line: str) -> str:
    """The text that stays of a line on which progress was drawn and erased."""
    return SYNCHRONIZED.sub("", line.rstrip("\r").rpartition("\x1b[2K")[2].rpartition("\r")[2]).rstrip()


def terminal(program: str, command: list[str]) -> list[dict[str, Any]]:
    """The lines that a command leaves in a terminal, with the seconds after which each appeared."""
    import fcntl
    import termios

    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    started = time.monotonic()
    child = subprocess.Popen(command, executable=program, stdout=other, stderr=other, stdin=other, cwd=ROOT,
                             env={**os.environ, "TERM": "xterm-256color"})
    os.close(other)
    lines: list[dict[str, Any]] = []
    rest = b""
    while True:
        try:
            read = os.read(main, 65536)
        except OSError:  # The terminal ends with its last process.
            read = b""
        if not read:
            break
        *whole, rest = (rest + read).split(b"\n")
        at = round(time.monotonic() - started, 3)
        lines += [{"at": at, "text": settled(line.decode())} for line in whole]
    os.close(main)
    if status := child.wait():
        sys.exit(f"error: {shlex.join(command)} ended with {status}")
    return lines


def explain(program: str, command: list[str]) -> dict[str, Any]:
    """The table and the prices of `forebay bench explain --json`."""
    run = subprocess.run(command, executable=program, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"error: {shlex.join(command)} ended with {run.returncode}: {run.stderr.strip()}")
    events = {event["type"]: event for event in map(json.loads, run.stdout.splitlines())}
    return {"bench": events["bench"], "prices": events["prices"]}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["quickstart", "explain"])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    program = shutil.which(args.command[0]) if args.command else None
    if program is None:
        parser.error("no such program: give a command, such as forebay quickstart")
    program = os.path.abspath(program)
    command = [os.path.basename(program), *args.command[1:]]
    kept: dict[str, Any] = {"command": shlex.join(command), "machine": machine()}
    if args.name == "quickstart":
        kept["lines"] = terminal(program, command)
    else:
        kept |= explain(program, command)
    text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    if found := ABSOLUTE.search(text):
        sys.exit(f"error: the recording names a directory of this machine: {text[found.start():found.start() + 40]!r}")
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / f"{args.name}.json").write_text(text, encoding="utf-8")
    print(f"wrote docs/pictures/data/{args.name}.json; now run tools/pictures/draw.py")


if __name__ == "__main__":
    main(sys.argv[1:])
