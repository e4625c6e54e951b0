"""Decode servers as actors of a Ray cluster. Owns their processes and places; `forebay serve` owns the serving."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from typing import Any

from forebay._command import child, words_of
from forebay._errors import OptionError, ServerError
from forebay._options import count, library
from forebay._ray_commands import Path, everywhere, places_of

# Starts of a server that replaces a lost one, whose port may be taken for a moment, and seconds between them.
_STARTS, _BETWEEN = 20, 0.5


class Servers:
    """Decode servers that `serve` started. It pickles: give it to the workers of a training.

    They end with `stop`, at the end of a `with` block, or with the last process of the job that holds them.
    """

    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors

    @property
    def addresses(self) -> list[str]:
        """The URL of each server, where it is now."""
        import ray

        try:
            return list(ray.get([actor.url.remote() for actor in self._actors]))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise ServerError(f"a server is lost: {error}") from error

    @property
    def url(self) -> str:
        """One URL of all servers, which `forebay.Loader` takes: ``forebay://10.0.0.1:7070,10.0.0.2:7071/imagenet``."""
        addresses = self.addresses
        scheme, _, first = addresses[0].partition("://")
        hosts = ",".join(re.sub(r"^\w+://|/.*", "", address) for address in addresses)
        return f"{scheme}://{hosts}/{first.partition('/')[2]}"

    def stop(self) -> None:
        """Stop the servers; what is being sent arrives."""
        import ray

        ray.wait([actor.stop.remote() for actor in self._actors], num_returns=len(self._actors), timeout=30)
        for actor in self._actors:
            ray.kill(actor)

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def serve(
    dataset: Path,
    replicas: int = 1,
    *,
    port: int = 7070,
    name: str | None = None,
    num_cpus: float = 1,
    resources: Mapping[str, float] | None = None,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Servers:
    """Start decode servers on a Ray cluster, each in an actor, and wait until they listen.

    They are spread over the nodes that have the resources. A server that is lost is started again: on the same node with the
    same port, so trainers connect again by themselves; on another node if that one is lost, where `Servers.url` finds it,
    and trainers continue on the other replicas.

    Parameters
    ----------
    dataset : str or os.PathLike
        The directory with ``forebay.json`` that the nodes share, or its URL.
    replicas : int, default 1
        Number of servers.
    port : int, default 7070
        Port of the first server; each further one takes the next number.
    name : str, optional
        Name of the dataset in the URL, by default that of its directory. Actors are named ``forebay-serve-NAME-0`` and so on.
    num_cpus : float, default 1
        CPUs that Ray reserves for each server. A server uses the cores that it finds; `threads` bounds those of a stream.
    resources : dict of str to float, optional
        Custom resources of each server, which place it on nodes that have them.
    storage_options : dict of str to str, optional
        How a store is reached; see `open`.
    **options
        Of `forebay serve`: `tls_cert`, `tls_key`, `token_file`, `insecure`, `threads`, `memory`, `cache_dir` and others. Servers
        listen on the addresses of their nodes, which needs TLS and tokens, or `insecure=True` on a network that you trust.

    Returns
    -------
    Servers
        `url` is what loaders open.

    Raises
    ------
    ModuleNotFoundError
        When ray is not installed.
    OptionError
        An invalid option, or a name whose servers run.
    ServerError
        When a server ends before it listens; the message has what it said.

    Examples
    --------
    >>> servers = forebay.ray.serve("/shared/packed", replicas=4, num_cpus=16, insecure=True)  # doctest: +SKIP
    >>> loader = forebay.Loader(servers.url, split="train", batch_size=256)  # doctest: +SKIP
    """
    ray = library("ray", "ray")
    count("replicas", replicas, 1, "as something has to serve")
    if num_cpus <= 0:
        raise OptionError(f"option num_cpus is {num_cpus}: expected more than 0, as a server decodes")
    count("port", port, 1, "the same one after a restart")
    if "listen" in options:
        raise OptionError("listen: servers listen on the addresses of their nodes, from port= on: leave it out")
    path = everywhere(dataset)
    name = name or os.path.basename(path.partition("?")[0].rstrip("/"))
    words = [f"--name={name}", *words_of("serve", options)]
    words += [f"--storage-option={key}={value}" for key, value in (storage_options or {}).items()]
    if not ray.is_initialized():
        ray.init()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node, _ in places_of(ray, num_cpus, resources)]
    actors = []
    try:
        for i in range(replicas):
            place = NodeAffinitySchedulingStrategy(nodes[i % len(nodes)], soft=True) if nodes else "SPREAD"
            actor = ray.remote(_Server).options(
                name=f"forebay-serve-{name}-{i}",
                num_cpus=num_cpus,
                resources=dict(resources or {}),
                max_restarts=-1,
                max_task_retries=-1,
                scheduling_strategy=place,
            )
            actors.append(actor.remote(path, port + i, words))
        servers = Servers(actors)
        _ = servers.addresses
    except ValueError as error:
        for actor in actors:
            ray.kill(actor)
        if "already" not in str(error):
            raise
        raise OptionError(f"name: servers of {name!r} run already: stop them, or choose another name") from error
    except BaseException:
        for actor in actors:
            ray.kill(actor)
        raise
    return servers


class _Server:
    """The actor: it has the process of a server, and ends with it, so that Ray starts both again."""

    _stopping = False

    def __init__(self, path: str, port: int, words: list[str]) -> None:
        import ray

        self._where = f"{ray.util.get_node_ip_address()}:{port}"
        self._command = ["serve", f"--listen={self._where}", *words, "--", path]
        self._url: str | None = None
        with warnings.catch_warnings():
            # Ray warns of what it uses itself.
            warnings.simplefilter("ignore")
            again = ray.get_runtime_context().was_current_actor_reconstructed
        for _ in range(_STARTS if again else 1):
            self._start()
            if self._url is not None:
                return
            time.sleep(_BETWEEN)
        if again:
            os._exit(1)

    def _start(self) -> None:
        self._said: collections.deque[str] = collections.deque(maxlen=20)
        self._ready = threading.Event()
        # It ends with the actor: otherwise it would hold the port that the next one needs.
        self._process = child(self._command, subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ready.wait()

    def _read(self) -> None:
        """Passes the log on, and ends the actor when the server ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line.strip())
            print(line, end="", file=sys.stderr, flush=True)
            if self._url is None and (found := re.match(r"forebays?://\S+", line)):
                self._url = found[0]
                self._ready.set()
        self._process.wait()
        if self._url is not None and not self._stopping:
            os._exit(1)
        self._ready.set()

    def url(self) -> str:
        if self._url is None:
            said = "; ".join(line.split(": ", 1)[1] for line in self._said if line.startswith(("error: ", "hint: ")))
            raise ServerError(f"the server on {self._where} did not start: {said or ' '.join(self._said)}", server=self._where)
        return self._url

    def stop(self) -> None:
        self._stopping = True
        self._process.terminate()
        self._reader.join()
