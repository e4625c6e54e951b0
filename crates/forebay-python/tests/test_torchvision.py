"""Transforms of torchvision in a list: equal pixels, or an error that names the parameter."""

from __future__ import annotations

import io
import os
import pathlib
import re
from typing import Any

import numpy as np
import pytest

import forebay
from test_loader import loader

FAMILIES = ["v1", "v2"]


def family(name: str) -> Any:
    """torchvision.transforms, or torchvision.transforms.v2."""
    pytest.importorskip("torchvision")
    if name == "v1":
        import torchvision.transforms as transforms
    else:
        import torchvision.transforms.v2 as transforms
    return transforms


def loaded(source: str | os.PathLike[str], transform: list[Any], **options: Any) -> np.ndarray:
    with loader(source, transform=transform, shuffle=False, drop_last=False, batch_size=6, **options) as it:
        return np.concatenate([batch.images[~batch.padding] for batch in it])


def pictures(packed: dict[str, pathlib.Path]) -> list[Any]:
    from PIL import Image

    records = forebay.open(packed["indexed"]).split("train")
    return [Image.open(io.BytesIO(record.image)).convert("RGB") for record in records]


@pytest.fixture(autouse=True)
def columns_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes Pillow resize columns before rows, as its versions 11 and 12 do and Forebay does. Version 13 begins with the rows
    of most images that shrink more in height than in width, which moves some values by one level."""
    image = pytest.importorskip("PIL.Image")
    resize = image.Image.resize

    def in_order(self: Any, size: Any, resample: Any = None, *args: Any, **options: Any) -> Any:
        if resample == image.Resampling.BILINEAR and not args and not options:
            self = resize(self, (size[0], self.height), resample)
        return resize(self, size, resample, *args, **options)

    monkeypatch.setattr(image.Image, "resize", in_order)


@pytest.mark.parametrize("name", FAMILIES)
def test_pixels_are_those_of_torchvision(name: str, packed: dict[str, pathlib.Path]) -> None:
    """For transforms that leave nothing to chance, on PIL images."""
    t = family(name)
    whole = [t.Resize(40), t.CenterCrop((32, 36))]
    lists = [
        whole,
        [t.Resize([36]), t.CenterCrop(32)],
        [t.Resize((24, 36))],
        [t.CenterCrop(40)],
        [t.CenterCrop([70])],
        [t.Resize(40, interpolation=t.InterpolationMode.BILINEAR, antialias=True), t.CenterCrop(32)],
        [*whole, t.RandomHorizontalFlip(p=1.0)],
        [*whole, t.RandomVerticalFlip(1)],
        [*whole, t.RandomHorizontalFlip(0.0), t.RandomVerticalFlip(p=0)],
        [*whole, t.ColorJitter(brightness=(1.3, 1.3))],
        [*whole, t.ColorJitter(contrast=[0.4, 0.4])],
        [*whole, t.ColorJitter(saturation=(1.7, 1.7)), t.ColorJitter(hue=(-0.2, -0.2))],
        [*whole, t.ColorJitter()],
        [*whole, t.Grayscale(3)],
        [*whole, t.RandomGrayscale(p=1.0)],
        [*whole, t.RandAugment(num_ops=0)],
    ]
    if name == "v2":
        lists += [
            [t.Resize(40, interpolation="bilinear"), t.CenterCrop(32)],
            [t.Resize(40, interpolation=2), t.CenterCrop(32)],
        ]
    images = pictures(packed)
    for transforms in lists:
        expected = []
        for image in images:
            for transform in transforms:
                image = transform(image)
            expected.append(np.asarray(image))
        assert np.array_equal(loaded(packed["indexed"], transforms), np.stack(expected)), transforms


@pytest.mark.parametrize("name", FAMILIES)
def test_normalized_pixels_are_those_of_torchvision(name: str, packed: dict[str, pathlib.Path]) -> None:
    t = family(name)
    import torch
    from torchvision.transforms.v2.functional import pil_to_tensor, to_dtype

    for mean, std in [((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ([0.5], [0.25])]:
        for inplace in (False, True):
            transforms = [t.Resize((24, 36)), t.Normalize(mean, std, inplace=inplace)]
            expected = []
            for image in pictures(packed):
                values = to_dtype(pil_to_tensor(transforms[0](image)), torch.float32, scale=True)
                expected.append(transforms[1](values).numpy())
            found = loaded(packed["indexed"], transforms, layout="nchw")
            assert found.dtype == np.float32 and np.array_equal(found, np.stack(expected))


@pytest.mark.parametrize("name", FAMILIES)
def test_random_transforms_are_forebays_of_the_same_parameters(name: str, source: str) -> None:
    t = family(name)
    modes = t.InterpolationMode
    whole, ours = [t.Resize((32, 32))], [forebay.Resize((32, 32))]
    pairs: list[tuple[list[Any], list[Any]]] = [
        ([t.RandomResizedCrop(32)], [forebay.RandomResizedCrop(32)]),
        (
            [t.RandomResizedCrop((24, 32), scale=(0.3, 0.5), ratio=[1.0, 2.0])],
            [forebay.RandomResizedCrop((24, 32), (0.3, 0.5), (1.0, 2.0))],
        ),
        ([t.RandomResizedCrop([24])], [forebay.RandomResizedCrop(24)]),
        ([*whole, t.RandomHorizontalFlip()], [*ours, forebay.RandomHorizontalFlip()]),
        ([*whole, t.RandomVerticalFlip(0.3)], [*ours, forebay.RandomVerticalFlip(0.3)]),
        ([*whole, t.ColorJitter(0.4, 0.3, (0.5, 2.0), 0.1)], [*ours, forebay.ColorJitter(0.4, 0.3, (0.5, 2.0), 0.1)]),
        ([*whole, t.RandomGrayscale(0.4)], [*ours, forebay.RandomGrayscale(0.4)]),
        ([*whole, t.RandAugment()], [*ours, forebay.RandAugment()]),
        (
            [*whole, t.RandAugment(3, 12, 20, interpolation=modes.BICUBIC, fill=[124, 116, 104])],
            [*ours, forebay.RandAugment(3, 12, 20, "bicubic", (124, 116, 104))],
        ),
        ([*whole, t.RandAugment(fill=7.9)], [*ours, forebay.RandAugment(fill=7)]),
        (
            [*whole, t.TrivialAugmentWide(11, modes.BILINEAR, fill=[9])],
            [*ours, forebay.TrivialAugmentWide(11, "bilinear", 9)],
        ),
        ([*whole, t.AutoAugment()], [*ours, forebay.AutoAugment()]),
        (
            [*whole, t.AutoAugment(t.AutoAugmentPolicy.SVHN, modes.BICUBIC, fill=7)],
            [*ours, forebay.AutoAugment("svhn", "bicubic", 7)],
        ),
        ([*whole, t.GaussianBlur(5)], [*ours, forebay.GaussianBlur(5)]),
        ([*whole, t.RandomRotation(20)], [*ours, forebay.RandomRotation(20)]),
        (
            [*whole, t.RandomRotation((5, 90), modes.BILINEAR, fill=[1, 2, 3])],
            [*ours, forebay.RandomRotation((5, 90), "bilinear", (1, 2, 3))],
        ),
        ([*whole, t.RandomAffine(0, shear=7)], [*ours, forebay.RandomAffine(0, shear=7)]),
        (
            [*whole, t.RandomAffine((1, 9), (0.1, 0.2), (0.8, 1.3), (-3, 3, 2, 4), modes.BICUBIC, 9)],
            [*ours, forebay.RandomAffine((1, 9), (0.1, 0.2), (0.8, 1.3), (-3, 3, 2, 4), "bicubic", 9)],
        ),
        *(
            [([*whole, t.RandomPhotometricDistort((0.5, 1.5), p=0.9)], [*ours, forebay.RandomPhotometricDistort((0.5, 1.5), p=0.9)])]
            if name == "v2"
            else []
        ),
        ([*whole, t.GaussianBlur((3, 7), 1.5)], [*ours, forebay.GaussianBlur((3, 7), (1.5, 1.5))]),
        (
            [*whole, t.Normalize((0.1, 0.2, 0.3), (1, 2, 3)), t.RandomErasing(0.7, (0.1, 0.2), (0.5, 2.0), "random")],
            [*ours, forebay.Normalize((0.1, 0.2, 0.3), (1, 2, 3)), forebay.RandomErasing(0.7, (0.1, 0.2), (0.5, 2.0), "random")],
        ),
        ([*whole, t.RandomErasing(1.0, value=5, inplace=True)], [*ours, forebay.RandomErasing(1.0, value=5)]),
        ([*whole, t.RandomErasing(value=(1, 2, 3))], [*ours, forebay.RandomErasing(value=(1, 2, 3))]),
    ]  # fmt: skip
    for theirs, same in pairs:
        assert np.array_equal(loaded(source, theirs), loaded(source, same)), theirs


@pytest.mark.parametrize("name", FAMILIES)
def test_other_parameters_are_refused_by_name(name: str, packed: dict[str, pathlib.Path]) -> None:
    t = family(name)
    modes = t.InterpolationMode
    first = t.Resize((32, 32))
    cases: list[tuple[list[Any], str]] = [
        ([t.RandomResizedCrop(32, interpolation=modes.BICUBIC)], "interpolation of torchvision's RandomResizedCrop is 'bicubic'"),
        ([t.RandomResizedCrop(32, interpolation=modes.NEAREST)], "RandomResizedCrop is 'nearest': expected 'bilinear'"),
        ([t.RandomResizedCrop(32, antialias=False)], "antialias of torchvision's RandomResizedCrop is False"),
        ([t.RandomResizedCrop(32, antialias=None)], "antialias of torchvision's RandomResizedCrop is None"),
        ([t.Resize((32, 32), interpolation=modes.LANCZOS)], "interpolation of torchvision's Resize is 'lanczos'"),
        ([t.Resize((32, 32), antialias=False)], "antialias of torchvision's Resize is False"),
        ([t.Resize(32, max_size=40), t.CenterCrop(32)], "max_size of torchvision's Resize is 40: expected None"),
        ([first, t.Grayscale()], "num_output_channels of torchvision's Grayscale is 1: expected 3"),
        ([first, t.RandAugment(interpolation=modes.NEAREST_EXACT)], "nearest-exact"),
        ([first, t.RandAugment(magnitude=40)], "magnitude"),
        ([first, t.TrivialAugmentWide(fill=300)], "fill|TrivialAugmentWide"),
        ([first, t.Normalize([0.5, 0.5], [0.5, 0.5])], "mean|Normalize"),
        ([first, t.RandomHorizontalFlip(p=1.0), t.RandomPerspective()], "torchvision's RandomPerspective cannot be in the list"),
        ([first, t.RandomRotation(10, expand=True)], "expand of torchvision's RandomRotation is True: expected False"),
        ([first, t.RandomAffine(10, center=(1, 2))], r"center of torchvision's RandomAffine is .1, 2.: expected None"),
        ([t.Compose([first])], "torchvision's Compose cannot be in the list: give its list"),
        ([first, t.AugMix()], "AugMix cannot be in the list"),
    ]  # fmt: skip
    if name == "v1":  # v2's warns that it is deprecated
        cases.append(([first, t.ToTensor()], 'ToTensor .* dtype="float32".* forebay.torch.Loader gives .* layout="nchw"'))
    else:
        cases.append(([first, t.ToImage()], 'ToImage .* forebay.torch.Loader gives .* layout="nchw"'))
        import torch

        cases += [
            ([first, t.RandAugment(fill={"others": 0})], "fill of torchvision's RandAugment is {'others': 0}"),
            ([t.RandomResizedCrop(32, interpolation=3)], "interpolation of torchvision's RandomResizedCrop is 'bicubic'"),
            ([t.Resize(None, max_size=40)], "max_size of torchvision's Resize is 40|size of torchvision's Resize is None"),
            ([first, t.ToDtype(torch.float32, scale=True)], 'dtype="float32"'),
        ]
    hooked = t.RandomHorizontalFlip()
    hooked.register_forward_hook(lambda module, given, made: made)
    patched = t.RandomHorizontalFlip()
    patched.transform = patched.forward = lambda image: image
    cases += [
        ([first, hooked], "RandomHorizontalFlip has hooks"),
        ([first, patched], "of torchvision's RandomHorizontalFlip is <function"),
    ]
    for transforms, message in cases:
        with pytest.raises(forebay.OptionError, match=message):
            loader(packed["indexed"], transform=transforms)


@pytest.mark.parametrize("name", FAMILIES)
def test_subclasses_are_refused(name: str, packed: dict[str, pathlib.Path]) -> None:
    t = family(name)

    class RandomHorizontalFlip(t.RandomHorizontalFlip):  # type: ignore[misc,name-defined]
        def forward(self, *images: Any) -> Any:
            return images[0]

    words = "RandomHorizontalFlip is derived from torchvision's RandomHorizontalFlip"
    with pytest.raises(forebay.OptionError, match=words):
        loader(packed["indexed"], transform=[t.Resize((32, 32)), RandomHorizontalFlip()])


def test_mixing_of_torchvision_is_refused(packed: dict[str, pathlib.Path]) -> None:
    t = family("v2")
    for transform in (t.CutMix(num_classes=3), t.MixUp(num_classes=3), t.RandomChoice([t.CutMix(num_classes=3)])):
        with pytest.raises(TypeError, match=re.escape("expected forebay.Mixup, forebay.CutMix or forebay.RandomChoice")):
            loader(packed["indexed"], batch_transform=transform)


def test_classes_of_the_same_names_are_refused(packed: dict[str, pathlib.Path]) -> None:
    """A class is more than its name: another library's may take other parameters."""

    class Grayscale:
        num_output_channels = 1

    class CutMix:
        alpha = 1.0

    class Resize(forebay.Resize):
        pass

    with pytest.raises(TypeError, match="a Grayscale in a list of transforms: expected forebay.RandomResizedCrop"):
        loader(packed["indexed"], transform=[forebay.Resize((32, 32)), Grayscale()])
    with pytest.raises(TypeError, match="expected forebay.Mixup"):
        loader(packed["indexed"], batch_transform=CutMix())
    with pytest.raises(TypeError, match="Resize"):
        loader(packed["indexed"], transform=[Resize((32, 32))])
