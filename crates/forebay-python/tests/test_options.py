"""Options of the wrong kind: each error names its option."""

from __future__ import annotations

import inspect
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

import fake_torch
import forebay
import forebay.checkpoint
import forebay.jax
import forebay.tf
import forebay.torch
from test_loader import SMALL, epochs, loader

PARAMETERS = inspect.signature(forebay.Loader).parameters


def of(*annotations: str) -> list[str]:
    """The options of these types: a new one is tried without a line here."""
    return [name for name, parameter in PARAMETERS.items() if parameter.annotation in annotations]


NUMBERS = of("int", "int | None")
SIZES = of("int | str | None")
FLAGS = of("bool", "bool | None")
TEXTS = ["split", "layout", "resize_like", "on_error", "page_cache", "transport", "token"]
PATHS = ["token_file", "tls_ca", "tls_cert", "tls_key"]
WRONG: dict[str, list[Any]] = {
    **dict.fromkeys(NUMBERS, ["32", 3.5, True, [1], -1]),
    **dict.fromkeys(SIZES, ["1 parsec", "", 2.5, True, -1, b"1GiB"]),
    **dict.fromkeys(FLAGS, ["yes", 1, 0.0]),
    **dict.fromkeys(TEXTS, [3, b"train", ["x"]]),
    **dict.fromkeys(PATHS, [3, ["x"]]),
    "transform": [3, "train", object()],
    "batch_transform": [3, "mixup", [forebay.Mixup()]],
    "shuffle": [3, "sometimes", [True]],
    "dtype": [3, "float64", np.int16, np.dtype("float64"), ["uint8"]],
    "indices": [3, "1", [1.5], ["1"], np.array([True, False]), np.array([[1]]), [True], [-1], {1, 2}],
    "classes": [3, "n01440764", [1.5], [None]],
    "columns": [3, "age", [3], ["labels"]],
    "weights": [3, "all", {"n01440764": "much"}, {1.5: 1.0}, ["1"], [None]],
    "label_base": ["zero", 2, True, 0.0],
    "normalize": [3, "imagenet", [0.5], ([0.5], [0.5])],
    "timeout": ["5", [5], 0, -1.0],
    "storage_options": ["x", 3, {"region": 3}, {3: "x"}],
}


def test_every_option_is_tried() -> None:
    assert set(PARAMETERS) - {"source"} == set(WRONG)


@pytest.mark.parametrize("name", sorted(WRONG))
def test_errors_name_the_option(name: str, packed: dict[str, pathlib.Path]) -> None:
    for value in WRONG[name]:
        given = {"batch_size": 8, "transform": SMALL, name: value}
        if name == "connections" and value == 3:
            continue
        with pytest.raises((TypeError, ValueError)) as caught:
            forebay.Loader(packed["indexed"], **given)
        assert name in str(caught.value), (value, str(caught.value))
        # A value of the wrong type is an error of Python, and one out of range an error of the package.
        assert type(caught.value) in (TypeError, forebay.OptionError), value


def test_secrets_stay_secret(packed: dict[str, pathlib.Path]) -> None:
    for name in ("token", "token_file", "storage_options"):
        with pytest.raises(TypeError) as caught:
            forebay.Loader(packed["indexed"], transform=SMALL, **{name: [b"hush"]})  # type: ignore[arg-type]
        assert "hush" not in str(caught.value)


def test_options_that_do_not_exist(packed: dict[str, pathlib.Path]) -> None:
    with pytest.raises(TypeError, match=r"Loader\(\) got an unexpected keyword argument 'batchsize'"):
        forebay.Loader(packed["indexed"], transform=SMALL, batchsize=8)  # type: ignore[call-arg]
    with pytest.raises(forebay.UnknownOptionError, match=r"Loader\(\).*'batchsize': use 'batch_size'"):
        forebay.Loader(packed["indexed"], transform=SMALL, batchsize=8)  # type: ignore[call-arg]
    adapters: Any = forebay.torch.Loader, forebay.jax.Loader, forebay.tf.Loader, forebay.tf.dataset
    for adapter in adapters:
        for given, meant in (("batchsize", "batch_size"), ("MapBatch", "map_batch")):
            words = rf"{adapter.__qualname__}\(\) got an unexpected keyword argument '{given}': use '{meant}'"
            # As Python has it, and as one of the package.
            for kind in (TypeError, forebay.OptionError):
                with pytest.raises(kind, match=words):
                    adapter(packed["indexed"], transform=SMALL, **{given: 8})
    with pytest.raises(forebay.UnknownOptionError, match=r"^convert\(\) got .* 'shardsize': use 'shard_size'"):
        forebay.convert([], "mine", shardsize=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        forebay.nothing  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="as source"):
        forebay.Loader(3, transform=SMALL)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("batchsize", "use 'batch_size'"),
        ("batchSize", "use 'batch_size'"),
        ("num_workers", "native threads decode"),
        ("prefetch_factor", "the loader reads ahead by itself"),
        ("persistent_workers", "there are no worker processes"),
        ("sampler", "select them with indices, classes, weights"),
        ("collate_fn", "give map_batch to forebay.torch.Loader"),
        ("pin_memory", "it is an option of forebay.torch.Loader"),
        ("map_sample", "it is an option of forebay.Mapped"),
        ("shuffle_buffer", "block_records and window_blocks"),
        ("generator", "use seed"),
    ],
)
def test_names_of_other_loaders_get_an_answer(
    name: str, said: str, packed: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch.module())
    loaders: list[Any] = [forebay.Loader, forebay.torch.Loader]
    for of in loaders:
        if name in inspect.signature(of).parameters:
            continue
        with pytest.raises(forebay.UnknownOptionError, match=rf"^Loader\(\) got an unexpected keyword argument '{name}': .*{said}"):
            of(packed["indexed"], transform=SMALL, **{name: 2})


def test_sizes_may_be_written_with_units(packed: dict[str, pathlib.Path]) -> None:
    expected = epochs(packed["indexed"])
    for memory in ("1GiB", "0.5 GB", 1 << 30, np.int64(1 << 30), "1073741824"):
        assert epochs(packed["indexed"], memory=memory, max_image_bytes="64MiB") == expected
    with pytest.raises(forebay.OptionError, match="a memory budget of 1024 bytes"):
        loader(packed["indexed"], memory="1KiB")
    with pytest.raises(forebay.OptionError, match='option memory is "1 parsec": .*unknown unit `parsec`'):
        loader(packed["indexed"], memory="1 parsec")


def test_types_of_numbers_may_be_those_of_libraries(packed: dict[str, pathlib.Path]) -> None:
    class Torch:
        """torch names its types in this way alone."""

        def __str__(self) -> str:
            return "torch.float16"

    expected = epochs(packed["indexed"], dtype="float16")
    for dtype in (np.float16, np.dtype("float16"), Torch()):
        assert epochs(packed["indexed"], dtype=dtype) == expected
    torch = pytest.importorskip("torch")
    assert epochs(packed["indexed"], dtype=torch.float16) == expected


def test_indices_classes_and_weights_may_be_arrays(packed: dict[str, pathlib.Path]) -> None:
    def samples(**options: Any) -> list[int]:
        with loader(packed["indexed"], shuffle=False, drop_last=False, **options) as it:
            return [int(s) for batch in it for s in batch.samples[~batch.padding]]

    class Tensor:
        """An array of another library."""

        def __init__(self, values: list[Any]) -> None:
            self.values = values

        def tolist(self) -> list[Any]:
            return self.values

    for make in (list, np.array, Tensor):
        assert samples(indices=make([7, 1, 30])) == [1, 7, 30]
        assert samples(classes=make([1])) == samples(classes=[1])
        assert samples(weights=make([0.0, 1.0] + [0.0] * 40)) == [1] * 42
    assert samples(classes=np.array(["n01443537"])) == samples(classes=[1])
    torch = pytest.importorskip("torch")
    assert samples(indices=torch.tensor([7, 1, 30])) == [1, 7, 30]


ADAPTERS: dict[str, list[Any]] = {
    "prefetch": ["2", 0, 1.5, None],
    "map_threads": ["2", 0, 1.5],
    "map_batch": ["identity", 3],
    "map_sample": [3],
}


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_errors_of_adapters_name_the_option(
    name: str, packed: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch.module())
    for value in ADAPTERS[name]:
        given = {"batch_size": 8, "transform": SMALL, name: value}
        if name == "map_threads":
            given["map_batch"] = tuple
        with pytest.raises((TypeError, forebay.OptionError), match=name):
            forebay.torch.Loader(packed["indexed"], **given)
    with pytest.raises(TypeError, match="option batch_size"):
        forebay.torch.Loader(packed["indexed"], batch_size="32")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="option ahead"):
        forebay.Mapped(loader(packed["indexed"]), map_batch=tuple, ahead="2")  # type: ignore[arg-type]


@pytest.mark.parametrize(("adapter", "library"), [("torch", "torch"), ("jax", "jax"), ("tf", "tensorflow")])
def test_a_missing_library_is_named_with_its_extra(
    adapter: str, library: str, packed: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata

    # None in sys.modules is a module that cannot be found.
    monkeypatch.setitem(sys.modules, library, None)
    words = rf"{library} is not installed: pip install 'forebay\[{adapter}\]'"
    with pytest.raises(ImportError, match=words):
        getattr(forebay, adapter).Loader(packed["indexed"])
    assert adapter in (importlib.metadata.metadata("forebay").get_all("Provides-Extra") or [])


def test_sizes_of_checkpoints_have_units(tmp_path: pathlib.Path) -> None:
    for options in ({"max_bytes": "much"}, {"bandwidth": [3]}, {"max_bytes": 0}):
        with pytest.raises((TypeError, forebay.OptionError), match=f"option {next(iter(options))}"):
            forebay.checkpoint.configure(**options)
    with pytest.raises(forebay.OptionError, match="option bytes"):
        forebay.checkpoint.writer(tmp_path / "run/step-1", stage=tmp_path / "stage", bytes="much")
