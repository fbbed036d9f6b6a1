"""Pong as rl-baselines3-zoo has it: Atari's usual wrappers, four grey frames of 84 x 84 each."""

from __future__ import annotations

from typing import Any

import gymnasium


def make() -> gymnasium.Env[Any, Any]:
    """Every emulator frame is a step of the inner environment; the wrapper takes each fourth."""
    import ale_py
    from gymnasium.wrappers import FrameStackObservation, ReshapeObservation
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    gymnasium.register_envs(ale_py)
    plain = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return FrameStackObservation(ReshapeObservation(AtariWrapper(plain), (84, 84)), 4)
