"""Lists of transforms: values, orders, and the same batches wherever they are made."""

from __future__ import annotations

import copy
import enum
import pickle
from typing import Any

import numpy as np
import pytest

import forebay
from test_loader import epochs, loader

EVERY = [
    forebay.RandomResizedCrop(32, scale=(0.2, 1.0)),
    forebay.RandomHorizontalFlip(),
    forebay.RandomVerticalFlip(0.25),
    forebay.ColorJitter(0.4, (0.5, 1.5), 0.4, hue=0.1),
    forebay.RandomGrayscale(0.2),
    forebay.RandAugment(2, 9, interpolation="bilinear", fill=(124, 116, 104)),
    forebay.TrivialAugmentWide(),
    forebay.AutoAugment("cifar10"),
    forebay.GaussianBlur((5, 3)),
    forebay.RandomRotation(20, interpolation="bilinear"),
    forebay.RandomAffine(5, (0.1, 0.2), (0.9, 1.1), (-3.0, 3.0), fill=9),
    forebay.RandomPhotometricDistort(p=0.7),
    forebay.Normalize(),
    forebay.RandomErasing(0.25, value="random"),
]
ALL = [*EVERY, forebay.RandomIoUCrop(0.2, sampler_options=(0.5, 1.0)), forebay.Resize(40), forebay.CenterCrop((32, 24)), forebay.Grayscale()]


@pytest.mark.parametrize("value", ALL, ids=lambda value: type(value).__name__)
def test_transforms_are_values(value: Any) -> None:
    again = eval(repr(value), vars(forebay))
    assert again == value and hash(again) == hash(value) and again is not value
    assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)
    assert type(value).__module__ == "forebay"
    with pytest.raises(AttributeError):
        value.size = 3
    assert value != forebay.RandomResizedCrop(33)


def test_sizes_and_bounds_are_written_out() -> None:
    assert forebay.RandomResizedCrop(5) == forebay.RandomResizedCrop((5, 5))
    assert forebay.Resize([8]) == forebay.Resize(8) != forebay.Resize((8, 8))  # type: ignore[arg-type]
    assert forebay.ColorJitter(0.4) == forebay.ColorJitter((0.6, 1.4))
    assert forebay.ColorJitter(2.0).brightness == (0.0, 3.0)
    assert forebay.ColorJitter(0, 0.0, hue=0) == forebay.ColorJitter()
    assert forebay.RandAugment(fill=7) == forebay.RandAugment(fill=(7, 7, 7)) != forebay.RandAugment()
    assert forebay.RandAugment(fill=[1.9, 2, 3]).fill == (1, 2, 3)  # type: ignore[arg-type]
    InterpolationMode = enum.Enum("InterpolationMode", {"BICUBIC": "bicubic"})
    assert forebay.TrivialAugmentWide(interpolation=InterpolationMode.BICUBIC).interpolation == "bicubic"  # type: ignore[arg-type]
    assert forebay.GaussianBlur(5, 1) == forebay.GaussianBlur((5, 5), (1.0, 1.0))
    assert forebay.RandomRotation(20) == forebay.RandomRotation((-20.0, 20.0))
    assert forebay.RandomAffine(0, shear=3).shear == (-3.0, 3.0, 0.0, 0.0)
    assert forebay.RandomIoUCrop(sampler_options=None) == forebay.RandomIoUCrop()
    assert forebay.RandomIoUCrop(sampler_options=[1]).sampler_options == (1.0,)  # type: ignore[arg-type]
    assert forebay.RandomErasing(value=1) == forebay.RandomErasing(value=(1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: forebay.RandomResizedCrop(0),
        lambda: forebay.RandomResizedCrop(-1),
        lambda: forebay.RandomResizedCrop(scale=(0.5, 0.1)),
        lambda: forebay.Resize((8, 1 << 20)),
        lambda: forebay.RandomHorizontalFlip(1.1),
        lambda: forebay.ColorJitter(-0.1),
        lambda: forebay.ColorJitter(hue=0.6),
        lambda: forebay.RandAugment(magnitude=31),
        lambda: forebay.RandAugment(-1),
        lambda: forebay.TrivialAugmentWide(1),
        lambda: forebay.RandAugment(interpolation="lanczos"),  # type: ignore[arg-type]
        lambda: forebay.TrivialAugmentWide(fill=256),
        lambda: forebay.TrivialAugmentWide(fill=(1, 2, -3)),
        lambda: forebay.AutoAugment("mnist"),  # type: ignore[arg-type]
        lambda: forebay.GaussianBlur(4),
        lambda: forebay.GaussianBlur(257),
        lambda: forebay.GaussianBlur(3, (2.0, 1.0)),
        lambda: forebay.GaussianBlur(3, 0.0),
        lambda: forebay.RandomRotation(-1),
        lambda: forebay.RandomIoUCrop(0.5, 0.4),
        lambda: forebay.RandomIoUCrop(sampler_options=()),
        lambda: forebay.RandomIoUCrop(sampler_options=(0.5, -1.0)),
        lambda: forebay.RandomIoUCrop(trials=0),
        lambda: forebay.RandomPhotometricDistort(hue=(-0.6, 0.1)),
        lambda: forebay.RandomAffine(0, (1.1, 0.0)),
        lambda: forebay.RandomAffine(0, scale=(0.0, 1.0)),
        lambda: forebay.RandomAffine(0, shear=90),
        lambda: forebay.Normalize(std=(1.0, 0.0, 1.0)),
        lambda: forebay.RandomErasing(value="noise"),  # type: ignore[arg-type]
        lambda: forebay.RandomErasing(ratio=(0.0, 1.0)),
    ],
)
def test_impossible_numbers_are_refused(make: Any) -> None:
    with pytest.raises(forebay.OptionError):
        make()


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "begin with RandomResizedCrop"),
        ([EVERY[1], EVERY[0]], "comes first"),
        ([forebay.Resize(32)], "CenterCrop"),
        ([EVERY[0], EVERY[-1], EVERY[1]], "last"),
        ([EVERY[0], EVERY[-2], EVERY[1]], "after Normalize"),
        ([EVERY[0], EVERY[-1], EVERY[-2]], "RandomErasing before Normalize"),
        ([EVERY[0], EVERY[-2], EVERY[-2]], "twice"),
        ([forebay.TrainTransform(32)], "alone"),
    ],
)
def test_orders_that_do_not_work_say_which_does(source: str, steps: Any, words: str) -> None:
    with pytest.raises(forebay.OptionError, match=words):
        loader(source, transform=steps)


def test_strangers_in_a_list_are_refused(source: str) -> None:
    with pytest.raises(TypeError, match="object"):
        loader(source, transform=[object()])


def test_crop_and_flip_are_the_train_transform(source: str) -> None:
    steps = [forebay.RandomResizedCrop(32), forebay.RandomHorizontalFlip()]
    assert epochs(source, transform=steps, shuffle=False) == epochs(source, shuffle=False)


def test_resize_and_crop_are_the_eval_transform(source: str) -> None:
    steps = [forebay.Resize(40), forebay.CenterCrop(32)]
    assert epochs(source, transform=steps, shuffle=False) == epochs(
        source, transform=forebay.EvalTransform(32, resize=40)
    )
    with loader(source, transform=[forebay.Resize((24, 36))], shuffle=False) as it:
        assert next(iter(it)).images.shape == (8, 24, 36, 3)


def test_a_crop_of_more_than_there_is_is_black_around_it(source: str) -> None:
    with loader(source, transform=[forebay.CenterCrop(40)], shuffle=True) as it:
        whole = np.array(next(iter(it)).images)
    # Every image is 60 wide and 48 high, or larger.
    with loader(source, transform=[forebay.CenterCrop((200, 40))], shuffle=True) as it:
        tall = np.array(next(iter(it)).images)
    assert (tall[:, :50] == 0).all() and (tall[:, -50:] == 0).all()
    # Odd heights are halved down there and to the nearest even number here, as torchvision does.
    for image, middle in zip(tall, whole, strict=True):
        assert any((image[top : top + 40] == middle).all() for top in (79, 80, 81))
    with loader(source, transform=[forebay.Resize(40), forebay.CenterCrop(64)], shuffle=True) as it:
        resized = np.array(next(iter(it)).images)
    assert resized.shape[1:] == (64, 64, 3) and (resized.max(axis=(1, 2, 3)) > 0).all()


def test_threads_and_servers_change_nothing(packed: dict[str, Any], serve: Any) -> None:
    path = packed["indexed"]
    options = {"transform": EVERY, "layout": "nchw", "dtype": "float16", "seed": 7}
    base = epochs(path, 2, threads=1, **options)
    assert base == epochs(path, 2, threads=3, **options)
    assert base == epochs(serve(path), 2, **options)
    assert base != epochs(path, 2, **{**options, "seed": 8})


def test_normalize_makes_numbers_that_a_model_takes(source: str) -> None:
    steps = [forebay.Resize(40), forebay.CenterCrop(32)]
    with loader(source, transform=steps, shuffle=True) as it:
        pixels = next(iter(it)).images
    with loader(source, transform=[*steps, forebay.Normalize()], shuffle=True) as it:
        batch = next(iter(it))
    assert batch.dtype == "float32"
    scaled = pixels.astype(np.float32) * np.float32(1 / 255)
    mean = np.array((0.485, 0.456, 0.406), np.float32)
    std = np.array((0.229, 0.224, 0.225), np.float32)
    assert (batch.images == (scaled - mean) / std).all()
    with pytest.raises(forebay.OptionError, match="uint8"):
        loader(source, transform=[*steps, forebay.Normalize()], shuffle=True, dtype="uint8")


def test_erasing_writes_the_value_after_normalisation(source: str) -> None:
    steps = [
        forebay.Resize((32, 32)),
        forebay.Normalize(),
        forebay.RandomErasing(1.0, value=(50.0, 60.0, 70.0)),
    ]
    with loader(source, transform=steps) as it:
        for batch in it:
            erased = (batch.images == (50.0, 60.0, 70.0)).all(axis=-1)
            assert erased.any(axis=(1, 2)).all() and not erased.all(axis=(1, 2)).any()
