"""The package as it is installed."""

from __future__ import annotations

import builtins
import importlib.metadata
import pathlib
import subprocess
import sys

import forebay
from conftest import forebay_command, python


def test_command_is_on_the_path_and_tells_the_version() -> None:
    done = forebay_command("--version")
    assert done.returncode == 0
    assert done.stdout.split() == ["forebay", forebay.__version__]
    assert importlib.metadata.version("forebay") == forebay.__version__


def test_module_runs_as_the_command() -> None:
    module = subprocess.run(
        [sys.executable, "-m", "forebay", "--help"], capture_output=True, text=True
    )
    assert module.returncode == 0
    assert module.stdout == forebay_command("--help").stdout


def test_a_wrong_command_is_a_usage_error() -> None:
    assert forebay_command("no-such-command").returncode == 2


def test_types_are_shipped() -> None:
    folder = pathlib.Path(forebay.__file__).parent
    assert (folder / "py.typed").exists()
    assert (folder / "_forebay.pyi").exists()


def test_import_stays_light() -> None:
    done = python(
        "import sys, forebay, forebay.torch\n"
        "heavy = {'torch', 'jax', 'tensorflow', 'numpy', 'multiprocessing', 'forebay._ops', 'forebay._commands'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "missing = [name for name in forebay.__all__ if name not in dir(forebay) or not hasattr(forebay, name)]\n"
        "assert not missing, missing"
    )
    assert done.returncode == 0, done.stderr


def test_all_public_names_are_documented() -> None:
    for name in (*forebay.__all__, "TimeoutError", "open"):
        thing = getattr(forebay, name)
        if not name.startswith("__"):
            assert thing.__doc__, name
            if not isinstance(thing, type):
                continue
            assert thing.__module__ == "forebay", name
            for member, value in vars(thing).items():
                if not member.startswith("_"):
                    assert value is None or value.__doc__, f"{name}.{member}"


def test_a_star_import_replaces_no_builtin() -> None:
    assert not {name for name in forebay.__all__ if hasattr(builtins, name)}
    for name in ("open", "TimeoutError"):
        assert getattr(forebay, name) is not getattr(builtins, name)
    assert issubclass(forebay.TimeoutError, builtins.TimeoutError)


def test_adapters_are_attributes() -> None:
    done = python("import forebay; print(forebay.torch.Loader.__name__, hasattr(forebay, 'caffe'))")
    assert done.stdout == "Loader False\n", done.stderr
