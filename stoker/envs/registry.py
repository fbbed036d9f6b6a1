"""From what a user writes to a function that makes the environment."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from stoker.errors import ConfigError


@dataclass(frozen=True)
class EnvFactory:
    """Makes one environment a call; travels to workers by pickle.

    `target` is a Gymnasium id, `module:attr`, or a callable. An id takes its registration along,
    as a worker has not imported what registered it.
    """

    target: str | Callable[..., Any]
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        if isinstance(self.target, str):
            return self.target
        return getattr(self.target, "__qualname__", type(self.target).__name__)

    def __call__(self) -> gymnasium.Env[Any, Any]:
        try:
            env = self._find()(**self.kwargs)
        except ConfigError:
            raise
        except gymnasium.error.Error as error:
            raise ConfigError(f"Cannot make {self.name}: {error}{_hint(self.name)}") from error
        except ImportError as error:
            raise ConfigError(f"Cannot make {self.name}: {error}") from error
        except TypeError as error:
            raise ConfigError(f"Cannot make {self.name} with {self.kwargs}: {error}") from error
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(
                f"{self.name} made a {type(env).__name__}, which is not a gymnasium.Env. Derive "
                "it from gymnasium.Env, with reset(seed, options) and step(action)."
            )
        return env

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
        module_name, colon, attribute = target.partition(":")
        if colon and not module_name:
            raise ConfigError(f"{target!r} names no module; write module:attr.")
        if colon:
            module = _import(module_name)
            made = getattr(module, attribute, None)
            if callable(made):
                return made
            if attribute not in gymnasium.registry:
                raise ConfigError(
                    f"The module {module_name!r} has no {attribute!r} that can be called, and "
                    f"registers no environment of that id.{_near(attribute, dir(module))}"
                )
        return lambda **kwargs: gymnasium.make(target, **kwargs)


def _import(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:  # the console script does not look where it is called
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        raise ConfigError(
            f"There is no module {name!r} to take an environment from. Call from the folder that "
            "holds it, or install it."
        ) from error


def _hint(name: str) -> str:
    return _near(name, [key for key in gymnasium.registry if not key.startswith("phys2d/")])


def _near(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else ""
