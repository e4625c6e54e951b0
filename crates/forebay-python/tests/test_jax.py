"""Arrays of JAX: on one device, and over eight of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import forebay
import forebay.jax
import map_functions
from conftest import python
from test_loader import SMALL, loader


def of(source: Any, **options: Any) -> forebay.jax.Loader:
    return forebay.jax.Loader(source, **{"batch_size": 8, "transform": SMALL, **options})


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_arrays_of_each_batch(source: str, layout: str) -> None:
    jax = pytest.importorskip("jax")
    with loader(source, layout=layout, drop_last=False, pad_last=True) as plain, of(
        source, layout=layout, drop_last=False
    ) as it:
        assert len(it) == len(plain)
        kept = []
        for _ in range(2):
            for before, after in zip(plain, it, strict=True):
                images, labels = after
                assert isinstance(images, jax.Array) and images.dtype == np.uint8
                assert after.layout == layout and after.step == before.step
                assert it.state_dict() == plain.state_dict()
                kept.append((after, before))
    for after, before in kept:
        # All of them at the end: the memory of none was given to another batch.
        assert (np.asarray(after.images) == before.images).all()
        assert np.asarray(after.labels).tolist() == before.labels.tolist()
        assert np.asarray(after.padding).tolist() == before.padding.tolist()


def test_functions_and_a_device(source: str) -> None:
    jax = pytest.importorskip("jax")
    device = jax.devices()[-1]

    def half(batch: Any) -> Any:
        return {"images": batch.images[:, ::2, ::2], "of": batch.step}

    with of(source, device=device, map_batch=half) as it, loader(source) as plain:
        for before, after in zip(plain, it, strict=True):
            assert after["images"].devices() == {device} and after["of"] == before.step
            assert (np.asarray(after["images"]) == before.images[:, ::2, ::2]).all()
    with of(source, map_sample=lambda image, label: (image, label + 1)) as it, loader(source) as plain:
        for before, after in zip(plain, it, strict=True):
            assert np.asarray(after.labels).tolist() == (before.labels + 1).tolist()


@pytest.mark.parametrize("options", [{"map_threads": 2}, {"map_workers": 2}])
def test_functions_of_samples_beside_the_loop(source: str, options: dict[str, int]) -> None:
    pytest.importorskip("jax")
    kept: list[tuple[Any, Any]] = []
    with of(source, map_sample=map_functions.half, **options) as it, loader(source) as plain:
        for _ in range(2):
            kept += zip(plain, it, strict=True)
    for before, after in kept:
        # All of them at the end: the memory of none was given to another batch.
        assert (np.asarray(after.images) == before.images[:, ::2, ::2].astype(np.float32) / 255).all()
        assert np.asarray(after.labels).tolist() == before.labels.tolist()


def test_over_eight_devices(source: str) -> None:
    pytest.importorskip("jax")
    code = (
        "import os, sys\n"
        "os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'\n"
        "import jax, numpy as np, forebay.jax\n"
        "from jax.sharding import Mesh, NamedSharding, PartitionSpec as P\n"
        "over = NamedSharding(Mesh(np.array(jax.devices()), ('data',)), P('data'))\n"
        "options = dict(batch_size=8, transform=forebay.TrainTransform(32))\n"
        "with forebay.jax.Loader(sys.argv[1], sharding=over, **options) as it:\n"
        "    with forebay.Loader(sys.argv[1], **options) as plain:\n"
        "        for before, (images, labels) in zip(plain, it, strict=True):\n"
        "            assert images.sharding == over and len(images.addressable_shards) == 8\n"
        "            assert images.addressable_shards[0].data.shape == (1, 32, 32, 3)\n"
        "            assert (np.asarray(images) == before.images).all()\n"
        "            assert labels.sharding == over\n"
        "print('all')\n"
    )
    done = python(code, source)
    assert done.stdout == "all\n", done.stderr


def test_options_that_cannot_work(source: str) -> None:
    jax = pytest.importorskip("jax")
    for wrong in ({"prefetch": 0}, {"device": jax.devices()[0], "sharding": object()}):
        with pytest.raises(forebay.OptionError):
            of(source, **wrong)


def test_a_step_takes_the_whole_batch_and_is_compiled_once(source: str) -> None:
    jax = pytest.importorskip("jax")
    traced: list[Any] = []

    @jax.jit  # type: ignore[untyped-decorator]
    def right(batch: Any) -> Any:
        images, labels = batch
        traced.append((batch.epoch, batch.step, batch.layout))
        return batch, ((labels >= 0) & ~batch.padding).sum() + 0 * images.sum()

    mixing = {"drop_last": False, "pad_last": True, "batch_transform": forebay.Mixup(alpha=0.4)}
    with of(source, **mixing) as it, loader(source, **mixing) as plain:
        counted = 0
        for _ in range(2):
            for before, batch in zip(plain, it, strict=True):
                made, count = right(batch)
                counted += int(count)
                assert type(made) is forebay.TensorBatch and list(made.keys()) == list(batch.keys())
                for name in ("images", "labels", "samples", "padding", "failed", "labels_b", "lam"):
                    assert (np.asarray(getattr(made, name)) == getattr(before, name)).all(), name
                doubled = jax.tree.map(lambda array: np.concatenate([array, array]), batch)
                assert doubled.padding.shape == (16,)
                # The place is no part of what is compiled, and no stale one comes out.
                assert (batch.step, made.step, doubled.step) == (before.step, None, None)
    assert counted == 2 * 42 and traced == [(None, None, "nhwc")]
    paths = [str(path[0]) for path, _ in jax.tree_util.tree_flatten_with_path(batch)[0]]
    assert paths[:2] == [".images", ".labels"]


def test_numbers_that_jax_would_cut_are_refused(source: str) -> None:
    pytest.importorskip("jax")
    far = {"map_batch": lambda batch: (batch.images, batch.labels + 2**31)}
    with of(source, **far) as it, pytest.raises(forebay.OptionError, match="does not fit int32.*jax_enable_x64"):
        list(it)
