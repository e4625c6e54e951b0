"""Code shared by the adapters of the array libraries: creates a loader from a source and options."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from forebay._batch import TensorBatch
from forebay._errors import OptionError
from forebay._forebay import Loader
from forebay._front import Source
from forebay._map import Mapped
from forebay._mix import Mix
from forebay._options import count


def loader_of(
    source: str | os.PathLike[str] | Mix | Source,
    options: dict[str, Any],
    map_batch: Callable[[Any], Any] | None,
    map_sample: Callable[[Any, int], tuple[Any, Any]] | None,
    map_threads: int,
    ahead: int,
    pad_last: bool = False,
) -> Source:
    """Creates the loader behind an adapter, with the map functions, which run up to `ahead` batches ahead.

    `pad_last` is the default of that option.
    """
    ahead = count("prefetch", ahead, 1, "as batches are prepared before the trainer asks for them")
    loader: Source
    if isinstance(source, str | os.PathLike | Mix):
        loader = Loader(source, **{"pad_last": pad_last, **options})
    elif options:
        raise OptionError(
            f"{', '.join(options)}: a loader was given, which has its options already; "
            "give the dataset's path or address instead"
        )
    else:
        loader = source
    if map_batch is None and map_sample is None:
        return loader
    return Mapped(
        loader,
        map_batch=map_batch,
        map_sample=map_sample,
        map_threads=map_threads,
        ahead=ahead,
    )


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies `function` to all leaves of tuples, lists, dicts and batches, and keeps their structure."""
    if isinstance(tree, TensorBatch):
        return tree._with(function)
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, value) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(tree_map(function, value) for value in tree)
    return function(tree)
