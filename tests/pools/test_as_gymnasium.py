"""A pool as a Gymnasium vector environment does what Gymnasium's own do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from vec_envs import Breaks, Diary, Plain, named_diary

from stoker import make_vec
from stoker.config.schema import FaultSettings
from stoker.errors import ConfigError, EnvError, SpaceError

MODES = [mode.value for mode in AutoresetMode]
KINDS: Any = ["inline", "process"]
both_kinds = pytest.mark.parametrize("kind", KINDS)


def cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=20)


def frozen_lake() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("FrozenLake-v1")


@both_kinds
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [cartpole, frozen_lake, Diary, Plain])
def test_it_returns_what_gymnasium_returns(make: Any, mode: str, kind: Any) -> None:
    theirs = SyncVectorEnv([make] * 3, autoreset_mode=mode)
    ours = make_vec(make, 3, pool=kind, autoreset_mode=mode)
    assert ours.metadata == theirs.metadata
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert data_equivalence(ours.reset(seed=5), theirs.reset(seed=5))
    ours.action_space.seed(1)
    ends = 0
    for step in range(60):
        actions = ours.action_space.sample()
        found, expected = ours.step(actions), theirs.step(actions)
        assert data_equivalence(found, expected), (step, found, expected)
        ended = found[2] | found[3]
        ends += int(ended.sum())
        if mode == "Disabled" and ended.any():
            found, expected = (e.reset(options={"reset_mask": ended}) for e in (ours, theirs))
            assert data_equivalence(found[0], expected[0])
    assert ends > 5
    ours.close()


@both_kinds
def test_seeds_options_and_masks_reach_the_environments(kind: Any) -> None:
    envs = make_vec(Diary, 3, pool=kind)
    first, infos = envs.reset(seed=[4, None, 6], options={"hills": 2})
    assert infos["seed"].tolist() == [4, -1, 6]
    assert infos["options"]["hills"].tolist() == [2, 2, 2]
    stepped = envs.step(np.ones((3, 2), np.float32))[0]
    mask = np.array([True, False, True])
    again, infos = envs.reset(seed=[4, 5, 6], options={"reset_mask": mask, "hills": 3})
    assert infos["_seed"].tolist() == [True, False, True]
    assert infos["options"]["hills"].tolist() == [3, 0, 3]
    assert (again["place"][mask] == first["place"][mask]).all()
    assert (again["place"][1] == stepped["place"][1]).all()
    envs.close()


def test_an_episode_that_ended_in_the_mode_disabled_wants_a_reset() -> None:
    envs = make_vec(cartpole, 2, pool="inline", autoreset_mode="Disabled")
    envs.reset(seed=0)
    while not (ended := np.logical_or(*envs.step([0, 1])[2:4])).any():
        pass
    with pytest.raises(ResetNeeded, match=rf"{np.flatnonzero(ended).tolist()}".replace("[", r"\[")):
        envs.step([0, 1])


@both_kinds
def test_results_stay_as_they_were(kind: Any) -> None:
    envs = make_vec("CartPole-v1", 2, pool=kind)
    kept = [envs.reset(seed=0)[0]]
    kept += [envs.step([0, 1])[0] for _ in range(3)]
    by_value = [obs.tolist() for obs in kept]
    envs.step([0, 1])
    assert [obs.tolist() for obs in kept] == by_value
    assert len({str(value) for value in by_value}) == 4
    envs.close()


def test_without_copies_the_next_step_overwrites() -> None:
    envs = make_vec("CartPole-v1", 2, pool="inline", copy=False)
    first = envs.reset(seed=0)[0]
    second = envs.step([0, 1])[0]
    assert first is second or (first == second).all()


@both_kinds
def test_attributes_methods_and_pictures(kind: Any) -> None:
    envs = make_vec(Diary, 2, pool=kind, env_kwargs={"name": "Ann", "render_mode": "rgb_array"})
    envs.reset(seed=9)
    assert envs.render_mode == "rgb_array"
    assert envs.np_random_seed == (9, 10)
    assert envs.call("greet", "Bob", loudly=True) == ("Ann greets Bob!",) * 2
    envs.set_attr("mood", ["gay", "grim"])
    assert envs.get_attr("mood") == ("gay", "grim")
    envs.set_attr("mood", "calm")
    assert envs.get_attr("mood") == ("calm", "calm")
    envs.step(np.zeros((2, 2), np.float32))
    assert [frame.max() for frame in envs.render()] == [1, 1]
    with pytest.raises(AttributeError, match="nothing"):
        envs.get_attr("nothing")
    with pytest.raises(ValueError, match="3 values were given for 2"):
        envs.set_attr("mood", ["a", "b", "c"])
    envs.close()


@both_kinds
def test_a_list_makes_each_of_its_own(kind: Any) -> None:
    envs = make_vec([named_diary(name) for name in "abcde"], pool=kind, n_workers=2)
    envs.reset()
    assert envs.get_attr("name") == tuple("abcde")
    envs.close()
    with pytest.raises(ConfigError, match="n_envs is 3, and env is a list of 2"):
        make_vec([Diary, Diary], 3)


@both_kinds
def test_after_closing_there_is_an_error(kind: Any) -> None:
    envs = make_vec("CartPole-v1", 2, pool=kind)
    envs.reset()
    envs.close()
    envs.close()
    for use in (envs.reset, lambda: envs.step([0, 0]), lambda: envs.call("gravity")):
        with pytest.raises(ClosedEnvironmentError, match="make new ones"):
            use()


def test_what_does_not_fit_is_named() -> None:
    envs = make_vec("CartPole-v1", 3, pool="inline")
    envs.reset()
    with pytest.raises(ValueError, match=r"shape \(2,\).*need \(3,\)"):
        envs.step([0, 1])
    with pytest.raises(TypeError, match="one for each environment"):
        envs.step(0)
    with pytest.raises(ValueError, match="2 seeds were given for 3"):
        envs.reset(seed=[1, 2])
    for mask, kind in (
        ([True, False, True], TypeError),
        (np.array([True]), ValueError),
        (np.array([1, 0, 1]), TypeError),
        (np.zeros(3, bool), ValueError),
    ):
        with pytest.raises(kind, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises(SpaceError, match="Tuple"):
        make_vec("Blackjack-v1", 2)


@both_kinds
def test_an_error_in_an_environment_is_raised(kind: Any) -> None:
    envs = make_vec(Breaks, 2, pool=kind)
    envs.reset(seed=0)
    envs.step(np.zeros((2, 2), np.float32))
    with pytest.raises(EnvError, match="the axle broke"):
        envs.step(np.zeros((2, 2), np.float32))
    envs.close()


@both_kinds
@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_or_mended_where_that_is_asked_for(kind: Any, mode: str) -> None:
    faults = FaultSettings(max_faults=50)
    envs = make_vec(Breaks, 2, pool=kind, autoreset_mode=mode, faults=faults)
    envs.reset(seed=0)
    actions, cut = np.zeros((2, 2), np.float32), 0
    with pytest.warns(UserWarning, match="the axle broke"):
        steps = [envs.step(actions) for _ in range(8)]
    for _, _, terminated, truncated, infos in steps:
        told = infos.get("final_info", {}) if mode == "SameStep" else infos
        if "cut_off" in told:
            cut += 1
            assert truncated[told["_cut_off"]].all()
            assert not terminated[told["_cut_off"]].any()
    assert cut > 1
    envs.close()


def test_it_takes_no_torch() -> None:
    program = (
        "import sys; from stoker import make_vec; envs = make_vec('CartPole-v1', 2); envs.reset(); "
        "envs.step([0, 1]); envs.close(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"pool": "foo"}, "pool is 'foo'; it must be one of auto, process, inline"),
        ({"n_workers": -3}, "n_workers is -3; it must be a whole number, 0 or more"),
        ({"n_envs": 0}, "n_envs is 0; it must be a whole number, 1 or more"),
        ({"n_envs": 2.5}, "n_envs is 2.5; it must be a whole number"),
        ({"n_envs": "4"}, "n_envs is '4'; it must be a whole number"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_in_words(
    wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_vec("CartPole-v1", **{"n_envs": 2, **wrong})
