"""`stoker check ENV`: whether an environment keeps its contract, before any training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape

from stoker.cli.flags import parse
from stoker.cli.output import clean_output
from stoker.config.written import COUNT, MAPPING
from stoker.errors import ConfigError
from stoker.runs.strict_json import dumps


@dataclass(frozen=True, kw_only=True)
class CheckArguments:
    """Step an environment a few times, and say what is wrong with it and how it would be stepped.

    Leaves with 0 if nothing is wrong, with 1 if something is, with 2 if it cannot be trained on.
    """

    env: tyro.conf.Positional[str]
    """A Gymnasium id, or `module:attr` where attr is an environment class or a function that
    makes one."""
    env_kwargs: Annotated[dict[str, Any], MAPPING] = field(default_factory=dict)
    """Keyword arguments for the environment, as YAML: `'{gravity: 9.8}'`."""
    n_envs: Annotated[int, COUNT] = 8
    """How many are to step together, which decides the pool."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where a tensor environment is to run."""
    json: bool = False
    """Print one JSON object."""


def check(arguments: list[str]) -> int:
    """`stoker check`."""
    given = parse(CheckArguments, arguments, "check")
    if given.n_envs < 1:
        raise ConfigError(f"n_envs is {given.n_envs}; it must be 1 or more.")
    from stoker.envs.registry import EnvFactory, is_device_vector  # late: `--help` is quick
    from stoker.train.devices import find_device

    factory, device = EnvFactory(given.env, given.env_kwargs), find_device(given.device)
    with clean_output(given.json):
        made = factory.make(num_envs=given.n_envs, device=str(device))
        if is_device_vector(made):
            found = _on_device(made, given, device)
        elif isinstance(made, gymnasium.Env):
            found = _ordinary(made, given)
        else:
            found = _tensors(made, given, device)
    if given.json:
        print(dumps({"env": given.env, **found}))
    else:
        _show(given.env, found)
    return 1 if found["wrong"] else 0


def _ordinary(made: Any, given: CheckArguments) -> dict[str, Any]:
    """What a few steps show. A fault is raised, in the words that training has for it."""
    from stoker.pools.awaited import as_blocking
    from stoker.pools.choose import choose, closing, probe, usable_cores

    with closing(given.env, as_blocking(made)) as env:
        tried = probe(given.env, env)
    choice = choose(tried, given.n_envs, usable_cores())
    return {"wrong": [], "breaks": [], "pool": choice.pool, "why": choice.reason}


def _on_device(made: Any, given: CheckArguments, device: Any) -> dict[str, Any]:
    """What a step shows; faults are raised, likewise."""
    from stoker.pools.vector_on_device import DeviceVectorPool

    with DeviceVectorPool(made, given.env, device) as pool:
        pool.reset(0)
        pool.step(np.zeros((pool.n_envs, pool.spec.action.width), pool.spec.action.stored_dtype))
    why = f"{pool.n_envs} environments that live on the device, and step there by themselves"
    return {"wrong": [], "breaks": [], "pool": "tensor", "why": why}


def _tensors(made: Any, given: CheckArguments, device: Any) -> dict[str, Any]:
    from stoker.pools.tensor import describe_tensor_env
    from stoker.pools.tensor_check import check_tensor_env

    spec = describe_tensor_env(given.env, made)
    found = check_tensor_env(made, spec, device)
    why = "a tensor environment, which steps where the network is"
    return {**found._asdict(), "pool": "tensor", "why": why}


def _show(name: str, found: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for problem in found["wrong"]:
        console.print("[bold red]wrong:[/]", escape(problem))
    for problem in found["breaks"]:
        console.print("[bold yellow]slow:[/]", escape(problem))
    if not found["wrong"]:
        console.print(f"{escape(name)} steps as it should.", "pool:", found["pool"], end=" ")
        console.print(f"({escape(found['why'])})")
    if found["breaks"]:
        console.print("What is slow cannot be captured as a CUDA graph; it runs all the same.")
