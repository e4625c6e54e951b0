"""Forebay: shards of training images in, decoded batches out.

- `open` a packed dataset for its records, by number or in order.
- `RandomAccessDataset` gives decoded samples by number, for code with its own sampler: `open(...).split(...).dataset(...)`.
- `Loader` gives batches of decoded images, from a dataset, a `Mix` of several, or a server.
- `TrainTransform`, `EvalTransform` or a list of `RandomResizedCrop`, `RandAugment` and others say
  what becomes of each image; `KeepEncoded` leaves it encoded.
- `pack`, `convert_files`, `index`, `verify`, `inspect` and `export` do what commands of the command line do.
- `Writer` writes a dataset sample by sample, and `convert` one of torch, Hugging Face or your own.
- `Mapped` puts Python functions of yours between a loader and the trainer.
- `forebay.torch`, `forebay.jax` and `forebay.tf` have loaders that give their tensors, on the device.
- `forebay.ray` packs, reads, writes and serves on a Ray cluster.
- `forebay.hf` pushes datasets to the Hugging Face Hub.
- `forebay.metrics` gives the waits of loaders to Prometheus.
- `forebay.integrations` has callbacks that save the loader in checkpoints of Hugging Face and Keras.
- `forebay.checkpoint` saves on a fast disk, and drains into a store behind the training.
- `Error` is the base of every exception raised on purpose.

None of these libraries is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from forebay._batch import TensorBatch, TorchBatch
from forebay._columns import Boxes, Json, Keypoints, Ragged, Tensors, Text
from forebay._errors import (
    AuthError,
    CheckpointError,
    CheckpointExistsError,
    ClosedError,
    CommandError,
    ConvertError,
    CorruptCheckpointError,
    CorruptRecordError,
    DatasetExistsError,
    Error,
    ForkError,
    ImageError,
    MapError,
    MismatchError,
    MissingCheckpointError,
    MissingError,
    OptionError,
    SampleError,
    ServerError,
    ShardError,
    StateError,
    StorageError,
    UnknownOptionError,
    WriteError,
)
from forebay._errors import TimeoutError as TimeoutError
from forebay._forebay import (
    Batch,
    Dataset,
    EvalTransform,
    KeepEncoded,
    Loader,
    Record,
    TrainTransform,
    __version__,
)
from forebay._forebay import open as open

# Without `open` and `TimeoutError`: `from forebay import *` must not replace the builtins of these names.
__all__ = [
    "AuthError",
    "AutoAugment",
    "Batch",
    "Boxes",
    "CenterCrop",
    "CheckpointError",
    "CheckpointExistsError",
    "ClosedError",
    "ColorJitter",
    "CommandError",
    "ConvertError",
    "CorruptCheckpointError",
    "CorruptRecordError",
    "CutMix",
    "Dataset",
    "DatasetExistsError",
    "EpochDigest",
    "Error",
    "EvalTransform",
    "ForkError",
    "GaussianBlur",
    "Grayscale",
    "ImageError",
    "Json",
    "KeepEncoded",
    "Keypoints",
    "Loader",
    "MapError",
    "Mapped",
    "MismatchError",
    "MissingCheckpointError",
    "MissingError",
    "Mix",
    "Mixup",
    "Normalize",
    "OptionError",
    "Ragged",
    "RandAugment",
    "RandomAccessDataset",
    "RandomAffine",
    "RandomChoice",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomIoUCrop",
    "RandomPhotometricDistort",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Record",
    "Resize",
    "SampleError",
    "SampleInfo",
    "ServerError",
    "ShardError",
    "StateError",
    "StorageError",
    "Summary",
    "TensorBatch",
    "Tensors",
    "Text",
    "TrainTransform",
    "TrivialAugmentWide",
    "UnknownOptionError",
    "View",
    "WriteError",
    "WriteSummary",
    "Writer",
    "__version__",
    "convert",
    "convert_files",
    "export",
    "index",
    "inspect",
    "pack",
    "verify",
]

# Classes are named by the module that users import them from, where pickle looks for them.
for _class in (TimeoutError, *map(globals().get, __all__)):
    if isinstance(_class, type) and _class.__module__.startswith("forebay._"):
        _class.__module__ = "forebay"
TorchBatch.__module__ = "forebay.torch"

if TYPE_CHECKING:
    from forebay import checkpoint as checkpoint
    from forebay import hf as hf
    from forebay import integrations as integrations
    from forebay import jax as jax
    from forebay import metrics as metrics
    from forebay import ray as ray
    from forebay import tf as tf
    from forebay import torch as torch
    from forebay._command import Summary
    from forebay._commands import convert_files, export, index, inspect, pack, verify
    from forebay._convert import convert
    from forebay._digest import EpochDigest
    from forebay._map import Mapped
    from forebay._map_worker import SampleInfo
    from forebay._mix import Mix
    from forebay._ops import (
        AutoAugment,
        CenterCrop,
        ColorJitter,
        GaussianBlur,
        Grayscale,
        Normalize,
        RandAugment,
        RandomAffine,
        RandomErasing,
        RandomGrayscale,
        RandomHorizontalFlip,
        RandomIoUCrop,
        RandomPhotometricDistort,
        RandomResizedCrop,
        RandomRotation,
        RandomVerticalFlip,
        Resize,
        TrivialAugmentWide,
    )
    from forebay._random_access import RandomAccessDataset
    from forebay._transforms import CutMix, Mixup, RandomChoice
    from forebay._view import View
    from forebay._writer import Writer, WriteSummary
else:  # A checker would take every misspelt name for a module.
    # Modules that are imported when one of their names is first used, so that `import forebay` stays quick.
    _LATER = {
        "_command": "Summary",
        "_commands": "convert_files export index inspect pack verify",
        "_convert": "convert",
        "_digest": "EpochDigest",
        "_map": "Mapped",
        "_map_worker": "SampleInfo",
        "_mix": "Mix",
        "_ops": (
            "AutoAugment CenterCrop ColorJitter GaussianBlur Grayscale Normalize RandAugment RandomAffine "
            "RandomErasing RandomGrayscale RandomHorizontalFlip RandomIoUCrop RandomPhotometricDistort "
            "RandomResizedCrop RandomRotation RandomVerticalFlip Resize TrivialAugmentWide"
        ),
        "_random_access": "RandomAccessDataset",
        "_transforms": "CutMix Mixup RandomChoice",
        "_view": "View",
        "_writer": "Writer WriteSummary",
    }
    _MODULE_OF = {name: module for module, names in _LATER.items() for name in names.split()}
    _SUBMODULES = ("checkpoint", "hf", "integrations", "jax", "metrics", "ray", "tf", "torch")

    def __getattr__(name: str) -> object:
        if name in _SUBMODULES:
            return importlib.import_module(f"forebay.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'forebay' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"forebay.{_MODULE_OF[name]}"), name)
        if isinstance(value, type):
            value.__module__ = "forebay"
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_SUBMODULES})
