#!/usr/bin/env python3
"""One way for batches to reach a trainer: what tools/peers/bench_serve_peers.py runs, each side in a process of its own.

    python tools/peers/bench_serve_peer.py give WAY ...      the side that has batches, where the peer has no command for it
    python tools/peers/bench_serve_peer.py take WAY ...      the trainer: takes batches, and prints a line of JSON

`give` prints a line of JSON with its address and runs until its stdin ends. `take` takes some batches that do not count,
then `--batches` as fast as they come, then `--paced` with a pause of `--step-ms` before each, as a trainer that computes
has it. Nobody looks at the pixels. Its line has the seconds, how long each `next` took in both parts, processor seconds of
both sides during the first part, and the peaks of resident memory.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

# Taken before anything counts: connections, workers and caches are there then.
WARM_UP = 8


def shape(args):
    return [args.batch, args.side, args.side, 3]


# ---- sides that give ------------------------------------------------------------------------------


def give_tfdata(args):
    """A dispatcher and a worker of tf.data service."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.split("://", 1)[1]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    print(json.dumps({"url": dispatcher.target}), flush=True)
    sys.stdin.read()
    del worker, dispatcher


# ---- trainers: each gives batches for ever, and the processes that make them ----------------------------


def take_forebay(args, transport):
    import forebay

    loader = forebay.Loader(
        args.url, batch_size=args.batch, transform=forebay.TrainTransform(args.side), transport=transport,
        tls_ca=args.tls_ca,
    )  # fmt: skip
    while True:
        for batch in loader:
            yield batch, [args.server]


def take_tfdata(args, compression):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    def pixels(_):
        values = tf.random.uniform(shape(args), maxval=256, dtype=tf.int32)
        return tf.cast(values, tf.uint8)

    # Made once, in the worker's memory: what is left is handing over. Random bytes, as photographs compress no better.
    batches = tf.data.Dataset.range(2).map(pixels).cache().repeat()
    service = tf.data.experimental.service
    off = service.ShardingPolicy.OFF
    batches = batches.apply(service.distribute(off, args.url, compression=compression)).prefetch(2)
    for batch in batches:
        yield batch, [args.server]


def take_torch(args, whole):
    import torch

    class Samples(torch.utils.data.Dataset):
        """Pictures that cost nothing, put together by the default collate."""

        def __len__(self):
            return 1 << 40

        def __getitem__(self, index):
            return picture

    class Batches(torch.utils.data.IterableDataset):
        """Whole batches in fresh memory, to which nothing was written: the worker only hands them over."""

        def __iter__(self):
            while True:
                yield torch.empty(shape(args), dtype=torch.uint8)

    picture = torch.randint(0, 256, shape(args)[1:], dtype=torch.uint8)
    if whole:
        loader = torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=1)
    else:
        # In order: a random sampler would list all samples first.
        loader = torch.utils.data.DataLoader(Samples(), batch_size=args.batch, num_workers=1, shuffle=False)
    before = children()
    batches = iter(loader)
    workers = None
    for batch in batches:
        workers = workers or [pid for pid in children() if pid not in before]
        yield batch, workers


def take_memcpy(args):
    import numpy

    source = numpy.ones(shape(args), numpy.uint8)
    target = numpy.zeros(shape(args), numpy.uint8)
    while True:
        numpy.copyto(target, source)
        yield target, []


WAYS = {
    "memcpy": take_memcpy,
    "forebay-shm": lambda args: take_forebay(args, "shm"),
    "forebay-tcp": lambda args: take_forebay(args, "tcp"),
    "forebay-tls": lambda args: take_forebay(args, "tcp"),
    "tfdata": lambda args: take_tfdata(args, "AUTO"),
    "tfdata-plain": lambda args: take_tfdata(args, None),
    "torch": lambda args: take_torch(args, whole=False),
    "torch-whole": lambda args: take_torch(args, whole=True),
}


# ---- measuring ---------------------------------------------------------------------------------------


def children():
    """Numbers of the processes that this one started."""
    tasks = pathlib.Path("/proc/self/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def cpu_seconds(pids):
    """Processor seconds of these processes so far, in all their threads."""
    # The clocks that clock_getcpuclockid(3) gives for processes; Python has that function for threads only.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def peak_mib(pids):
    total = 0.0
    for pid in pids:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
    return total


def take(args):
    batches = WAYS[args.way](args)
    for _ in range(WARM_UP):
        batch, givers = next(batches)
    if list(getattr(batch, "images", batch).shape) != shape(args):
        raise SystemExit(f"batches of {batch!r} came")

    def asked():
        nonlocal batch
        began = time.perf_counter()
        batch, _ = next(batches)
        return time.perf_counter() - began

    own = [os.getpid()]
    cpu = [cpu_seconds(givers), cpu_seconds(own)]
    began = time.perf_counter()
    waits = [asked() for _ in range(args.batches)]
    seconds = time.perf_counter() - began
    cpu = [cpu_seconds(givers) - cpu[0], cpu_seconds(own) - cpu[1]]
    paced = []
    for _ in range(args.paced):
        time.sleep(args.step_ms / 1000)
        paced.append(asked())
    # The memory of a batch is shared by both sides where it is handed over in place, and counts for each.
    result = {
        "seconds": seconds, "waits_s": waits, "paced_s": paced, "cpu_s": cpu, "rss_mib": [peak_mib(givers), peak_mib(own)],
    }  # fmt: skip
    print(json.dumps(result), flush=True)
    # Worker processes and threads of the peers end with this one, however long they would take.
    for pid in givers:
        if pid != args.server:
            subprocess.run(["kill", str(pid)], check=False)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side_of", choices=["give", "take"])
    parser.add_argument("way", choices=[*WAYS])
    parser.add_argument("--url", help="of the side that gives")
    parser.add_argument("--server", type=int, help="number of its process")
    parser.add_argument("--tls-ca")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--paced", type=int, default=20)
    parser.add_argument("--step-ms", type=float, default=200)
    args = parser.parse_args()
    if args.side_of == "take":
        take(args)
    else:
        give_tfdata(args)


if __name__ == "__main__":
    main()
