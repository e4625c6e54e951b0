"""Programs of test_orbax.py: processes that save and load shards, and trainings that are killed."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback

import jax
import numpy as np
import orbax.checkpoint as ocp

import forebay
from forebay.integrations.orbax import Restore, Save, directory

ROWS, COLUMNS = 24, 1000
DEVICES = 4


def whole(step: int) -> np.ndarray:
    return np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) + step


def process(mode: str, run: str, number: int, count: int, meeting: str) -> None:
    """One process: saves its shards of a matrix, or loads those that it has now."""
    if count > 1:
        jax.distributed.initialize(meeting, count, number)
    mesh = jax.make_mesh((DEVICES,), ("x",))

    def sharding(*axes: str | None) -> jax.sharding.NamedSharding:
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))

    def placed(array: np.ndarray, *axes: str | None) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding(*axes), lambda index: array[index])

    copy = np.arange(10, dtype=np.int32)
    with ocp.CheckpointManager(directory(run), item_names=("state", "notes")) as manager:
        if mode == "save":
            state = {"w": placed(whole(1).astype(jax.numpy.bfloat16), "x"), "copy": placed(copy), "own": np.arange(3), "step": 1}
            manager.save(1, args=ocp.args.Composite(state=Save(state), notes=ocp.args.JsonSave({"a": 1})))
            manager.wait_until_finished()
            forebay.checkpoint.wait(60)
            return
        assert manager.latest_step() == 1
        target = {
            "w": jax.ShapeDtypeStruct((ROWS, COLUMNS), jax.numpy.bfloat16, sharding=sharding(None, "x")),
            "copy": ocp.ArrayRestoreArgs(sharding=sharding()), "own": np.zeros(3), "step": 0,
        }  # fmt: skip
        found = manager.restore(1, args=ocp.args.Composite(state=Restore(target), notes=ocp.args.JsonRestore()))
        for shard in found.state["w"].addressable_shards:
            assert (np.asarray(shard.data) == whole(1).astype(jax.numpy.bfloat16)[shard.index]).all()
        assert all((np.asarray(shard.data) == copy).all() for shard in found.state["copy"].addressable_shards)
        assert found.state["own"].tolist() == [0, 1, 2] and found.state["step"] == 1 and found.notes == {"a": 1}


def processes(mode: str, run: str, count: int) -> None:
    """Runs all processes, whose devices are as many together."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        meeting = f"127.0.0.1:{taken.getsockname()[1]}"
    flags = f"--xla_force_host_platform_device_count={DEVICES // count}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, __file__, mode, run]
    children = [
        subprocess.Popen([*words, str(number), str(count), meeting], env=environment, stdout=subprocess.DEVNULL) for number in range(count)
    ]
    assert [child.wait() for child in children] == [0] * count, f"{mode} with {count} processes"
    print(f"{mode}: {count} processes", flush=True)


def training(run: str) -> None:
    """Goes on from the latest step, saves one after the other, and says when each is safe, until it is killed."""
    with ocp.CheckpointManager(directory(run), options=ocp.CheckpointManagerOptions(max_to_keep=3)) as manager:
        step = manager.latest_step() or 0
        if step:
            state = manager.restore(step, args=Restore({"w": jax.numpy.zeros((ROWS, COLUMNS)), "step": 0}))
            assert state["step"] == step and (np.asarray(state["w"]) == whole(step)).all(), step
        assert (forebay.checkpoint.latest(run) or "/0").endswith(f"/{step}")
        os.write(1, f"found {step}\n".encode())
        while True:
            step += 1
            manager.save(step, args=Save({"w": jax.numpy.asarray(whole(step)), "step": step}))
            manager.wait_until_finished()
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
            try:
                training(run)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(writing)
        lines = os.fdopen(reading)
        found = lines.readline()
        assert found.startswith("found"), "the training failed before it saved"
        step = int(found.split()[1])
        # One more than what was said may be safe: the process was killed before it could say so.
        assert safe <= step <= safe + 1, f"step {safe} was safe, and {step} was found"
        # In a later save, or between two.
        for _ in range(chance.randrange(1, 4)):
            seen = int(lines.readline())
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said = lines.read().split("\n")[:-1]
        safe = max(int(said[-1]) if said else step, seen)
        lines.close()
    print(f"{number} kills, last step {safe}")


if __name__ == "__main__":
    if len(sys.argv) > 3:
        process(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
        sys.exit()
    place, wanted = sys.argv[1:]
    processes("save", f"{place}/processes", 2)
    for count in (1, 2):
        processes("load", f"{place}/processes", count)
    kills(f"{place}/killed", int(wanted), seed=1)
