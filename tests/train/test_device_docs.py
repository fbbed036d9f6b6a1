"""The examples of docs/tensor-environments.md, as they stand there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.train.agent import PPO

DOCS = Path(__file__).parents[2] / "docs" / "tensor-environments.md"
SIZES: dict[str, Any] = {"n_envs": 8, "n_steps": 16, "batch_size": 32, "device": "cpu"}


def example(heading: str) -> str:
    """The first block of Python under a heading."""
    section = DOCS.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return section.partition("```python\n")[2].partition("```")[0]


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("Write your own", "drift:Drift"),
        ("Environments that live on the device", "drift:Drift"),
        ("JAX environments", "drift:make"),
    ],
)
def test_an_example_is_checked_and_trained_on(
    heading: str,
    name: str,
    tmp_path: Path,
    stoker: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if heading.startswith("JAX"):
        pytest.importorskip("jax", reason="JAX is not installed: pip install 'stoker[jax]'")
    (tmp_path / "drift.py").write_text(example(heading))
    checked = stoker("check", name, "--device", "cpu")
    assert checked.returncode == 0, checked.stderr + checked.stdout
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "drift", raising=False)
    model = PPO("MlpPolicy", name, **SIZES).learn(1000)
    assert model.num_timesteps == 1024
    assert model.outcome is not None
    assert model.outcome.evaluation is not None
    assert not any(metric.startswith("faults/") for metric in model.outcome.metrics)
    monkeypatch.delitem(sys.modules, "drift")
