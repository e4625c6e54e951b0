"""`Writer`: datasets that are written sample by sample."""

from __future__ import annotations

import builtins
import json
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from forebay import _values
from forebay._errors import ClosedError, ForkError, OptionError
from forebay._forebay import _DatasetWriter


@dataclass(frozen=True)
class WriteSummary:
    """A dataset that a `Writer` or `convert` published.

    Attributes
    ----------
    location : str
        Its directory or URL.
    fingerprint : str
        Its fingerprint, as the manifest has it.
    splits : dict of str to int
        The samples of each split.
    shards : int
        The shards of all splits.
    bytes : int
        Their bytes.
    resumed_shards : int
        The shards that earlier runs had finished.
    already_complete : bool
        Whether all was there, and nothing was written.
    account : dict
        What was written and what became of it, as the manifest has it: "read", "packed" with "samples" and "labelled" of each
        split, "roles", "columns" and "problems". `close` warns of each problem.
    """

    location: str
    fingerprint: str
    splits: dict[str, int]
    shards: int
    bytes: int
    resumed_shards: int
    already_complete: bool
    account: dict[str, Any] = field(default_factory=dict)


WriteSummary.__module__ = "forebay"


class Writer:
    """Write a dataset, one sample after the other.

    Threads behind encode, compress and store what `write` is given, and wait for each other, so memory stays bounded
    however large the dataset is. The bytes depend on the samples and the options alone. The dataset appears when `close`
    returns, and all at once: as a context manager, a writer closes itself at the end of the block.

    If the block raises, or the process is killed, nothing is published, and the shards that are finished stay in the
    destination. A writer with ``resume=True`` and the same options goes on: write the same samples again, in the same order,
    and those that are stored are compared by key and label, and skipped.

    Threads may share a writer; the order of samples is that of their calls.

    Parameters
    ----------
    location : str or os.PathLike
        A directory, or a place in a store: ``s3://bucket/mine``, ``gs://``, ``az://``. It is missing or empty.
    features : dict of str to str
        The columns and their types, as in ``{"image": "image", "label": "label", "caption": "text"}``: "image", "label",
        "labels", "int", "float", "text", "texts", "json", "bytes", "vector[4]", "vector[*,int64]", "tensor[3,*,float32]", "boxes",
        "polygons", "mask" or "keypoints". Loaders decode the column named "image", and take their labels from the one named "label".
    format : str, default "tfrecord"
        The kind of shards, "tfrecord" or "indexed"; or a format of another tool, "webdataset", "mds", "parquet",
        "arrayrecord", "hdf5", "lmdb", "npz", "safetensors" or "zarr". For these, samples wait in indexed shards in a directory
        beside the destination (for a store, beside its staging area), and `close` converts them.
    codec : str, optional
        Compresses the blocks of indexed shards: "zstd", "zstd:3", "lz4". Encoded images do not become smaller. For other
        formats, the compression that `forebay convert --codec` takes.
    shard_size : int or str, default "256MiB"
        A shard ends with the sample that brings it to this size, before compression.
    shard_records : int, optional
        Or to this many samples.
    classes : sequence of str or "auto", optional
        The names of the classes, in the order of their labels. Labels beyond them are refused, and a label may be given
        by its name. With "auto" every label is a name, and `close` numbers the names in the order of text, as
        torchvision's ``ImageFolder`` does; samples wait in a directory beside the destination until then, and are written
        twice.
    label_base : {0, 1}, default 0
        The label of the first class as it is stored, for readers other than Forebay. Samples are given with labels from 0.
    seek_points : {"auto", "on", "dense", "off"}, default "auto"
        Where rows of JPEGs begin, stored beside them: loaders decode crops faster with them.
    image_format : {"png", "jpeg"}, default "png"
        How images are stored that are given as pixels. Bytes are stored as they are.
    quality : int, optional
        The quality of those JPEGs, 1 to 100; 95 by default.
    dali_index : bool, default True
        Whether TFRecord shards get a text index for NVIDIA DALI.
    threads : int, optional
        Threads that encode; by default as many as the process may use cores.
    resume : bool, default False
        Whether an unfinished dataset of an earlier writer is continued. It begins one where there is none, and compares
        the samples where it is published already.
    overwrite : bool, default False
        Whether a dataset in that place, finished or not, is removed first.
    stage, stage_bytes : optional
        For stores: the directory where shards wait for their upload, and the bytes that it may hold.
    storage_options : dict of str to str, optional
        How a store is reached; see `open`.

    Raises
    ------
    OptionError
        When options make no sense.
    DatasetExistsError
        When a dataset is there, or an unfinished one.
    WriteError
        When the destination holds something else, another process writes there, or the disk refuses.
    StorageError
        When a store refuses, or cannot be reached.

    Examples
    --------
    >>> features = {"image": "image", "label": "label", "caption": "text"}
    >>> with forebay.Writer("mine/", format="indexed", features=features) as writer:  # doctest: +SKIP
    ...     for number, (picture, label, caption) in enumerate(samples):
    ...         writer.write(key=f"{number:06}", image=picture, label=label, caption=caption)
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        features: Mapping[str, str],
        format: Literal[
            "tfrecord",
            "indexed",
            "webdataset",
            "mds",
            "parquet",
            "arrayrecord",
            "hdf5",
            "lmdb",
            "npz",
            "safetensors",
            "zarr",
        ] = "tfrecord",
        codec: str | None = None,
        shard_size: int | str = "256MiB",
        shard_records: int | None = None,
        classes: Sequence[str] | Literal["auto"] | None = None,
        label_base: Literal[0, 1] = 0,
        seek_points: Literal["auto", "on", "dense", "off"] = "auto",
        image_format: Literal["png", "jpeg"] = "png",
        quality: int | None = None,
        dali_index: bool = True,
        threads: int | None = None,
        resume: bool = False,
        overwrite: bool = False,
        stage: str | os.PathLike[str] | None = None,
        stage_bytes: int | str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(features, Mapping) or not features:
            raise OptionError(f"features: expected a dict of columns to types, found {features!r}")
        number_classes = isinstance(classes, str) and classes == "auto"
        if isinstance(classes, str) and not number_classes:
            raise OptionError(f"classes: expected a sequence of str, or \"auto\", found the str {classes!r}")
        if taken := {"key", "split"} & features.keys():
            raise OptionError(f"features: {min(taken)!r} is a parameter of write: choose another name for the column")
        names = [] if number_classes else list(classes or ())
        options = {
            "format": format,
            "codec": codec,
            "shard_size": shard_size,
            "shard_records": shard_records,
            "label_base": label_base,
            "seek_points": seek_points,
            "image_format": image_format,
            "quality": quality,
            "dali_index": dali_index,
            "threads": threads,
            "resume": resume,
            "overwrite": overwrite,
            "stage": stage,
            "stage_bytes": stage_bytes,
            "number_classes": number_classes,
        }
        self._location = os.fspath(location)
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._summary: WriteSummary | None = None
        self._normalizers = _values.Normalizers(features, names, number_classes)
        self._native: _DatasetWriter | None = _DatasetWriter(
            self._location, list(features.items()), options, names, dict(storage_options or {})
        )
        self._stored = self._native.stored()

    @property
    def stored(self) -> dict[str, int]:
        """The samples of each split that earlier runs stored: they are compared, not written."""
        return dict(self._stored)

    @property
    def summary(self) -> WriteSummary | None:
        """The dataset that was published; None before `close`."""
        return self._summary

    def write(
        self, *, key: str | builtins.bytes | None = None, split: str = "train", **columns: Any
    ) -> None:
        """Write a sample: a value for each column, or None where it has none.

        An image is given as its bytes, which are stored as they are; as a PIL image; as an array of uint8, (H, W, 3) or (H,
        W); or as a tensor of torch, (3, H, W) or (1, H, W). Labels count from 0; a float that is whole and a one-hot list are
        labels too, and -1 or None is none. Boxes are rows of (xmin, ymin, xmax,
        ymax) from 0 to 1, or ``{"boxes": rows, "labels": labels}``. Keypoints are rows of (x, y), or of (x, y,
        visibility), or ``{"points": rows, "visibility": numbers}``. A mask is the bytes of a PNG, or an array of
        integers (H, W). Tensors are arrays of the column's type and shape.

        Parameters
        ----------
        key : str or bytes, optional
            Name of the sample; by default its number in the split. The key of one of the last million samples of the split is refused.
        split : str, default "train"
            The split that it belongs to.
        **columns : object
            The values.

        Raises
        ------
        SampleError
            When a value does not fit its column. The sample is left out, and the writer goes on with the next one.
        WriteError
            When an earlier run stored another sample in its place, or the disk refuses.
        ClosedError
            After `close`.
        """
        self._put(split, self._normalizers.prepare(key, columns))

    def _put(self, split: str, sample: _values.Prepared) -> None:
        with self._lock:
            native = self._usable()
            if sample.problem is not None:
                native.refuse(split, sample.key, sample.column, sample.problem)
            native.write(split, sample.key, sample.values)

    def close(self) -> WriteSummary:
        """Write what is left, and publish the dataset. A second call returns the same.

        Returns
        -------
        WriteSummary
            What was published.

        Raises
        ------
        WriteError
            When no sample was written, an earlier run stored more samples, or the disk refuses.
        StorageError
            When a store refuses, or cannot be reached. The shards stay in the staging area: ``resume=True`` goes on.
        """
        with self._lock:
            if self._summary is not None:
                return self._summary
            native = self._usable()
            self._native = None
            root, fingerprint, splits, resumed, already, account, said = native.close()
            self._summary = WriteSummary(
                location=root,
                fingerprint=fingerprint,
                splits={name: records for name, records, _, _ in splits},
                shards=sum(shards for _, _, shards, _ in splits),
                bytes=sum(size for *_, size in splits),
                resumed_shards=resumed,
                already_complete=already,
                account=json.loads(account) if account else {},
            )
            said += [f"{what}: {count}" for what, count in self._summary.account.get("problems", {}).items()]
            for what in said:
                warnings.warn(f"{self._location}: {what}", stacklevel=2)
            return self._summary

    def abandon(self) -> None:
        """End without publishing. Finished shards stay, for a writer with ``resume=True``."""
        with self._lock:
            native, self._native = self._native, None
            if native is not None and self._process == os.getpid():
                native.abandon()

    def _usable(self) -> _DatasetWriter:
        if self._native is None:
            raise ClosedError(f"the writer of {self._location} is closed")
        if self._process != os.getpid():
            raise ForkError(
                "this writer was made before a fork, and its threads stayed behind: make it in the process that uses it"
            )
        return self._native

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()
        elif self._summary is None:
            self.close()


Writer.__module__ = "forebay"
