"""No copies: arrays and tensors share the memory of the batch, which is freed after the last of them."""

from __future__ import annotations

import gc
import pathlib
import resource
import threading

import numpy as np
import pytest

import forebay
from test_loader import loader


def address(array: np.ndarray) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def test_numpy_views_share_one_memory(source: str) -> None:
    with loader(source) as it:
        batch = next(iter(it))
    assert batch.images.flags.writeable and batch.images.flags.c_contiguous
    assert not batch.images.flags.owndata and not batch.labels.flags.owndata
    assert address(batch.images) % 4096 == 0
    again = np.from_dlpack(batch)
    assert address(again) == address(batch.images)
    assert address(batch.numpy()[0]) == address(batch.images)
    batch.images[0, 0, 0, 0] = 77
    batch.labels[0] = 1000
    assert again[0, 0, 0, 0] == 77 and batch[1][0] == 1000


def test_dlpack_speaks_both_versions(source: str) -> None:
    with loader(source) as it:
        batch = next(iter(it))
    assert batch.__dlpack_device__() == (1, 0)
    assert "dltensor" in repr(batch.__dlpack__())
    assert "dltensor_versioned" in repr(batch.__dlpack__(max_version=(1, 0)))
    with pytest.raises(BufferError):
        batch.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        batch.__dlpack__(dl_device=(2, 0))


def test_the_buffer_returns_when_the_last_view_dies(source: str) -> None:
    """A pool hands the same pages out again, so few addresses serve many batches."""
    with loader(source, batch_size=4) as it:
        seen = set()
        count = 0
        for _ in range(8):
            for batch in it:
                view = np.from_dlpack(batch)[1:]
                del batch
                seen.add(address(view) - view.nbytes // 3)
                count += 1
                del view
    assert count == 80
    assert len(seen) <= 24, f"{len(seen)} buffers for {count} batches"


def test_held_batches_are_never_overwritten(source: str) -> None:
    with loader(source, batch_size=4) as it:
        held = [(batch, batch.images.copy()) for _ in range(3) for batch in it]
    gc.collect()
    assert len({address(batch.images) for batch, _ in held}) == len(held)
    for batch, before in held:
        assert (batch.images == before).all()


def test_views_may_die_on_any_thread(source: str) -> None:
    with loader(source, batch_size=4) as it:
        for batch in it:
            views = [np.from_dlpack(batch) for _ in range(4)]
            del batch
            threads = [threading.Thread(target=views.pop) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


def test_memory_stays_flat(packed: dict[str, pathlib.Path]) -> None:
    transform = forebay.TrainTransform(224)
    with loader(packed["indexed"], batch_size=14, transform=transform, memory=1 << 26) as it:

        def run(epochs: int) -> int:
            for _ in range(epochs):
                for batch in it:
                    images, _labels = batch
                    assert images.size
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        before = run(5)
        after = run(40)
    # 120 batches of 2 MB; a leak of one in ten would be 24 MB.
    assert after - before < 16 << 10, f"{before} KiB, then {after} KiB"


def test_torch_tensors_share_the_memory(source: str) -> None:
    torch = pytest.importorskip("torch")
    with loader(source) as it:
        for batch in it:
            images, labels = batch.torch()
            assert images.dtype == torch.uint8 and tuple(images.shape) == (8, 32, 32, 3)
            assert labels.dtype == torch.int64
            assert images.data_ptr() == address(batch.images)
            assert labels.data_ptr() == address(batch.labels)
            images += 1
            del batch
            assert int(images.sum()) >= 0
    one = torch.from_dlpack(next(iter(loader(source))))
    assert one.shape[0] == 8


def test_jax_arrays_share_the_memory(source: str) -> None:
    jax = pytest.importorskip("jax")
    with loader(source) as it:
        batch = next(iter(it))
        array = jax.dlpack.from_dlpack(batch)
        assert array.shape == (8, 32, 32, 3)
        assert array.unsafe_buffer_pointer() == address(batch.images)
