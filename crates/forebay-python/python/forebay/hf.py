"""Datasets to the Hugging Face Hub. Reading from there needs nothing of this: `hf://datasets/OWNER/NAME` is a location."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from forebay._command import Progress
from forebay._commands import convert_files
from forebay._errors import OptionError
from forebay._options import library
from forebay._writer import WriteSummary

__all__ = ["push"]


def push(
    dataset: str | os.PathLike[str],
    repository: str,
    *,
    directory: str | os.PathLike[str] | None = None,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    progress: Progress = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> str:
    """Write a dataset as Parquet files, and upload them to a dataset repository, which is made if there is none.

    The files have the images as they are, names of classes and all columns: `datasets.load_dataset(repository)` reads them,
    and Forebay does where they are. One commit replaces those of an earlier push: the files in ``data/`` with numbers in their
    names, as in ``train-00000-of-00002.parquet``. A repository without a dataset card
    gets one, with splits, the account and the lines that load it. Needs huggingface_hub, the extra ``hf``.

    Parameters
    ----------
    dataset : str or os.PathLike
        A dataset, or anything else that `convert_files` reads.
    repository : str
        ``"OWNER/NAME"``.
    directory : str or os.PathLike, optional
        Where the Parquet files are written, and stay: the same call continues with them. By default they are temporary.
    private : bool, optional
        Whether a new repository is private; by default as the owner's settings say.
    revision : str, optional
        The branch, by default "main".
    token : str, optional
        The token, by default that of ``hf auth login`` or HF_TOKEN.
    progress : bool or callable, default False
        As of `convert_files`.
    storage_options : dict of str to str, optional
        How the store of the dataset is reached; see `open`.
    **options
        Options of `convert_files` other than `format`, such as ``shard_size="1GB"``.

    Returns
    -------
    str
        The URL of the commit for Forebay: ``hf://datasets/OWNER/NAME@COMMIT``.

    Raises
    ------
    OptionError, CommandError
        As of `convert_files`.
    huggingface_hub.errors.HfHubHTTPError
        What the Hub refuses.

    Examples
    --------
    >>> forebay.hf.push("packed/", "me/photos", private=True)  # doctest: +SKIP
    'hf://datasets/me/photos@5f0c2b...'
    """
    if options.get("format", "parquet") != "parquet":
        raise OptionError(f"option format is {options['format']!r}: forebay.hf.push writes Parquet files")
    hub = library("huggingface_hub", "hf")
    if repository.count("/") != 1:
        raise OptionError(f"repository is {repository!r}: expected OWNER/NAME")
    library("huggingface_hub.utils", "hf").validate_repo_id(repository)
    api = hub.HfApi(token=token and token.strip())
    with contextlib.ExitStack() as stack:
        folder = directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-push-"))
        options |= {"format": "parquet", "progress": progress, "storage_options": storage_options}
        summary = convert_files(dataset, folder, **options)
        api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, repo_type="dataset", exist_ok=True)
        patterns = ["data/*.parquet"]
        if not api.file_exists(repository, "README.md", repo_type="dataset", revision=revision):
            (pathlib.Path(folder) / "README.md").write_text(_card(repository, summary), encoding="utf-8")
            patterns.append("README.md")
        commit = api.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=folder,
            revision=revision,
            commit_message="Upload with Forebay",
            allow_patterns=patterns,
            delete_patterns=["data/*-?????-of-?????.parquet"],
        )
    return f"hf://datasets/{repository}@{commit.oid}"


def _card(repository: str, summary: WriteSummary) -> str:
    """The first dataset card: splits, the account and the lines that load the dataset."""
    packed = summary.account.get("packed", {})
    rows = [f"| {split} | {samples:,} | {packed.get(split, {}).get('labelled', 0):,} |" for split, samples in summary.splits.items()]
    out = summary.account.get("left_out", {})
    unit = summary.account.get("unit", "records")
    lines = [
        "---",
        "tags:",
        "- forebay",
        "---",
        "",
        f"# {repository.rsplit('/', 1)[-1]}",
        "",
        "| split | samples | with a label |",
        "| --- | ---: | ---: |",
        *rows,
        "",
        f"Made of {summary.account.get('read', 0):,} {unit}; left out: "
        + (", ".join(f"{count:,} {reason}" for reason, count in out.items()) or "none")
        + ".",
        "",
        "```python",
        "import datasets, forebay",
        "",
        f'table = datasets.load_dataset("{repository}")',
        f'loader = forebay.torch.Loader("hf://datasets/{repository}", split="{next(iter(summary.splits), "train")}", batch_size=256,',
        "                              transform=forebay.TrainTransform(224))",
        "```",
        "",
    ]
    return "\n".join(lines)
