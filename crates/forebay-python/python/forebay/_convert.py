"""`convert`: datasets of other libraries become datasets of Forebay."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import numbers
import os
import pickle
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from forebay import _signatures, _values
from forebay._adapter import with_options
from forebay._errors import ConvertError, OptionError
from forebay._options import count
from forebay._writer import Writer, WriteSummary

# Seconds after which a worker process looks again whether its parent is there.
_LOOK = 1.0
# Samples that a worker process reads at a time.
_CHUNK = 8
# Columns that hold keys where nothing else says so: WebDataset's, and that of exported datasets.
_KEYS = ("__key__", "key")
_SPLIT = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,63}")
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"II*\x00", b"MM\x00*")

Key = str | Callable[[Any], Any] | None


@with_options(_signatures.convert, of=Writer)
def convert(
    dataset: Any,
    location: str | os.PathLike[str],
    *,
    features: Mapping[str, str] | None = None,
    rename: Mapping[str, str] | None = None,
    key: Key = None,
    split: str | None = None,
    workers: int = 0,
    mp_context: str | None = None,
    **options: Any,
) -> WriteSummary:
    """Write the samples of a dataset of another library, in their order.

    The dataset is one of Hugging Face's ``datasets``, a map-style dataset of torch (anything with ``len()`` and numbers as
    indices), an iterable, or a dict of splits to any of these. Its samples are dicts of columns, or tuples: (image, label), or
    the columns of `features` in their order.

    Columns and types of Hugging Face's datasets are those of their ``features``, with the names of their classes; encoded
    images are stored byte for byte, without decoding. The only image column becomes "image", the only class label "label".
    Of other datasets the first sample tells the types: images, "label" as a label, other integers, floats, text, bytes and
    arrays; ``dataset.classes`` names the classes, as in torchvision. Text in the column "label" is the name of a class: without
    a list of classes, as with ``classes="auto"``, they are numbered in the order of text. Samples that do not fit raise;
    `features` says otherwise, and selects columns.

    Parameters
    ----------
    dataset : object
        The dataset. For files there is `convert_files`.
    location : str or os.PathLike
        A directory, or a place in a store, as of `Writer`.
    features : dict of str to str, optional
        The columns to write and their types, as of `Writer`.
    rename : dict of str to str, optional
        New names of columns, by their names in the dataset. `features` and `key` have the new names.
    key : str or callable, optional
        The column that holds the keys of samples, or a function of the sample, before columns are renamed, that returns a str,
        bytes or an int. By default the column "__key__" or "key", if there is one, and else the number of the sample.
    split : str, optional
        The split to write; by default that of the dataset, or "train".
    workers : int, default 0
        Processes that read a dataset with indices. By default this process reads. Iterables are read by this process.
    mp_context : str, optional
        How these processes are started: "fork", "spawn" or "forkserver"; by default as Python does. All but "fork" need a
        dataset that can be pickled.
    **options
        As of `Writer`: `format`, `shard_size`, `classes`, `resume`, `overwrite` and the others.

    Returns
    -------
    WriteSummary
        What was published.

    Raises
    ------
    ConvertError
        When the dataset raises, which is the `__cause__`, or a worker process dies.
    SampleError
        When a sample does not fit the features.
    OptionError
        When the types of columns cannot be told, and `features` is missing; and when options make no sense.
    WriteError
        As of `Writer`.

    Examples
    --------
    >>> train = torchvision.datasets.ImageFolder("photos/train")  # doctest: +SKIP
    >>> forebay.convert(train, "mine/", format="indexed", workers=8)  # doctest: +SKIP
    """
    count("workers", workers, 0, "to read the dataset in")
    if isinstance(dataset, str | bytes | os.PathLike):
        raise OptionError("dataset: expected a dataset, found a path; forebay.convert_files converts files")
    renamed = dict(rename or {})
    parts = [_Part.of(data, name, features, renamed, options.get("classes")) for name, data in _splits(dataset, split)]
    if not parts:
        raise OptionError("dataset: it has no splits")
    first = parts[0]
    for part in parts[1:]:
        same = ("features", "classes", "numbers_classes")
        if any(getattr(part, name) != getattr(first, name) for name in same):
            raise OptionError(
                f"dataset: the splits {first.split!r} and {part.split!r} have other features or classes: "
                f"{first.features} and {part.features}; choose columns with features="
            )
    if first.classes is None and first.numbers_classes:
        options["classes"] = "auto"
    else:
        options["classes"] = first.classes
    for part in parts:
        part.take_key(key)
    readers = [_Reading(part, workers, mp_context) for part in parts]
    try:
        # Processes are started before the writer has threads.
        readers[0].begin()
        with Writer(location, features=first.features, **options) as writer:
            for reader in readers:
                for sample in reader.samples():
                    writer._put(reader.part.split, sample)
            return writer.close()
    finally:
        for reader in readers:
            reader.end()


def _splits(dataset: Any, split: str | None) -> list[tuple[str, Any]]:
    """The splits of a dataset by name."""
    if isinstance(dataset, Mapping):
        if split is None:
            return [(str(name), data) for name, data in dataset.items()]
        if split not in dataset:
            raise OptionError(f"split: the dataset has no {split!r}: it has {_values.some(map(str, dataset))}")
        return [(split, dataset[split])]
    own = str(getattr(dataset, "split", None) or "") if _is_hugging_face(dataset) else ""
    return [(split or (own if _SPLIT.fullmatch(own) else "train"), dataset)]


def _is_hugging_face(dataset: Any) -> bool:
    library = sys.modules.get("datasets")
    return library is not None and isinstance(dataset, library.Dataset | library.IterableDataset)


@dataclass
class _Part:
    """One split: how it is read, and what its samples are. It travels to worker processes."""

    split: str
    data: Any
    features: dict[str, str]
    classes: list[str] | None
    rename: dict[str, str]
    # Names of the values of a tuple.
    names: list[str]
    key: Key = None
    # Samples that were taken from an iterator to look at them.
    peeked: Iterable[Any] = ()
    is_indexed: bool = False
    # Whether labels are names of classes, which are numbered when all are known.
    numbers_classes: bool = False
    normalizers: _values.Normalizers | None = None

    @staticmethod
    def of(
        data: Any, split: str, features: Mapping[str, str] | None, rename: dict[str, str], classes: Sequence[str] | None
    ) -> _Part:
        """A split whose features are given, its own, or those of its first sample."""
        part = _Part(split, data, dict(features or {}), None, rename, list(features or ()))
        if isinstance(classes, str):
            part.numbers_classes = classes == "auto"
        elif classes:
            part.classes = list(classes)
        if _is_hugging_face(data):
            part._take_hugging_face()
        else:
            part.is_indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
            own = getattr(data, "classes", None)
            if part.classes is None and isinstance(own, list | tuple) and all(isinstance(name, str) for name in own):
                part.classes = list(own)
            if not part.features:
                part._infer()
            if "label" not in part.features and classes is None:
                part.classes = None
        part.numbers_classes = part.numbers_classes and part.classes is None
        part.normalizers = _values.Normalizers(part.features, part.classes or (), part.numbers_classes)
        return part

    def _take_hugging_face(self) -> None:
        """Features and classes of a dataset of `datasets`, whose images stay encoded."""
        library = sys.modules["datasets"]
        self.is_indexed = isinstance(self.data, library.Dataset)
        own = self.data.features
        if own is None:
            # A stream that says nothing of its columns.
            if not self.features:
                self._infer()
            return
        types = {name: _hugging_face_type(feature) for name, feature in own.items()}
        for kind, name in (("image", "image"), ("label", "label")):
            only = [column for column, found in types.items() if found == kind and column not in self.rename]
            if len(only) == 1 and name not in (self.rename.get(column, column) for column in types):
                self.rename[only[0]] = name
        new = {self.rename.get(column, column): column for column in types}
        if not self.features:
            for name in list(new):
                if name in _KEYS and types[new[name]] == "text":
                    del new[name]
            own_type = types.get(new.get("label", "")) or ""
            if own_type in ("int", "float", "text") or own_type.startswith("vector"):
                # The name says that it is a label; values that are none are refused with theirs.
                types[new["label"]] = "label"
                self.numbers_classes = own_type == "text"
            self.features = {name: types[column] or "" for name, column in new.items()}
            for name, kind in self.features.items():
                if not kind:
                    raise OptionError(
                        f"dataset: column {new[name]!r} has the type {own[new[name]]}, which no column of Forebay has: "
                        f"choose the columns to write with features="
                    )
        elif missing := self.features.keys() - new.keys():
            raise OptionError(f"features: the dataset has no column {min(missing)!r}: it has {_values.some(new)}")
        if self.classes is None and self.features.get("label") == "label":
            self.classes = list(getattr(own[new["label"]], "names", None) or ()) or None
        self.data = self.data.with_format(None)
        for column, feature in own.items():
            if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
                self.data = self.data.cast_column(column, library.Image(decode=False))

    def _infer(self) -> None:
        """The features of the first sample."""
        sample = self._first()
        if not isinstance(sample, Mapping) and not self.names:
            # A bare image, or the pair that datasets of torchvision give.
            self.names = ["image", "label"][: len(sample)] if isinstance(sample, tuple | list) else ["image"]
        try:
            columns = self.columns(sample)
        except _values.Refused as error:
            raise OptionError(f"dataset: {error}; name the columns and their types with features=") from error
        for column, value in columns.items():
            if column in _KEYS and isinstance(value, str | bytes):
                continue
            if column == "label":
                self.numbers_classes = self.numbers_classes or isinstance(value, str)
                value = _first_label(value)
            self.features[column] = _type_of(column, value)

    def _first(self) -> Any:
        try:
            if self.is_indexed:
                if len(self.data) > 0:
                    return self.data[0]
            else:
                self.data = iter(self.data)
                first = list(islice(self.data, 1))
                if first:
                    self.peeked = first
                    return first[0]
        except Exception as error:
            raise _failed(self.split, 0, error) from error
        raise OptionError(f"dataset: the split {self.split!r} has no samples: features= says which columns it has")

    def take_key(self, key: Key) -> None:
        """Say where keys come from."""
        self.key = key

    def columns(self, sample: Any) -> dict[str, Any]:
        """The columns of a sample by their new names."""
        if not isinstance(sample, Mapping):
            fields = getattr(sample, "_asdict", None)
            if fields is not None:
                sample = fields()
            else:
                values = sample if isinstance(sample, tuple | list) else (sample,)
                if len(values) != len(self.names):
                    raise _values.Refused(
                        f"expected a tuple of {', '.join(self.names) or 'columns that features= names'}, "
                        f"found {len(values)} values"
                    )
                sample = dict(zip(self.names, values, strict=True))
        return {self.rename.get(column, column): value for column, value in sample.items()}

    def prepare(self, sample: Any) -> _values.Prepared:
        """A sample as a writer takes it."""
        assert self.normalizers is not None
        key = self.key(sample) if callable(self.key) else None
        try:
            columns = self.columns(sample)
        except _values.Refused as error:
            return _values.Prepared(None, [], None, str(error))
        if isinstance(self.key, str):
            if self.key not in columns:
                return _values.Prepared(None, [], None, f"it has no column {self.key!r} for its key")
            key = columns[self.key]
        elif self.key is None:
            key = next((columns[name] for name in _KEYS if name in columns and name not in self.features), None)
        if isinstance(key, numbers.Integral):
            key = str(int(key))
        # A column that is absent is refused with its name; None says that there is no value.
        chosen = {column: columns[column] for column in self.features if column in columns}
        return self.normalizers.prepare(key, chosen)


def _hugging_face_type(feature: Any) -> str | None:
    """The type of a column for a feature of `datasets`; None where there is none."""
    name = type(feature).__name__
    if name in ("Image", "ClassLabel"):
        return {"Image": "image", "ClassLabel": "label"}[name]
    if name == "Value":
        dtype = str(feature.dtype)
        for kind, pattern in (
            ("text", r"(large_)?string"),
            ("bytes", r"(large_)?binary"),
            ("int", r"bool|u?int\d+"),
            ("float", r"float\d+|double|float"),
        ):
            if re.fullmatch(pattern, dtype):
                return kind
    if name in ("Sequence", "List", "LargeList"):
        inner = _hugging_face_type(feature.feature)
        length = getattr(feature, "length", -1)
        size = "*" if length is None or length < 0 else str(length)
        lists = {"label": "labels", "int": f"vector[{size},int64]", "float": f"vector[{size}]", "text": "texts"}
        return lists.get(inner or "")
    if re.fullmatch(r"Array[2-5]D", name):
        shape = ",".join("*" if side is None else str(side) for side in feature.shape)
        return f"tensor[{shape},{feature.dtype}]"
    return None


def _first_label(value: Any) -> Any:
    """The label of the first sample as an integer. A column of this name that holds no labels needs a type."""
    try:
        label = 0 if isinstance(value, str) else _values.label_of(value, {})
    except _values.Refused as error:
        raise OptionError(f"dataset: column 'label': {error}; features= with another type keeps it as a column") from error
    if isinstance(label, numbers.Real) and not isinstance(label, numbers.Integral):
        raise OptionError(
            f"dataset: column 'label': expected classes, found the float {label}; features= with the type \"float\" keeps "
            f"it as a column"
        )
    return int(label) if isinstance(label, numbers.Integral) else label


def _type_of(column: str, value: Any) -> str:
    """The type of a column for a value of it."""
    if column in ("boxes", "keypoints", "mask"):
        return column
    encoded = _values.encoded(value)
    if encoded is not None:
        is_image = encoded.startswith(_IMAGES) or (encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP")
        return "image" if is_image or column == "image" else "bytes"
    if _values.is_picture(value):
        return "image"
    if isinstance(value, str):
        return "text"
    if _values.is_array(value):
        dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        if column == "image" and dtype == "uint8" and len(shape) in (2, 3):
            return "image"
        if len(shape) == 1 and dtype in ("float32", "int64"):
            return f"vector[{shape[0]}]" if dtype == "float32" else f"vector[{shape[0]},int64]"
        if shape:
            return f"tensor[{','.join(map(str, shape))},{dtype}]"
        value = _values.plain(value)
    if isinstance(value, numbers.Integral):
        return "label" if column == "label" and not isinstance(value, bool) else "int"
    if isinstance(value, numbers.Real):
        return "float"
    if isinstance(value, list | tuple) and value and all(isinstance(number, numbers.Real) for number in value):
        is_whole = all(isinstance(number, numbers.Integral) for number in value)
        return "vector[*,int64]" if is_whole else "vector[*]"
    if isinstance(value, list | tuple) and value and all(isinstance(text, str) for text in value):
        return "texts"
    raise OptionError(
        f"dataset: the type of column {column!r} cannot be told from its first value, {_values.found(value)}: "
        f"name the columns and their types with features="
    )


def _failed(split: str, number: int, error: BaseException) -> ConvertError:
    what = f"sample {number} of split {split!r} cannot be read: {type(error).__name__}: {error}"
    return ConvertError(what, split=split, sample=number)


@dataclass
class _Failed:
    """An exception of the dataset in a worker process."""

    number: int
    error: Exception


# The split that a worker process reads.
_part: _Part | None = None


def _start(part: _Part, parent: int | None) -> None:
    global _part
    _part = part
    # Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent or os.getppid(),), name="forebay-parent", daemon=True).start()


def _end_with(parent: int) -> None:
    """End this worker process when its parent is gone: it would wait forever for samples to read.

    The pipe of the parent closes when it is killed, unless a process that was forked later holds a copy.
    """
    process = multiprocessing.parent_process()
    pipes = [process.sentinel] if process is not None else []
    while os.getppid() == parent and not multiprocessing.connection.wait(pipes, _LOOK):
        pass
    os._exit(1)


def _read(begin: int, end: int) -> list[_values.Prepared | _Failed]:
    """Read some samples in a worker process."""
    assert _part is not None
    made: list[_values.Prepared | _Failed] = []
    for number in range(begin, end):
        try:
            made.append(_part.prepare(_part.data[number]))
        except Exception as error:
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:
                error = RuntimeError(f"{type(error).__name__}: {error}")
            made.append(_Failed(number, error))
            break
    return made


class _Reading:
    """The reading of a split, in this process or in others."""

    def __init__(self, part: _Part, workers: int, mp_context: str | None) -> None:
        self.part = part
        self._workers = workers if part.is_indexed else 0
        self._context = mp_context
        self._pool: ProcessPoolExecutor | None = None
        self._ahead: deque[Future[list[_values.Prepared | _Failed]]] = deque()
        self._next = 0

    def begin(self) -> None:
        """Start worker processes, if there are to be any."""
        if self._workers == 0 or self._pool is not None:
            return
        try:
            context = multiprocessing.get_context(self._context)
        except ValueError as error:
            raise OptionError(f"mp_context: {error}") from error
        # A fork server is the parent of its processes, and ends with this one.
        parent = None if context.get_start_method() == "forkserver" else os.getpid()
        self._pool = ProcessPoolExecutor(self._workers, context, initializer=_start, initargs=(self.part, parent))
        with self._typed():
            self._fill()

    def _fill(self) -> None:
        """Keep all processes busy, and no more samples in memory than that takes."""
        length = len(self.part.data)
        while self._pool is not None and self._next < length and len(self._ahead) < 2 * self._workers:
            end = min(self._next + _CHUNK, length)
            self._ahead.append(self._pool.submit(_read, self._next, end))
            self._next = end

    def samples(self) -> Iterator[_values.Prepared]:
        """All samples in order."""
        self.begin()
        yield from self._of_pool() if self._pool is not None else self._here()

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        """Say what of the pool failed."""
        try:
            yield
        except BrokenProcessPool as error:
            what = f"a process that read split {self.part.split!r} died; workers=0 reads in this process"
            raise ConvertError(what, split=self.part.split) from error
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            what = f"the dataset cannot be sent to other processes: {error}; mp_context=\"fork\" or workers=0 need not send it"
            raise ConvertError(what, split=self.part.split) from error

    def _of_pool(self) -> Iterator[_values.Prepared]:
        while self._ahead:
            with self._typed():
                made = self._ahead.popleft().result()
                self._fill()
            for sample in made:
                if isinstance(sample, _Failed):
                    raise _failed(self.part.split, sample.number, sample.error) from sample.error
                yield sample
        self.end()

    def _here(self) -> Iterator[_values.Prepared]:
        part = self.part
        if part.is_indexed:
            data = (part.data[number] for number in range(len(part.data)))
        else:
            data = chain(part.peeked, part.data)  # type: ignore[assignment]
        number = 0
        while True:
            try:
                sample = next(data, _END)
                if sample is _END:
                    return
                prepared = part.prepare(sample)
            except Exception as error:
                raise _failed(part.split, number, error) from error
            yield prepared
            number += 1

    def end(self) -> None:
        """End worker processes."""
        pool, self._pool = self._pool, None
        self._ahead.clear()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


_END = object()
