"""Truncation from end to end: real pool, collector, storage and PPO, a value known beforehand.

An episode of length 3 ends at 100 e + 3 and the next begins at 100 (e + 1), so with V(x) = x^2
whoever bootstraps from the wrong observation is off by thousands.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from counting import EPISODE, SquaringPolicy, collected, counting_pool, in_step

from stoker.algos import ppo
from stoker.collect.in_step import InStepCollector
from stoker.config.schema import PPOSettings
from stoker.types import PLAIN

GAMMA, LAMBDA = 0.9, 0.8
STEPS, ROLLOUTS = 5, 3
KINDS = ((3, "truncated"), (4, "terminated"), (2, "both"), (5, "truncated"), (1, "truncated"))
SETTINGS = PPOSettings(n_steps=STEPS, batch_size=STEPS, n_epochs=1, gamma=GAMMA, gae_lambda=LAMBDA)


def value(x: float) -> float:
    return x * x


def transitions(length: int, ending: str) -> Iterator[tuple[float, float, float | None, bool]]:
    """Observation, reward, the successor that counts (None: nothing) and whether it ended."""
    episode = 0
    while True:
        for step in range(length):
            before = EPISODE * episode + step
            over = step + 1 == length
            after = None if over and ending != "truncated" else before + 1
            yield before, step + 1.0, after, over
        episode += 1


def expected_advantages(length: int, ending: str) -> np.ndarray:
    """[ROLLOUTS, STEPS], each rollout cut off from the next by its own bootstrap."""
    stream = transitions(length, ending)
    rows = [next(stream) for _ in range(ROLLOUTS * STEPS)]
    advantages = []
    for i in range(len(rows)):
        total, weight, k = 0.0, 1.0, i
        while True:
            before, reward, after, over = rows[k]
            bootstrap = 0.0 if after is None else value(after)
            total += weight * (reward + GAMMA * bootstrap - value(before))
            weight *= GAMMA * LAMBDA
            k += 1
            if over or k % STEPS == 0:
                break
        advantages.append(total)
    return np.array(advantages).reshape(ROLLOUTS, STEPS)


@pytest.fixture
def collector() -> Iterator[InStepCollector]:
    with counting_pool(*KINDS) as pool:
        yield in_step(pool, SquaringPolicy(), STEPS)


def test_advantages_are_right_through_the_whole_house(collector: InStepCollector) -> None:
    expected = np.stack([expected_advantages(*kind) for kind in KINDS], axis=-1)
    for number in range(ROLLOUTS):
        rollout = collected(collector)
        collector.publish()
        rows, _ = ppo.prepare(rollout, rollout.reward, SETTINGS)
        found = rows.advantage.reshape(STEPS, len(KINDS)).numpy()
        np.testing.assert_allclose(found, expected[number], rtol=1e-4, atol=1e-2)
        target = rows.value_target - rows.obs[PLAIN].squeeze(-1) ** 2
        torch.testing.assert_close(target, rows.advantage, rtol=1e-4, atol=1e-1)


def test_the_rollout_is_what_the_environments_did(collector: InStepCollector) -> None:
    streams = [transitions(*kind) for kind in KINDS]
    for number in range(ROLLOUTS):
        rollout = collected(collector)
        collector.publish()
        for t in range(STEPS):
            for n, (length, ending) in enumerate(KINDS):
                before, reward, after, over = next(streams[n])
                assert rollout.obs[PLAIN][t, n] == before
                assert rollout.action[t, n] == before % 5
                assert rollout.behaviour_log_prob[t, n] == rollout.log_prob[t, n] == -before
                assert rollout.value[t, n] == value(before)
                assert rollout.reward[t, n] == reward
                assert rollout.policy_version[t, n] == number
                assert rollout.terminated[t, n] == (over and ending != "truncated")
                assert rollout.truncated[t, n] == (over and ending == "truncated")
                cut = over and ending == "truncated"
                assert rollout.final_value[t, n] == (value(after or 0.0) if cut else 0.0), length
        assert rollout.valid.all()
