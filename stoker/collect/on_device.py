"""Collection where environments are tensors: nothing leaves the device until it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from stoker.errors import BadValueError
from stoker.pools.on_device import DevicePool
from stoker.storage.on_device import DeviceStorage
from stoker.types import Clock, Policy, Way, as_it_is

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
        pool: DevicePool,
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
        self._names = tuple(pool.spec.metric_names)
        sums = torch.zeros(2, len(self._names), dtype=torch.float64, device=pool.device)
        bad = torch.zeros(len(seeds), dtype=torch.int64, device=pool.device)
        self._stock = Stock(self.episodes.held, sums, bad)
        self.way: Way = as_it_is
        """How `take_stock` is run; something that compiles may take its place."""
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
        kept, reported = storage.rollout, [storage.metrics[name] for name in self._names]
        floats = [kept.reward, *(v for v in storage.final_obs.values() if v.is_floating_point())]
        ended = (kept.terminated, kept.truncated)
        self.way(take_stock)(self._stock, kept.reward, *ended, reported, floats)

    def publish(self) -> None:
        """The policy's weights have changed. Here it acts with the very same ones."""

    def metrics(self) -> dict[str, float]:
        """Of episodes, and the means of what environments reported since the last call."""
        astray = self._look_for_bad_values()
        sums, counts = self._stock.sums.tolist()  # sync: likewise
        self._stock.sums.zero_()
        found = zip(self._names, sums, counts, strict=True)
        means = {f"env/{name}": total / count for name, total, count in found if count}
        means |= {"population/astray": float(astray)} if astray else {}
        return {**self.episodes.metrics(), **means}

    def _look_for_bad_values(self) -> int:
        """How many agents saw some; an error if there is none that did not.

        Of several, one that has gone astray (its learning rate, say) is left alone.
        """
        bad = self._stock.bad.tolist()  # sync: when logging, or for a checkpoint
        if all(bad):
            raise BadValueError(
                f"{sum(bad)} rewards or observations of {self.pool.spec.name} were NaN or infinite "
                "since the last look. Mend the environment: a division by zero, a root of a "
                "negative number, a state that grows without bound."
            )
        return sum(count > 0 for count in bad)

    def state(self) -> dict[str, np.ndarray]:
        """Where environments and noise stand, by name; an error if that is worth nothing."""
        self._look_for_bad_values()
        held = {**self.pool.state(), **self.episodes.state()}
        state = {name: value.cpu().numpy() for name, value in held.items()}  # sync: a checkpoint
        busy = np.zeros(self.pool.n_envs, bool)
        return state | {"busy": busy, "noise_rng": self.policy.generator.get_state().numpy()}

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Go on from `state()`; which environments could not, and began anew."""
        self.policy.generator.set_state(torch.from_numpy(state["noise_rng"]))
        held = {name: torch.from_numpy(v) for name, v in state.items() if name not in _NOT_OURS}
        began_anew = self.pool.restore(held)
        self.episodes.restore(held, began_anew)
        self.storage.end(self.pool.obs)
        return began_anew

    def close(self) -> None:
        """Nothing runs between two calls."""


class Episodes(NamedTuple):
    """Of K agents, in tensors."""

    running: Tensor  # [2, N], returns and lengths of running episodes
    ended: Tensor  # [2, K, window + 1], of each agent's last that ended; the last place is nobody's
    finished: Tensor  # [K, 1], how many have ended


class Stock(NamedTuple):
    """What is counted of rollouts as they come."""

    episodes: Episodes
    sums: Tensor  # [2, M]: sums of what environments report of themselves, and how many these are
    bad: Tensor  # [K], rewards and observations that are not finite


def take_stock(
    stock: Stock,
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    reported: list[Tensor],
    floats: list[Tensor],
) -> None:
    """Count a rollout: [T, N] each, and the observations among `floats` [T, N, ...]."""
    count_episodes(stock.episodes, reward, terminated | truncated)
    if reported:
        values = torch.stack(reported).flatten(1)
        known = values.isfinite()
        stock.sums[0] += torch.where(known, values, 0.0).sum(1, dtype=torch.float64)
        stock.sums[1] += known.sum(1)
    steps, agents = len(reward), len(stock.bad)
    for value in floats:
        stock.bad.add_((~value.isfinite()).reshape(steps, agents, -1).sum((0, 2)))


def count_episodes(episodes: Episodes, reward: Tensor, over: Tensor) -> None:
    """Count the steps of a rollout, [T, N], of which some are an episode's last."""
    number = torch.arange(1, len(reward) + 1, device=over.device)[:, None]
    sums = torch.stack((reward.double().cumsum(0), number.expand_as(over).double()))
    ended = torch.where(over, number, 0).cummax(0).values  # the last end until here, from 1 on
    before = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))
    counted = sums - _at(sums, before, episodes.running)
    running = sums[:, -1] - _at(sums, ended[-1:], episodes.running)[:, 0]
    agents = len(episodes.finished)
    _keep(episodes, _by_agent(counted, agents), _by_agent(over[None], agents)[0])
    episodes.running.copy_(running)


def _at(sums: Tensor, end: Tensor, running: Tensor) -> Tensor:
    """The sums at the step `end`; at none, what ran before the rollout, to be added."""
    found = sums.gather(1, (end - 1).clamp(min=0).expand(2, *end.shape))
    return torch.where(end > 0, found, -running[:, None])


def _by_agent(rows: Tensor, agents: int) -> Tensor:
    """From [..., T, K * n] to [..., K, T * n]."""
    return rows.unflatten(2, (agents, -1)).transpose(1, 2).flatten(2)


def _keep(episodes: Episodes, counted: Tensor, over: Tensor) -> None:
    rank = episodes.finished + over.cumsum(1)  # of an episode that ends here, among all
    total = rank[:, -1:]
    wanted = over & (rank > total - _WINDOW)
    place = torch.where(wanted, rank % _WINDOW, _WINDOW)
    episodes.ended.scatter_(2, place.expand_as(counted), counted)
    episodes.finished.copy_(total)


class DeviceEpisodes:
    """Returns and lengths of each agent's last hundred episodes, and of those that run."""

    def __init__(self, n_envs: int, device: torch.device, agents: int = 1) -> None:
        running = torch.zeros(2, n_envs, dtype=torch.float64, device=device)
        ended = torch.zeros(2, agents, _WINDOW + 1, dtype=torch.float64, device=device)
        self.held = Episodes(
            running, ended, torch.zeros(agents, 1, dtype=torch.int64, device=device)
        )

    def means(self) -> Tensor:
        """Return and length [2, K] of each agent's last episodes; NaN before the first."""
        kept = self.held.finished.clamp(max=_WINDOW)
        # Those kept lie from 1 on, until the window is full; then 0 is one of them, too.
        place = torch.arange(_WINDOW, device=kept.device)
        known = (place > 0) & (place <= kept) | (kept == _WINDOW)
        return (self.held.ended[..., :_WINDOW] * known).sum(-1) / kept[:, 0]

    def metrics(self) -> dict[str, float]:
        """SB3's names, and of several agents their spread; nothing until an episode has ended."""
        means = self.means()
        reward = means[0][means[0].isfinite()]  # sync: when logging
        if not len(reward):
            return {}
        measured = {"rollout/ep_rew_mean": reward.mean(), "rollout/ep_len_mean": means[1].nanmean()}
        if len(means[0]) > 1:
            measured |= {"population/best": reward.max(), "population/worst": reward.min()}
            measured["population/median"] = reward.quantile(0.5)
            measured["population/deviation"] = reward.std(correction=0)
        values = torch.stack(list(measured.values())).tolist()  # sync: likewise
        return dict(zip(measured, values, strict=True))

    def state(self) -> dict[str, Tensor]:
        """Copies, by name."""
        return {name: value.clone() for name, value in self._named().items()}

    def restore(self, state: dict[str, Tensor], began_anew: np.ndarray) -> None:
        for name, mine in self._named().items():
            mine.copy_(state[name])
        self.held.running[:, torch.from_numpy(began_anew)] = 0.0

    def _named(self) -> dict[str, Tensor]:
        """What is somebody's: which of several wrote last to the place that is nobody's is left to
        chance."""
        running, ended, finished = self.held
        return {"running": running, "ended": ended[..., :_WINDOW], "episodes": finished}
