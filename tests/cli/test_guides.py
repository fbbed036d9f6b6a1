"""The command lines and settings of the guides people come from, as these write them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.cli.main import main
from stoker.cli.train import parse_train
from stoker.config import resolve
from stoker.config.names import find_field
from stoker.errors import ConfigError
from stoker.runs.reader import summarise
from stoker.runs.sb3_stats import RECIPE

HEAVY: dict[str, Any] = {"n_envs": 32, "n_steps": 256, "batch_size": 4096, "n_epochs": 20}
HEAVY |= {"network_arch": [1024, 512, 256]}
FAST = {"n_envs": 16, "n_steps": 256, "batch_size": 2048, "n_epochs": 15}
FAST |= {"network_arch": [512, 512]}
BEAST = {"n_envs": 64, "n_steps": 512, "batch_size": 8192, "n_epochs": 30}
BEAST |= {"network_arch": [1024, 512, 512, 256]}
LONG = {"timesteps": 50_000_000}
BY_HAND = """--timesteps 50000000 \\
  --n-envs 32 \\
  --n-steps 256 \\
  --batch-size 4096 \\
  --n-epochs 20 \\
  --network-arch "1024,512,256" \\
  --subproc \\
  --run-name my-heavy-run"""

PRESETS_GUIDE: dict[str, dict[str, Any]] = {
    "--preset fast --timesteps 50000000": {**FAST, **LONG},
    "--preset heavy --timesteps 50000000": {**HEAVY, **LONG},
    "--preset beast --timesteps 50000000": {**BEAST, **LONG},
    BY_HAND: {**HEAVY, **LONG, "pool": "process", "run_name": "my-heavy-run"},
    "--preset heavy --run-name job1": {**HEAVY, "run_name": "job1"},
    "--preset fast --timesteps 1000000 --run-name test": {**FAST, "timesteps": 1_000_000},
    "--preset heavy --timesteps 50000000 --run-name production": {**HEAVY, **LONG},
    '--preset heavy --timesteps 50000000 --run-name "parallel-1"': {"run_name": "parallel-1"},
    '--preset heavy --batch-size 2048 --network-arch "512,512,256"': {
        **HEAVY,
        "batch_size": 2048,
        "network_arch": [512, 512, 256],
    },
    "--preset heavy --batch-size auto": HEAVY,
}
"""Of the guide with presets, each after `train_ppo`."""


def flat_of(words: str) -> dict[str, Any]:
    config, _ = parse_train(shlex.split(words.replace("\\\n", " ")))
    return config.flat()


def assert_has(flat: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {name: flat[name] for name in expected} == expected


@pytest.mark.parametrize("words", PRESETS_GUIDE)
def test_the_guide_with_presets(words: str) -> None:
    assert_has(flat_of(words), PRESETS_GUIDE[words])


def test_the_guide_for_a_simulator(tmp_path: Path) -> None:
    """Its script takes `--num_envs`, and its file has the names of Stable-Baselines3."""
    file = tmp_path / "sb3_ppo_cfg.yaml"
    file.write_text(
        "batch_size: 4096  # Larger batches\nn_steps: 4096     # More steps per update\n"
    )
    expected = {"n_envs": 256, "in_flight": 256, "batch_size": 4096, "n_steps": 4096}
    assert_has(flat_of(f"--num_envs 256 --config {file}"), expected)
    assert_has(flat_of("--num_envs=128 --batch_size 2048"), {"n_envs": 128, "batch_size": 2048})


def test_the_guide_for_environments_that_wait() -> None:
    lines = """
        n_envs = 32
        n_steps = 8192
        batch_size = 512
        n_epochs = 30
        net_arch = [1024, 1024, 512, 256]
    """
    settings = {k.strip(): yaml.safe_load(v) for k, v in _pairs(lines)}
    # Those that were asked for are in flight, besides.
    assert resolve(settings).flat() == resolve({"in_flight": 32}, preset="max").flat()
    words = "--n-envs 32 --n-steps 8192 --batch-size 512 --n-epochs 30 --net-arch 1024,1024,512,256"
    assert_has(flat_of(words), {"n_envs": 32, "network_arch": [1024, 1024, 512, 256]})
    smaller = {**settings, "n_envs": 16, "batch_size": 256, "net_arch": [512, 512, 256]}
    assert resolve(smaller).network.network_arch == (512, 512, 256)
    assert resolve({**settings, "n_envs": 64, "batch_size": 1024, "n_epochs": 40}).env.n_envs == 64


def _pairs(lines: str) -> list[list[str]]:
    return [line.split("=") for line in lines.split("\n") if "=" in line]


def test_the_guide_with_defaults_for_each_device() -> None:
    ppo_gpu, ppo_cpu = resolve({}, on_gpu=True).flat(), resolve({}).flat()
    assert_has(ppo_gpu, {"n_envs": 8, "batch_size": 256, "n_steps": 512, "n_epochs": 10})
    assert_has(ppo_cpu, {"n_envs": 1, "batch_size": 64, "n_steps": 256, "n_epochs": 4})
    assert (ppo_gpu["network_arch"], ppo_cpu["network_arch"]) == ([256, 256], [128, 128])
    dqn_gpu, dqn_cpu = (resolve({"algo": "dqn"}, on_gpu=gpu).flat() for gpu in (True, False))
    assert_has(dqn_gpu, {"batch_size": 128, "buffer_size": 50_000, "network_arch": [256] * 3})
    assert_has(dqn_cpu, {"batch_size": 32, "buffer_size": 10_000, "network_arch": [128, 128]})
    by_hand = {"n_envs": 8, "batch_size": 256, "n_steps": 512}
    assert_has(resolve(by_hand).flat(), by_hand)


def test_the_guide_that_trains_more_on_each_batch(tmp_path: Path) -> None:
    settings = resolve({"repeat_times": 16, "worker_num": 24})
    assert (settings.ppo.n_epochs, settings.env.n_envs) == (16, 24)
    expected = {"n_epochs": 16, "n_envs": 20, "in_flight": 20}
    assert_has(flat_of("--repeat_times 16 --worker_num 20"), expected)
    for name, says in (
        ("base_target_step", "set n_steps to as many steps over n_envs"),
        ("target_step", "set n_steps to as many steps over n_envs"),
        ("if_per_or_gae", "PPO always estimates advantages by GAE"),
    ):
        with pytest.raises(ConfigError, match=f"There is no setting '{name}'. .*{says}"):
            resolve({name: 32_768})
        with pytest.raises(ConfigError, match=f"There is no flag --{name.replace('_', '-')}. "):
            flat_of(f"--{name} 32768")


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ("--preset fast --timesteps 4096 --run-name test", 4096),
        (BY_HAND.replace("50000000", "64").replace("256", "2").replace("4096", "auto"), 64),
        ("--num_envs 4 --config sb3_ppo_cfg.yaml --n-epochs 1 --timesteps 16 --run-name sim", 256),
        ("--repeat_times 2 --worker_num 2 --timesteps 512 --run-name more", 512),
    ],
    ids=["preset", "by hand", "simulator", "repeat"],
)
def test_they_train_as_they_stand(
    words: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CartPole, for which the guides' own environments are not needed, and not for as long."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sb3_ppo_cfg.yaml").write_text("batch_size: 64\nn_steps: 64\n")
    given = shlex.split(words.replace("\\\n", " "))
    with pytest.raises(SystemExit) as left:
        main(["train", *given, "--device", "cpu", "--eval-episodes", "1"])
    assert left.value.code == 0
    (run,) = (tmp_path / "runs").iterdir()
    found = summarise(run)
    assert (found.state, found.env_steps) == ("finished", steps)


PAGE = (Path(__file__).parents[2] / "docs/moving-in.md").read_text()


def test_the_page_has_the_recipe_that_errors_show() -> None:
    assert f"```python\n{RECIPE}\n```" in PAGE


def test_the_pages_flags_are_there() -> None:
    commands = re.findall(r"^stoker train (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 1
    flat = flat_of(commands[0])
    expected = {"n_envs": 1, "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "target_kl": None}
    assert_has(flat, expected | {"learning_rate": 3e-4, "lr_schedule": "constant"})
    assert_has(flat, {"normalize_obs": False, "normalize_reward": False})
    table = PAGE.partition("| in the guide | here |")[2]
    flags = set(re.findall(r"`?(--[a-z][\w-]+)", table)) - {"--preset", "--subproc", "--config"}
    assert len(flags) > 10
    assert [flag for flag in flags if find_field(flag[2:]) is None] == []
