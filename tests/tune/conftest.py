"""Probes that last a moment: what they find is looked at, not how well they know it."""

from __future__ import annotations

import pytest

from stoker.tune import compose, pieces


@pytest.fixture(autouse=True)
def in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "_MODE_S", 0.05)
    monkeypatch.setattr(pieces, "_EACH_S", 0.0)
    monkeypatch.setattr(pieces, "_ENV_S", 0.01)
