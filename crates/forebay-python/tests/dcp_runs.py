"""Programs of test_dcp.py: ranks that save and load by torch.distributed.checkpoint, and trainings that are killed."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, zeros

import forebay
from forebay.integrations.dcp import StorageReader, StorageWriter

# Without ranks torch says that it assumes a single process.
warnings.filterwarnings("ignore", "torch.distributed is disabled")
ROWS, COLUMNS = 24, 1000


def whole(step: int) -> torch.Tensor:
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS) + step


def rank(mode: str, place: str, rank: int, world_size: int, meeting: str) -> None:
    """One rank: saves its rows of a matrix, once with a rank that fails, or loads those that it has now."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    mesh = init_device_mesh("cpu", (world_size,))
    run = os.path.dirname(place)
    if mode == "save":
        writer = StorageWriter(keep=2, thread_count=2)

        def state_at(step: int) -> dict[str, Any]:
            return {"model": {"w": distribute_tensor(whole(step), mesh, [Shard(0)])}, "step": step}

        def save(step: int) -> None:
            dcp.async_save(state_at(step), storage_writer=writer, checkpoint_id=f"{run}/step-{step}").result()
            # Parts of older checkpoints that are still on their way when this one is complete are not waited for.
            forebay.checkpoint.wait(60)

        save(1)
        save(2)
        try:
            # The fast disk of one rank is a file.
            broken = StorageWriter(stage=__file__) if rank == 1 else writer
            dcp.save(state_at(3), storage_writer=broken, checkpoint_id=f"{run}/step-3")
        except CheckpointException as error:
            assert os.path.basename(__file__) in str(error), error
        else:
            raise AssertionError("one rank failed, and the others do not know")
        save(4)
        assert forebay.checkpoint.latest(run) == place
    else:
        state: dict[str, Any] = {"model": {"w": zeros(ROWS, COLUMNS, device_mesh=mesh, placements=[Shard(0)])}, "step": 0}
        dcp.load(state, storage_reader=StorageReader(place))
        matrix = state["model"]["w"]
        assert isinstance(matrix, DTensor)
        assert torch.equal(matrix.full_tensor(), whole(4)) and state["step"] == 4
    dist.destroy_process_group()


def ranks(mode: str, place: str, world_size: int) -> None:
    """Runs all ranks, each in a process of its own."""
    meeting = f"{place}-{mode}-{world_size}"
    children = []
    for number in range(world_size):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                rank(mode, place, number, world_size, meeting)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0, f"{mode} with {world_size} ranks"
    print(f"{mode}: {world_size} ranks", flush=True)


def training(run: str, first: int) -> None:
    """Saves a step after the other, and says when each is safe, until it is killed."""
    writer = StorageWriter(keep=3)
    for step in range(first, first + 1000):
        state = {"w": whole(step), "step": step}
        if step % 2:
            dcp.save(state, storage_writer=writer, checkpoint_id=f"{run}/step-{step}")
        else:
            dcp.async_save(state, storage_writer=writer, checkpoint_id=f"{run}/step-{step}").result()
        os.write(1, f"{step}\n".encode())


def kills(run: str, number: int, seed: int) -> None:
    """Kills trainings at random moments. The next one finds the last step that was safe, whole, and goes on from there."""
    chance = random.Random(seed)
    safe = 0
    for _ in range(number):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(writing, 1)
            found = forebay.checkpoint.latest(run)
            step = 0
            if found is not None:
                state = {"w": torch.zeros(ROWS, COLUMNS), "step": 0}
                dcp.load(state, storage_reader=StorageReader(found))
                step = state["step"]
                assert torch.equal(state["w"], whole(step)), found
            os.write(1, f"found {step}\n".encode())
            training(run, step + 1)
        os.close(writing)
        lines = os.fdopen(reading)
        found = lines.readline()
        assert found.startswith("found"), "the training failed before it saved"
        step = int(found.split()[1])
        # One more than what was said may be safe: the process was killed before it could say so.
        assert safe <= step <= safe + 1, f"step {safe} was safe, and {step} was found"
        time.sleep(chance.uniform(0, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said = lines.read().split("\n")[:-1]
        safe = int(said[-1]) if said else step
        lines.close()
    print(f"{number} kills, last step {safe}")


if __name__ == "__main__":
    directory, number = sys.argv[1:]
    os.makedirs(f"{directory}/ranks")
    ranks("save", f"{directory}/ranks/step-4", 2)
    for world_size in (1, 3):
        ranks("load", f"{directory}/ranks/step-4", world_size)
    kills(f"{directory}/killed", int(number), seed=1)
