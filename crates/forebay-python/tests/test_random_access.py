"""Map-style datasets: against a `Loader`, and in the packages that bring samplers and workers of their own."""

from __future__ import annotations

import pathlib
import pickle
import random
from typing import Any

import numpy as np
import pytest

import forebay
from conftest import Packed
from test_loader import SMALL, TOTAL

EVAL = forebay.EvalTransform(32, resize=40)


def of(path: pathlib.Path, transform: Any = EVAL, **options: Any) -> forebay.RandomAccessDataset:
    return forebay.open(path).split("train").dataset(transform, **options)


def test_items_are_the_samples_of_a_loader(dataset: pathlib.Path) -> None:
    made = of(dataset, SMALL, seed=7)
    assert len(made) == TOTAL
    for epoch in (0, 3):
        made.set_epoch(epoch)
        with forebay.Loader(dataset, batch_size=TOTAL, transform=SMALL, seed=7) as loader:
            loader.set_epoch(epoch)
            batch = next(iter(loader))
        items = made.__getitems__(batch.samples.tolist())
        for (image, label), want, of_label in zip(items, batch.images, batch.labels, strict=True):
            np.testing.assert_array_equal(image, want)
            assert label == of_label
        np.testing.assert_array_equal(made[int(batch.samples[5])][0], batch.images[5])


def test_any_order_with_repetitions(dataset: pathlib.Path) -> None:
    made = of(dataset, seed=1, layout="nchw", threads=2)
    every = [made[number] for number in range(TOTAL)]
    wanted = [5, 3, 41, 3, -1, 0, 5]
    for (image, label), number in zip(made.__getitems__(wanted), wanted, strict=True):
        assert image.shape == (3, 32, 32) and label == every[number][1]
        np.testing.assert_array_equal(image, every[number][0])
    assert made.__getitems__([]) == []
    np.testing.assert_array_equal(made[np.int64(7)][0], every[7][0])
    assert len([label for _, label in made]) == TOTAL  # type: ignore[attr-defined]


def test_each_access_is_random_without_a_seed(packed: Packed) -> None:
    made = of(packed["indexed"], SMALL)
    first, again, other = made.__getitems__([3, 3, 4])
    assert not np.array_equal(first[0], again[0]) and first[1] == again[1]
    random.seed(1)
    one = made[3][0]
    assert not np.array_equal(one, made[3][0])
    random.seed(1)
    np.testing.assert_array_equal(one, made[3][0])
    made.set_epoch(2)  # frameworks call it for every dataset
    del other


def test_encoded_images_and_columns(packed: Packed) -> None:
    records = forebay.open(packed["indexed"]).split("train")
    made = records.dataset(forebay.KeepEncoded())
    assert made.__getitems__([4, 2]) == [(records[n].image, records[n].label - 1) for n in (4, 2)]  # type: ignore[operator]
    made = records[4:20:3].dataset(forebay.KeepEncoded(), label_base="stored", columns=["image/width"])
    assert [(label, width) for _, label, width in made] == [  # type: ignore[attr-defined]
        (records[n].label, records[n].features["image/width"][0]) for n in range(4, 20, 3)
    ]


def test_mistakes(packed: Packed, tmp_path: pathlib.Path) -> None:
    records = forebay.open(packed["indexed"]).split("train")
    made = records[:6].dataset(EVAL)
    for wrong in (6, -7):
        with pytest.raises(IndexError, match=f"no sample {wrong}: there are 6"):
            made[wrong]
    with pytest.raises(forebay.OptionError, match="choose transform="):
        records.dataset()
    with pytest.raises(forebay.OptionError, match="seed is -1"):
        records.dataset(EVAL, seed=-1)
    with pytest.raises(forebay.OptionError, match="threads is 0"):
        records.dataset(EVAL, threads=0)
    with pytest.raises(TypeError, match="batch_size"):
        records.dataset(EVAL, batch_size=4)
    with pytest.raises(forebay.OptionError, match="resize_like"):
        records.dataset(EVAL, resize_like="gimp")
    with pytest.raises(forebay.OptionError, match="columns"):
        made = records.dataset(EVAL, columns=["nothing"])
        made[0]


def test_a_copy_in_another_process_gives_the_same(packed: Packed) -> None:
    made = of(packed["indexed"], SMALL, seed=3)
    made.set_epoch(5)
    copy = pickle.loads(pickle.dumps(made))
    assert repr(copy) == repr(made)
    np.testing.assert_array_equal(copy[9][0], made[9][0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_in_workers_of_a_data_loader(packed: Packed, start: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    made = of(packed["indexed"], SMALL, seed=3)
    options = {"num_workers": 2, "multiprocessing_context": start, "persistent_workers": True}
    parts = [data.DistributedSampler(made, num_replicas=2, rank=rank, shuffle=True) for rank in (0, 1)]
    loaders = [data.DataLoader(made, batch_size=5, sampler=part, **(options if part is parts[0] else {})) for part in parts]
    for epoch in (0, 1):
        made.set_epoch(epoch)
        seen = []
        for part, loader in zip(parts, loaders, strict=True):
            part.set_epoch(epoch)
            order = list(part)
            images = [image for images, _ in loader for image in images]
            for number, image in zip(order, images, strict=True):
                np.testing.assert_array_equal(image, made[number][0])
            seen += order
        assert sorted(seen) == list(range(TOTAL))


def test_workers_draw_other_numbers_without_a_seed(packed: Packed) -> None:
    torch = pytest.importorskip("torch")

    def pass_over() -> list[bytes]:
        loader = torch.utils.data.DataLoader(of(packed["indexed"], SMALL), batch_size=7, num_workers=2, sampler=[3] * 28)
        torch.manual_seed(4)
        return [image.numpy().tobytes() for images, _ in loader for image in images]

    first = pass_over()
    assert len(set(first)) == 28
    assert pass_over() == first


def test_grain(packed: Packed) -> None:
    grain = pytest.importorskip("grain")
    made = of(packed["indexed"], SMALL, seed=3)
    assert isinstance(made, grain.sources.RandomAccessDataSource)
    shuffled = grain.MapDataset.source(made).seed(1).shuffle().batch(7)
    batches = list(shuffled.to_iter_dataset())
    assert [images.shape for images, _ in batches] == [(7, 32, 32, 3)] * 6
    want = sorted(made[number][0].tobytes() for number in range(TOTAL))
    assert sorted(image.tobytes() for images, _ in batches for image in images) == want
    # Its iterator is saved, and continues.
    iterator = iter(shuffled.to_iter_dataset())
    next(iterator), next(iterator)
    state = iterator.get_state()
    again = iter(shuffled.to_iter_dataset())
    again.set_state(state)
    for (images, labels), (want_images, want_labels) in zip(again, batches[2:], strict=True):
        np.testing.assert_array_equal(images, want_images)
        np.testing.assert_array_equal(labels, want_labels)


def test_hugging_face_datasets(packed: Packed) -> None:
    datasets = pytest.importorskip("datasets")
    distributed = pytest.importorskip("datasets.distributed")
    made = of(packed["indexed"], columns=["image/width"])
    iterable = made.to_hf_iterable(shards=4)
    assert isinstance(iterable, datasets.IterableDataset) and iterable.num_shards == 4
    every = list(iterable)
    assert [example["label"] for example in every] == [made[number][1] for number in range(TOTAL)]
    np.testing.assert_array_equal(every[8]["image"], made[8][0])
    parts = [list(distributed.split_dataset_by_node(iterable, rank, 2)) for rank in (0, 1)]
    widths = sorted(int(example["image/width"]) for part in parts for example in part)
    assert widths == sorted(int(example["image/width"]) for example in every)
    shuffled = iterable.shuffle(seed=3, buffer_size=10)
    assert sorted(int(example["image/width"]) for example in shuffled) == widths
    with pytest.raises(forebay.OptionError, match='"image" and "label" are the names'):
        of(packed["indexed"], columns=["label"]).to_hf_iterable()
    # Its state is saved, and continues.
    walk = iter(iterable)
    for _ in range(13):
        next(walk)
    again = made.to_hf_iterable(shards=4)
    again.load_state_dict(iterable.state_dict())
    assert [int(example["image/width"]) for example in again] == [int(example["image/width"]) for example in every[13:]]
