"""The reference pool: what a step is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pool_envs import (
    OBSERVATIONS,
    Counter,
    DictCounter,
    MaskedCounter,
    Wanderer,
    act,
    assert_same,
    copied,
    pool_of,
    random_actions,
    spec_of,
)

from stoker.pools.inline import InlinePool
from stoker.pools.slot import episode_seed
from stoker.types import EpisodeJournal


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
