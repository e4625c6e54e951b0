#!/usr/bin/env python3
"""Checkpoints beside a training: written straight to slow storage, and through the staging area.

    python tools/peers/bench_checkpoint.py DATASET --scratch DIR [--stage DIR] [--to LOCATION] [--rate 50] [--size 512]
                                           [--every 10 | --steps 20] [--saves 5] [--rounds 3] [--share 20] [--step-ms 50]
                                           [--dcp] [--only none,straight]

A training is a loop over `forebay.Loader(DATASET)` whose step takes --step-ms; DATASET is any location, such as
s3://bucket/imagenet. Every --every seconds, or every --steps steps, it saves --size MB of random bytes, --saves times. Three
variants take turns, round by round, after one round of the first that does not count:

    none       no checkpoints: what the training does on its own
    straight   the bytes are written into a directory in --scratch at --rate MB/s, and forced to disk; the training waits
    staged     forebay.checkpoint.save into --stage; draining to --to (default: the same directory) at --rate MB/s

With --dcp two more, which save a tensor of that size by torch.distributed.checkpoint.async_save and wait for the save before:

    dcp         torch's own FileSystemWriter, into --scratch
    dcp staged  forebay.integrations.dcp.StorageWriter, into --stage, draining as above

A row is the median of the rounds: seconds that the training stood still for a save (median and longest), which share of its
time these were, images a second over the whole round, and how long a batch was waited for (median, 99th percentile and
longest), which is what training feels of the draining. The last column is how long after the last save everything was where it belongs. The table goes to stdout as Markdown.

What is needed: a quiet machine, --stage on the fast disk, and for what training feels of draining a DATASET and a --to
behind the same wire. --rate 0 does not throttle: then --scratch has to be slow by itself.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import statistics
import sys
import time

import forebay

PIECE = 1 << 20


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--scratch", required=True, type=pathlib.Path)
    parser.add_argument("--stage", type=pathlib.Path)
    parser.add_argument("--to")
    parser.add_argument("--rate", type=float, default=50, help="MB a second; 0 does not throttle")
    parser.add_argument("--size", type=float, default=512, help="MB of a checkpoint")
    parser.add_argument("--every", type=float, default=10, help="seconds between saves")
    parser.add_argument("--steps", type=int, help="steps between saves, in place of seconds")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=int, default=20)
    parser.add_argument("--step-ms", type=float, default=50)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--split")
    parser.add_argument("--dcp", action="store_true", help="torch.distributed.checkpoint too")
    parser.add_argument("--only", help="variants, separated by commas")
    return parser.parse_args()


def straight(data: bytes, path: pathlib.Path, rate: float) -> None:
    """Writes as to a disk of that rate, and forces it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with path.open("wb") as file:
        for start in range(0, len(data), PIECE):
            file.write(data[start : start + PIECE])
            if rate:
                ahead = (start + PIECE) / (rate * 1e6) - (time.perf_counter() - began)
                time.sleep(max(0.0, ahead))
        file.flush()
        os.fsync(file.fileno())


def dcp_saver(variant: str, data: bytes):
    """A function that begins an asynchronous save, once the one before is over."""
    import torch
    import torch.distributed.checkpoint as dcp

    from forebay.integrations.dcp import StorageWriter

    state = {"model": torch.frombuffer(bytearray(data), dtype=torch.uint8)}
    writer = StorageWriter() if variant == "dcp staged" else None
    running: list[object] = []

    def save(place: str | None) -> None:
        if running:
            running.pop().result()
        if place is not None:
            running.append(dcp.async_save(state, storage_writer=writer, checkpoint_id=place))

    return save


def batches(args: argparse.Namespace):
    """Batches without end."""
    chosen = {} if args.split is None else {"split": args.split}
    with forebay.Loader(args.dataset, batch_size=args.batch_size, transform=forebay.TrainTransform(224), **chosen) as loader:
        while True:
            yield from loader


def trained(variant: str, args: argparse.Namespace, data: bytes, number: int) -> list[float]:
    """One round; the figures of its row."""
    run = args.scratch / f"run-{number}-{variant}"
    target = f"{args.to.rstrip('/')}/run-{number}" if args.to else os.fspath(run)
    save = dcp_saver(variant, data) if variant.startswith("dcp") else None
    stalls: list[float] = []
    waits: list[float] = []
    images = steps = 0
    source = batches(args)
    next(source)  # The first batch opens and reads indexes.
    began = time.perf_counter()
    while len(stalls) < args.saves:
        asked = time.perf_counter()
        images += len(next(source).labels)
        waits.append(time.perf_counter() - asked)
        time.sleep(args.step_ms / 1000)
        steps += 1
        done = steps / args.steps if args.steps else (time.perf_counter() - began) / args.every
        if done >= len(stalls) + 1:
            step = len(stalls)
            at = time.perf_counter()
            if variant == "straight":
                straight(data, run / f"step-{step}" / "data", args.rate)
            elif variant == "staged":
                forebay.checkpoint.save(data, f"{target}/step-{step}")
            elif save is not None:
                save(f"{target if variant == 'dcp staged' else run}/step-{step}")
            stalls.append(time.perf_counter() - at)
    elapsed = time.perf_counter() - began
    source.close()
    at = time.perf_counter()
    if save is not None:
        save(None)
    if variant.endswith("staged"):
        forebay.checkpoint.wait()
    drained = time.perf_counter() - at
    shutil.rmtree(run, ignore_errors=True)
    waits.sort()
    return [
        statistics.median(stalls),
        max(stalls),
        100 * sum(stalls) / elapsed,
        images / elapsed,
        1000 * statistics.median(waits),
        1000 * waits[int(len(waits) * 0.99)],
        1000 * waits[-1],
        drained,
    ]


def main() -> int:
    args = options()
    names = ["none", "straight", "staged", *(["dcp", "dcp staged"] if args.dcp else [])]
    if args.only and not set(args.only.split(",")) <= set(names):
        raise SystemExit(f"--only: the variants are {', '.join(names)}, and two more with --dcp")
    names = args.only.split(",") if args.only else names
    data = os.urandom(int(args.size * 1e6))
    args.scratch.mkdir(parents=True, exist_ok=True)
    forebay.checkpoint.configure(
        stage=args.stage or args.scratch / "stage",
        bandwidth=int(args.rate * 1e6) or None,
        share=args.share,
    )
    trained("none", args, data, 0)
    rows: dict[str, list[list[float]]] = {name: [] for name in names}
    for number in range(1, args.rounds + 1):
        for variant, figures in rows.items():
            figures.append(trained(variant, args, data, number))
            print(f"round {number}: {variant}", file=sys.stderr)
    every = f"{args.steps} steps" if args.steps else f"{args.every:.0f} s"
    print(f"{args.size:.0f} MB every {every}, storage at {args.rate:.0f} MB/s, share {args.share} %\n")
    print("| variant | save s | longest | stood still % | images/s | wait ms | 99 % | longest | drained after s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for variant, figures in rows.items():
        middle = [statistics.median(column) for column in zip(*figures, strict=True)]
        formats = (".3f", ".3f", ".2f", ",.0f", ".2f", ".1f", ".1f", ".2f")
        cells = " | ".join(format(value, how) for value, how in zip(middle, formats, strict=True))
        print(f"| {variant} | {cells} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
