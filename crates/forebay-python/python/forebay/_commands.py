"""Commands of the command line as functions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from forebay._command import Progress, Summary, describe, run, written
from forebay._writer import WriteSummary


def pack(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    progress: Progress = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> WriteSummary:
    """Pack a directory or archive of images into shards, as `forebay pack`.

    The bytes depend on the files and the options alone. A call that was interrupted or killed is continued by the same call.

    Parameters
    ----------
    source : str or os.PathLike
        A directory or archive of images, also in a store.
    destination : str or os.PathLike
        A directory or URL (s3://, gs://, az://) for the dataset.
    {shared}

    Returns
    -------
    WriteSummary
        The dataset, and in `account` how many files became samples and what became of the others.

    Examples
    --------
    >>> forebay.pack("photos/", "packed/", format="indexed", progress=True)  # doctest: +SKIP
    """
    return written(destination, run("pack", (source, destination), progress, storage_options, options))


def convert_files(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    progress: Progress = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> WriteSummary:
    """Write a dataset, or files of another tool, in another format, as `forebay convert`.

    Parameters
    ----------
    source : str or os.PathLike
        A dataset, or files in any format that Forebay reads, also in a store.
    destination : str or os.PathLike
        A directory or URL (s3://, gs://, az://) for the new dataset.
    {shared}

    Returns
    -------
    WriteSummary
        The dataset, and in `account` how many records became samples and what became of the others.

    Examples
    --------
    >>> forebay.convert_files("coco/", "packed/", format="indexed")  # doctest: +SKIP
    """
    return written(destination, run("convert", (source, destination), progress, storage_options, options))


def verify(
    *paths: str | os.PathLike[str],
    progress: Progress = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Summary:
    """Check every checksum of datasets, shards or checkpoints, as `forebay verify`. Damage raises `CommandError`.

    Parameters
    ----------
    *paths : str or os.PathLike
        Datasets, single shards, files of another tool, or checkpoints.
    {shared}

    Returns
    -------
    Summary
        "shards", "records", "bytes", "decoded" and others.

    Examples
    --------
    >>> forebay.verify("packed/", compare_source="photos/")  # doctest: +SKIP
    """
    return run("verify", paths, progress, storage_options, options)


def inspect(
    path: str | os.PathLike[str],
    *,
    progress: Progress = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Summary:
    """Describe a dataset, a shard, files of another tool, or a checkpoint, as `forebay inspect`.

    Parameters
    ----------
    path : str or os.PathLike
        A dataset, one shard, files of another tool, a checkpoint, or its run.
    {shared}

    Returns
    -------
    Summary
        "kind", "format", "records", "splits", "columns", "classes" and others.

    Examples
    --------
    >>> forebay.inspect("packed/").records  # doctest: +SKIP
    """
    return run("inspect", (path,), progress, storage_options, options)


def index(
    *paths: str | os.PathLike[str],
    progress: Progress = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Summary:
    """Index files of another tool, which loaders then read in place, as `forebay index`.

    Parameters
    ----------
    *paths : str or os.PathLike
        The directory of the files, or the files of one dataset.
    {shared}

    Returns
    -------
    Summary
        "records", "shards", "account" and others.

    Examples
    --------
    >>> forebay.index("webdataset/", output="index/")  # doctest: +SKIP
    """
    return run("index", paths, progress, storage_options, options)


def export(
    dataset: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    progress: Progress = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Summary:
    """Write the files that a dataset was packed from, byte for byte, as `forebay export`.

    Parameters
    ----------
    dataset : str or os.PathLike
        A dataset, or a checkpoint.
    destination : str or os.PathLike
        The directory to write to.
    {shared}

    Returns
    -------
    Summary
        "files", "bytes", "unchanged", "skipped" and "damaged".

    Examples
    --------
    >>> forebay.export("packed/", "photos/")  # doctest: +SKIP
    """
    return run("export", (dataset, destination), progress, storage_options, options)


for _function in (pack, convert_files, verify, inspect, index, export):
    describe(_function)
