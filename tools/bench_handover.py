#!/usr/bin/env python3
"""Measures the cost of handing a ready batch to a trainer.

    python tools/bench_handover.py DATASET [--split NAME] [--cores 1] [--batch-size 256] [--rounds 50] [--torch]

DATASET is a directory of shards, or the address of a server. The process is pinned to `--cores` cores and decodes with as many
threads. Before each batch it sleeps for twice the time that one takes, so that batches are ready and every thread has what it
has room for. Then the time of `next()` and of taking the arrays counts: on the
clock, and of the trainer's own thread on its core. The latter is the work of the hand-over, with caches as cold as a training step leaves them; what the former has
beyond it is the system's choice who runs next, among the threads that go on where a batch made room. A row of a Markdown table goes to stdout, and with
--header its head.

Needs the package `forebay` in the environment that runs it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import forebay

HEAD = """\
| cores | batch | on the clock, us | 90 % below | of the thread, us | least |
| --- | --- | --- | --- | --- | --- |"""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--split", help="where there are several")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--torch", action="store_true", help="take tensors, not numpy arrays")
    parser.add_argument("--header", action="store_true")
    return parser.parse_args()


def main() -> None:
    args = options()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    walls, works = [], []
    with forebay.Loader(args.dataset, split=args.split, batch_size=args.batch_size, transform=forebay.TrainTransform(224), threads=args.cores) as loader:

        def batches():
            while True:
                yield from loader

        ready = batches()
        next(ready)
        began = time.perf_counter()
        for _ in range(8):
            next(ready)
        each = (time.perf_counter() - began) / 8
        for _ in range(args.rounds):
            time.sleep(2 * each + 0.02)
            wall, work = time.perf_counter(), time.thread_time()
            batch = next(ready)
            images, labels = batch.torch() if args.torch else batch
            walls.append((time.perf_counter() - wall) * 1e6)
            works.append((time.thread_time() - work) * 1e6)
            assert len(images) == len(labels) == args.batch_size
    if args.header:
        print(HEAD)
    figures = (statistics.median(walls), most(walls), statistics.median(works), min(works))
    print(f"| {args.cores} | {args.batch_size} | {' | '.join(f'{figure:,.0f}' for figure in figures)} |")


def most(times: list[float]) -> float:
    """The value that nine of ten are below."""
    return statistics.quantiles(times, n=10)[-1]


if __name__ == "__main__":
    main()
