"""Datasets of Ray Data from shards, and shards from them. Owns blocks and columns; Ray Data owns where tasks run."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from forebay._columns import Boxes, Column, Json, Keypoints, Tensors, Text
from forebay._convert import Key
from forebay._convert import convert as convert_samples
from forebay._errors import Error, MismatchError, OptionError
from forebay._forebay import Dataset, KeepEncoded, SampleDecoder
from forebay._forebay import open as open_dataset
from forebay._options import count, library
from forebay._random_access import _OPTIONS
from forebay._ray_commands import Path, everywhere
from forebay._writer import WriteSummary

# Records that a read task decodes together; Ray Data joins small blocks.
_ROWS = 128


def read(
    dataset: Path,
    *,
    split: str | None = None,
    columns: Sequence[str] = (),
    transform: Any = None,
    seed: int = 0,
    epoch: int = 0,
    override_num_blocks: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Read a dataset with Ray Data, each record exactly once.

    A read task has the records of some shards, or of a range of one shard where there are more tasks than shards, and
    opens the dataset on its node. The order is that of the records if `preserve_order` of Ray Data's execution options is set.

    Parameters
    ----------
    dataset : str or os.PathLike
        The directory with ``forebay.json``, or its URL. This process and every node see it.
    split : str, optional
        The split to read; it may be left out if there is only one.
    columns : sequence of str, optional
        Further columns.
    transform : TrainTransform, EvalTransform or list, optional
        What becomes of each image. Without it images stay encoded.
    seed, epoch : int, default 0
        They decide, with the number of a record, what a random transform draws: as a `Loader` with this seed does in this
        epoch, also where Ray repeats a task.
    override_num_blocks : int, optional
        Number of read tasks; by default Ray Data decides.
    ray_remote_args : dict, optional
        Options of the tasks, such as `num_cpus`, which are the threads that decode.
    storage_options : dict of str to str, optional
        How a store is reached; see `open`.
    **options
        Of `RandomAccessDataset`: `layout`, `dtype`, `normalize` and others.

    Returns
    -------
    ray.data.Dataset
        With a transform: "image", a tensor of shape (H, W, 3), uint8 by default; "label", int64, from 0, -1 without one; and
        "sample", int64, the number of the record in its split. Without: "key", text; "image", bytes as they were packed;
        and "label". Then the further columns: numbers and tensors; lists of numbers; text; lists of text; JSON as text; bytes;
        polygons as lists; boxes, in pixels, as a struct of "boxes" and "labels"; keypoints as one of "points" and "visibility".

    Raises
    ------
    ModuleNotFoundError
        When ray or what ray.data needs is not installed.
    OptionError
        An invalid option, or a dataset of several splits.
    MissingError, ShardError, StorageError
        When the dataset cannot be read here; from the tasks, inside ray's RayTaskError, when a node cannot read it.
    ImageError
        From the tasks: an image that cannot be decoded.

    Examples
    --------
    >>> samples = forebay.ray.read("/shared/packed", split="train", transform=forebay.EvalTransform(224))  # doctest: +SKIP
    >>> samples.map_batches(embed, batch_format="numpy").write_parquet("/shared/embeddings")  # doctest: +SKIP
    """
    ray_data = _library()
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise TypeError(f"read() got an unexpected keyword argument {unknown[0]!r}: expected one of {', '.join(_OPTIONS)}")
    taken = {"key", "image", "label", "sample"} & set(columns)
    if taken:
        raise OptionError(f"columns: {min(taken)!r} is a column that every dataset has: leave it out")
    path, storage = everywhere(dataset), tuple(sorted((storage_options or {}).items()))
    whole = open_dataset(path, storage_options=dict(storage))
    if split is None:
        if len(whole.splits) != 1:
            raise OptionError(f"option split is missing: the dataset has {', '.join(whole.splits)}")
        split = next(iter(whole.splits))
    records = whole.split(split)
    options |= {"transform": KeepEncoded() if transform is None else transform, "columns": tuple(columns) or None}
    drawn = count("seed", seed, 0, "the seed of transforms"), count("epoch", epoch, 0, "the number of an epoch")
    remote = dict(ray_remote_args or {})
    threads = max(int(remote.get("num_cpus", 1)), 1)
    source = functools.partial(_blocks, path, storage, whole.fingerprint, split, options, threads, drawn)
    row_bytes, schema = None, None
    try:
        # The first record tells the size of others; an option that cannot work is an error here and not on all nodes.
        for first in _tables(records, options, 1, drawn, 0, min(len(records), 1)):
            # Types of some columns depend on all values of a block.
            row_bytes, schema = first.nbytes, None if columns else first.schema
    except OptionError:
        raise
    except Error:
        # A task may read it, or it is an image that Ray's `max_errored_blocks` passes over.
        pass
    bounds = _bounds(whole, split, len(records))

    class Forebay(ray_data.Datasource):  # type: ignore[misc,name-defined]
        def estimate_inmemory_data_size(self) -> int | None:
            return None if row_bytes is None else row_bytes * len(records)

        def get_read_tasks(self, parallelism: int, *more: Any, **others: Any) -> list[Any]:
            tasks = []
            for start, stop in ranges(bounds, parallelism):
                size = None if row_bytes is None else row_bytes * (stop - start)
                about = ray_data.block.BlockMetadata(num_rows=stop - start, size_bytes=size, input_files=None, exec_stats=None)
                tasks.append(ray_data.ReadTask(functools.partial(source, start, stop), about, schema))
            return tasks

    return ray_data.read_datasource(Forebay(), override_num_blocks=override_num_blocks, ray_remote_args=remote)


def write(
    dataset: Any,
    destination: Path,
    *,
    image: str = "image",
    label: str = "label",
    key: Key = None,
    features: Mapping[str, str] | None = None,
    split: str = "train",
    **options: Any,
) -> WriteSummary:
    """Write the rows of a Ray dataset as shards, in their order.

    The steps of the dataset run on the cluster, and this process is the only writer: its threads encode and store what arrives,
    blocks in their order, so the same rows give the same bytes. Run the call in a task on a node with a fast network if
    the driver has none.

    Parameters
    ----------
    dataset : ray.data.Dataset
        The rows. Images are encoded bytes, or arrays of uint8 of shape (H, W, 3).
    destination : str or os.PathLike
        A directory of this process, or a URL (s3://, gs://, az://).
    image, label : str, default "image" and "label"
        The columns that hold them.
    key : str or callable, optional
        The column that holds the keys, or a function of the row. By default the column "key", and else the number of the row.
    features : dict of str to str, optional
        The columns to write and their types, as of `Writer`, with "image" and "label" for these two. By default all columns,
        with types of the first row.
    split : str, default "train"
        The split to write.
    **options
        Of `Writer`: `format`, `shard_size`, `classes`, `resume`, `overwrite` and others.

    Returns
    -------
    WriteSummary
        What was published.

    Raises
    ------
    ModuleNotFoundError
        When ray or what ray.data needs is not installed.
    ConvertError
        When a step of the dataset raises, which is the `__cause__`.
    OptionError, SampleError, WriteError, StorageError
        As of `forebay.convert`.

    Examples
    --------
    >>> rows = ray.data.read_parquet("/shared/photos.parquet").filter(is_good)  # doctest: +SKIP
    >>> forebay.ray.write(rows, "/shared/packed", image="jpeg", label="class", format="indexed")  # doctest: +SKIP
    """
    ray_data = _library()
    if not isinstance(dataset, ray_data.Dataset):
        raise OptionError(f"dataset: expected a ray.data.Dataset, found a value of type {type(dataset).__name__}")
    rename = {old: new for old, new in ((image, "image"), (label, "label")) if old != new}
    # Without running steps: names that are known only then are found missing by the first row.
    known = dataset.columns(fetch_if_missing=False)
    if missing := [old for old in rename if known and old not in known]:
        raise OptionError(f"dataset: it has no column {missing[0]!r}: it has {', '.join(known)}")
    execution = dataset.context.execution_options
    before, execution.preserve_order = execution.preserve_order, True
    try:
        rows = dataset.iter_rows()
        return convert_samples(iter(rows), destination, features=features, rename=rename, key=key, split=split, **options)
    finally:
        execution.preserve_order = before


def _library() -> Any:
    """Ray Data, which a ray without its extra does not have."""
    for name in ("ray", "pandas", "pyarrow"):
        library(name, "ray")
    return library("ray.data", "ray")


def _bounds(dataset: Dataset, split: str, records: int) -> list[int]:
    """The starts of the shards of a split, and its end."""
    splits = dataset.manifest.get("splits", [])
    found: dict[str, Any] = next((entry for entry in splits if entry.get("name") == split), {})
    ends = list(itertools.accumulate((shard.get("records", 0) for shard in found.get("shards", [])), initial=0))
    return ends if ends[-1] == records else [0, records]


def ranges(bounds: Sequence[int], parts: int) -> list[tuple[int, int]]:
    """Ranges of records for about `parts` tasks: whole shards, or equal cuts of each where there are too few."""
    shards = [(start, stop) for start, stop in itertools.pairwise(bounds) if start < stop]
    if len(shards) >= parts:
        groups = [shards[len(shards) * i // parts : len(shards) * (i + 1) // parts] for i in range(max(parts, 1))]
        return [(group[0][0], group[-1][1]) for group in groups]
    cuts = -(-parts // max(len(shards), 1))
    made = []
    for start, stop in shards:
        edges = [start + (stop - start) * i // cuts for i in range(cuts + 1)]
        made += [(first, last) for first, last in itertools.pairwise(edges) if first < last]
    return made


@functools.lru_cache(maxsize=4)
def _opened(path: str, storage: tuple[tuple[str, str], ...], fingerprint: str) -> Dataset:
    """The dataset on this node, opened once for all tasks of a process."""
    import ray

    where = f"node {ray.util.get_node_ip_address()}"
    try:
        found = open_dataset(path, storage_options=dict(storage))
    except Error as error:
        error.args = (f"{where}: {error}",)
        raise
    if found.fingerprint != fingerprint:
        raise MismatchError(f"{where}: {path} is another dataset there than for the driver: {found.fingerprint}, not {fingerprint}", path=path)
    return found


def _blocks(
    path: str,
    storage: tuple[tuple[str, str], ...],
    fingerprint: str,
    split: str,
    options: dict[str, Any],
    threads: int,
    drawn: tuple[int, int],
    start: int,
    stop: int,
) -> Iterator[Any]:
    """The blocks of a read task."""
    return _tables(_opened(path, storage, fingerprint).split(split), options, threads, drawn, start, stop)


def _tables(records: Dataset, options: dict[str, Any], threads: int, drawn: tuple[int, int], start: int, stop: int) -> Iterator[Any]:
    """Arrow tables of the records from `start` to `stop`."""
    from ray.data.block import BlockAccessor

    decoder = SampleDecoder(records, options, threads)
    for first in range(start, stop, _ROWS):
        numbers = range(first, min(first + _ROWS, stop))
        batch = decoder.batch(numbers, *drawn)
        named = {name: batch[name] for name in options["columns"] or ()}
        columns: dict[str, Any]
        if isinstance(options["transform"], KeepEncoded):
            keys = [record.key for record in records[numbers.start : numbers.stop]]
            columns = {"key": keys, "image": [bytes(image) for image in batch[0]], "label": batch.labels}
        else:
            columns = {"image": batch.images, "label": batch.labels, "sample": batch.samples}
        columns |= {name: list(value) if isinstance(value, Tensors) else value for name, value in named.items() if _is_tensor(value)}
        table = BlockAccessor.batch_to_arrow_block(columns)
        for name, value in named.items():
            if not _is_tensor(value):
                kind = records.columns.get(name, name.rpartition(":")[2])
                table = table.append_column(name, _arrow(value, kind))
        yield table


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray | Tensors)


def _arrow(values: Column[Any], kind: str) -> Any:
    """A column whose samples differ in length, as an Arrow array of one type in all blocks."""
    import pyarrow

    if isinstance(values, Text):
        return pyarrow.array(list(values), pyarrow.large_string())
    if isinstance(values, Json):
        nested = {"texts": pyarrow.large_string(), "polygons": pyarrow.list_(pyarrow.list_(pyarrow.float32()))}
        if kind in nested:
            return pyarrow.array(list(values), pyarrow.list_(nested[kind]))
        # Values of one type in all blocks: text.
        return _arrow(Text(values.values, values.offsets), kind)
    if kind in ("bytes", "mask"):
        return pyarrow.array([bytes(value) for value in values], pyarrow.large_binary())
    points, numbers = pyarrow.list_(pyarrow.list_(pyarrow.float32())), pyarrow.list_(pyarrow.int64())
    if isinstance(values, Boxes):
        return pyarrow.array(values.to_list(), pyarrow.struct([("boxes", points), ("labels", numbers)]))
    if isinstance(values, Keypoints):
        return pyarrow.array(values.to_list(), pyarrow.struct([("points", points), ("visibility", numbers)]))
    return pyarrow.array(list(values), pyarrow.list_(pyarrow.from_numpy_dtype(values.values.dtype)))  # type: ignore[attr-defined]
