"""From what a user writes to a function that makes the environment."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from stoker.envs import TENSORS
from stoker.errors import ConfigError, EnvError, StokerError
from stoker.types import DeviceVectorEnv, TensorEnv

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_TAKEN_BY_GYMNASIUM = {"max_episode_steps", "disable_env_checker", "render_mode"}
"""Arguments of `gymnasium.make` that need not be the environment's."""


@dataclass(frozen=True)
class EnvFactory:
    """Makes one environment a call; travels to workers by pickle.

    `target` is a Gymnasium id, `module:attr`, or a callable. An id takes its registration along,
    as a worker has not imported what registered it.
    """

    target: str | Callable[..., Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    checked: bool = True
    """Whether Gymnasium's checker is left around environments made by id: it looks at the first
    step alone, and costs every other one."""

    @property
    def name(self) -> str:
        if isinstance(self.target, str):
            return self.target
        return getattr(self.target, "__qualname__", type(self.target).__name__)

    def __call__(self) -> gymnasium.Env[Any, Any]:
        made = self.make()
        if isinstance(made, gymnasium.Env) and not is_device_vector(made):
            return made
        raise ConfigError(
            f"{self.name} is a tensor environment, which steps many at once; only training and "
            "evaluation know how to. Give an ordinary environment here."
        )

    def make(self, **offered: Any) -> gymnasium.Env[Any, Any] | TensorEnv | DeviceVectorEnv:
        """An environment of any kind. What is `offered` is given to makers that require it."""
        make = self._find()
        wanted = {name: offered[name] for name in _required(make) & offered.keys()}
        return dataclasses.replace(self, kwargs=wanted | self.kwargs)._make(make)

    def _make(self, make: Callable[..., Any]) -> Any:
        self._check_arguments(make)
        registered = _registration(make)
        to_await = registered is not None and self._is_to_be_awaited(registered)
        bare = {"disable_env_checker": True} if registered and not self.checked else {}
        bare |= {"disable_env_checker": True} if to_await else {}
        try:
            env = make(**(bare | self.kwargs))
        except StokerError:
            raise
        except gymnasium.error.Error as error:
            raise ConfigError(f"Cannot make {self.name}: {_reason(self.name, error)}") from error
        except (Exception, SystemExit) as error:
            raise EnvError(
                f"{self.name} raised {type(error).__name__} while it was made with {self.kwargs}: "
                f"{error}\n{traceback.format_exc().rstrip()}"
            ) from error
        if isinstance(env, gymnasium.Env) or is_tensor_env(env) or is_device_vector(env):
            return env
        raise ConfigError(
            f"{self.name} made a {type(env).__name__}, which is not a gymnasium.Env. Derive it "
            "from gymnasium.Env, with reset(seed, options) and step(action); or give it initial, "
            "observe and step, as tensor environments have; or num_envs, device, reset and step, "
            "as vector environments on a device have."
        )

    def _is_to_be_awaited(self, registered: Any) -> bool:
        """Whether its `step` is a coroutine, which Gymnasium's checker cannot use."""
        coroutines = inspect.iscoroutinefunction(getattr(_entry_point(registered), "step", None))
        if coroutines and registered.max_episode_steps is not None:
            raise ConfigError(
                f"{self.name} is registered with max_episode_steps, and its step is a coroutine, "
                "which Gymnasium's TimeLimit cannot await. Register it without, and have it return "
                "truncated itself."
            )
        return coroutines

    def unchecked(self) -> EnvFactory:
        """The same, for when one of them has been tried."""
        return dataclasses.replace(self, checked=False)

    def __getstate__(self) -> dict[str, Any]:
        registered = gymnasium.registry.get(self.target) if isinstance(self.target, str) else None
        return {**vars(self), "registered": registered}

    def __setstate__(self, state: dict[str, Any]) -> None:
        registered = state.pop("registered")
        if registered is not None:
            gymnasium.registry.setdefault(registered.id, registered)
        vars(self).update(state)

    def _find(self) -> Callable[..., Any]:
        target = self.target
        if not isinstance(target, str):
            return target
        target = TENSORS.get(target, target)
        module_name, colon, attribute = target.partition(":")
        if colon and (not module_name or module_name.startswith(".")):
            raise ConfigError(f"{target!r} names no module; write module:attr.")
        if colon and module_name.endswith(".py"):
            raise ConfigError(
                f"{target!r} names a file, not a module. Call from the folder that holds it, and "
                f"write {Path(module_name).stem}:{attribute}."
            )
        if colon:
            here = os.getcwd()
            if here not in sys.path:  # the console script does not look where it is called
                sys.path.insert(0, here)
            module = _import(module_name)
            made = getattr(module, attribute, None)
            if callable(made):
                return made
            if attribute not in gymnasium.registry:
                raise ConfigError(
                    f"The module {module_name!r} has no {attribute!r} that can be called, and "
                    f"registers no environment of that id.{_near(attribute, dir(module))}"
                )
        return functools.partial(gymnasium.make, target)

    def _check_arguments(self, make: Callable[..., Any]) -> None:
        """Refuse arguments that the maker does not take, where it says which it takes."""
        kwargs, registered = self.kwargs, _registration(make)
        if registered is not None:  # gymnasium.make takes anything; what it calls may not
            make, given = _entry_point(registered), {**registered.kwargs, **kwargs}
            kwargs = {name: given[name] for name in given.keys() - _TAKEN_BY_GYMNASIUM}
        try:
            signature = inspect.signature(make)
        except (TypeError, ValueError):  # some that are written in C have none
            return
        try:
            signature.bind(**kwargs)
        except TypeError as error:
            raise ConfigError(f"Cannot make {self.name} with {self.kwargs}: {error}") from None


def is_tensor_env(made: Any) -> bool:
    """Whether it is a tensor program, by what it can do; see `types.TensorEnv`."""
    does = (getattr(made, name, None) for name in ("initial", "observe", "step"))
    other = isinstance(made, gymnasium.Env | type)
    return not other and all(callable(what) for what in does)


def is_device_vector(made: Any) -> TypeIs[DeviceVectorEnv]:
    """Whether it is many environments on a device, by what it has; see `types.DeviceVectorEnv`."""
    if isinstance(made, type | EnvFactory):
        return False
    inner = getattr(made, "unwrapped", made)
    told = (getattr(inner, name, None) for name in ("num_envs", "device"))
    does = (getattr(made, name, None) for name in ("reset", "step"))
    return all(what is not None for what in told) and all(callable(what) for what in does)


def _required(make: Callable[..., Any]) -> set[str]:
    """The names of arguments that have to be given."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # some that are written in C have none
        return set()
    return {each.name for each in parameters if each.default is each.empty}


def _registration(make: Callable[..., Any]) -> Any:
    """The registration that `make` would use, if it is `gymnasium.make` of an id."""
    if not isinstance(make, functools.partial) or make.func is not gymnasium.make:
        return None
    match make.args, make.keywords:
        case [str(name)], {**others} if not others:
            return gymnasium.registry.get(name.rpartition(":")[2])
    return None


def _entry_point(registered: Any) -> Any:
    """What `gymnasium.make` calls for an id."""
    entry = registered.entry_point
    if not isinstance(entry, str):
        return entry
    module, _, attribute = entry.partition(":")
    return getattr(_import(module), attribute, None)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        problem = f"Cannot import {name}: {error}"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            problem = (
                f"There is no module {name!r} to take an environment from. Call from the folder "
                "that holds it, or install it."
            )
        raise ConfigError(problem) from error
    except gymnasium.error.Error as error:  # a package that it needs is not installed
        raise ConfigError(f"Cannot import {name}: {error}") from error
    except (Exception, SystemExit) as error:
        raise EnvError(
            f"The module {name!r} raised {type(error).__name__} while it was imported: {error}\n"
            f"{traceback.format_exc().rstrip()}"
        ) from error


def _reason(name: str, error: Exception) -> str:
    """What Gymnasium says; our suggestion names whole ids, so it takes the place of Gymnasium's."""
    ids = [*TENSORS, *(key for key in gymnasium.registry if not key.startswith("phys2d/"))]
    suggestion = _near(name, ids)
    said = str(error)
    return said.partition(" Did you mean")[0] + suggestion if suggestion else said


def _near(word: str, known: list[str]) -> str:
    others = [name for name in known if name != word]  # which is there, and no help
    close = difflib.get_close_matches(word, others, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else ""
