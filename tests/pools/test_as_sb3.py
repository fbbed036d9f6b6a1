"""A pool as a VecEnv does what Stable-Baselines3's own do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from vec_envs import Diary, Plain

from stoker import make_sb3_vec
from stoker.errors import ConfigError

sb3 = pytest.importorskip(
    "stable_baselines3", reason="stable-baselines3 is not installed: pip install 'stoker[bench]'"
)
KINDS: Any = ["inline", "process"]
both_kinds = pytest.mark.parametrize("kind", KINDS)


def cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=20)


@both_kinds
@pytest.mark.parametrize("make", [cartpole, Diary, Plain])
def test_it_returns_what_dummy_vec_env_returns(make: Any, kind: Any) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv

    theirs, ours = DummyVecEnv([make] * 3), make_sb3_vec(make, 3, pool=kind, monitor=False)
    assert ours.observation_space == theirs.observation_space
    for envs in (theirs, ours):
        assert envs.seed(5) == [5, 6, 7]
    assert data_equivalence(_plain(ours.reset()), _plain(theirs.reset()))
    assert data_equivalence(ours.reset_infos, theirs.reset_infos)
    ours.action_space.seed(1)
    ends = 0
    for _ in range(60):
        actions = np.array([ours.action_space.sample() for _ in range(3)])
        found, expected = ours.step(actions), theirs.step(actions)
        assert data_equivalence(_plain(found[0]), _plain(expected[0]))
        assert data_equivalence(found[1:], expected[1:])
        assert data_equivalence(ours.reset_infos, theirs.reset_infos)
        ends += int(found[2].sum())
    assert ends > 5
    ours.close()


def _plain(obs: Any) -> Any:
    return dict(obs) if isinstance(obs, dict) else obs


@both_kinds
def test_options_are_used_once_and_may_differ(kind: Any) -> None:
    envs = make_sb3_vec(Diary, 2, pool=kind, monitor=False)
    envs.set_options([{"hills": 1}, {"hills": 2}])
    first = envs.reset()
    assert [info["options"] for info in envs.reset_infos] == [{"hills": 1}, {"hills": 2}]
    assert first["place"].shape == (2, 2)
    envs.reset()
    assert [info["options"] for info in envs.reset_infos] == [None, None]
    envs.close()


@both_kinds
def test_some_may_be_asked(kind: Any) -> None:
    envs = make_sb3_vec(Diary, 3, pool=kind, env_kwargs={"name": "Ann", "render_mode": "rgb_array"})
    envs.reset()
    envs.set_attr("mood", "gay", indices=[0, 2])
    assert envs.get_attr("mood") == ["gay", "calm", "gay"]
    assert envs.get_attr("mood", indices=1) == ["calm"]
    assert envs.env_method("greet", "Bob", indices=[1], loudly=True) == ["Ann greets Bob!"]
    assert envs.has_attr("mood")
    assert not envs.has_attr("nothing")
    assert len(envs.get_images()) == 3
    assert envs.render().shape == (8, 8, 3)
    envs.close()


@both_kinds
def test_wrappers_are_known(kind: Any) -> None:
    from stable_baselines3.common.monitor import Monitor

    envs = make_sb3_vec("CartPole-v1", 2, pool=kind)
    assert envs.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True, True]
    assert envs.env_is_wrapped(gymnasium.wrappers.TimeLimit, indices=1) == [True]
    assert envs.env_is_wrapped(Monitor) == [False, False]
    envs.close()


@both_kinds
def test_a_reset_forgets_the_step_that_was_asked_for(kind: Any) -> None:
    envs = make_sb3_vec("CartPole-v1", 2, pool=kind)
    envs.reset()
    envs.step_async(np.array([0, 1]))
    envs.seed(3)
    first = envs.reset()
    envs.seed(3)
    assert (envs.reset() == first).all()
    assert envs.step(np.array([0, 1]))[1].tolist() == [1.0, 1.0]
    envs.close()


def test_after_closing_there_is_an_error() -> None:
    envs = make_sb3_vec("CartPole-v1", 2, pool="inline")
    envs.close()
    envs.close()
    with pytest.raises(ConfigError, match="make new ones"):
        envs.reset()


@both_kinds
def test_ppo_learns_the_same_as_on_its_own_environments(kind: Any) -> None:
    """With the same seed its episodes are the same, to the last bit of its weights."""
    from stable_baselines3.common.env_util import make_vec_env

    models = []
    for envs in (make_sb3_vec("CartPole-v1", 4, pool=kind), make_vec_env("CartPole-v1", 4)):
        model = sb3.PPO("MlpPolicy", envs, n_steps=128, n_epochs=2, seed=3, device="cpu")
        models.append(model.learn(2048))
        envs.close()
    ours, theirs = (model.policy.state_dict() for model in models)
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    episodes = [[(e["r"], e["l"]) for e in model.ep_info_buffer] for model in models]
    assert episodes[0] == episodes[1]
    assert len(episodes[0]) > 20


def test_without_the_library_there_is_a_hint() -> None:
    program = (
        "import sys; sys.modules['stable_baselines3'] = None; "
        "from stoker import make_sb3_vec; make_sb3_vec('CartPole-v1', 2)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install stable-baselines3" in ended.stderr
    assert ended.returncode == 1
