"""The scripts of docs/how-to/slurm.md on a cluster of SLURM's own daemons, on loopback, where slurm-wlm is installed."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from conftest import forebay_command

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "how-to" / "slurm.md"
DAEMONS = ("munged", "slurmctld", "slurmd")

pytestmark = [
    pytest.mark.skipif("FOREBAY_TEST_FULL" not in os.environ, reason="`tools/test full` runs it: it starts a cluster"),
    pytest.mark.skipif(any(shutil.which(daemon) is None for daemon in DAEMONS), reason="slurm-wlm is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts tasks as their users, which takes root"),
]


def script(first_words: str) -> str:
    """The block of the page that has these words."""
    blocks: list[str] = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if first_words in block]
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A cluster of one node; the directory has the scripts of tasks."""
    # Paths of sockets are short.
    root = pathlib.Path(subprocess.check_output(["mktemp", "-d", "/tmp/slurm-XXXXXX"], text=True).strip())
    (root / "munge").mkdir(mode=0o700)
    (root / "munge" / "key").write_bytes(os.urandom(1024))
    (root / "munge" / "key").chmod(0o400)
    for name, words in (("prolog", "STAGE_IN:-"), ("epilog", "--drain")):
        (root / f"{name}.sh").write_text(script(words))
        (root / f"{name}.sh").chmod(0o755)
    host = socket.gethostname().split(".")[0]
    (root / "slurm.conf").write_text(f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
TaskProlog={root}/prolog.sh
TaskEpilog={root}/epilog.sh
NodeName={host} NodeAddr=127.0.0.1 CPUs=32 RealMemory=65536 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={root}/munge/key", f"--socket={root}/munge/socket",
         f"--pid-file={root}/munge/pid", f"--log-file={root}/munge/log", f"--seed-file={root}/munge/seed"],
        ["slurmctld", "-D", "-f", f"{root}/slurm.conf"],
        ["slurmd", "-D", "-N", host, "-f", f"{root}/slurm.conf"],
    ]  # fmt: skip
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = f"{root}/slurm.conf"
    running = []
    try:
        for command in commands:
            with open(root / f"{command[0]}.log", "w") as log:
                running.append(subprocess.Popen(command, stdout=log, stderr=log))
            if command[0] == "munged":
                wait_until((root / "munge" / "socket").exists, lambda: logs(root))
        wait_until(lambda: "idle" in slurm("sinfo", "-h", "-o", "%T"), lambda: logs(root))
        yield root
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)
        if before is None:
            del os.environ["SLURM_CONF"]
        shutil.rmtree(root, ignore_errors=True)


def logs(root: pathlib.Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in root.glob("*.log"))


def slurm(*command: str, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    return done.stdout if done.returncode == 0 else done.stderr


def wait_until(is_so: Callable[[], bool], why: Callable[[], str], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, why()
        time.sleep(0.3)


def jobs_end(directory: pathlib.Path) -> None:
    wait_until(lambda: slurm("squeue", "-h") == "", lambda: slurm("squeue") + logs(directory), 300)


def pack_with_the_scripts(cluster: pathlib.Path, directory: pathlib.Path, source: pathlib.Path, target: str) -> str:
    """Runs the page's chain of jobs with four parts; returns the logs of its jobs."""
    directory.mkdir()
    (directory / "pack.sbatch").write_text(script("#SBATCH --array").replace("1-16", "1-4").replace("PARTS=16", "PARTS=4"))
    (directory / "submit.sh").write_text(script("sbatch --parsable"))
    environment = {**os.environ, "SRC": str(source), "DST": target, "LOCAL": str(directory / "local")}
    done = subprocess.run(["bash", "submit.sh"], cwd=directory, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    jobs_end(cluster)
    return "\n".join(path.read_text(errors="replace") for path in sorted(directory.glob("*.*")) if path.suffix in (".out", ".log"))


def shards_of(directory: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and not path.name.startswith(".")}


@pytest.fixture
def whole(packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> dict[str, bytes]:
    """The shards that one machine makes of the images."""
    done = forebay_command("pack", packed["indexed"].parent / "images", tmp_path / "whole", "--format", "tfrecord")
    assert done.returncode == 0, done.stderr
    return shards_of(tmp_path / "whole")


def test_an_array_packs_what_one_machine_packs(
    cluster: pathlib.Path, packed: dict[str, pathlib.Path], whole: dict[str, bytes], tmp_path: pathlib.Path
) -> None:
    said = pack_with_the_scripts(cluster, tmp_path / "jobs", packed["indexed"].parent / "images", str(tmp_path / "shared"))
    assert shards_of(tmp_path / "shared") == whole, said


def test_an_array_packs_into_a_store(
    cluster: pathlib.Path, packed: dict[str, pathlib.Path], whole: dict[str, bytes], tmp_path: pathlib.Path,
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": s3_endpoint}.items():
        monkeypatch.setenv(name, value)
    said = pack_with_the_scripts(cluster, tmp_path / "jobs", packed["indexed"].parent / "images", "s3://bucket/slurm")
    done = forebay_command("cp", "s3://bucket/slurm", tmp_path / "back")
    assert done.returncode == 0, said + done.stderr
    assert shards_of(tmp_path / "back") == whole


def test_tasks_find_data_and_leave_checkpoints(
    cluster: pathlib.Path, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": s3_endpoint}.items():
        monkeypatch.setenv(name, value)
    assert forebay_command("cp", packed["indexed"], "s3://bucket/pictures").returncode == 0
    # Each of two tasks reads its local copy, saves, and is killed before the upload.
    (tmp_path / "train.py").write_text(
        "import os, forebay\n"
        "rank = int(os.environ['SLURM_PROCID'])\n"
        "assert os.environ['DATASET'].startswith(os.environ['LOCAL'])\n"
        "assert len(forebay.open(os.environ['DATASET']).split('train')) == 42\n"
        "forebay.checkpoint.save(b'%d' % rank, f's3://bucket/run-{rank}/step-1')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "train.sbatch").write_text(f"#!/bin/bash\n#SBATCH --ntasks=2 --output=job.log\nsrun {sys.executable} train.py\n")
    exported = f"--export=ALL,STAGE_IN=s3://bucket/pictures,LOCAL={tmp_path}/local"
    done = subprocess.run(["sbatch", exported, "train.sbatch"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    jobs_end(cluster)
    said = (tmp_path / "job.log").read_text(errors="replace")
    assert said.count("Killed") >= 1 and "AssertionError" not in said, said
    for rank in range(2):
        loaded = forebay_command("ls", "--recursive", f"s3://bucket/run-{rank}")
        assert "step-1" in loaded.stdout, said + loaded.stderr
