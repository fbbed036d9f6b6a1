"""From what environments see, on the host, to their actions there, and into the storage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from stoker.storage.staged import StagedStorage
from stoker.types import DeviceObs, HostObs, Policy, Pool

Steps = int | np.ndarray
Place = slice | np.ndarray
"""Of a decision: a step and a range of environments, or any environments and a step each."""


class Acting:
    """Acts eagerly. On a GPU `CapturedActing` does the same with far less work for the host."""

    def __init__(self, pool: Pool, policy: Policy, device: torch.device) -> None:
        self.pool, self.policy, self.device = pool, policy, device
        self._noise = self._decided = torch.empty(0)

    def begin(self, storage: StagedStorage) -> None:
        """Draw the noise of a whole rollout, so that it is the same in whatever order it is used.

        There is one row more than the storage has room for steps, as there is in it.
        """
        rows = storage.capacity + 1
        drawn = self.policy.draw_noise(rows * storage.n_envs).unflatten(0, (rows, storage.n_envs))
        self._noise = self._noise.copy_(drawn) if self._noise.numel() else drawn

    def start(self, storage: StagedStorage, t: Steps, place: Place) -> None:
        """Begin to decide for what these environments see."""
        obs, mask = self.pool.seen
        seen = {leaf: self._send(value[place]) for leaf, value in obs.items()}
        sent_mask = None if mask is None else self._send(mask[place])
        output = self.policy.act(seen, sent_mask, self._noise[t, place])
        storage.write_decision(t, place, seen, sent_mask, output)
        self._decided = output.action

    def finish(self) -> np.ndarray:
        """The actions [n, A] that `start` began to decide on; soon overwritten."""
        return self._decided.cpu().numpy()  # sync: environments act on the host

    def _send(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)  # sync: from pageable memory


class CapturedActing(Acting):
    """Acts by CUDA graphs: one from what is seen to the actions, one a storage that keeps them.

    A graph's shapes are fixed, so it acts for everyone, and what is not wanted goes to the row
    after the last. Rows that a worker is writing meanwhile are among those. Keeping comes after
    the actions are on their way, so that no environment waits for it.
    """

    def __init__(self, pool: Pool, policy: Policy, device: torch.device) -> None:
        super().__init__(pool, policy, device)
        obs, mask = pool.seen
        self._seen: DeviceObs = {leaf: self._send(value) for leaf, value in obs.items()}
        self._mask = None if mask is None else self._send(mask)
        self._everyone = torch.arange(pool.n_envs, device=device)
        self._steps = torch.zeros_like(self._everyone)
        self._host_steps = torch.zeros(pool.n_envs, dtype=torch.int64).pin_memory()
        action = np.zeros((pool.n_envs, pool.spec.action.width), pool.spec.action.stored_dtype)
        self._actions = torch.from_numpy(action).pin_memory()
        self._deciding: torch.cuda.CUDAGraph | None = None
        self._keeping: dict[int, torch.cuda.CUDAGraph] = {}
        self._done = torch.cuda.Event()

    def start(self, storage: StagedStorage, t: Steps, place: Place) -> None:
        self._place, steps = place, self._host_steps.numpy()
        steps.fill(storage.capacity)
        steps[place] = t
        if self._deciding is None:
            self._inlets = self._inlets_of(*self.pool.seen)
            self._deciding = self._captured(self._decide)
        for pinned, given in self._unpinned:
            np.copyto(pinned, given)
        self._deciding.replay()
        self._done.record()
        keeping = self._keeping.get(id(storage))
        if keeping is None:
            keeping = self._keeping[id(storage)] = self._captured(lambda: self._keep(storage))
        keeping.replay()

    def finish(self) -> np.ndarray:
        self._done.synchronize()  # sync: environments act on the host
        return self._actions.numpy()[self._place]

    def _inlets_of(self, obs: HostObs, mask: np.ndarray | None) -> list[tuple[Tensor, Tensor]]:
        """Where the GPU copies from, and to; what lies in pageable memory is copied twice."""
        pairs = [(torch.from_numpy(obs[leaf]), seen) for leaf, seen in self._seen.items()]
        if mask is not None and self._mask is not None:
            pairs.append((torch.from_numpy(mask), self._mask))
        pairs.append((self._host_steps, self._steps))
        inlets = [(given if given.is_pinned() else given.pin_memory(), to) for given, to in pairs]
        self._unpinned = [
            (inlet.numpy(), given.numpy())
            for (inlet, _), (given, _) in zip(inlets, pairs, strict=True)
            if inlet is not given
        ]
        return inlets

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Run it twice to warm up, then once more to record it."""
        for _ in range(2):
            work()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        # Another thread may be learning, and allocate memory, while this one captures.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work()
        return graph

    def _decide(self) -> None:
        for inlet, seen in self._inlets:
            seen.copy_(inlet, non_blocking=True)
        noise = self._noise[self._steps, self._everyone]
        self._output = self.policy.act(self._seen, self._mask, noise)
        self._actions.copy_(self._output.action, non_blocking=True)

    def _keep(self, storage: StagedStorage) -> None:
        storage.write_decision(self._steps, self._everyone, self._seen, self._mask, self._output)
