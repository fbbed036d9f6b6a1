"""The tensor pool: environments that are a tensor program, all stepped at once on their device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stoker.errors import EnvError
from stoker.pools.actions import ActionDecoder
from stoker.pools.blame import blaming
from stoker.pools.draws import TensorRng, key_of
from stoker.pools.on_device import DevicePool, on_host, where_over, write
from stoker.pools.spaces import describe
from stoker.types import (
    PLAIN,
    DeviceObs,
    EnvSpec,
    Rng,
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
        with blaming(self._name, "initial"):
            return self._env.initial(n, rng)

    def observe(self, state: TensorState) -> Tensor | DeviceObs:
        with blaming(self._name, "observe"):
            return self._env.observe(state)

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        with blaming(self._name, "step"):
            return self._env.step(state, action, rng)


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
        state = {name: where_over(over, fresh[name], value) for name, value in led_to.state.items()}
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
        write(row, batch)  # first, as what it holds may be views of where they stood
        for name, value in led_to.items():
            state[name].copy_(value)

    def observe(self, state: TensorState) -> DeviceObs:
        seen = self.env.observe(state)
        leaves = {PLAIN: seen} if isinstance(seen, Tensor) else seen
        for name, start in self._starts.items():  # the network counts categories from 0
            leaves = {**leaves, name: leaves[name] - start}
        return leaves


class TensorPool(DevicePool):
    """N environments whose state lives on `device`. `advance` steps them without leaving it.

    Random numbers follow from the seed, the environment and the count of steps.
    """

    def __init__(
        self,
        env: TensorEnv,
        spec: EnvSpec,
        n_envs: int,
        device: torch.device,
        capturable: bool = True,
    ) -> None:
        super().__init__(spec, n_envs, device)
        self.capturable, self._bare = capturable, env
        self._transition = Transition(Blamed(env, spec.name), spec, device)
        self.into: Into = self._transition.into
        """How `step_into` steps: something compiled may take its place."""
        self._ids = torch.arange(n_envs, device=device)
        self._numbers, self._keys = self._ids.clone(), torch.zeros_like(self._ids)
        self._state: TensorState = {}

    def begin(self, *seeds: int) -> None:
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

    def step_into(self, row: TensorBatch, actions: Tensor, count: Tensor) -> None:
        """`advance`, but what came of it is written to the tensors of `row`.

        It only reads tensors and writes to tensors that stay where they are, so it can be captured.
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

    def restore(self, state: dict[str, Tensor]) -> np.ndarray:
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
        return np.empty(0, np.int64)

    def _rng(self, ids: Tensor) -> TensorRng:
        return TensorRng(self._keys[ids], self._numbers[ids], self.count)

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
        self._answer = on_host(batch, env_ids)
