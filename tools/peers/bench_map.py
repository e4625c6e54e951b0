#!/usr/bin/env python3
"""A function of samples in threads, in processes, and in the workers of PyTorch's DataLoader.

    python3 tools/peers/bench_map.py DATASET IMAGES [--rounds 5] [--seconds 4] [--only list/workers/2,list/torch/2]

DATASET is IMAGES, a directory of directories of JPEGs, packed. Run it with an interpreter that has forebay, torch, albumentations and
opencv-python-headless. The function is a list of albumentations. Forebay decodes and crops to 224 pixels natively, and the
function does the rest; the DataLoader reads files, and its function decodes and crops as well. "identity" returns what it is
given; "python" keeps the interpreter's lock for two milliseconds; "large" returns crops of 500 x 375 pixels as they are. Configurations
take turns, each in a process of its own: after the first batches, images are counted for some seconds. Prints Markdown: the median
and range of the rates, the median of the CPU time of all processes for an image, and the largest sum of their memory (PSS).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
# Function, where it runs, and threads or processes.
RUNS = [
    "none/loader/0", "identity/threads/1", "identity/workers/1", "list/threads/1", "list/threads/2", "list/workers/1", "list/workers/2",
    "list/torch/2", "python/threads/1", "python/threads/2", "python/workers/2",
    "large/loader/0", "large/workers/1",
]  # fmt: skip


def identity(image: Any, label: int) -> tuple[Any, Any]:
    return image, label


def python(image: Any, label: int) -> tuple[Any, Any]:
    begun = time.thread_time()
    while time.thread_time() - begun < 0.002:
        pass
    return image, label


class List:
    """A typical list of transforms, with or without the crop."""

    def __init__(self, crop: bool) -> None:
        import albumentations as A
        import cv2

        cv2.setNumThreads(0)
        first = [A.RandomResizedCrop((224, 224))] if crop else []
        self.transform = A.Compose([*first, A.HorizontalFlip(), A.ColorJitter(), A.CoarseDropout(), A.Normalize()])

    def __call__(self, image: Any, label: int, info: Any) -> tuple[Any, Any]:
        if info is not None:
            self.transform.set_random_state(info.rng, info.random)
        return self.transform(image=image)["image"], label


class Files:
    """The images as a dataset of PyTorch."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(map(str, pathlib.Path(root).rglob("*.JPEG"))) * 10
        self.function = List(True)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        import cv2

        return self.function(cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB), 0, None)


def batches(name: str, dataset: str, images: str) -> Iterator[Any]:
    function, kind, count = name.split("/")
    loader: Any
    if kind == "torch":
        import torch

        loader = torch.utils.data.DataLoader(Files(images), 64, shuffle=True, num_workers=int(count), drop_last=True, persistent_workers=True)
    else:
        import forebay

        transform: Any = [forebay.RandomResizedCrop((375, 500))] if function == "large" else forebay.TrainTransform(224)
        loader = forebay.Loader(dataset, batch_size=64, transform=transform, repeats=10)
        if kind != "loader":
            chosen: Any = {"identity": identity, "large": identity, "python": python}.get(function) or List(False)
            loader = forebay.Mapped(loader, map_sample=chosen, **{f"map_{kind}": int(count)})
    while True:
        yield from loader


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += family(int(child))
    return found


def cpu(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pids: list[int]) -> float:
    lines = [line for pid in pids for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def one(name: str, dataset: str, images: str, seconds: float) -> dict[str, float]:
    endless = batches(name, dataset, images)
    for _ in range(8):
        next(endless)
    pids = family(os.getpid())
    count, begun, used = 0, time.perf_counter(), cpu(pids)
    while time.perf_counter() - begun < seconds:
        count += len(next(endless)[1])
    wall = time.perf_counter() - begun
    return {"rate": count / wall, "cpu_ms": (cpu(pids) - used) / count * 1000, "mib": memory(pids)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one, args.dataset, args.images, args.seconds)), flush=True)
        # A DataLoader in the midst of an epoch takes its time.
        os._exit(0)
    names = args.only.split(",")
    if unknown := set(names) - set(RUNS):
        raise SystemExit(f"{', '.join(sorted(unknown))}: not among {', '.join(RUNS)}")
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in names:
            command = [sys.executable, __file__, args.dataset, args.images, "--seconds", str(args.seconds), "--one", name]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
    print("| | images/s | lowest - highest | CPU ms an image | MiB |\n| --- | --- | --- | --- | --- |")
    for name, runs in results.items():
        rates, used = [run["rate"] for run in runs], statistics.median(run["cpu_ms"] for run in runs)
        print(f"| {name} | {statistics.median(rates):.0f} | {min(rates):.0f} - {max(rates):.0f} | {used:.2f} | {max(run['mib'] for run in runs):.0f} |")


if __name__ == "__main__":
    main()
