"""Replay: the last steps of every environment, on the device, each observation once.

Each environment has a ring of its own, [L, N], and its own place in it. What a step led to is what
the environment's next row saw. Where that is not so, because an episode was truncated or a fault
cut it off, a row follows that holds only what was seen last: a stop, which is never sampled and
never passed. What becomes of a row within n steps is worked out once, when it has come to pass, and
from then on the row may be sampled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stoker.storage.priorities import Priorities
from stoker.types import DeviceObs, EnvSpec, Finals, Rollout, Transitions

_NOTHING, _STEP, _LAST, _STOP = range(4)
"""What a row is: not written; a step; one that terminated its episode; what was seen last."""
_WIDE = (torch.complex128, torch.int64, torch.int32, torch.int16)
"""Elements to copy rows in, the widest first."""
_LARGE_ROW = 512  # bytes, from which on that gains more than it costs


class Replay:
    """Room for `capacity` rows of `n_envs` environments; sums of rewards go `ahead` steps.

    Nothing here is fetched from the device, but for a checkpoint. Observations lie on `obs_device`:
    in the host's memory, where that of the device is too small for them.
    """

    def __init__(
        self,
        spec: EnvSpec,
        capacity: int,
        n_envs: int,
        ahead: int,
        gamma: float,
        alpha: float,
        device: torch.device,
        obs_device: torch.device | None = None,
    ) -> None:
        self.length, self.n_envs = capacity // n_envs, n_envs
        self._ahead, self._gamma = ahead, gamma
        self.device, self.obs_device = device, obs_device or device
        self._size = rows = self.length * n_envs
        pinned = self.obs_device.type == "cpu" and device.type == "cuda"

        def field(*tail: int, dtype: torch.dtype = torch.float32) -> Tensor:
            # One row too many: what is not wanted goes there.
            return torch.zeros(rows + 1, *tail, dtype=dtype, device=device)

        def seen(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            whole = (rows + 1, *shape)
            return torch.zeros(whole, dtype=dtype, device=self.obs_device, pin_memory=pinned)

        leaves = spec.observation.items()
        self.obs = {n: seen(leaf.shape, getattr(torch, leaf.dtype)) for n, leaf in leaves}
        self._wide = {leaf: _widened(rows) for leaf, rows in self.obs.items()}
        self.action = field(spec.action.width, dtype=torch.int64)
        self.mask = field(spec.mask_width, dtype=torch.bool) if spec.has_mask else None
        self.reward, self.kind = field(), field(dtype=torch.uint8)
        self.outcome = field(3)
        """Of a row that may be sampled: its rewards' discounted sum, the discount of what is seen
        then (0 where the episode terminated), and how many rows ahead that is."""
        self.count = torch.zeros(n_envs, dtype=torch.int64, device=device)
        """Rows ever written, of each environment."""
        self.priorities = Priorities(rows + 1, alpha, device)
        self._env = torch.arange(n_envs, device=device)
        self.before_append: Callable[[int], None] | None = None
        """Told how many rows each environment may have more, before any is written."""

    def append(self, rollout: Rollout, finals: Finals) -> None:
        """Take in T steps of everyone; `finals` is what was seen at the end of truncated episodes.

        Gaps are left out; of cuts, what was seen is kept.
        """
        wait = self.before_append  # which a thread may take back
        if wait is not None:
            wait(2 * len(rollout.reward))
        short = rollout.truncated & ~rollout.terminated
        written = rollout.valid | short
        stops = rollout.valid & short  # which need a row more
        number = written.long() + stops
        first = self.count + number.cumsum(0) - number
        place = torch.where(written, self._place(first), self._size).flatten()
        after = torch.where(stops, self._place(first + 1), self._size).flatten()
        kind = torch.where(rollout.terminated, _LAST, _STEP).masked_fill_(~rollout.valid, _STOP)
        self._write_obs(place, {leaf: rows.flatten(0, 1) for leaf, rows in rollout.obs.items()})
        self._write_obs(after[finals.place.to(self.device)], finals.obs)  # sync: if on the host
        self.action[place] = rollout.action.flatten(0, 1)
        if self.mask is not None and rollout.action_mask is not None:
            self.mask[place] = rollout.action_mask.flatten(0, 1)
        self.reward[place] = rollout.reward.flatten()
        self.kind[place] = kind.flatten().to(torch.uint8)
        self.kind[after] = _STOP
        if self.mask is not None:
            self.mask[after] = True  # nobody said what was allowed: all of it
        before = self.count.clone()
        self.count += number.sum(0)
        self._settle(before, 2 * len(rollout.reward))

    def break_off(self, envs: Tensor) -> None:
        """What comes next of these environments [n] does not follow from their last rows."""
        newest = self._place((self.count - 1).clamp(min=0))[envs]
        open_ended = self.kind[newest] == _STEP
        self.kind[newest] = torch.where(open_ended, _STOP, self.kind[newest]).to(torch.uint8)
        self._settle(self.count, 0)

    def _place(self, number: Tensor) -> Tensor:
        """Where rows with these numbers lie, [..., N]; each environment counts its own."""
        return number % self.length * self.n_envs + self._env

    def _settle(self, before: Tensor, most: int) -> None:
        """Work out what came of rows, where there were `before` [N], and at most so many are new.

        Of the old ones, too, as far as they may have waited for these.
        """
        window = torch.arange(-self._ahead, most, device=self.device)[:, None]
        number = before + window
        place = torch.where((number >= 0) & (number < self.count), self._place(number), self._size)
        kind = self.kind[place]
        going = (place < self._size) & ((kind == _STEP) | (kind == _LAST))
        settled = torch.zeros_like(going)
        total, discount, ahead = (torch.zeros_like(number, dtype=torch.float32) for _ in range(3))
        for k in range(self._ahead + 1):
            going = going & (number + k < self.count)
            there = self._place(number + k)
            kind = self.kind[there]
            if k > 0:
                arrived = going & (kind == _STOP) if k < self._ahead else going
                discount = torch.where(arrived, self._gamma**k, discount)
                ahead = torch.where(arrived, float(k), ahead)
                settled, going = settled | arrived, going & ~arrived
            if k < self._ahead:
                total = torch.where(going, total + self._gamma**k * self.reward[there], total)
                over = going & (kind == _LAST)
                settled, going = settled | over, going & ~over
        self.outcome[place] = torch.stack((total, discount, ahead), -1)
        rows = place.flatten()
        self.priorities.admit(rows, settled.flatten(), (number >= before).flatten())

    def draw(self, row: Tensor, weight: Tensor) -> Transitions:
        """What there is to learn from the rows [B], which count as `weight` says."""
        total, discount, ahead = self.outcome[row].unbind(1)
        next_row = (row + ahead.long() * self.n_envs) % self._size
        both = torch.cat((row, next_row))
        if self.obs_device != self.device:
            both = both.to(self.obs_device)  # sync: observations lie on the host
        seen = {
            leaf: self._gathered(leaf, both).to(self.device, non_blocking=True) for leaf in self.obs
        }
        allowed = None if self.mask is None else self.mask[next_row]
        return Transitions(seen, self.action[row], allowed, total, discount, weight)

    def _gathered(self, leaf: str, row: Tensor) -> Tensor:
        rows, wide = self.obs[leaf], self._wide[leaf]
        if wide is None:
            return rows[row]
        return wide[row].view(rows.dtype).unflatten(1, rows.shape[1:])

    def _write_obs(self, place: Tensor, obs: DeviceObs) -> None:
        if not len(place):
            return
        place = place.to(self.obs_device)  # sync: where observations lie on the host
        for leaf, rows in obs.items():
            self.obs[leaf][place] = rows.to(self.obs_device)  # sync: likewise


def _widened(rows: Tensor) -> Tensor | None:
    """The same [R, ...] in as wide elements as rows can be cut into; None where that is no gain."""
    size = rows[0].numel() * rows.element_size()
    wide = next((kind for kind in _WIDE if size % kind.itemsize == 0), rows.dtype)
    gains = size >= _LARGE_ROW and wide.itemsize > rows.element_size()
    return rows.flatten(1).view(wide) if gains else None
