"""The actions that bring environments back to where they stood."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from stoker.pools.journal import JournalKeeper
from stoker.types import EpisodeJournal, StepBatch


def step(envs: int, over: Sequence[int] = ()) -> StepBatch:
    """A batch of all environments where those `over` ended."""
    no = np.zeros(envs, bool)
    ended = np.isin(np.arange(envs), over)
    nothing = {"obs": np.zeros((envs, 1), np.float32)}
    reward = np.zeros(envs, np.float32)
    return StepBatch(np.arange(envs), nothing, reward, ended, no, nothing, None, ~no, {})


def keep(keeper: JournalKeeper, steps: range, over: Sequence[int] = (), envs: int = 2) -> None:
    """Step t of environment n takes the action 10 t + n; `over` ended in the last."""
    for t in steps:
        actions = 10 * t + np.arange(envs)[:, None]
        keeper.take(actions, step(envs, over if t == steps[-1] else ()))


class TestJournal:
    def test_it_holds_the_actions_of_the_running_episodes(self) -> None:
        keeper = JournalKeeper(2, 1, dtype="int64")
        keep(keeper, range(3), over=[1])
        keep(keeper, range(3, 5))
        journal = keeper.journal()
        assert journal.episode.tolist() == [0, 1]
        assert journal.length.tolist() == [5, 2]
        assert journal.actions.dtype == np.int64
        assert journal.actions[:5, 0, 0].tolist() == [0, 10, 20, 30, 40]
        assert journal.actions[:2, 1, 0].tolist() == [31, 41]

    def test_it_is_a_copy(self) -> None:
        keeper = JournalKeeper(2, 1, dtype="int64")
        keep(keeper, range(3))
        journal = keeper.journal()
        keep(keeper, range(3, 6), over=[0, 1])
        assert journal.length.tolist() == [3, 3]
        assert journal.episode.tolist() == [0, 0]
        assert journal.actions[:, 0, 0].tolist() == [0, 10, 20]

    def test_it_grows_with_long_episodes(self) -> None:
        keeper = JournalKeeper(2, 1, dtype="int64")
        keep(keeper, range(700))
        journal = keeper.journal()
        assert journal.length.tolist() == [700, 700]
        assert journal.actions[:, :, 0].tolist() == [[10 * t, 10 * t + 1] for t in range(700)]

    @pytest.mark.parametrize("limit", [8, 256, 300])
    def test_an_episode_past_the_limit_is_not_kept_but_the_others_are(self, limit: int) -> None:
        keeper = JournalKeeper(2, 1, dtype="int64", limit=limit)
        keep(keeper, range(limit))
        assert keeper.journal().length.tolist() == [limit, limit]
        keep(keeper, range(limit, limit + 1), over=[1])
        keep(keeper, range(limit + 1, limit + 4))
        journal = keeper.journal()
        assert journal.length.tolist() == [-1, 3]
        first = 10 * (limit + 1) + 1
        assert journal.actions[:, 1, 0].tolist() == [first, first + 10, first + 20]
        keep(keeper, range(1), over=[0])
        assert keeper.journal().length.tolist() == [0, 4]

    def test_continuous_actions_keep_their_fractions_and_columns(self) -> None:
        keeper = JournalKeeper(1, 3, dtype="float32")
        action = np.array([[0.25, -1.5, 3.0]], np.float32)
        keeper.take(action, step(1))
        journal = keeper.journal()
        assert journal.actions.dtype == np.float32
        np.testing.assert_array_equal(journal.actions, action[None])

    def test_a_restored_journal_goes_on_as_the_first_would_have(self) -> None:
        first, second = (JournalKeeper(2, 1, dtype="int64") for _ in range(2))
        keep(first, range(400), over=[1])
        keep(first, range(5))
        second.restore(first.journal(), restarted=np.array([], np.int64))
        for keeper in (first, second):
            keep(keeper, range(50), over=[0])
        for mine, theirs in zip(first.journal(), second.journal(), strict=True):
            np.testing.assert_array_equal(mine, theirs)

    def test_environments_that_began_anew_are_one_episode_further(self) -> None:
        keeper = JournalKeeper(3, 1, dtype="int64")
        journal = EpisodeJournal(
            np.array([4, 5, 6]), np.array([2, -1, 2]), np.array([[[1]] * 3, [[2]] * 3])
        )
        keeper.restore(journal, restarted=np.array([1, 2]))
        found = keeper.journal()
        assert found.episode.tolist() == [4, 6, 7]
        assert found.length.tolist() == [2, 0, 0]
        assert found.actions[:, 0, 0].tolist() == [1, 2]
