#!/usr/bin/env python3
"""Several ranks on one machine, beside one loader with as many threads: the same dataset, in turns.

    python tools/peers/bench_ranks.py DATASET [--ranks 8] [--threads 2] [--rounds 5] [--seconds 5] [--size 224] [--batch 64]

Each rank is a process of its own with THREADS decode threads; the loader alone has RANKS times as many. All processes make a
whole epoch's batches again and again, start to count together after a warm-up, and count for the same seconds. Run it in an
interpreter that has the package, built in the release profile. Prints Markdown: images/s of all ranks together, their lowest and
highest round, the processor time of an image, the slowest rank beside the mean, and the ratio to the loader alone, round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from common import processor


def rank(args: argparse.Namespace) -> None:
    """One rank: reports that it is warm, waits for the start, and prints what it counted."""
    import forebay

    loader = forebay.Loader(
        args.dataset, split=args.split, batch_size=args.batch, transform=forebay.TrainTransform(args.size), threads=args.threads,
        rank=args.rank, world_size=args.ranks,
    )  # fmt: skip

    def batches():
        while True:
            yield from loader

    made = batches()
    until = time.monotonic() + args.seconds
    while time.monotonic() < until:
        next(made)
    print("warm", flush=True)
    start = float(sys.stdin.readline())
    while time.monotonic() < start:
        next(made)
    images, used, end = 0, os.times(), start + args.seconds
    while time.monotonic() < end:
        images += len(next(made).samples)
    now = os.times()
    print(json.dumps({"images": images, "cpu": now.user + now.system - used.user - used.system}), flush=True)
    # The loader is not needed any more, and its threads need not end by themselves.
    os._exit(0)


def together(args: argparse.Namespace, ranks: int, threads: int) -> tuple[list[float], float]:
    """Images/s of each of so many ranks that run together, and the processor seconds of an image."""
    command = [sys.executable, __file__, args.dataset, "--seconds", args.seconds, "--size", args.size, "--batch", args.batch]
    command += ["--ranks", ranks, "--threads", threads, *(["--split", args.split] if args.split else [])]
    processes = [
        subprocess.Popen([*map(str, command), "--rank", str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            if process.stdout.readline() != "warm\n":
                sys.exit("a rank ended: see its error above")
        # CLOCK_MONOTONIC is one for the machine.
        start = time.monotonic() + 0.5
        for process in processes:
            process.stdin.write(f"{start}\n")
            process.stdin.flush()
        results = [json.loads(process.stdout.read()) for process in processes]
    finally:
        for process in processes:
            process.kill()
    images = sum(result["images"] for result in results)
    return [result["images"] / args.seconds for result in results], sum(result["cpu"] for result in results) / max(images, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="its directory or URL")
    parser.add_argument("--split")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="of each rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return rank(args)
    cases = {f"one loader of {args.ranks * args.threads} threads": (1, args.ranks * args.threads),
             f"{args.ranks} ranks of {args.threads} threads": (args.ranks, args.threads)}  # fmt: skip
    rates: dict[str, list[float]] = {name: [] for name in cases}
    cpu: dict[str, list[float]] = {name: [] for name in cases}
    slowest: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(args.rounds):
        for name, (ranks, threads) in cases.items():
            each, seconds = together(args, ranks, threads)
            rates[name].append(sum(each))
            cpu[name].append(seconds * 1e6)
            slowest[name].append(min(each) / statistics.mean(each))
    first = rates[next(iter(cases))]
    print(f"{processor()}; {args.rounds} rounds of {args.seconds:g} s\n")
    print("| | images/s | lowest - highest | to one loader | CPU, us an image | slowest rank to the mean |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, values in rates.items():
        ratios = [value / alone for value, alone in zip(values, first, strict=True)]
        print(
            f"| {name} | {statistics.median(values):,.0f} | {min(values):,.0f} - {max(values):,.0f} | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} - {max(ratios):.2f}) | {statistics.median(cpu[name]):,.0f} | {statistics.median(slowest[name]):.2f} |"
        )


if __name__ == "__main__":
    main()
