"""Which rank this process is, as torch, JAX and launchers say.

Most of them say it late: a process group is made after the loader, and Lightning sets
environment variables when `fit` begins. So a loader asks here each time that the rank matters.
Nothing is imported: a library that is not loaded yet has no process group.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator

from forebay._errors import OptionError

_ADVICE = (
    "give rank= and world_size=, start the process with a launcher that sets RANK and WORLD_SIZE, "
    "or make the process group before the first loop"
)

# Whether a loader of `forebay.jax` was made: then `jax.process_count` is called, which starts devices.
_uses_jax = False


def ask_jax() -> None:
    """Has JAX asked too, from now on."""
    global _uses_jax
    _uses_jax = True


@dataclasses.dataclass(frozen=True)
class Claim:
    """The rank of this process and the number of ranks, or one of the two, and their source."""

    source: str
    rank: int | None
    world_size: int | None
    # Whether the source starts processes, which may in turn start the ranks: srun, mpirun.
    is_launcher: bool = False

    def __str__(self) -> str:
        if self.rank is None:
            return f"world size {self.world_size} from {self.source}"
        if self.world_size is None:
            return f"rank {self.rank} from {self.source}"
        return f"rank {self.rank} of {self.world_size} from {self.source}"


def claims(in_use: bool = True) -> list[Claim]:
    """All claims about this process, in order of precedence.

    Without `in_use` the function calls nothing that would start devices.
    """
    found = [*_torch(), *_jax(in_use), *_variables("RANK", "WORLD_SIZE")]
    # An mpirun within a step of SLURM started the ranks, and the step started mpirun.
    found += (
        _launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        or _launcher("PMI_RANK", "PMI_SIZE")
        or _launcher("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE")
        # Outside of a step, in the shell of a job, SLURM_PROCID and SLURM_NTASKS may be set too.
        or _launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    )
    return found


def choose(found: list[Claim], job: int | None = None) -> tuple[int, int, bool, bool]:
    """The rank, the number of ranks, and whether each of the two was named.

    `job` is the number of ranks of a server's job. Raises OptionError where no rank follows from
    what was found, or two. Each worker of a DataLoader is a rank of its own, as all of them would deliver the same samples.
    """
    rank, size, *named = _choose(found, job)
    worker, workers = _worker()
    if workers == 1:
        return rank, size, named[0], named[1]
    if job is not None:
        raise OptionError(f"a job of {job} ranks cannot be divided among workers of a DataLoader: loop over the loader without one")
    return rank * workers + worker, size * workers, True, True


def _worker() -> tuple[int, int]:
    """Which worker of a DataLoader of torch this process is, and of how many."""
    get_worker_info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    info = get_worker_info and get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


def _choose(found: list[Claim], job: int | None) -> tuple[int, int, bool, bool]:
    if not found:
        if job is not None and job > 1:
            raise OptionError(
                f"the rank is unknown: the job has {job} ranks, and nothing says which is this one; {_ADVICE}"
            )
        if _number("LOCAL_RANK"):
            raise OptionError(f"the rank is unknown: the environment variable LOCAL_RANK is set alone{_about_local_rank()}; {_ADVICE}")
        return 0, 1, False, False
    chosen = _completed(found[0], found[1:])
    if chosen.rank is None:
        raise OptionError(
            f"the rank is unknown: {chosen}, and nothing says which is this one{_about_local_rank()}; {_ADVICE}"
        )
    if chosen.world_size is None and job is None:
        raise OptionError(f"the number of ranks is unknown: {chosen}, and nothing says of how many; {_ADVICE}")
    for other in found[1:]:
        if _contradicts(other, chosen):
            raise OptionError(
                f"the rank is ambiguous: {chosen}, and {other}; give rank= and world_size=, or unset what is wrong"
            )
    world_size = 1 if chosen.world_size is None else chosen.world_size
    return chosen.rank, world_size, True, chosen.world_size is not None


def world_size(found: list[Claim], job: int | None = None) -> int:
    """The number of ranks, which may be known where the rank is not. Raises OptionError as `choose` does."""
    try:
        _, size, _, is_named = choose(found, job)
    except OptionError:
        sizes = {claim.world_size for claim in found} - {None}
        if job is not None:
            sizes.add(job)
        if len(sizes) != 1:
            raise
        return sizes.pop() * _worker()[1]  # type: ignore[operator]
    if job is None or not is_named:
        return size if job is None else job
    if size != job:
        raise OptionError(f"option world_size: the job has {job}, this client asks for {size}; leave it out, or change one of the two")
    return size


def _completed(claim: Claim, others: list[Claim]) -> Claim:
    """The claim with the half that it lacks, where another one has it and agrees about the rest."""
    if claim.rank is not None and claim.world_size is not None:
        return claim
    if claim.world_size == 1:
        return dataclasses.replace(claim, rank=0)
    for other in others:
        if claim.rank is None and other.world_size == claim.world_size and other.rank is not None:
            source = f"{claim.source} with {other.source}"
            return Claim(source, other.rank, claim.world_size)
        if claim.rank is not None and other.rank == claim.rank and other.world_size is not None:
            source = f"{claim.source} with {other.source}"
            return Claim(source, claim.rank, other.world_size)
    if claim.rank is None and claim.world_size is not None:
        names, rank = _by_machine(claim.world_size)
        if rank is not None and rank < claim.world_size:
            return dataclasses.replace(claim, source=f"{claim.source} with {names}", rank=rank)
    return claim


def _by_machine(world_size: int) -> tuple[str, int | None]:
    """The rank that follows from the rank on this machine, and the variables that say it."""
    local, on_machine = _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE")
    if local is None or on_machine == world_size:
        # All of them are on this machine.
        return "LOCAL_RANK", local
    # Lightning sets the first, torchrun the second.
    name = "NODE_RANK" if os.environ.get("NODE_RANK") else "GROUP_RANK"
    machine = _number(name)
    if machine == 0:
        # However many ranks there are on it: Lightning does not say.
        return f"LOCAL_RANK and {name}", local
    if machine is None or not on_machine or world_size % on_machine or local >= on_machine:
        return "LOCAL_RANK", None
    return f"LOCAL_RANK, LOCAL_WORLD_SIZE and {name}", machine * on_machine + local


def _contradicts(other: Claim, chosen: Claim) -> bool:
    if other.is_launcher and "TORCHELASTIC_RUN_ID" in os.environ:
        # It started torchrun, which numbers its processes by itself.
        return False
    if None not in (other.world_size, chosen.world_size):
        if other.world_size < chosen.world_size:  # type: ignore[operator]
            # It started fewer processes, such as one on each machine, and those started the ranks.
            return False
        if other.world_size != chosen.world_size:
            return True
    return other.rank is not None and other.rank != chosen.rank


def _about_local_rank() -> str:
    local = _number("LOCAL_RANK")
    if local is None:
        return ""
    return (
        f" (LOCAL_RANK is {local}, which counts where LOCAL_WORLD_SIZE says that all ranks are on this machine, "
        "or NODE_RANK says which machine it is)"
    )


def _torch() -> Iterator[Claim]:
    distributed = sys.modules.get("torch.distributed")
    # Absent while the module is still being imported, and where torch was built without it.
    is_initialized = getattr(distributed, "is_initialized", None)
    if distributed is not None and is_initialized is not None and is_initialized():
        yield Claim("torch.distributed", distributed.get_rank(), distributed.get_world_size())


def _jax(in_use: bool) -> Iterator[Claim]:
    jax = sys.modules.get("jax")
    if jax is None:
        return
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if (is_initialized is not None and is_initialized()) or (_uses_jax and in_use):
        count = jax.process_count()
        if count > 1:
            yield Claim("jax", jax.process_index(), count)


def _launcher(rank_name: str, size_name: str) -> list[Claim]:
    """The claim of two variables together; one without the other means something else."""
    if not (os.environ.get(rank_name) and os.environ.get(size_name)):
        return []
    return [dataclasses.replace(claim, is_launcher=True) for claim in _variables(rank_name, size_name)]


def _variables(rank_name: str, size_name: str) -> list[Claim]:
    rank, size = _number(rank_name), _number(size_name)
    if rank is not None and size is not None and rank >= size:
        raise OptionError(
            f"option rank is {rank} (from the environment variable {rank_name}): "
            f"expected a number below {size_name}, {size}"
        )
    if size == 0:
        raise OptionError(f"option world_size is 0 (from the environment variable {size_name}): expected 1 or more")
    names = [name for name, number in ((rank_name, rank), (size_name, size)) if number is not None]
    if not names:
        return []
    source = f"the environment variable{'s' if len(names) > 1 else ''} {' and '.join(names)}"
    return [Claim(source, rank, size)]


def _number(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"option {_OPTIONS.get(name, 'rank')} is {text!r} (from the environment variable {name}): expected a number")
    return int(text)


_OPTIONS = {name: "world_size" for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")}
