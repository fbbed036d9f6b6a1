"""What is remembered of episodes: their returns, and the actions that bring them back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from stoker.collect.episodes import EpisodeTracker, JournalKeeper, MetricSums
from stoker.types import EpisodeJournal, StepBatch


def step(
    reward: list[float],
    over: Sequence[int] = (),
    how: str = "terminated",
    invalid: Sequence[int] = (),
    env_ids: list[int] | None = None,
) -> StepBatch:
    """A batch where the rows `over` ended and the rows `invalid` are no transitions."""
    n = len(reward)
    flags = {"terminated": np.zeros(n, bool), "truncated": np.zeros(n, bool)}
    flags[how][list(over)] = True
    valid = np.ones(n, bool)
    valid[list(invalid)] = False
    ids = np.arange(n) if env_ids is None else np.array(env_ids)
    return StepBatch(
        env_ids=ids,
        obs={},
        reward=np.array(reward, np.float32),
        **flags,
        final_obs={},
        action_mask=None,
        valid=valid,
        metrics={},
    )


class TestTracker:
    def test_nothing_is_reported_until_an_episode_has_ended(self) -> None:
        tracker = EpisodeTracker(2)
        tracker.take(step([1.0, 2.0]))
        assert tracker.metrics() == {}

    @pytest.mark.parametrize("how", ["terminated", "truncated"])
    def test_returns_and_lengths_are_of_whole_episodes(self, how: str) -> None:
        tracker = EpisodeTracker(2)
        tracker.take(step([1.0, 10.0]))
        tracker.take(step([2.0, 20.0], over=[0], how=how))  # 3.0 in 2
        tracker.take(step([4.0, 30.0], over=[0, 1], how=how))  # 4.0 in 1, 60.0 in 3
        assert tracker.ended == 3
        assert tracker.metrics() == {
            "rollout/ep_rew_mean": pytest.approx((3 + 4 + 60) / 3),
            "rollout/ep_len_mean": pytest.approx(2.0),
        }

    def test_a_row_that_is_no_transition_counts_nothing(self) -> None:
        tracker = EpisodeTracker(1)
        tracker.take(step([1.0]))
        tracker.take(step([1000.0], invalid=[0]))
        tracker.take(step([1.0], over=[0]))
        assert tracker.metrics() == {"rollout/ep_rew_mean": 2.0, "rollout/ep_len_mean": 2.0}

    def test_a_cut_off_episode_is_dropped_and_the_next_begins_at_zero(self) -> None:
        tracker = EpisodeTracker(1)
        tracker.take(step([500.0]))
        tracker.take(step([500.0], over=[0], how="truncated", invalid=[0]))
        assert tracker.metrics() == {}
        tracker.take(step([3.0], over=[0]))
        assert tracker.metrics() == {"rollout/ep_rew_mean": 3.0, "rollout/ep_len_mean": 1.0}

    def test_rows_belong_to_the_environments_they_name(self) -> None:
        tracker = EpisodeTracker(4)
        tracker.take(step([7.0, 9.0], env_ids=[3, 1]))
        assert tracker.running_return.tolist() == [0, 9, 0, 7]
        tracker.take(step([7.0], over=[0], env_ids=[3]))
        assert tracker.running_length.tolist() == [0, 1, 0, 0]
        assert tracker.metrics()["rollout/ep_rew_mean"] == 14.0

    def test_the_last_hundred_episodes_count(self) -> None:
        tracker = EpisodeTracker(1)
        for episode in range(250):
            tracker.take(step([float(episode)], over=[0]))
        assert tracker.ended == 250
        assert tracker.metrics()["rollout/ep_rew_mean"] == np.mean(range(150, 250))

    def test_a_restored_tracker_goes_on_as_the_first_would_have(self) -> None:
        first, second = EpisodeTracker(2), EpisodeTracker(2)
        for episode in range(120):
            first.take(step([float(episode), 1.0], over=[0]))
        second.restore({name: value.copy() for name, value in first.state().items()})
        for tracker in (first, second):
            tracker.take(step([5.0, 1.0], over=[0, 1]))
        assert second.metrics() == first.metrics()
        assert second.ended == first.ended
        for name, value in first.state().items():
            np.testing.assert_array_equal(second.state()[name], value, name)


class TestMetricSums:
    def reported(self, **values: list[float]) -> MetricSums:
        sums, n = MetricSums(), len(next(iter(values.values())))
        metrics = {name: np.array(given, np.float32) for name, given in values.items()}
        sums.take(step([0.0] * n)._replace(metrics=metrics))
        return sums

    def test_means_are_over_the_steps_that_report(self) -> None:
        sums = self.reported(hits=[1.0, np.nan, 3.0], misses=[np.nan] * 3)
        assert sums.means() == {"env/hits": 2.0}

    def test_merged_sums_are_those_of_all_steps(self) -> None:
        sums = self.reported(hits=[1.0, 2.0, 3.0])
        sums.merge(self.reported(hits=[10.0], misses=[4.0]))
        sums.merge(MetricSums())
        assert sums.means() == {"env/hits": 4.0, "env/misses": 4.0}


def keep(keeper: JournalKeeper, steps: range, over: Sequence[int] = (), envs: int = 2) -> None:
    """Step t of environment n takes the action 10 t + n; `over` ended in the last."""
    for t in steps:
        actions = 10 * t + np.arange(envs)[:, None]
        keeper.take(actions, step([0.0] * envs, over=over if t == steps[-1] else ()))


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
        keeper.take(action, step([0.0]))
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
