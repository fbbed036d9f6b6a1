"""Collection where environments are tensors: nothing leaves the device until it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from stoker.errors import BadValueError
from stoker.pools.tensor import TensorPool
from stoker.storage.on_device import DeviceStorage
from stoker.types import Clock, Policy

_WINDOW = 100  # episodes, as Stable-Baselines3 averages them
_NOT_OURS = ("busy", "noise_rng")

Runs = Callable[[Callable[[], None]], Callable[[], None]]
"""How to run a function of tensors that stay where they are."""


class Acting(Protocol):
    """Decides on actions for everyone, in the storage."""

    def noise(self, counts: Tensor) -> Tensor:
        """Of a rollout, [at least T, N, ...]; its steps have the numbers `counts` [T]."""

    def decide(self, t: int, noise: Tensor) -> None:
        """From what is seen at step `t` to what is done then."""


class PolicyActing:
    """Acts as the policy's modules do."""

    def __init__(self, policy: Policy, storage: DeviceStorage) -> None:
        self._policy, self._storage = policy, storage

    def noise(self, counts: Tensor) -> Tensor:
        shape = (self._storage.capacity + 1, self._storage.n_envs)
        # As many rows as on the host, so it is the same there.
        return self._policy.draw_noise(math.prod(shape)).unflatten(0, shape)

    def decide(self, t: int, noise: Tensor) -> None:
        self._storage.decide(t, self._policy.act(self._storage.seen(t), None, noise))


class DeviceCollector:
    """Fills a rollout when asked to, in step with the learner. Same seed, same bits.

    Each seed has an equal share of the environments: those of an agent of its own, where a
    population learns. `runs` makes a function of tensors that stay where they are run some other
    way: captured, say.
    """

    ahead, late, version = False, 0, 0

    def __init__(
        self,
        pool: TensorPool,
        policy: Policy,
        storage: DeviceStorage,
        clock: Clock,
        seeds: Sequence[int],
        runs: Runs | None = None,
    ) -> None:
        self.pool, self.policy = pool, policy
        self.steps = 0
        self.storage, self._clock = storage, clock
        self.acting: Acting = PolicyActing(policy, storage)
        self.episodes = DeviceEpisodes(pool.n_envs, pool.device, len(seeds))
        self._metrics = DeviceMeans(pool.spec.metric_names, pool.device)
        self._bad = torch.zeros((), dtype=torch.int64, device=pool.device)
        self._fill_once = runs(self._fill) if runs else self._fill
        self.may_fail = runs is None
        pool.begin(*seeds)
        storage.end(pool.obs)

    def collect(self, last: bool = False) -> DeviceStorage:
        """A full rollout; `last` says that no other is wanted soon."""
        with self._clock.phase("env"):
            self._fill_once()
        self.steps = self.storage.steps_taken
        return self.storage

    @torch.no_grad()
    def _fill(self) -> None:
        storage, pool, acting = self.storage, self.pool, self.acting
        counts = pool.counts(storage.n_steps)
        noise = acting.noise(counts)
        storage.follow()
        for t in range(storage.n_steps):
            acting.decide(t, noise[t])
            pool.step_into(storage.row(t), storage.rollout.action[t], counts[t])
        kept = storage.rollout
        self.episodes.take(kept.reward, kept.terminated | kept.truncated)
        self._metrics.take(storage.metrics)
        for value in (kept.reward, *storage.final_obs.values()):
            if value.is_floating_point():
                self._bad += (~value.isfinite()).sum()

    def publish(self) -> None:
        """The policy's weights have changed. Here it acts with the very same ones."""

    def metrics(self) -> dict[str, float]:
        """Of episodes, and the means of what environments reported since the last call."""
        bad = int(self._bad)  # sync: when logging
        if bad:
            raise BadValueError(
                f"{bad} rewards or observations of {self.pool.spec.name} were NaN or infinite "
                "since the last look. Mend the environment: a division by zero, a root of a "
                "negative number, a state that grows without bound."
            )
        return {**self.episodes.metrics(), **self._metrics.means()}

    def state(self) -> dict[str, np.ndarray]:
        """Where environments and noise stand, by name."""
        held = {**self.pool.state(), **self.episodes.state()}
        state = {name: value.cpu().numpy() for name, value in held.items()}  # sync: a checkpoint
        busy = np.zeros(self.pool.n_envs, bool)
        return state | {"busy": busy, "noise_rng": self.policy.generator.get_state().numpy()}

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Go on from `state()`: everyone stands where it stood, so nobody began anew."""
        self.policy.generator.set_state(torch.from_numpy(state["noise_rng"]))
        held = {name: torch.from_numpy(v) for name, v in state.items() if name not in _NOT_OURS}
        self.episodes.restore(held)
        self.pool.restore(held)
        self.storage.end(self.pool.obs)
        return np.empty(0, np.int64)

    def close(self) -> None:
        """Nothing runs between two calls."""


class DeviceEpisodes:
    """Returns and lengths of running episodes, and of each agent's last hundred, in tensors."""

    def __init__(self, n_envs: int, device: torch.device, agents: int = 1) -> None:
        self._running = torch.zeros(2, n_envs, dtype=torch.float64, device=device)
        # One place too many: what is not wanted goes there.
        self._ended = torch.zeros(2, agents, _WINDOW + 1, dtype=torch.float64, device=device)
        self._count = torch.zeros(agents, 1, dtype=torch.int64, device=device)

    def take(self, reward: Tensor, over: Tensor) -> None:
        """Count the steps of a rollout, [T, N]."""
        steps = len(reward)
        number = torch.arange(1, steps + 1, device=over.device)[:, None]
        sums = torch.stack((reward.double().cumsum(0), number.expand_as(over).double()))
        ended = torch.where(over, number, 0).cummax(0).values  # the last end until here, from 1 on
        before = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))
        counted = sums - self._at(sums, before)
        self._keep(self._by_agent(counted), self._by_agent(over[None])[0])
        self._running.copy_(sums[:, -1] - self._at(sums, ended[-1:])[:, 0])

    def _at(self, sums: Tensor, end: Tensor) -> Tensor:
        """The sums at the step `end`; at none, what ran before the rollout, to be added."""
        found = sums.gather(1, (end - 1).clamp(min=0).expand(2, *end.shape))
        return torch.where(end > 0, found, -self._running[:, None])

    def _by_agent(self, rows: Tensor) -> Tensor:
        """From [..., T, K * n] to [..., K, T * n]."""
        apart = rows.unflatten(2, (len(self._count), -1))
        return apart.transpose(1, 2).flatten(2)

    def _keep(self, counted: Tensor, over: Tensor) -> None:
        rank = self._count + over.cumsum(1)  # of an episode that ends here, among all
        total = rank[:, -1:]
        wanted = over & (rank > total - _WINDOW)
        place = torch.where(wanted, rank % _WINDOW, _WINDOW)
        self._ended.scatter_(2, place.expand_as(counted), counted)
        self._count.copy_(total)

    def means(self) -> Tensor:
        """Return and length [2, K] of each agent's last episodes; NaN before the first."""
        kept = self._count.clamp(max=_WINDOW)
        # Those kept lie from 1 on, until the window is full; then 0 is one of them, too.
        place = torch.arange(_WINDOW, device=kept.device)
        known = (place > 0) & (place <= kept) | (kept == _WINDOW)
        return (self._ended[..., :_WINDOW] * known).sum(-1) / kept[:, 0]

    def best(self) -> int:
        """The agent with the highest return."""
        return int(self.means()[0].nan_to_num(nan=-torch.inf).argmax())  # sync: asked for

    def metrics(self) -> dict[str, float]:
        """SB3's names, and of several agents their spread; nothing until an episode has ended."""
        means = self.means()
        reward = means[0][means[0].isfinite()]  # sync: when logging
        if not len(reward):
            return {}
        measured = {"rollout/ep_rew_mean": reward.mean(), "rollout/ep_len_mean": means[1].nanmean()}
        if len(means[0]) > 1:
            measured |= {"population/best": reward.max(), "population/worst": reward.min()}
            measured["population/deviation"] = reward.std(correction=0)
        values = torch.stack(list(measured.values())).tolist()  # sync: likewise
        return dict(zip(measured, values, strict=True))

    def state(self) -> dict[str, Tensor]:
        """Copies, by name."""
        return {name: value.clone() for name, value in self._held().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, mine in self._held().items():
            mine.copy_(state[name])

    def _held(self) -> dict[str, Tensor]:
        return {"running": self._running, "ended": self._ended, "episodes": self._count}


class DeviceMeans:
    """Means of what environments report of themselves, over the steps that report it."""

    def __init__(self, names: Iterable[str], device: torch.device) -> None:
        self._names = tuple(names)
        self._sums = torch.zeros(2, len(self._names), dtype=torch.float64, device=device)

    def take(self, metrics: dict[str, Tensor]) -> None:
        """Of a rollout, [T, N] each."""
        if self._names:
            values = torch.stack([metrics[name] for name in self._names]).flatten(1)
            known = values.isfinite()
            self._sums[0] += torch.where(known, values, 0.0).sum(1, dtype=torch.float64)
            self._sums[1] += known.sum(1)

    def means(self) -> dict[str, float]:
        sums, counts = self._sums.tolist()  # sync: when logging
        self._sums.zero_()
        found = zip(self._names, sums, counts, strict=True)
        return {f"env/{name}": total / count for name, total, count in found if count}
