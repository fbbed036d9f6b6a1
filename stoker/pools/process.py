"""Environments in worker processes, many to a worker, over shared memory.

On the step path nothing is pickled and nothing goes through a pipe: the trainer writes actions and
a state byte an environment, and rings one bell a worker; the worker steps its share, marks each
environment done, and rings back. Pipes carry control and faults. Workers are forked from a server
that imported neither torch nor the user's main module. Shared memory is an unlinked mapping, so
that nothing is left behind however the processes end.
"""

from __future__ import annotations

import dataclasses

from stoker.config.schema import FaultSettings
from stoker.pools.board import Board
from stoker.pools.crew import Crew
from stoker.pools.crewed import CrewedPool, pickled
from stoker.pools.launch import process_context
from stoker.pools.slot import MakeEnvs
from stoker.pools.worker import Waits
from stoker.types import EnvSpec

_LINGER_S = 0.002
"""How long whoever is ready waits for company, where steps take far longer than that."""


class ProcessPool(CrewedPool):
    """N environments over `n_workers` processes, in two groups where each worker can have both.

    Those that spend their steps waiting (`waits`) all step at once, so they are one group, and
    whoever is ready is handed out every millisecond or two.
    """

    def __init__(
        self,
        make_env: MakeEnvs,
        spec: EnvSpec,
        n_envs: int,
        n_workers: int,
        settings: FaultSettings | None = None,
        keep_infos: bool = False,
        waits: Waits = "no",
    ) -> None:
        settings, n_workers = settings or FaultSettings(), min(n_workers, n_envs)
        self._waits = waits != "no"
        if self._waits:
            settings = dataclasses.replace(settings, stall_after=0.0)  # nobody is held up
        context = process_context()
        board = Board.make(context, spec, n_envs, n_workers)
        super().__init__(board.rows, board.states, settings, keep_infos)
        self.memory = board.memory
        if self._waits:
            self.patience = _LINGER_S
        self._crew = Crew(
            pickled(make_env),
            board,
            context,
            self._share_out(n_workers, alternate=not self._waits),
            settings,
            self._log,
            self._stand_of,
            keep_infos,
            waits,
        )
        self._start(
            "Worker processes",
            "Use the inline pool (--pool inline), or mend what the message names.",
        )

    def worked(self) -> float | None:
        return None if self._waits else super().worked()
