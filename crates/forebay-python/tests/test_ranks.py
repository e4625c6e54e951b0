"""Which rank a loader is: options, torch, JAX and launchers, asked when it matters."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import forebay
from forebay import _ranks
from conftest import Serve
from test_loader import TOTAL, content, epochs, loader

VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK", "PMI_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "GROUP_RANK",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def run(arguments: list[str], timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with these variables and none of a launcher."""
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=timeout, env={**clean, **environment}
    )


SLURM = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}
NODES = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "0 of 1"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "1 of 2"),
        ({"RANK": "", "WORLD_SIZE": ""}, "0 of 1"),
        ({"WORLD_SIZE": "1"}, "0 of 1"),
        ({"LOCAL_RANK": "0"}, "0 of 1"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}, "1 of 2"),
        (SLURM, "2 of 4"),
        # The shell of sbatch or salloc, and a step of one task in it.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "0 of 1"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, "0 of 1"),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, "3 of 4"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "1 of 2"),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, "1 of 2"),
        # A child of Lightning's launcher before it made the process group: on the first machine, and on another one.
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}, "1 of 2"),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "0"}, "1 of 4"),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}, "3 of 4"),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}, "2 of 4"),
        # torchrun and what Accelerate and DeepSpeed start.
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}, "2 of 4"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "1 of 2"),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", **NODES}, "3 of 4"),
        ({"WORLD_SIZE": "4", **SLURM}, "2 of 4"),
        # One launcher on each node, which starts the ranks.
        ({"RANK": "3", "WORLD_SIZE": "4", **NODES}, "3 of 4"),
        ({"RANK": "3", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x", **SLURM}, "3 of 4"),
    ],
)
def test_the_environment_names_the_rank(
    packed: dict[str, pathlib.Path], environment: dict[str, Any], expected: str
) -> None:
    code = (
        "import sys, forebay\n"
        "with forebay.Loader(sys.argv[1], batch_size=2, transform=forebay.TrainTransform(16)) as it:\n"
        "    samples = [s for batch in it for s in batch.samples.tolist()]\n"
        "    print(f'{it.rank} of {it.world_size}', samples)\n"
    )
    done = run(["-c", code, os.fspath(packed["indexed"])], **environment)
    rank, _, world_size = expected.split()
    given = epochs(
        packed["indexed"], batch_size=2, transform=forebay.TrainTransform(16),
        rank=int(rank), world_size=int(world_size),
    )  # fmt: skip
    assert done.stdout.strip() == f"{expected} {[s for batch in given for s in batch[8]]}", done.stderr


@pytest.mark.parametrize(
    ("environment", "known", "parts"),
    [
        ({"WORLD_SIZE": "2"}, 2, ["the rank is unknown", "world size 2 from the environment variable WORLD_SIZE"]),
        # A child of Lightning's launcher on the second machine: how many ranks has the first one?
        (
            {"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1"},
            4,
            ["the rank is unknown", "world size 4 from the environment variable WORLD_SIZE", "LOCAL_RANK is 1", "LOCAL_WORLD_SIZE"],
        ),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 4, ["the rank is unknown"]),
        ({"RANK": "0"}, None, ["the number of ranks is unknown", "rank 0 from the environment variable RANK"]),
        ({"LOCAL_RANK": "1"}, None, ["the rank is unknown", "LOCAL_RANK is 1"]),
        # Exported once for all tasks of a step.
        (
            {"RANK": "0", "WORLD_SIZE": "4", **SLURM},
            4,
            ["ambiguous", "rank 0 of 4 from the environment variables RANK and WORLD_SIZE", "rank 2 of 4 from the environment variables SLURM_PROCID"],
        ),
        ({"RANK": "0", "WORLD_SIZE": "1", **SLURM}, None, ["ambiguous", "rank 0 of 1", "rank 2 of 4"]),
    ],
)
def test_half_a_rank_and_two_of_them_are_errors_at_the_first_use(
    packed: dict[str, pathlib.Path],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    known: int | None,
    parts: list[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with loader(packed["indexed"], batch_size=2) as it:
        # What does not depend on the rank is known.
        assert (it.records, it.split, it.batch_size, it.epoch) == (TOTAL, "train", 2, 0)
        uses: list[Callable[[], Any]] = [lambda: iter(it), lambda: it.rank, it.state_dict]
        if known is None:
            uses += [lambda: len(it), lambda: it.world_size]
        else:
            # Each rank has as many batches, whichever this one is.
            with loader(packed["indexed"], batch_size=2, rank=1, world_size=known) as one:
                assert (len(it), it.world_size) == (len(one), known)
        for use in uses:
            with pytest.raises(forebay.OptionError) as found:
                use()
            for part in parts:
                assert part in str(found.value)
    with loader(packed["indexed"], batch_size=2, rank=1, world_size=2) as it:
        assert (it.rank, it.world_size) == (1, 2), "options win"


def test_options_name_both_or_neither(packed: dict[str, pathlib.Path]) -> None:
    with pytest.raises(forebay.OptionError, match="option world_size is missing: rank is 0; give both"):
        loader(packed["indexed"], rank=0)
    with pytest.raises(forebay.OptionError, match="option rank is missing: world_size is 2; give both"):
        loader(packed["indexed"], world_size=2)
    with loader(packed["indexed"], world_size=1) as it:
        assert (it.rank, it.world_size) == (0, 1)


class Group(types.ModuleType):
    """`torch.distributed` of a process group, as far as loaders call it."""

    def __init__(self) -> None:
        super().__init__("torch.distributed")
        self.joined: tuple[int, int] | None = None

    def is_initialized(self) -> bool:
        return self.joined is not None

    def get_rank(self) -> int:
        assert self.joined is not None
        return self.joined[0]

    def get_world_size(self) -> int:
        assert self.joined is not None
        return self.joined[1]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group()
    monkeypatch.setitem(sys.modules, "torch.distributed", made)
    return made


def of_kind(kind: str, source: str, **options: Any) -> Any:
    made: Any
    if kind == "mix":
        if source.startswith("forebay"):
            pytest.skip("datasets of servers do not mix")
        made = loader(forebay.Mix([source, source]), **options)  # type: ignore[arg-type]
    else:
        made = loader(source, **options)
    return forebay.Mapped(made, map_batch=lambda batch: batch) if kind == "mapped" else made


@pytest.mark.parametrize("kind", ["loader", "mapped", "mix"])
def test_a_loader_that_is_older_than_the_process_group(source: str, kind: str, group: Group) -> None:
    def given(rank: int, count: int = 1) -> list[Any]:
        with of_kind(kind, source, batch_size=4, rank=rank, world_size=2) as it:
            return [content(batch) for _ in range(count) for batch in it]

    with of_kind(kind, source, batch_size=4) as it:
        whole = len(it)
        assert (it.rank, it.world_size) == (0, 1)
        group.joined = (1, 2)
        assert (it.rank, it.world_size) == (1, 2)
        assert len(it) == whole // 2 and it.state_dict()["digest"]["rank"] == 1
        assert [content(batch) for batch in it] == given(1)
        assert it.epoch_digest().complete
    with of_kind(kind, source, batch_size=4) as it:
        # One batch is looked at before the group exists; that loop ends its epoch.
        group.joined = None
        next(iter(it))
        group.joined = (0, 2)
        assert [content(batch) for batch in it] == given(0, 2)[len(it) :]


def test_a_running_loop_keeps_its_rank(source: str, group: Group) -> None:
    with loader(source, batch_size=4) as it:
        alone = epochs(source, batch_size=4)
        batches = iter(it)
        got = [content(next(batches))]
        group.joined = (1, 2)
        assert (it.rank, it.world_size) == (0, 1)
        got += [content(batch) for batch in batches]
        assert got == alone
        assert (it.rank, it.world_size) == (1, 2)


def test_a_loop_that_has_begun_without_a_batch_may_change_its_rank(source: str, group: Group) -> None:
    with loader(source, batch_size=4) as it:
        batches = iter(it)
        group.joined = (1, 2)
        assert len(it) == TOTAL // 8
        assert [content(batch) for batch in batches] == epochs(source, batch_size=4, rank=1, world_size=2)


def test_a_state_that_is_loaded_before_the_rank_is_known(
    source: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"batch_size": 4, "rank": 1, "world_size": 2}
    with loader(source, **options) as it:
        batches = iter(it)
        next(batches), next(batches)
        state = it.state_dict()
        rest = [content(batch) for batch in batches]
        digest = it.epoch_digest()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for wrap in (lambda made: made, lambda made: forebay.Mapped(made, map_batch=lambda batch: batch)):
        group.joined = None
        with wrap(loader(source, batch_size=4)) as it:
            it.load_state_dict(state)
            it.set_epoch(0)
            assert (it.epoch, it.position) == (0, 16)
            with pytest.raises(forebay.OptionError, match="unknown"):
                iter(it)
            group.joined = (1, 2)
            assert [content(batch) for batch in it] == rest
            assert it.epoch_digest() == digest and digest.complete


def test_the_process_group_and_the_environment(
    packed: dict[str, pathlib.Path], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loader(packed["indexed"], batch_size=2) as it:
        # Lightning's launcher, on the second of two nodes.
        for name, value in {"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1"}.items():
            monkeypatch.setenv(name, value)
        group.joined = (3, 4)
        assert (it.rank, it.world_size) == (3, 4)
        # Variables of nodes, and processes that each of them started.
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert (it.rank, it.world_size) == (3, 4)
        monkeypatch.setenv("WORLD_SIZE", "4")
        with pytest.raises(
            forebay.OptionError,
            match="rank 3 of 4 from torch.distributed, and rank 1 of 4 from the environment variables RANK and WORLD_SIZE",
        ):
            next(iter(it))


def test_jax_is_asked_where_it_is_distributed(
    packed: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = types.ModuleType("jax")
    distributed: Any = types.SimpleNamespace(is_initialized=lambda: False)
    vars(made).update(distributed=distributed, process_index=lambda: 1, process_count=lambda: 2)
    monkeypatch.setitem(sys.modules, "jax", made)
    with loader(packed["indexed"], batch_size=4) as it:
        assert (it.rank, it.world_size) == (0, 1), "asking would start its devices"
        distributed.is_initialized = lambda: True
        assert (it.rank, it.world_size) == (1, 2)


SPAWN = """
import sys
import torch.distributed
import torch.multiprocessing
import forebay, forebay.torch

def work(rank, path, url, port):
    loaders = {}
    for transport, source in ((None, path), ("shm", url), ("tcp", url)):
        options = {"batch_size": 4, "transform": forebay.TrainTransform(16), "transport": transport}
        loaders[f"loader {transport}"] = forebay.Loader(source, **options)
        loaders[f"torch {transport}"] = forebay.torch.Loader(source, prefetch=3, normalize=((0, 0, 0), (1, 1, 1)), **options)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for name, it in loaders.items():
        samples = [s for batch in it for s in batch.samples.tolist()]
        gathered = [None, None]
        torch.distributed.all_gather_object(gathered, samples)
        if rank == 0:
            print(f"{name}:", len(gathered[0]), len(gathered[1]), sorted(sum(gathered, [])))
        it.close()
    torch.distributed.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (*sys.argv[1:], port), nprocs=2)
"""


def test_processes_of_torch_share_an_epoch(packed: dict[str, pathlib.Path], serve: Serve, tmp_path: pathlib.Path) -> None:
    """`mp.spawn` and `init_process_group` set no environment variable."""
    pytest.importorskip("torch")
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    done = run([os.fspath(script), os.fspath(packed["indexed"]), serve(packed["indexed"])])
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert set(lines) == {f"{kind} {transport}" for kind in ("loader", "torch") for transport in (None, "shm", "tcp")}, done.stderr
    for said in lines.values():
        one, two, samples = said.split(" ", 2)
        # The rest of 42 is no batch of two ranks.
        assert (one, two) == ("20", "20")
        assert len(set(samples.strip("[]").split(", "))) == 40


def test_workers_of_a_data_loader_are_ranks(packed: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch) -> None:
    data: Any = types.ModuleType("torch.utils.data")
    data.get_worker_info = lambda: types.SimpleNamespace(id=1, num_workers=2)
    monkeypatch.setitem(sys.modules, "torch.utils.data", data)
    for variables, expected in (({}, (1, 2)), ({"RANK": "1", "WORLD_SIZE": "2"}, (3, 4))):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with loader(packed["indexed"]) as it:
            assert (it.rank, it.world_size) == expected
    with pytest.raises(forebay.OptionError, match="a job of 2 ranks cannot be divided"):
        _ranks.choose(_ranks.claims(), 2)
    data.get_worker_info = lambda: None
    assert _ranks.choose(_ranks.claims(), 2) == (1, 2, True, True)
