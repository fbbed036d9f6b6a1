"""The mission as users meet it: by its id, with its spaces, metrics and pictures."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from missions import field

from stoker.envs.mission.env import MissionEnv
from stoker.envs.mission.geometry import Boxes, ray_lengths
from stoker.envs.mission.picture import BAR, SIZE
from stoker.envs.mission.raster import raster
from stoker.envs.mission.start import draws_at_start
from stoker.envs.registry import EnvFactory
from stoker.errors import ConfigError, EnvError
from stoker.pools.spaces import describe_env


@pytest.mark.parametrize("kwargs", [{}, {"raster": True, "scenario": "stronghold"}])
def test_gymnasium_finds_no_fault(kwargs: dict[str, object]) -> None:
    env = gymnasium.make("stoker/Mission-v0", render_mode="rgb_array", **kwargs)
    check_env(env.unwrapped)


def test_the_id_needs_no_import_but_stoker_and_never_torch() -> None:
    program = (
        "import sys, gymnasium, stoker; gymnasium.make('stoker/Mission-v0').reset(seed=1); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_trainer_reads_its_spaces_and_metrics() -> None:
    env = EnvFactory("stoker/Mission-v0", {"raster": True})()
    spec = describe_env("mission", env, env.reset(seed=0)[1])
    assert spec.action.nvec == (9, 9, 9, 9)
    assert {name: leaf.kind for name, leaf in spec.observation.items()} == {
        "raster": "image",
        "vector": "vector",
    }
    assert spec.observation["raster"].channels_last
    assert "progress" in spec.metric_names


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="unexpected keyword argument 'rasta'"):
        EnvFactory("stoker/Mission-v0", {"rasta": True})()
    with pytest.raises(ConfigError, match="neither a file nor a shipped name"):
        EnvFactory("stoker/Mission-v0", {"scenario": "nowhere.yaml"})()
    with pytest.raises(ConfigError, match="rgb_array"):
        MissionEnv(render_mode="human")


@pytest.mark.parametrize("action", [[0, 0, 0], [0, 0, 0, 9], [0, 0, 0, -1], [0.0] * 4, 3])
def test_an_action_that_is_none_is_refused(action: object) -> None:
    env = MissionEnv()
    env.reset(seed=0)
    with pytest.raises(EnvError, match="expected 4 whole numbers from 0 to 8"):
        env.step(np.array(action))


def test_stepping_before_reset_is_refused() -> None:
    with pytest.raises(EnvError, match="call reset"):
        MissionEnv().step(np.zeros(4, int))


def test_chance_is_drawn_up_front_and_in_fixed_amounts() -> None:
    env = MissionEnv()
    env.reset(seed=5)
    env.step(np.zeros(4, int))
    twin = np.random.Generator(np.random.PCG64(np.random.SeedSequence(5)))
    twin.random(draws_at_start(env.rules), np.float32)
    twin.random(env.rules.units, np.float32)
    assert twin.random() == env.np_random.random()


def test_rays_end_at_walls_boxes_and_their_own_length() -> None:
    boxes = Boxes(
        np.array([[60, 50]], np.float32), np.array([[5, 5]], np.float32), np.array([1], np.int32)
    )
    ways = np.array([[[20, 0], [0, 20], [-20, 0], [0, -100]]], np.float32)
    for altitude, ahead in ((0, 0.25), (1, 1.0)):
        start, height = np.array([[50, 50]], np.float32), np.array([altitude])
        lengths = ray_lengths(start, ways, height, boxes, 100.0)
        assert lengths[0] == pytest.approx([ahead, 1, 1, 0.5], abs=1e-5)


def test_the_raster_shows_each_thing_in_its_channel() -> None:
    rules, state = field(
        attacker=(20, 50), wall=(50, 80, 10, 10), spotted_age=np.array([10], np.int32)
    )
    image = raster(rules, state._replace(spotted_at=np.array([[90, 10]], np.float32)))
    spots = [np.argwhere(image[..., c]).mean(0) for c in range(4)]
    expected = [(9.1, 23.5), (23.5, 37.9), (23.5, 9.1), (42.7, 42.7)]  # rows go down, from y = 100
    for found, wanted in zip(spots, expected, strict=True):
        assert found == pytest.approx(wanted, abs=0.6)
    assert image[..., 3].max() == 127


def test_the_picture_shows_units_and_changes_with_them() -> None:
    env = MissionEnv(render_mode="rgb_array")
    assert env.render() is None
    env.reset(seed=0)
    first = env.render()
    assert first is not None
    assert (first.shape, first.dtype) == ((SIZE + BAR, SIZE, 3), np.uint8)
    for _ in range(3):
        env.step(np.ones(4, int))
    assert (env.render() != first).any(-1).sum() > 50
    assert MissionEnv().render() is None
