"""Stable-Baselines3's PPO, written down as a run, so that `stoker report` shows it beside ours.

`python -m bench.peers.sb3 ENV RUN_FOLDER PRESET SECONDS` trains at a preset's sizes, with its
environments in processes of SB3's own (`SubprocVecEnv`, one each), for about that long. What its
one thread does, what the GPU does and what the episodes bring is written as a run of ours has it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv

from bench.record import named
from stoker.config import resolve
from stoker.envs.registry import EnvFactory
from stoker.monitor.phases import PhaseClock
from stoker.runs.folder import RunFolder
from stoker.runs.recorder import Recorder
from stoker.train import devices
from stoker.train.watch import watch_over


def make(env: str) -> Any:
    """An environment that reports its episodes as SB3 wants them."""
    return Monitor(EnvFactory(env)())


class WriteDown(BaseCallback):
    """Rollouts are the phase `env`, which acting is a part of; all between two is `update`."""

    def __init__(self, folder: RunFolder, settings: dict[str, Any], seconds: float) -> None:
        super().__init__()
        self._folder, self._seconds, self._clock = folder, seconds, PhaseClock()
        self._recorder = Recorder(folder)
        config = resolve(settings, on_gpu=torch.cuda.is_available())
        self._watch = watch_over(config, devices.find_device("auto"))
        self._hardware = devices.hardware(devices.find_device("auto"))
        self._metrics: dict[str, float] = {}

    def _on_training_start(self) -> None:
        self._clock.restart()
        if self._watch is not None:
            self._watch.begin_anew()
            self._watch.begin_timeline(self._folder, {"learner": self._clock}, self._clock.elapsed)

    def _on_rollout_start(self) -> None:
        self._clock.turn_to("env")

    def _on_rollout_end(self) -> None:
        self._clock.turn_to("update")
        episodes: Any = self.model.ep_info_buffer or []
        rewards = [episode["r"] for episode in episodes]
        if rewards:
            self._metrics["rollout/ep_rew_mean"] = sum(rewards) / len(rewards)
        told = {} if self._watch is None else self._watch.metrics()
        fps = self.num_timesteps / self._clock.elapsed()
        self._recorder.record(self.num_timesteps, {**self._metrics, **told, "time/fps": fps})
        self._folder.write_status(self.status("running"))

    def _on_step(self) -> bool:
        return self._clock.elapsed() < self._seconds

    def status(self, state: str) -> dict[str, Any]:
        """What a run's status has, as far as it is known of this one."""
        wall, steps = self._clock.elapsed(), self.num_timesteps
        known = {"state": state, "env_steps": steps, "wall_s": wall, "sps": steps / wall}
        return {**known, **self._hardware, **self._metrics}

    def _on_training_end(self) -> None:
        last = self.status("finished")
        self._clock.turn_to(None)
        if self._watch is not None:
            self._watch.end_timeline()
            self._watch.close()
        self._recorder.close()
        self._folder.write_status(last)


def train(env: str, path: Path, preset: str, seconds: float) -> None:
    """Train for about that many seconds, and leave a run at `path`."""
    has_gpu = torch.cuda.is_available()
    config = resolve({"env": env}, preset=preset, on_gpu=has_gpu)
    folder = RunFolder.create(path.parent, path.name)
    settings = {**config.flat(), "run_name": path.name}
    folder.write_config(settings)
    workers = SubprocVecEnv([lambda: make(env)] * config.env.n_envs)
    model = PPO(
        "MlpPolicy",
        workers,
        n_steps=config.ppo.n_steps,
        batch_size=config.minibatch,
        n_epochs=config.ppo.n_epochs,
        learning_rate=config.ppo.learning_rate,
        policy_kwargs={"net_arch": list(config.network.network_arch)},
        device="cuda" if has_gpu else "cpu",
        seed=0,
    )
    try:
        model.learn(10**9, callback=WriteDown(folder, settings, seconds))
    finally:
        workers.close()


if __name__ == "__main__":
    began = time.monotonic()
    train(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
    print(f"{named('stable-baselines3')}: {time.monotonic() - began:.0f} s with its start")
