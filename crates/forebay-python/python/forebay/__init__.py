"""Forebay: shards of training images in, decoded batches out.

- `open` a packed dataset for its records, by number or in order.
- `Loader` gives batches of decoded images, from a dataset or from a server.
- `TrainTransform` and `EvalTransform` say what becomes of each image.
- `Error` is the base of every exception raised on purpose.

Neither torch nor JAX is imported before a batch is asked for its tensors.
"""

from __future__ import annotations

from forebay._errors import (
    ClosedError,
    CorruptRecordError,
    Error,
    ForkError,
    ImageError,
    MismatchError,
    MissingError,
    OptionError,
    ServerError,
    ShardError,
    StateError,
    TimeoutError,
)
from forebay._forebay import (
    Batch,
    Dataset,
    EvalTransform,
    Loader,
    Record,
    TrainTransform,
    __version__,
    open,
)

__all__ = [
    "Batch",
    "ClosedError",
    "CorruptRecordError",
    "Dataset",
    "Error",
    "EvalTransform",
    "ForkError",
    "ImageError",
    "Loader",
    "MismatchError",
    "MissingError",
    "OptionError",
    "Record",
    "ServerError",
    "ShardError",
    "StateError",
    "TimeoutError",
    "TrainTransform",
    "__version__",
    "open",
]
