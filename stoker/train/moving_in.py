"""A model of Stable-Baselines3 becomes a run: to evaluate, to load, and to go on training."""

from __future__ import annotations

import shutil
from pathlib import Path

from stoker.config.schema import Config
from stoker.errors import ConfigError, ModelFileError
from stoker.runs import checkpoint as checkpoints
from stoker.runs.folder import RunFolder
from stoker.runs.sb3_stats import ForeignStats
from stoker.runs.sb3_zip import ForeignModel
from stoker.train.build import build
from stoker.train.progress import Counters
from stoker.train.sb3_layers import layers_of
from stoker.train.sb3_settings import Origin
from stoker.train.sb3_weights import check_spaces, statistics_of, weights_of
from stoker.train.session import Session
from stoker.train.start import open_folder


def take_in(
    config: Config, model: ForeignModel, origin: Origin, stats: ForeignStats | None
) -> RunFolder:
    """A run that stands where `model` stopped, but for what its file does not hold: the optimiser
    begins anew, as do the environments' episodes, and DQN's replay is empty."""
    _refuse_changes(config, model, origin)
    algo = config.learning.algo
    layers = layers_of(model, algo)
    if config.run.run_name and (Path(config.run.runs_dir) / config.run.run_name).exists():
        RunFolder.create(Path(config.run.runs_dir), config.run.run_name)  # raises, before we build
    parts = build(config)
    try:
        check_spaces(model, layers, parts.pool.spec)
        taken = weights_of(layers, algo, parts.pool.spec)
        if stats is not None:
            taken |= statistics_of(stats, model, parts.pool.spec)
        counters = Counters(env_steps=origin.env_steps, saved_at=origin.env_steps)
        whole = Session(parts, None, counters).checkpoint()
        for name, value in taken.items():
            if whole.tensors[name].shape != value.shape:
                raise ModelFileError(
                    f"{name} of {model.name} is {list(value.shape)}, and with these settings it "
                    f"would be {list(whole.tensors[name].shape)}. Leave out the flags that change "
                    "the network."
                )
        folder = open_folder(parts, parent=f"{model.name}, Stable-Baselines3 {model.version}")
        try:
            with folder.lock():
                where = folder.checkpoints / checkpoints.step_name(origin.env_steps)
                settings = parts.config.flat()
                whole = whole._replace(tensors=whole.tensors | taken, config=settings)
                checkpoints.save(where, whole)
                _write_status(folder, parts.config, origin)
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
    finally:
        parts.close()
    return folder


def _refuse_changes(config: Config, model: ForeignModel, origin: Origin) -> None:
    flat = config.flat()
    for name in origin.fixed:
        value = origin.settings[name]
        wanted = list(value) if isinstance(value, tuple) else value
        if flat[name] != wanted:
            raise ConfigError(
                f"{name} is {flat[name]}, and {model.name} has {wanted}, from which its weights "
                "follow; leave it out."
            )
    if config.run.population > 1:
        raise ConfigError("population is more than 1, and a model is one agent; leave it out.")


def _write_status(folder: RunFolder, config: Config, origin: Origin) -> None:
    done = origin.env_steps >= config.run.timesteps
    folder.write_status(
        {
            "state": "finished" if done else "stopped",
            "env": config.env.env,
            "env_steps": origin.env_steps,
            "timesteps": config.run.timesteps,
        }
    )
