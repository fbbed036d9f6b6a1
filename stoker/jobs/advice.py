"""Whether one process with a population would do what the jobs do, and sooner."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.config.load import base_config
from stoker.config.numbers import parse_sizes
from stoker.envs import TENSORS
from stoker.jobs.words import Job

_DIFFER = ("seed", "run_name")


def population_instead(jobs: Sequence[Job]) -> str | None:
    """What to type instead, where jobs differ in their seeds alone and step on the GPU; or None."""
    first = jobs[0]
    if len(jobs) < 2 or any(job.words[0] != "train" for job in jobs):
        return None
    alike = [{k: v for k, v in job.settings.items() if k not in _DIFFER} for job in jobs]
    env = str(first.settings.get("env", ""))
    if any(each != alike[0] for each in alike) or env not in TENSORS:
        return None
    if first.settings.get("device") == "cpu" or "population" in first.settings:
        return None
    if not _small(first):
        return None
    return (
        f"The jobs differ in their seeds alone, and {env} steps on the GPU: one process trains all "
        f"of them at once, sooner, with `stoker train ... --population {len(jobs)}` "
        "(docs/population.md)."
    )


def _small(job: Job) -> bool:
    """Whether a population's kernels take the network."""
    from stoker.kernels.mlp import DEEPEST, MOST_HIDDEN  # which imports torch

    default = base_config(None, on_gpu=True).network.network_arch
    try:
        sizes = parse_sizes(job.settings.get("network_arch", default))
    except ValueError:
        return False
    return len(sizes) <= DEEPEST and max(sizes, default=0) <= MOST_HIDDEN
