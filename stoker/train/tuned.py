"""Settings that `stoker tune` found, for this machine and one environment: `--preset auto`."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch

from stoker.config.load import resolve
from stoker.config.schema import Config, EnvSettings
from stoker.config.settings_yaml import dump_settings, parse_settings
from stoker.envs.registry import EnvFactory, is_device_vector
from stoker.pools.awaited import as_blocking
from stoker.pools.choose import closing, probe
from stoker.pools.tensor import describe_tensor_env
from stoker.pools.vector_on_device import DeviceVectorPool
from stoker.runs.strict_json import dumps, write_atomically
from stoker.train import devices, spec_json
from stoker.types import EnvSpec

_SIZES = ("n_envs", "n_steps", "batch_size", "n_epochs", "network_arch")
"""Kept besides what was tuned: what it was tuned for."""
_TUNED = ("pool", "n_workers", "in_flight", "collect", "torch_threads", "precision")
_KEPT = {*_SIZES, *_TUNED}
"""All that a file of tuned settings may set: where a run is written, say, is nothing it knows."""


def resolve_here(
    settings: Mapping[str, Any], *, preset: str | None = None, file: Path | None = None
) -> Config:
    """A checked config, with the defaults of this machine's device and what was tuned on it."""
    on_gpu = torch.cuda.is_available()
    tuned = partial(find_for, settings)
    return resolve(settings, preset=preset, file=file, on_gpu=on_gpu, tuned=tuned)


def machine(device: str = "auto") -> dict[str, Any]:
    """What settings that are quick on one machine, where `device` learns, depend on."""
    on_gpu = torch.cuda.is_available() and device != "cpu"
    gpu = torch.cuda.get_device_name() if on_gpu else None
    return {"cores": devices.usable_cores(), "gpu": gpu, "torch": torch.__version__}


def place_of(env: str, spec: EnvSpec, device: str = "auto") -> Path:
    """Where the settings for an environment with these spaces lie, on this machine."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    spaces = {k: v for k, v in spec_json.encode(spec).items() if k != "name"}
    key = dumps({"machine": machine(device), "env": env, "spaces": spaces}, sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", env).strip("-.")[:60] or "env"
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return home / "stoker" / "tuned" / f"{name}-{digest}.yaml"


def keep(env: str, spec: EnvSpec, flat: Mapping[str, Any], tuned: Mapping[str, Any]) -> Path:
    """Write the settings down; where."""
    place = place_of(env, spec, flat["device"])
    place.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: flat[name] for name in _SIZES} | dict(tuned)
    where = machine(flat["device"])
    header = f"# What `stoker tune` found for {env} on {where}; `--preset auto` uses it.\n"
    write_atomically(place, header + dump_settings(settings))
    return place


def find_for(flags: Mapping[str, Any], in_file: Mapping[str, Any]) -> dict[str, Any]:
    """What was found for the environment that flags name, or a file does."""
    given = {**in_file, **flags}
    defaults = {field.name: field.default for field in fields(EnvSettings)}
    env = given.get("env") or given.get("env_id") or defaults["env"]
    env_kwargs = given.get("env_kwargs") or {}
    if not isinstance(env_kwargs, Mapping):
        return {}  # which is said where settings are checked
    return find(str(env), env_kwargs, str(given.get("device", "auto")))


def find(env: str, env_kwargs: Mapping[str, Any], device: str = "auto") -> dict[str, Any]:
    """What was found for this environment on this machine; without that, nothing and a warning."""
    place = place_of(env, describe(EnvFactory(env, dict(env_kwargs))), device)
    try:
        found = parse_settings(place.read_bytes())
        if strange := sorted(found.keys() - _KEPT):
            raise ValueError(f"it sets {', '.join(strange)}, which tuning does not")
        return found
    except FileNotFoundError:
        why = "nothing was tuned for this environment on this machine yet"
    except (OSError, ValueError) as error:
        why = f"{place} cannot be used ({error})"
    warnings.warn(
        f"preset is auto, and {why}: the defaults are used. `stoker tune --env {env}` finds "
        "better ones.",
        stacklevel=2,
    )
    return {}


def describe(factory: EnvFactory) -> EnvSpec:
    """The spaces of an environment, of any kind."""
    device = devices.find_device("auto")
    made = factory.make(num_envs=1, device=str(device))
    if is_device_vector(made):
        with DeviceVectorPool(made, factory.name, device) as pool:
            return pool.spec
    if not isinstance(made, gymnasium.Env):
        return describe_tensor_env(factory.name, made)
    with closing(factory.name, as_blocking(made)) as env:
        return probe(factory.name, env, 0.0).spec
