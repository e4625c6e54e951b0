"""Metrics of loaders for Prometheus, from any training process.

    forebay.metrics.serve(port=9400, train=train_loader, validation=validation_loader)

`serve` answers ``GET /metrics``; `text` gives the same for a server or a push gateway of your own. Counters begin with the loader.
"""

from __future__ import annotations

import http.server
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from forebay._errors import Error, OptionError
from forebay._front import Source

__all__ = ["Exporter", "serve", "text"]

_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Metrics: name below "forebay_loader_", kind, help, and the key of `stats`.
_PLAIN = [
    ("batches_total", "counter", "Batches that were made; some wait for the training.", "batches"),
    ("images_total", "counter", "Images in them.", "images"),
    ("read_bytes_total", "counter", "Bytes read from storage.", "bytes_read"),
    ("samples_failed_total", "counter", "Samples that could not be read or decoded and were replaced.", "failed"),
    ("wait_seconds_total", "counter", "Time that the training waited for batches.", "wait_s"),
    ("handover_seconds_total", "counter", "Time that handing batches out took.", "handover_s"),
    ("reconnects_total", "counter", "Connections to servers that had to be made again.", "reconnects"),
]


def text(**loaders: Source) -> str:
    """The metrics of loaders, in the text format of Prometheus.

    Parameters
    ----------
    **loaders : Loader
        Loaders of any kind, by the value of the label "name". A loader that is closed is left out.

    Examples
    --------
    >>> print(forebay.metrics.text(train=loader))  # doctest: +SKIP
    """
    seen = [(name, loader, stats) for name, loader in loaders.items() if (stats := _stats(loader)) is not None]
    lines: list[str] = []

    def metric(name: str, kind: str, help: str, values: Iterable[tuple[str, Source, Mapping[str, str], Any]]) -> None:
        samples = []
        for who, loader, labels, value in values:
            if value is not None:
                pairs = {"name": who, "split": loader.split, "rank": str(loader.rank), **labels}
                written = ",".join(f'{label}="{_escaped(text)}"' for label, text in pairs.items())
                samples.append(f"forebay_loader_{name}{{{written}}} {float(value)!r}")
        if samples:
            lines.extend([f"# HELP forebay_loader_{name} {help}", f"# TYPE forebay_loader_{name} {kind}", *samples])

    for name, kind, help, key in _PLAIN:
        metric(name, kind, help, ((who, loader, {}, stats.get(key)) for who, loader, stats in seen))
    metric("epoch", "gauge", "The epoch, from 0.", ((who, loader, {}, loader.epoch) for who, loader, _ in seen))
    metric(
        "batch_wait_seconds", "gauge", "How long the training waited for a batch, over the last 1,024 batches.",
        (
            (who, loader, {"quantile": quantile}, stats.get(key))
            for who, loader, stats in seen for quantile, key in (("0.5", "wait_p50_s"), ("0.99", "wait_p99_s"))
        ),
    )  # fmt: skip
    metric(
        "stage_seconds_total", "counter", "Time of the threads of each stage: at work, waiting for input or for room.",
        (
            (who, loader, {"stage": stage, "state": state}, times[f"{state}_s"])
            for who, loader, stats in seen for stage, times in stats["stages"].items() for state in ("busy", "starved", "blocked")
        ),
    )  # fmt: skip
    metric(
        "bound", "gauge", "1 for what limits the training: see docs/loader.md.",
        ((who, loader, {"bound": stats["bound"]}, 1) for who, loader, stats in seen if stats["bound"]),
    )  # fmt: skip
    return "".join(line + "\n" for line in lines)


def _stats(loader: Source) -> dict[str, Any] | None:
    try:
        stats: dict[str, Any] = loader.stats()
        return stats
    except Error:
        # Closed, or its server does not answer now.
        return None


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], loaders: Mapping[str, Source]) -> None:
        self.loaders = {name: weakref.ref(loader) for name, loader in loaders.items()}
        super().__init__(address, _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    # Seconds that a client may take for its request.
    timeout = 10

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            return self.send_error(404, "the metrics are at /metrics")
        live = {name: loader for name, of in self.server.loaders.items() if (loader := of()) is not None}
        content = text(**live).encode()
        self.send_response(200)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """The output of a training is not for requests."""


class Exporter:
    """A small HTTP server with the metrics of loaders; made by `serve`. It does not keep the loaders alive."""

    def __init__(self, host: str, port: int, loaders: Mapping[str, Source]) -> None:
        try:
            self._server = _Server((host, port), loaders)
        except (OSError, OverflowError) as error:
            raise OptionError(f"host, port: cannot listen on {host}:{port}: {error}") from error
        self.url = f"http://{host}:{self._server.server_address[1]}/metrics"
        threading.Thread(target=self._server.serve_forever, name="forebay-metrics", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *of_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<forebay.metrics.Exporter at {self.url}>"


def serve(*, port: int = 0, host: str = "127.0.0.1", **loaders: Source) -> Exporter:
    """Serve the metrics of loaders for Prometheus, in a thread of this process.

    Anyone who reaches the port can read them: names of splits and figures, no data.

    Parameters
    ----------
    port : int, default 0
        The port; 0 for any that is free. Each process of a machine needs its own.
    host : str, default "127.0.0.1"
        The address to listen on: by default this machine alone, "0.0.0.0" for all networks.
    **loaders : Loader
        Loaders of any kind, by the value of the label "name".

    Returns
    -------
    Exporter
        Has `url` and `close`.

    Raises
    ------
    OptionError
        No loader, or an address that cannot be listened on.

    Examples
    --------
    >>> forebay.metrics.serve(port=9400, train=loader)  # doctest: +SKIP
    """
    if not loaders:
        raise OptionError("no loader: give each by a name, as in serve(train=loader)")
    return Exporter(host, port, loaders)
