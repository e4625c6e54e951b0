"""Batches: what is in them, in which order, and where they come from."""

from __future__ import annotations

import os
import pathlib
import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest

import forebay
from conftest import CLASSES, IMAGES_PER_CLASS, Serve, forebay_command

TOTAL = len(CLASSES) * IMAGES_PER_CLASS
SMALL = forebay.TrainTransform(32)


def content(batch: forebay.Batch) -> tuple[Any, ...]:
    return (
        batch.epoch,
        batch.step,
        batch.position,
        batch.digest,
        batch.layout,
        batch.images.shape,
        batch.images.tobytes(),
        batch.labels.tolist(),
        batch.samples.tolist(),
        batch.padding.tolist(),
    )


def loader(source: str | os.PathLike[str], **options: Any) -> forebay.Loader:
    return forebay.Loader(source, **{"batch_size": 8, "transform": SMALL, **options})


def epochs(source: str | os.PathLike[str], count: int = 1, **options: Any) -> list[Any]:
    with loader(source, **options) as it:
        return [content(batch) for _ in range(count) for batch in it]


def test_a_batch(source: str) -> None:
    ds_labels = None
    with loader(source) as it:
        assert len(it) == TOTAL // 8
        assert it.records == TOTAL
        assert (it.rank, it.world_size, it.batch_size, it.split) == (0, 1, 8, "train")
        steps = 0
        for steps, batch in enumerate(it, start=1):
            images, labels = batch
            assert images is batch.images is batch[0]
            assert labels is batch.labels is batch[-1]
            assert len(batch) == 2
            assert images.shape == (8, 32, 32, 3) and images.dtype == np.uint8
            assert labels.shape == (8,) and labels.dtype == np.int64
            assert batch.samples.dtype == np.int64 and batch.padding.dtype == np.bool_
            assert not batch.padding.any()
            assert batch.epoch == 0 and batch.step == steps - 1
            assert batch.position == (steps - 1) * 8
            assert set(labels.tolist()) <= {0, 1, 2}
            ds_labels = labels
        assert steps == len(it)
        assert "records=42" in repr(it)
    assert ds_labels is not None and ds_labels.sum() > 0, "arrays outlive the loader"


def test_how_images_are_decoded(packed: dict[str, pathlib.Path], serve: Serve) -> None:
    source = packed["indexed"]
    url = serve(source)
    plain = epochs(source, batch_size=4)
    for options in (
        {"resize_like": "opencv"},
        {"resize_like": "tensorflow"},
        {"dct_scaling": True},
        {"exif_orientation": True, "max_pixels": 1 << 20, "max_image_bytes": 1 << 24},
    ):
        here = epochs(source, batch_size=4, **options)
        assert here == epochs(url, batch_size=4, **options)
        # The images are PNGs without an orientation.
        assert (here == plain) == ("resize_like" not in options), options
        assert [batch[:5] for batch in here] == [batch[:5] for batch in plain]
    for where in (source, url):
        with loader(where, max_pixels=100) as it, pytest.raises(forebay.ImageError, match="the limit is 100"):
            next(iter(it))
    with pytest.raises(forebay.OptionError, match="max_pixels"):
        loader(url, max_pixels=1 << 50)


def test_a_server_gives_the_same_bytes(packed: dict[str, pathlib.Path], serve: Serve) -> None:
    """Also with crop bounds that no short float can hold, and over epochs."""
    for form in packed:
        for options in (
            {"seed": 3},
            {"layout": "nchw", "drop_last": False, "rank": 1, "world_size": 2},
            {"transform": forebay.TrainTransform(24, scale=(0.3, 0.7), ratio=(0.9, 1.1), flip=0.3)},
            {"transform": forebay.EvalTransform(32, resize=40), "shuffle": False},
            {"shuffle": "full", "label_base": "stored"},
            {"shuffle": "window", "block_records": 2},
            {"block_records": 4, "window_blocks": 2, "virtual_ranks": 2},
        ):
            here = epochs(packed[form], 2, **options)
            there = epochs(serve(packed[form]), 2, **options)
            assert here == there, options


def test_samples_are_the_records(packed: dict[str, pathlib.Path], source: str) -> None:
    ds = forebay.open(packed["indexed"])
    with loader(source) as it:
        for batch in it:
            assert (batch.labels + ds.label_base).tolist() == ds.labels[batch.samples].tolist()


def test_formats_threads_and_memory_do_not_matter(packed: dict[str, pathlib.Path]) -> None:
    first = epochs(packed["tfrecord"], threads=1)
    assert epochs(packed["indexed"], threads=2) == first
    assert epochs(packed["indexed"], memory=1 << 26) == first


def test_every_sample_once_an_epoch_and_another_order_in_each(source: str) -> None:
    with loader(source, batch_size=7) as it:
        orders = [[s for batch in it for s in batch.samples.tolist()] for _ in range(3)]
    for order in orders:
        assert sorted(order) == list(range(TOTAL))
    assert len({tuple(order) for order in orders}) == 3


def test_seed_and_no_shuffle(source: str) -> None:
    assert epochs(source, seed=1) != epochs(source, seed=2)
    assert epochs(source, seed=1) == epochs(source, seed=1)
    with loader(source, shuffle=False, batch_size=6) as it:
        assert [s for batch in it for s in batch.samples.tolist()] == list(range(TOTAL))


def test_ranks_share_the_global_batches(source: str) -> None:
    """The samples of a step over all ranks do not depend on the number of ranks."""

    def steps(world: int) -> list[list[int]]:
        ranks = [epochs(source, batch_size=20 // world, rank=r, world_size=world) for r in range(world)]
        assert len({len(rank) for rank in ranks}) == 1
        return [sorted(s for batch in step for s in batch[8]) for step in zip(*ranks, strict=True)]

    assert steps(1) == steps(2) == steps(4) == steps(5)


def test_rank_and_world_size_from_the_environment(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = epochs(source, batch_size=4, rank=1, world_size=2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert epochs(source, batch_size=4) == given
    with loader(source, rank=0, world_size=1) as it:
        assert it.world_size == 1
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(forebay.OptionError, match="RANK"):
        loader(source)


def test_the_last_batch_of_one_rank_is_short(source: str) -> None:
    mixed = {"batch_transform": forebay.Mixup(), "drop_last": False, "columns": ["image/filename"]}
    with loader(source, **mixed) as it, loader(source, pad_last=True, **mixed) as padded:
        assert len(it) == len(padded) == -(-TOTAL // 8)
        for epoch in range(2):
            samples = []
            for batch, whole in zip(it, padded, strict=True):
                real = ~whole.padding
                count = int(real.sum())
                assert count == (TOTAL % 8 if batch.step == len(it) - 1 else 8)
                assert not batch.padding.any() and batch.padding.shape == (count,)
                assert batch.images.shape[0] == len(batch.labels) == count
                for name in ("images", "labels", "samples", "failed", "labels_b", "lam"):
                    assert np.array_equal(getattr(batch, name), getattr(whole, name)[real]), name
                names, all_names = ([bytes(name) for name in b["image/filename"]] for b in (batch, whole))
                assert names == all_names[:count] and len(all_names) == 8
                assert batch.one_hot(3).shape == (count, 3)
                assert (whole.labels[~real] == -100).all() and not whole.one_hot(3)[~real].any()
                assert (batch.digest, batch.position) == (whole.digest, whole.position)
                assert it.state_dict() == padded.state_dict()
                samples += batch.samples.tolist()
            assert sorted(samples) == list(range(TOTAL))
            assert it.epoch_digest() == padded.epoch_digest() and it.epoch_digest().complete
            assert (it.epoch, it.position) == (epoch + 1, 0)


def test_ranks_have_padding_with_labels_to_ignore(source: str) -> None:
    samples: list[int] = []
    steps = set()
    for rank in range(4):
        with loader(source, drop_last=False, rank=rank, world_size=4) as it:
            steps.add(len(it))
            for batch in it:
                assert batch.images.shape[0] == 8
                assert ((batch.labels == -100) == batch.padding).all()
                samples += batch.samples[batch.labels != -100].tolist()
    assert sorted(samples) == list(range(TOTAL)) and steps == {2}


def test_a_transform_is_needed_and_decides(source: str) -> None:
    with pytest.raises(forebay.OptionError) as caught:
        forebay.Loader(source, batch_size=8)
    assert str(caught.value) == (
        "choose transform=forebay.TrainTransform(224), EvalTransform(224), KeepEncoded() or a list"
    )
    stored = list(range(TOTAL))
    fixed = [forebay.Resize(40), forebay.CenterCrop(32)]
    random = [*fixed, forebay.RandomHorizontalFlip()]
    none, raw = forebay.EvalTransform(32, resize=40), forebay.KeepEncoded()
    options: dict[str, Any]
    for transform, options, shuffles, drops in (
        (SMALL, {}, True, True),
        (random, {}, True, True),
        (none, {}, False, False),
        (none, {"shuffle": True}, True, False),
        (none, {"drop_last": True}, False, True),
        (SMALL, {"shuffle": False, "drop_last": False}, False, False),
        (fixed, {"shuffle": False}, False, False),
        (fixed, {"shuffle": True}, True, True),
        (raw, {"shuffle": "full", "drop_last": False}, True, False),
    ):
        with forebay.Loader(source, batch_size=8, transform=transform, **options) as it:
            samples = [s for batch in it for s in batch.samples.tolist()]
            assert it.drop_last == drops and len(samples) == (TOTAL // 8 * 8 if drops else TOTAL)
            assert (samples != stored[: len(samples)]) == shuffles, (transform, options)
    for transform in (fixed, raw):
        with pytest.raises(forebay.OptionError, match="option shuffle is not given: choose true or false"):
            forebay.Loader(source, batch_size=8, transform=transform)


def test_validation_has_several_names(packed: dict[str, pathlib.Path], serve: Serve, tmp_path: pathlib.Path) -> None:
    images = packed["indexed"].parent / "images"
    done = forebay_command("pack", images, tmp_path / "set", "--split", "validation")
    assert done.returncode == 0, done.stderr
    for where in (os.fspath(tmp_path / "set"), serve(tmp_path / "set")):
        for name in ("val", "valid", "dev", "validation"):
            with loader(where, split=name) as it:
                assert it.split == it.state_dict()["split"] == "validation"
        with pytest.raises(forebay.OptionError, match='no split "test": there are validation'):
            loader(where, split="test")
    assert forebay.open(tmp_path / "set").split("val").splits == {"validation": TOTAL}


def test_labels_count_from_zero(source: str) -> None:
    """Losses take classes from 0, whatever the shards store."""
    with loader(source) as it, loader(source, label_base=0) as zero, loader(
        source, label_base=1
    ) as one, loader(source, label_base="stored") as stored:
        assert it.classes == one.classes == CLASSES
        assert [x.label_base for x in (it, zero, one, stored)] == [0, 0, 1, 1]
        seen = set()
        for a, b, c, d in zip(it, zero, one, stored, strict=True):
            assert a.labels.tolist() == b.labels.tolist()
            assert (a.labels + 1).tolist() == c.labels.tolist() == d.labels.tolist()
            seen |= set(a.labels.tolist())
        assert seen == set(range(len(it.classes)))


def test_a_label_is_the_place_of_its_class(
    source: str, packed: dict[str, pathlib.Path]
) -> None:
    """A network with one output for each of `loader.classes` takes labels as they are."""
    split = forebay.open(packed["indexed"]).split("train")
    with loader(source, batch_transform=forebay.Mixup(), drop_last=False) as it:
        for batch in it:
            assert batch.labels_b is not None
            rows = batch.one_hot(len(it.classes))
            for at, (sample, label) in enumerate(zip(batch.samples, batch.labels, strict=True)):
                assert split[int(sample)].key.startswith(it.classes[label])
                assert rows[at, label] > 0 and rows[at, batch.labels_b[at]] > 0


def test_layouts_are_transposes(source: str) -> None:
    with loader(source) as rows, loader(source, layout="nchw") as planes:
        for a, b in zip(rows, planes, strict=True):
            assert b.images.shape == (8, 3, 32, 32) and b.layout == "nchw"
            assert (a.images.transpose(0, 3, 1, 2) == b.images).all()


def test_the_pixels_of_an_untouched_picture(packed: dict[str, pathlib.Path]) -> None:
    """A centre crop at the image's own size is the image."""
    ds = forebay.open(packed["indexed"])
    transform = forebay.EvalTransform(48, resize=48)
    with loader(packed["indexed"], transform=transform, shuffle=False) as it:
        images = np.concatenate([batch.images for batch in it])
    for number, picture in enumerate(images):
        features = ds[number].features
        if features["image/height"] == [48]:
            width = features["image/width"][0]
            assert isinstance(width, int)
            seed = int(ds[number].key.rsplit("_", 1)[1].split(".")[0])
            left = round((width - 48) / 2)
            x, y = np.meshgrid(np.arange(left, left + 48), np.arange(48))
            expected = np.stack(
                [(x * 3 + seed * 37) % 256, (y * 5 + seed * 11) % 256, (x * y + seed) % 256], -1
            )
            assert (picture == expected).all()


def test_a_loop_left_early_gives_way_to_the_next_epoch(source: str) -> None:
    whole = epochs(source, 3)
    with loader(source) as it:
        first = iter(it)
        assert content(next(first)) == whole[0]
        second = iter(it)
        with pytest.raises(forebay.StateError, match="newer"):
            next(first)
        assert [content(batch) for batch in second] == whole[len(it) : 2 * len(it)]
        assert list(second) == []
        assert it.epoch == 2


def test_set_epoch(source: str) -> None:
    whole = epochs(source, 6)
    with loader(source) as it:
        steps = len(it)
        it.set_epoch(5)
        assert [content(batch) for batch in it] == whole[5 * steps :]
        it.set_epoch(2)
        assert [content(batch) for batch in it] == whole[2 * steps : 3 * steps]
        it.set_epoch(3)
        assert [content(batch) for batch in it] == whole[3 * steps : 4 * steps]


def test_statistics(source: str) -> None:
    with loader(source) as it:
        list(it)
        stats = it.stats()
    assert stats["batches"] >= len(it)
    assert stats["images"] >= 8 * len(it)
    assert stats["wait_s"] >= 0
    assert stats["stages"]
    for stage in stats["stages"].values():
        assert set(stage) == {"busy_s", "starved_s", "blocked_s", "threads"}
    # The same over the network: the server answers.
    assert {"fetch", "decode", "transform", "trainer"} <= set(stats["stages"])
    assert stats["stages"]["decode"]["threads"] >= 1
    bottleneck = stats["bottleneck"]
    assert stats["bound"] is not None and stats["device_s"] is None
    assert bottleneck is None or bottleneck.startswith((f"{stats['bound']}-bound: ", "nothing measured"))
    if stats["transport"] == "shm":
        assert stats["bound"] != "network"
    assert 0 < stats["handover_s"] < 60
    expected = os.environ.get("FOREBAY_TRANSPORT") if source.startswith("forebay:") else None
    assert stats["transport"] == expected


def test_waiting_for_the_interpreter_is_handing_over(source: str) -> None:
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            pass

    interval = sys.getswitchinterval()
    other = threading.Thread(target=compute)
    sys.setswitchinterval(0.05)
    waits: list[float] = []
    try:
        other.start()
        # A batch that is ready at once needs no lock. On a busy machine the first one may be: then the next loader is tried.
        while len(waits) < 20 and (not waits or waits[-1] < 0.04):
            with loader(source) as it:
                next(iter(it))
                waits.append(it.stats()["handover_s"])
    finally:
        done.set()
        sys.setswitchinterval(interval)
        other.join()
    assert waits[-1] >= 0.04, waits


def test_batches_of_a_closed_loader_stay_while_another_goes_on(source: str) -> None:
    """The memory of both is a server's, which decodes common batches once."""
    with loader(source) as ended, loader(source) as other:
        kept = [(batch, content(batch)) for batch, _ in zip(ended, other, strict=True)]
        ended.close()
        for _ in range(10):
            for _batch in other:
                pass
    assert all(content(batch) == before for batch, before in kept)


def test_a_closed_loader(source: str) -> None:
    it = loader(source)
    batches = iter(it)
    batch = next(batches)
    assert not it.closed
    it.close()
    it.close()
    assert it.closed
    for use in (lambda: next(batches), lambda: iter(it), lambda: it.set_epoch(1)):
        with pytest.raises(forebay.ClosedError):
            use()
    assert batch.images.any(), "what was handed over stays"


def test_transforms_are_values() -> None:
    for a, b in (
        (forebay.TrainTransform(64, flip=0.0), forebay.TrainTransform(64)),
        (forebay.EvalTransform(64, resize=80), forebay.EvalTransform(64)),
    ):
        assert a != b
        assert a == pickle.loads(pickle.dumps(a)) == eval(repr(a), vars(forebay))
        assert hash(a) == hash(pickle.loads(pickle.dumps(a)))
    assert forebay.TrainTransform() == forebay.TrainTransform(224)
    assert repr(forebay.EvalTransform()) == "EvalTransform(224, resize=256)"


def test_a_loader_does_not_pickle(source: str) -> None:
    with loader(source) as it, pytest.raises(TypeError, match="process that uses it"):
        pickle.dumps(it)
