"""Where prioritised replay should win: a walk along a cliff, of which one step in thousands pays.

In each of n states one action leads on and the other ends the episode; only the last step has a
reward. Of all 2^n sequences of actions one gets there. The replay holds the steps of all of them,
and a table of values is learned from it until it is right everywhere. A step is worth learning from
once what follows it is known; so whoever samples all alike waits for one row in 2^(n+1) again and
again, and whoever samples by error does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from statistics import median

import torch
from torch import Tensor, nn

from bench.record import Cases, Row
from stoker.algos import dqn
from stoker.config.schema import DQNSettings
from stoker.kernels.descent import FlatDescent
from stoker.learn.q_learner import OneByOne, QLearner
from stoker.storage.replay import Replay
from stoker.types import PLAIN, ActionSpec, EnvSpec, Finals, LeafSpec, QLoss, Rollout, Transitions

_CPU = torch.device("cpu")
_RIGHT = 1e-2  # the mean square error of all values at which they count as learned
_MOST = 20_000  # updates
_LOOKS_APART = 50
_SEEDS = range(5)


def _steps(length: int) -> list[tuple[int, int, float, bool]]:
    """Of all sequences of actions: state, action, reward, and whether the episode ends there."""
    found = []
    for actions in product((0, 1), repeat=length):
        for state, action in enumerate(actions):
            last = state == length - 1
            wrong = action != state % 2
            found.append((state, action, float(last and not wrong), last or wrong))
            if last or wrong:
                break
    return found


def _rollout(steps: list[tuple[int, int, float, bool]]) -> Rollout:
    state, action, reward, ends = (
        torch.tensor(column)[:, None] for column in zip(*steps, strict=True)
    )
    no = torch.zeros_like(ends)
    unused = dict.fromkeys(Rollout._fields)
    used = {"obs": {PLAIN: state[..., None].float()}, "action": action[..., None]}
    used |= {"reward": reward, "terminated": ends, "truncated": no, "valid": ~no}
    return Rollout(**{**unused, **used})  # type: ignore[arg-type]  # the replay asks for no more


def _truth(length: int, gamma: float) -> Tensor:
    """What each action is worth, [states, 2]."""
    worth = torch.zeros(length, 2)
    for state in range(length):
        worth[state, state % 2] = gamma ** (length - 1 - state)
    return worth


def updates_needed(per: bool, length: int, seed: int) -> int:
    """Updates of one row each until the table is right; `_MOST` where it does not become so."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    gamma = 1 - 1 / length
    steps = _shuffled(_steps(length), torch.randperm(2**length).tolist())
    settings = DQNSettings(
        n_steps=len(steps),
        batch_size=1,
        buffer_size=len(steps),
        learning_rate=0.01,
        learning_starts=0,
        update_ratio=_MOST / len(steps),
        gamma=gamma,
        n_step_return=1,
        per=per,
        per_alpha=1.0,
    )
    spec = EnvSpec(
        "chain",
        {PLAIN: LeafSpec("vector", (1,), "float32")},
        ActionSpec("discrete", (), "int64", nvec=(2,), start=(0,)),
    )
    alpha = settings.per_alpha if per else 0.0
    replay = Replay(spec, len(steps), 1, 1, gamma, alpha, _CPU)
    table = nn.Parameter(0.1 * torch.randn(length + 1, 2))

    def gradient(batch: Transitions, noise: Tensor | None) -> QLoss:
        state, then = batch.obs[PLAIN][:, 0].long().chunk(2)
        judged = table.data[then].unsqueeze(1)  # a table needs no other to judge it
        aims = dqn.targets(judged, judged, batch.reward, batch.discount)
        found = dqn.loss(table[state].unsqueeze(1), aims, batch)
        found.total.backward()
        return found

    parameters = {"table": table}
    descent = FlatDescent(parameters, 1e-8, 10.0)
    given = (OneByOne(gradient, descent), descent, replay, settings, 1, seed, torch.zeros(()))
    learner = QLearner(parameters, [table.data.clone()], *given)
    none = Finals(torch.zeros(0, dtype=torch.int64), {PLAIN: torch.zeros(0, 1)})
    replay.append(_rollout(steps), none)
    learner.anneal(1.0)
    truth = _truth(length, gamma)
    for made in range(0, _MOST, _LOOKS_APART):
        if float((table.data[:length] - truth).square().mean()) < _RIGHT:
            return made
        learner.make(_LOOKS_APART)
    return _MOST


def _shuffled(
    steps: list[tuple[int, int, float, bool]], order: list[int]
) -> list[tuple[int, int, float, bool]]:
    """Whole episodes, in another order."""
    episodes: list[list[tuple[int, int, float, bool]]] = [[]]
    for step in steps:
        episodes[-1].append(step)
        if step[3]:
            episodes.append([])
    return [step for number in order for step in episodes[number]]


def _chain(length: int) -> Iterator[Row]:
    ours, theirs = ([updates_needed(per, length, seed) for seed in _SEEDS] for per in (True, False))
    yield Row(
        "chain",
        f"{length} states, {2 ** (length + 1) - 2:,} steps",
        median(ours),
        "updates until the values are right, smaller is better",
        median(theirs),
        "all rows alike",
        round(median(theirs) / median(ours), 2),
        details={"ours": ours, "peer": theirs, "most": _MOST},
    )


CASES: Cases = {f"{length} states": partial(_chain, length) for length in (6, 8, 10)}
