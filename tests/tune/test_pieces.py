"""Single pieces are tried as a run has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stoker.config import resolve
from stoker.train.by_hand import PolicyByHand
from stoker.train.ppo_by_hand import LearnerByHand
from stoker.tune import pieces
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec

CPU = torch.device("cpu")
MASKED = EnvSpec(
    "made up",
    {PLAIN: LeafSpec("vector", (5,), "float32")},
    ActionSpec("multi_discrete", (2,), "int64", nvec=(3, 2), start=(0, 0)),
    True,
)
ROWS = 24


@pytest.mark.parametrize(("activation", "by_hand"), [("relu", True), ("elu", False)])
def test_updates_and_decisions_are_tried_as_a_run_makes_them(
    monkeypatch: pytest.MonkeyPatch, activation: str, by_hand: bool
) -> None:
    tried: list[str] = []

    def noted(name: str, kind: type[Any], method: str) -> None:
        plain = getattr(kind, method)

        def noting(*given: Any) -> Any:
            tried.append(name)
            return plain(*given)

        monkeypatch.setattr(kind, method, noting)

    noted("update", LearnerByHand, "_epoch")
    noted("decision", PolicyByHand, "act")
    config = resolve({"env": "x:y", "network_arch": "16,16", "activation": activation})
    assert pieces.try_update(config, MASKED, CPU, ROWS) > 0
    assert pieces.try_decision(config, MASKED, CPU, ROWS) > 0
    assert set(tried) == ({"update", "decision"} if by_hand else set())
