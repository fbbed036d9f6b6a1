"""A vector environment that lives on the device, as Isaac Lab's do, as a pool.

It is somebody else's program: it resets by itself, in the step that ends an episode, and is neither
captured nor saved.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from stoker.errors import BadValueError, ConfigError
from stoker.pools.actions import ActionDecoder
from stoker.pools.blame import blaming, sketch
from stoker.pools.on_device import DevicePool, on_host, where_over, write
from stoker.pools.spaces import describe
from stoker.types import PLAIN, DeviceObs, DeviceVectorEnv, EnvSpec, TensorBatch

POLICY = "policy"
"""The part of an observation that the one who acts sees, where parts have names."""
_FINAL = ("final_obs", "final_observation", "terminal_observation")
_KINDS = {"vector": "floating point", "image": "uint8", "discrete": "whole numbers"}
_FLAG = "bool or whole numbers"


class _Outcome(NamedTuple):
    """What a step gave back, in whichever form."""

    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    extras: Mapping[str, Any]
    merged: bool = False
    """Whether `terminated` is all that ended, those that were truncated as well."""

    @property
    def final_obs(self) -> Any:
        """What ended episodes saw last; None where that is not told."""
        told = (self.extras.get(name) for name in _FINAL)
        return next((found for found in told if found is not None), None)

    def flags(self) -> tuple[Tensor, Tensor]:
        """Terminated and truncated, never both."""
        terminated, truncated = self.terminated.bool(), self.truncated.bool()
        if self.merged:
            truncated = truncated & terminated
            return terminated & ~truncated, truncated
        return terminated, truncated & ~terminated


class DeviceVectorPool(DevicePool):
    """Where extras name a final observation (`_FINAL`), truncated episodes bootstrap from it; where
    they do not, from the last one that was seen before. Such ends are counted.
    """

    def __init__(self, envs: DeviceVectorEnv, name: str, device: torch.device) -> None:
        spec = describe_device_vector(name, envs)
        super().__init__(spec, int(_held(envs, "num_envs")), device)
        self._envs: Any = envs
        self._place = torch.empty(0, device=device).device  # `cuda` with its number
        with blaming(name, "device"):
            lives_on = torch.empty(0, device=_held(envs, "device")).device
        if lives_on != self._place:
            raise ConfigError(
                f"{name} lives on {lives_on}, and training runs on {self._place}. "
                "Make it on that device, or give --device."
            )
        self._decode = ActionDecoder(spec.action, device)
        self._actions = torch.zeros(
            self.n_envs, spec.action.width, dtype=getattr(torch, spec.action.stored_dtype)
        ).to(device)
        """What was sent last, [N, A]."""
        self._seed = 0
        self._unseen_ends = torch.zeros((), dtype=torch.int64, device=device)
        self._warned = False

    def begin(self, *seeds: int) -> None:
        """Start every environment; one seed is for all of them."""
        if len(seeds) != 1:
            raise ConfigError(
                f"{len(seeds)} seeds were given, and {self.spec.name} takes one for all of its "
                "environments. Train one agent at a time on it."
            )
        self._seed = seeds[0]
        self.count.zero_()
        self._start(self._seed)

    def _start(self, seed: int) -> None:
        with blaming(self.spec.name, "reset"):
            given = self._envs.reset(seed=seed) if self._takes_seeds() else self._envs.reset()
        obs, extras = given if isinstance(given, tuple) else (given, {})
        if "action_mask" in extras:
            raise ConfigError(
                f"{self.spec.name} masks actions, which is not done on the device. Leave the mask "
                "out, and give a reward for actions that are not allowed; or step it on the host."
            )
        self._refuse(self._complaints_about(obs, "observation"), "reset")
        self._obs = {leaf: value.clone() for leaf, value in self._read(obs).items()}

    def _takes_seeds(self) -> bool:
        try:
            inspect.signature(self._envs.reset).bind(seed=0)
        except TypeError:
            return False
        return True

    @torch.no_grad()
    def step_into(self, row: TensorBatch, actions: Tensor, count: Tensor) -> None:
        """Step everyone with policy actions [N, A]; what comes of it is written to `row`."""
        write(row, self._step(actions))

    def _step(self, actions: Tensor) -> TensorBatch:
        with blaming(self.spec.name, "step"):
            came = self._outcome(self._envs.step(self._decode(actions)))
        self._check(came)
        obs, (terminated, truncated) = self._read(came.obs), came.flags()
        over, last = terminated | truncated, self._obs
        if came.final_obs is not None:
            last = self._read(came.final_obs)
        else:
            self._unseen_ends += truncated.sum()
        final_obs = {leaf: where_over(over, last[leaf], value) for leaf, value in obs.items()}
        # Copies: the environment may write what it sees next to the very same tensors.
        self._obs = {leaf: value.clone() for leaf, value in obs.items()}
        return TensorBatch(self._obs, came.reward, terminated, truncated, final_obs, {})

    def _outcome(self, given: Any) -> _Outcome:
        """Gymnasium's five, or rsl_rl's four: `dones`, of which `time_outs` are truncated."""
        match given:
            case (_, _, _, _, Mapping()):
                return _Outcome(*given)
            case (obs, reward, Tensor() as dones, Mapping() as extras):
                cut = extras.get("time_outs", torch.zeros_like(dones))
                return _Outcome(obs, reward, dones, cut, extras, merged=True)
        raise BadValueError(
            f"{self.spec.name} returned {sketch(given)} from step(). It is to be (observation, "
            "reward, terminated, truncated, extras) or (observation, reward, dones, extras), all "
            "tensors but the extras, which are a dict; extras['time_outs'] says which of the dones "
            "were cut short."
        )

    def _check(self, came: _Outcome) -> None:
        """By what the host knows of tensors: nothing waits for the device."""
        complaints = self._complaints_about(came.obs, "observation")
        if came.final_obs is not None:
            complaints += self._complaints_about(came.final_obs, "final observation")
        ended, cut = ("dones", "time_outs") if came.merged else ("terminated", "truncated")
        complaints += self._complaints("reward", came.reward, (), "floating point")
        complaints += self._complaints(ended, came.terminated, (), _FLAG)
        complaints += self._complaints(cut, came.truncated, (), _FLAG)
        self._refuse(complaints, "step")

    def _complaints_about(self, seen: Any, what: str) -> list[str]:
        leaves, found = _leaves(seen), []
        for leaf, kind in self.spec.observation.items():
            named = what if leaf == PLAIN else f"{what} {leaf!r}"
            if leaf in leaves:
                found += self._complaints(named, leaves[leaf], kind.shape, _KINDS[kind.kind])
            else:
                has = ", ".join(map(repr, leaves)) or "nothing"
                found.append(f"the {named} is missing: there is {has}.")
        return found

    def _complaints(self, what: str, value: Any, tail: tuple[int, ...], kind: str) -> list[str]:
        """What is wrong with a tensor that is to be [N, *tail], in a sentence each."""
        if not isinstance(value, Tensor):
            return [f"the {what} is a {type(value).__name__}, and must be a torch tensor."]
        found, shape = [], (self.n_envs, *tail)
        if value.device != self._place:
            found.append(f"the {what} is on {value.device}, and must be on {self._place}.")
        if value.shape != shape:
            found.append(f"the {what} has shape {tuple(value.shape)}, and must have {shape}.")
        if not _is(kind, value.dtype):
            found.append(f"the {what} is of type {value.dtype}, and must be {kind}.")
        return found

    def _refuse(self, complaints: list[str], method: str) -> None:
        if complaints:
            heads = (f"In what {method}() of {self.spec.name} returned, {c}" for c in complaints)
            raise BadValueError("\n".join(heads))

    def _read(self, seen: Any) -> DeviceObs:
        """As the spec says: simulators may compute in another precision."""
        leaves, known = _leaves(seen), self.spec.observation
        return {n: (leaves[n] - k.start).to(getattr(torch, k.dtype)) for n, k in known.items()}

    def state(self) -> dict[str, Tensor]:
        """Only the count of steps: where somebody else's environments stand cannot be told."""
        return {"count": self.count.clone()}

    def restore(self, state: dict[str, Tensor]) -> np.ndarray:
        """Everyone begins anew, with a seed that follows from the first and the count of steps."""
        self.count.copy_(state["count"])
        self._start((self._seed + int(state["count"])) % 2**31)  # sync: when resuming
        return self._everyone.copy()

    def faults(self) -> dict[str, int]:
        """How many truncated episodes did not say what they saw last; the first time, in words."""
        unseen = int(self._unseen_ends)  # sync: when logging
        if unseen and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.spec.name} does not say what truncated episodes saw last, so they are "
                "valued by what was seen a step before. Have it put that into the extras of the "
                f"step, as {_FINAL[0]!r}.",
                stacklevel=2,
            )
        return {"unseen_ends": unseen} if unseen else {}

    @torch.no_grad()
    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        """Step with policy actions [n, A]. It cannot but step everyone: the others repeat the last
        action that was sent to them, and what comes of it is not told."""
        ids = torch.from_numpy(env_ids).to(self.device)  # sync: from pageable memory
        self._actions[ids] = torch.from_numpy(actions).to(self.device)  # sync: likewise
        self._answer = on_host(self._step(self._actions), self._everyone).rows(env_ids)

    def close(self) -> None:
        """Close it, if it knows how to."""
        close = getattr(self._envs, "close", None)
        if close is not None:
            close()


def describe_device_vector(name: str, envs: DeviceVectorEnv) -> EnvSpec:
    """The spec of one of its environments; ConfigError if it does not reset in the same step."""
    found = []
    for which in ("observation_space", "action_space"):
        space = _held(envs, f"single_{which}") or _held(envs, which)
        if space is None:
            raise ConfigError(
                f"{name} has no single_{which}; give it that of one environment, a "
                "gymnasium.spaces.Box say."
            )
        found.append(space)
    mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode")
    if mode is not None and mode not in (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP.value):
        raise ConfigError(
            f"{name}'s metadata['autoreset_mode'] is {mode}, and on the device an environment has "
            f"to reset in the step that ends an episode: make it with {AutoresetMode.SAME_STEP}."
        )
    seen, action = found
    if isinstance(seen, spaces.Dict) and POLICY in seen.spaces:
        seen = seen[POLICY]
    return describe(name, seen, action, {})


def _held(envs: Any, name: str) -> Any:
    """An attribute of it, or of what its wrappers wrap."""
    held = getattr(envs, name, None)
    return getattr(getattr(envs, "unwrapped", envs), name, None) if held is None else held


def _leaves(seen: Any) -> Mapping[str, Any]:
    if isinstance(seen, Mapping) and POLICY in seen:
        seen = seen[POLICY]
    return seen if isinstance(seen, Mapping) else {PLAIN: seen}


def _is(kind: str, dtype: torch.dtype) -> bool:
    if kind == "floating point":
        return dtype.is_floating_point
    if kind == "uint8":
        return dtype == torch.uint8
    whole = not dtype.is_floating_point and not dtype.is_complex
    return whole and (dtype != torch.bool or kind == _FLAG)
