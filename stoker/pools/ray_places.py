"""The machines of a Ray cluster as a crew sees them: which are lost, and where there is room."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from stoker.pools.cluster import machines, this_machine

_SHUN_S = 60.0
"""How long a machine that was lost is not used, be Ray still to notice that it is."""


class Places:
    """Where workers can be, while machines come and go."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._lost: dict[str, float] = {}  # by machine, when it was

    def cores(self, learner_cores: int) -> int:
        """Of the cluster, without those that the learner needs if it is on it; at least one."""
        found, here = machines(self._ray), this_machine()
        ours = learner_cores if any(each.node == here for each in found) else 0
        return max(1, sum(each.cpus for each in found) - ours)

    def claim(self, n_workers: int) -> float:
        """What share of a core each of so many workers can claim, so that all find room."""
        cores = sum(each.cpus for each in machines(self._ray))
        return 1 / max(1, math.ceil(n_workers / max(1, cores)))

    def lose(self, node: str) -> None:
        """A machine does not answer."""
        self._lost[node] = time.monotonic()

    def find(self, node: str) -> None:
        """A machine does answer."""
        self._lost.pop(node, None)

    def knows_lost(self, node: str | None) -> bool:
        """Whether it has been said of a machine, of late, that it is lost."""
        since = self._lost.get(node or "")
        return since is not None and time.monotonic() - since < _SHUN_S

    def is_lost(self, node: str | None, error: Exception) -> bool:
        """Whether it is the machine that is gone, by the error of an actor that was on it.

        Ray itself may take a while to be sure.
        """
        kinds = self._ray.exceptions
        gone = (kinds.ActorUnavailableError, kinds.ActorUnschedulableError, kinds.NodeDiedError)
        alive = {each.node for each in machines(self._ray)}
        return isinstance(error, gone) or (node is not None and node not in alive)

    def after(self, node: str | None, others: Iterable[str | None]) -> str | None:
        """The machine for who takes the place of a worker: its own, if that is there.

        Else the one with the most cores for its workers, as far as these are among `others`. None
        if no machine is left.
        """
        left = {one.node: one for one in machines(self._ray) if not self.knows_lost(one.node)}
        if node in left or not left:
            return node if node in left else None
        workers = Counter(others)
        return min(left, key=lambda each: (workers[each] + 1) / left[each].cpus)

    def name(self, node: str | None) -> str:
        """A machine in words."""
        known = {each["NodeID"]: each["NodeManagerAddress"] for each in self._ray.nodes()}
        return f"machine {known[node]}" if node in known else "a machine that is not known"

    def room(self) -> str:
        """What the cluster has, in words."""
        found, free = machines(self._ray), self._ray.available_resources().get("CPU", 0.0)
        cores = sum(each.cpus for each in found)
        return f"{cores} cores on {len(found)} machines, and {free:g} of the cores are free"
