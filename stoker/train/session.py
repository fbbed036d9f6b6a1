"""A run in progress: its counters, what it reports, what it keeps, and how it goes on."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor

from stoker.config.schema import Config
from stoker.errors import StokerError, TrainingError
from stoker.monitor.verdict import Verdict
from stoker.pools.on_device import DevicePool
from stoker.runs import checkpoint as checkpoints
from stoker.runs.checkpoint import Checkpoint
from stoker.runs.folder import RunFolder
from stoker.runs.recorder import Recorder
from stoker.train import devices, memory, population, spec_json
from stoker.train.evaluate import EvalReport, evaluate
from stoker.train.judging import verdict_on
from stoker.train.overlap import COLLECTING, LEARNING, Decision
from stoker.train.parts import Parts
from stoker.train.progress import Counters, Progress
from stoker.train.saving import Saver
from stoker.train.signals import StopRequest
from stoker.types import LearnReport

_MOST_EMPTY = 100  # rollouts
_STATUS_EVERY_S = 1.0
LOGS_APART_S = 0.25  # where iterations are many a second, and each log would wait for the device


class Session:
    """Parts, counters and, if there is one, the folder they are written to."""

    def __init__(
        self, parts: Parts, folder: RunFolder | None, counters: Counters | None = None
    ) -> None:
        self.parts, self.folder = parts, folder
        self.metrics: dict[str, float] = {}
        self.last_eval: EvalReport | None = None
        self.trouble: str | None = None
        self.unsaved: str | None = None
        """Why the last checkpoint could not be written."""
        self._best_unsaved = False
        self._best_before: tuple[float | None, int | None] = (None, None)
        self._boundary: dict[str, Tensor] = {}
        keep = parts.config.run.keep_checkpoints
        self._saver = Saver(folder.checkpoints, keep) if folder is not None else None
        self._recorder: Recorder | None = None
        self._go_on_from(counters or Counters())
        self._empty = 0
        self._pending = torch.zeros((), device=parts.device)  # skipped updates not yet counted
        self._status_at, self._logged_at = 0.0, time.perf_counter()
        self._decision: Decision | None = None
        self._verdict: Verdict | None = None
        self._hardware = devices.hardware(parts.device)

    def _go_on_from(self, counters: Counters) -> None:
        self.counters = counters
        self._lap_steps = self._steps_before = counters.env_steps
        self._wall_before, self._started = counters.wall_s, time.perf_counter()
        if self.folder is not None:
            if self._recorder is not None:
                self._recorder.close()
            self._recorder = Recorder(self.folder, wall_s_before=counters.wall_s)
            if counters.env_steps:
                self._recorder.truncate_after(counters.env_steps)

    def start_clocks(self) -> None:
        """Time from now on: what went before was building."""
        self._started = time.perf_counter()
        self.parts.restart_clocks()

    def begin_timeline(self) -> None:
        """Write down, from now on, where the time goes."""
        if self.folder is not None and self.parts.watch is not None:
            clocks = self.parts.clocks()
            self.parts.watch.begin_timeline(self.folder, clocks, lambda: self.wall_s)

    def judge(self) -> Verdict | None:
        """The verdict so far, which the status has from now on."""
        self._verdict = verdict_on(self.parts, self.steps_made)
        return self._verdict

    @property
    def config(self) -> Config:
        return self.parts.config

    @property
    def unfinished(self) -> bool:
        return self.counters.env_steps < self.config.run.timesteps

    @property
    def on_last_iteration(self) -> bool:
        return self.counters.env_steps + self.config.total_batch >= self.config.run.timesteps

    @property
    def remaining(self) -> float:
        """The share of the run that lies ahead, for schedules."""
        return 1.0 - self.counters.env_steps / (self.config.n_iterations * self.config.total_batch)

    @property
    def wall_s(self) -> float:
        return self._wall_before + time.perf_counter() - self._started

    @property
    def steps_made(self) -> int:
        """Environment steps of this session, of all agents."""
        return (self.counters.env_steps - self._steps_before) * self.config.run.population

    @property
    def sps(self) -> float | None:
        """Environment steps a second of this session, evaluations left out; None before a step."""
        steps, clock = self.steps_made, self.parts.clock
        return steps / max(clock.elapsed() - clock.total["eval"], 1e-9) if steps else None

    @property
    def log_due(self) -> bool:
        every = self.config.run.log_every
        if not self.unfinished:
            return True
        quick = isinstance(self.parts.pool, DevicePool) or self.parts.replay is not None
        if every == 0 and quick:
            # Before a checkpoint in any case: which is the best must not depend on the time.
            return self.save_due or time.perf_counter() - self._logged_at >= LOGS_APART_S
        return self.counters.iteration % max(every, 1) == 0

    @property
    def eval_due(self) -> bool:
        every, counters = self.config.run.eval_every, self.counters
        return bool(every) and counters.env_steps - counters.evaluated_at >= every

    @property
    def save_due(self) -> bool:
        return self._best_unsaved or self._checkpoint_due

    @property
    def _checkpoint_due(self) -> bool:
        """At the same steps whether or not the run was stopped, and saved then, in between."""
        every = self.config.run.checkpoint_every or max(1, self.config.run.timesteps // 10)
        return self.counters.env_steps // every > self.counters.saved_at // every

    def mark(self) -> None:
        """Remember where the environments and the noise stand, should collecting fail."""
        if self.folder is not None and self.parts.collector.may_fail:
            self._boundary = self.parts.collected_state()

    def advance(self, report: LearnReport) -> None:
        """Count an iteration."""
        self._boundary = {}  # what was learned since does not belong to it
        self.counters.iteration += 1
        self.counters.env_steps += self.parts.collector.steps // self.config.run.population
        self.counters.late_steps += self.parts.collector.late
        self._pending = self._pending + report.skipped
        self._count_empty()
        memory.keep(self.parts, self.folder)
        if self.parts.trial is not None and self.parts.learning:
            self._decision = self.parts.trial.consider() or self._decision

    def _count_empty(self) -> None:
        """Stop when no step has come to anything for long: the run would never end."""
        self._empty = 0 if self.parts.collector.steps else self._empty + 1
        if self._empty >= _MOST_EMPTY:
            raise TrainingError(
                f"None of the steps of the last {_MOST_EMPTY} rollouts came to anything: every "
                "episode was cut off. See whether what the environment asks (a server, say) "
                "answers, and resume."
            )

    def log(self, report: LearnReport) -> Progress:
        """Fetch what the device measured, record it, and say how far the run is."""
        names = list(report.metrics)
        stacked = torch.stack([*(report.metrics[name] for name in names), self._pending])
        with self.parts.clock.phase("update"):  # which has only been launched, on a GPU
            *values, skipped = stacked.tolist()  # sync: the one fetch of a log interval
        wall, shares = self.parts.clock.lap()
        steps = (self.counters.env_steps - self._lap_steps) * self.config.run.population
        self._lap_steps = self.counters.env_steps
        self._count_skipped(int(skipped))
        counters = self.counters
        fresh = {
            **self.parts.collector.metrics(),
            **dict(zip(names, values, strict=True)),
            "train/skipped_updates": counters.skipped_updates,
            "train/micro_batches": -(-self.config.minibatch // self.config.rows_at_once),
            "time/fps": steps / wall,
            "time/iterations": counters.iteration,
            **{f"phase/{name}": share for name, share in shares.items()},
            **self._overlap_metrics(),
            **self.parts.gpu_metrics(),
        }
        # What the GPU did is unknown now where nothing new is said of it.
        self.metrics = {k: v for k, v in self.metrics.items() if not k.startswith("gpu/")}
        with self.parts.clock.phase("log"):
            self.record(fresh)
            self.write_status("running", at_most_every=_STATUS_EVERY_S)
        self._logged_at = time.perf_counter()
        return Progress(
            counters.iteration,
            self.config.n_iterations,
            counters.env_steps,
            self.config.n_iterations * self.config.total_batch,
            self.wall_s,
            steps / wall,
            shares,
            self.metrics,
            self._take_decision(),
        )

    def _take_decision(self) -> Decision | None:
        taken, self._decision = self._decision, None
        return taken

    def _overlap_metrics(self) -> dict[str, float]:
        """What the collector's thread did, where it has one, and what was mended for it."""
        faults = self.parts.pool.faults()
        mended: dict[str, float] = {f"faults/{name}": times for name, times in faults.items()}
        if self.parts.collect_clock is self.parts.clock:
            return mended
        _, shares = self.parts.collect_clock.lap()
        spent = {f"phase/collect_{name}": share for name, share in shares.items()}
        return {**mended, **spent, "lag/dropped": self.counters.late_steps}

    def _count_skipped(self, skipped: int) -> None:
        self._pending = torch.zeros_like(self._pending)
        self.counters.skipped_updates += skipped
        self.counters.bad_in_a_row = self.counters.bad_in_a_row + skipped if skipped else 0
        if self.counters.bad_in_a_row > self.config.learning.max_bad_updates:
            self._roll_back()

    def _roll_back(self) -> None:
        """Return to the last good checkpoint with other noise; the second time, give up."""
        bad = self.counters.bad_in_a_row
        found = (
            f"{bad} updates, with no good iteration in between, had a loss or gradient that is not "
            f"finite (limit: max_bad_updates {self.config.learning.max_bad_updates})."
        )
        advice = "Lower the learning rate, or look for huge rewards or observations."
        if self.counters.rollbacks or not self.folder or not self.counters.saved_at:
            raise TrainingError(f"{found} Stopping. {advice}")
        self.hear_of_checkpoint(wait=True)
        where, saved = checkpoints.load_newest(self.folder.checkpoints)
        warnings.warn(f"{found} Rolling back to {where.name}, once. {advice}", stacklevel=2)
        spent = self.wall_s
        self.restore(saved)
        self._wall_before = spent  # what is thrown away took its time all the same
        self.counters.rollbacks += 1
        self.parts.reseed()

    @property
    def evaluates(self) -> bool:
        """Whether there is a way to make environments for evaluation, and a wish to."""
        return self.parts.eval_factory is not None and self.config.run.eval_episodes > 0

    def evaluate(self, stop: StopRequest) -> None:
        """Measure the policy on environments of its own, unless that was done at this step."""
        factory, run, counters = self.parts.eval_factory, self.config.run, self.counters
        if factory is None or not run.eval_episodes or counters.evaluated_at == counters.env_steps:
            return
        try:
            report = evaluate(
                self.parts.policy,
                factory,
                self.parts.pool.spec,
                self.parts.device,
                episodes=run.eval_episodes,
                seed=run.seed,
                max_steps=run.eval_max_steps,
                pool=self.config.env.pool,
                wanted=lambda: not stop.requested,
                captures=self.parts.whole.captures,
            )
        except StokerError as error:
            warnings.warn(f"The evaluation failed; training is not affected. {error}", stacklevel=2)
            return
        counters.evaluated_at = counters.env_steps
        if not stop.requested:
            self.last_eval = report
            self.record(report.metrics())
            if run.eval_every:
                self._note_best()

    def record(self, metrics: dict[str, float]) -> None:
        """Write metrics down, and remember the last value of each."""
        self.metrics |= metrics
        if self._recorder is not None:
            self._recorder.record(self.counters.env_steps, metrics)

    def save(self) -> None:
        """Write a checkpoint; a disk that is full is said in the status, and training goes on."""
        counters = self.counters
        if self.folder is None or (
            counters.saved_at == counters.env_steps and not self._best_unsaved
        ):
            return
        self.hear_of_checkpoint(wait=True)  # which may have been the best, and not been written
        by_training = not (self.evaluates and self.config.run.eval_every)
        if by_training and (self._checkpoint_due or not self.unfinished):
            self._note_best()  # not where it was stopped: the best is the same without that
        self._best_unsaved = False
        counters.wall_s, counters.saved_at = self.wall_s, counters.env_steps
        self._write(self.checkpoint())

    def save_boundary(self) -> None:
        """After collecting failed: save the run as it was when this iteration began."""
        if self.folder is not None and self._boundary and self.counters.env_steps:
            self.hear_of_checkpoint(wait=True)
            self.counters.wall_s, self.counters.saved_at = self.wall_s, self.counters.env_steps
            whole = self.checkpoint()
            self._write(whole._replace(tensors=whole.tensors | self._boundary))
            self.hear_of_checkpoint(wait=True)

    def _write(self, whole: Checkpoint) -> None:
        assert self.folder is not None, "only a run with a folder is saved"
        assert self._saver is not None
        self._saver.begin(self.counters.env_steps, whole, self.counters.best_step)
        self.hear_of_checkpoint()
        self._write_standings(self.folder)
        self.write_status("running")

    def hear_of_checkpoint(self, wait: bool = False) -> None:
        """Note what came of the last one, if that is known by now or waited for."""
        saved = None if self._saver is None else self._saver.heard(wait)
        if saved is None:
            return
        self.trouble = self.unsaved = saved.trouble
        if not saved.written and self.counters.best_step == saved.step:
            self.counters.best_reward, self.counters.best_step = self._best_before
        if saved.trouble is not None:
            warnings.warn(f"{saved.trouble} Training goes on.", stacklevel=2)

    def _write_standings(self, folder: RunFolder) -> None:
        standings = self.parts.standings()
        try:
            if standings:
                folder.write_population(population.as_json(standings, self.counters.env_steps))
        except OSError as error:
            self.trouble = f"population.json could not be written: {error}"

    def _note_best(self) -> None:
        trained = "rollout/ep_rew_mean" if self.config.run.population == 1 else "population/best"
        name = "eval/mean_reward" if self.config.run.eval_every else trained
        reward, best = self.metrics.get(name), self.counters.best_reward
        if reward is not None and (best is None or reward > best):
            self._best_before = (best, self.counters.best_step)
            self.counters.best_reward, self.counters.best_step = reward, self.counters.env_steps
            self._best_unsaved = True

    def checkpoint(self) -> Checkpoint:
        """Everything, as it is now."""
        state = {
            "counters": dataclasses.asdict(self.counters),
            "metrics": dict(self.metrics),
            "spec": spec_json.encode(self.parts.pool.spec),
            "best_agent": next((best.agent for best in self.parts.standings()), None),
        }
        return Checkpoint(self.parts.tensors(), state, self.config.flat(), self.parts.rows())

    def restore(self, saved: Checkpoint) -> None:
        """Go on from `saved`."""
        self.parts.restore(saved.tensors, saved.rows)
        self._go_on_from(Counters(**saved.state["counters"]))
        self.start_clocks()
        self.metrics = {k: v for k, v in saved.state.get("metrics", {}).items() if v is not None}

    def write_status(self, state: str, at_most_every: float = 0.0) -> None:
        """Rewrite status.json: how the run stands, and the last value of every metric."""
        now = time.perf_counter()
        if self.folder is None or now - self._status_at < at_most_every:
            return
        self._status_at = now
        self.hear_of_checkpoint()
        if state == "running":
            self.judge()
        status = {
            "state": state,
            "env": self.parts.pool.spec.name,
            "env_steps": self.counters.env_steps,
            "timesteps": self.config.run.timesteps,
            "sps": self.sps,
            "wall_s": self.wall_s,
            "overlap_efficiency": self.overlap_efficiency,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            **self._hardware,
            "verdict": None if self._verdict is None else self._verdict.paragraph,
            "trouble": self._any_trouble,
            **self.metrics,
        }
        try:
            self.folder.write_status(status)
        except OSError as error:
            self.trouble = f"status.json could not be written: {error}"

    @property
    def _any_trouble(self) -> str | None:
        watch = self.parts.watch
        return (
            self.trouble
            or (self._recorder.trouble if self._recorder else None)
            or (watch.trouble if watch else None)
        )

    @property
    def overlap_efficiency(self) -> float | None:
        """max(collect, learn) / wall: 1 would be perfect overlap."""
        parts = self.parts
        collected = sum(parts.collect_clock.total[phase] for phase in COLLECTING)
        learned = sum(parts.clock.total[phase] for phase in LEARNING)
        longer = max(collected, learned)
        return longer / max(self.parts.clock.elapsed(), 1e-9) if longer else None

    def close(self) -> None:
        self.hear_of_checkpoint(wait=True)
        if self.parts.watch is not None:
            self.parts.watch.end_timeline()
        if self._recorder is not None:
            self._recorder.close()

    @property
    def where(self) -> Path | None:
        return self.folder.path if self.folder else None
