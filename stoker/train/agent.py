"""The Python interface, in the shape that users of Stable-Baselines3 know."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from stoker.config.load import from_flat
from stoker.config.numbers import parse_count
from stoker.config.schema import Config
from stoker.envs.registry import EnvFactory, is_device_vector, is_tensor_env
from stoker.errors import CheckpointError, ConfigError, TrainingError, WrongPoolError
from stoker.pools.spaces import ActionCodec
from stoker.runs import checkpoint as checkpoints
from stoker.runs.checkpoint import Checkpoint
from stoker.runs.folder import RunFolder, is_run
from stoker.train import devices, spec_json
from stoker.train.build import build
from stoker.train.parts import Parts, policy_of
from stoker.train.policies import TrainedPolicy, make_policy
from stoker.train.policy_kwargs import as_settings as policy_kwargs_settings
from stoker.train.predicting import batched, masks
from stoker.train.progress import Counters, Progress
from stoker.train.session import Session
from stoker.train.sources import EnvSource
from stoker.train.start import Audience, Outcome, check_spaces, conduct, open_folder
from stoker.train.tuned import resolve_here
from stoker.types import DeviceVectorEnv, EnvSpec

_POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")

EnvLike = (
    str
    | Callable[[], gymnasium.Env[Any, Any]]
    | gymnasium.Env[Any, Any]
    | VectorEnv[Any, Any, Any]
    | DeviceVectorEnv
)
Callback = Callable[[Progress], bool | None]


class Agent:
    """An algorithm on an environment of your own: `PPO` or `DQN`.

    `env` is a Gymnasium id, `module:attr`, a function that makes an environment, an environment,
    a `gymnasium.vector.VectorEnv`, or a vector environment on a device. `settings` are those of
    `stoker train --help`, by name. The network follows from the spaces: any of the three policy
    names of Stable-Baselines3 does. Nothing is written to disk unless `run_name` is given.
    """

    algo: ClassVar[str]

    def __init__(
        self,
        policy: str,
        env: EnvLike | None,
        *,
        preset: str | None = None,
        device: str = "auto",
        policy_kwargs: Mapping[str, Any] | None = None,
        verbose: int = 0,
        **settings: Any,
    ) -> None:
        if policy not in _POLICIES:
            raise ConfigError(f"policy is {policy!r}; it must be one of {', '.join(_POLICIES)}.")
        described = policy_kwargs_settings(policy_kwargs or {})
        if twice := sorted(described.keys() & settings.keys()):
            raise ConfigError(
                f"{', '.join(twice)} is given twice, once in policy_kwargs; keep one."
            )
        if settings.get("algo", self.algo) != self.algo:
            raise ConfigError(
                f"algo is {settings['algo']!r}, and {type(self).__name__} is {self.algo}; "
                f"use one of {', '.join(f'stoker.{kind.__name__}' for kind in _KINDS.values())}."
            )
        settings |= {"device": device, "algo": self.algo, **described}
        if isinstance(env, VectorEnv):  # which decides, so sizes are worked out with as many
            settings.setdefault("n_envs", env.num_envs)
        source, name = _source(env, settings.get("env_kwargs", {}))
        config = resolve_here({**settings, "env": name}, preset=preset)
        self._set_up(build(config, source), verbose)

    def _set_up(self, parts: Parts, verbose: int) -> None:
        self._parts: Parts | None = parts
        self._verbose = verbose
        self._config, self.spec, self.device = parts.config, parts.pool.spec, parts.device
        self._policy = parts.policy
        self.outcome: Outcome | None = None
        self._counters = Counters()
        self._folder: RunFolder | None = None
        self._shaken = self._learning = False

    @property
    def config(self) -> Config:
        """Every setting, resolved."""
        return self._parts.config if self._parts is not None else self._config

    @property
    def policy(self) -> TrainedPolicy:
        """The network; of a population, that of the agent that is the best by now."""
        return self._parts.policy if self._parts is not None else self._policy

    @property
    def num_timesteps(self) -> int:
        """Environment steps trained for."""
        return self._counters.env_steps

    def learn(
        self,
        total_timesteps: int,
        callback: Callback | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for `total_timesteps` more environment steps, rounded up to whole rollouts.

        `callback` is called with a `Progress` after every iteration; returning False stops.
        Weights, optimiser and environments go on from where they are. Counters, schedules and the
        run folder begin anew, or go on too if `reset_num_timesteps` is False.
        """
        self._refuse_amid_learning("learn")
        parts = self._training_parts()
        parts.check_weights()
        if self._shaken:
            parts.recover()
        more, anew = parse_count(total_timesteps), reset_num_timesteps
        if more < 1:
            raise ConfigError(f"total_timesteps is {more}; it must be 1 or more.")
        counters, folder = (Counters(), None) if anew else (self._counters, self._folder)
        run = dataclasses.replace(parts.config.run, timesteps=counters.env_steps + more)
        if run.run_name and folder is None:
            run = dataclasses.replace(run, run_name=self._config.run.run_name)
        parts.config = dataclasses.replace(parts.config, run=run)
        if run.run_name and folder is None:
            folder = open_folder(parts, again=self._folder is not None)
        self._counters, self._folder = counters, folder
        session = Session(parts, self._folder, self._counters)
        audience = _Listener(callback, self._verbose or int(progress_bar))
        self._shaken = self._learning = True  # the first until it has come to a proper end
        try:
            with self._folder.lock() if self._folder else nullcontext():
                self.outcome = conduct(session, audience, own_process=False)
        finally:
            self._learning = False
        self._shaken = False
        self._counters = session.counters
        if self.outcome.signal is not None:
            raise KeyboardInterrupt  # the steps are kept; what comes after learn() is not wanted
        return self

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_mask: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """The action for one observation, or for a batch of them, as the environment takes it.

        `state` is given back as it came, for the sake of recurrent policies' callers.
        """
        if self.spec.has_mask and action_mask is None:
            raise ConfigError("This environment masks actions; give predict its action_mask.")
        obs, single = batched(observation, self.spec)
        on_device = {leaf: torch.from_numpy(x).to(self.device) for leaf, x in obs.items()}
        policy, mask = self.policy, None
        if action_mask is not None:
            rows = masks(action_mask, len(next(iter(obs.values()))), self.spec)
            mask = torch.from_numpy(rows).to(self.device)
        if deterministic:
            action = policy.act_greedily(on_device, mask)
        else:
            rows_wanted = len(next(iter(obs.values())))
            action = policy.act(on_device, mask, policy.draw_noise(rows_wanted)).action
        encoded = ActionCodec(self.spec.action).encode(action.cpu().numpy())
        return (encoded[0] if single else encoded), state

    def save(self, path: str | Path) -> None:
        """Write everything to the folder `path`, in the format of a run's checkpoints."""
        if self._parts is None:
            raise CheckpointError(
                "This model has no environment (it was closed, or loaded without one), so there is "
                "no whole state to save. Save it before closing it."
            )
        session = Session(self._parts, None, self._counters)
        target = Path(path)
        if not target.name:
            raise CheckpointError(
                f"{str(path)!r} names no folder to save to; name one, such as 'models/mine'."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        checkpoints.save(target, session.checkpoint())

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: EnvLike | None = None,
        device: str = "auto",
        verbose: int = 0,
        agent: int | None = None,
    ) -> Self:
        """A model from what `save` wrote, from a run's folder or from one of its checkpoints.

        With `env` it goes on training where it stopped; without, it predicts. Of a population, all
        agents go on, and the best one predicts, or the one whose number is `agent`.
        """
        where = Path(path).absolute()  # so that "." has a name
        saved = (
            checkpoints.load_newest(RunFolder(where).checkpoints)[1]
            if is_run(where)
            else checkpoints.load(where)
        )
        return cls.from_checkpoint(saved, env, device, verbose, agent)

    @classmethod
    def from_checkpoint(
        cls,
        saved: Checkpoint,
        env: EnvLike | None = None,
        device: str = "auto",
        verbose: int = 0,
        agent: int | None = None,
    ) -> Self:
        """A model from a checkpoint that was read already; see `load`."""
        if env is not None and agent is not None:
            raise ConfigError(
                f"agent is {agent}, and env is given: all agents of a population train on. Leave "
                "env out for that agent to predict, or leave agent out."
            )
        config = from_flat({**saved.config, "device": device, "run_name": ""})
        kind = _KINDS[config.learning.algo]
        if not issubclass(kind, cls):
            raise ConfigError(
                f"The checkpoint is of a model that {kind.__name__} trained; use "
                f"{kind.__name__}.load, not {cls.__name__}.load."
            )
        model = kind.__new__(kind)
        if env is None:
            model._set_up_for_prediction(config, spec_json.decode(saved.state["spec"]), verbose)
            model.policy.load_state_dict(policy_of(saved.tensors, agent))
        else:
            source = _source(env, {} if is_tensor_env(env) else config.env.env_kwargs)[0]
            parts, moved = _build_wherever(config, source)
            try:
                check_spaces(saved, parts)
                n_envs = config.env.n_envs * config.run.population
                same = not moved and parts.pool.n_envs == n_envs
                parts.restore(saved.tensors, saved.rows, with_envs=same)
            except BaseException:
                parts.close()
                raise
            model._set_up(parts, verbose)
        model._counters = Counters(**saved.state["counters"])
        return model

    def _set_up_for_prediction(self, config: Config, spec: EnvSpec, verbose: int) -> None:
        self._parts, self._verbose, self.outcome, self._folder = None, verbose, None, None
        self._learning = False
        self._config, self.spec = config, spec
        self.device = devices.find_device(config.compute.device)
        self._policy = make_policy(spec, config, self.device, config.run.seed)

    def _training_parts(self) -> Parts:
        if self._parts is None:
            raise ConfigError(
                "This model has no environment (it was closed, or loaded without one), so it can "
                f"only predict. Load it with {type(self).__name__}.load(path, env=...) to train it."
            )
        return self._parts

    def _refuse_amid_learning(self, what: str) -> None:
        if self._learning:
            raise TrainingError(
                f"{what}() was called while learn() is under way, by its callback or by another "
                "thread. Have the callback return False, which ends learn(), and call it after."
            )

    def close(self) -> None:
        """End the environments; the model can still predict."""
        self._refuse_amid_learning("close")
        if self._parts is not None:
            self._config, self._policy = self._parts.config, self._parts.policy
            self._parts.close()
            self._parts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class PPO(Agent):
    """Proximal policy optimisation, for any action space; see `Agent`."""

    algo = "ppo"


class DQN(Agent):
    """Deep Q-learning from a replay of past steps, for discrete actions; see `Agent`."""

    algo = "dqn"


_KINDS: dict[str, type[Any]] = {"ppo": PPO, "dqn": DQN}


class _Listener(Audience):
    """Passes progress on to a callback, and prints a line an iteration if asked."""

    def __init__(self, callback: Callback | None, verbose: int) -> None:
        self._callback, self._verbose = callback, verbose

    def progresses(self, progress: Progress) -> bool | None:
        if self._verbose:
            reward = progress.metrics.get("rollout/ep_rew_mean")
            shown = "unknown" if reward is None else f"{reward:.2f}"
            print(f"{progress.env_steps:>12,} steps  reward {shown}  {progress.sps:,.0f} steps/s")
        wanted = self._callback(progress) if self._callback else None
        return bool(wanted) if isinstance(wanted, np.bool_) else wanted


def _build_wherever(config: Config, source: EnvSource) -> tuple[Parts, bool]:
    """Parts for environments that may step on the device now, or no longer; and whether that is so.

    Nothing is made to find out: of some simulators there can be one in a process.
    """
    given = not isinstance(source, EnvFactory)
    moved = given and (config.env.pool == "tensor") != is_device_vector(source)
    if not moved:
        try:
            return build(config, source), False
        except WrongPoolError:
            pass
    anywhere = dataclasses.replace(config.env, pool="auto")
    return build(dataclasses.replace(config, env=anywhere), source), True


def _giver(env: Any) -> Callable[[], Any]:
    def give() -> Any:
        return env

    give.__qualname__ = type(env).__name__  # by which messages call it
    return give


def _source(env: EnvLike | None, kwargs: dict[str, Any]) -> tuple[EnvSource, str]:
    """The environment, and a name that says how to make it, in angle brackets if none does."""
    if isinstance(env, (gymnasium.Env, VectorEnv)) or is_device_vector(env):
        return env, f"<{type(env).__name__}>"
    if isinstance(env, str):
        return EnvFactory(env, kwargs), env
    if is_tensor_env(env):  # which holds no state, so that one will do for all
        if kwargs:
            raise ConfigError(f"env_kwargs is {kwargs}, and env is already made; give its class.")
        return EnvFactory(_giver(env)), f"<{type(env).__name__}>"
    if not callable(env):
        raise ConfigError(
            f"env is {env!r}; give a Gymnasium id, 'module:attr', a function that makes an "
            "environment, an environment, or a gymnasium VectorEnv."
        )
    factory = EnvFactory(env, kwargs)
    module, name = getattr(env, "__module__", ""), factory.name
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is env:
        return factory, f"{module}:{name}"
    return factory, f"<{name}>"
