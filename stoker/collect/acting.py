"""From a group's observations on the host to its actions on the host, and into the storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.storage.rollout import RolloutStorage
from stoker.types import DeviceObs, HostObs, Policy


class Acting:
    """Acts eagerly. On a GPU `CapturedActing` does the same with far less work for the host."""

    def __init__(self, policy: Policy, groups: Sequence[slice], device: torch.device) -> None:
        self.policy, self.groups, self.device = policy, groups, device
        self._noise = torch.empty(0)

    def begin(self, storage: RolloutStorage) -> None:
        """Draw the noise of a whole rollout, so that it is the same however groups are served."""
        self._noise = self.policy.draw_noise(storage.n_steps * storage.n_envs)
        self._noise = self._noise.unflatten(0, (storage.n_steps, storage.n_envs))

    def act(
        self, storage: RolloutStorage, t: int, group: int, obs: HostObs, mask: np.ndarray | None
    ) -> np.ndarray:
        """The policy's actions [n, A] for the group at step `t`; overwritten by its next ones."""
        seen = {leaf: self._send(value) for leaf, value in obs.items()}
        sent_mask = None if mask is None else self._send(mask)
        place = self.groups[group]
        output = self.policy.act(seen, sent_mask, self._noise[t, place])
        storage.write_decision(t, place, seen, sent_mask, output)
        return output.action.cpu().numpy()  # sync: environments act on the host

    def _send(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)  # sync: from pageable memory


class CapturedActing(Acting):
    """Acts by one CUDA graph a group and storage: copies in, one launch, one copy out."""

    def __init__(self, policy: Policy, groups: Sequence[slice], device: torch.device) -> None:
        super().__init__(policy, groups, device)
        self._inputs: dict[int, tuple[DeviceObs, Tensor | None]] = {}
        self._step = [torch.zeros(1, dtype=torch.int64, device=device) for _ in groups]
        self._actions: dict[int, Tensor] = {}  # pinned
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._done = torch.cuda.Event()

    def begin(self, storage: RolloutStorage) -> None:
        drawn = self.policy.draw_noise(storage.n_steps * storage.n_envs)
        drawn = drawn.unflatten(0, (storage.n_steps, storage.n_envs))
        if self._noise.shape == drawn.shape:
            self._noise.copy_(drawn)
        else:
            self._noise = drawn
        for step in self._step:
            step.zero_()

    def act(
        self, storage: RolloutStorage, t: int, group: int, obs: HostObs, mask: np.ndarray | None
    ) -> np.ndarray:
        if group not in self._inputs:
            self._inputs[group] = (
                {leaf: self._send(value) for leaf, value in obs.items()},
                None if mask is None else self._send(mask),
            )
        seen, seen_mask = self._inputs[group]
        for leaf, value in obs.items():
            seen[leaf].copy_(torch.from_numpy(value), non_blocking=True)
        if seen_mask is not None and mask is not None:
            seen_mask.copy_(torch.from_numpy(mask), non_blocking=True)
        graph = self._graphs.get((id(storage), group))
        if graph is None:
            graph = self._graphs[id(storage), group] = self._capture(storage, group)
        graph.replay()
        self._done.record()
        self._done.synchronize()  # sync: environments act on the host
        return self._actions[group].numpy()

    def _capture(self, storage: RolloutStorage, group: int) -> torch.cuda.CUDAGraph:
        """Run the group's decision twice to warm up, then once more to record it."""
        step = self._step[group]
        before = step.clone()
        stream = torch.cuda.current_stream()
        for _ in range(2):
            self._decide(storage, group)
            step.copy_(before)
        graph = torch.cuda.CUDAGraph()
        # Another thread may be learning, and allocate memory, while this one captures.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._decide(storage, group)
        return graph

    def _decide(self, storage: RolloutStorage, group: int) -> None:
        (seen, mask), step, place = self._inputs[group], self._step[group], self.groups[group]
        noise = self._noise[:, place].index_select(0, step)[0]
        output = self.policy.act(seen, mask, noise)
        storage.write_decision(step, place, seen, mask, output)
        if group not in self._actions:
            self._actions[group] = torch.empty_like(output.action, device="cpu").pin_memory()
        self._actions[group].copy_(output.action, non_blocking=True)
        step.add_(1)


def make_acting(policy: Policy, groups: Sequence[slice], device: torch.device) -> Acting:
    kind: Any = CapturedActing if device.type == "cuda" else Acting
    return kind(policy, groups, device)
