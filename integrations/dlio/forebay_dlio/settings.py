"""Options of `forebay.Loader` for a workload of DLIO. This module does not import DLIO."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import forebay

DATASET = "FOREBAY_DLIO_DATASET"
"""The environment variable that names the dataset."""
PIXELS = ("jpeg", "png")
"""Formats whose images DLIO's readers decode. They do not decode the images of its other formats."""


@dataclass(frozen=True)
class Workload:
    """The values of a workload that a loader depends on."""

    data_folder: str
    format: str
    split: str
    side: int
    batch_size: int
    rank: int
    world_size: int
    read_threads: int
    shuffle: bool
    seed: int


def dataset(data_folder: str, environ: Mapping[str, str] = os.environ) -> str:
    """The dataset of a workload: that of FOREBAY_DLIO_DATASET, or DATA_FOLDER-forebay."""
    return environ.get(DATASET) or data_folder.rstrip("/") + "-forebay"


def options(workload: Workload) -> dict[str, Any]:
    """Options of `forebay.Loader` for a workload.

    Images of the formats in `PIXELS` are decoded and resized to a square of `side` pixels. Images of other formats
    stay encoded, since DLIO's readers do not decode them either.
    """
    side = workload.side
    decoded = [forebay.Resize((side, side)), forebay.CenterCrop(side)]
    return {
        "split": workload.split,
        "batch_size": workload.batch_size,
        "rank": workload.rank,
        "world_size": workload.world_size,
        "threads": workload.read_threads,
        "shuffle": "blocks" if workload.shuffle else "none",
        "drop_last": True,
        "seed": workload.seed,
        "transform": decoded if workload.format in PIXELS else forebay.KeepEncoded(),
    }


def check(loader: forebay.Loader, samples: int, source: str) -> None:
    """Raises a ValueError if the dataset has another number of samples than the workload."""
    found = loader.epoch_samples
    if found != samples:
        raise ValueError(
            f"the dataset does not match the workload: {found} samples, expected {samples} ({source}); "
            "pack or index the data folder again"
        )


def batches(loader: forebay.Loader) -> Iterator[Any]:
    """One epoch: the images of each batch."""
    for batch in loader:
        yield batch.encoded if batch.layout is None else batch.images
