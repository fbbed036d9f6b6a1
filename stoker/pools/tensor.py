"""The tensor pool: environments that are a tensor program, all stepped at once on their device."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stoker.errors import EnvError, StokerError
from stoker.pools.base import BasePool
from stoker.pools.draws import TensorRng, key_of
from stoker.pools.spaces import describe
from stoker.types import (
    PLAIN,
    ActionSpec,
    DeviceObs,
    EnvSpec,
    EpisodeJournal,
    HostObs,
    Rng,
    StepBatch,
    TensorBatch,
    TensorEnv,
    TensorState,
    TensorStep,
)

Into = Callable[[TensorBatch, TensorState, Tensor, Tensor, Tensor, Tensor], None]
"""Steps environments in place; see `Transition.into`."""


def describe_tensor_env(name: str, env: TensorEnv) -> EnvSpec:
    """The spec of a tensor environment."""
    for space in ("observation_space", "action_space"):
        if not hasattr(env, space):
            raise EnvError(f"{name} has no {space}; give it one, a gymnasium.spaces.Box say.")
    names = getattr(env, "metric_names", ())
    return describe(name, env.observation_space, env.action_space, {}, names)


class Blamed:
    """A tensor environment whose errors are an `EnvError` that says where they came from."""

    def __init__(self, env: TensorEnv, name: str) -> None:
        self._env, self._name = env, name
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def initial(self, n: int, rng: Rng) -> TensorState:
        with self._blame("initial"):
            return self._env.initial(n, rng)

    def observe(self, state: TensorState) -> Tensor | DeviceObs:
        with self._blame("observe"):
            return self._env.observe(state)

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        with self._blame("step"):
            return self._env.step(state, action, rng)

    @contextmanager
    def _blame(self, method: str) -> Iterator[None]:
        try:
            yield
        except StokerError:
            raise
        except Exception as error:
            raise EnvError(
                f"{self._name} raised {type(error).__name__} in {method}(): {error}\n"
                f"{traceback.format_exc().rstrip()}"
            ) from error


class Transition:
    """One step of some environments, with resets, as a function of tensors: it can be compiled."""

    def __init__(self, env: TensorEnv, spec: EnvSpec, device: torch.device) -> None:
        self.env = env
        self._decode = ActionDecoder(spec.action, device)
        self._starts = {n: leaf.start for n, leaf in spec.observation.items() if leaf.start}

    def __call__(
        self, state: TensorState, actions: Tensor, rng: TensorRng
    ) -> tuple[TensorState, TensorBatch]:
        """Where an episode is over, the next one begins in the same step."""
        led_to = self.env.step(state, self._decode(actions), rng)
        fresh = self.env.initial(len(actions), rng)
        terminated = led_to.terminated
        truncated = led_to.truncated & ~terminated
        over = terminated | truncated
        state = {name: _where(over, fresh[name], value) for name, value in led_to.state.items()}
        final_obs, obs = self.observe(led_to.state), self.observe(state)
        metrics = dict(led_to.metrics)
        return state, TensorBatch(obs, led_to.reward, terminated, truncated, final_obs, metrics)

    @torch.no_grad()
    def into(
        self,
        row: TensorBatch,
        state: TensorState,
        actions: Tensor,
        keys: Tensor,
        numbers: Tensor,
        count: Tensor,
    ) -> None:
        """The step number `count` of environments `numbers` with `keys`, in place.

        What came of it goes to `row`, and where it led to `state`.
        """
        led_to, batch = self(state, actions, TensorRng(keys, numbers, count))
        _copy(row, batch)  # first, as what it holds may be views of where they stood
        for name, value in led_to.items():
            state[name].copy_(value)

    def observe(self, state: TensorState) -> DeviceObs:
        seen = self.env.observe(state)
        leaves = {PLAIN: seen} if isinstance(seen, Tensor) else seen
        for name, start in self._starts.items():  # the network counts categories from 0
            leaves = {**leaves, name: leaves[name] - start}
        return leaves


class TensorPool(BasePool):
    """N environments whose state lives on `device`. `advance` steps them without leaving it.

    For whoever has NumPy arrays there is `step`, and `send` and `recv` for some of them, as in
    every pool. Random numbers follow from the seed, the environment and the count of steps.
    """

    def __init__(
        self,
        env: TensorEnv,
        spec: EnvSpec,
        n_envs: int,
        device: torch.device,
        capturable: bool = True,
    ) -> None:
        super().__init__(spec, n_envs)
        self.capturable = capturable
        self.device, self._bare = device, env
        self._transition = Transition(Blamed(env, spec.name), spec, device)
        self.into: Into = self._transition.into
        """How `step_into` steps: something compiled may take its place."""
        self._ids = torch.arange(n_envs, device=device)
        self._numbers, self._keys = self._ids.clone(), torch.zeros_like(self._ids)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        """The number of the last step. It stays where it is."""
        self._state: TensorState = {}
        self._obs: DeviceObs = {}
        self._answer: StepBatch | None = None

    @property
    def obs(self) -> DeviceObs:
        """What every environment sees, [N, ...], on the device."""
        return self._obs

    def begin(self, *seeds: int) -> None:
        """Start every environment. Each seed has an equal share of them, which goes as if alone."""
        share = self.n_envs // len(seeds)
        self._keys.copy_(key_of(torch.tensor(seeds, device=self.device)).repeat_interleave(share))
        self._numbers.copy_(self._ids % share)
        self.count.zero_()
        self._stand(self._transition.env.initial(self.n_envs, self._rng(self._ids)))
        self._look()

    @torch.no_grad()
    def advance(self, actions: Tensor) -> TensorBatch:
        """Step everyone with policy actions [N, A]."""
        self.count += 1
        state, batch = self._transition(self._state, actions, self._rng(self._ids))
        row = pytree.tree_map(torch.clone, batch)  # not views of what changes with the next step
        self._stand(state)
        self._obs = row.obs
        return row

    def counts(self, steps: int) -> Tensor:
        """Numbers [steps] of the steps to come, which `step_into` is to be given one by one."""
        counts = self.count + torch.arange(1, steps + 1, device=self.device)
        self.count += steps
        return counts

    def step_into(self, row: TensorBatch, actions: Tensor, count: Tensor) -> None:
        """`advance`, but what came of it is written to the tensors of `row`.

        It only reads tensors and writes to tensors that stay where they are, so it can be captured.
        Whoever steps so finds observations there, not in `obs`.
        """
        self.into(row, self._state, actions, self._keys, self._numbers, count)

    def twin(self) -> TensorPool:
        """As many of the same environments, none of which has begun."""
        return TensorPool(self._bare, self.spec, self.n_envs, self.device, self.capturable)

    def for_compiling(self) -> tuple[Transition, tuple[TensorState, Tensor, Tensor]]:
        """Something to compile in place of `into`; and its state, keys and numbers, copied."""
        state = {name: value.clone() for name, value in self._state.items()}
        bare = Transition(self._bare, self.spec, self.device)
        return bare, (state, self._keys.clone(), self._numbers.clone())

    def _look(self) -> None:
        seen = self._transition.observe(self._state)
        self._obs = {leaf: value.clone() for leaf, value in seen.items()}

    def _stand(self, state: TensorState) -> None:
        """Let everyone stand at `state`, in the tensors that there are, if there are."""
        if not self._state:
            self._state = {name: torch.empty_like(v) for name, v in state.items()}
        for name, value in state.items():
            self._state[name].copy_(value)

    def state(self) -> dict[str, Tensor]:
        """Where everyone stands, by name; go on from it with `restore`."""
        return {"count": self.count.clone(), "keys": self._keys.clone()} | {
            f"state.{name}": value.clone() for name, value in self._state.items()
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Stand where `state()` was taken; ValueError if that was another environment's."""
        mine = {n: (v.shape, v.dtype) for n, v in self.state().items()}
        theirs = {n: (v.shape, v.dtype) for n, v in state.items() if n in mine or "." in n}
        if mine != theirs:
            odd = sorted(n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n))
            raise ValueError(f"the environment's {', '.join(odd)} is not what was saved")
        self.count.copy_(state["count"])
        self._keys.copy_(state["keys"])
        prefix = "state."
        self._stand({n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)})
        self._look()

    def _rng(self, ids: Tensor) -> TensorRng:
        return TensorRng(self._keys[ids], self._numbers[ids], self.count)

    # For whoever is on the host.

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        """Start every environment. Where they stand is kept by `state`, not in a journal."""
        assert journal is None
        self.begin(seed)
        nothing = torch.zeros(self.n_envs, device=self.device)
        never = nothing.bool()
        unknown = dict.fromkeys(self.spec.metric_names, nothing + torch.nan)
        first = TensorBatch(self._obs, nothing, never, never, self._obs, unknown)
        return _on_host(first, self._everyone)

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        """Step the environments `env_ids` with policy actions [n, A]; `recv` gives the answer."""
        ids = torch.from_numpy(env_ids).to(self.device)  # sync: from pageable memory
        taken = torch.from_numpy(actions).to(self.device)  # sync: likewise
        some = {name: value[ids] for name, value in self._state.items()}
        self.count += 1
        with torch.no_grad():
            led_to, batch = self._transition(some, taken, self._rng(ids))
        for name, value in led_to.items():
            self._state[name].index_copy_(0, ids, value)
        self._look()
        self._answer = _on_host(batch, env_ids)

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        """What came of the last `send`."""
        assert self._answer is not None
        return self._answer

    @property
    def seen(self) -> tuple[HostObs, None]:
        """See `types.Pool`; copies."""
        seen = {leaf: value.cpu().numpy() for leaf, value in self._obs.items()}  # sync: asked for
        return seen, None

    def close(self) -> None:
        """Nothing is open."""


class ActionDecoder:
    """Policy actions [n, A] as a tensor environment takes them; `spaces.ActionCodec` on a device.

    The bounds are made once: to make a tensor of Python's numbers in a step would wait for the GPU.
    """

    def __init__(self, spec: ActionSpec, device: torch.device) -> None:
        self._spec = spec
        self._start = torch.tensor(spec.start, dtype=torch.int64, device=device)
        low, high = (torch.tensor(bound, device=device) for bound in (spec.low, spec.high))
        finite = low.isfinite() & high.isfinite()
        self._low, self._high = low, high
        self._centre = torch.where(finite, (low + high) / 2, 0.0)
        self._half = torch.where(finite, (high - low) / 2, 1.0)

    def __call__(self, actions: Tensor) -> Tensor:
        if self._spec.continuous:
            actions = (self._centre + self._half * actions).clamp(self._low, self._high)
        elif self._spec.nvec:
            actions = actions + self._start
        shaped = actions.reshape(len(actions), *self._spec.shape)
        return shaped.to(getattr(torch, self._spec.dtype))


def _copy(to: TensorBatch, given: TensorBatch) -> None:
    to.reward.copy_(given.reward)
    to.terminated.copy_(given.terminated)
    to.truncated.copy_(given.truncated)
    for kept, new in ((to.obs, given.obs), (to.final_obs, given.final_obs)):
        for leaf, value in kept.items():
            value.copy_(new[leaf])
    for name, value in to.metrics.items():
        value.copy_(given.metrics[name])


def _where(over: Tensor, fresh: Tensor, value: Tensor) -> Tensor:
    return torch.where(over.view(-1, *(1,) * (value.dim() - 1)), fresh, value)


def _on_host(batch: TensorBatch, env_ids: np.ndarray) -> StepBatch:
    def host(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: host(part) for name, part in value.items()}
        return value.cpu().numpy()  # sync: whoever asked is on the host

    rest = {name: host(value) for name, value in batch._asdict().items()}
    valid = np.ones(len(env_ids), bool)
    return StepBatch(env_ids=env_ids.copy(), action_mask=None, valid=valid, **rest)
