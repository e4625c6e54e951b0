"""Tensors of TensorFlow, in a loop and in a tf.data.Dataset."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import forebay
import forebay.tf
from test_loader import SMALL, loader

tf: Any = pytest.importorskip("tensorflow")


def of(source: Any, **options: Any) -> forebay.tf.Loader:
    return forebay.tf.Loader(source, **{"batch_size": 8, "transform": SMALL, **options})


@pytest.mark.parametrize("device", [None, "/CPU:0"])
def test_tensors_of_each_batch(source: str, device: str | None) -> None:
    kept = []
    with loader(source, drop_last=False) as plain, of(source, drop_last=False, device=device) as it:
        for _ in range(2):
            for before, after in zip(plain, it, strict=True):
                images, labels = after
                assert images.dtype == tf.uint8 and labels.dtype == tf.int64
                assert after.step == before.step and it.state_dict() == plain.state_dict()
                kept.append((after, before))
    gc.collect()
    for after, before in kept:
        assert (after.images.numpy() == before.images).all()
        assert after.labels.numpy().tolist() == before.labels.tolist()
        assert after.padding.numpy().tolist() == before.padding.tolist()


def test_functions(source: str) -> None:
    def half(batch: Any) -> Any:
        return {"images": batch.images[:, ::2, ::2], "of": batch.step}

    with of(source, map_batch=half) as it, loader(source) as plain:
        for before, after in zip(plain, it, strict=True):
            assert (after["images"].numpy() == before.images[:, ::2, ::2]).all()


@pytest.mark.parametrize("made", [False, True])
def test_a_dataset(source: str, made: bool) -> None:
    with loader(source) as plain:
        want = [(batch.images, batch.labels) for _ in range(2) for batch in plain]
    its = loader(source)
    data = forebay.tf.dataset(its) if made else forebay.tf.dataset(source, batch_size=8, transform=SMALL)
    assert data.cardinality().numpy() == len(want) // 2
    assert data.element_spec[0].shape == (8, 32, 32, 3) and data.element_spec[1].dtype == tf.int64
    got = [(images.numpy(), labels.numpy()) for _ in range(2) for images, labels in data]
    for (a, b), (c, d) in zip(got, want, strict=True):
        assert np.array_equal(a, c) and np.array_equal(b, d)
    its.close()


def test_keras_trains_on_it(source: str) -> None:
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(4),
        ]
    )
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = forebay.tf.dataset(source, batch_size=8, transform=SMALL)
    history = model.fit(data, epochs=2, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 2 and np.isfinite(history.history["loss"]).all()
