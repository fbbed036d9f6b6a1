"""Foreign vector environments give the same transitions as the inline reference."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from pool_envs import Counter, DictCounter, MaskedCounter, Wanderer, act, copied, spec_of

from stoker.errors import ConfigError, EnvError, SpaceError
from stoker.pools.base import BasePool
from stoker.pools.inline import InlinePool
from stoker.pools.vector import VectorPool
from stoker.types import EpisodeJournal

MODES = list(AutoresetMode)
LENGTHS = (2, 3, 5)


class Transition(NamedTuple):
    """One environment's step, by value."""

    obs: dict[str, list[float]]
    mask: list[bool] | None
    reward: float
    terminated: bool
    truncated: bool
    next_obs: dict[str, list[float]]


def transitions(pool: BasePool, steps: int) -> list[list[Transition]]:
    """What each environment went through, without the rows that are no transition."""
    batch = copied(pool.reset(seed=0))
    assert batch.valid.all()
    found: list[list[Transition]] = [[] for _ in range(pool.n_envs)]
    for _ in range(steps):
        after = copied(pool.step(np.zeros((pool.n_envs, 1), np.int64)))
        for i in np.flatnonzero(after.valid):
            ended = after.terminated[i] or after.truncated[i]
            landed = after.final_obs if ended else after.obs
            found[i].append(
                Transition(
                    {leaf: value[i].tolist() for leaf, value in batch.obs.items()},
                    None if batch.action_mask is None else batch.action_mask[i].tolist(),
                    float(after.reward[i]),
                    bool(after.terminated[i]),
                    bool(after.truncated[i]),
                    {leaf: value[i].tolist() for leaf, value in landed.items()},
                )
            )
        batch = after
    return found


def reference(kind: type[Counter], **ends: bool) -> list[list[Transition]]:
    """What the inline pool makes of it, with environments of three lengths."""
    lengths = iter(LENGTHS)
    pool = InlinePool(lambda: kind(next(lengths), **ends), spec_of(kind()), len(LENGTHS))
    return transitions(pool, 30)


def makers(kind: type[Counter], **ends: bool) -> list[Any]:
    return [lambda n=length: kind(n, **ends) for length in LENGTHS]


def numbered_from(first: int, found: list[list[Transition]]) -> list[list[Transition]]:
    """Episodes renumbered: the adapter spends resets before the first one that counts."""

    def renumber(obs: dict[str, Any]) -> dict[str, Any]:
        return {**obs, "obs": [obs["obs"][0] - first, obs["obs"][1]]}

    return [
        [t._replace(obs=renumber(t.obs), next_obs=renumber(t.next_obs), mask=None) for t in own]
        for own in found
    ]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("kind", [Counter, DictCounter, MaskedCounter])
@pytest.mark.parametrize(("terminated", "truncated"), [(True, False), (False, True), (True, True)])
def test_every_mode_gives_the_transitions_of_the_reference(
    kind: type[Counter], mode: AutoresetMode, terminated: bool, truncated: bool
) -> None:
    ends = {"terminated": terminated, "truncated": truncated}
    pool = VectorPool(SyncVectorEnv(makers(kind, **ends), autoreset_mode=mode), "counters")
    found = transitions(pool, 30)
    first = int(found[0][0].obs["obs"][0])
    for ours, theirs in zip(
        numbered_from(first, found), numbered_from(0, reference(kind, **ends)), strict=True
    ):
        assert len(ours) >= 20
        assert ours == theirs[: len(ours)]
    lost = 30 - len(found[0])
    assert lost == (10 if mode is AutoresetMode.NEXT_STEP else 0), "a reset every third step"
    for own in found:
        for t in own:
            if t.mask is not None:
                assert np.flatnonzero(t.mask).tolist() == [sum(t.obs["obs"]) % 3]
    assert (found[0][0].mask is not None) is (kind is MaskedCounter)
    pool.close()


def test_an_async_vector_environment() -> None:
    envs = AsyncVectorEnv(makers(DictCounter), autoreset_mode=AutoresetMode.SAME_STEP)
    with VectorPool(envs, "counters") as pool:
        found = transitions(pool, 8)
    expected = [own[:8] for own in reference(DictCounter)]
    first = int(found[0][0].obs["obs"][0])
    assert numbered_from(first, found) == numbered_from(0, expected)


@pytest.mark.parametrize("mode", [None, "Whenever", 3])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    envs = SyncVectorEnv(makers(Counter))
    envs.metadata = {**envs.metadata, "autoreset_mode": mode}
    with pytest.raises(ConfigError, match="autoreset_mode") as caught:
        VectorPool(envs, "counters")
    assert repr(mode) in str(caught.value)
    assert "SAME_STEP" in str(caught.value)


def test_a_mode_by_its_word_is_known() -> None:
    envs = SyncVectorEnv(makers(Counter), autoreset_mode=AutoresetMode.DISABLED)
    envs.metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.DISABLED.value}
    found = transitions(VectorPool(envs, "counters"), 6)
    assert [t.reward for t in found[0]] == [1, 2, 1, 2, 1, 2]


def test_actions_arrive_in_the_environments_own_terms() -> None:
    pool = VectorPool(SyncVectorEnv([Wanderer] * 2), "wanderers")
    pool.reset(seed=0)
    batch = pool.step(act(0, 3))  # its Discrete starts at 1; it pays its action and a fraction
    assert np.floor(batch.reward).tolist() == [1, 4]


def test_a_part_of_a_vector_environment_cannot_step() -> None:
    pool = VectorPool(SyncVectorEnv(makers(Counter)), "counters")
    with pytest.raises(ConfigError, match="all of its 3 environments at once"):
        pool.send(act(0), np.array([1]))


def test_it_cannot_be_brought_back_to_mid_episode() -> None:
    pool = VectorPool(SyncVectorEnv(makers(Counter)), "counters")
    journal = EpisodeJournal(np.zeros(3, int), np.ones(3, int), np.zeros((1, 3, 1), int))
    assert not pool.reset(0, journal).valid.any()
    assert pool.step(act(0, 0, 0)).valid.all()


class Wild(Counter):
    def look(self) -> Any:
        return np.array([np.nan if self.t == 2 else 0.0, self.t], np.float32)


class Barred(MaskedCounter):
    """Nothing is allowed at the third look, be the episode over or not."""

    def info(self) -> dict[str, Any]:
        return super().info() if self.t < 2 else {"action_mask": np.zeros(3, np.int8)}


@pytest.mark.parametrize("length", [2, 9], ids=["at the end", "on the way"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_what_is_not_finite_is_an_error(mode: AutoresetMode, length: int) -> None:
    envs = SyncVectorEnv([lambda: Counter(9), lambda: Wild(length)], autoreset_mode=mode)
    pool = VectorPool(envs, "wild")
    pool.reset(seed=0)
    pool.step(act(0, 0))
    with pytest.raises(EnvError, match=r"Environment 1 .* not finite") as caught:
        pool.step(act(0, 2))
    assert str(caught.value).endswith("Its action was 2."), "of a seed nothing is known"


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_an_empty_mask_is_an_error_unless_the_episode_is_over(mode: AutoresetMode) -> None:
    for length, fails in ((9, True), (2, False)):
        envs = SyncVectorEnv([lambda n=length: Barred(n)], autoreset_mode=mode)
        pool = VectorPool(envs, "barred")
        pool.reset(seed=0)
        pool.step(act(0))
        if fails:
            with pytest.raises(EnvError, match="Environment 0 gave an action mask that allows no"):
                pool.step(act(0))
        else:
            assert pool.step(act(0)).terminated.tolist() == [True]
            pool.step(act(0))


def test_a_space_that_cannot_be_trained_on_is_refused() -> None:
    class Texter(Counter):
        observation_space = spaces.Text(3)

        def look(self) -> Any:
            return "abc"

    envs: VectorEnv[Any, Any, Any] = SyncVectorEnv([Texter])
    with pytest.raises(SpaceError, match="Text"):
        VectorPool(envs, "texter")


class Vague(VectorEnv[Any, Any, Any]):
    """Three environments, one of whose answers is `wrong`."""

    num_envs, metadata = 3, {"autoreset_mode": AutoresetMode.SAME_STEP}
    single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, **wrong: Any) -> None:
        self.wrong = wrong

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((3, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        if "all" in self.wrong:
            return self.wrong["all"]
        if "info" in self.wrong:
            return np.zeros((3, 2), np.float32), *np.zeros((3, 3)), self.wrong["info"]
        told = {"obs": np.zeros((3, 2), np.float32), "reward": np.zeros(3)}
        told |= {"terminated": np.zeros(3, bool), "truncated": np.zeros(3, bool)}
        return (*(told | self.wrong).values(), {})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"obs": np.zeros(2, np.float32)}, r"leaf 'obs' with shape \(2,\); expected \(3, 2\)"),
        ({"obs": np.zeros((1, 2), np.float32)}, r"with shape \(1, 2\); expected \(3, 2\)"),
        ({"reward": 1.0}, r"returned reward with shape \(\); expected \(3,\)"),
        ({"reward": np.zeros(1)}, r"returned reward with shape \(1,\)"),
        ({"terminated": False}, r"returned terminated with shape \(\)"),
        ({"truncated": np.zeros(2, bool)}, r"returned truncated with shape \(2,\)"),
        ({"terminated": np.ones(3, bool)}, r"same-step without info\['final_obs'\]"),
        ({"info": {"action_mask": np.ones((3, 2))}}, "now but did not at its first reset"),
        ({"all": (1, 2, 3, 4)}, r"returned 4 values .* from step\(\). Gymnasium expects"),
    ],
)
def test_an_answer_for_fewer_is_not_stretched_over_all(wrong: dict[str, Any], said: str) -> None:
    pool = VectorPool(Vague(**wrong), "vague")
    pool.reset(seed=0)
    with pytest.raises(EnvError, match=said):
        pool.step(act(0, 0, 0))
