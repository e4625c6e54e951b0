#!/usr/bin/env python3
"""Forebay beside other tools that move objects: the same bytes, the same server, in turns.

    python3 tools/peers/bench_store.py [--size 1024] [--files 16] [--rounds 3] [--work DIRECTORY]
                                       [--server s3s-fs|moto|URL] [--tools forebay,aws,object_store]

Moves one file of SIZE MiB, and a directory of FILES files of SIZE/FILES MiB each, up and down:

    forebay        `forebay cp -r`: checksums compared end to end, downloads fsynced
    aws            `aws s3 cp` and `aws s3 sync` of awscli, installed into an environment of its own below --work
    object_store   the crate used plainly (crates/forebay-store/examples/object_store_plain.rs): multipart upload of 8 MiB
                   parts, eight at a time; one plain GET down; no checksums, no fsync

The server is one on loopback that this script starts and ends (s3s-fs is part of this checkout, moto comes from pip), or,
given as a URL, one that runs already, with credentials in the usual AWS_ variables and the bucket in BENCH_BUCKET.
It shares the cores with what is measured, so figures of different machines, or of different servers, do not compare;
ratios within one run do.

Each round runs every tool once per task, so that a disturbance meets all alike; one round before does not count. Prints
Markdown: MB/s by the wall clock, the start of the process included, the processor time and the peak memory of the tool's
process. What arrived is compared with what was sent. --json FILE keeps every run.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

from common import Server, build, needed, say

MIB = 1 << 20


def run(command: list[object]) -> dict[str, float]:
    """Seconds, processor seconds and peak MiB of a command."""
    with tempfile.TemporaryFile() as output:
        begin = time.monotonic()
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=output)
        # wait4 tells of this one child, not of all there ever were.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            output.seek(0)
            text = output.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"{' '.join(str(part) for part in command)} failed:\n{text}")
    return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss / 1024}


def commands(tool: str, paths: dict[str, pathlib.Path], server: Server, number: int) -> dict[str, object]:
    """The command of a tool for each task of a round, in a prefix of its own; absent where it has none."""
    key = f"{tool}-{number}"
    url = f"s3://{server.bucket}/{key}"
    if tool == "aws":
        aws = [paths["aws"], "--endpoint-url", server.url, "s3"]
        return {
            "file up": lambda here, _: [*aws, "cp", "--no-progress", here, f"{url}/file"],
            "file down": lambda _, there: [*aws, "cp", "--no-progress", f"{url}/file", there],
            "directory up": lambda here, _: [*aws, "sync", "--no-progress", here, f"{url}/dir"],
            "directory again": lambda here, _: [*aws, "sync", "--no-progress", here, f"{url}/dir"],
            "directory down": lambda _, there: [*aws, "sync", "--no-progress", f"{url}/dir", there],
        }
    if tool == "object_store":
        plain = paths["plain"]
        return {
            "file up": lambda here, _: [plain, "put", server.url, server.bucket, f"{key}/file", here],
            "file down": lambda _, there: [plain, "get", server.url, server.bucket, f"{key}/file", there],
        }
    end = ["--endpoint", server.url]
    forebay = paths["forebay"]
    return {
        "file up": lambda here, _: [forebay, "cp", here, f"{url}/file", *end],
        "file down": lambda _, there: [forebay, "cp", f"{url}/file", there, *end],
        "directory up": lambda here, _: [forebay, "cp", "-r", here, f"{url}/dir", *end],
        "directory again": lambda here, _: [forebay, "cp", "-r", here, f"{url}/dir", *end],
        "directory down": lambda _, there: [forebay, "cp", "-r", f"{url}/dir", there, *end],
    }


def write_random(path: pathlib.Path, size: int) -> None:
    with open(path, "wb") as file:
        for begin in range(0, size, MIB):
            file.write(os.urandom(min(MIB, size - begin)))


def same(one: pathlib.Path, other: pathlib.Path) -> bool:
    if one.is_file():
        return filecmp.cmp(one, other, shallow=False)
    names = sorted(path.name for path in one.iterdir())
    if names != sorted(path.name for path in other.iterdir() if not path.name.startswith(".")):
        return False
    return all(filecmp.cmp(one / name, other / name, shallow=False) for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, help="MiB of the file, and of the directory")
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", default="s3s-fs")
    parser.add_argument("--tools", default="forebay,aws,object_store")
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    work = args.work or pathlib.Path(tempfile.gettempdir()) / "forebay-bench-store"
    work.mkdir(parents=True, exist_ok=True)
    forebay, plain, s3_server = build()
    paths = {"forebay": forebay, "plain": plain}
    tools = args.tools.split(",")
    if "aws" in tools:
        paths["aws"] = needed(work / "venv-aws", ["awscli"]) / "aws"
    source = work / "source"
    shutil.rmtree(source, ignore_errors=True)
    (source / "dir").mkdir(parents=True)
    write_random(source / "file", args.size * MIB)
    for number in range(args.files):
        write_random(source / f"dir/part-{number:05}", args.size * MIB // args.files)
    tasks = ["file up", "file down", "directory up", "directory again", "directory down"]
    runs: list[dict[str, object]] = []
    with Server(args.server, work, s3_server) as server:
        for round_number in range(args.rounds + 1):
            table = {tool: commands(tool, paths, server, round_number) for tool in tools}
            for task in tasks:
                for tool in tools:
                    make = table[tool].get(task)
                    if make is None:
                        continue
                    kind = task.split()[0]
                    here = source / ("file" if kind == "file" else "dir")
                    there = work / "there"
                    if there.is_dir():
                        shutil.rmtree(there)
                    else:
                        there.unlink(missing_ok=True)
                    os.sync()
                    took = run(make(here, there))
                    if task.endswith("down") and not same(here, there):
                        raise SystemExit(f"{tool}: {task}: other bytes arrived")
                    say(f"round {round_number}: {task}: {tool}: {took['seconds']:.2f} s")
                    if round_number > 0:
                        runs.append({"task": task, "tool": tool, "round": round_number, **took})
    if args.json:
        args.json.write_text(json.dumps(runs, indent=1))
    show(runs, tasks, tools, args)


def show(runs: list[dict[str, object]], tasks: list[str], tools: list[str], args: argparse.Namespace) -> None:
    print(f"{args.size} MiB as one file and as {args.files}, server {args.server}, medians of {args.rounds} rounds\n")
    print("| task | tool | MB/s | of the first | CPU s | peak RSS MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for task in tasks:
        first = None
        for tool in tools:
            these = [run for run in runs if run["task"] == task and run["tool"] == tool]
            if not these:
                continue
            middle = {name: statistics.median(float(run[name]) for run in these) for name in ("seconds", "cpu", "rss")}
            rate = args.size * MIB / 1e6 / middle["seconds"]
            first = first or rate
            shown = f"{middle['seconds']:.2f} s" if task == "directory again" else f"{rate:.0f}"
            print(f"| {task} | {tool} | {shown} | {rate / first:.2f} | {middle['cpu']:.2f} | {middle['rss']:.0f} |")


if __name__ == "__main__":
    main()
