#!/usr/bin/env python3
"""An epoch of one dataset from a directory, from an object store, and through a local cache, cold and warm, in turns.

    python tools/peers/bench_epoch.py DATASET --work DIRECTORY [--threads 2] [--batch-size 64] [--rounds 3]
                                      [--server s3s-fs|moto|URL]

DATASET is a directory of shards. It is copied to the server first (`forebay cp`), which is one on loopback that this
script starts, as tools/peers/bench_store.py does, or one that runs already. The server shares the cores with what is
measured: ratios within one run compare, figures of different machines do not. A row is the median of the rounds, with the
lowest and highest, in images a second of RandomResizedCrop(224) over one epoch, opening the dataset included; one round
before does not count. The table goes to stdout as Markdown.

Needs the package `forebay` in the environment that runs it.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import common
import forebay


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", default="s3s-fs")
    return parser.parse_args()


def epoch(source: str, args: argparse.Namespace, storage: dict[str, str] | None) -> float:
    start = time.perf_counter()
    images = 0
    with forebay.Loader(
        source, batch_size=args.batch_size, threads=args.threads, storage_options=storage, transform=forebay.TrainTransform(224)
    ) as loader:
        for batch in loader:
            images += len(batch.labels)
    return images / (time.perf_counter() - start)


def main() -> int:
    args = options()
    args.work.mkdir(parents=True, exist_ok=True)
    command, _, s3_server = common.build()
    cache = args.work / "cache"
    with common.Server(args.server, args.work, s3_server) as server:
        remote = f"s3://{server.bucket}/bench-epoch"
        subprocess.run([command, "cp", args.dataset, remote, "--endpoint", server.url], check=True)
        plain = {"endpoint": server.url, "allow_http": "true"}
        cached = {**plain, "cache_dir": str(cache)}
        variants: dict[str, tuple[str, dict[str, str] | None]] = {
            "directory": (str(args.dataset), None),
            "store": (remote, plain),
            "store, empty cache": (remote, cached),
            "store, warm cache": (remote, cached),
        }
        rows: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(args.rounds + 1):
            shutil.rmtree(cache, ignore_errors=True)
            for name, (source, storage) in variants.items():
                rate = epoch(source, args, storage)
                print(f"round {number}: {name}: {rate:.0f} images/s", file=sys.stderr)
                if number:
                    rows[name].append(rate)
    shutil.rmtree(cache, ignore_errors=True)
    first = statistics.median(rows["directory"])
    print("| an epoch from | images/s | lowest - highest | of the directory |\n| --- | --- | --- | --- |")
    for name, rates in rows.items():
        middle = statistics.median(rates)
        print(f"| {name} | {middle:,.0f} | {min(rates):,.0f} - {max(rates):,.0f} | {middle / first:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
