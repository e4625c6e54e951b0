"""Batches as arrays of JAX, on their devices before the loop needs them.

    loader = forebay.jax.Loader("packed/", batch_size=256, transform=forebay.TrainTransform(224), sharding=NamedSharding(mesh, P("data")))
    for images, labels in loader:
        state = train_step(state, images, labels)

Batches, their order and states are those of `forebay.Loader`. jax is imported when a loader is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from forebay import _ranks
from forebay._adapter import loader_of, tree_map, with_options
from forebay._batch import TensorBatch
from forebay._errors import OptionError
from forebay._forebay import Batch
from forebay._front import Front, Source
from forebay._mix import Mix
from forebay._options import library
from forebay._signatures import jax_loader

if TYPE_CHECKING:
    import jax

__all__ = ["Loader"]


class Loader(Front[Any, "TensorBatch[jax.Array]"]):
    """Batches as arrays of JAX.

    A loop gives `TensorBatch`, the pair `(images, labels)`: images of shape (N, H, W, 3) or, with
    ``layout="nchw"``, (N, 3, H, W); labels of shape (N,), int32 unless JAX is set to 64 bits;
    `padding`, `failed`, `samples` and other arrays on the devices beside them. On a CPU the arrays are the batch's memory, not
    a copy, wherever JAX can take it so. ``jax.jit(step)(batch)`` takes a batch whole, and compiles once.

    A thread puts each batch on its devices while the batches before are worked on.

    Parameters
    ----------
    source : str, os.PathLike, Mix or Loader
        As for `forebay.Loader`; or a `forebay.Loader` or `forebay.Mapped` that was made already.
    device : jax.Device, optional
        Where arrays are to be; by default JAX's own default.
    sharding : jax.sharding.Sharding, optional
        How arrays lie on several devices: over the first axis, the samples, as
        ``NamedSharding(mesh, PartitionSpec("data"))``. Where several processes share the mesh, each gives
        the samples of its own devices, and N is the batch of all of them. Instead of `device`.
    prefetch : int, default 2
        Batches that are prepared before they are asked for. Each takes its memory on the devices.
    map_batch, map_sample : callable, optional
        Python functions on the way: see `forebay.Mapped`. All arrays in whatever `map_batch`
        returns are put on the devices.
    map_threads : int, optional
        Threads that the functions run in, by default 1.
    map_workers : int, optional
        Processes that `map_sample` runs in: see `forebay.Mapped`.
    map_timeout : float, optional
        Seconds after which a call of `map_sample` in a process is an error.
    returns : {"hwc", "chw"}, optional
        The layout of images that `map_sample` returns: see `forebay.Mapped`.
    **options
        All others are those of `forebay.Loader`. `pad_last` is by default True, so that all batches have one shape. `rank` and `world_size` are by default JAX's process
        index and count where there are several processes.

    Raises
    ------
    ImportError
        When jax is not installed.
    OptionError
        An option, or a combination of them, that cannot work.

    Examples
    --------
    >>> train = forebay.TrainTransform(224)
    >>> loader = forebay.jax.Loader("packed/", batch_size=256, transform=train)  # doctest: +SKIP
    >>> for images, labels in loader:  # doctest: +SKIP
    ...     state = train_step(state, images, labels)
    """

    @with_options(jax_loader, pad_last=True)
    def __init__(
        self,
        source: str | os.PathLike[str] | Mix | Source,
        *,
        device: jax.Device | None = None,
        sharding: jax.sharding.Sharding | None = None,
        prefetch: int = 2,
        map_batch: Callable[[Any], Any] | None = None,
        map_sample: Callable[..., tuple[Any, Any]] | None = None,
        map_threads: int | None = None,
        map_workers: int | None = None,
        map_timeout: float | None = None,
        returns: Literal["hwc", "chw"] | None = None,
        **options: Any,
    ) -> None:
        jax = library("jax", "jax")
        if device is not None and sharding is not None:
            raise OptionError("device and sharding: a sharding names its devices itself")
        _ranks.ask_jax()
        self._jax = jax
        self._target = device if sharding is None else sharding
        self._sharded = sharding is not None
        # Devices of other processes cannot be written from here: each brings its part.
        self._shared = sharding is not None and not sharding.is_fully_addressable
        inner = loader_of(
            source, options, prefetch, pad_last=True, map_batch=map_batch, map_sample=map_sample, map_threads=map_threads,
            map_workers=map_workers, map_timeout=map_timeout, returns=returns,
        )  # fmt: skip
        super().__init__(inner, ahead=prefetch, copies=True)

    def _prepare(self, batch: Any) -> Any:
        if isinstance(batch, Batch):
            batch = TensorBatch(batch.numpy(), of=batch)
        if self._sharded and isinstance(batch, TensorBatch):
            # Values of ragged columns do not divide over devices by samples.
            return batch._with(self._put, ragged=False)
        return tree_map(self._put, batch)

    def _deliver(self, prepared: Any) -> Any:
        return prepared

    def _put(self, value: Any) -> Any:
        if not hasattr(value, "shape"):
            return value
        if value.dtype == "int64" and value.size and not self._jax.config.jax_enable_x64:
            # JAX itself would cut the upper half off and say nothing.
            low, high = int(value.min()), int(value.max())
            if low < -(2**31) or high >= 2**31:
                raise OptionError(
                    f"converting a batch for JAX failed: {high if high >= 2**31 else low} does not fit int32; "
                    "set jax_enable_x64"
                )
        if self._shared:
            return self._jax.make_array_from_process_local_data(self._target, value)
        return self._jax.device_put(value, self._target)
