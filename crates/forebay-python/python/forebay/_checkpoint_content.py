"""Conversion between Python objects and the files of a checkpoint.

Nothing is pickled here and nothing is unpickled: `torch.save` and `torch.load(weights_only=True)` are torch's.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import numpy as np

from forebay._errors import CheckpointError, CorruptCheckpointError, OptionError
from forebay._options import library

if TYPE_CHECKING:
    from forebay._forebay import _Checkpoint, _CheckpointDraft, _CheckpointFile

# Bytes per native write: Ctrl-C is handled between writes.
_PIECE = 64 << 20
# File name of an object that has no name of its own.
_BYTES = "data"
_TORCH = "checkpoint.pt"
_SAFETENSORS = "model.safetensors"


class DraftWriter(io.RawIOBase):
    """A file of a checkpoint that is written sequentially."""

    def __init__(self, draft: _CheckpointDraft, name: str) -> None:
        super().__init__()
        self._draft = draft
        self._file: _CheckpointFile = draft.create(name)
        self.name = name

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        """Write all of a bytes-like object; returns its length."""
        if self.closed:
            raise ValueError("write to a closed file")
        # numpy knows the address of every buffer, and holds it.
        view = memoryview(data)
        flat = view.cast("B") if view.contiguous and view.nbytes else memoryview(view.tobytes())
        held = np.frombuffer(flat, np.uint8)
        address: int = held.__array_interface__["data"][0]
        for start in range(0, held.nbytes, _PIECE):
            self._file.write(address + start, min(_PIECE, held.nbytes - start))
        return held.nbytes

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._file.written

    def close(self) -> None:
        """Hand the file over to be synced to disk."""
        if not self.closed:
            super().close()
            self._draft.finish(self._file)

    def abandon(self) -> None:
        """Close the file of a draft that is over."""
        super().close()


def is_bytes(value: object) -> bool:
    """Whether it is `bytes`, a `bytearray` or a `memoryview`."""
    return isinstance(value, bytes | bytearray | memoryview)


def _of_torch(value: object) -> bool:
    return type(value).__module__.split(".")[0] == "torch"


def size_of(value: Any) -> int:
    """Estimates the bytes that the object needs in the staging area; 0 if unknown."""
    if isinstance(value, str | os.PathLike):
        path = pathlib.Path(value)
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return path.stat().st_size if path.exists() else 0
    if isinstance(value, Mapping):
        return sum(size_of(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(size_of(item) for item in value)
    if isinstance(value, bytes | bytearray):
        return len(value)
    # Arrays, memoryviews and tensors.
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


def write(draft: _CheckpointDraft, value: Any, format: Literal["torch", "safetensors"] | None) -> str:
    """Writes the object's files; returns the name of their content."""
    if format == "torch":
        torch = library("torch", "torch")
        with DraftWriter(draft, _TORCH) as file:
            torch.save(value, cast(BinaryIO, file))
        return "torch"
    if format == "safetensors":
        _write_safetensors(draft, value)
        return "safetensors"
    if format is not None:
        raise OptionError(f'format={format!r}: it is "torch" or "safetensors", or left out')
    if is_bytes(value):
        _write_file(draft, _BYTES, value)
        return "bytes"
    if isinstance(value, str | os.PathLike):
        return _copy(draft, pathlib.Path(value))
    if isinstance(value, np.ndarray):
        _write_array(draft, _BYTES, value)
        return "array"
    if isinstance(value, Mapping) and value:
        kinds = {("bytes" if is_bytes(v) else "array" if isinstance(v, np.ndarray) else "") for v in value.values()}
        if not all(isinstance(name, str) for name in value):
            raise OptionError("the keys of a dict that is saved are names of files: str")
        if kinds == {"bytes"}:
            for name, data in value.items():
                _write_file(draft, name, data)
            return "files"
        if kinds == {"array"}:
            for name, array in value.items():
                _write_array(draft, name, array)
            return "arrays"
    hint = ""
    if _of_torch(value) or (isinstance(value, Mapping) and any(_of_torch(item) for item in value.values())):
        hint = '; say format="torch" or format="safetensors" for what torch has'
    raise OptionError(
        f"an object of type {type(value).__name__} cannot be saved as it is: bytes, a path, an array, or a dict of names to bytes "
        f"or to arrays can{hint}"
    )


def _write_file(draft: _CheckpointDraft, name: str, data: Any) -> None:
    with DraftWriter(draft, name) as file:
        file.write(data)


def _write_array(draft: _CheckpointDraft, name: str, array: np.ndarray[Any, Any]) -> None:
    if array.dtype.hasobject:
        raise OptionError(f"{name}: an array of Python objects would have to be pickled, which is not done")
    with DraftWriter(draft, f"{name}.npy") as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        try:
            np.lib.format.write_array_header_1_0(cast(Any, file), header)
        except ValueError:  # Longer than 64 KiB, found before anything is written.
            np.lib.format.write_array_header_2_0(cast(Any, file), header)
        # In the order of the header, without a copy if the array is contiguous.
        flat = array.T if header["fortran_order"] else np.ascontiguousarray(array)
        file.write(flat.reshape(-1).view(np.uint8))


def _write_safetensors(draft: _CheckpointDraft, value: Any) -> None:
    if not isinstance(value, Mapping) or not value:
        raise OptionError('format="safetensors" takes a dict of names to tensors or arrays')
    if all(isinstance(item, np.ndarray) for item in value.values()):
        from safetensors.numpy import save_file
    else:
        from safetensors.torch import save_file
    path = draft.path(_SAFETENSORS)
    save_file(dict(value), path)
    draft.adopt(_SAFETENSORS)


def _copy(draft: _CheckpointDraft, path: pathlib.Path) -> str:
    if path.is_dir():
        draft.copy_dir(os.fspath(path))
        return "directory"
    if not path.exists():
        raise CheckpointError(f"{path}: there is no such file or directory to save; bytes are saved as they are, a str is a path")
    draft.copy_file(path.name, os.fspath(path))
    return "file"


def read(
    checkpoint: _Checkpoint, rank: int, part: dict[str, Any], *, format: Literal["safetensors"] | None, map_location: Any
) -> Any:
    """Reads the object of one rank into memory."""
    names = [file["name"] for file in part["files"]]
    content = part["content"]

    def whole(name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.asarray(checkpoint.read(rank, name))

    def only() -> str:
        if len(names) != 1:
            raise CorruptCheckpointError(
                f"{checkpoint.location}: {content} is one file, and there are {len(names)}", location=checkpoint.location
            )
        return cast(str, names[0])

    if format == "safetensors":
        return _all_tensors(checkpoint.location, names, whole, map_location)
    if format is not None:
        raise OptionError(f'format={format!r}: it is "safetensors", or left out')
    if content == "bytes":
        return whole(only()).tobytes()
    if content == "array":
        return _array(whole(only()), checkpoint.location, only())
    if content == "arrays":
        return {name.removesuffix(".npy"): _array(whole(name), checkpoint.location, name) for name in names}
    if content == "torch":
        torch = library("torch", "torch")
        file = io.BytesIO(whole(only()).tobytes())
        return torch.load(file, map_location=map_location, weights_only=True)
    if content == "safetensors":
        return _tensors(whole(only()), map_location)
    # "files", "file", "directory", and kinds of later versions.
    return {name: whole(name).tobytes() for name in names}


def _tensors(data: np.ndarray[Any, np.dtype[np.uint8]], map_location: Any) -> dict[str, Any]:
    if "torch" in sys.modules:
        from safetensors.torch import load

        tensors: dict[str, Any] = load(data.tobytes())
        return tensors if map_location is None else {k: t.to(map_location) for k, t in tensors.items()}
    from safetensors.numpy import load as load_arrays

    arrays: dict[str, Any] = load_arrays(data.tobytes())
    return arrays


def _all_tensors(location: str, names: list[str], whole: Callable[[str], Any], map_location: Any) -> dict[str, Any]:
    """The tensors of all safetensors files, each named once, and all of those that indexes of shards name."""
    library("safetensors", "safetensors")
    found: dict[str, Any] = {}
    for name in names:
        if name.endswith(".safetensors"):
            tensors = _tensors(whole(name), map_location)
            if twice := found.keys() & tensors.keys():
                raise OptionError(f"{location} has {min(twice)} in {name} and in another file: load its files with `to`")
            found |= tensors
    if not found:
        raise OptionError(f"{location} has no safetensors file")
    for name in names:
        if name.endswith(".safetensors.index.json"):
            try:
                missing = set(json.loads(whole(name).tobytes())["weight_map"]) - found.keys()
            except (LookupError, RecursionError, TypeError, ValueError) as error:
                raise CorruptCheckpointError(f"{location}: {name} is no index: {error}", location=location, file=name) from None
            if missing:
                raise CorruptCheckpointError(f"{location}: {min(missing)} of {name} is in no file", location=location, file=name)
    return found


def _array(data: np.ndarray[Any, np.dtype[np.uint8]], location: str, name: str) -> np.ndarray[Any, Any]:
    """Returns the array of a .npy file, as a view of the bytes read."""
    # The header is in the first bytes; its length has two bytes, or four.
    head = io.BytesIO(data[: 1 << 20].tobytes())
    try:
        version = np.lib.format.read_magic(head)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, fortran, dtype = readers[version](head)
        if dtype.hasobject:
            raise ValueError("it has Python objects in it, which are not unpickled")
        body = data[head.tell() :]
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if body.nbytes != count:
            raise ValueError(f"its header says {count} bytes, and there are {body.nbytes}")
        flat = np.frombuffer(body, dtype) if count else np.empty(0, dtype)
    except (ValueError, KeyError) as error:
        raise CorruptCheckpointError(f"{location}: {name} is no array: {error}", location=location, file=name) from None
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
