"""JAX environments over DLPack: what they tell, where it lies, and that they can be trained on."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from stoker.errors import ConfigError, SpaceError
from stoker.pools.vector_on_device import DeviceVectorPool
from stoker.train.agent import PPO

pytest.importorskip("jax", reason="JAX is not installed: pip install 'stoker[jax]'")

from jax_envs import TOP, Own, Params, Rungs

from stoker.envs.jax_vector import JaxVectorEnv

CPU = torch.device("cpu")


def climb(envs: JaxVectorEnv, *choices: int) -> Any:
    return envs.step(torch.tensor(choices))


def test_it_resets_in_the_same_step_and_tells_what_was_seen_last() -> None:
    envs = JaxVectorEnv(Rungs(), 3)
    first, _ = envs.reset(seed=5)
    assert first.shape == (3, 3)
    assert len(first[:, 2].unique()) == 3, "luck is each one's own"
    for step in range(1, TOP):
        obs, reward, terminated, truncated, _ = climb(envs, 1, 1, 0)
        assert reward.tolist() == [step, step, -step]
        assert not (terminated | truncated).any()
    obs, _, terminated, truncated, extras = climb(envs, 1, 0, 0)
    assert terminated.tolist() == [True, False, False]
    assert not truncated.any()
    assert extras["final_obs"][:, :2].tolist() == [[TOP, TOP], [TOP - 2, TOP], [-TOP, TOP]]
    assert torch.equal(extras["final_obs"][:, 2], first[:, 2])
    assert obs[:, :2].tolist() == [[0, 0], [TOP - 2, TOP], [-TOP, TOP]]
    assert obs[0, 2] != first[0, 2], "another draw"
    assert torch.equal(obs[1:, 2], first[1:, 2])


@pytest.mark.parametrize("make", [Rungs, Own, lambda: Own("new")])
def test_a_time_limit_is_a_truncation(make: Any) -> None:
    envs = JaxVectorEnv(make(), 2, params=Params(max_steps_in_episode=3))
    envs.reset()
    for _ in range(3):
        obs, _, terminated, truncated, extras = climb(envs, 1, 0)
    assert (terminated.tolist(), truncated.tolist()) == ([False] * 2, [True] * 2)
    assert obs[:, :2].tolist() == [[0, 0]] * 2
    if isinstance(make(), Own) and make().form == "old":
        assert extras == {}, "it cannot be known"
    else:
        assert extras["final_obs"][:, :2].tolist() == [[3, 3], [-3, 3]]


@pytest.mark.parametrize("how", ["info", "is_truncated", "new"])
def test_the_environment_may_say_what_ended_it(how: str) -> None:
    """At the top in the last step: it terminated, whatever the time."""

    class Says(Rungs):
        def step_env(self, *given: Any) -> Any:
            obs, state, reward, done, _ = super().step_env(*given)
            top = state.rung >= TOP
            info = {"truncated": ~top} if how == "info" else {}
            return obs, state, reward, done if how == "info" else top, info

    if how == "is_truncated":
        Says.is_truncated = lambda self, state, params: state.time >= TOP  # type: ignore[attr-defined]
    env: Any = Own("new") if how == "new" else Says()
    envs = JaxVectorEnv(env, 2, params=Params(max_steps_in_episode=TOP))
    envs.reset()
    for _ in range(TOP):
        _, _, terminated, truncated, _ = climb(envs, 1, 0)
    assert (terminated.tolist(), truncated.tolist()) == ([True, False], [False, True])


def test_without_a_limit_every_end_is_a_termination() -> None:
    class Short(Rungs):
        def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
            return super().step_env(key, state, action, Params(max_steps_in_episode=1))

    envs = JaxVectorEnv(Short(), 2, params=())
    envs.reset()
    _, _, terminated, truncated, _ = climb(envs, 1, 1)
    assert (terminated.tolist(), truncated.tolist()) == ([True] * 2, [False] * 2)


def test_a_seed_gives_the_same_luck() -> None:
    drawn, envs = [], JaxVectorEnv(Rungs(), 4)
    for seed in (1, 1, 2):
        obs, _ = envs.reset(seed=seed)
        rows = [obs] + [climb(envs, 1, 1, 1, 1)[0] for _ in range(9)]
        drawn.append(torch.stack(rows)[..., 2])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert len(drawn[0].unique()) == 4 * 3, "nobody has another's, and nobody the same again"


def test_nothing_is_copied() -> None:
    import jax

    envs = JaxVectorEnv(Rungs(), 4)
    array = jax.numpy.arange(4096.0)
    (tensor,) = envs._handed([array])
    assert tensor.data_ptr() == array.unsafe_buffer_pointer()


class Camera:
    """Sees a picture and a category, and takes numbers; spaces as gymnax writes them."""

    def observation_space(self, params: Any) -> Any:
        picture = SimpleNamespace(low=0, high=255, shape=(4, 4, 1), dtype=np.uint8)
        return SimpleNamespace(spaces={"picture": picture, "kind": SimpleNamespace(n=5)})

    def action_space(self, params: Any) -> Any:
        return SimpleNamespace(low=-2.0, high=2.0, shape=(2,), dtype=np.float32)

    def reset(self, key: Any, params: Any) -> Any:
        import jax.numpy as jnp

        return {"picture": jnp.zeros((4, 4, 1)), "kind": 3, "secret": 1}, jnp.zeros(2)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        obs, _ = self.reset(key, params)
        return {**obs, "kind": 4}, state + action, action.sum(), False, {}


def test_spaces_of_gymnax_and_observations_by_name() -> None:
    envs = JaxVectorEnv(Camera(), 3)
    assert envs.single_action_space == spaces.Box(-2, 2, (2,), np.float32)
    pool = DeviceVectorPool(envs, "camera", CPU)
    assert pool.reset(0).obs["kind"].tolist() == [3, 3, 3]
    batch = pool.step(np.array([[0.5, 0], [1, 1], [9, 9]], np.float32))
    assert batch.reward.tolist() == [1, 4, 4], "within bounds"
    assert batch.obs["kind"].tolist() == [4, 4, 4]
    assert batch.obs["picture"].dtype == np.uint8


def test_it_is_learned() -> None:
    sizes: dict[str, Any] = {"n_envs": 24, "n_steps": 16, "batch_size": 96, "n_epochs": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = PPO(
            "MlpPolicy",
            "jax_envs:rungs",
            **sizes,
            network_arch=(16, 16),
            learning_rate=3e-3,
            device="cpu",
            eval_episodes=5,
        ).learn(20_000)
    assert model.outcome is not None
    assert model.outcome.evaluation is not None
    assert model.outcome.evaluation.mean_reward >= 1 + 2 + 3 + 4, "at least to the top"
    action, _ = model.predict(np.array([0, 0, 0.5], np.float32))
    assert action == 1, "up"


def test_what_has_no_space() -> None:
    class Blind(Rungs):
        observation_space: Any = None

    with pytest.raises(SpaceError, match=r"observation_space is None\. It has to be a space of"):
        JaxVectorEnv(Blind(), 2)


def test_a_device_that_jax_does_not_have() -> None:
    import jax

    if any(each.platform == "gpu" for each in jax.devices()):
        pytest.skip("JAX has a GPU here")
    with pytest.raises(ConfigError, match=r"is to run on cuda, and JAX has only"):
        JaxVectorEnv(Rungs(), 2, "cuda")


def test_where_jax_is_missing_it_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "from stoker.envs.jax_vector import JaxVectorEnv\n"
        "JaxVectorEnv(None, 2)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "This environment needs JAX, which is not installed: pip install" in ran.stderr
