"""Shared by the measurements beside other tools: environments of peers, an S3 server on loopback, the cost of a run."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of the servers that are started here, which listen on loopback only: as crates/forebay-rigs/src/s3.rs has them.
KEY, SECRET, BUCKET = "RIGACCESSKEY", "rig-secret-key", "bucket"
# The imports of `streaming`. It declares clients of stores too, and older versions of NumPy and transformers than it works with.
STREAMING = [
    "torch", "torchvision", "numpy", "pillow", "Brotli", "python-snappy", "xxhash<4", "zstd<2", "catalogue", "tqdm", "transformers",
    "mosaicml-streaming",
]  # fmt: skip
# Installed without what they declare.
ALONE = {"mosaicml-streaming"}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def processor() -> str:
    """The processor, its number of usable cores, and the widest of the instruction sets that decoders have code for."""
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    flags = fields.get("flags", "").split()
    sets = {"avx512_vbmi2": "AVX-512 with VBMI2", "avx512f": "AVX-512", "avx2": "AVX2"}
    widest = next((text for flag, text in sets.items() if flag in flags), "no AVX2")
    return f"{fields.get('model name', 'unknown processor')}, {len(os.sched_getaffinity(0))} cores, {widest}"


def pip(python: pathlib.Path) -> list[str]:
    """The beginning of a command that installs into the environment of an interpreter, which needs no pip."""
    return [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]


def environment(folder: pathlib.Path, packages: Sequence[str]) -> tuple[pathlib.Path | None, str]:
    """An interpreter with these packages, in an environment that is made once, or why there is none."""
    python = folder / "bin/python"
    if (folder / "ready").exists():
        return python, ""
    if (folder / "failed").exists():
        return None, (folder / "failed").read_text()
    say(f"installing {' '.join(packages)}")
    venv.create(folder, with_pip=False, clear=True)
    alone = [name for name in packages if name in ALONE]
    commands = [[*pip(python), *(name for name in packages if name not in ALONE)]]
    commands += [[*pip(python), "--no-deps", *alone]] if alone else []
    reason = ""
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
            if done.returncode != 0:
                reason = reason or (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        except subprocess.TimeoutExpired:
            reason = "pip took more than half an hour"
    (folder / ("failed" if reason else "ready")).write_text(reason.strip())
    return (None, reason.strip()) if reason else (python, "")


def needed(folder: pathlib.Path, packages: Sequence[str]) -> pathlib.Path:
    """The bin directory of such an environment, without which nothing can be measured."""
    python, reason = environment(folder, packages)
    if python is None:
        raise SystemExit(f"{' '.join(packages)} cannot be installed here: {reason}")
    return python.parent


def build() -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    """The command, the example that uses the object_store crate plainly, and the S3 server, in the release profile."""
    say("building")
    cargo = ["cargo", "build", "--release", "--quiet"]
    subprocess.run([*cargo, "-p", "forebay-cli"], cwd=ROOT, check=True)
    subprocess.run([*cargo, "-p", "forebay-store", "--example", "object_store_plain"], cwd=ROOT, check=True)
    subprocess.run([*cargo, "-p", "forebay-rigs", "--example", "s3_server"], cwd=ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    return target / "forebay", target / "examples/object_store_plain", target / "examples/s3_server"


class Server:
    """An S3 server on loopback, ended with the `with` block. The link is a latency in ms and a bandwidth in MB/s."""

    def __init__(self, which: str, work: pathlib.Path, s3_server: pathlib.Path, link: Sequence[str] = ()) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.bucket = BUCKET
        if "://" in which:
            self.url, self.bucket = which, os.environ["BENCH_BUCKET"]
            return
        os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1")
        os.environ.update(AWS_DEFAULT_REGION="us-east-1", AWS_ALLOW_HTTP="true")
        if which == "s3s-fs":
            # Its objects are files of a temporary directory, which goes with it.
            environ = {**os.environ, "TMPDIR": str(work)}
            pipe = subprocess.PIPE
            self.process = subprocess.Popen([s3_server, *link], stdin=pipe, stdout=pipe, env=environ, text=True)
            assert self.process.stdout is not None
            self.url = self.process.stdout.readline().strip()
            return
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [needed(work / "venv-moto", ["moto[server]"]) / "moto_server", "-p", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
        self.wait()
        # Any such request makes a bucket there.
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")).close()

    def wait(self) -> None:
        for _ in range(300):
            try:
                urllib.request.urlopen(self.url).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                if self.process is not None and self.process.poll() is not None:
                    raise SystemExit("the server ended at once")
                time.sleep(0.1)
        raise SystemExit("the server does not answer")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        else:
            self.process.terminate()
        self.process.wait()


def cpu_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def print_cost(work: Callable[[], object]) -> None:
    """Does the work, and prints what it cost as JSON, which `measured` reads."""
    before, start = cpu_seconds(), time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    rss = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"seconds": seconds, "cpu": cpu_seconds() - before, "rss_kib": rss}))


def pinned(cores: int) -> list[str]:
    """The beginning of a command that keeps to the first cores."""
    return ["taskset", "-c", ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:cores])]


def measured(
    command: list[str], cores: int, source: str = os.devnull, target: str = os.devnull, prints_cost: bool = False
) -> tuple[float, float, int]:
    """Seconds, processor seconds and peak KiB of a pinned command: of its work alone, if it prints them by `print_cost`."""
    with open(source, "rb") as stdin, open(target, "wb") as stdout, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            pinned(cores) + command, stdin=stdin, stdout=subprocess.PIPE if prints_cost else stdout, stderr=errors
        )
        printed = process.stdout.read() if process.stdout else b""
        # wait4 tells of this one child, not of all there ever were.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"exit code {process.returncode}")
    if not prints_cost:
        return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss
    cost = json.loads(printed.splitlines()[-1])
    return cost["seconds"], cost["cpu"], cost["rss_kib"]


def sync_files(root: str) -> float:
    """Forces all files below a directory to disk; returns the seconds that it took."""
    start = time.perf_counter()
    for folder, _, names in os.walk(root):
        for name in names:
            file = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(file)
            os.close(file)
    return time.perf_counter() - start
