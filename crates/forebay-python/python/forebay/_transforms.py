"""The transforms of a list, as values: they compare, hash, print and pickle.

What they do is native; each is checked when it is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeAlias

from forebay._forebay import _check_batch_transform, _check_transform

__all__ = [
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "GaussianBlur",
    "Grayscale",
    "Mixup",
    "Normalize",
    "RandAugment",
    "RandomChoice",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "TrivialAugmentWide",
]

_Size: TypeAlias = int | tuple[int, int]
_Bounds: TypeAlias = tuple[float, float]


class _Value:
    """What is common: a transform is checked once it is made, and cannot change."""

    __slots__ = ()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _name(mode: object) -> object:
    """The name of an interpolation, also of an enumeration's member."""
    return getattr(mode, "value", mode)


def _color(fill: float | Sequence[float] | None) -> tuple[int, ...] | None:
    """Red, green and blue, whole as torchvision makes them; one number is all three."""
    if fill is None:
        return None
    numbers = tuple(map(int, fill)) if isinstance(fill, Sequence) else (int(fill),)
    return numbers * 3 if len(numbers) == 1 else numbers


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    """A height and a width; one number is both."""
    if isinstance(size, Sequence):
        if len(size) == 1:
            return (size[0], size[0])
        height, width = size
        return (height, width)
    return (size, size)


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(_Value):
    """A random part of the image, resized. The first transform of a list for training.

    As torchvision's, with the filter of the loader's profile. Only that part is decoded.

    Parameters
    ----------
    size : int or tuple of int, default 224
        Height and width of the output in pixels; one number is both.
    scale : tuple of float, default (0.08, 1.0)
        Least and greatest area of the part, of the image's.
    ratio : tuple of float, default (3/4, 4/3)
        Least and greatest width / height of the part.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    size: _Size = 224
    scale: _Bounds = (0.08, 1.0)
    ratio: _Bounds = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        self._set("size", _pair(self.size))
        self._set("scale", tuple(self.scale))
        self._set("ratio", tuple(self.ratio))
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class Resize(_Value):
    """The whole image, resized. The first transform of a list for validation.

    Parameters
    ----------
    size : int or tuple of int
        The short side in pixels, where the other side follows and `CenterCrop` has to come
        next; or height and width, whatever the image's.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    size: _Size

    def __post_init__(self) -> None:
        if isinstance(self.size, Sequence):
            self._set("size", self.size[0] if len(self.size) == 1 else tuple(self.size))
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class CenterCrop(_Value):
    """The middle of the image: right after `Resize`, or first in a list. Only that part is decoded.

    Where there is less than that, it is black around it, as in torchvision's `CenterCrop`.

    Parameters
    ----------
    size : int or tuple of int
        Height and width in pixels; one number is both.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    size: _Size

    def __post_init__(self) -> None:
        self._set("size", _pair(self.size))
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(_Value):
    """Left becomes right, sometimes. Next to the resize it costs nothing.

    Parameters
    ----------
    p : float, default 0.5
        Probability.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class RandomVerticalFlip(_Value):
    """Top becomes bottom, sometimes.

    Parameters
    ----------
    p : float, default 0.5
        Probability.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class ColorJitter(_Value):
    """Brightness, contrast, saturation and hue, in random order, each by a random factor.

    Bit for bit what torchvision's functions give for these factors on PIL images.

    Parameters
    ----------
    brightness, contrast, saturation : float or tuple of float or None, default None
        Least and greatest factor, where 1 is no change; a number `x` is (max(0, 1 - x), 1 + x).
        0 and None are no change at all.
    hue : float or tuple of float or None, default None
        Least and greatest part of a turn, -0.5 to 0.5; a number `x` is (-x, x).

    Raises
    ------
    OptionError
        A value out of its range.
    """

    brightness: float | _Bounds | None = None
    contrast: float | _Bounds | None = None
    saturation: float | _Bounds | None = None
    hue: float | _Bounds | None = None

    def __post_init__(self) -> None:
        for name, center in (("brightness", 1.0), ("contrast", 1.0), ("saturation", 1.0), ("hue", 0.0)):
            self._set(name, self._bounds(getattr(self, name), center))
        _check_transform(self)

    @staticmethod
    def _bounds(value: float | _Bounds | None, center: float) -> _Bounds | None:
        if value is None:
            return None
        if isinstance(value, Sequence):
            low, high = value
        elif value < 0:
            # Refused by the check, which names it.
            low, high = center + abs(value), center - abs(value)
        else:
            low, high = center - value, center + value
            if center:
                low = max(low, 0.0)
        return None if low == high == center else (float(low), float(high))


@dataclasses.dataclass(frozen=True)
class Grayscale(_Value):
    """Luma in all three channels, as PIL's conversion to "L" gives it."""

    def __post_init__(self) -> None:
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class RandomGrayscale(_Value):
    """Luma in all three channels, sometimes.

    Parameters
    ----------
    p : float, default 0.1
        Probability.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class RandAugment(_Value):
    """Some operations drawn from fourteen, all of one magnitude.

    torchvision's set of operations, magnitudes and distribution; each operation bit for bit as
    it is there on PIL images.

    Parameters
    ----------
    num_ops : int, default 2
        How many operations, one after the other.
    magnitude : int, default 9
        Which bin of magnitudes, from 0.
    num_magnitude_bins : int, default 31
        How many bins there are.
    interpolation : {"nearest", "bilinear", "bicubic"}, default "nearest"
        Of operations that shear, shift and turn. torchvision's `InterpolationMode` is taken too.
    fill : int or sequence of int, optional
        What they bring in from outside, 0 to 255: a grey, or red, green and blue. By default black.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "nearest"
    fill: int | tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        self._set("interpolation", _name(self.interpolation))
        self._set("fill", _color(self.fill))
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class TrivialAugmentWide(_Value):
    """One operation drawn from fourteen, of a magnitude drawn from a wide range.

    As torchvision's; see `RandAugment`.

    Parameters
    ----------
    num_magnitude_bins : int, default 31
        How many bins of magnitudes there are.
    interpolation : {"nearest", "bilinear", "bicubic"}, default "nearest"
        See `RandAugment`.
    fill : int or sequence of int, optional
        See `RandAugment`.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    num_magnitude_bins: int = 31
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "nearest"
    fill: int | tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        self._set("interpolation", _name(self.interpolation))
        self._set("fill", _color(self.fill))
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class AutoAugment(_Value):
    """One of 25 learned pairs of operations, each operation with its own probability and magnitude.

    torchvision's policies; each operation bit for bit as it is there on PIL images.

    Parameters
    ----------
    policy : {"imagenet", "cifar10", "svhn"}, default "imagenet"
        The dataset for which the pairs were learned. torchvision's `AutoAugmentPolicy` is accepted too.
    interpolation : {"nearest", "bilinear", "bicubic"}, default "nearest"
        See `RandAugment`.
    fill : int or sequence of int, optional
        See `RandAugment`.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet"
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "nearest"
    fill: int | tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        self._set("policy", _name(self.policy))
        self._set("interpolation", _name(self.interpolation))
        self._set("fill", _color(self.fill))
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class GaussianBlur(_Value):
    """Blur with a Gaussian kernel, whose standard deviation is drawn uniformly.

    torchvision's kernel and reflected borders. Values differ from torchvision's by at most one
    level, in at most one of 10,000: its own sums depend on the processor.

    Parameters
    ----------
    kernel_size : int or tuple of int
        Width and height of the kernel in pixels, odd, at most 255; one number is both.
    sigma : float or tuple of float, default (0.1, 2.0)
        Bounds of the standard deviation in pixels; one number is both.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    kernel_size: _Size
    sigma: float | _Bounds = (0.1, 2.0)

    def __post_init__(self) -> None:
        self._set("kernel_size", _pair(self.kernel_size))
        sigma = self.sigma if isinstance(self.sigma, Sequence) else (self.sigma, self.sigma)
        self._set("sigma", tuple(map(float, sigma)))
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class Normalize(_Value):
    """`(value - mean) / std` for each channel, where values are 0 to 1.

    Before `RandomErasing`, after everything else, and not for a dtype of uint8: where the
    loader is given none, it is float32. The numbers are bit for bit those of torchvision's
    `ToDtype(torch.float32, scale=True)` and `Normalize`.

    Parameters
    ----------
    mean : sequence of float, default (0.485, 0.456, 0.406)
        Of red, green and blue.
    std : sequence of float, default (0.229, 0.224, 0.225)
        Of red, green and blue.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        self._set("mean", tuple(self.mean))
        self._set("std", tuple(self.std))
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class RandomErasing(_Value):
    """A random rectangle written over, sometimes. The last transform of a list.

    Parameters
    ----------
    p : float, default 0.5
        Probability.
    scale : tuple of float, default (0.02, 0.33)
        Least and greatest area of the rectangle, of the output's.
    ratio : tuple of float, default (0.3, 3.3)
        Least and greatest height / width of the rectangle.
    value : float or sequence of float or "random", default 0
        What is written, in the units of the output, after `Normalize`; or three numbers, for
        red, green and blue. "random" is noise: of the standard normal distribution, or any
        byte for uint8.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    p: float = 0.5
    scale: _Bounds = (0.02, 0.33)
    ratio: _Bounds = (0.3, 3.3)
    value: float | tuple[float, float, float] | Literal["random"] = 0.0

    def __post_init__(self) -> None:
        self._set("scale", tuple(self.scale))
        self._set("ratio", tuple(self.ratio))
        value = self.value
        if isinstance(value, (int, float)):
            value = (value, value, value)
        self._set("value", value if isinstance(value, str) else tuple(map(float, value)))
        _check_transform(self)


@dataclasses.dataclass(frozen=True)
class Mixup(_Value):
    """Each sample of a batch becomes a weighted sum of itself and the one before it.

    For `batch_transform` of a loader. The share of the sample itself is one number for the
    whole batch, of the distribution Beta(alpha, alpha).

    Parameters
    ----------
    alpha : float, default 1.0
        Of the distribution: at 1 all shares are as probable, below it those near 0 and 1 are
        more so.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check_batch_transform(self)


@dataclasses.dataclass(frozen=True)
class CutMix(_Value):
    """A rectangle of each sample of a batch is that of the one before it.

    For `batch_transform` of a loader. The rectangle is one for the whole batch; the part that is
    kept is of the distribution Beta(alpha, alpha) before it is cut at the border.

    Parameters
    ----------
    alpha : float, default 1.0
        Of the distribution.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check_batch_transform(self)


@dataclasses.dataclass(frozen=True)
class RandomChoice(_Value):
    """One of several ways to mix a batch, drawn anew for each batch.

    For `batch_transform` of a loader.

    Parameters
    ----------
    transforms : sequence of Mixup, CutMix or None
        The ways; None leaves the batch as it is.
    p : sequence of float, optional
        How often each is drawn, in proportion; by default all as often.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    transforms: Sequence[Mixup | CutMix | None]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        self._set("transforms", tuple(self.transforms))
        weights = self.p if self.p is not None else [1.0] * len(self.transforms)
        self._set("p", tuple(map(float, weights)))
        _check_batch_transform(self)


# Where users find them; pickle looks there.
for _each in __all__:
    globals()[_each].__module__ = "forebay"
