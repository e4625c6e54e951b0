"""Transforms of torchvision in a list: what is equal becomes Forebay's own, and everything else is refused by name.

Equal means the pixels that torchvision gives for PIL images, with the same distribution of random numbers. Owns the
parameters of torchvision's classes, v1 and v2; torchvision itself is never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay import _ops as own
from forebay._errors import OptionError

# Pillow's numbers for interpolations, which v2 stores as they were given.
_INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

_LAYOUT = 'forebay.torch.Loader gives images as (N, 3, H, W), and forebay.Loader does with layout="nchw"'

_INSTEAD = {
    "ClampBoundingBoxes": "leave it out: boxes of a batch are cut at the border",
    "Compose": "give its list of transforms",
    "ConvertImageDtype": 'give the loader dtype="float32"',
    "CutMix": "give the loader batch_transform=forebay.CutMix(alpha), and take Batch.one_hot(num_classes) for labels",
    "MixUp": "give the loader batch_transform=forebay.Mixup(alpha), and take Batch.one_hot(num_classes) for labels",
    "PILToTensor": f"leave it out: {_LAYOUT}",
    "RandomChoice": "for batches, give the loader batch_transform=forebay.RandomChoice([...])",
    "RGB": "leave it out: all images are RGB",
    "SanitizeBoundingBoxes": "leave it out: empty boxes are left out of a batch, with their labels",
    "ToDtype": 'leave it out, and give the loader dtype="float32", which scales to 0..1',
    "ToImage": f"leave it out: {_LAYOUT}",
    "ToTensor": f'leave it out, and give the loader dtype="float32", which scales to 0..1: {_LAYOUT}',
}


class _Parameters:
    """The parameters of one transform; what is not asked for by the end is refused."""

    def __init__(self, item: Any) -> None:
        self.name = type(item).__name__
        self.rest = {name: value for name, value in vars(item).items() if not name.startswith("_")}
        # Whether a module is being trained changes none of these transforms.
        self.rest.pop("training", None)

    def refused(self, name: str, value: object, expected: str) -> OptionError:
        return OptionError(f"option transform: {name} of torchvision's {self.name} is {value!r}: expected {expected}")

    def take(self, name: str) -> Any:
        if name not in self.rest:
            raise OptionError(f"option transform: torchvision's {self.name} has no {name} in this release of it")
        return self.rest.pop(name)

    def must_be(self, name: str, wanted: object, why: str = "") -> None:
        value = self.take(name)
        if value is not wanted and (type(value) is not type(wanted) or value != wanted):
            raise self.refused(name, value, f"{wanted!r}{why}")

    def interpolation(self) -> str:
        value = self.take("interpolation")
        mode = getattr(value, "value", value)
        name = _INTERPOLATIONS.get(mode) if isinstance(mode, int) else mode
        if not isinstance(name, str):
            raise self.refused("interpolation", value, "'nearest', 'bilinear' or 'bicubic'")
        return name

    def antialiased(self) -> None:
        """Refuses all but the resize that Forebay has."""
        name = self.interpolation()
        if name != "bilinear":
            raise self.refused("interpolation", name, "'bilinear'")
        self.must_be("antialias", True, "; for pixels without it, give the loader resize_like='opencv' or 'tensorflow'")

    def size(self) -> Any:
        value = self.take("size")
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, Sequence) and len(value) in (1, 2):
            return tuple(value)
        raise self.refused("size", value, "a number of pixels, or height and width")

    def channels(self, name: str) -> Any:
        """A number for each channel; one is all three, as torchvision broadcasts it."""
        value = self.take(name)
        numbers = tuple(value) if isinstance(value, Sequence) else (value,)
        return numbers * 3 if len(numbers) == 1 else numbers

    def motion(self) -> dict[str, Any]:
        fill = self.take("fill")
        if isinstance(fill, Mapping):
            raise self.refused("fill", fill, "a number, three of them, or None")
        return {"interpolation": self.interpolation(), "fill": fill}


def _resized_crop(given: _Parameters) -> object:
    given.antialiased()
    return own.RandomResizedCrop(given.size(), given.take("scale"), given.take("ratio"))


def _resize(given: _Parameters) -> object:
    given.antialiased()
    given.must_be("max_size", None)
    return own.Resize(given.size())


def _jitter(given: _Parameters) -> object:
    return own.ColorJitter(*(given.take(name) for name in ("brightness", "contrast", "saturation", "hue")))


def _grayscale(given: _Parameters) -> object:
    given.must_be("num_output_channels", 3, ", as batches have three channels")
    return own.Grayscale()


def _rand_augment(given: _Parameters) -> object:
    numbers = [given.take(name) for name in ("num_ops", "magnitude", "num_magnitude_bins")]
    return own.RandAugment(*numbers, **given.motion())


def _trivial_augment(given: _Parameters) -> object:
    return own.TrivialAugmentWide(given.take("num_magnitude_bins"), **given.motion())


def _auto_augment(given: _Parameters) -> object:
    given.rest.pop("policies", None)  # of v1: those of the policy
    policy = given.take("policy")
    return own.AutoAugment(getattr(policy, "value", policy), **given.motion())


def _normalize(given: _Parameters) -> object:
    given.take("inplace")  # the result is the same
    return own.Normalize(given.channels("mean"), given.channels("std"))


def _erasing(given: _Parameters) -> object:
    given.take("inplace")
    value = given.take("value")
    if value is None:  # v2's word for it
        value = "random"
    if not isinstance(value, str):
        given.rest["value"] = value
        value = given.channels("value")
    return own.RandomErasing(given.take("p"), given.take("scale"), given.take("ratio"), value)


def _rotation(given: _Parameters) -> object:
    given.must_be("expand", False, ", as all images of a batch have one size")
    given.must_be("center", None)
    return own.RandomRotation(tuple(given.take("degrees")), **given.motion())


def _affine(given: _Parameters) -> object:
    given.must_be("center", None)
    degrees, translate, scale, shear = (given.take(name) for name in ("degrees", "translate", "scale", "shear"))
    return own.RandomAffine(tuple(degrees), translate, scale, shear, **given.motion())


def _iou_crop(given: _Parameters) -> object:
    names = ("min_scale", "max_scale", "min_aspect_ratio", "max_aspect_ratio")
    numbers = {name: given.take(name) for name in names}
    return own.RandomIoUCrop(**numbers, sampler_options=tuple(given.take("options")), trials=given.take("trials"))


def _distort(given: _Parameters) -> object:
    bounds: dict[str, Any] = {name: tuple(given.take(name)) for name in ("brightness", "contrast", "saturation", "hue")}
    return own.RandomPhotometricDistort(**bounds, p=given.take("p"))


_CONVERTED: dict[str, Callable[[_Parameters], object]] = {
    "AutoAugment": _auto_augment,
    "CenterCrop": lambda given: own.CenterCrop(given.size()),
    "ColorJitter": _jitter,
    "GaussianBlur": lambda given: own.GaussianBlur(given.take("kernel_size"), tuple(given.take("sigma"))),
    "Grayscale": _grayscale,
    "Normalize": _normalize,
    "RandAugment": _rand_augment,
    "RandomAffine": _affine,
    "RandomErasing": _erasing,
    "RandomGrayscale": lambda given: own.RandomGrayscale(given.take("p")),
    "RandomHorizontalFlip": lambda given: own.RandomHorizontalFlip(given.take("p")),
    "RandomIoUCrop": _iou_crop,
    "RandomPhotometricDistort": _distort,
    "RandomResizedCrop": _resized_crop,
    "RandomRotation": _rotation,
    "RandomVerticalFlip": lambda given: own.RandomVerticalFlip(given.take("p")),
    "Resize": _resize,
    "TrivialAugmentWide": _trivial_augment,
}


def _is_torchvisions(cls: type) -> bool:
    """Whether a class is torchvision's own, and not one of its name."""
    module = sys.modules.get(cls.__module__)
    return cls.__module__.startswith("torchvision.transforms.") and getattr(module, cls.__name__, None) is cls


def convert(item: Any) -> object:
    """The transform of Forebay that does the same as one of torchvision."""
    cls = type(item)
    of_torchvision = next((base for base in cls.__mro__ if _is_torchvisions(base)), None)
    if of_torchvision is None:
        raise TypeError(
            f"option transform: a {cls.__name__} in a list of transforms: expected forebay.RandomResizedCrop, "
            "forebay.RandomHorizontalFlip and the like, or those of torchvision"
        )
    name = of_torchvision.__name__
    if cls is not of_torchvision:
        raise OptionError(
            f"option transform: {cls.__name__} is derived from torchvision's {name} and may do something else: "
            f"expected {name} itself; functions of your own go into forebay.Mapped"
        )
    converter = _CONVERTED.get(name)
    if converter is None:
        expected = _INSTEAD.get(name, f"expected {', '.join(_CONVERTED)}; functions of your own go into forebay.Mapped")
        raise OptionError(f"option transform: torchvision's {name} cannot be in the list: {expected}")
    if any(getattr(item, hooks, None) for hooks in ("_forward_hooks", "_forward_pre_hooks")):
        raise OptionError(f"option transform: torchvision's {name} has hooks, which a loader cannot call: remove them")
    given = _Parameters(item)
    try:
        made = converter(given)
    except (TypeError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"option transform: torchvision's {name}: {error}") from error
    for unknown, value in given.rest.items():
        raise OptionError(f"option transform: {unknown} of torchvision's {name} is {value!r}: expected no such parameter")
    return made
