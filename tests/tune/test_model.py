"""What candidates would cost, by closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.config import resolve
from stoker.monitor.verdict import Costs
from stoker.pools.choose import HANDOVER_PER_WORKER_S, HANDOVER_S, IO_STEP_S, Probe
from stoker.tune.model import Known, predicted
from stoker.tune.pieces import Pieces
from stoker.tune.space import applied
from stoker.types import ActionSpec, EnvSpec

SPEC = EnvSpec("one", {}, ActionSpec("discrete", (), "int64", (2,), (0,)))
JOB = resolve({"n_envs": 4, "n_steps": 64, "batch_size": 64, "pool": "inline"})
COSTS = Costs(1.1e-3, 0.0, 2e-3, 1e-3, 4e-3, 5e-4, overlapped=False)
PIECES = Pieces(
    Probe(SPEC, 1e-3, 5e-4, False), {4: 4e-3, 8: 6e-3, 3: 3e-3}, {64: 0.1, 128: 0.15}, None
)
KNOWN = Known(JOB, COSTS, PIECES, {2: 0.6}, cores=4, on_gpu=False)


def costs(known: Known = KNOWN, **settings: Any) -> Costs:
    given = {"collect": "step", **settings}
    return predicted(known, applied(JOB, given))


def test_the_job_itself_costs_what_was_measured() -> None:
    same = costs()
    assert same == pytest.approx(COSTS._replace(environments=1e-3))


def test_more_at_once_decide_and_store_for_less() -> None:
    wide = costs(n_envs=8, n_steps=32)
    assert wide.inference == pytest.approx(2e-3 * (6e-3 / 8) / (4e-3 / 4))
    assert wide.storing == pytest.approx(0.5e-3)
    assert wide.learning == pytest.approx(COSTS.learning)


def test_workers_share_the_steps_and_cost_a_hand_over() -> None:
    spread = costs(pool="process", n_workers=2)
    assert spread.environments == pytest.approx(0.5e-3)
    assert spread.handover == pytest.approx((HANDOVER_S + 2 * HANDOVER_PER_WORKER_S) / 4)
    uneven = costs(pool="process", n_workers=2, n_envs=3)
    assert uneven.environments == pytest.approx(2 * 1e-3 / 3)


def test_those_that_wait_do_so_together_until_the_cores_are_full() -> None:
    slow = KNOWN._replace(pieces=PIECES._replace(env=Probe(SPEC, 0.1, 1e-4, False)))
    assert costs(slow, pool="io", n_workers=4).environments == pytest.approx(0.1 / 4)
    fast = KNOWN._replace(pieces=PIECES._replace(env=Probe(SPEC, 1e-4, 1e-4, False)))
    limit = (1e-4 + IO_STEP_S) / 4
    assert costs(fast, pool="io", n_workers=4).environments == pytest.approx(limit)


def test_updates_cost_what_they_did_when_they_were_tried() -> None:
    large = costs(batch_size=128)
    assert large.learning == pytest.approx(4e-3 * (0.15 / 128) / (0.1 / 64))
    assert costs(torch_threads=2).learning == pytest.approx(4e-3 * 0.6)


def test_overlapping_costs_the_longer_of_the_two_or_what_the_cores_can_do() -> None:
    free = costs(pool="process", n_workers=2, collect="overlap")
    assert free.overlapped
    assert free.total == pytest.approx(4e-3 + COSTS.host)
    crowded = costs(KNOWN._replace(cores=1), pool="process", n_workers=1, collect="overlap")
    work = crowded.environments + crowded.handover + 2e-3 + 1e-3 + 4e-3
    assert crowded.total == pytest.approx(work + COSTS.host)


def test_on_the_device_launches_count() -> None:
    device = KNOWN._replace(pieces=PIECES._replace(env=None))
    assert costs(device, n_envs=8, n_steps=32).environments == pytest.approx(0.55e-3)
