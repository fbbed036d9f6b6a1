"""Where values come from, and what is said about those that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tyro
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stoker.config import Config, resolve
from stoker.config.load import from_flat, layers, read_file
from stoker.config.schema import EnvSettings
from stoker.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(text: str) -> Path:
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return path

    return write_file


def refused(settings: dict[str, Any], **layers: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(settings, **layers)
    return caught.value.problems


def test_each_layer_beats_the_one_below(write: Any) -> None:
    """n_epochs is set by all four layers, each other setting by one layer fewer."""
    file = write("n_steps: 128\nn_epochs: 3\n")
    config = resolve({"n_epochs": 2}, preset="fast", file=file, on_gpu=True)
    assert config.ppo.n_epochs == 2  # settings
    assert config.ppo.n_steps == 128  # file
    assert config.env.n_envs == 16  # preset
    assert config.ppo.gamma == 0.99  # default
    assert resolve({}, preset="fast", file=file).ppo.n_epochs == 3
    assert resolve({}, preset="fast").ppo.n_epochs == 15
    assert resolve({}, on_gpu=True).ppo.n_epochs == 10


def test_a_setting_equal_to_the_default_still_beats_the_preset() -> None:
    assert resolve({"n_envs": 1, "batch_size": 64}, preset="fast").env.n_envs == 1


@pytest.mark.parametrize(
    ("alias", "value", "group", "name"),
    [
        ("env_id", "Acrobot-v1", "env", "env"),
        ("env-id", "Acrobot-v1", "env", "env"),
        ("total_timesteps", 12_345, "run", "timesteps"),
        ("num_envs", 4, "env", "n_envs"),
        ("num_steps", 64, "ppo", "n_steps"),
        ("update_epochs", 7, "ppo", "n_epochs"),
        ("repeat_times", 7, "ppo", "n_epochs"),
        ("worker_num", 4, "env", "n_envs"),
        ("lr", 0.25, "ppo", "learning_rate"),
        ("minibatch_size", 32, "ppo", "batch_size"),
    ],
)
def test_aliases_work_in_settings_and_in_files(
    alias: str, value: Any, group: str, name: str, write: Any
) -> None:
    assert getattr(getattr(resolve({alias: value}), group), name) == value
    file = write(f"{alias}: {value}\n")
    assert getattr(getattr(resolve({}, file=file), group), name) == value


def test_an_alias_above_beats_the_name_below(write: Any) -> None:
    assert resolve({"num_envs": 4}, file=write("n_envs: 2\n")).env.n_envs == 4


def test_one_layer_may_not_say_a_setting_twice() -> None:
    (problem,) = refused({"n_envs": 4, "num_envs": 8})
    assert "n_envs" in problem
    assert "num_envs" in problem


@pytest.mark.parametrize(
    ("wrong", "suggested"),
    [("n_env", "n_envs"), ("learning_rat", "learning_rate"), ("total_timestep", "total_timesteps")],
)
def test_an_unknown_key_comes_with_a_suggestion(wrong: str, suggested: str, write: Any) -> None:
    for problems in (refused({wrong: 1}), refused({}, file=write(f"{wrong}: 1\n"))):
        (problem,) = problems
        assert f"no setting {wrong!r}" in problem
        assert suggested in problem.split("Did you mean ")[1]


def test_an_unknown_key_like_no_other_lists_them_all() -> None:
    (problem,) = refused({"zzzzzz": 1})
    assert "gae_lambda" in problem


def test_every_mistake_is_reported_at_once(write: Any) -> None:
    file = write("n_stepz: 3\ngamma: high\ndevice: tpu\n")
    problems = refused(
        {"n_envs": "some", "n_epochs": 0, "batch_size": 7, "activation": 3},
        preset="fats",
        file=file,
    )
    wanted = (
        "no preset 'fats'. Did you mean fast?",
        "no setting 'n_stepz'",
        "gamma: ",
        "device: 'tpu' is none of auto, cuda, cpu",
        "n_envs: 'some' is not a whole number",
        "activation: 3 is none of",
        "n_epochs is 0",
        "batch_size 7 does not divide",
    )
    for part in wanted:
        assert sum(part in problem for problem in problems) == 1, (part, problems)
    assert len(problems) == len(wanted)


def test_n_envs_0_is_one_problem_even_when_the_batch_is_auto() -> None:
    for batch_size in ("auto", 64):
        assert refused({"n-envs": "0", "batch_size": batch_size}) == [
            "n_envs is 0; it must be 1 or more."
        ]


@pytest.mark.parametrize(
    ("preset", "n_envs", "n_steps", "size"),
    [
        ("fast", 16, 256, 2048),  # the aim itself divides
        ("fast", 15, 100, 1500),  # the whole batch is smaller than the aim
        ("fast", 30, 100, 1500),
        ("fast", 7, 512, 1792),
        (None, 3, 100, 60),  # default-cpu aims at 64
    ],
)
def test_auto_takes_the_largest_divisor_up_to_the_presets_aim(
    preset: str | None, n_envs: int, n_steps: int, size: int
) -> None:
    settings = {"n_envs": n_envs, "n_steps": n_steps, "batch_size": "auto"}
    assert resolve(settings, preset=preset).minibatch == size


def test_auto_in_a_file_aims_at_the_preset_that_the_file_names(write: Any) -> None:
    file = write("preset: fast\nbatch_size: auto\nn_envs: 30\nn_steps: 100\n")
    config = resolve({}, file=file)
    assert (config.minibatch, config.ppo.n_epochs) == (1500, 15)


def test_a_preset_asked_for_beats_the_one_in_the_file(write: Any) -> None:
    config = resolve({}, preset="heavy", file=write("preset: fast\nn_steps: 128\n"))
    assert (config.env.n_envs, config.ppo.n_steps) == (32, 128)


@pytest.mark.parametrize("value", ["7", "[fast]", "{a: 1}", "true"])
def test_a_preset_that_is_no_name(value: str, write: Any) -> None:
    (problem,) = refused({}, file=write(f"preset: {value}\n"))
    assert "no preset" in problem


def test_numbers_as_yaml_gives_them(write: Any) -> None:
    """YAML 1.1 wants a dot in a float, so PyYAML reads 3e-4 as text."""
    assert yaml.safe_load("3e-4") == "3e-4"
    file = write("lr: 3e-4\ntimesteps: 50M\nn_steps: 1e3\nbatch_size: auto\nn_envs: 2\nseed: 7.0\n")
    config = resolve({}, file=file)
    assert config.ppo.learning_rate == 3e-4
    assert config.run.timesteps == 50_000_000
    assert config.ppo.n_steps == 1000
    assert config.run.seed == 7
    assert type(config.run.seed) is int


@pytest.mark.parametrize("written", ["64", "'64'", "[64]", "'64,'"])
def test_one_layer_may_be_written_plainly(written: str, write: Any) -> None:
    assert resolve({}, file=write(f"network_arch: {written}\n")).network.network_arch == (64,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_envs", True),
        ("n_envs", None),
        ("gamma", True),
        ("gamma", None),
        ("gamma", []),
        ("gamma", "nan"),
        ("gamma", ".inf"),
        ("gamma", float("inf")),
        ("gamma", 10**400),
        ("batch_size", "automatic"),
        ("batch_size", None),
        ("clip_range_vf", "auto"),
        ("target_kl", "auto"),
        ("normalize_obs", 1),
        ("normalize_obs", "yes"),
        ("env", 5),
        ("env_kwargs", "gravity"),
        ("env_kwargs", [1]),
        ("pool", []),
        ("device", "gpu"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(name: str, value: Any) -> None:
    (problem,) = refused({name: value})
    assert problem.startswith(f"{name}: ")
    assert problem.endswith(".")


@pytest.mark.parametrize(
    "hostile",
    [
        "n_envs: !!python/object/apply:os.mkdir ['{place}']",
        "env_kwargs: {{a: !!python/object/apply:os.mkdir ['{place}']}}",
        "!!python/object/new:os.mkdir ['{place}']",
    ],
)
def test_yaml_that_would_run_code_is_refused_and_not_run(
    hostile: str, write: Any, tmp_path: Path
) -> None:
    place = tmp_path / "was_run"
    (problem,) = refused({}, file=write(hostile.format(place=place)))
    assert "not YAML that can be loaded safely" in problem
    assert not place.exists()


@pytest.mark.parametrize(
    "broken",
    ["n_envs: [", "\0", "run_name: 2024-13-45", "n_envs: !!int many", "[" * 1500],
    ids=["open bracket", "null byte", "no such date", "tag that lies", "deep"],
)
def test_broken_yaml_is_a_config_error(broken: str, write: Any) -> None:
    (problem,) = refused({}, file=write(broken))
    assert "settings.yaml cannot be used: " in problem


@pytest.mark.parametrize("text", ["gamma: 0.9\ngamma: 0.1", "env_kwargs: {a: 1, a: 2}"])
def test_a_name_that_is_given_twice(text: str, write: Any) -> None:
    (problem,) = refused({}, file=write(text))
    assert "twice; keep one" in problem


@pytest.mark.parametrize("text", ["", "just words", "- n_envs", "1: 2"])
def test_a_file_without_settings_by_name(text: str, write: Any) -> None:
    (problem,) = refused({}, file=write(text))
    assert "settings by name" in problem


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        assert "Cannot read the config file" in refused({}, file=path)[0]
    (tmp_path / "latin.yaml").write_bytes(b"env: caf\xe9")
    with pytest.raises(ConfigError, match="not YAML"):
        read_file(tmp_path / "latin.yaml")


def test_the_resolved_config_round_trips_through_yaml(write: Any) -> None:
    config = resolve(
        {
            "env": "Pendulum-v1",
            "env_kwargs": {"g": 9.81},
            "clip_range_vf": 0.3,
            "batch_size": "auto",
            "network_arch": "32,16",
            "run_name": "round-trip",
            "shared_trunk": True,
        },
        preset="fast",
        on_gpu=True,
    )
    flat = config.flat()
    assert from_flat(flat) == config
    assert from_flat(yaml.safe_load(yaml.safe_dump(flat))) == config
    assert resolve({}, file=write(yaml.safe_dump(flat))) == config


@given(
    n_envs=st.integers(1, 64),
    n_steps=st.integers(1, 512),
    lr=st.floats(1e-9, 1.0),
    arch=st.lists(st.integers(1, 4096), min_size=1, max_size=5),
    target_kl=st.none() | st.floats(1e-6, 1.0),
)
def test_any_config_round_trips(
    n_envs: int, n_steps: int, lr: float, arch: list[int], target_kl: float | None
) -> None:
    config = resolve(
        {
            "n_envs": n_envs,
            "n_steps": n_steps,
            "lr": lr,
            "network_arch": arch,
            "target_kl": target_kl,
            "batch_size": "auto",
            "normalize_advantage": False,
        }
    )
    assert config.total_batch % config.minibatch == 0
    assert from_flat(config.flat()) == config


def test_layers_leave_what_is_wrong_to_the_end(write: Any) -> None:
    config, aim, problems = layers("fast", write("n_envs: 4\nn_stepz: 1\n"), on_gpu=False)
    assert isinstance(config, Config)
    assert (config.env.n_envs, aim, len(problems)) == (4, 2048, 1)


def flags(*args: str) -> EnvSettings:
    return tyro.cli(EnvSettings, args=["--n-envs", "2", *args])


def test_environment_arguments_as_a_flag() -> None:
    assert flags("--env-kwargs", "{gravity: 9.8}").env_kwargs == {"gravity": 9.8}


@pytest.mark.parametrize(
    "broken", ["{gravity: ", "gravity", "!!python/object/apply:os.getcwd []", "{a: 2024-13-45}"]
)
def test_broken_environment_arguments_are_explained(
    broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        flags("--env-kwargs", broken)
    assert "env-kwargs" in capsys.readouterr().err
