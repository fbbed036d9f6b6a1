"""The verdict: what a run's time goes to, what limits it, and which changes are worth making.

Everything follows from what was measured. Predictions are of one model: collecting costs a step so
much for environments, hand-over, inference and storing, learning so much for updates; in step these
add up, overlapped the longer counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

ON_DEVICE = "tensor"
"""The pool whose environments step where the network is: the two are timed as one."""
_WAITING = "io"
"""The pool whose environments spend their steps waiting."""
_HOST = ("log", "save")
_LEAST_GAIN = 1.05
_MOST_ADVICE = 3
_WORTH_NAMING = 0.05
_GOES_TO = {
    "rollout": "deciding and stepping on the device",
    "environments": "stepping environments",
    "hand-over": "handing actions and observations over between processes",
    "inference": "deciding on actions",
    "storing": "storing what was seen",
    "learning": "updates",
    "logging": "logging and saving",
    "other": "what no phase covers",
}
_NO_SPEED = (
    "More epochs or a wider network would keep the GPU busier without making a step of training "
    "sooner: that is no speed."
)


class Job(NamedTuple):
    """What a run, or a stretch of it, has measured."""

    wall_s: float
    steps: int
    phases: Mapping[str, float]  # seconds of the thread that learns, by phase
    collecting: Mapping[str, float] | None  # of the thread that collects, where it is another
    worked_s: float | None  # that workers have stepped, all together; None: unknown
    pool: str
    workers: int  # 0: environments step in the trainer
    n_envs: int
    cores: int
    on_gpu: bool
    inference_at: Mapping[int, float] | None = None
    """Seconds to decide for so many environments at once, where that was tried."""
    overlap_tried: bool = False
    """Whether overlapping was tried and found to be no quicker."""


class Costs(NamedTuple):
    """Seconds for each step, by what they are spent on, wherever that runs."""

    environments: float
    handover: float
    inference: float
    storing: float
    learning: float
    host: float
    overlapped: bool

    @property
    def collecting(self) -> float:
        return self.environments + self.handover + self.inference + self.storing

    @property
    def total(self) -> float:
        """What a step takes by the model."""
        both = (self.collecting, self.learning)
        return (max(both) if self.overlapped else sum(both)) + self.host


class Advice(NamedTuple):
    """A change, and how many steps a second it should give."""

    change: str
    sps: float
    gain: float  # over what there is now


class Verdict(NamedTuple):
    """What follows from a job."""

    shares: dict[str, float]  # of wall-clock time; they sum to 1
    sps: float
    ceilings: dict[str, float]  # steps a second that each part alone could make
    limit: str  # the part with the lowest ceiling
    advice: list[Advice]
    paragraph: str


def judge(job: Job) -> Verdict:
    """The verdict on a job that has made steps."""
    costs, shares = costs_of(job), shares_of(job)
    sps = job.steps / job.wall_s
    ceilings = ceilings_of(job, costs)
    limit = min(ceilings, key=lambda name: ceilings[name])
    advice = sorted(_worth_it(job, costs, sps), key=lambda each: -each.gain)[:_MOST_ADVICE]
    said = [*_where(shares), *_limited(sps, ceilings, limit), *_advised(advice, job.pool)]
    paragraph = " ".join([*said, _NO_SPEED] if job.on_gpu else said)
    return Verdict(shares, sps, ceilings, limit, advice, paragraph)


def shares_of(job: Job) -> dict[str, float]:
    """What wall-clock time goes to, as the learner sees it; its waiting is what collecting did."""
    waited = job.phases.get("wait", 0.0)
    collected = _collected(job.collecting if job.collecting is not None else job.phases, job)
    whole = sum(collected.values())
    if job.collecting is not None and whole:
        collected = {name: waited * took / whole for name, took in collected.items()}
    spent = {
        **collected,
        "learning": job.phases.get("update", 0.0),
        "logging": sum(job.phases.get(name, 0.0) for name in _HOST),
    }
    shares = {name: took / job.wall_s for name, took in spent.items()}
    return shares | {"other": max(0.0, 1.0 - sum(shares.values()))}


def costs_of(job: Job) -> Costs:
    """What a step costs."""
    collected = _collected(job.collecting if job.collecting is not None else job.phases, job)
    learned = job.phases.get("update", 0.0)
    named = sum(job.phases.values())
    host = sum(job.phases.get(name, 0.0) for name in _HOST) + max(0.0, job.wall_s - named)
    each = {name: took / job.steps for name, took in collected.items()}
    return Costs(
        each.get("environments", each.get("rollout", 0.0)),
        each.get("hand-over", 0.0),
        each.get("inference", 0.0),
        each.get("storing", 0.0),
        learned / job.steps,
        host / job.steps,
        overlapped=job.collecting is not None,
    )


def job_of(costs: Costs, steps: int, like: Job) -> Job:
    """A job of so many steps that cost that much, on the same pool: what `costs_of` reads back."""
    whole = {name: each * steps for name, each in costs._asdict().items() if name != "overlapped"}
    collected = {
        "env": whole["environments"] + whole["handover"],
        "inference": whole["inference"],
        "store": whole["storing"],
    }
    phases = {"update": whole["learning"], "log": whole["host"]}
    if costs.overlapped:
        phases["wait"] = max(0.0, costs.collecting * steps - whole["learning"])
    worked = None if like.worked_s is None else like.worked_s / like.steps * steps
    return like._replace(
        wall_s=costs.total * steps,
        steps=steps,
        phases=phases if costs.overlapped else phases | collected,
        collecting=collected if costs.overlapped else None,
        worked_s=worked,
    )


def _collected(phases: Mapping[str, float], job: Job) -> dict[str, float]:
    """Seconds of collecting. Workers that step are no hand-over, the rest of the waiting is."""
    env = phases.get("env", 0.0)
    if job.pool == ON_DEVICE:
        return {"rollout": env}
    stepping = env
    if job.worked_s is not None and job.workers:
        stepping = min(env, job.worked_s / job.workers)
    return {
        "environments": stepping,
        "hand-over": env - stepping,
        "inference": phases.get("inference", 0.0),
        "storing": phases.get("store", 0.0),
    }


def ceilings_of(job: Job, costs: Costs) -> dict[str, float]:
    """Steps a second that each part could make if nothing else took any time."""
    environments = costs.environments
    if job.worked_s is not None and job.workers:
        environments = job.worked_s / job.workers / job.steps
    parts = {
        "rollout" if job.pool == ON_DEVICE else "environments": environments,
        "inference": costs.inference,
        "learning": costs.learning,
    }
    return {name: 1.0 / cost for name, cost in parts.items() if cost > 0}


def _worth_it(job: Job, costs: Costs, sps: float) -> Iterator[Advice]:
    for change, then in _changes(job, costs):
        gain = costs.total / then.total
        if gain >= _LEAST_GAIN:
            yield Advice(change, sps * gain, gain)


def _changes(job: Job, now: Costs) -> Iterator[tuple[str, Costs]]:
    """Changes that leave learning as it is, or say that they do not, and what they would cost."""
    if job.workers and not now.overlapped and not job.overlap_tried:
        yield "collect while learning (--collect overlap)", now._replace(overlapped=True)
    most = min(job.cores, job.n_envs)
    if job.pool == "process" and job.workers < most:
        fewer = now._replace(environments=now.environments * job.workers / most)
        yield f"use every core ({_workers(most)}, --n-workers {most})", fewer
    if job.pool == "inline" and most > 1:
        spread = now._replace(environments=now.environments / most)
        yield f"step environments in {most} processes (--pool process)", spread
    if job.pool in ("process", "inline"):
        wider = now._replace(
            handover=now.handover / 2, inference=now.inference * _share_at_twice(job)
        )
        twice = f"--n-envs {2 * job.n_envs} with half of --n-steps"
        yield f"step twice as many at once ({twice}: as large a batch, of shorter stretches)", wider


def _share_at_twice(job: Job) -> float:
    """What deciding costs a step where twice as many are decided for at once, over what it does."""
    known = job.inference_at or {}
    now, then = known.get(job.n_envs), known.get(2 * job.n_envs)
    return then / (2 * now) if now and then else 0.5


def _workers(count: int) -> str:
    return f"{count} workers" if count != 1 else "1 worker"


def _where(shares: Mapping[str, float]) -> Iterator[str]:
    ranked = sorted(shares, key=lambda name: -shares[name])
    first, *rest = [name for name in ranked if shares[name] >= _WORTH_NAMING] or ranked[:1]
    told = "".join(f"; {_GOES_TO[name]} {shares[name]:.0%}" for name in rest)
    yield f"Most time goes to {_GOES_TO[first]}, {shares[first]:.0%}{told}."


def _limited(sps: float, ceilings: Mapping[str, float], limit: str) -> Iterator[str]:
    alone = ceilings[limit]
    yield (
        f"With nothing but {_GOES_TO[limit]} there would be {alone:,.0f} steps a second; there are "
        f"{sps:,.0f}, {sps / alone:.0%} of that."
    )


def _advised(advice: list[Advice], pool: str) -> Iterator[str]:
    for each in advice:
        yield f"To {each.change} should give {each.sps:,.0f}, {each.gain:.2f} times as many."
    if pool == _WAITING:
        yield (
            "As environments wait, more in flight (--in-flight) give more steps for as long as "
            "workers have cores left, which is not measured here: `stoker tune` finds how many."
        )
    elif not advice:
        yield "No setting that leaves learning as it is would change that by much."
