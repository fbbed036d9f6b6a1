"""Stoker trains reinforcement-learning agents and keeps the GPU fed while it does.

    from stoker import PPO
    model = PPO("MlpPolicy", "CartPole-v1").learn(100_000)

Names are loaded when first used: environment workers import this package and must not import torch.
Importing it also makes the environments that ship known to Gymnasium (`stoker.envs.SHIPPED`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stoker.envs import register_shipped

if TYPE_CHECKING:
    from stoker.config import Config as Config
    from stoker.train.agent import DQN as DQN
    from stoker.train.agent import PPO as PPO
    from stoker.train.tuned import resolve_here as resolve
    from stoker.train.vec import make_sb3_vec as make_sb3_vec
    from stoker.train.vec import make_vec as make_vec

__version__ = "0.1.0"
__all__ = ["DQN", "PPO", "Config", "make_sb3_vec", "make_vec", "resolve", "train"]

_HOMES = {
    "DQN": ("stoker.train.agent", "DQN"),
    "PPO": ("stoker.train.agent", "PPO"),
    "Config": ("stoker.config", "Config"),
    "make_sb3_vec": ("stoker.train.vec", "make_sb3_vec"),
    "make_vec": ("stoker.train.vec", "make_vec"),
    "resolve": ("stoker.train.tuned", "resolve_here"),
}

register_shipped()


def __getattr__(name: str) -> Any:
    if name == "train":
        return importlib.import_module("stoker.train")
    if name in _HOMES:
        home, own_name = _HOMES[name]
        return getattr(importlib.import_module(home), own_name)
    raise AttributeError(f"module 'stoker' has no attribute {name!r}")
