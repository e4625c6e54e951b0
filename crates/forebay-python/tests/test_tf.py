"""Tensors of TensorFlow, in a loop and in a tf.data.Dataset."""

from __future__ import annotations

import gc
import pathlib
from typing import Any

import numpy as np
import pytest

import forebay
import forebay.tf
import map_functions
from test_loader import SMALL, loader

tf: Any = pytest.importorskip("tensorflow")


def of(source: Any, **options: Any) -> forebay.tf.Loader:
    return forebay.tf.Loader(source, **{"batch_size": 8, "transform": SMALL, **options})


@pytest.mark.parametrize("device", [None, "/CPU:0"])
def test_tensors_of_each_batch(source: str, device: str | None) -> None:
    kept: list[tuple[Any, Any]] = []
    with loader(source, drop_last=False, pad_last=True) as plain, of(source, drop_last=False, device=device) as it:
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


@pytest.mark.parametrize("options", [{"map_threads": 2}, {"map_workers": 2}])
def test_functions_of_samples_beside_the_loop(source: str, options: dict[str, int]) -> None:
    kept: list[tuple[Any, Any]] = []
    with of(source, map_sample=map_functions.half, **options) as it, loader(source) as plain:
        for _ in range(2):
            kept += zip(plain, it, strict=True)
    gc.collect()
    for before, after in kept:
        assert (after.images.numpy() == before.images[:, ::2, ::2].astype(np.float32) / 255).all()
        assert after.labels.numpy().tolist() == before.labels.tolist()


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


def test_a_function_takes_the_whole_batch(source: str) -> None:
    traced = []

    @tf.function  # type: ignore[untyped-decorator]
    def right(batch: Any) -> Any:
        images, labels = batch
        traced.append(batch.step)
        return tf.reduce_sum(tf.cast((labels >= 0) & ~batch.padding, tf.int64))

    with of(source, drop_last=False) as it, loader(source, drop_last=False, pad_last=True) as plain:
        counted = 0
        for before, batch in zip(plain, it, strict=True):
            counted += int(right(batch))
            half = tf.nest.map_structure(lambda tensor: tensor[:4], batch)
            assert type(half) is forebay.TensorBatch and half.step is None
            assert half.samples.numpy().tolist() == before.samples[:4].tolist()
            assert half.padding.numpy().tolist() == before.padding[:4].tolist()
    assert counted == 42 and traced == [None]


@pytest.mark.parametrize("form", ["loader", "dataset"])
@pytest.mark.parametrize("batch_size", [8, 16, 42])
def test_keras_counts_each_sample_once(source: str, form: str, batch_size: int) -> None:
    """Loss and metrics over a padded epoch are those of the samples, whatever the size of batches."""
    model = tf.keras.Sequential(
        [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.GlobalAveragePooling2D(), tf.keras.layers.Dense(4)]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy", Counted()], weighted_metrics=[Counted("weighted")])
    transform = forebay.EvalTransform(32, resize=40)
    options: dict[str, Any] = {"batch_size": batch_size, "drop_last": False, "shuffle": False, "transform": transform}
    with forebay.Loader(source, **{**options, "batch_size": 42}) as plain:
        whole = next(iter(plain))
        want = model.evaluate(whole.images.copy(), whole.labels.copy(), batch_size=42, verbose=0, return_dict=True)
    with of(source, **options) as it:
        data = it if form == "loader" else forebay.tf.dataset(it)
        for _ in range(2):
            found = model.evaluate(data, verbose=0, return_dict=True)
            assert found["counted"] == found["weighted"] == 42
            assert found["loss"] == pytest.approx(want["loss"], rel=1e-5)
            assert found["accuracy"] == pytest.approx(want["accuracy"])
        assert model.predict(data, verbose=0).shape == (42, 4)
        history = model.fit(data, epochs=2, validation_data=data, verbose=0, shuffle=False)
        assert history.history["counted"] == history.history["val_counted"] == [42, 42]
        # Each pass was an epoch, and none was begun in vain: 2 of evaluation, 1 of prediction, 2 of training with 2 more.
        assert (it.epoch, it.position) == (7, 0)


class Counted(tf.keras.metrics.Sum):  # type: ignore[misc]
    """How many samples a metric was given, by their weights."""

    def __init__(self, name: str = "counted") -> None:
        super().__init__(name=name)

    def update_state(self, labels: Any, scores: Any, sample_weight: Any = None) -> None:
        super().update_state(tf.ones_like(labels, tf.float32), sample_weight)


def test_ranks_of_a_dataset_have_each_sample_once(source: str) -> None:
    seen: list[int] = []
    for rank in range(2):
        with of(source, rank=rank, world_size=2, batch_size=20, drop_last=False, map_batch=lambda b: (b.images, b.samples)) as it:
            data = forebay.tf.dataset(it)
            for images, samples in data:
                assert len(images) == len(samples) > 0
                seen += samples.numpy().tolist()
    assert sorted(seen) == list(range(42))


def test_a_dataset_goes_on_in_the_midst_of_an_epoch(source: str) -> None:
    with loader(source) as plain, of(source) as it:
        want = [batch.labels.tolist() for _ in range(2) for batch in plain]
        next(iter(it))
        state = it.state_dict()
        it.load_state_dict(state)
        data = forebay.tf.dataset(it)
        assert [labels.numpy().tolist() for _ in range(2) for _, labels in data] == want[1:]


def test_tensorflow_reads_what_a_writer_wrote(tmp_path: pathlib.Path) -> None:
    features = {"image": "image", "label": "label", "caption": "text", "boxes": "boxes", "vector": "vector[2]"}
    pixels = np.arange(12 * 16 * 3, dtype=np.uint8).reshape(12, 16, 3)
    with forebay.Writer(tmp_path / "a", features=features, format="tfrecord", shard_records=2) as writer:
        for number in range(5):
            writer.write(
                key=str(number), image=pixels, label=number, caption=f"é {number}",
                boxes=[[0, 0.25, 0.5, 1]] * number, vector=[number, 0.5],
            )  # fmt: skip
    spec = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "caption": tf.io.FixedLenFeature([], tf.string),
        "image/object/bbox/ymin": tf.io.VarLenFeature(tf.float32),
        "vector": tf.io.FixedLenFeature([2], tf.float32),
    }
    shards = sorted(str(path) for path in (tmp_path / "a").glob("train-*"))
    assert len(shards) == 3
    for number, record in enumerate(tf.data.TFRecordDataset(shards)):
        found = tf.io.parse_single_example(record, spec)
        assert np.array_equal(tf.io.decode_image(found["image/encoded"]).numpy(), pixels)
        assert int(found["image/class/label"]) == number
        assert found["caption"].numpy().decode() == f"é {number}"
        assert tf.sparse.to_dense(found["image/object/bbox/ymin"]).numpy().tolist() == [0.25] * number
        assert found["vector"].numpy().tolist() == [number, 0.5]
