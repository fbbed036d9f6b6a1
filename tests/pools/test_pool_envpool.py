"""EnvPool's own environments through the adapter, with the real library."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from pool_envs import copied

from stoker.errors import ConfigError
from stoker.pools.envpool import EnvPoolPool, is_envpool
from stoker.types import EpisodeJournal

envpool = pytest.importorskip(
    "envpool", reason="envpool is not installed (700 MB): pip install 'stoker[envpool]'"
)


def make(task: str = "CartPole-v1", **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it rounds the bounds of its spaces
        made = envpool.make(task, env_type="gymnasium", seed=7, **kwargs)
        _ = made.observation_space
    return made


def test_every_transition_follows_from_the_one_before_it() -> None:
    """CartPole's state is its observation, so Gymnasium's own can tell where each step leads."""
    pool, twin = EnvPoolPool(make(num_envs=6), "CartPole-v1"), gymnasium.make("CartPole-v1")
    twin.reset()
    judge: Any = twin.unwrapped
    batch, rng = copied(pool.reset(seed=0)), np.random.default_rng(0)
    starts, ends = 0, 0
    for _ in range(120):
        actions = rng.integers(2, size=(6, 1))
        after = copied(pool.step(actions))
        for i in range(6):
            if not after.valid[i]:
                assert np.abs(after.obs["obs"][i]).max() <= 0.05  # an episode's first
                assert after.reward[i] == 0
                assert not after.terminated[i]
                starts += 1
                continue
            judge.state, judge.steps_beyond_terminated = batch.obs["obs"][i].astype(float), None
            obs, reward, terminated, _, _ = judge.step(int(actions[i, 0]))
            assert after.obs["obs"][i] == pytest.approx(obs, abs=1e-5)
            assert (after.reward[i], after.terminated[i]) == (reward, terminated)
            if terminated:
                assert after.final_obs["obs"][i] == pytest.approx(obs, abs=1e-5)
                ends += 1
        batch = after
    assert ends - 6 <= starts <= ends
    assert starts > 10


def test_a_truncation_is_no_termination_and_the_row_after_it_is_no_transition() -> None:
    pool = EnvPoolPool(make("Pendulum-v1", num_envs=2, max_episode_steps=4), "Pendulum-v1")
    pool.reset(seed=0)
    rows = [copied(pool.step(np.zeros((2, 1), np.float32))) for _ in range(10)]
    assert [bool(row.truncated.all()) for row in rows] == [t % 5 == 3 for t in range(10)]
    assert [bool(row.valid.all()) for row in rows] == [t % 5 != 4 for t in range(10)]
    assert not any(row.terminated.any() for row in rows)
    assert (rows[3].final_obs["obs"] == rows[3].obs["obs"]).all()
    assert (rows[4].obs["obs"] != rows[3].obs["obs"]).any(axis=1).all()


def test_actions_arrive_on_the_environments_scale() -> None:
    """Pendulum's torque is in [-2, 2]: a policy's 1 is a torque of 2, which costs 0.004."""
    pool = EnvPoolPool(make("Pendulum-v1", num_envs=2), "Pendulum-v1")
    pool.reset(seed=0)
    cosine, sine, speed = pool.step(np.zeros((2, 1), np.float32)).obs["obs"].copy().T
    reward = pool.step(np.array([[0.0], [1.0]], np.float32)).reward
    cost = np.arctan2(sine, cosine) ** 2 + 0.1 * speed**2 + np.array([0.0, 0.004])
    assert reward == pytest.approx(-cost, abs=1e-4)


def test_groups_alternate() -> None:
    pool = EnvPoolPool(make(num_envs=8, batch_size=4), "CartPole-v1")
    assert pool.groups == (slice(0, 4), slice(4, 8))
    pool.reset(seed=0)
    for group in pool.groups:
        pool.send(np.zeros((4, 1), np.int64), np.arange(8)[group])
    for _ in range(20):
        for group in pool.groups:
            batch = pool.recv(4, group)
            assert batch.env_ids.tolist() == list(range(8))[group]
            pool.send(np.zeros((4, 1), np.int64), batch.env_ids)


def test_whoever_is_ready_is_received() -> None:
    pool = EnvPoolPool(make(num_envs=6, batch_size=2), "CartPole-v1")
    pool.reset(seed=0)
    pool.send(np.zeros((6, 1), np.int64), np.arange(6))
    seen: list[int] = []
    for _ in range(3):
        seen += pool.recv(2).env_ids.tolist()
    assert sorted(seen) == list(range(6))
    assert len(pool.recv(1).env_ids) == 0  # nobody was sent to


def test_a_reset_takes_back_what_is_in_flight() -> None:
    pool = EnvPoolPool(make(num_envs=4, batch_size=2), "CartPole-v1")
    pool.reset(seed=0)
    pool.send(np.zeros((4, 1), np.int64), np.arange(4))
    batch = pool.reset(seed=0)
    assert batch.valid.all()
    assert np.abs(batch.obs["obs"]).max() <= 0.05
    assert (pool.step(np.zeros((4, 1), np.int64)).reward == 1).all()


def test_nothing_can_be_brought_back() -> None:
    pool = EnvPoolPool(make(num_envs=2), "CartPole-v1")
    journal = EpisodeJournal(np.zeros(2, int), np.zeros(2, int), np.zeros((0, 2, 1), int))
    assert not pool.reset(0, journal).valid.any()


def test_what_cannot_be_a_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_envs=4 and batch_size=3"):
        EnvPoolPool(make(num_envs=4, batch_size=3), "CartPole-v1")
    pool = EnvPoolPool(make(num_envs=4, batch_size=2), "CartPole-v1")
    pool.reset(seed=0)
    with pytest.raises(ConfigError, match="batches of 2, and 3 actions"):
        pool.send(np.zeros((3, 1), np.int64), np.arange(3))


def test_it_is_known_without_importing_the_library() -> None:
    assert is_envpool(make(num_envs=1))
    assert not is_envpool(gymnasium.make_vec("CartPole-v1", 1))
    program = "import sys, stoker.pools.envpool; sys.exit('envpool' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_ppo_trains_on_it() -> None:
    from stoker import PPO

    model = PPO("MlpPolicy", make(num_envs=8), n_envs=8, n_steps=32, batch_size=64, device="cpu")
    model.learn(512)
    assert model.num_timesteps >= 512  # a step that is spent on a reset is none
