"""The reference pool: what a step is."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pool_envs import (
    OBSERVATIONS,
    Counter,
    DictCounter,
    MaskedCounter,
    Reporter,
    Wanderer,
    act,
    assert_same,
    copied,
    random_actions,
    spec_of,
)

from stoker.errors import EnvError
from stoker.pools.inline import InlinePool
from stoker.pools.slot import episode_seed
from stoker.types import EpisodeJournal


def pool_of(make_env: Any, n_envs: int = 1) -> InlinePool:
    return InlinePool(make_env, spec_of(make_env()), n_envs)


def kept_envs(pool: InlinePool) -> list[Any]:
    return [slot.env for slot in pool._slots]


def test_the_first_batch() -> None:
    batch = pool_of(Counter, 3).reset(seed=0)
    assert batch.env_ids.tolist() == [0, 1, 2]
    assert batch.obs["obs"].tolist() == [[0, 0]] * 3
    assert batch.reward.tolist() == [0, 0, 0]
    assert not batch.terminated.any()
    assert not batch.truncated.any()
    assert batch.valid.all()
    assert batch.action_mask is None


def test_every_step_of_two_episodes_in_order() -> None:
    """The observation is (episode, step): what is lost, doubled or late would show."""
    pool = pool_of(lambda: Counter(length=3))
    pool.reset(seed=0)
    batches = [copied(pool.step(act(0))) for _ in range(6)]
    assert [b.obs["obs"][0].tolist() for b in batches] == [
        [0, 1],
        [0, 2],
        [1, 0],
        [1, 1],
        [1, 2],
        [2, 0],
    ]
    assert [b.reward[0] for b in batches] == [1, 2, 3, 1, 2, 3]
    assert [bool(b.terminated[0]) for b in batches] == [False, False, True] * 2
    assert [batches[i].final_obs["obs"][0].tolist() for i in (2, 5)] == [[0, 3], [1, 3]]


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [(True, False, (True, False)), (False, True, (False, True)), (True, True, (True, False))],
)
def test_terminated_and_truncated_are_apart_and_terminated_wins(
    terminated: bool, truncated: bool, expected: tuple[bool, bool]
) -> None:
    pool = pool_of(lambda: Counter(1, terminated, truncated))
    pool.reset(seed=0)
    batch = pool.step(act(0))
    assert (bool(batch.terminated[0]), bool(batch.truncated[0])) == expected
    assert batch.final_obs["obs"][0].tolist() == [0, 1]
    assert batch.obs["obs"][0].tolist() == [1, 0]


def test_environments_end_when_they_end() -> None:
    lengths = iter([2, 3])
    pool = InlinePool(lambda: Counter(next(lengths)), spec_of(Counter()), 2)
    pool.reset(seed=0)
    ended = [copied(pool.step(act(0, 0))).terminated.tolist() for _ in range(4)]
    assert ended == [[False, False], [True, False], [False, True], [True, False]]


def test_every_episode_is_reset_with_the_seed_that_follows_from_its_number() -> None:
    pool = pool_of(lambda: Counter(length=2), 3)
    pool.reset(seed=11)
    for _ in range(6):
        pool.step(act(0, 0, 0))
    seeds = [env.seeds for env in kept_envs(pool)]
    assert seeds == [[episode_seed(11, i, e) for e in range(4)] for i in range(3)]
    assert len({seed for own in seeds for seed in own}) == 12
    assert all(0 <= seed < 2**32 for own in seeds for seed in own)


def test_episode_seeds_differ_by_run_environment_and_episode() -> None:
    grid = {episode_seed(s, i, e) for s in range(10) for i in range(20) for e in range(50)}
    assert len(grid) > 10 * 20 * 50 - 10  # a few of 10,000 may meet in 32 bits
    assert 2**31 < max(grid) < 2**32, "numpy's legacy seeding takes 32 bits, and all are used"


def test_actions_arrive_as_the_space_says() -> None:
    pool = pool_of(lambda: Wanderer("vector", "discrete"), 2)  # asserts what it is given
    pool.reset(seed=0)
    pool.step(act(0, 3))
    plain = pool_of(Counter)
    plain.reset(seed=0)
    plain.step(act(2))
    (env,) = kept_envs(plain)
    assert env.actions == [2]
    assert type(env.actions[0]) is int


def test_an_environment_may_keep_its_action() -> None:
    class Box(Counter):
        action_space = spaces.Box(-1, 1, (2,))

    pool = pool_of(Box)
    pool.reset(seed=0)
    for value in (0.25, 0.5):
        pool.step(np.full((1, 2), value, np.float32))
    (env,) = kept_envs(pool)
    assert [action.tolist() for action in env.actions] == [[0.25, 0.25], [0.5, 0.5]]


def test_an_environment_may_reuse_its_observation() -> None:
    class Reusing(Counter):
        buffer = np.zeros(2, np.float32)

        def look(self) -> Any:
            self.buffer[:] = super().look()
            return self.buffer

    pool = pool_of(lambda: Reusing(length=1))
    pool.reset(seed=0)
    batch = pool.step(act(0))
    assert batch.final_obs["obs"][0].tolist() == [0, 1]
    assert batch.obs["obs"][0].tolist() == [1, 0]


def test_a_dict_whose_categories_start_elsewhere() -> None:
    pool = pool_of(lambda: DictCounter(length=2))
    batch = copied(pool.reset(seed=0))
    assert batch.obs["step"].tolist() == [0]  # -1 is the first category
    pool.step(act(0))
    batch = pool.step(act(0))
    assert (batch.obs["step"].tolist(), batch.final_obs["step"].tolist()) == ([0], [2])
    assert batch.final_obs["obs"].tolist() == [[0, 2]]


def test_a_dict_with_the_one_leaf_called_obs() -> None:
    pool = pool_of(lambda: Wanderer("lone leaf"))
    assert OBSERVATIONS["lone leaf"]["obs"].contains(pool.reset(seed=0).obs["obs"][0])


def test_masks_belong_to_the_observation_they_come_with() -> None:
    pool = pool_of(lambda: MaskedCounter(length=2))
    batches = [copied(pool.reset(seed=0)), *(copied(pool.step(act(0))) for _ in range(4))]
    for batch in batches:
        assert batch.action_mask is not None
        assert batch.action_mask.dtype == bool
        assert np.flatnonzero(batch.action_mask[0]).tolist() == [batch.obs["obs"][0].sum() % 3]


def test_metrics_the_environment_declares() -> None:
    class Metered(Counter):
        metric_names = ("height", "depth")

        def info(self) -> dict[str, Any]:
            return {"metrics": {"height": 10.0 * self.t, "undeclared": 1.0}}

    pool = pool_of(lambda: Metered(length=2), 2)
    first = pool.reset(seed=0)
    assert set(first.metrics) == {"height", "depth"}
    assert np.isnan(first.metrics["height"]).all(), "no step was taken: unknown, not 0"
    assert pool.step(act(0, 0)).metrics["height"].tolist() == [10, 10]
    batch = pool.step(act(0, 0))
    assert batch.metrics["height"].tolist() == [20, 20], "of the step that ended the episode"
    assert np.isnan(batch.metrics["depth"]).all()


def test_a_subset_steps_alone() -> None:
    pool = pool_of(Counter, 4)
    pool.reset(seed=0)
    pool.send(act(0, 0), np.array([3, 1]))
    batch = pool.recv(at_least=2)
    assert sorted(batch.env_ids.tolist()) == [1, 3]
    assert batch.obs["obs"].tolist() == [[0, 1], [0, 1]]
    assert pool.recv(at_least=0).env_ids.size == 0
    everyone = pool.step(act(0, 0, 0, 0))
    assert everyone.obs["obs"][:, 1].tolist() == [1, 2, 1, 2]


def test_close_closes_each_environment_once() -> None:
    with pool_of(Counter, 2) as pool:
        envs = kept_envs(pool)
    pool.close()
    assert [env.closed for env in envs] == [1, 1]


# Coming back to where an episode stood.


def journal_of(pool: InlinePool, steps: int, seed: int) -> tuple[EpisodeJournal, list[Any]]:
    """Step at random and keep a journal by hand; it and every batch after `steps` steps."""
    rng = np.random.default_rng(5)
    batch = pool.reset(seed)
    episode, taken = np.zeros(pool.n_envs, np.int64), [[] for _ in range(pool.n_envs)]
    batches = []
    for _ in range(steps):
        actions = random_actions(pool.spec.action, pool.n_envs, rng)
        batch = pool.step(actions)
        for i in range(pool.n_envs):
            taken[i].append(actions[i])
            if batch.terminated[i] or batch.truncated[i]:
                episode[i], taken[i] = episode[i] + 1, []
    batches.append(copied(batch))
    length = np.array([len(own) for own in taken])
    actions = np.zeros((length.max(), pool.n_envs, pool.spec.action.width), actions.dtype)
    for i, own in enumerate(taken):
        actions[: len(own), i] = np.reshape(own, (len(own), pool.spec.action.width))
    return EpisodeJournal(episode, length, actions), batches


@pytest.mark.parametrize("does", ["discrete", "multi discrete", "multi binary", "box"])
def test_a_replayed_episode_stands_where_it_stood_and_goes_on_the_same(does: str) -> None:
    def make() -> Wanderer:
        return Wanderer("dict", does, masks="discrete" in does)

    first, second = pool_of(make, 4), pool_of(make, 4)
    journal, (before,) = journal_of(first, steps=23, seed=7)
    assert journal.length.max() > 0
    assert journal.episode.max() > 0
    after = second.reset(7, journal)
    assert after.valid.all()
    assert not (after.terminated | after.truncated).any()
    assert after.reward.tolist() == [0, 0, 0, 0]
    for leaf, value in before.obs.items():
        assert value.tobytes() == after.obs[leaf].tobytes()
    if before.action_mask is not None:
        assert before.action_mask.tobytes() == after.action_mask.tobytes()
    rng = np.random.default_rng(6)
    for _ in range(20):
        actions = random_actions(first.spec.action, 4, rng)
        ours, theirs = first.step(actions), second.step(actions)
        ended = ours.terminated | ours.truncated
        for leaf in ours.final_obs:
            assert np.array_equal(ours.final_obs[leaf][ended], theirs.final_obs[leaf][ended])
        assert_same(ours._replace(final_obs={}), theirs._replace(final_obs={}))


def test_an_episode_too_long_to_keep_begins_the_next_and_is_not_valid() -> None:
    pool = pool_of(Counter, 2)
    journal = EpisodeJournal(np.array([4, 6]), np.array([-1, 0]), np.zeros((0, 2, 1), np.int64))
    batch = pool.reset(3, journal)
    assert batch.valid.tolist() == [False, True]
    seeds = [env.seeds for env in kept_envs(pool)]
    assert seeds == [[episode_seed(3, 0, 5)], [episode_seed(3, 1, 6)]]


def test_an_environment_that_is_not_deterministic_is_not_valid() -> None:
    """It ends earlier than the journal says it did, so the next episode begins."""
    lengths = iter([9, 2])

    pool = InlinePool(lambda: Counter(next(lengths)), spec_of(Counter()), 2)
    journal = EpisodeJournal(np.array([0, 0]), np.array([5, 5]), np.zeros((5, 2, 1), np.int64))
    batch = pool.reset(0, journal)
    assert batch.valid.tolist() == [True, False]
    assert not batch.terminated.any()
    assert batch.obs["obs"].tolist() == [[0, 5], [1, 0]]
    assert pool.step(act(0, 0)).valid.all(), "the new episode's own steps are whole"


# What an environment may do wrong.


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

    pool = InlinePool(lambda: Stuck(length=1), spec_of(Counter()), 1)
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

    pool = InlinePool(lambda: Leaver(length=1), spec_of(Counter()), 1)
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
        ({"first": MASK, "info": None}, "before but not now"),
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
