"""Runs commands of the command line in this process: keywords are flags, events become results, warnings and exceptions."""

from __future__ import annotations

import inspect
import json
import keyword
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from forebay._errors import CommandError, OptionError, UnknownOptionError
from forebay._forebay import _command_options, _run
from forebay._options import library
from forebay._writer import WriteSummary

Progress = bool | Callable[[dict[str, Any]], object]

# Flags that Python says otherwise: a store is reached by `storage_options`, and parts of a pack are for processes, which give
# them as `flags`.
_ELSEWHERE = {"anonymous", "endpoint", "region", "storage-option", "dry-run", "part", "plan", "finish"}


class Summary(dict[str, Any]):
    """The result of a command, as its ``--json`` has it: a dict whose values are attributes too."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class _Option:
    """An option of a command: a keyword, and a flag."""

    def __init__(self, flag: str, kind: str, help: str, default: str, choices: list[str]) -> None:
        self.flag, self.kind, self.help, self.default, self.choices = flag, kind, help, default, choices
        # `from` and `class` are words of the language.
        self.name = f"{flag}_" if keyword.iskeyword(flag) else flag.replace("-", "_")

    def words(self, value: Any) -> Iterable[str]:
        """Its words on the command line."""
        if self.kind == "switch":
            if not isinstance(value, bool):
                raise OptionError(f"{self.name}: expected True or False, found {value!r}")
            return [f"--{self.flag}"] if value else []
        several = self.kind == "values" and isinstance(value, Iterable) and not isinstance(value, str | os.PathLike)
        return [f"--{self.flag}={os.fspath(one) if isinstance(one, os.PathLike) else one}" for one in (value if several else [value])]


def options_of(command: str) -> dict[str, _Option]:
    """The options of a command, by their keywords."""
    found = (_Option(*of) for of in _command_options(command))
    return {option.name: option for option in found if option.flag not in _ELSEWHERE}


def words_of(command: str, options: Mapping[str, Any]) -> list[str]:
    """The words of keywords on the command line; an option that the command does not have is an error."""
    known = options_of(command)
    words: list[str] = []
    for name, value in options.items():
        if name not in known:
            raise UnknownOptionError(f"{name}: {command} has no such option; it has {', '.join(known)}")
        if value is not None:
            words += known[name].words(value)
    return words


def run(
    command: str,
    paths: Iterable[str | os.PathLike[str]],
    progress: Progress,
    storage_options: Mapping[str, str] | None,
    options: Mapping[str, Any],
    flags: Iterable[str] = (),
) -> Summary:
    """Run a command, with `flags` that are no keywords; returns its summary, and warns of what it warns of."""
    known = options_of(command)
    words = [*flags, *words_of(command, options)]
    words += [f"--storage-option={name}={value}" for name, value in (storage_options or {}).items()]
    tell = Bar() if progress is True else progress or (lambda event: None)
    last: dict[str, Any] = {}
    warned: list[str] = []

    def on_event(text: str) -> None:
        event = json.loads(text)
        match event.pop("type"):
            case "bar":
                tell(event)
            case "warning":
                warned.append(event["message"])
            case "summary" | "error" | "interrupted" as kind:
                last[kind] = event

    try:
        code = _run(["forebay", command, *words, "--", *(os.fspath(path) for path in paths)], on_event)
    finally:
        if isinstance(tell, Bar):
            tell.close()
    summary = Summary(last.get("summary", {}))
    if code == 3:
        warned = [f"some of the input of {command} was left out: {'; '.join(warned) or summary}"]
    for message in dict.fromkeys(warned):
        warnings.warn(message, stacklevel=3)
    if code in (0, 3):
        return summary
    failed = last.get("error") or last.get("interrupted") or {}
    message = _in_python(failed.get("message") or f"{command} failed", known)
    hint = _in_python(failed.get("hint") or "", known)
    text = f"{message}; {hint}" if hint else message
    if code == 2:
        raise OptionError(text)
    raise CommandError(text, command=command, exit_code=code, summary=summary or None)


# Ends the command with the thread that started it, also by SIGKILL. Only Linux has this.
_CHILD = (
    "import ctypes, os, signal, sys\n"
    "getattr(ctypes.CDLL(None), 'prctl', lambda *given: None)(1, signal.SIGKILL)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'forebay', *sys.argv[2:]])\n"
)


def child(words: Iterable[str], stderr: int) -> subprocess.Popen[str]:
    """Start a command in a process of its own, whose output is read here."""
    command = [sys.executable, "-c", _CHILD, str(os.getpid()), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)


def _in_python(text: str, known: Mapping[str, _Option]) -> str:
    """A text for the command line, with keywords in place of flags; whole commands stay."""
    flags = {option.flag: option for option in known.values()}

    def keyword(found: re.Match[str]) -> str:
        option = flags.get(found[1])
        if option is None:
            return found[0]
        return f"{option.name}=True" if option.kind == "switch" else option.name + "=" * found[0].endswith("=")

    parts = re.split(r"(`forebay [^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"--([a-z][a-z0-9-]*)=?", keyword, part) for part in parts)


class Bar:
    """A bar of tqdm, a new one for each stage."""

    def __init__(self) -> None:
        self._tqdm = library("tqdm.auto", "tqdm").tqdm
        self._bar: Any = None
        self._stage = ""

    def __call__(self, event: dict[str, Any]) -> None:
        if self._bar is None or event["stage"] != self._stage:
            self.close()
            self._stage = event["stage"]
            is_bytes = event["bytes"] > 0
            unit = {"unit": "B", "unit_scale": True} if is_bytes else {"unit": f" {event['unit']}"}
            self._bar = self._tqdm(total=event["total"], desc=self._stage, **unit)
        self._bar.update(event["position"] - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def written(location: str | os.PathLike[str], summary: Summary) -> WriteSummary:
    """The summary of a command that writes a dataset, as of `Writer`."""
    account = summary.get("account") or {}
    shards = summary.get("shards")
    return WriteSummary(
        location=str(summary.get("root", os.fspath(location))),
        fingerprint=summary.get("fingerprint", ""),
        splits={split: packed["samples"] for split, packed in account.get("packed", {}).items()},
        shards=sum(split["shards"] for split in summary.get("splits", [])) if shards is None else shards,
        bytes=summary.get("shard_bytes", 0),
        resumed_shards=summary.get("resumed_shards", 0),
        already_complete=summary.get("already_complete", False),
        account=account,
    )


_SHARED = """progress : bool or callable, default False
        True shows a bar of tqdm. A function is called with a dict of "stage", "position", "total" (or None), "items", "unit"
        and "bytes", about ten times a second.
    storage_options : dict of str to str, optional
        How a store is reached; see `open`.
{options}

    Raises
    ------
    OptionError
        An option, or a combination of them, that cannot work.
    CommandError
        The command failed. After Ctrl-C it stops where the same call continues."""


def describe(function: Callable[..., Any]) -> None:
    """Puts the options into the docstring and the signature, which `help` shows."""
    options = options_of(function.__name__.removesuffix("_files"))
    lines = []
    for option in options.values():
        kind = {"switch": "bool, default False", "values": "str or sequence of str, optional"}.get(option.kind, "optional")
        if option.default:
            kind = f"default {option.default!r}"
        lines += [f"    {option.name} : {kind}", f"        {_in_python(option.help, options)}."]
    function.__doc__ = (function.__doc__ or "").replace("{shared}", _SHARED.format(options="\n".join(lines)))
    signature = inspect.signature(function)
    kept = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if option.kind == "switch" else option.default or None,
        )
        for option in options.values()
    ]
    function.__signature__ = signature.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
