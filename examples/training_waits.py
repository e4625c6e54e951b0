#!/usr/bin/env python3
"""Trains a network of torchvision on a dataset for some steps, and tells how long it waited for batches.

    python examples/training_waits.py DATASET [--network resnet50] [--batch-size 64] [--steps 50] [--output waits.json]

Loader and training share the CPUs of this machine, as in a real run. The output is JSON: the time of each step without
and with the wait for its batch, images per second, and what limits the loader. `forebay bench explain DATASET --consumer
recorded:waits.json` waits the same step times (`step_s`) in place of training. Needs torch, torchvision and forebay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
import sys
import time

import torch
import torchvision

import forebay
import forebay.torch

WARM_UP = 2
"""Steps that are not counted: they allocate memory and choose kernels."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--split")
    parser.add_argument("--network", default="resnet50", choices=["resnet18", "resnet50"])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="rows and columns of the crops")
    parser.add_argument("--steps", type=int, default=50, help="counted steps")
    parser.add_argument("--output", type=pathlib.Path, help="write the JSON here instead of to stdout")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error("--steps must be 1 or more")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = forebay.torch.Loader(
        args.dataset,
        split=args.split,
        batch_size=args.batch_size,
        device=device,
        transform=forebay.TrainTransform(args.size),
        normalize=(forebay.torch.IMAGENET_MEAN, forebay.torch.IMAGENET_STD),
    )
    if len(loader) == 0:
        sys.exit(f"an epoch has no batch of {args.batch_size} images ({args.dataset}); choose a smaller --batch-size")
    model = getattr(torchvision.models, args.network)(num_classes=len(loader.classes)).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    waits, steps = [], []
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    asked = time.perf_counter()
    for images, labels in itertools.islice(endless, WARM_UP + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        criterion(model(images), labels).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        end = time.perf_counter()
        waits.append(begin - asked)
        steps.append(end - begin)
        asked = end
    waits, steps = waits[WARM_UP:], steps[WARM_UP:]
    seconds = sum(waits) + sum(steps)
    report = {
        "network": args.network,
        "batch_size": args.batch_size,
        "device": device.type,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "forebay": forebay.__version__,
        "images_per_s": args.batch_size * len(steps) / seconds,
        "waited_share": sum(waits) / seconds,
        "median_step_s": statistics.median(steps),
        "median_wait_s": statistics.median(waits),
        "bottleneck": loader.stats()["bottleneck"],
        "step_s": steps,
        "wait_s": waits,
    }
    text = json.dumps(report, indent=1) + "\n"
    if args.output is None:
        print(text, end="")
    else:
        args.output.write_text(text)


if __name__ == "__main__":
    main()
