"""From what environments see, on the host, to their actions there, and into the storage."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stoker.storage.rollout import RolloutStorage
from stoker.types import DeviceObs, Policy, Pool

Steps = int | np.ndarray
Place = slice | np.ndarray
"""Of a decision: a step and a range of environments, or any environments and a step each."""


class Acting:
    """Acts eagerly. On a GPU `CapturedActing` does the same with far less work for the host."""

    def __init__(self, pool: Pool, policy: Policy, device: torch.device) -> None:
        self.pool, self.policy, self.device = pool, policy, device
        self._noise = torch.empty(0)

    def begin(self, storage: RolloutStorage) -> None:
        """Draw the noise of a whole rollout, so that it is the same in whatever order it is used.

        There is one row more than the storage has room for steps, as there is in it.
        """
        rows = storage.capacity + 1
        drawn = self.policy.draw_noise(rows * storage.n_envs).unflatten(0, (rows, storage.n_envs))
        if self._noise.shape == drawn.shape:
            self._noise.copy_(drawn)
        else:
            self._noise = drawn

    def act(self, storage: RolloutStorage, t: Steps, place: Place) -> np.ndarray:
        """The policy's actions [n, A] for what these environments see; soon overwritten."""
        obs, mask = self.pool.seen
        seen = {leaf: self._send(value[place]) for leaf, value in obs.items()}
        sent_mask = None if mask is None else self._send(mask[place])
        output = self.policy.act(seen, sent_mask, self._noise[t, place])
        storage.write_decision(t, place, seen, sent_mask, output)
        return output.action.cpu().numpy()  # sync: environments act on the host

    def _send(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)  # sync: from pageable memory


class CapturedActing(Acting):
    """Acts by one CUDA graph a storage: copies in, one launch, one copy out.

    A graph's shapes are fixed, so it acts for everyone, and what is not wanted goes to the row
    after the last. Rows that a worker is writing meanwhile are among those.
    """

    def __init__(self, pool: Pool, policy: Policy, device: torch.device) -> None:
        super().__init__(pool, policy, device)
        obs, mask = pool.seen
        self._seen: DeviceObs = {leaf: self._send(value) for leaf, value in obs.items()}
        self._mask = None if mask is None else self._send(mask)
        self._everyone = torch.arange(pool.n_envs, device=device)
        self._steps = torch.zeros_like(self._everyone)
        self._host_steps = torch.zeros(pool.n_envs, dtype=torch.int64).pin_memory()
        self._actions: Tensor | None = None  # pinned
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._done = torch.cuda.Event()

    def act(self, storage: RolloutStorage, t: Steps, place: Place) -> np.ndarray:
        obs, mask = self.pool.seen
        steps = self._host_steps.numpy()
        steps.fill(storage.capacity)
        steps[place] = t
        self._steps.copy_(self._host_steps, non_blocking=True)
        for leaf, value in obs.items():
            self._seen[leaf].copy_(torch.from_numpy(value), non_blocking=True)
        if self._mask is not None and mask is not None:
            self._mask.copy_(torch.from_numpy(mask), non_blocking=True)
        graph = self._graphs.get(id(storage))
        if graph is None:
            graph = self._graphs[id(storage)] = self._capture(storage)
        graph.replay()
        self._done.record()
        self._done.synchronize()  # sync: environments act on the host
        assert self._actions is not None, "the capture made them"
        return self._actions.numpy()[place]

    def _capture(self, storage: RolloutStorage) -> torch.cuda.CUDAGraph:
        """Run the decision twice to warm up, then once more to record it."""
        for _ in range(2):
            self._decide(storage)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        # Another thread may be learning, and allocate memory, while this one captures.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._decide(storage)
        return graph

    def _decide(self, storage: RolloutStorage) -> None:
        output = self.policy.act(self._seen, self._mask, self._noise[self._steps, self._everyone])
        storage.write_decision(self._steps, self._everyone, self._seen, self._mask, output)
        if self._actions is None:
            self._actions = torch.empty_like(output.action, device="cpu").pin_memory()
        self._actions.copy_(output.action, non_blocking=True)
