"""How objects of the native module are pickled that cannot be made in Python."""

from __future__ import annotations

import functools
from typing import Any

from forebay._batch import TensorBatch
from forebay._forebay import Batch, Dataset, Record, _reopen


# Records of a dataset are unpickled one after the other, and opening a dataset reads its indexes.
@functools.lru_cache(maxsize=4)
def _split(path: str, fingerprint: str, name: str, records: int, options: tuple[tuple[str, str], ...]) -> Dataset:
    return _reopen(path, fingerprint, [name], (0, 1, records), dict(options) or None)


def record(
    index: int, path: str, fingerprint: str, split: str, records: int, storage_options: dict[str, str] | None
) -> Record:
    """Reads a record again that was pickled."""
    return _split(path, fingerprint, split, records, tuple((storage_options or {}).items()))[index]


def reduce_batch(batch: Batch) -> Any:
    """Pickles a copy of the arrays of a batch, as those of a `TensorBatch`."""
    pair = batch.numpy() if batch.layout else ([bytes(image) for image in batch[0]], batch.labels)
    return TensorBatch[Any](pair, of=batch).__reduce__()
