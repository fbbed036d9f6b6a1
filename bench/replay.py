"""The replay: samples a second, updates a second, the ratio beside a slow environment, and saving.

`sampling` draws 4,096 prioritised rows of Atari's shape and writes their new priorities, captured
as the learner has it, beside TorchRL's prioritised buffer. `updates` compares updates that are
captured with those that are not. `slow environment` has an environment of 50 ms a step: updates
must keep their ratio to its steps. `saving` trains until the replay holds 5 GB, and looks at what
writing it down costs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import torch
from gymnasium import spaces
from torch import Tensor

from bench.record import Cases, Row, named
from bench.seeds import train_all
from bench.turns import by_turns, middle_ratio
from stoker.config import resolve
from stoker.learn.q_learner import QLearner
from stoker.runs.reader import read_metrics
from stoker.storage.replay import Replay
from stoker.train.build import build
from stoker.train.parts import Parts
from stoker.types import PLAIN, ActionSpec, EnvSpec, Finals, LeafSpec, Rollout

_HAS_GPU = torch.cuda.is_available()
_DEVICE = torch.device("cuda" if _HAS_GPU else "cpu")
_SHAPE = (84, 84, 4)
_ROW_BYTES = 84 * 84 * 4
_ENVS, _STEPS = 64, 64
_BATCH = 4096
_GIB = 2**30


class Pictures(gymnasium.Env[Any, Any]):
    """Atari's shape and nothing else: a step costs a few microseconds."""

    observation_space = spaces.Box(0, 255, _SHAPE, np.uint8)
    action_space = spaces.Discrete(6)

    def __init__(self) -> None:
        self._shown = np.random.default_rng(0).integers(0, 255, (8, *_SHAPE), dtype=np.uint8)
        self._age = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._age = 0
        return self._shown[0], {}

    def step(self, action: Any) -> Any:
        self._age += 1
        return self._shown[self._age % 8], float(action == 2), self._age >= 500, False, {}


class Slow(gymnasium.Env[Any, Any]):
    """Waits for 50 ms a step."""

    observation_space = spaces.Box(-1, 1, (16,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self._seen, self._age = np.zeros(16, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._age = 0
        return self._seen, {}

    def step(self, action: Any) -> Any:
        time.sleep(0.05)
        self._age += 1
        return self._seen, float(action == 1), self._age >= 200, False, {}


def _filled(rows: int) -> Replay:
    """A replay of that many rows, all written."""
    action = ActionSpec("discrete", (), "int64", nvec=(6,), start=(0,))
    spec = EnvSpec("pictures", {PLAIN: LeafSpec("image", _SHAPE, "uint8")}, action)
    replay = Replay(spec, rows, _ENVS, 1, 0.99, 0.6, _DEVICE)
    shape = (_STEPS, _ENVS)
    no = torch.zeros(shape, dtype=torch.bool, device=_DEVICE)
    used: dict[str, Any] = dict.fromkeys(Rollout._fields)
    used["obs"] = {PLAIN: torch.randint(0, 255, (*shape, *_SHAPE), dtype=torch.uint8)}
    used["obs"] = {leaf: seen.to(_DEVICE) for leaf, seen in used["obs"].items()}
    used |= {"action": torch.zeros(*shape, 1, dtype=torch.int64, device=_DEVICE), "valid": ~no}
    used |= {"reward": no.float(), "terminated": no, "truncated": no}
    nothing = torch.zeros(0, dtype=torch.int64, device=_DEVICE)
    for _ in range(rows // (_STEPS * _ENVS) + 1):
        replay.append(Rollout(**used), Finals(nothing, {PLAIN: used["obs"][PLAIN][0, :0]}))
    return replay


def _rate(work: Callable[[], object], seconds: float = 3.0) -> float:
    """How often a second it is done."""
    work()
    _wait()
    began, times = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(5):
            work()
        _wait()
        times += 5
    return times / (time.perf_counter() - began)


def _wait() -> None:
    if _HAS_GPU:
        torch.cuda.synchronize()


def _sampling() -> Iterator[Row]:
    rows = 1_000_000 if _HAS_GPU else 20_000
    replay, beta = _filled(rows), torch.tensor(0.4, device=_DEVICE)
    made = torch.tensor(True, device=_DEVICE)

    def ours() -> Tensor:
        noise = torch.rand(_BATCH, device=_DEVICE)
        row, weight = replay.priorities.sample(noise, beta)
        drawn = replay.draw(row, weight)
        replay.priorities.update(row, torch.rand(_BATCH, device=_DEVICE), made)
        return drawn.obs[PLAIN]

    as_learned = _captured(ours) if _HAS_GPU else ours
    sides: dict[str, Callable[[], float]] = {"ours": lambda: _rate(as_learned)}
    if _HAS_GPU:
        sides["not captured"] = lambda: _rate(ours)
    failure = None
    try:
        theirs = _torchrl(replay, rows)
        sides["peer"] = lambda: _rate(theirs)
    except Exception as error:  # whatever it lacks on this machine
        failure = f"{type(error).__name__}: {error}"
    found = by_turns(sides, 3)
    peer = found.get("peer")
    yield Row(
        "replay",
        f"{_BATCH:,} prioritised samples of {rows:,} rows, {_DEVICE.type}",
        round(statistics.median(found["ours"]), 1),
        "samples a second, each drawn and given a new priority",
        None if peer is None else round(statistics.median(peer), 1),
        named("torchrl"),
        None if peer is None else round(middle_ratio(found["ours"], peer), 2),
        details={**found, "peer_failure": failure, "gib": round(rows * _ROW_BYTES / _GIB, 1)},
    )


def _captured(work: Callable[[], object]) -> Callable[[], None]:
    """As a CUDA graph, which is how updates sample on a GPU."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


def _torchrl(replay: Replay, rows: int) -> Callable[[], object]:
    """TorchRL's buffer with as many of the same observations; it keeps the next ones as well."""
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    storage = LazyTensorStorage(rows, device=_DEVICE)
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=storage, batch_size=_BATCH
    )
    seen = replay.obs[PLAIN][: _STEPS * _ENVS]
    content = {"obs": seen, "next": {"obs": seen}, "td_error": torch.rand(len(seen))}
    part = TensorDict(content, [len(seen)], device=_DEVICE)
    for _ in range(rows // len(seen)):
        buffer.extend(part)

    def work() -> object:
        sample = buffer.sample()
        sample["td_error"] = torch.rand(_BATCH, device=_DEVICE)
        buffer.update_tensordict_priority(sample)
        return sample

    return work


def _updates() -> Iterator[Row]:
    """Of a network of three layers over a vector; without a GPU there is nothing to capture."""
    executors = ("graph", "eager") if _HAS_GPU else ("eager",)
    learners = {}
    for executor in executors:
        settings = {"algo": "dqn", "env": "CartPole-v1", "per": True, "learning_starts": 0}
        more = {"executor": executor, "pool": "inline", "device": _DEVICE.type}
        parts = build(resolve({**settings, **more}, on_gpu=_HAS_GPU))
        for _ in range(20):
            parts.lesson(parts.collector.collect())
        learners[executor] = parts
    sides = {name: partial(_update_rate, parts) for name, parts in learners.items()}
    found = by_turns(sides, 3)
    for parts in learners.values():
        parts.close()
    first = found[executors[0]]
    eager = found["eager"] if _HAS_GPU else None
    yield Row(
        "replay",
        f"updates with priorities, {_DEVICE.type}",
        round(statistics.median(first), 1),
        f"updates a second, {executors[0]}",
        None if eager is None else round(statistics.median(eager), 1),
        "eager",
        None if eager is None else round(middle_ratio(first, eager), 2),
        details=dict(found),
    )


def _update_rate(parts: Parts) -> float:
    assert isinstance(parts.learner, QLearner)
    return 50 * _rate(partial(parts.learner.make, 50))


def _slow() -> Iterator[Row]:
    words = "--algo dqn --env bench.replay:Slow --pool io --in-flight 64 --n-envs 64 --n-steps 4"
    more = "--timesteps 20k --eval-episodes 0 --learning-starts 1000 --collect overlap"
    flags = [*words.split(), *more.split(), "--device", _DEVICE.type]
    (ended,) = train_all([flags], 1, 300.0)
    last = {key: value for line in ended.metrics for key, value in line.items()}
    yield Row(
        "replay",
        f"50 ms a step, 64 in flight, {_DEVICE.type}",
        round(float(last["train/update_ratio"]), 4),
        "updates a step; 0.5 is what was asked for",
        ceiling=0.5,
        details={
            "steps_per_s": round(float(ended.outcome["sps"]), 1),
            "in_flight_over_latency": 64 / 0.05,
            "gpu": {key: value for key, value in last.items() if key.startswith("gpu/")},
        },
    )


def _saving() -> Iterator[Row]:
    rows = 5 * 10**9 // _ROW_BYTES + 1000
    words = (
        f"--algo dqn --env bench.replay:Pictures --buffer-size {rows} --timesteps {rows + 20_480}"
    )
    more = f"--checkpoint-every {rows} --keep-checkpoints 1 --learning-starts {rows - 12_800}"
    same = "--n-envs 16 --n-steps 16 --update-ratio 0.01 --pool inline --collect step --log-every 1"
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{words} {more} {same} --eval-episodes 0 --device {_DEVICE.type} --seed 1"
        command = [sys.executable, "-m", "stoker", "train", *flags.split(), "--json"]
        peak, outcome = _watched([*command, "--runs-dir", folder])
        lines = read_metrics(Path(outcome["run"]))
        saved = list((Path(outcome["run"]) / "checkpoints").glob("step-*/rows-*"))
        held = sum(path.stat().st_size for path in saved)
    gaps = [(b["env_steps"], b["wall_s"] - a["wall_s"]) for a, b in pairwise(lines)]
    learned = [gap for step, gap in gaps if step > rows - 12_000]
    before = [gap for step, gap in gaps if rows - 12_000 < step < rows]
    yield Row(
        "replay",
        f"saving a replay of {rows * _ROW_BYTES / 1e9:.1f} GB, {_DEVICE.type}",
        round(max(learned), 2),
        "s, the longest iteration while it is saved, smaller is better",
        round(statistics.median(before), 2),
        "an iteration, the median before it is saved",
        details={
            "peak_rss_gb": round(peak / 1e9, 2),
            "replay_gb": round(rows * _ROW_BYTES / 1e9, 2),
            "written_gb": round(held / 1e9, 2),
            "longest_before": round(max(before), 2),
            "wall_s": round(outcome["wall_s"], 1),
        },
    )


def _watched(command: list[str]) -> tuple[int, dict[str, Any]]:
    """The most memory that a process had while it ran, and what it printed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watched, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        try:
            peak = max(peak, watched.memory_info().rss)
        except psutil.Error:
            break
        time.sleep(0.05)
    out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {process.returncode}")
    return peak, json.loads(out)


CASES: Cases = {
    "sampling": _sampling,
    "updates": _updates,
    "slow environment": _slow,
    "saving": _saving,
}
