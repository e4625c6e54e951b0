"""DLIO's contract of a data loader, on `forebay.Loader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

import forebay

from .settings import Workload, batches, check, dataset, options


class ForebayDataLoader(BaseDataLoader):
    """DLIO calls `read` once in a run and `next` once in an epoch."""

    def __init__(self, format_type: FormatType, dataset_type: DatasetType, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.CUSTOM)
        self._loader: forebay.Loader | None = None

    def read(self) -> None:
        args = self._args
        workload = Workload(
            data_folder=args.data_folder,
            format=str(self.format_type),
            split=str(self.dataset_type),
            side=args.max_dimension,
            batch_size=self.batch_size,
            rank=args.my_rank,
            world_size=args.comm_size,
            read_threads=args.read_threads,
            shuffle=args.sample_shuffle is not Shuffle.OFF,
            seed=args.seed,
        )
        source = dataset(workload.data_folder)
        self._loader = forebay.Loader(source, **options(workload))
        check(self._loader, self.num_samples, source)

    def next(self) -> Iterator[Any]:
        super().next()
        if self._loader is None:
            raise RuntimeError("next() was called before read()")
        yield from batches(self._loader)
        self.epoch_number += 1

    def finalize(self) -> None:
        """DLIO calls this after every epoch, and goes on with the loader."""
