import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, final, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import CapsuleType, Self

from forebay._digest import EpochDigest
from forebay._mix import Mix
from forebay._random_access import RandomAccessDataset
from forebay._sampler import Sampler
from forebay._ops import Normalize, _Op
from forebay._transforms import CutMix, Mixup, RandomChoice
from forebay._view import View

__version__: str

__all__ = [
    "Array",
    "Batch",
    "Dataset",
    "Epoch",
    "EvalTransform",
    "HostRegistry",
    "Loader",
    "KeepEncoded",
    "Record",
    "Records",
    "SampleDecoder",
    "Saved",
    "TrainTransform",
    "_Checkpoint",
    "_CheckpointBuffer",
    "_CheckpointDraft",
    "_CheckpointFile",
    "_CheckpointRequest",
    "_DatasetWriter",
    "__version__",
    "_bytes",
    "_check_batch_transform",
    "_check_transform",
    "_checkpoint_area",
    "_checkpoint_latest",
    "_checkpoint_list",
    "_checkpoint_pin",
    "_checkpoint_share",
    "_command_options",
    "_main",
    "_run",
    "_op_schemas",
    "_reopen",
    "open",
]

_Features: TypeAlias = dict[str, list[bytes] | list[int] | list[float]]
_Transform: TypeAlias = TrainTransform | EvalTransform | KeepEncoded | Sequence[_Op]

def open(
    path: str | os.PathLike[str], *, storage_options: dict[str, str] | None = None
) -> Dataset:
    """Open a packed dataset.

    Reads the manifest and the indexes of all shards, no records.

    Parameters
    ----------
    path : str or os.PathLike
        The directory with `forebay.json`, or its URL: `s3://bucket/imagenet`, `gs://`, `az://`,
        `https://`.
    storage_options : dict of str to str, optional
        How a store is reached: `endpoint`, `region`, `anonymous` ("true"), `timeout` (seconds without
        progress after which a request fails), `outage_timeout` (seconds that a store may be away before that is an
        error), and settings by the names that other tools have, such as `aws_profile`. What is not
        given comes from the environment. `cache_dir` keeps what is read in a directory, `cache_bytes`
        ("200GiB") bounds it, `cache_memory_bytes` keeps that much in memory; FOREBAY_CACHE_DIR,
        FOREBAY_CACHE_BYTES and FOREBAY_CACHE_MEMORY say so for all.

    Returns
    -------
    Dataset
        All splits, one after the other in the order of the manifest.

    Raises
    ------
    MissingError
        When there is no manifest, or a shard is missing.
    MismatchError
        When a shard is not the one that the manifest speaks of.
    ShardError
        When manifest, shard or index cannot be read.
    StorageError
        When a store refuses, or cannot be reached.

    Examples
    --------
    >>> ds = forebay.open("packed/")  # doctest: +SKIP
    >>> ds.splits  # doctest: +SKIP
    {'train': 1281167, 'validation': 50000}
    """
def _reopen(
    path: str,
    fingerprint: str,
    splits: list[str],
    cut: tuple[int, int, int],
    storage_options: dict[str, str] | None = None,
) -> Dataset: ...
class _Tensor(Protocol):
    """An array of any library."""

    def tolist(self) -> Any: ...

class _NamedType(Protocol):
    """A type of numbers of any library: torch's have `itemsize`, and are named by `str`."""

    @property
    def itemsize(self) -> int: ...

_BatchTransform: TypeAlias = Mixup | CutMix | RandomChoice

def _check_batch_transform(transform: _BatchTransform, /) -> None: ...
def _check_transform(transform: _Op, /) -> dict[str, Any]: ...
def _op_schemas() -> str: ...
def _bytes(option: str, given: int | str | None, /) -> int | None: ...
def _main(args: Sequence[str]) -> int: ...
def _run(args: Sequence[str], on_event: Callable[[str], object]) -> int: ...
def _command_options(name: str) -> list[tuple[str, str, str, str, list[str]]]: ...

def _checkpoint_area() -> pathlib.Path: ...
def _checkpoint_latest(
    prefix: str, storage_options: dict[str, str], area: str | None
) -> str | None: ...
def _checkpoint_list(
    prefix: str, storage_options: dict[str, str], area: str | None
) -> list[tuple[str, int | None, int, int, str, bool, bool, bool, str | None]]: ...
def _checkpoint_pin(location: str, storage_options: dict[str, str], pinned: bool) -> None: ...
def _checkpoint_share(percent: int) -> None: ...

@final
class _CheckpointBuffer:
    def __new__(
        cls,
        directory: str,
        max_bytes: int | None = None,
        bandwidth: int | None = None,
        keep_local: int = 1,
    ) -> Self: ...
    @property
    def directory(self) -> pathlib.Path: ...
    def begin(
        self, request: _CheckpointRequest, bytes: int, timeout: float | None
    ) -> _CheckpointDraft:
        """Begins a checkpoint of about this many bytes; waits for room."""
    def save(
        self, draft: _CheckpointDraft, request: _CheckpointRequest, content: str
    ) -> Saved:
        """Commits a draft. What it returns is safe."""
    def recover(self, prefix: str | None, storage_options: dict[str, str]) -> list[Saved]:
        """Takes up what processes that are gone have left."""
    def pending(self) -> list[Saved]:
        """The unfinished saves of this process, the oldest first."""
    def close(self) -> None:
        """Stops draining and cleans up what was under way."""

@final
class _CheckpointRequest:
    def __new__(
        cls,
        location: str,
        storage_options: dict[str, str],
        *,
        metadata: str,
        overwrite: bool,
        keep: int | None,
        rank: int,
        world_size: int,
        attempt: str | None,
    ) -> Self: ...

@final
class _CheckpointDraft:
    def create(self, name: str) -> _CheckpointFile: ...
    def finish(self, file: _CheckpointFile) -> None: ...
    def path(self, name: str) -> pathlib.Path: ...
    def adopt(self, name: str) -> None: ...
    def copy_file(self, name: str, source: str) -> None: ...
    def copy_dir(self, source: str) -> None: ...
    def abort(self) -> None:
        """Gives the draft up; what was written is removed."""

@final
class _CheckpointFile:
    def write(self, address: int, length: int) -> None:
        """Writes `length` bytes from `address`, which the caller holds."""
    @property
    def written(self) -> int: ...

@final
class _Checkpoint:
    def __new__(
        cls, location: str, storage_options: dict[str, str], area: str | None
    ) -> Self: ...
    @property
    def location(self) -> str: ...
    @property
    def is_local(self) -> bool:
        """Whether the fast disk has it."""
    def parts(self) -> str:
        """The parts as JSON: content, metadata and files of each rank."""
    def read(self, rank: int, name: str) -> Array:
        """All bytes of a file, compared with its checksum."""
    def read_range(self, rank: int, name: str, offset: int, length: int) -> Array:
        """Some bytes of a file, of which only the size is compared."""
    def export(self, rank: int, name: str, path: str) -> None:
        """Writes a file to a path."""

@final
class _DatasetWriter:
    def __new__(
        cls,
        location: str,
        features: list[tuple[str, str]],
        options: dict[str, Any],
        classes: list[str],
        storage_options: dict[str, str],
    ) -> Self: ...
    def stored(self) -> dict[str, int]:
        """Samples of each split that are stored already."""
    def write(self, split: str, key: bytes | None, values: list[tuple[str, Any]]) -> None:
        """Writes a sample: a value or None for each of some columns."""
    def refuse(self, split: str, key: bytes | None, column: str | None, problem: str) -> None:
        """Raises that a sample cannot be written."""
    def close(self) -> tuple[str, str, list[tuple[str, int, int, int]], int, bool, str | None, list[str]]:
        """Publishes the dataset: its root, its fingerprint, (name, records, shards, bytes) of each split, the shards that were
        there, whether all was, the account as JSON, and warnings.
        """
    def abandon(self) -> None:
        """Ends without publishing; finished shards stay."""

@final
class Saved:
    """A checkpoint that `save` stored on the fast disk, and that is being uploaded."""
    @property
    def location(self) -> str:
        """The location of the checkpoint."""
    @property
    def bytes(self) -> int:
        """The size of all its files, in bytes."""
    @property
    def drained(self) -> int:
        """The number of bytes that are uploaded."""
    @property
    def done(self) -> bool:
        """Whether it is complete at its destination. If not, it is safe on the fast disk of this machine."""
    @property
    def error(self) -> BaseException | None:
        """Why it is not there: the exception of the last try, or None. Tries go on unless `wait` raises it."""
    @property
    def state(self) -> Literal["on its way", "failing", "failed", "done"]:
        """"on its way", "failing" (tries go on), "failed" (they do not), or "done"."""
    @property
    def missing_ranks(self) -> list[int]:
        """The ranks whose parts of the checkpoint are still missing, while this is known."""
    def wait(self, timeout: float | None = None) -> None:
        """Wait until the checkpoint is complete at its destination.

        Other threads run meanwhile, and Ctrl-C ends the wait, not the draining.

        Parameters
        ----------
        timeout : float, optional
            Seconds. By default until it is there, or has failed for five minutes.

        Raises
        ------
        TimeoutError
            Time is up. The checkpoint is safe on the fast disk, and draining goes on.
        CheckpointError
            It cannot be completed, or all tries of the last five minutes failed; these go on.
        ForkError
            In a process forked from the one that saved.
        """

@final
class HostRegistry:
    """Registers the memory of batches with a driver. The driver's functions are called from any thread."""

    def __new__(cls, register: int, unregister: int, push: int, pop: int, context: int, /) -> Self: ...
    def covers(self, address: int, bytes: int) -> bool:
        """Returns whether all of the memory is registered."""

    @property
    def registered_bytes(self) -> int:
        """Bytes that are registered now."""

    @property
    def error(self) -> int:
        """The driver's last error of a registration; 0 if there was none."""

@final
class Dataset:
    """A packed dataset, or a part of one: records by number, from 0, and in order.

    Made by `open`. `ds[i]` reads and verifies one record, `ds[a:b:c]` is a dataset of
    those records, and iteration reads in large pieces. Threads may share it, it pickles,
    and it survives a fork. So do its records, which are read again where they are unpickled.

    Examples
    --------
    >>> train = forebay.open("packed/").split("train")  # doctest: +SKIP
    >>> record = train[0]  # doctest: +SKIP
    >>> record.key, record.label, len(record.image)  # doctest: +SKIP
    ('n01440764/n01440764_10026.JPEG', 1, 13697)
    """
    @property
    def path(self) -> str:
        """The directory."""
    @property
    def format(self) -> Literal["tfrecord", "indexed"]:
        """The format of the shards: "tfrecord" or "indexed"."""
    @property
    def fingerprint(self) -> str:
        """The identifier of this dataset."""
    @property
    def sample_fingerprint(self) -> str | None:
        """The identity of its samples: their keys, labels and order. A conversion that keeps them keeps it. None where a
        sample has no key.
        """
    @property
    def splits(self) -> dict[str, int]:
        """The number of records of each split, by name."""
    @property
    def columns(self) -> dict[str, str]:
        """The columns of a record and their types, by name: `{"image": "image", "caption": "text"}`.

        Loaders accept these names as `columns`. docs/columns.md describes the types.
        """
    @property
    def classes(self) -> list[str]:
        """The classes, in the order of their labels."""
    @property
    def label_base(self) -> int:
        """The label of the first class as stored: `Record.label` and `labels` count from it, loaders from 0."""
    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, as JSON objects."""
    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The label of every record as stored, from the indexes alone: int64 of shape (len(self),); -1 where there is none."""
    def split(self, name: str) -> Dataset:
        """The records of one split.

        Parameters
        ----------
        name : str
            Name of the split. "val", "valid", "validation" and "dev" find the one of them that there is.

        Returns
        -------
        Dataset
            All records of the split, also when this is a slice.

        Raises
        ------
        OptionError
            When there is no such split; the message has those that are.
        """
    def dataset(self, transform: _Transform | None = None, **options: Any) -> RandomAccessDataset:
        """The samples as a map-style dataset: decoded, transformed, and read by number.

        Parameters
        ----------
        transform : TrainTransform, EvalTransform, KeepEncoded or list
            What becomes of each image.
        **options
            See `RandomAccessDataset`.

        Returns
        -------
        RandomAccessDataset
            For `torch.utils.data.DataLoader`, Grain and Hugging Face datasets.

        Raises
        ------
        OptionError
            An invalid option, or a dataset of several splits.
        """
    def view(
        self,
        *,
        height: int = 800,
        contact_sheet: bool = False,
        storage_options: Mapping[str, str] | None = None,
        **options: Any,
    ) -> View:
        """Show the samples in a page, as `forebay view`: in a notebook below the cell, elsewhere at `View.url`.

        The page has all splits, also for a part of the dataset; a contact sheet has the part alone. The page ends with
        `View.close`, a `with` block, or this process.

        Parameters
        ----------
        height : int, default 800
            Height of the page in a notebook, in pixels.
        contact_sheet : bool, default False
            Show one picture of evenly spaced samples instead: for a browser on another machine, which cannot reach the page.
        storage_options : dict of str to str, optional
            How a store is reached; see `open`.
        **options
            Of `forebay view`: `option` and `listen`. For a contact sheet: `class_`, a class or several, and `indices`, numbers in
            the split.

        Returns
        -------
        View
            Notebooks show it below the cell.

        Raises
        ------
        CommandError
            When the page cannot be served; the message is that of the command.
        """
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> Dataset: ...
    def __iter__(self) -> Records: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class SampleDecoder:
    """Makes batches of any records of one split, as a `Loader` makes them."""
    def __new__(cls, dataset: Dataset, options: dict[str, Any], threads: int) -> Self: ...
    def numbers(self, indices: Sequence[int]) -> list[int]:
        """The number in the split of each index into the dataset; negative ones count from its end."""
    def batch(self, numbers: Sequence[int], seed: int, epoch: int) -> Batch:
        """The batch of the samples with these numbers, which ascend."""

@final
class Records:
    """Records in order, read in runs."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...
    def __length_hint__(self) -> int: ...

@final
class Record:
    """A record of a dataset: an image, its label, and all that was packed with them.

    Its length is that of its bytes.
    """
    @property
    def split(self) -> str:
        """Name of the split it is in."""
    @property
    def index(self) -> int:
        """Its number in the split, from 0."""
    @property
    def shard(self) -> str:
        """The file it is in."""
    @property
    def key(self) -> str:
        """Its key: the path of the image below its split, when it was packed.

        Bytes that are not UTF-8 come as surrogates, as in `os.fsdecode`.
        """
    @property
    def label(self) -> int | None:
        """Its label as stored; None where it has none.

        Raises
        ------
        CorruptRecordError
            When the record is no tensorflow.Example.
        """
    @property
    def image(self) -> bytes:
        """The encoded image, as it was packed: a fast image is restored to its JPEG.

        Raises
        ------
        CorruptRecordError
            When the record has no image or is no tensorflow.Example.
        ImageError
            When it has a fast image that is damaged.
        """
    @property
    def data(self) -> bytes:
        """All bytes of the record: a serialized tensorflow.Example."""
    @property
    def features(self) -> _Features:
        """Every feature by name, as lists of bytes, int or float.

        Raises
        ------
        CorruptRecordError
            When the record is no tensorflow.Example.
        """
    def __len__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class TrainTransform:
    """A random crop, resized to a square, and sometimes mirrored: for training.

    As torchvision's RandomResizedCrop and RandomHorizontalFlip with Pillow's pixels.
    The random numbers of a sample depend on the loader's seed, the epoch and the
    sample, and on nothing else.

    Parameters
    ----------
    size : int, default 224
        Side of the output in pixels.
    scale : tuple of float, default (0.08, 1.0)
        Least and greatest area of the crop, as a part of the image's.
    ratio : tuple of float, default (3/4, 4/3)
        Least and greatest width / height of the crop.
    flip : float, default 0.5
        Probability of the mirror image.

    Raises
    ------
    OptionError
        A value out of its range.

    Examples
    --------
    >>> forebay.TrainTransform(160, scale=(0.25, 1.0))
    TrainTransform(160, scale=(0.25, 1.0), ratio=(0.75, 1.3333333333333333), flip=0.5)
    """
    def __new__(
        cls,
        size: int = 224,
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (0.75, 1.3333333333333333),
        flip: float = 0.5,
    ) -> Self: ...
    @property
    def size(self) -> int:
        """Side of the output in pixels."""
    @property
    def scale(self) -> tuple[float, float]:
        """Least and greatest area of the crop, as a part of the image's."""
    @property
    def ratio(self) -> tuple[float, float]:
        """Least and greatest width / height of the crop."""
    @property
    def flip(self) -> float:
        """Probability of the mirror image."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs_ex__(self) -> tuple[tuple[int], dict[str, Any]]: ...

@final
class EvalTransform:
    """The short side resized, then the centre cut out: for validation.

    As torchvision's Resize and CenterCrop with Pillow's pixels, in one step.

    Parameters
    ----------
    size : int, default 224
        Side of the output in pixels.
    resize : int, default 256
        The image's short side after the resize in pixels; at least `size`.

    Raises
    ------
    OptionError
        A value out of its range.
    """
    def __new__(cls, size: int = 224, *, resize: int = 256) -> Self: ...
    @property
    def size(self) -> int:
        """Side of the output in pixels."""
    @property
    def resize(self) -> int:
        """The image's short side after the resize in pixels."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs_ex__(self) -> tuple[tuple[int], dict[str, Any]]: ...

@final
class KeepEncoded:
    """Nothing: images stay as they are stored, encoded, for those who decode them elsewhere.

    Batches have `encoded`, `offsets` and `image_bytes` instead of `images`, and their sizes vary. Of each
    image the header is read, for `Batch.widths` and `Batch.heights`, and nothing else: an image that is
    damaged further on is handed out as it is. With `on_error="zero"` a sample whose record or header cannot
    be read is an empty image.

    Options about pixels are refused with it: `layout`, `dtype`, `batch_transform`, `resize_like`,
    `exif_orientation` and `dct_scaling`.

    Examples
    --------
    >>> loader = forebay.Loader("packed/", transform=forebay.KeepEncoded())  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     encoded, labels = batch.torch()
    ...     images = torchvision.io.decode_jpeg(encoded, device="cuda")
    """
    def __new__(cls) -> Self: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Array:
    """An array in the memory of a batch, for libraries to take without a copy.

    numpy takes it through the array interface, everything else through DLPack. Both
    may write into it. The memory goes back to its pool when the last taker lets go.
    """
    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Batch:
    """Samples, and where in the epoch they are.

    Also the pair `(images, labels)`: `images, labels = batch` works, and `batch["caption"]` is a column. All arrays are
    views of the batch's own memory, may be written, and keep it alive; it goes back to
    a pool when the last array or tensor of it is gone. `numpy.from_dlpack`,
    `torch.from_dlpack` and `jax.dlpack.from_dlpack` take the batch itself for its images.

    With `transform=KeepEncoded()` images stay encoded: there are `encoded`, `offsets`, `image_bytes`, `widths`
    and `heights` in the place of `images`, and the first of the pair is a list of memoryviews.

    Pickling copies the arrays, and a `TensorBatch` of numpy arrays is unpickled; encoded images are a list of bytes in it.
    """
    @property
    def images(self) -> npt.NDArray[Any]:
        """Pixels: of shape (N, height, width, 3), or (N, 3, height, width) with layout "nchw".

        uint8, or what the loader's `dtype` says. bfloat16 needs the package ml_dtypes.

        Raises
        ------
        OptionError
            When images stay encoded.
        """
    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The label of each sample: int64 of shape (N,); -1 for a record without one, -100 for padding.

        Counted from 0, if `label_base` of the loader does not say otherwise.
        """
    @property
    def labels_b(self) -> npt.NDArray[np.int64] | None:
        """The label of each sample's partner: int64 of shape (N,); None without `batch_transform`.

        Its own where a sample was not mixed, as padding never is.
        """
    @property
    def lam(self) -> npt.NDArray[np.float32] | None:
        """The share of each sample itself: float32 of shape (N,); None without `batch_transform`.

        The rest is its partner's: the loss is `lam * loss(labels) + (1 - lam) * loss(labels_b)`.
        """
    def one_hot(self, num_classes: int, *, smoothing: float = 0.0) -> npt.NDArray[np.float32]:
        """Labels as probabilities of classes, mixed as the samples are.

        Parameters
        ----------
        num_classes : int
            Number of classes. Labels are 0 to one less: see `label_base` of the loader.
        smoothing : float, default 0.0
            What is taken from the classes of a sample and spread over all of them.

        Returns
        -------
        numpy.ndarray
            float32 of shape (N, num_classes); rows sum to 1, or to 0 for padding and for a record without a label.

        Raises
        ------
        OptionError
            A label that is no class.
        """
    @property
    def samples(self) -> npt.NDArray[np.int64]:
        """The number of each sample in its split: int64 of shape (N,).

        The records of a `Mix` are numbered through: see `Loader.dataset_starts`.
        """
    @property
    def datasets(self) -> npt.NDArray[np.int64] | None:
        """The number of each sample's dataset in the `Mix`: int64 of shape (N,); None without one."""
    @property
    def padding(self) -> npt.NDArray[np.bool_]:
        """Which samples are padding: bool of shape (N,).

        Only the last batch of an epoch has any, and only with `drop_last=False`, on several ranks or with `pad_last=True`.
        """
    @property
    def dtype(self) -> Literal["uint8", "float32", "float16", "bfloat16"]:
        """The type of the numbers in `images`: "uint8", "float32", "float16" or "bfloat16"."""
    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Which samples could not be read or decoded, and were replaced: bool of shape (N,).

        Only with `on_error="skip"` or `on_error="zero"`. Metrics count samples where neither this
        nor `padding` is true.
        """
    @property
    def layout(self) -> Literal["nhwc", "nchw"] | None:
        """The order of the axes of `images`: "nhwc" or "nchw"; None when they stay encoded."""
    @property
    def encoded(self) -> npt.NDArray[np.uint8]:
        """With `transform=KeepEncoded()`: the encoded images, one after the other: uint8 of shape (bytes,).

        Raises
        ------
        OptionError
            When images are decoded.
        """
    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """With `transform=KeepEncoded()`: where each image begins in `encoded`: int64 of shape (N + 1,).

        The last one is the end of the last image.

        Raises
        ------
        OptionError
            When images are decoded.
        """
    @property
    def widths(self) -> npt.NDArray[np.int64]:
        """With `transform=KeepEncoded()`: columns of each image in pixels: int64 of shape (N,).

        As the image's header says; 0 for a format that Forebay does not read, or an image that failed.

        Raises
        ------
        OptionError
            When images are decoded.
        """
    @property
    def heights(self) -> npt.NDArray[np.int64]:
        """With `transform=KeepEncoded()`: rows of each image in pixels: int64 of shape (N,); see `widths`.

        Raises
        ------
        OptionError
            When images are decoded.
        """
    def image_bytes(self, index: int, /) -> memoryview:
        """With `transform=KeepEncoded()`: the bytes of one encoded image, without a copy.

        Parameters
        ----------
        index : int
            Which sample of the batch; from the end where it is negative.

        Returns
        -------
        memoryview
            Empty for a sample that failed, with `on_error="zero"`.

        Raises
        ------
        IndexError
            When there is no such sample.
        OptionError
            When images are decoded.
        """
    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
    @property
    def step(self) -> int:
        """The number of the batch in its epoch, from 0; the same on every rank."""
    @property
    def position(self) -> int:
        """How many samples of the epoch all ranks together were given before this batch."""
    @property
    def digest(self) -> int:
        """A checksum of which samples are in the batch, and where."""
    def numpy(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """The images and the labels as numpy arrays, without a copy.

        Returns
        -------
        tuple of numpy.ndarray
            Of shape (N, H, W, 3) or (N, 3, H, W) and the batch's `dtype`, and int64 of shape (N,).

        Raises
        ------
        ImportError
            For bfloat16, when ml_dtypes is not installed.
        OptionError
            When images stay encoded.
        """
    # Tensors of torch, which need not be installed.
    def torch(self) -> tuple[Any, Any]:
        """The images and the labels as tensors of torch, without a copy.

        Returns
        -------
        tuple of torch.Tensor
            Of shape (N, H, W, 3) or (N, 3, H, W) and the batch's `dtype`, and int64 of shape (N,),
            on the CPU. With `transform=KeepEncoded()` the first is a list of N tensors, uint8 of shape (bytes,), as
            `torchvision.io.decode_jpeg` takes them.

        Raises
        ------
        ImportError
            When torch is not installed.
        """
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __reduce__(self) -> Any: ...
    def __len__(self) -> int: ...
    @property
    def columns(self) -> list[str]:
        """The names of the columns that the loader's option `columns` asked for, in its order.

        `batch["caption"]` has the values: an array with a row for each sample, or a `Ragged` column.
        """
    # An array, a list of memoryviews, or a column.
    def __getitem__(self, index: int | str, /) -> Any: ...
    # The first is a list of memoryviews where images stay encoded.
    def __iter__(self) -> Iterator[npt.NDArray[Any]]: ...

@final
class Epoch:
    """One loop over a loader."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...

class _Stage(TypedDict):
    busy_s: float
    starved_s: float
    blocked_s: float
    threads: int

class _CacheUse(TypedDict):
    hits: int
    misses: int
    hit_bytes: int
    miss_bytes: int

class _StorageCost(TypedDict):
    in_region: float
    epoch_in_region: float | None
    over_internet: float
    epoch_over_internet: float | None
    prices: str

class _Storage(TypedDict):
    fetched_bytes: int
    retries: int
    hedges: int
    requests: int
    cost: _StorageCost | None
    cache: _CacheUse | None

class _LearnedSeekPoints(TypedDict):
    samples: int
    images: int
    bytes: int
    full: bool

class _Stats(TypedDict):
    images: int
    fast_share: float | None
    learned_seek_points: _LearnedSeekPoints | None
    batches: int
    bytes_read: int
    wait_s: float
    wait_p50_s: float | None
    wait_p99_s: float | None
    handover_s: float
    device_s: float | None
    device_copy: str | None
    transport: Literal["shm", "tcp"] | None
    stages: dict[str, _Stage]
    bound: str | None
    bottleneck: str | None
    storage: _Storage | None
    failed: int
    failures: list[str]
    server: str | None
    servers: dict[str, int] | None
    reconnects: int | None
    handovers: int | None
    retries: int | None
    longest_gap_s: float | None

@final
class Loader:
    """Batches of decoded images, for training or in order.

    One loop over the loader is one epoch, and the next loop is the next epoch, also after a loop
    that was left early: as `torch.utils.data.DataLoader` does with `shuffle=True`. A transform for training
    shuffles and leaves the last, short batch out; `EvalTransform` does neither. `set_epoch`, or
    `sampler.set_epoch`, chooses the epoch of the next loop. Which samples are in which batch, in which order
    and with which random crops, is a function of the dataset, `seed`, `shuffle`, `virtual_ranks`
    and the epoch: not of threads, of the machine, or of whether a server is in between.

    Waiting for a batch lets other threads run and ends at Ctrl-C. Threads may share a
    loader; each batch goes to one of them. A loader does not survive a fork: make it in
    the process that uses it.

    Options come in groups:

    - Samples: `split`, `batch_size`, `drop_last`, `pad_last`, `indices`, `classes`, `limit`, `weights`, `class_balanced`, `num_samples`, `repeats`, `label_base`, `columns`, `on_error`
    - Order: `shuffle`, `seed`, `reshuffle`, `block_records`, `window_blocks`
    - Pixels: `transform`, `batch_transform`, `layout`, `dtype`, `normalize`, `resize_like`, `exif_orientation`, `dct_scaling`, `keep_empty_boxes`, `max_pixels`, `max_image_bytes`
    - Ranks: `rank`, `world_size`, `virtual_ranks`
    - Machine and storage: `threads`, `memory`, `learn_seek_points`, `page_cache`, `storage_options`
    - Server: `timeout`, `transport`, `connections`, `token`, `token_file`, `tls_ca`, `tls_cert`, `tls_key`

    Parameters
    ----------
    source : str, os.PathLike or Mix
        The directory of a dataset, its URL in a store (`s3://`, `gs://`, `az://`, `https://`), or
        `forebay://HOST:PORT/NAME` (`forebays://` with TLS) for a dataset or a job that a server has. Several servers of the
        same are `forebay://A:PORT,B:PORT/NAME`; all addresses of a name `forebay+dns://HOST:PORT/NAME`; those of a file
        `forebay+file:///PATH/NAME`. A rank has one of them and goes on with another when that one is gone. A job
        brings its own options: those given here must agree with them. A `Mix` is several datasets as one.
    split : str, optional
        Name of the split.
        Optional if the dataset has one split. "val", "valid", "validation" and "dev" are the same name.
    batch_size : int, default 32
        Samples in a batch of one rank.
    drop_last : bool, optional
        Leave out the last batch of an epoch if it is incomplete.
        The default is true for transforms with a random operation, false for `EvalTransform`, and for others true if samples are
        shuffled. If it is false, ranks get the same number of steps by padding: `Batch.padding` counts the added samples, which have the label -100.
    pad_last : bool, default False
        Fill the last batch up where there is one rank, so that all batches have one size.
        `Batch.padding` counts the added samples, which have the label -100. Several ranks always have it, with
        `drop_last=False`: they get the same number of batches.
    indices : sequence, array or tensor of int, optional
        Use only these records, by number.
        Their order does not matter: without a shuffle, samples come in storage order.
    classes : sequence of str or int, optional
        Use only records of these classes, given by name or label.
    limit : int, optional
        Use at most this many records.
        The first ones in storage order, after `indices` and `classes`. They are the same in each epoch.
    weights : dict or sequence of float, optional
        Weights of classes or of records, for sampling with replacement.
        Classes are given by name or label; the weight of other classes is 1.
    class_balanced : bool, default False
        Sample all classes equally often, with replacement.
    num_samples : int, optional
        Number of samples in an epoch, for sampling with replacement and for a `Mix` with weights.
        The default is the number of records.
    repeats : int, default 1
        Number of times that each sample comes in an epoch.
        Each time with other random transforms.
    label_base : {0, 1, "stored"}, default 0
        Label of the first class in batches: 0, 1, or "stored" for labels as they are stored.
        Labels in `classes` and `weights` count in the same way. Records without a label keep -1. A stored label below that of the
        first class is an error that `on_error` handles.
    columns : sequence of str, optional
        Further columns in batches, by name.
        `forebay inspect` lists the columns of a dataset; docs/columns.md says what each type becomes in a batch. `NAME:TYPE` reads a
        column as another type, as in "meta:json".
    on_error : {"raise", "skip", "zero"}, default "raise"
        Handling of samples that cannot be read or decoded.
        "skip" puts the next good sample of the batch in their place, "zero" puts zeros and the label -1. `Batch.failed` says which
        samples these are, `stats` counts them by reason.
    shuffle : bool or str, optional
        Order of samples: "blocks", "window", "full" or "none".
        "blocks" reads blocks of neighboring records in random order and shuffles their samples, so that reads are large. "window"
        shuffles samples in the same way but reads the blocks in storage order: for records that are stored in random order. "full" is a
        permutation of all samples. True means "blocks", False means "none". The default is true for transforms with a
        random operation and false for `EvalTransform`; with any other transform the option is required.
    seed : int, default 0
        Seed of the order and of random transforms.
    reshuffle : bool, default True
        Shuffle each epoch in a new order; false repeats the order of epoch 0.
        Random transforms differ between epochs in both cases.
    block_records : int, optional
        Records in a block of the shuffle "blocks" or "window".
    window_blocks : int, default 2
        Blocks whose samples are shuffled together, for each virtual rank.
    transform : TrainTransform, EvalTransform, list of transforms or KeepEncoded, optional
        Transform of images.
        Required, except for a job of a server. A list begins with `RandomResizedCrop`, or with `Resize` and `CenterCrop`; flips and
        changes of color, `Normalize` and `RandomErasing` follow. `KeepEncoded` leaves images encoded.
    batch_transform : Mixup, CutMix or RandomChoice, optional
        Mixing of the samples of a batch, such as `Mixup`.
        `Batch.labels_b`, `Batch.lam` and `Batch.one_hot` describe the result.
    layout : {"nhwc", "nchw"}, default "nhwc"
        Order of the axes of images in a batch.
    dtype : {"uint8", "float32", "float16", "bfloat16"} or such a type of numpy, torch or JAX, optional
        Type of pixel values.
        Floating-point values are bytes divided by 255, and normalized if `normalize` or the transform says so.
    normalize : tuple of two sequences of float, optional
        Mean and standard deviation for the normalization of pixels.
        Three numbers each, for values from 0 to 1. With a list of transforms, the same as `Normalize` at its end.
    resize_like : {"pillow", "opencv", "tensorflow"}, default "pillow"
        Library whose resize is reproduced.
        "pillow" is antialiased, as torchvision's default is. "opencv" is INTER_LINEAR, "tensorflow" is tf.image.resize without
        antialiasing.
    exif_orientation : bool, default False
        Rotate and flip images by their EXIF orientation.
    dct_scaling : bool, default False
        Decode JPEG at a reduced size if the crop is larger than the output.
        Faster, with slightly different pixels. The decoded crop is never smaller than the output.
    keep_empty_boxes : bool, default False
        Keep boxes that are outside of the crop or smaller than a pixel.
        By default they are left out, together with their labels.
    max_pixels : int, optional
        Maximum number of pixels of an image.
        Larger images are refused before decoding. The default is 64 Mi pixels; a server has its own limit.
    max_image_bytes : int or str, optional
        Maximum size of a decoded image in bytes.
        Larger images are refused before decoding. The default is 256 MiB; a server has its own limit.
    rank : int, optional
        Rank of this process, from 0.
        Give `rank` and `world_size` together. Without them they come from the framework or the launcher (docs/loader.md).
    world_size : int, optional
        Number of ranks.
        All ranks get the same number of batches. Reads are fewest if it divides `virtual_ranks`.
    virtual_ranks : int, default 64
        Number of parts that an epoch is divided into.
        The order of samples depends on this number and not on the number of ranks.
    threads : int, default 0
        Threads that decode; 0 for as many as this process may use.
        A server has its own.
    memory : int or str, optional
        Bytes, or a size such as "2GiB", for records and batches on their way.
        A server has its own.
    learn_seek_points : int or str, optional
        Bytes, or a size such as "128MiB", for seek points that are learned while the first epoch decodes; 0 for none.
        Later epochs decode crops of JPEGs without stored seek points faster with them, to the same pixels. Loaders of a process
        that read the same split share them. The default is "128MiB", about 400,000 images of ImageNet's size. A server has its own.
    page_cache : {"keep", "drop"}, default "keep"
        Whether the system keeps copies of what was read from local files.
        "drop" is for a dataset larger than memory that would drive out what others read. A server decides for itself.
    storage_options : dict of str to str, optional
        How a store is reached, see `open`.
        Credentials come from the environment otherwise.
    timeout : float or None, default 300.0
        The longest wait for a batch in seconds; for a server that is busy, that starts, or that is lost.
    transport : {"auto", "shm", "tcp"}, optional
        How batches come from a server.
        "auto" takes memory shared with a server on this host, without a copy, and TCP otherwise; "shm" wants shared memory or
        fails. By default what the environment variable FOREBAY_TRANSPORT says, else "auto". `stats` tells which it is.
    connections : int, default 1
        Over how many TCP connections each batch comes at once, up to 16.
        For a network that one of them, or one core, does not fill.
    token : str, optional
        A secret that lets this process into a server.
        By default that of the environment variable FOREBAY_TOKEN. It is sent through TLS, or to a server on this machine, and
        never shown.
    token_file : str or os.PathLike, optional
        A file whose first line is the token.
        Read again for each connection, so that it may be replaced. By default what FOREBAY_TOKEN_FILE names.
    tls_ca : str or os.PathLike, optional
        For `forebays://`: the authorities (PEM) that the server's certificate may be signed by.
        By default what FOREBAY_TLS_CA names, or those of the system.
    tls_cert : str or os.PathLike, optional
        Certificate (PEM) of this process, for servers that want one.
        By default what FOREBAY_TLS_CLIENT_CERT names.
    tls_key : str or os.PathLike, optional
        Key (PEM) of this process, for servers that want a certificate.
        By default what FOREBAY_TLS_CLIENT_KEY names.

    Raises
    ------
    OptionError
        An option, or a combination of them, that cannot work. From the first use on also where the rank cannot be
        determined: WORLD_SIZE without a rank, or two sources that contradict each other.
    MissingError, MismatchError, ShardError, StorageError
        See `open`.
    ServerError
        When the server cannot be reached, or refuses.
    AuthError
        When the server wants a token or a certificate, or has one that is not trusted.
    TimeoutError
        When it does not answer in time.

    Examples
    --------
    >>> train = forebay.TrainTransform(224)
    >>> with forebay.Loader("packed/", batch_size=256, transform=train) as loader:  # doctest: +SKIP
    ...     for images, labels in loader:
    ...         train(images, labels)
    """
    def __new__(
        cls,
        source: str | os.PathLike[str] | Mix,
        *,
        split: str | None = None,
        batch_size: int = 32,
        drop_last: bool | None = None,
        pad_last: bool = False,
        indices: Sequence[int] | npt.NDArray[np.integer[Any]] | _Tensor | None = None,
        classes: Sequence[str | int] | None = None,
        limit: int | None = None,
        weights: Mapping[str, float] | Mapping[int, float] | Sequence[float] | npt.NDArray[np.floating[Any]] | None = None,
        class_balanced: bool = False,
        num_samples: int | None = None,
        repeats: int = 1,
        label_base: Literal[0, 1, "stored"] = 0,
        columns: Sequence[str] | None = None,
        on_error: Literal["raise", "skip", "zero"] = "raise",
        shuffle: bool | str | None = None,
        seed: int = 0,
        reshuffle: bool = True,
        block_records: int | None = None,
        window_blocks: int = 2,
        transform: _Transform | None = None,
        batch_transform: _BatchTransform | None = None,
        layout: Literal["nhwc", "nchw"] = "nhwc",
        dtype: Literal["uint8", "float32", "float16", "bfloat16"] | npt.DTypeLike | _NamedType | None = None,
        normalize: tuple[Sequence[float], Sequence[float]] | Normalize | None = None,
        resize_like: Literal["pillow", "opencv", "tensorflow"] = "pillow",
        exif_orientation: bool = False,
        dct_scaling: bool = False,
        keep_empty_boxes: bool = False,
        max_pixels: int | None = None,
        max_image_bytes: int | str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        virtual_ranks: int = 64,
        threads: int = 0,
        memory: int | str | None = None,
        learn_seek_points: int | str | None = None,
        page_cache: Literal["keep", "drop"] = "keep",
        storage_options: dict[str, str] | None = None,
        timeout: float | None = 300.0,
        transport: Literal["auto", "shm", "tcp"] | None = None,
        connections: int = 1,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
    ) -> Self: ...
    @property
    def source(self) -> str:
        """The source of the batches, as given."""
    @property
    def fingerprint(self) -> str:
        """The identifier of the dataset."""
    @property
    def sample_fingerprint(self) -> str | None:
        """The identity of its samples: their keys, labels and order. A conversion that keeps them keeps it. None where it
        is not known.
        """
    @property
    def split(self) -> str:
        """Name of the split."""
    @property
    def records(self) -> int:
        """Records of the split."""
    @property
    def classes(self) -> list[str]:
        """The names of classes in the order of the labels of batches, from `label_base` on.

        Empty where the dataset has no list of them, or a label of a `Mix` stands for several classes.
        """
    @property
    def label_base(self) -> int | None:
        """The label of the first class in batches: 0, if the option of that name does not say otherwise.

        None for a `Mix` with ``label_base="stored"`` whose datasets count from different numbers.
        """
    @property
    def dataset_starts(self) -> list[int] | None:
        """The number of the first record of each dataset of a `Mix`; None without one.

        Sample `s` of dataset `d` is record `s - dataset_starts[d]` of its split.
        """
    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch, all ranks together and without padding: `records`, if no option says otherwise."""
    @property
    def batch_size(self) -> int:
        """Samples in a batch of this rank."""
    @property
    def drop_last(self) -> bool:
        """Whether the short batch at the end of an epoch is left out."""

    @property
    def rank(self) -> int:
        """This process among those that share an epoch: looked up each time, unless a loop is running."""
    @property
    def world_size(self) -> int:
        """How many processes share an epoch: looked up as `rank` is."""
    @property
    def sampler(self) -> Sampler:
        """An object with `set_epoch`, where frameworks look for one."""
    @property
    def batch_sampler(self) -> None:
        """None: batches are made here, and `sampler` has the epochs."""
    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
    @property
    def position(self) -> int:
        """How many samples of that epoch all ranks together were given."""
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Epoch: ...
    def set_epoch(self, epoch: int) -> None:
        """Make the next loop one over `epoch`.

        Not needed: loops count epochs by themselves. May be called at any time: a loop that is
        running continues with its own epoch, and the next one begins `epoch`. After
        `load_state_dict` with a state of that epoch the position is kept.

        Parameters
        ----------
        epoch : int
            The epoch, from 0.
        """
    def state_dict(self) -> dict[str, Any]:
        """A few numbers that tell where the loader stands.

        Counts batches that were handed out, not those that were prepared. After the last batch of an
        epoch it is the start of the next one. What it holds survives JSON.

        Returns
        -------
        dict
            "epoch" and "position", and what they are the numbers of: "fingerprint", "sample_fingerprint", "split",
            "records", "seed", "virtual_ranks", "shuffle" and "label_base"; "digest", see `epoch_digest`.
        """
    def epoch_digest(self) -> EpochDigest:
        """A digest of the delivered part of the last batch's epoch.

        The digests of all ranks, added up, are the same for every number of ranks, every batch size and whatever died on the
        way, if each sample came exactly once. After a loop it is the digest of that loop's epoch.

        Returns
        -------
        EpochDigest
            With what was delivered before the state that was loaded, if that was a state of this rank.
        """
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another loader stood: the next loop gives the very next batch.

        Batch size, number of ranks, transform and source may be others.

        Parameters
        ----------
        state : dict
            From `state_dict`.

        Raises
        ------
        StateError
            When it is of another dataset, seed, shuffle or label base, or no state at all.
        """
    def stats(self) -> _Stats:
        """Times and waits of each stage so far.

        Returns
        -------
        dict
            "images", "batches" and "bytes_read" of the pipeline, which works ahead; "fast_share", which
            part of the decoded images, 0.0 to 1.0, is stored as fast images (`forebay pack --images`),
            None before the first one and while a server does not answer; "learned_seek_points", None where none are
            learned, else "samples" that were decoded with learned seek points, and over all loaders of the split in the
            process that decodes: "images" that have some, "bytes" that hold them, and whether the limit was reached, "full"; "wait_s",
            how long loops waited for batches, "wait_p50_s" and "wait_p99_s", the median of the waits for the last 1,024 batches and
            the wait that 99 % of them do not exceed, None before the first; "handover_s", how long handing finished batches to loops
            took, waiting for Python's lock included; "device_s", how long a loader for a device copied batches
            to it, None without one; "device_copy", how `forebay.torch` copied batches to a GPU: "registered" from the memory
            that they were decoded into, or "pinned: ..." through pinned memory, with the reason, None without a GPU;
            "transport", how batches come: "shm" or "tcp" from a server,
            None where they are made in this process; "stages", with "busy_s", "starved_s" (waiting
            for input), "blocked_s" (waiting for room) and "threads" of each, those of a server
            included; "bound", the bottleneck: "trainer" (the best case), "handover", "device", "decode", "neighbor",
            "storage", "network" or "unknown", and "bottleneck", a sentence about it, None where the trainer waited for less
            than 5 % of its time, both None while a server does not answer; "failed", how many
            samples were replaced (see `on_error`), and "failures", what was wrong with the last of them;
            "storage", None for local files, and for a dataset in a store what was counted since it was
            opened: "fetched_bytes" that came over the network, "retries" after failures, "hedges" (requests
            made twice because the answer was late), "requests", "cost", their estimated price in dollars, None without
            prices, else "in_region" of the data and "over_internet" so far, "epoch_in_region" and "epoch_over_internet"
            for a whole epoch of all ranks, None before the first sample, and "prices", where they come from, and "cache", None without one, else "hits" and "misses"
            of blocks and "hit_bytes" and "miss_bytes" of what was wanted of them. A server counts for all
            of its streams together.
            With servers also "server", the one that batches come from, and "servers", how many batches each sent, also
            those that were only read ahead; "reconnects",
            how often one was lost and the next went on, "longest_gap_s", the longest time until it did, "handovers", how
            often one took over from another that still served, and "retries", attempts that came to nothing: None
            without servers.
        """
    def close(self) -> None:
        """Stop threads and connections. Batches that were handed out stay.

        Leaving a `with` block does it, and so does the end of the loader's life.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        value: BaseException | None = None,
        trace: TracebackType | None = None,
        /,
    ) -> None: ...
