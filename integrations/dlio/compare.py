#!/usr/bin/env python3
"""Runs workloads of DLIO with its own reader and with Forebay's, in turns, and prints both.

    python integrations/dlio/compare.py DIRECTORY [--workload resnet50 jpeg] [--rounds 3] [--samples 800]

Generates small data with DLIO below DIRECTORY, indexes or packs it, and runs DLIO in a process for each round. Needs
dlio_benchmark, its dependencies and forebay in this environment: see README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
FOREBAY = {
    "reader.data_loader_classname": "forebay_dlio.loader.ForebayDataLoader",
    "reader.data_loader_sampler": "iterative",
}


@dataclass(frozen=True)
class Case:
    """A workload: what differs from DLIO's resnet50_a100, and how Forebay gets its data."""

    settings: dict[str, object]
    files: int
    prepare: tuple[str, ...]


def cases(samples: int) -> dict[str, Case]:
    return {
        # TFRecords of 114,660 bytes, which neither side decodes; they are indexed where they are.
        "resnet50": Case(
            {"dataset.num_samples_per_file": max(samples // 4, 1)},
            4,
            ("index", "{data}/train", "--output", "{data}-forebay", "--image-feature", "image", "--split", "train", "--overwrite"),
        ),
        # One gray JPEG of 338 x 338 noise a sample, which both decode.
        "jpeg": Case(
            {
                "framework": "pytorch",
                "reader.data_loader": "pytorch",
                "dataset.format": "jpeg",
                "dataset.num_samples_per_file": 1,
                "dataset.num_subfolders_train": 10,
            },
            samples,
            ("pack", "{data}", "{data}-forebay", "--format", "indexed"),
        ),
    }


def dlio(settings: dict[str, object], output: pathlib.Path) -> dict[str, object]:
    """Runs DLIO in a process of its own and returns its summary; empty if it only generated data."""
    output.mkdir(parents=True, exist_ok=True)
    # DLIO calls a script of DALI to index TFRecords for DALI alone; this one writes empty files.
    script = output / "tfrecord2idx"
    script.write_text('#!/bin/sh\n: > "$2"\n')
    script.chmod(0o755)
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": f"{output}{os.pathsep}{os.environ.get('PATH', '')}",
        # DLIO initializes MPI with one process.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    words = [f"++workload.{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "dlio_benchmark.main", "workload=resnet50_a100", f"hydra.run.dir={output}", *words]
    done = subprocess.run(command, env=env, cwd=output, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"DLIO failed: exit status {done.returncode} ({' '.join(words)})\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    summary = output / "summary.json"
    return json.loads(summary.read_text()) if summary.exists() else {}


def prepare(case: Case, data: pathlib.Path, settings: dict[str, object]) -> None:
    if not (data / "train").exists():
        dlio({**settings, "workflow.generate_data": True, "workflow.train": False}, data.with_name(f"{data.name}-generate"))
    command = [sys.executable, "-m", "forebay", *(word.format(data=data) for word in case.prepare)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--workload", nargs="+", choices=["resnet50", "jpeg"], default=["resnet50", "jpeg"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=800)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--computation-time", type=float, default=0.01, help="seconds of a step, which DLIO sleeps")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    if args.rounds < 1 or args.samples < 2 * args.batch_size:
        parser.error("--rounds must be 1 or more, and --samples two batches or more")
    for name in args.workload:
        case = cases(args.samples)[name]
        data = args.directory.resolve() / name
        settings = {
            **case.settings,
            "dataset.num_files_train": case.files,
            "dataset.data_folder": data,
            "reader.batch_size": args.batch_size,
            "reader.read_threads": args.threads,
            "train.computation_time": args.computation_time,
            "train.epochs": args.epochs,
        }
        prepare(case, data, settings)
        readers = {"DLIO's": settings, "Forebay's": {**settings, **FOREBAY}}
        found: dict[str, list[tuple[float, float]]] = {reader: [] for reader in readers}
        for number in range(args.rounds):
            for reader, chosen in readers.items():
                metric = dlio(chosen, args.directory.resolve() / f"{name}-{reader[0].lower()}-{number}")["metric"]
                found[reader].append(
                    (metric["train_throughput_mean_samples_per_second"], metric["train_au_mean_percentage"])
                )
        for reader, values in found.items():
            rates, use = zip(*values, strict=True)
            print(
                f"{name}, {reader} reader: {statistics.median(rates):.0f} samples/s ({min(rates):.0f} to {max(rates):.0f}), "
                f"accelerator use {statistics.median(use):.1f} %, {len(values)} rounds"
            )


if __name__ == "__main__":
    main()
