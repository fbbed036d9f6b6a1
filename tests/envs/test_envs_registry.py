"""From what a user writes to an environment."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import pytest

from stoker.envs.registry import EnvFactory
from stoker.errors import ConfigError, EnvError

MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Lander(CartPoleEnv):
    def __init__(self, gravity=1.0):
        super().__init__()
        self.gravity = gravity

def make_lander(gravity=2.0):
    return Lander(gravity)

class NotAnEnv:
    pass

class Broken(Lander):
    def __init__(self):
        import no_such_package_anywhere

not_callable = 3
gymnasium.register("Lander-v0", entry_point="landers:Lander", max_episode_steps=17)
"""


@pytest.fixture
def landers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module in the folder where the command is called, and nowhere else."""
    (tmp_path / "landers.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield "landers"
    sys.modules.pop("landers", None)
    gymnasium.registry.pop("Lander-v0", None)


def fault_of(target: Any, **kwargs: Any) -> str:
    with pytest.raises(EnvError) as caught:
        EnvFactory(target, kwargs)()
    return str(caught.value)


def why_not(target: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        EnvFactory(target, kwargs)()
    return str(caught.value)


def test_a_gymnasium_id() -> None:
    env = EnvFactory("CartPole-v1", {"sutton_barto_reward": True})()
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    assert env.unwrapped._sutton_barto_reward is True


def test_a_class_of_a_module(landers: str) -> None:
    env = EnvFactory(f"{landers}:Lander", {"gravity": 3.5})()
    assert type(env).__name__ == "Lander"
    assert env.gravity == 3.5


def test_a_function_of_a_module(landers: str) -> None:
    assert EnvFactory(f"{landers}:make_lander")().gravity == 2.0


def test_gymnasiums_own_form_of_module_and_id(landers: str) -> None:
    env = EnvFactory(f"{landers}:Lander-v0", {"gravity": 4.0})()
    assert env.unwrapped.gravity == 4.0
    assert env.spec is not None
    assert env.spec.max_episode_steps == 17


def test_callables(landers: str) -> None:
    lander = EnvFactory(f"{landers}:Lander")()
    kind = type(lander)
    assert type(EnvFactory(kind)()) is kind
    assert EnvFactory(kind).name == "Lander"
    assert EnvFactory(lambda gravity: kind(gravity), {"gravity": 5.0})().gravity == 5.0
    assert "lambda" in EnvFactory(lambda: lander).name
    partial = EnvFactory(functools.partial(kind, gravity=6.0))
    assert partial().gravity == 6.0
    assert partial.name == "partial"


def test_every_call_makes_another(landers: str) -> None:
    factory = EnvFactory(f"{landers}:Lander")
    assert factory() is not factory()


def test_an_unknown_id_comes_with_a_suggestion() -> None:
    message = why_not("CartPol-v1")
    assert "Cannot make CartPol-v1" in message
    assert "Did you mean CartPole-v1" in message
    assert message.count("Did you mean") == 1, "Gymnasium's gives way to ours"


def test_a_file_is_not_a_module(landers: str) -> None:
    assert f"write {landers}:Lander." in why_not(f"{landers}.py:Lander")
    assert f"write {landers}:Lander." in why_not(f"some/where/{landers}.py:Lander")


@pytest.mark.parametrize("nonsense", ["zzz", "", "no id at all!", ":", ":Lander", "..up:Lander"])
def test_nonsense_is_a_config_error(nonsense: str) -> None:
    assert why_not(nonsense)


def test_an_unknown_module() -> None:
    message = why_not("no_such_module_here:Env")
    assert "no module 'no_such_module_here'" in message
    assert "Call from the folder" in message


def test_an_unknown_attribute_comes_with_a_suggestion(landers: str) -> None:
    message = why_not(f"{landers}:Landr")
    assert "Did you mean Lander" in message
    assert "can be called" in why_not(f"{landers}:not_callable")


def test_not_an_environment(landers: str) -> None:
    message = why_not(f"{landers}:NotAnEnv")
    assert "landers:NotAnEnv made a NotAnEnv, which is not a gymnasium.Env" in message
    assert "NoneType" in why_not(lambda: None)


def test_wrong_arguments_are_shown(landers: str) -> None:
    for target in (f"{landers}:Lander", f"{landers}:Lander-v0", "CartPole-v1"):
        message = why_not(target, gravty=1.0)
        assert "{'gravty': 1.0}" in message
        assert "unexpected keyword argument" in message


def test_a_missing_argument_is_named(landers: str) -> None:
    assert "missing a required argument: 'gravity'" in why_not(lambda gravity: None)


def test_arguments_of_gymnasium_are_not_the_environments() -> None:
    env = EnvFactory("CartPole-v1", {"max_episode_steps": 7, "disable_env_checker": True})()
    assert env.spec is not None
    assert env.spec.max_episode_steps == 7


def test_a_constructor_without_a_signature_is_simply_called() -> None:
    assert "made a int" in why_not(int)


def test_a_missing_package_of_the_environment_is_named(landers: str) -> None:
    message = fault_of(f"{landers}:Broken")
    assert "landers:Broken raised ModuleNotFoundError" in message
    assert "no_such_package_anywhere" in message


def test_a_module_that_misses_a_package_is_not_called_missing(landers: str) -> None:
    Path("needy.py").write_text("import no_such_package_anywhere")
    message = why_not("needy:Env")
    assert "no_such_package_anywhere" in message
    assert "no module 'needy'" not in message


def test_a_package_that_gymnasium_misses_is_named_without_a_traceback(landers: str) -> None:
    Path("heavy.py").write_text(
        "import gymnasium\nraise gymnasium.error.DependencyNotInstalled('Box3D is not installed')"
    )
    assert why_not("heavy:Env") == "Cannot import heavy: Box3D is not installed"


@pytest.mark.parametrize("error", [RuntimeError, TypeError, OSError, SystemExit])
def test_an_error_in_the_constructor_comes_with_its_traceback(error: type[BaseException]) -> None:
    def explode(fuse: int) -> gymnasium.Env[Any, Any]:
        raise error("the reactor is offline")

    message = fault_of(explode, fuse=3)
    assert f"raised {error.__name__} while it was made with {{'fuse': 3}}: the reactor" in message
    assert "in explode" in message


def test_a_type_error_in_the_constructor_of_an_id_is_not_one_of_the_arguments() -> None:
    def explode() -> gymnasium.Env[Any, Any]:
        return len(3)  # type: ignore[arg-type, return-value]

    gymnasium.register("Exploding-v0", entry_point=explode)
    try:
        message = fault_of("Exploding-v0")
    finally:
        gymnasium.registry.pop("Exploding-v0")
    assert "Exploding-v0 raised TypeError" in message
    assert "in explode" in message


@pytest.mark.parametrize("line", ["import sys; sys.exit()", "1 / 0", "def"])
def test_a_module_that_fails_to_import_comes_with_its_traceback(landers: str, line: str) -> None:
    Path("faulty.py").write_text(line)
    message = fault_of("faulty:Env")
    assert "The module 'faulty' raised" in message
    assert "faulty.py" in message


def test_an_id_registered_here_travels_to_another_process(landers: str, tmp_path: Path) -> None:
    """A worker does not import what registered it."""
    EnvFactory(f"{landers}:Lander-v0")()
    parcel = tmp_path / "factory.pickle"
    parcel.write_bytes(cloudpickle.dumps(EnvFactory("Lander-v0", {"gravity": 7.0})))
    script = (
        f"import pickle; env = pickle.load(open({str(parcel)!r}, 'rb'))();"
        "print(env.unwrapped.gravity, env.spec.max_episode_steps)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "7.0 17", done.stderr
