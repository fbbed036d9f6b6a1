"""One training of Stoker or of Stable-Baselines3: `python -m bench.peers.trial JSON`.

The JSON is a `Trial`. Prints one JSON object, a `Trained`: the same of either side, each in one
thread, timed from where `learn` is called to where its last update is made.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, NamedTuple

_EPISODES = 20
_POINTS = 200  # of a curve, about


class Trial(NamedTuple):
    """What is trained, how, and with which seed."""

    side: str  # stoker or sb3
    algo: str  # PPO or DQN
    env: str  # an id, or module:attr
    steps: int
    seed: int
    n_envs: int
    normalize: bool  # of Stable-Baselines3; Stoker has it among its settings
    settings: dict[str, Any]  # in the words of the side


class Trained(NamedTuple):
    """How it went."""

    reward: float  # of 20 episodes, without chance in its actions
    episodes_reward: float  # of the last 100 training episodes
    wall_s: float
    cpu_s: float  # less than wall_s where others had the core
    curve: list[list[float]]  # steps, seconds, mean reward of the last 100 training episodes


class Curve:
    """What is written down on the way, some two hundred times, and the clocks."""

    def __init__(self, steps: int) -> None:
        self._every, self._next = max(1, steps // _POINTS), 0
        self._began, self._cpu_began = time.perf_counter(), time.process_time()
        self._wall_s = self._cpu_s = 0.0
        self._points: list[list[float]] = []
        self._last: list[float] | None = None

    def note(self, steps: int, reward: float | None) -> None:
        """Called as often as one likes; a reward that is None is not known yet."""
        self._wall_s = time.perf_counter() - self._began
        self._cpu_s = time.process_time() - self._cpu_began
        if reward is None:
            return
        self._last = [steps, round(self._wall_s, 3), round(reward, 3)]
        if steps >= self._next:
            self._points.append(self._last)
            self._next = steps + self._every

    def ended(self, reward: float) -> Trained:
        """With `reward` as evaluated."""
        if self._last is None:
            raise RuntimeError("No training episode came to its end; train for more steps.")
        points = self._points + [self._last] * (self._points[-1] is not self._last)
        return Trained(reward, self._last[2], round(self._wall_s, 3), round(self._cpu_s, 3), points)


def in_process(trial: Trial, limit_s: float) -> Trained:
    """Train in a process of its own; one that fails, or takes longer than that, is an error."""
    ended = subprocess.run(
        [sys.executable, "-m", "bench.peers.trial", json.dumps(trial._asdict())],
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    if ended.returncode:
        said = "\n".join(ended.stderr.strip().splitlines()[-15:])
        raise RuntimeError(f"{trial.side}, {trial.algo} on {trial.env}, seed {trial.seed}:\n{said}")
    return Trained(**json.loads(ended.stdout.splitlines()[-1]))


def _train_ours(trial: Trial) -> Trained:
    import stoker

    settings = {**trial.settings, "eval_episodes": _EPISODES, "seed": trial.seed}
    settings["log_every"] = _log_every(trial)
    kind = {"PPO": stoker.PPO, "DQN": stoker.DQN}[trial.algo]
    with kind("MlpPolicy", trial.env, **settings) as model:
        curve = Curve(trial.steps)
        model.learn(
            trial.steps,
            lambda now: curve.note(now.env_steps, now.metrics.get("rollout/ep_rew_mean")),
        )
        assert model.outcome is not None
        assert model.outcome.evaluation is not None
        return curve.ended(model.outcome.evaluation.mean_reward)


def _log_every(trial: Trial) -> int:
    """Iterations between log lines, so that there are not many more than the curve has points."""
    rows = trial.n_envs * trial.settings["n_steps"]
    return max(1, trial.steps // _POINTS // rows)


def _train_theirs(trial: Trial) -> Trained:
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize

    from stoker.envs.registry import EnvFactory

    torch.set_num_threads(1)
    settings = {name: _unwritten(value) for name, value in trial.settings.items()}
    settings["policy_kwargs"] = _policy_kwargs(settings["policy_kwargs"])

    def envs(number: int, seed: int, training: bool) -> VecEnv:
        made = make_vec_env(EnvFactory(trial.env), number, seed=seed)
        if not trial.normalize:
            return made
        return VecNormalize(made, training=training, norm_reward=training, gamma=settings["gamma"])

    kind = {"PPO": sb3.PPO, "DQN": sb3.DQN}[trial.algo]
    train_on = envs(trial.n_envs, trial.seed, training=True)
    policy = "CnnPolicy" if len(train_on.observation_space.shape or ()) == 3 else "MlpPolicy"
    model = kind(policy, train_on, seed=trial.seed, **settings)
    curve = Curve(trial.steps)
    _learn(model, trial.steps, curve)
    judge_on = envs(1, trial.seed + 10_000, training=False)
    if isinstance(judge_on, VecNormalize) and isinstance(train_on, VecNormalize):
        judge_on.obs_rms = train_on.obs_rms
    reward, _ = evaluate_policy(model, judge_on, _EPISODES)
    assert isinstance(reward, float)
    return curve.ended(reward)


def _learn(model: Any, steps: int, curve: Curve) -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    def episodes_reward() -> float | None:
        rewards = [episode["r"] for episode in model.ep_info_buffer]
        return sum(rewards) / len(rewards) if rewards else None

    class Notes(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            curve.note(self.num_timesteps, episodes_reward())

    model.learn(steps, callback=Notes())
    curve.note(model.num_timesteps, episodes_reward())


def _unwritten(value: Any) -> Any:
    """A schedule that is written as the zoo writes it: `lin_0.001` falls to 0."""
    from stable_baselines3.common.utils import LinearSchedule

    if isinstance(value, str) and value.startswith("lin_"):
        return LinearSchedule(float(value.removeprefix("lin_")), 0.0, 1.0)
    return value


def _policy_kwargs(given: dict[str, Any]) -> dict[str, Any]:
    from torch import nn

    kinds = {"relu": nn.ReLU, "tanh": nn.Tanh}
    return {**given, "activation_fn": kinds[given["activation_fn"]]}


if __name__ == "__main__":
    _trial = Trial(**json.loads(sys.argv[1]))
    _train = {"stoker": _train_ours, "sb3": _train_theirs}[_trial.side]
    print(json.dumps(_train(_trial)._asdict(), allow_nan=False))
