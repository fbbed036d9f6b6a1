"""The inline pool when an environment misbehaves: the fault is named (here, and raised at once)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pool_envs import (
    STRICT,
    Counter,
    Reporter,
    act,
    pool_of,
    spec_of,
)

from stoker.errors import EnvError
from stoker.pools.inline import InlinePool
from stoker.pools.slot import episode_seed


def test_raising_in_step_names_index_seed_action_and_traceback() -> None:
    pool = pool_of(Reporter, 3)
    pool.reset(seed=9)
    with pytest.raises(EnvError) as caught:
        pool.step(act(0, Reporter.RAISE, 0))
    message = str(caught.value)
    assert "Environment 1 raised RuntimeError in step(): the reactor is offline" in message
    assert f"reset(seed={episode_seed(9, 1, 0)})" in message
    assert "action 1" in message
    assert "pool_envs.py" in message


def test_raising_in_reset_names_the_seed() -> None:
    class Stuck(Counter):
        def look(self) -> Any:
            if self.episode == 2 and self.t == 0:
                raise OSError("door jammed")
            return super().look()

    pool = InlinePool(lambda: Stuck(length=1), spec_of(Counter()), 1, STRICT)
    pool.reset(seed=9)
    pool.step(act(0))
    with pytest.raises(EnvError) as caught:
        pool.step(act(0))
    assert "Environment 0 raised OSError in reset(): door jammed" in str(caught.value)
    assert f"reset(seed={episode_seed(9, 0, 2)})" in str(caught.value)


@pytest.mark.parametrize("call", ["reset", "step"])
def test_leaving_is_an_error_like_any_other(call: str) -> None:
    """`sys.exit()` would end the training silently, with code 0."""

    class Leaver(Counter):
        def reset(self, **options: Any) -> Any:
            if call == "reset" and self.episode == 0:
                sys.exit()
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            if call == "step":
                sys.exit()
            return super().step(action)

    pool = InlinePool(lambda: Leaver(length=1), spec_of(Counter()), 1, STRICT)
    pool.reset(seed=9)
    with pytest.raises(EnvError) as caught:
        pool.step(act(2))
    message = str(caught.value)
    assert f"Environment 0 raised SystemExit in {call}()" in message
    assert f"reset(seed={episode_seed(9, 0, int(call == 'reset'))})" in message
    assert "return terminated or truncated" in message


@pytest.mark.parametrize(
    "reward", [2, True, 2.5, np.float32(2.5), np.int8(2), np.bool_(True), np.array(2.5), np.ones(1)]
)
def test_rewards_that_are_numbers(reward: Any) -> None:
    class Payer(Counter):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return (obs, reward, *rest)

    pool = pool_of(Payer)
    pool.reset(seed=0)
    assert pool.step(act(0)).reward.tolist() == [float(np.ravel(reward)[0])]


def faulty(**returned: Any) -> type[Counter]:
    """A counter whose second step returns something else."""

    class Faulty(Counter):
        observation_space = returned.get("space", Counter.observation_space)
        action_space = returned.get("actions", Counter.action_space)
        metric_names = returned.get("names", ())

        def look(self) -> Any:
            return returned.get("obs") if self.t == 2 and "obs" in returned else returned["good"]

        def info(self) -> Any:
            return returned.get("info") if self.t == 2 and "info" in returned else returned["first"]

        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return (obs, returned.get("reward", reward) if self.t == 2 else reward, *rest)

    returned.setdefault("good", np.zeros(2, np.float32))
    returned.setdefault("first", {})
    return Faulty


IMAGE = spaces.Box(0, 255, (4, 4), np.uint8)
PAIR = spaces.Dict({"a": spaces.Discrete(3, start=1), "b": spaces.Box(-1, 1, (1,))})
GOOD_PAIR = {"a": 1, "b": np.zeros(1)}
MASK = {"action_mask": [1, 1, 1]}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"obs": np.zeros(3)}, "with shape (3,); its space says float32 with shape (2,)"),
        ({"obs": None}, "object with shape ()"),
        ({"obs": np.array(["x", "y"])}, "leaf 'obs'"),
        ({"obs": np.array([0, np.nan])}, "obs that is not finite: [ 0. nan]"),
        ({"obs": np.array([np.inf, 0])}, "obs that is not finite"),
        ({"obs": np.array([1e300, 0])}, "obs that is not finite"),
        ({"reward": np.nan}, "reward that is not finite: nan"),
        ({"reward": -np.inf}, "reward that is not finite"),
        ({"reward": None}, "returned the reward None (NoneType) from step()"),
        ({"reward": "1.5"}, "returned the reward '1.5' (str) from step()"),
        ({"reward": [1.5]}, "returned the reward [1.5] (list)"),
        ({"reward": 1j}, "returned the reward 1j (complex)"),
        ({"reward": np.array("1.5")}, "(ndarray) from step(). A reward is one real number."),
        ({"reward": np.zeros(2)}, "returned the reward array([0., 0.]) (ndarray)"),
        ({"first": MASK, "info": None}, "an info that is NoneType from step()"),
        ({"info": ["speed"]}, "an info that is list from step()"),
        ({"space": IMAGE, "good": np.zeros((4, 4), np.uint8), "obs": np.ones((4, 4))}, "float64"),
        ({"space": spaces.Discrete(3), "good": 0, "obs": 3}, "3"),
        ({"space": spaces.Discrete(3), "good": 0, "obs": -1}, "-1"),
        ({"space": spaces.Discrete(3), "good": 0, "obs": 1.5}, "float64"),
        ({"space": PAIR, "good": GOOD_PAIR, "obs": {"a": 1}}, "'b'"),
        ({"space": PAIR, "good": GOOD_PAIR, "obs": np.zeros(2)}, "'a'"),
        ({"space": PAIR, "good": GOOD_PAIR, "obs": {**GOOD_PAIR, "a": 0}}, "0"),
        ({"space": PAIR, "good": GOOD_PAIR, "obs": {**GOOD_PAIR, "b": [np.nan]}}, "b that is not"),
        ({"first": MASK, "info": {"action_mask": [0, 0, 0]}}, "allows no action: [0, 0, 0]"),
        ({"first": MASK, "info": {"action_mask": [1, 1]}}, "2 entries"),
        ({"first": MASK, "info": {"action_mask": [1]}}, "1 entries"),
        ({"first": MASK, "info": {}}, "before but not now"),
        ({"info": MASK}, "gives info['action_mask'] now but did not at its first reset"),
        ({"reward": 10**400}, "a reward of int that is larger than any float"),
        ({"names": ("a",), "info": {"metrics": 3}}, "info['metrics'] = 3"),
        ({"names": ("a",), "info": {"metrics": {"a": "x"}}}, "It is a dict of numbers, by name."),
        (
            {
                "actions": spaces.MultiDiscrete([1, 2]),
                "first": MASK,
                "info": {"action_mask": [1, 0, 0]},
            },
            "allows no action: [1, 0, 0]",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_a_fault_is_an_error_at_its_first_occurrence(fault: dict[str, Any], said: str) -> None:
    kind = faulty(**fault)
    n, width = 2, len(spec_of(kind(9)).action.nvec)
    pool = InlinePool(lambda: kind(9), spec_of(kind(9)), n)
    pool.reset(seed=0)
    actions = np.zeros((n, width), np.int64)
    pool.step(actions)
    with pytest.raises(EnvError) as caught:
        pool.step(actions)
    assert "Environment 0" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("place", [2, 3])
@pytest.mark.parametrize("end", ["False", "yes", [True], 0.5, np.array([1, 0])])
def test_ends_of_episodes_are_truth_values(place: int, end: Any) -> None:
    class Vague(Counter):
        def step(self, action: Any) -> Any:
            returned = list(super().step(action))
            returned[place] = end
            return tuple(returned)

    pool = pool_of(Vague)
    pool.reset(seed=0)
    with pytest.raises(EnvError, match=r"Environment 0"):
        pool.step(act(0))


@pytest.mark.parametrize("end", [True, np.True_, 1, np.int8(1), np.array(True)])
def test_what_says_that_an_episode_ends(end: Any) -> None:
    class Sure(Counter):
        def step(self, action: Any) -> Any:
            obs, reward, _, _, info = super().step(action)
            return obs, reward, end, False, info

    pool = pool_of(Sure)
    pool.reset(seed=0)
    assert pool.step(act(0)).terminated.tolist() == [True]


@pytest.mark.parametrize("ends", [(True, False), (False, True)])
def test_a_last_observation_that_is_not_finite(ends: tuple[bool, bool]) -> None:
    """V(final_obs) is bootstrapped from: NaN there would reach every weight."""
    kind = faulty(obs=np.array([np.nan, 0]))
    pool = InlinePool(lambda: kind(2, *ends), spec_of(Counter()), 1)
    pool.reset(seed=0)
    pool.step(act(0))
    with pytest.raises(EnvError, match="final observation obs that is not finite"):
        pool.step(act(0))


def test_an_old_last_observation_is_not_looked_at() -> None:
    """`final_obs` is meaningless where no episode ended."""
    pool = pool_of(lambda: Counter(length=9))
    pool.reset(seed=0)
    pool._rows.final_obs["obs"][:] = np.nan
    assert pool.step(act(0)).reward.tolist() == [1]
