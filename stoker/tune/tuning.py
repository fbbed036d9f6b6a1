"""Tuning: candidates of a job, measured as rehearsals under the memory there is."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from stoker.config.schema import Config
from stoker.monitor.verdict import Costs, costs_of
from stoker.train import devices
from stoker.train.sizes import memory_need
from stoker.tune.model import Known, predicted
from stoker.tune.pieces import Pieces, try_decision, try_pieces, try_update
from stoker.tune.reach import seconds_to
from stoker.tune.rehearsal import Rehearsal
from stoker.tune.search import Search, Trial
from stoker.tune.shorten import Shortened, factor_for, shortened_sizes
from stoker.tune.space import Candidate, applied, candidates
from stoker.types import EnvSpec

_MOST_OF_MEMORY = 0.8
_ITERATION_S = 0.5  # of a rehearsed iteration, about
_BASE_S = 3.0
_WARM_UP = 1
_PATIENCE = 1.5  # times what the best took to reach a reward
_ALIKE = ("pool", "collect", "torch_threads", "precision")
"""Settings whose candidates' predictions err alike."""

Tell = Callable[[str], None]
"""Told what is being done."""


class Tuned(NamedTuple):
    """What a search found."""

    config: Config
    """The job's, with the best settings."""
    spec: EnvSpec
    best: Candidate
    base: Trial
    """The job as it was given."""
    trials: list[tuple[Candidate, Trial]]
    """What was measured, best first."""
    considered: int
    pruned: int
    failed: list[tuple[Candidate, str]]
    interrupted: bool
    took_s: float

    @property
    def gain(self) -> float:
        """The best over the job as it was."""
        return self.trials[0][1].measured / self.base.measured if self.base.measured else math.inf


class Workbench:
    """Where candidates of one job are measured; the first is the job as it is."""

    def __init__(self, config: Config, allow_learning: bool, tell: Tell = lambda _: None) -> None:
        self.device = devices.find_device(config.compute.device)
        on_gpu, cores = self.device.type == "cuda", devices.usable_cores()
        tell("measuring the job as it is")
        with Rehearsal(config) as rehearsal:
            self.config, self.spec = rehearsal.resolved, rehearsal.parts.pool.spec
            on_host = not rehearsal.on_device
            pieces = try_pieces(self.config, self.spec, self.device, on_host)
            rehearsal.warm_up(_WARM_UP)
            job = rehearsal.measure(_BASE_S).job
        found = candidates(self.config, pieces.env, cores, on_gpu, allow_learning)
        self.candidates = self._with_base(found)
        pieces, threads = self._pieces_of_all(pieces)
        self._known = Known(self.config, costs_of(job), pieces, threads, cores, on_gpu)
        self.predictions = [1.0 / self._costs(one).total for one in self.candidates]
        tell(f"{len(self.candidates)} candidates are predicted")

    def _costs(self, candidate: Candidate) -> Costs:
        return predicted(self._known, applied(self.config, candidate))

    def _with_base(self, found: list[Candidate]) -> list[Candidate]:
        """Those that fit, after the job as it is."""
        flat, names = self.config.flat(), {name for one in found for name in one}
        base = {name: flat[name] for name in flat if name in names}
        if base.get("collect") == "auto":
            base["collect"] = "step"
        return [base, *(one for one in found if {**base, **one} != base and self._fits(one))]

    def _fits(self, candidate: Candidate) -> bool:
        need = memory_need(applied(self.config, candidate), self.spec, self.device)
        return need.total <= _MOST_OF_MEMORY * need.free

    def _pieces_of_all(self, pieces: Pieces) -> tuple[Pieces, dict[int, float]]:
        """Decisions and updates of every size that a candidate has, and by threads."""
        configs = [applied(self.config, one) for one in self.candidates]
        given = (self.config, self.spec, self.device)
        decided = {one.env.n_envs for one in configs} - pieces.inference_at.keys()
        updated = {one.minibatch for one in configs} - pieces.update_at.keys()
        inference = {size: try_decision(*given, size) for size in decided}
        updates = {size: try_update(*given, size) for size in updated}
        pieces = pieces._replace(
            inference_at=pieces.inference_at | inference, update_at=pieces.update_at | updates
        )
        before, threads = torch.get_num_threads(), {}
        for count in sorted({one.compute.torch_threads for one in configs} - {before}):
            torch.set_num_threads(count)
            took = try_update(*given, self.config.minibatch)
            threads[count] = took / pieces.update_at[self.config.minibatch]
        torch.set_num_threads(before)
        return pieces, threads

    def sps(self, number: int, seconds: float) -> float:
        """Steps a second of a candidate, rehearsed for so long."""
        short = self._shortened(self.candidates[number])
        with Rehearsal(short.config) as rehearsal:
            rehearsal.warm_up(_WARM_UP)
            job = rehearsal.measure(seconds).job
        return 1.0 / short.costs(costs_of(job), self.config.run.log_every).total

    def _shortened(self, candidate: Candidate) -> Shortened:
        config = applied(self.config, candidate)
        steps = config.total_batch * config.run.population
        took = steps * self._costs(candidate).total
        factor = factor_for(config, took, _ITERATION_S, whole=True)
        n_steps, _ = shortened_sizes(config, factor)
        ppo = dataclasses.replace(config.ppo, n_steps=n_steps)
        return Shortened(dataclasses.replace(config, learning=ppo), factor, 1.0)

    def kinds(self) -> list[tuple[Any, ...]]:
        """By candidate, with which others its prediction errs alike."""
        return [tuple(one.get(name) for name in _ALIKE) for one in self.candidates]


class Reaching:
    """Scores candidates by how soon training with them reaches a reward: one over the seconds.

    Each time with another seed; whoever takes clearly longer than the best is given up.
    """

    def __init__(self, bench: Workbench, reward: float) -> None:
        self._bench, self._reward = bench, reward
        self._times: dict[int, int] = {}
        self._best_s = math.inf

    def __call__(self, number: int, seconds: float) -> float:
        config = applied(self._bench.config, self._bench.candidates[number])
        times = self._times[number] = self._times.get(number, -1) + 1
        seed = config.run.seed + times
        took = seconds_to(self._reward, config, seed, _PATIENCE * self._best_s)
        self._best_s = min(self._best_s, took or math.inf)
        return 1.0 / took if took else 0.0


def tune(
    config: Config,
    allow_learning: bool = False,
    until_reward: float | None = None,
    tell: Tell = lambda _: None,
) -> Tuned:
    """Search for quicker settings of a job; Ctrl-C ends it with the best so far."""
    began, interrupted = time.perf_counter(), False
    bench = Workbench(config, allow_learning, tell)
    search = Search(bench.predictions, bench.kinds())
    score = bench.sps if until_reward is None else Reaching(bench, until_reward)

    def told(trial: Trial) -> None:
        tell(f"{written(bench.candidates[trial.number])}: {_shown(trial, until_reward)}")

    try:
        search.run(score, told)
    except KeyboardInterrupt:
        if not search.measured:
            raise
        interrupted = True
    ranked = search.ranked()
    base = next((trial for trial in ranked if trial.number == 0), ranked[0])
    best = bench.candidates[ranked[0].number]
    return Tuned(
        applied(bench.config, best),
        bench.spec,
        best,
        base,
        [(bench.candidates[trial.number], trial) for trial in ranked],
        len(bench.candidates),
        search.pruned,
        [(bench.candidates[number], why) for number, why in search.failed.items()],
        interrupted,
        time.perf_counter() - began,
    )


def written(candidate: Candidate) -> str:
    """As flags."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in candidate.items())


def _shown(trial: Trial, until_reward: float | None) -> str:
    if until_reward is None:
        return f"{trial.measured:,.0f} steps/s, {trial.predicted:,.0f} predicted"
    return f"there in {1 / trial.measured:.1f} s" if trial.measured else "not there in time"
