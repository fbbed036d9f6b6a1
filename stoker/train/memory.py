"""When the device's memory runs out: the same is done with fewer rows at once, said, and kept."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from stoker.errors import CaptureAgainError, MemoryShortError
from stoker.learn.learner import Learner
from stoker.runs.folder import RunFolder
from stoker.storage.rollout import RolloutStorage
from stoker.train.parts import Parts
from stoker.types import Policy, Rollout

R = TypeVar("R")

_SAME = "which comes to the same and takes a little longer."
_ADVICE = (
    "A smaller network_arch, batch_size or rollout (n_envs x n_steps) takes less memory; "
    "nvidia-smi shows what other programs hold of it."
)


def fitted(attempt: Callable[[], R], smaller: Callable[[str], None]) -> R:
    """What `attempt` gives; where memory runs out it is made again, after `smaller`.

    So one that fails must leave no trace. Amid a capture, whoever captures makes it again.
    """
    while True:
        try:
            return attempt()
        except Exception as error:
            if not _is_for_memory(error):
                raise
            found = str(error)
        smaller(found)  # not above, where the error still holds what the attempt allocated
        if torch.cuda.is_initialized():
            if torch.cuda.is_current_stream_capturing():
                raise CaptureAgainError(found)
            torch.cuda.empty_cache()


def _is_for_memory(error: BaseException | None) -> bool:
    """Whether memory ran out; then the end of a capture may have failed as well."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def halved(rows: int, least: int, doing: str, found: str) -> int:
    """Half of `rows`, or `least`, which is said; an error where there is nothing to halve."""
    sizes = ". ".join(found.split(". ")[:3]).rstrip(".")  # what follows is torch's advice
    short = f"Memory ran out in {doing} with {rows:,} rows at once ({sizes})."
    if rows <= least:
        raise MemoryShortError(f"{short} Fewer are not possible. {_ADVICE}")
    half = max(least, -(-rows // 2))
    warnings.warn(f"{short} From now on it is {half:,} at once, {_SAME} {_ADVICE}", stacklevel=2)
    return half


def save_updates(learner: Learner) -> None:
    """Have `learner` make updates that memory does not suffice for in smaller parts."""

    def smaller(found: str) -> None:
        learner.micro_batch = halved(learner.micro_batch, 1, "an update", found)

    learner.attempt = lambda update: fitted(update, smaller)


def judged(storage: RolloutStorage, policy: Policy, version: int) -> Rollout:
    """`storage.judged_by`, with as many rows at once as memory suffices for."""

    def smaller(found: str) -> None:
        rows = min(storage.rows_at_once, storage.n_steps * storage.n_envs)
        storage.rows_at_once = halved(rows, storage.n_envs, "judging a rollout", found)

    return fitted(lambda: storage.judged_by(policy, version), smaller)


def keep(parts: Parts, folder: RunFolder | None) -> None:
    """Take the size that memory sufficed for into the settings: a resumed run begins with it."""
    learner, compute = parts.learner, parts.config.compute
    if isinstance(learner, Learner) and learner.micro_batch < parts.config.rows_at_once:
        compute = dataclasses.replace(compute, micro_batch=learner.micro_batch)
        parts.config = dataclasses.replace(parts.config, compute=compute)
        if folder is not None:
            with contextlib.suppress(OSError):  # of a full disk: then it is found out again
                folder.write_config(parts.config.flat())
