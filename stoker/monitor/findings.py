"""What is wrong with a machine for a job: from facts to sentences, and nothing else.

Each says what was found, what was expected, and what to do. What is unknown is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_BUSY_BY_OTHERS = 0.25  # of the cores, past which figures wander
_OWN_THREADS = 1.5  # cores' worth of a step, past which an environment has threads of its own
_CLEARLY_USED_GIB = 1.5  # more than a driver keeps for itself
_CLEARLY_BUSY = 0.1
_HELD_BACK = ("power", "heat", "slowdown", "board limit", "reliability")
"""Words in NVML's reasons that mean lost speed; clocks that somebody set are a wish."""


class Facts(NamedTuple):
    """A machine, and what a job wants of it. None is unknown."""

    cores: int = 1
    workers: int = 0
    worker_threads: int = 1  # of BLAS and OpenMP, in each worker
    learner_threads: int = 1
    step_cores: float | None = None  # processor time over wall time of an environment's step
    cores_busy_before: float | None = None  # share, before anything of ours ran
    handles: int | None = None  # files that a process may have open
    handles_needed: int = 0
    shm_free_gib: float | None = None
    shm_needed_gib: float = 0.0
    gpu: str | None = None  # the driver's name for it; None where there is none
    driver: str | None = None
    driver_cuda: tuple[int, int] | None = None  # the newest CUDA that the driver knows
    torch: str = ""
    torch_cuda: str | None = None  # what torch was built for; None: for the CPU alone
    torch_sees_gpu: bool = False
    wants_gpu: bool = True
    throttle: tuple[str, ...] | None = None  # why clocks were held down while it worked
    others_memory_gib: float | None = None  # of other processes on the GPU
    busy_before: float | None = None  # of the GPU, before anything of ours ran
    memory_before_gib: float | None = None


class Finding(NamedTuple):
    """Something that costs speed, or stops a job."""

    what: str
    found: str
    expected: str
    remedy: str

    @property
    def sentence(self) -> str:
        return f"{self.found}; expected {self.expected}. {self.remedy}"


def find(facts: Facts) -> list[Finding]:
    """Everything that is wrong, as far as it is known."""
    return [
        *_torch_and_driver(facts),
        *_threads(facts),
        *_others_on_cores(facts),
        *_handles(facts),
        *_shared_memory(facts),
        *_throttling(facts),
        *_others_on_gpu(facts),
    ]


def _torch_and_driver(facts: Facts) -> Iterator[Finding]:
    if facts.gpu is None or facts.torch_sees_gpu or not facts.wants_gpu:
        return
    if facts.torch_cuda is None:
        yield Finding(
            "torch for the CPU",
            f"torch {facts.torch} is built for the CPU alone, and there is a {facts.gpu}",
            "a build for CUDA",
            "Install one: pytorch.org names the command for this system.",
        )
        return
    built = tuple(int(part) for part in facts.torch_cuda.split(".")[:2])
    if facts.driver_cuda is not None and facts.driver_cuda[0] < built[0]:
        known = ".".join(map(str, facts.driver_cuda))
        yield Finding(
            "driver too old",
            f"The driver {facts.driver or ''} knows CUDA up to {known}, and torch {facts.torch} is "
            f"built for {facts.torch_cuda}",
            f"a driver for CUDA {built[0]}",
            f"Update the driver, or install a torch that is built for CUDA {facts.driver_cuda[0]}.",
        )
        return
    yield Finding(
        "GPU out of sight",
        f"The driver sees a {facts.gpu}, and torch {facts.torch} sees no GPU",
        "both to see it",
        "See whether CUDA_VISIBLE_DEVICES hides it, and whether `nvidia-smi` shows an error.",
    )


def _threads(facts: Facts) -> Iterator[Finding]:
    threads, expected = facts.workers * facts.worker_threads, f"{facts.cores} or fewer"
    if facts.worker_threads > 1 and threads > facts.cores:
        yield Finding(
            "too many threads",
            f"{facts.workers} workers with {facts.worker_threads} threads each are {threads} "
            f"threads on {facts.cores} cores",
            expected,
            "Set OMP_NUM_THREADS=1, or leave it unset: workers then have one each.",
        )
    elif facts.workers > facts.cores:
        yield Finding(
            "too many threads",
            f"{facts.workers} workers share {facts.cores} cores",
            expected,
            f"Use --n-workers {facts.cores}, or 0 for one a core.",
        )
    if facts.learner_threads > facts.cores:
        yield Finding(
            "too many threads",
            f"The learner has {facts.learner_threads} threads on {facts.cores} cores",
            expected,
            f"Use --torch-threads {facts.cores} or fewer.",
        )
    if facts.step_cores is not None and facts.step_cores > _OWN_THREADS and facts.workers > 1:
        yield Finding(
            "too many threads",
            f"A step of the environment keeps {facts.step_cores:.1f} cores busy at once, and "
            f"{facts.workers} workers step together on {facts.cores}",
            "1 core a step",
            "Have the environment use one thread (its own setting, or OMP_NUM_THREADS=1).",
        )


def _others_on_cores(facts: Facts) -> Iterator[Finding]:
    busy = facts.cores_busy_before
    if busy is not None and busy > _BUSY_BY_OTHERS:
        yield Finding(
            "cores in use",
            f"Before anything of this ran, {busy:.0%} of the {facts.cores} cores were busy",
            f"{_BUSY_BY_OTHERS:.0%} or less",
            "Figures will wander: end what else runs, or measure again when it has ended.",
        )


def _handles(facts: Facts) -> Iterator[Finding]:
    if facts.handles is not None and facts.handles < facts.handles_needed:
        yield Finding(
            "too few file handles",
            f"A process may have {facts.handles:,} files open",
            f"{facts.handles_needed:,} or more, for this many workers and environments",
            f"Raise the limit (ulimit -n {facts.handles_needed}), or use fewer of them.",
        )


def _shared_memory(facts: Facts) -> Iterator[Finding]:
    free, needed = facts.shm_free_gib, facts.shm_needed_gib
    if free is not None and needed > free:
        yield Finding(
            "small /dev/shm",
            f"/dev/shm has {free * 1024:,.1f} MiB free",
            f"{needed * 1024:,.1f} or more, which workers share",
            "What they share would lie on a disk. In a container: --shm-size=1g, or --ipc=host.",
        )


def _throttling(facts: Facts) -> Iterator[Finding]:
    reasons = [word for word in facts.throttle or () if any(bad in word for bad in _HELD_BACK)]
    if reasons:
        heat = any("heat" in word or "slowdown" in word for word in reasons)
        remedy = "See to its cooling." if heat else "A higher limit (nvidia-smi -pl) gives more."
        yield Finding(
            "GPU held back",
            f"The clocks of the {facts.gpu} were held down while it worked ({', '.join(reasons)})",
            "full clocks",
            remedy,
        )


def _others_on_gpu(facts: Facts) -> Iterator[Finding]:
    others = facts.others_memory_gib
    if others is None:  # then what there was before says it
        used, busy = facts.memory_before_gib or 0.0, facts.busy_before or 0.0
        if used <= _CLEARLY_USED_GIB and busy <= _CLEARLY_BUSY:
            return
        found = f"Before anything of this ran, the {facts.gpu} was {busy:.0%} busy, {used:.1f} GiB"
        found += " of its memory in use"
    elif others > 0:
        found = f"Other processes hold {others:.1f} GiB of the {facts.gpu}"
    else:
        return
    yield Finding(
        "GPU shared",
        found,
        "it to be free",
        "`nvidia-smi` shows who: end them, or count on less memory and speed.",
    )
