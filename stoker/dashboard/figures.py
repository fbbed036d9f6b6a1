"""A run in figures: what its time went to, how fast it was, what it used, what came of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from stoker.runs.reader import Run, Stretch, number_of, text_of

_KNOWN_FOR = 0.9
"""The share of a run's time that a figure must be known for, to speak of all of it."""


class Figures(NamedTuple):
    """Of one run; None is unknown. Shares are 0 to 1."""

    name: str
    env: str | None
    state: str
    gpu: str | None
    """The name of the GPU it trained on; None without one."""
    cores: int | None
    agents: int
    steps: int | None
    """Environment steps, of all agents together."""
    wall_s: float | None
    sps: float | None
    reward: float | None
    """Mean of the last hundred episodes in training; of a population, of all agents'."""
    best_agent_reward: float | None
    eval_reward: float | None
    gpu_busy: float | None
    sm_active: float | None
    gpu_memory_gib: float | None
    gpu_power_w: float | None
    gpu_kj_per_million_steps: float | None
    cpu: float | None
    overlap_efficiency: float | None
    phases: dict[str, dict[str, float]]
    """By thread, the share of its time that each phase took; "other" is what none covers."""
    verdict: str | None
    trouble: str | None
    missing: list[str]
    """What this run cannot tell, and why."""


def figures_of(run: Run) -> Figures:
    """All figures that follow from what a run has written down."""
    status, summary = run.status, run.summary
    agents = int(number_of(run.config, "population") or 1)
    steps = None if summary.env_steps is None else summary.env_steps * agents
    gpu = _gpu_means(run)
    power = gpu.get("power_w")
    cores = number_of(status, "cores")
    return Figures(
        name=summary.name,
        env=summary.env,
        state=summary.state,
        gpu=text_of(status, "gpu"),
        cores=None if cores is None else int(cores),
        agents=agents,
        steps=steps,
        wall_s=summary.wall_s,
        sps=summary.sps,
        reward=summary.reward,
        best_agent_reward=number_of(status, "population/best"),
        eval_reward=summary.eval_reward,
        gpu_busy=gpu.get("busy"),
        sm_active=gpu.get("sm_active"),
        gpu_memory_gib=gpu.get("memory_used_gib"),
        gpu_power_w=power,
        gpu_kj_per_million_steps=_energy(power, summary.wall_s, steps),
        cpu=means((each.seconds, each.host) for each in run.timeline).get("cpu"),
        overlap_efficiency=number_of(status, "overlap_efficiency"),
        phases=shares(run.timeline),
        verdict=text_of(status, "verdict"),
        trouble=text_of(status, "trouble"),
        missing=list(_missing(run)),
    )


def _energy(power_w: float | None, wall_s: float | None, steps: int | None) -> float | None:
    """Of the GPU alone: what other parts of a machine take is not measured."""
    if power_w is None or wall_s is None or not steps:
        return None
    return power_w * wall_s / 1e3 / (steps / 1e6)


def means(weighed: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Means over time of the figures that are known for nearly all of it."""
    sums: defaultdict[str, float] = defaultdict(float)
    known: defaultdict[str, float] = defaultdict(float)
    whole = 0.0
    for seconds, figures in weighed:
        whole += seconds
        for name, value in figures.items():
            sums[name] += seconds * value
            known[name] += seconds
    return {name: sums[name] / known[name] for name in sums if known[name] >= _KNOWN_FOR * whole}


def _gpu_means(run: Run) -> dict[str, float]:
    if run.timeline:
        return means((each.seconds, each.gpu) for each in run.timeline)
    return means(_logged_gpu(run.metrics))


def _logged_gpu(metrics: Sequence[dict[str, Any]]) -> Iterable[tuple[float, dict[str, float]]]:
    """What a run without a timeline has logged of its GPU, by the time between log lines."""
    logged = [line for line in metrics if number_of(line, "time/fps") is not None]
    for before, line in pairwise([{"wall_s": 0.0}, *logged]):
        began, ended = number_of(before, "wall_s"), number_of(line, "wall_s")
        if began is not None and ended is not None and ended > began:
            found = {n.removeprefix("gpu/"): number_of(line, n) for n in line if n[:4] == "gpu/"}
            yield ended - began, {name: value for name, value in found.items() if value is not None}


def shares(timeline: Sequence[Stretch]) -> dict[str, dict[str, float]]:
    """What each thread did, as shares of the time it was watched; they sum to 1."""
    threads: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for each in timeline for name in each.threads):
        spent: defaultdict[str, float] = defaultdict(float)
        for each in timeline:
            for phase, seconds in each.threads.get(name, {}).items():
                spent[phase] += seconds
        whole = max(sum(each.seconds for each in timeline), sum(spent.values()))
        threads[name] = {phase: seconds / whole for phase, seconds in spent.items()}
        threads[name]["other"] = max(0.0, 1.0 - sum(threads[name].values()))
    return threads


def _missing(run: Run) -> Iterable[str]:
    if not run.status:
        yield "status.json is missing or damaged: speed, steps and state are unknown."
    if not run.config:
        yield "config.yaml is damaged: what was trained is unknown."
    if not run.timeline:
        yield (
            "There is no timeline: the run is older than timelines, trained with --no-monitor, or "
            "ended before anything was written. What each thread did is unknown."
        )
    if run.status and not text_of(run.status, "verdict"):
        yield (
            "There is no verdict: environments step on the device, where the host sees launches "
            "and not what they take; or no iteration has ended."
        )
    if not any(number_of(line, "rollout/ep_rew_mean") is not None for line in run.metrics):
        yield "No reward was logged: no episode has ended, or metrics.jsonl is missing."
