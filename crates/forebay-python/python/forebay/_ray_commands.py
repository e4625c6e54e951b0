"""Commands as tasks of a Ray cluster. Owns parts, their errors and their progress; the commands own the work."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from forebay._command import Bar, Progress, Summary, run, words_of, written
from forebay._errors import CommandError, Error, MissingError, OptionError
from forebay._options import count, library
from forebay._writer import WriteSummary

Path = str | os.PathLike[str]

# Options that name files, which each node has to find under the same path.
_PATHS = ("classes", "labels", "staging")
# Most CPUs of a task, if the caller does not say: more parts balance better than larger ones.
_MOST_CPUS = 8
# Seconds between two looks at the tasks, and between two events of a task.
_POLL, _EVERY = 0.25, 0.5
# Seconds that a task waits for a destination that a process on a lost node still locks, and that cancelled tasks get to stop.
_LOCK_WAIT, _STOP_WAIT = 60.0, 30.0


def pack(
    source: Path,
    destination: Path,
    parts: int | None = None,
    *,
    progress: Progress = False,
    num_cpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    max_retries: int = 3,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> WriteSummary:
    """Pack a directory or archive of images on a Ray cluster, a task for each part.

    One task reads the source and plans, one for each part writes shards, and one checks all shards and publishes. The result
    is that of `forebay.pack`, byte for byte, whatever the number of parts. The part of a lost node runs again on another one
    and keeps its complete shards. After an error, Ctrl-C or a lost driver, the same call continues.

    Parameters
    ----------
    source : str or os.PathLike
        A directory or archive of images that every node sees under this path, or a URL of a store.
    destination : str or os.PathLike
        A directory that every node shares, or a URL (s3://, gs://, az://), for the dataset.
    parts : int, optional
        Number of parts, at most the number of shards. By default as many as the cluster runs at once.
    progress : bool or callable, default False
        True shows one bar of tqdm for all parts. A function is called as that of `forebay.pack`, with sums over the parts.
    num_cpus : float, optional
        CPUs of each task, which are its threads if `jobs` does not say otherwise. By default those of the smallest node,
        8 at most.
    resources : dict of str to float, optional
        Custom resources of each task, which place it on nodes that have them.
    max_retries : int, default 3
        How often a task is repeated whose node or process is lost; -1 is without a limit. Other errors are not repeated.
    storage_options : dict of str to str, optional
        How a store is reached; see `open`.
    **options
        Those of `forebay.pack`.

    Returns
    -------
    WriteSummary
        The dataset, and in `account` how many files became samples and what became of the others.

    Raises
    ------
    ModuleNotFoundError
        When ray is not installed.
    OptionError
        An option, or a combination of them, that cannot work.
    MissingError
        When a node does not have the source or the destination; the message names the node.
    CommandError
        A task failed; the message names the part, the node and the file.

    Examples
    --------
    >>> forebay.ray.pack("/shared/photos", "s3://bucket/packed", format="indexed", num_cpus=4, progress=True)  # doctest: +SKIP
    """
    if parts is not None:
        count("parts", parts, 1, "as something has to pack")
    words_of("pack", options)
    tasks = _Tasks(progress, num_cpus, resources, max_retries, storage_options, "pack")
    return _in_parts(tasks, source, destination, parts, options)


def convert(
    source: Path,
    destination: Path,
    parts: int | None = None,
    *,
    progress: Progress = False,
    num_cpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    max_retries: int = 3,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> WriteSummary:
    """Write a dataset, or files of another tool, in another format on a Ray cluster, a task for each part.

    Each task opens the source. The result is that of `forebay.convert_files`, byte for byte, whatever the number of parts.
    For lost nodes, parameters and errors see `pack`.

    Parameters
    ----------
    source, destination : str or os.PathLike
        As of `forebay.convert_files`; the nodes see them under the same paths or URLs.
    parts, progress, num_cpus, resources, max_retries, storage_options : optional
        See `pack`.
    **options
        Those of `forebay.convert_files`.

    Returns
    -------
    WriteSummary
        The dataset.

    Examples
    --------
    >>> forebay.ray.convert("/shared/coco", "/shared/packed", format="indexed", resources={"disk": 1})  # doctest: +SKIP
    """
    if parts is not None:
        count("parts", parts, 1, "as something has to convert")
    words_of("convert", options)
    tasks = _Tasks(progress, num_cpus, resources, max_retries, storage_options, "convert")
    return _in_parts(tasks, source, destination, parts, options)


def _in_parts(tasks: _Tasks, source: Path, destination: Path, parts: int | None, given: Mapping[str, Any]) -> WriteSummary:
    """A plan, parts, and what joins them."""
    paths, options = (everywhere(source), everywhere(destination)), tasks.options(given)
    with contextlib.closing(tasks):
        [plan] = tasks.run([("plan", paths, ("--plan",), options)])
        # The plan has replaced what was there.
        options.pop("overwrite", None)
        number = min(parts or tasks.slots, max(plan.get("shards", 1), 1))
        jobs = [(f"part {i}/{number}", paths, (f"--part={i}/{number}",), options) for i in range(1, number + 1)]
        done = tasks.run(jobs, plan.get("bytes") or plan.get("files"))
        # A pack is joined without its source.
        last = (paths[1:], {"jobs": options["jobs"]}) if tasks.command == "pack" else (paths, options)
        [summary] = tasks.run([("finish", last[0], ("--finish",), last[1])])
    # Shards that the parts wrote just now are not of an earlier run.
    summary["resumed_shards"] = sum(part.get("resumed_shards", 0) for part in done)
    return written(paths[1], summary)


def everywhere(path: Path) -> str:
    """A path that does not depend on the directory of a process."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)


def places_of(ray: Any, num_cpus: float, resources: Mapping[str, float] | None) -> list[tuple[str, int]]:
    """The nodes that can run a task with these resources, and how many at once; warns if there is none."""
    needed = {"CPU": num_cpus, **(resources or {})}
    found = []
    for node in ray.nodes():
        places = min(int(node["Resources"].get(name, 0) // least) for name, least in needed.items() if least > 0)
        if node["Alive"] and places:
            found.append((node["NodeID"], places))
    if not found:
        wanted = ", ".join(f"{name}: {least:g}" for name, least in needed.items())
        warnings.warn(f"no node of the cluster has {wanted}: what needs them waits until one joins", stacklevel=4)
    return sorted(found)


class _Tasks:
    """Tasks of one call: starts them, waits, tells their progress, and cancels them if one fails."""

    def __init__(
        self,
        progress: Progress,
        num_cpus: float | None,
        resources: Mapping[str, float] | None,
        max_retries: int,
        storage_options: Mapping[str, str] | None,
        command: str,
    ) -> None:
        self._ray = ray = library("ray", "ray")
        if not ray.is_initialized():
            ray.init()
        cpus = (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        self._cpus = min([_MOST_CPUS, *(number for number in cpus if number >= 1)]) if num_cpus is None else num_cpus
        if self._cpus <= 0:
            raise OptionError(f"option num_cpus is {num_cpus}: expected more than 0, as a task decodes")
        # How many tasks run at once.
        self.slots = max(sum(places for _, places in places_of(ray, self._cpus, resources)), 1)
        self._remote = ray.remote(_task).options(
            num_cpus=self._cpus, resources=dict(resources or {}), max_retries=max_retries, scheduling_strategy="SPREAD"
        )
        self.command, self._given = command, (command, dict(storage_options or {}))
        self._bar = Bar() if progress is True else None
        self._tell: Callable[[dict[str, Any]], object] | None = self._bar or progress or None  # type: ignore[assignment]
        self._board = None
        if self._tell:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            # Beside the driver, so that it is not lost with another node.
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            self._board = ray.remote(_Board).options(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here).remote()

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a task: files by absolute paths, and threads as many as it has CPUs."""
        made = {"jobs": max(int(self._cpus), 1), **{name: value for name, value in options.items() if value is not None}}
        made |= {name: everywhere(made[name]) for name in _PATHS if name in made}
        policy, colon, directory = str(made.get("on_bad", "")).partition(":")
        return {**made, "on_bad": f"{policy}:{everywhere(directory)}"} if colon else made

    def run(self, jobs: Iterable[tuple[Any, ...]], total: int | None = None) -> list[Summary]:
        """Run tasks; returns their summaries and warns of what they warn of. `total` is their common work."""
        ray = self._ray
        tasks = {self._remote.remote(*self._given, *job, self._board): job[0] for job in jobs}
        pending, found = list(tasks), {}
        try:
            while pending:
                ready, pending = ray.wait(pending, timeout=_POLL)
                for task in ready:
                    found[task] = self._result(task, tasks[task])
                self._show(set(tasks.values()), total, not pending)
        except BaseException:
            self._cancel(pending)
            raise
        messages = {message for _, messages in found.values() for message in messages}
        # The last task counts the files that all parts left out.
        for message in sorted(message for message in messages if total is None or "left out" not in message):
            warnings.warn(message, stacklevel=3)
        return [found[task][0] for task in tasks]

    def _result(self, task: Any, name: str) -> tuple[Summary, list[str]]:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(task)  # type: ignore[no-any-return]
        except exceptions.RayTaskError as error:
            # Without ray's traceback of the worker, where the error is one of ours.
            cause = error.cause
            raise (cause if isinstance(cause, Error) else error) from None
        except exceptions.RayError as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            raise CommandError(f"{name}: its node or process was lost: {text[0].rstrip('.')}; the same call continues") from error

    def _show(self, names: set[str], total: int | None, is_over: bool) -> None:
        if self._tell is None:
            return
        told = self._ray.get(self._board.take.remote())  # type: ignore[union-attr]
        events = [event for name, event in told.items() if name in names]
        if total is None:
            for event in events:
                self._tell(event)
            return
        events = [event for event in events if event["stage"] == "writing"]
        if events:
            sums = {name: sum(event[name] for event in events) for name in ("position", "items", "bytes")}
            # A part's last event may not be its end.
            sums["position"] = total if is_over else min(sums["position"], total)
            self._tell({**events[0], "total": total, **sums})

    def _cancel(self, tasks: list[Any]) -> None:
        for task in tasks:
            self._ray.cancel(task)
        # A task that ends gives up its locks, so that the same call can follow at once.
        _, left = self._ray.wait(tasks, num_returns=len(tasks), timeout=_STOP_WAIT) if tasks else ([], [])
        for task in left:
            self._ray.cancel(task, force=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._board is not None:
            self._ray.kill(self._board)


class _Board:
    """The actor that has the last event of each task."""

    def __init__(self) -> None:
        self._events: dict[str, dict[str, Any]] = {}

    def put(self, name: str, event: dict[str, Any]) -> None:
        self._events[name] = event

    def take(self) -> dict[str, dict[str, Any]]:
        return self._events


def _task(
    command: str,
    storage_options: dict[str, str],
    name: str,
    paths: tuple[str, ...],
    flags: tuple[str, ...],
    options: dict[str, Any],
    board: Any,
) -> tuple[Summary, list[str]]:
    """Runs a command on a node; returns its summary and warnings. Errors name the task and the node."""
    last = 0.0

    def tell(event: dict[str, Any]) -> None:
        nonlocal last
        if board is not None and (time.monotonic() - last > _EVERY or event["position"] == event["total"]):
            last = time.monotonic()
            board.put.remote(name, event)

    until = time.monotonic() + _LOCK_WAIT
    try:
        _look(paths, flags)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            while True:
                try:
                    summary = run(command, paths, tell, storage_options, options, flags)
                    return summary, [str(warning.message) for warning in warned]
                except CommandError as error:
                    # The process of a lost node, or of a driver that was killed, needs a moment to end.
                    if " is in use by " not in str(error) or time.monotonic() > until:
                        raise
                    time.sleep(1)
    except Error as error:
        error.args = (f"{name} on node {_node()}: {error}",)
        raise


def _look(paths: tuple[str, ...], flags: tuple[str, ...]) -> None:
    """Raises an error if a path is not there on this node, which the command would take for a new or an empty one."""
    is_part = any(flag.startswith("--part") for flag in flags)
    for path in paths if "--finish" in flags else paths[:1]:
        if "://" not in path and not os.path.exists(path) and not set(path) & set("*?{["):
            raise MissingError(f"{path} does not exist there; give a path that all nodes share, or a URL", path=path)
    destination = paths[-1]
    marks = (os.path.join(destination, name) for name in (".forebay-pack", "forebay.json"))
    if is_part and "://" not in destination and not any(map(os.path.exists, marks)):
        message = f"{destination} does not have the plan; give a directory that all nodes share, or a URL"
        raise MissingError(message, path=destination)


def _node() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
