"""What is remembered of episodes: their returns, and what they said of themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from stoker.collect.episodes import EpisodeTracker, MetricSums
from stoker.types import StepBatch


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
