#!/usr/bin/env python3
"""Packing straight into an object store, against packing locally and uploading then.

    python3 tools/peers/bench_pack_upload.py IMAGES --work DIRECTORY [--rounds 5] [--server s3s-fs|moto|URL]
                                             [--staging-bytes 2GiB] [--shard-size 64MiB]

The server is one on loopback that this script starts, as tools/peers/bench_store.py does, or one that runs already. It shares the
cores with what is measured: ratios within one run compare. The contestants take turns, round by round:

  through staging   forebay pack IMAGES s3://.../a
  one by one        forebay pack IMAGES DIR/b, then forebay cp DIR/b s3://.../b

Each round writes below a prefix of its own; on a server that ran already they stay. A row is the median with the lowest and
highest; one round before does not count. MB are bytes of shards and indexes. Also told: the time of the local pack alone and of the
upload alone, of which the longer one is what packing through staging can reach at best. The table goes to stdout, as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import common


def timed(command: list[object]) -> tuple[float, dict[str, object]]:
    """Seconds that a command takes, and the last event that it prints."""
    begin = time.monotonic()
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"{command}: exit code {done.returncode}")
    lines = done.stdout.splitlines()
    return time.monotonic() - begin, json.loads(lines[-1]) if lines else {}


def rounds(args: argparse.Namespace, command: pathlib.Path, server: common.Server) -> tuple[int, dict[str, list[float]]]:
    """Bytes of the dataset, and the seconds of each part in each round."""
    pack = [command, "pack", args.images]
    shape = ["--format", "tfrecord", "--shard-size", args.shard_size, "--json"]
    there = ["--endpoint", server.url]
    local = args.work / "local"
    times: dict[str, list[float]] = {"through staging": [], "one by one": [], "local pack": [], "upload": []}
    size = 0
    for number in range(args.rounds + 1):
        base = f"s3://{server.bucket}/bench-{os.getpid()}/{number}"
        staging = ["--staging", args.work / "staging", "--staging-bytes", args.staging_bytes]
        through, staged = timed([*pack, f"{base}/a", *staging, *shape, *there])
        shutil.rmtree(local, ignore_errors=True)
        packing, packed = timed([*pack, local, *shape])
        if packed["fingerprint"] != staged["fingerprint"]:
            sys.exit("the two packs differ")
        size = sum(path.stat().st_size for path in local.rglob("*") if path.is_file())
        uploading, _ = timed([command, "cp", local, f"{base}/b", "--json", *there])
        # The first round warms the page cache.
        if number:
            for row, seconds in zip(times.values(), (through, packing + uploading, packing, uploading), strict=True):
                row.append(seconds)
    shutil.rmtree(local, ignore_errors=True)
    return size, times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server", default="s3s-fs")
    parser.add_argument("--staging-bytes", default="2GiB")
    parser.add_argument("--shard-size", default="64MiB")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    command, _, s3_server = common.build()
    with common.Server(args.server, args.work, s3_server) as server:
        size, times = rounds(args, command, server)
    print(f"{size / 1e6:.0f} MB, {args.rounds} rounds\n")
    print("| what | seconds | lowest to highest | MB/s |\n| --- | --- | --- | --- |")
    for what, seconds in times.items():
        middle = statistics.median(seconds)
        print(f"| {what} | {middle:.2f} | {min(seconds):.2f} to {max(seconds):.2f} | {size / 1e6 / middle:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
