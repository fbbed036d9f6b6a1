"""The preset table is the design's."""

from __future__ import annotations

from dataclasses import fields

import pytest

from stoker.config import PRESETS, resolve
from stoker.config.algorithms import ALGORITHMS
from stoker.config.presets import largest_that_fits
from stoker.config.schema import groups_of

DESIGN = {
    "fast": (16, 256, 2048, 15, (512, 512)),
    "heavy": (32, 256, 4096, 20, (1024, 512, 256)),
    "beast": (64, 512, 8192, 30, (1024, 512, 512, 256)),
    "max": (32, 8192, 512, 30, (1024, 1024, 512, 256)),
    "default-gpu": (8, 512, 256, 10, (256, 256)),
    "default-cpu": (1, 256, 64, 4, (128, 128)),
    "gpu-sim": (256, 32, 4096, 5, (512, 256, 128)),
}


def test_the_presets_are_those_of_the_design() -> None:
    assert set(PRESETS) == set(DESIGN)


@pytest.mark.parametrize("name", DESIGN)
def test_a_preset_sets_its_row(name: str) -> None:
    config = resolve({}, preset=name)
    found = (
        config.env.n_envs,
        config.ppo.n_steps,
        config.minibatch,
        config.ppo.n_epochs,
        config.network.network_arch,
    )
    assert found == DESIGN[name]


@pytest.mark.parametrize(("on_gpu", "name"), [(True, "default-gpu"), (False, "default-cpu")])
def test_without_a_preset_the_device_decides(on_gpu: bool, name: str) -> None:
    assert resolve({}, on_gpu=on_gpu) == resolve({}, preset=name)


@pytest.mark.parametrize(
    ("cores", "name"),
    [(1, "default-cpu"), (4, "fast"), (7, "fast"), (8, "heavy"), (16, "beast"), (99, "beast")],
)
def test_the_largest_preset_that_the_cores_can_feed(cores: int, name: str) -> None:
    assert largest_that_fits(cores) == name


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_setting_has_one_home(algo: str) -> None:
    names = [field.name for group in groups_of(algo).values() for field in fields(group)]
    assert sorted(names) == sorted(set(names))
