"""Values of samples on their way to a writer: what PIL, numpy and torch hold becomes bytes and numbers.

None of these libraries is imported with this module.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class Refused(Exception):
    """A value that cannot be stored: what was expected and what was found."""


# More names than this are counted in messages, not listed.
_MOST_NAMES = 10


def some(names: Iterable[Any]) -> str:
    """Names for a message: ``a, b and 12 more``."""
    every = [str(name) for name in names]
    shown, more = ", ".join(every[:_MOST_NAMES]), len(every) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


Normalize = Callable[[Any], Any]


def normalizer(kind: str, classes: Sequence[str], number_classes: bool) -> Normalize | None:
    """The function that prepares values of a column type; None where they go as they are."""
    name, _, inside = kind.partition("[")
    if name == "label":
        labels = {text: label for label, text in enumerate(classes)}
        return class_name if number_classes else lambda value: label_of(value, labels)
    if name == "tensor":
        dtype = inside.removesuffix("]").rsplit(",", 1)[-1]
        return lambda value: tensor(value, dtype)
    return _PLAIN.get(name)


@dataclass(frozen=True)
class Prepared:
    """A sample as a writer takes it, or why it cannot be one. It travels between processes."""

    key: bytes | None
    values: list[tuple[str, Any]]
    column: str | None = None
    problem: str | None = None


class Normalizers:
    """The functions for the columns of a schema."""

    def __init__(self, features: Mapping[str, str], classes: Sequence[str], number_classes: bool = False) -> None:
        self._given = (dict(features), list(classes), number_classes)
        self._functions = {column: normalizer(kind, classes, number_classes) for column, kind in features.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Normalizers, self._given)

    def prepare(self, key: Any, columns: Mapping[str, Any]) -> Prepared:
        """Prepare a sample."""
        raw = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
        if raw is not None and not isinstance(raw, bytes):
            return Prepared(None, [], None, f"expected a key of type str or bytes, found {found(key)}")
        values = []
        for column, value in columns.items():
            if value is not None and (normalize := self._functions.get(column)) is not None:
                try:
                    value = normalize(value)
                except (Refused, OSError) as error:
                    return Prepared(raw, [], column, str(error))
            values.append((column, value))
        return Prepared(raw, values)


def found(value: Any) -> str:
    """A value in the words of an error."""
    return f"a value of type {type(value).__name__}"


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_picture(value: Any) -> bool:
    """Whether a value is an image of PIL."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


def is_array(value: Any) -> bool:
    """Whether a value is an array of numpy, or of a library that gives its arrays to numpy."""
    return hasattr(value, "__array__") and not is_picture(value)


def array(value: Any) -> np.ndarray[Any, Any]:
    """An array or a tensor as numpy has it."""
    import numpy as np

    return np.asarray(value.detach().cpu().numpy() if is_tensor(value) else value)


def plain(value: Any) -> Any:
    """Lists and numbers in the place of arrays and tensors."""
    return array(value).tolist() if is_array(value) else value


def encoded(value: Any) -> bytes | None:
    """The bytes of an encoded image, if a value is or names one: bytes, or what Hugging Face has in their place."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, memoryview):
        return value.tobytes()
    if isinstance(value, os.PathLike):
        return pathlib.Path(value).read_bytes()
    if isinstance(value, Mapping) and {"bytes", "path"} >= value.keys() and value:
        if value.get("bytes") is not None:
            return bytes(value["bytes"])
        if value.get("path") is not None:
            return pathlib.Path(value["path"]).read_bytes()
    return None


def image(value: Any) -> Any:
    """Encoded bytes, or (width, height, mode, pixels)."""
    if (data := encoded(value)) is not None:
        return data
    if is_picture(value):
        mode = value.mode
        if mode in ("1", "L"):
            value = value.convert("L")
        elif mode in ("RGB", "RGBA", "RGBX", "P", "PA", "LA", "CMYK", "YCbCr", "LAB", "HSV"):
            value = value.convert("RGB")
        else:
            raise Refused(f"expected an image of 8 bits, found a PIL image of mode {mode}")
        return (*value.size, value.mode, value.tobytes())
    if not is_array(value):
        raise Refused(f"expected bytes, a PIL image or an array of uint8, found {found(value)}")
    pixels = array(value)
    if is_tensor(value) and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    if pixels.dtype != "uint8" or not is_image:
        shape = "(3, H, W) or (1, H, W)" if is_tensor(value) else "(H, W, 3), (H, W, 1) or (H, W)"
        raise Refused(f"expected uint8 of shape {shape}, found {shown(value)}")
    mode = "L" if pixels.ndim == 2 else "RGB"
    return (pixels.shape[1], pixels.shape[0], mode, pixels.tobytes())


def mask(value: Any) -> Any:
    """The bytes of a PNG, or (width, height, mode, numbers)."""
    if (data := encoded(value)) is not None:
        return data
    if is_picture(value):
        if value.mode in ("L", "P"):
            # The indices of a palette are the numbers of classes.
            return (*value.size, "L", value.tobytes())
        if value.mode not in ("I;16", "I"):
            raise Refused(f"expected a mask of one channel, found a PIL image of mode {value.mode}")
    elif not is_array(value):
        raise Refused(f"expected the bytes of a PNG, a PIL image or an array of integers, found {found(value)}")
    numbers = array(value)
    if numbers.ndim == 3 and 1 in (numbers.shape[0], numbers.shape[2]):
        numbers = numbers.squeeze(0 if is_tensor(value) else 2)
    if numbers.ndim != 2 or numbers.dtype.kind not in "bui":
        raise Refused(f"expected integers of shape (H, W), found {shown(value)}")
    if numbers.dtype.itemsize == 1 and numbers.dtype.kind in "bu":
        return (numbers.shape[1], numbers.shape[0], "L", numbers.tobytes())
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) > 65535):
        raise Refused(f"expected numbers from 0 to 65535, found {numbers.min()} to {numbers.max()}")
    return (numbers.shape[1], numbers.shape[0], "I;16", numbers.astype("<u2").tobytes())


def shown(value: Any) -> str:
    """Type and shape of an array in the words of an error."""
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"


def tensor(value: Any, dtype: str) -> Any:
    """(shape, little-endian bytes) of an array that has this type, or of numbers that it holds."""
    import numpy as np

    if is_array(value):
        name = str(value.dtype).removeprefix("torch.")
        if name != dtype:
            raise Refused(f"expected {dtype}, found {shown(value)}")
        if name == "bfloat16" and is_tensor(value):
            value = value.view(sys.modules["torch"].int16)
        numbers = array(value)
    elif dtype == "bfloat16":
        raise Refused(f"expected an array of bfloat16, found {found(value)}")
    else:
        try:
            given = np.asarray(value)
            numbers = given.astype(dtype)
        except (TypeError, ValueError) as error:
            raise Refused(f"expected numbers of {dtype}, found {found(value)}") from error
        is_rounded = given.dtype.kind == "f" and numbers.dtype.kind == "f"
        if given.dtype.kind not in "buif" or not (is_rounded or np.array_equal(given, numbers)):
            raise Refused(f"expected numbers that {dtype} holds, found others")
    if sys.byteorder == "big":
        numbers = numbers.byteswap()
    return (numbers.shape, numbers.tobytes())


def label_of(value: Any, labels: Mapping[str, int]) -> Any:
    """A label that is given as the name of its class, as an integer, a whole float or a one-hot list."""
    value = plain(value)
    if isinstance(value, str):
        if not labels:
            raise Refused(
                f"expected a label from 0, found {value!r}: classes=[...] lists the names of classes, "
                f'and classes="auto" numbers those of all samples'
            )
        if value not in labels:
            raise Refused(f"expected a class, found {value!r}, which is none of the {len(labels)}")
        return labels[value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list) and value and all(isinstance(number, int | float) for number in value):
        places = [place for place, number in enumerate(value) if number != 0]
        if len(value) == 1:
            return label_of(value[0], labels)
        if len(places) != 1 or value[places[0]] != 1:
            raise Refused(f"expected one 1 among zeros in a list that is a label, found {value[:8]}")
        return places[0]
    return value


def class_name(value: Any) -> str:
    """The name of a class."""
    if not isinstance(value, str) or not value.strip():
        raise Refused(f"expected the name of a class, found {value if value == '' else found(value)}")
    return value.strip()


def boxes(value: Any) -> Any:
    """(rows, labels): rows alone have no labels."""
    return rows(value, "boxes", "labels")


def keypoints(value: Any) -> Any:
    """(rows of x and y, visibility); the visibility may be the third number of rows."""
    points, flags = rows(value, "points", "visibility")
    if flags is None and points and all(len(point) == 3 for point in points):
        flags = [point[2] for point in points]
        if any(flag != int(flag) for flag in flags):
            raise Refused("expected a visibility of 0, 1 or 2 as the third number of each row, found others")
        points, flags = [point[:2] for point in points], [int(flag) for flag in flags]
    return (points, flags)


def rows(value: Any, name: str, beside: str) -> tuple[Any, Any]:
    """Rows of numbers, and what a dict has beside them."""
    others = None
    if isinstance(value, Mapping):
        if name not in value or not {name, beside} >= value.keys():
            raise Refused(f"expected a dict of {name!r} and {beside!r}, found one of {sorted(map(str, value))}")
        others = value.get(beside)
        value = value[name]
    numbers = plain(value)
    if not isinstance(numbers, Sequence) or isinstance(numbers, str | bytes):
        raise Refused(f"expected rows of numbers, found {found(value)}")
    made = [plain(row) for row in numbers]
    if not all(isinstance(row, Sequence) and not isinstance(row, str | bytes) for row in made):
        raise Refused("expected rows of numbers, found a list of others")
    return (made, None if others is None else plain(others))


def document(value: Any) -> str:
    """The JSON of a value."""
    try:
        return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(f"expected what JSON can hold, found {found(value)}: {error}") from error


def polygons(value: Any) -> list[str]:
    """The JSON of the polygons of each object."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise Refused(f"expected a list of the polygons of each object, found {found(value)}")
    return [document([plain(polygon) for polygon in one] if isinstance(one, list | tuple) else one) for one in value]


def buffer(value: Any) -> Any:
    """Bytes of any bytes-like object."""
    return value.tobytes() if isinstance(value, memoryview) else value


_PLAIN: dict[str, Normalize] = {
    "image": image,
    "mask": mask,
    "boxes": boxes,
    "keypoints": keypoints,
    "bytes": buffer,
    "json": document,
    "polygons": polygons,
    "labels": plain,
    "int": plain,
    "float": plain,
    "vector": plain,
}
